//! Values that senders publish, and what must not pass for them.

use http::Request;

use super::*;
use crate::config::{Sources, load};

/// The verifier of a route with these lines under `[route.verify]`, and these secrets.
fn verifier(lines: &str, secrets: &[&str]) -> Verifier {
    let folder = tempfile::tempdir().unwrap();
    let files = secrets.iter().enumerate().map(|(number, secret)| {
        let path = folder.path().join(number.to_string());
        std::fs::write(&path, secret).unwrap();
        format!("{{ file = {path:?} }}")
    });
    let secrets = files.collect::<Vec<_>>().join(", ");
    let route = "[[route]]\nname = \"r\"\nupstream = \"http://u\"\n[route.verify]\n";
    let text = format!("{route}secrets = [{secrets}]\n{lines}");
    let config = load(&Sources::text(text)).unwrap_or_else(|mistakes| panic!("{mistakes}")).config;
    Verifier::new("r", config.routes[0].verify.as_ref().unwrap(), &Metrics::new()).unwrap()
}

struct Sent {
    head: request::Parts,
    body: Vec<u8>,
    now: u64,
}

/// A delivery that comes at the second of its time stamp, if it has one.
fn sent(target: &str, fields: &[(&str, &str)], body: &str, now: u64) -> Sent {
    let request = fields.iter().fold(Request::post(target), |request, (name, value)| request.header(*name, *value));
    Sent { head: request.body(()).unwrap().into_parts().0, body: body.into(), now }
}

impl Sent {
    fn judged(&self, verifier: &Verifier) -> Result<(), Forgery> {
        let delivery = Delivery { head: &self.head, body: &self.body, is_secured: true };
        verifier.judge(&delivery, SystemTime::UNIX_EPOCH + Duration::from_secs(self.now))
    }

    fn with(mut self, name: &'static str, value: &str) -> Sent {
        self.head.headers.insert(name, value.parse().unwrap());
        self
    }

    fn twice(mut self, name: &'static str) -> Sent {
        let value = self.head.headers[name].clone();
        self.head.headers.append(name, value);
        self
    }

    fn without(mut self, name: &str) -> Sent {
        self.head.headers.remove(name);
        self
    }

    fn at(mut self, now: u64) -> Sent {
        self.now = now;
        self
    }

    fn of(mut self, body: &str) -> Sent {
        self.body = body.into();
        self
    }
}

/// The example of GitHub's documentation, "Validating webhook deliveries".
fn github() -> Sent {
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    sent("/", &[("X-Hub-Signature-256", signature)], "Hello, World!", 0)
}

/// The example of Standard Webhooks' libraries.
fn standard() -> Sent {
    let fields = [
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ];
    sent("/", &fields, r#"{"test": 2432232314}"#, 1_614_265_330)
}

/// The example of Slack's documentation, "Verifying requests from Slack".
fn slack() -> Sent {
    let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&\
                channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&\
                response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F\
                96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    let fields = [("X-Slack-Signature", signature), ("X-Slack-Request-Timestamp", "1531420618")];
    sent("/", &fields, body, 1_531_420_618)
}

const TWILIO_TARGET: &str = "/myapp.php?foo=1&bar=2";
const FORM: &str = "application/x-www-form-urlencoded";

/// The example of Twilio's libraries.
fn twilio() -> Sent {
    let body = "CallSid=CA1234567890ABCDE&Digits=1234&From=%2B14158675309&To=%2B18005551212&Caller=%2B14158675309";
    let fields =
        [("Host", "mycompany.com"), ("Content-Type", FORM), ("X-Twilio-Signature", "RSOYDt4T1cUTdK1PDd93/VVr8B8=")];
    sent(TWILIO_TARGET, &fields, body, 0)
}

/// The same with a body that is no form.
fn twilio_json() -> Sent {
    let digest = "0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620";
    let fields = [("Host", "mycompany.com"), ("X-Twilio-Signature", "a9nBmqA0ju/hNViExpshrM61xv4=")];
    sent(&format!("{TWILIO_TARGET}&bodySHA256={digest}"), &fields, r#"{"property": "value", "boolean": true}"#, 0)
}

const GITHUB_SECRET: &str = "It's a Secret to Everybody";
const STANDARD_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const SLACK_SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";
const TWILIO_SECRET: &str = "12345";

#[test]
fn what_senders_publish_holds_also_while_secrets_rotate() {
    type Example = (&'static str, &'static str, fn() -> Sent);
    let examples: [Example; 5] = [
        ("github", GITHUB_SECRET, github),
        ("standard-webhooks", STANDARD_SECRET, standard),
        ("slack", SLACK_SECRET, slack),
        ("twilio", TWILIO_SECRET, twilio),
        ("twilio", TWILIO_SECRET, twilio_json),
    ];
    for (preset, secret, example) in examples {
        let lines = format!("preset = {preset:?}");
        let other = if preset == "standard-webhooks" { "b3RoZXI=" } else { "other" };
        for secrets in [&[secret][..], &[other, secret], &[secret, other]] {
            assert_eq!(example().judged(&verifier(&lines, secrets)), Ok(()), "{preset}");
        }
        let with_other = verifier(&lines, &[other]);
        assert_eq!(example().judged(&with_other), Err(Forgery::Wrong), "{preset} under another secret");
        let body = example().of("{}");
        assert_eq!(body.judged(&verifier(&lines, &[secret])), Err(Forgery::Wrong), "{preset} with another body");
    }
}

#[test]
fn a_signature_that_is_missing_malformed_or_there_twice_is_none() {
    let github_verifier = verifier("preset = \"github\"", &[GITHUB_SECRET]);
    let name = "x-hub-signature-256";
    assert_eq!(github().without(name).judged(&github_verifier), Err(Forgery::Missing));
    assert_eq!(github().twice(name).judged(&github_verifier), Err(Forgery::Malformed));
    let right = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    for (value, judged) in [
        (format!("sha256={}", right.to_uppercase()), Ok(())),
        (right.to_owned(), Err(Forgery::Malformed)),
        ("sha256=".to_owned(), Err(Forgery::Malformed)),
        (format!("sha256={right}0"), Err(Forgery::Malformed)),
        (format!("sha256={}", &right[2..]), Err(Forgery::Wrong)),
        (format!("sha256={right}00"), Err(Forgery::Wrong)),
        (format!("sha1={right}"), Err(Forgery::Malformed)),
        (format!("sha256={right}, sha256={right}"), Err(Forgery::Malformed)),
    ] {
        assert_eq!(github().with(name, &value).judged(&github_verifier), judged, "{value}");
    }
    let standard_verifier = verifier("preset = \"standard-webhooks\"", &[STANDARD_SECRET]);
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        assert_eq!(standard().without(name).judged(&standard_verifier), Err(Forgery::Missing), "{name}");
        assert_eq!(standard().twice(name).judged(&standard_verifier), Err(Forgery::Malformed), "{name}");
    }
    for (name, value) in [("webhook-id", "msg_other"), ("webhook-timestamp", "1614265331")] {
        assert_eq!(standard().with(name, value).judged(&standard_verifier), Err(Forgery::Wrong), "{name}");
    }
}

#[test]
fn one_of_several_signatures_in_a_field_is_enough() {
    let verifier = verifier("preset = \"standard-webhooks\"", &[STANDARD_SECRET]);
    let right = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    for (value, judged) in [
        (format!("v1,Zm9v {right}"), Ok(())),
        (format!("{right} v1a,Zm9v"), Ok(())),
        (format!("v1a,Zm9v v2,Zm9v {right} v1,???"), Ok(())),
        (right.replace("v1,", "v2,"), Err(Forgery::Malformed)),
        ("v1,Zm9v".to_owned(), Err(Forgery::Wrong)),
        (right.replace("v1,", "v1,v1,"), Err(Forgery::Malformed)),
        (String::new(), Err(Forgery::Malformed)),
    ] {
        assert_eq!(standard().with("webhook-signature", &value).judged(&verifier), judged, "{value}");
    }
}

#[test]
fn a_time_may_be_off_by_the_tolerance_to_either_side() {
    let default = verifier("preset = \"slack\"", &[SLACK_SECRET]);
    let narrow = verifier("preset = \"slack\"\ntolerance = \"10s\"", &[SLACK_SECRET]);
    let then = 1_531_420_618;
    for (verifier, tolerance) in [(default, 300), (narrow, 10)] {
        for (now, judged) in [
            (then - tolerance - 1, Err(Forgery::Expired)),
            (then - tolerance, Ok(())),
            (then + tolerance, Ok(())),
            (then + tolerance + 1, Err(Forgery::Expired)),
        ] {
            assert_eq!(slack().at(now).judged(&verifier), judged, "{} s off", now.abs_diff(then));
        }
        for value in ["", "-1531420618", "+1531420618", "1531420618.0", "now", "99999999999999999999"] {
            let slack = slack().with("x-slack-request-timestamp", value);
            assert_eq!(slack.judged(&verifier), Err(Forgery::Malformed), "{value:?}");
        }
    }
}

/// Signed by hand: `t=…,v1=…` over `t.body`.
#[test]
fn stripes_field_has_its_time_and_signatures_together() {
    let verifier = verifier("preset = \"stripe\"", &["whsec_test"]);
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"whsec_test");
    let digits = |tag: hmac::Tag| tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let right = digits(hmac::sign(&key, b"1000.{}"));
    let wrong = digits(hmac::sign(&key, b"1000.[]"));
    for (value, judged) in [
        (format!("t=1000,v1={right}"), Ok(())),
        (format!("t=1000,v1={wrong},v1={right},v0={wrong}"), Ok(())),
        (format!("t=1000, v1={right}"), Ok(())),
        (format!("t=1000,v0={right}"), Err(Forgery::Malformed)),
        (format!("t=1000,v1={wrong}"), Err(Forgery::Wrong)),
        (format!("t=1001,v1={right}"), Err(Forgery::Wrong)),
        (format!("t=2000,v1={right}"), Err(Forgery::Expired)),
        (format!("v1={right}"), Err(Forgery::Malformed)),
        (format!("t=1000,t=1000,v1={right}"), Err(Forgery::Malformed)),
        (String::new(), Err(Forgery::Malformed)),
    ] {
        let sent = sent("/", &[("Stripe-Signature", &value)], "{}", 1000);
        assert_eq!(sent.judged(&verifier), judged, "{value}");
    }
}

#[test]
fn twilios_url_is_the_one_that_it_called() {
    let plain = verifier("preset = \"twilio\"", &[TWILIO_SECRET]);
    let known = verifier("preset = \"twilio\"\nurl = \"https://mycompany.com\"", &[TWILIO_SECRET]);
    for host in ["mycompany.com", "mycompany.com:443"] {
        assert_eq!(twilio().with("host", host).judged(&plain), Ok(()), "{host}");
    }
    for host in ["other.example", "10.0.0.7:8080"] {
        assert_eq!(twilio().with("host", host).judged(&plain), Err(Forgery::Wrong), "{host}");
        assert_eq!(twilio().with("host", host).judged(&known), Ok(()), "{host}");
    }
    // What a proxy before this one has taken off belongs to the URL too.
    let below = verifier("preset = \"twilio\"\nurl = \"https://mycompany.com/myapp.php\"", &[TWILIO_SECRET]);
    let mut stripped = twilio();
    stripped.head.uri = "/?foo=1&bar=2".parse().unwrap();
    assert_eq!(stripped.judged(&below), Err(Forgery::Wrong), "a slash more than was signed");
    let known = verifier("preset = \"twilio\"\nurl = \"https://mycompany.com/\"", &[TWILIO_SECRET]);
    assert_eq!(twilio().judged(&known), Ok(()));
}

#[test]
fn a_body_that_twilio_has_not_signed_is_refused() {
    let verifier = verifier("preset = \"twilio\"", &[TWILIO_SECRET]);
    let body = String::from_utf8(twilio().body).unwrap();
    // The order of parameters does not count, nor one that is there twice with one value.
    assert_eq!(twilio().of(&format!("Digits=1234&{}", body.replace("Digits=1234&", ""))).judged(&verifier), Ok(()));
    assert_eq!(twilio().of(&format!("{body}&Digits=1234")).judged(&verifier), Ok(()));
    assert_eq!(twilio().of(&format!("{body}&Digits=12345")).judged(&verifier), Err(Forgery::Wrong));
    assert_eq!(twilio().with("content-type", "application/json").judged(&verifier), Err(Forgery::Wrong));
    assert_eq!(twilio().twice("content-type").judged(&verifier), Err(Forgery::Wrong));
    // A digest in the URL holds for every kind of body, the empty one too.
    assert_eq!(twilio_json().of("").judged(&verifier), Err(Forgery::Wrong));
    assert_eq!(twilio_json().of(&body).with("content-type", FORM).judged(&verifier), Err(Forgery::Wrong));
    assert_eq!(twilio_json().with("content-type", FORM).judged(&verifier), Ok(()));
}

#[test]
fn an_hmac_can_be_spelled_out() {
    let sha1 = "[route.verify.hmac]\nheader = \"X-Signature\"\nalgorithm = \"sha1\"\nencoding = \"base64\"";
    let sha512 = "[route.verify.hmac]\nheader = \"X-Signature\"\nalgorithm = \"sha512\"\nsecret_encoding = \"hex\"\n\
                  timestamp_header = \"X-Time\"\nid_header = \"X-Id\"\nsigned = \"{id}|{timestamp}|{body}|end\"";
    let sha1_key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"6162");
    let tag = BASE64.encode(hmac::sign(&sha1_key, b"body"));
    let fields = [("X-Signature", tag.as_str())];
    assert_eq!(sent("/", &fields, "body", 0).judged(&verifier(sha1, &["6162"])), Ok(()));
    let sha512_key = hmac::Key::new(hmac::HMAC_SHA512, b"ab");
    let tag = hmac::sign(&sha512_key, b"i|7|body|end");
    let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let fields = [("X-Signature", digits.as_str()), ("X-Time", "7"), ("X-Id", "i")];
    assert_eq!(sent("/", &fields, "body", 7).judged(&verifier(sha512, &["6162"])), Ok(()));
}
