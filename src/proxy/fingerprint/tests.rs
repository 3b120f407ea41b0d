//! Fingerprints of whole requests: what counts in each mode, and what does not.

use http::{HeaderValue, Request};
use proptest::prelude::*;

use super::*;

mod pairs;

fn policy(body: BodyMode) -> Policy {
    Policy::new(&settings(body), false)
}

fn settings(body: BodyMode) -> config::Fingerprint {
    config::Fingerprint { body, headers: Vec::new(), ignore_query: Vec::new(), ignore: Vec::new() }
}

/// The fingerprint of a whole request that came without TLS.
fn print(policy: &Policy, head: &Parts, body: &[u8]) -> record::Fingerprint {
    policy.print(head, BodyAsRead::Whole(body, Some(body)), false).unwrap().fingerprint
}

/// Whether two prints under one policy are of different requests.
trait Conflicts {
    fn conflicts_with(&self, other: &record::Fingerprint) -> bool;
}

impl Conflicts for record::Fingerprint {
    fn conflicts_with(&self, other: &record::Fingerprint) -> bool {
        assert_eq!(self.policy, other.policy);
        self.digest != other.digest
    }
}

fn head(method: &str, target: &str, fields: &[(&str, &str)]) -> Parts {
    let request = Request::builder().method(method).uri(target);
    let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(()).unwrap().into_parts().0
}

fn of(policy: &Policy, kind: &str, body: &str) -> record::Fingerprint {
    print(policy, &head("POST", "/pay", &[("content-type", kind)]), body.as_bytes())
}

const FORM: &str = "application/x-www-form-urlencoded";
const MODES: [BodyMode; 5] = [BodyMode::Bytes, BodyMode::Json, BodyMode::Form, BodyMode::Multipart, BodyMode::Ignore];

#[test]
fn method_path_and_query_count_as_they_were_received_in_every_mode() {
    for mode in MODES {
        let policy = policy(mode);
        let of = |method: &str, target: &str| print(&policy, &head(method, target, &[]), b"{}");
        let first = of("POST", "/pay?amount=10");
        assert_eq!(first, of("POST", "http://else.where/pay?amount=10"), "the upstream does not see the host");
        for (method, target) in [
            ("PUT", "/pay?amount=10"),
            ("POST", "/pay?amount=20"),
            ("POST", "/pay%3Famount=10"),
            ("POST", "/pay?amount=%310"),
            ("POST", "/pay/?amount=10"),
            ("POST", "/pay"),
            ("POST", "/pay?"),
        ] {
            assert!(first.conflicts_with(&of(method, target)), "{method} {target}");
        }
        assert!(of("POST", "/pay").conflicts_with(&of("POST", "/pay?")));
        assert!(of("POST", "/pay").conflicts_with(&of("POSTS", "/pay")), "a part's end counts");
    }
}

#[test]
fn named_headers_count_with_all_their_lines_and_no_others() {
    let headers = vec![HeaderName::from_static("x-version"), HeaderName::from_static("x-account")];
    let policy = Policy::new(&config::Fingerprint { headers, ..settings(BodyMode::Bytes) }, false);
    let of = |fields: &[(&str, &str)]| print(&policy, &head("POST", "/", fields), b"");
    let cases: [&[(&str, &str)]; 6] = [
        &[],
        &[("x-version", "")],
        &[("x-version", "1")],
        &[("x-account", "1")],
        &[("x-version", "1"), ("x-version", "2")],
        &[("x-version", "2"), ("x-version", "1")],
    ];
    for (at, fields) in cases.iter().enumerate() {
        assert!(cases[..at].iter().all(|other| of(other).conflicts_with(&of(fields))), "{fields:?}");
    }
    assert_eq!(
        of(&[("host", "a"), ("content-type", "b"), ("transfer-encoding", "chunked")]),
        of(&[("content-length", "0")])
    );
}

#[test]
fn other_settings_are_another_policy() {
    let new = |body, headers: &[&'static str], ignore: &[&str]| {
        let settings = config::Fingerprint {
            headers: headers.iter().map(|name| HeaderName::from_static(name)).collect(),
            ignore: ignore.iter().map(|pointer| (*pointer).to_owned()).collect(),
            ..settings(body)
        };
        Policy::new(&settings, false)
    };
    let mut policies: Vec<Policy> = MODES.into_iter().map(policy).collect();
    policies.push(new(BodyMode::Bytes, &["a"], &[]));
    policies.push(new(BodyMode::Json, &[], &["/a"]));
    policies.push(new(BodyMode::Json, &[], &["/b"]));
    policies.push(new(BodyMode::Json, &["a"], &[]));
    policies.push(new(BodyMode::Json, &["b"], &[]));
    policies.push(Policy::new(&settings(BodyMode::Bytes), true));
    for name in ["a", "b"] {
        let ignore_query = vec![name.to_owned()];
        policies.push(Policy::new(&config::Fingerprint { ignore_query, ..settings(BodyMode::Bytes) }, false));
    }
    for (at, policy) in policies.iter().enumerate() {
        assert!(policies[..at].iter().all(|other| of(other, FORM, "a").policy != of(policy, FORM, "a").policy));
    }
    // The order of the settings says nothing.
    let (one, other) =
        (new(BodyMode::Json, &["a", "b"], &["/a", "/b"]), new(BodyMode::Json, &["b", "a"], &["/b", "/a"]));
    assert_eq!(of(&one, FORM, "a"), of(&other, FORM, "a"));
}

#[test]
fn a_digest_is_the_documented_hash() {
    // Stored fingerprints depend on it: another digest needs another FORMAT_VERSION. Computed outside this crate.
    let json = r#"{"b":[1.0],"a":"x"}"#;
    let upload = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n";
    for (mode, kind, body, digest) in [
        (BodyMode::Bytes, "", json, "4c840e3f11e43db95c6e12746bab8eea860a1838ac5e2de809c6cffff74f6aa9"),
        (BodyMode::Json, "", json, "0b3815dfe41a33dd512e80ebc8f7ad449fae03d6c7c87c7d04c44f03420bc7cc"),
        (BodyMode::Form, FORM, "b=1&a=x+y&b", "df95f1d1e6ca4ca455babf8a6c3ee4bb079ff6e96b56d498bc612638697ca24b"),
        (
            BodyMode::Multipart,
            "multipart/form-data; boundary=b",
            upload,
            "132aa13626b31adb2d0b4ac6000003c952a15477fc1aaf42e2b0bc67ca06747b",
        ),
        (BodyMode::Json, "", "x", "fdbf30e1623152f07898e763e69436aba89ca50843acde542453f24c01ebe1a6"),
        (BodyMode::Ignore, "", "x", "9d14b3d42125860cbbc085ed14d5e82dbfcc7b27bdfdeff3338e358e70073cab"),
    ] {
        let hex: String = of(&policy(mode), kind, body).digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, digest, "{mode:?}");
    }
    assert_eq!(policy(BodyMode::Bytes).id, [98, 164, 7, 169]);
}

#[test]
fn bytes_count_one_by_one() {
    let of = |body: &str| of(&policy(BodyMode::Bytes), "application/json", body);
    assert_eq!(of(r#"{"a":1}"#), of(r#"{"a":1}"#));
    assert!(of(r#"{"a":1,"b":2}"#).conflicts_with(&of(r#"{"b":2,"a":1}"#)));
    assert!(of("9007199254740993").conflicts_with(&of("9007199254740992")));
    assert!(of("").conflicts_with(&of("\0")));
}

#[test]
fn an_ignored_body_does_not_count() {
    let policy = policy(BodyMode::Ignore);
    assert_eq!(of(&policy, "text/plain", "a"), of(&policy, FORM, ""));
}

#[test]
fn a_body_in_another_format_counts_byte_by_byte_and_is_never_taken_for_the_format() {
    for (mode, kind, good, other) in [
        (BodyMode::Json, "application/json", "{}", "{} x"),
        (BodyMode::Form, FORM, "a=1&b=2", "a=%zz"),
        (BodyMode::Multipart, "multipart/form-data; boundary=b", "--b\r\n\r\nx\r\n--b--", "--b"),
    ] {
        let policy = policy(mode);
        assert!(of(&policy, kind, good).conflicts_with(&of(&policy, kind, other)));
        assert!(of(&policy, kind, other).conflicts_with(&of(&policy, kind, &format!("{other} "))));
        assert_eq!(of(&policy, kind, other), of(&policy, "text/plain", other));
    }
    let form = policy(BodyMode::Form);
    assert!(of(&form, "text/plain", "a&b").conflicts_with(&of(&form, "text/plain", "b&a")));
}

#[test]
fn with_two_content_types_a_body_is_in_no_format() {
    let form = policy(BodyMode::Form);
    let of = |body: &str| {
        let head = head("POST", "/pay", &[("content-type", FORM), ("content-type", FORM)]);
        print(&form, &head, body.as_bytes())
    };
    assert!(of("a=1&b=2").conflicts_with(&of("b=2&a=1")));
}

#[test]
fn a_new_boundary_is_the_same_upload_only_in_multipart_mode() {
    let upload = |boundary: &str| {
        format!("--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--{boundary}--\r\n")
    };
    let pair = |mode| {
        let of = |name: &str| of(&policy(mode), &format!("multipart/form-data; boundary={name}"), &upload(name));
        (of("one"), of("two"))
    };
    let (one, two) = pair(BodyMode::Multipart);
    assert_eq!(one, two);
    let (one, two) = pair(BodyMode::Bytes);
    assert!(one.conflicts_with(&two));
}

#[test]
fn a_forms_names_may_change_places_but_equal_ones_may_not() {
    let of = |body: &str| of(&policy(BodyMode::Form), "Application/X-WWW-Form-urlencoded; charset=utf-8", body);
    let first = of("a=1&b=x+y&a=2");
    for same in ["b=x%20y&a=1&a=2", "%61=1&&a=%32&b=x+y&"] {
        assert_eq!(of(same), first, "{same}");
    }
    for changed in
        ["a=2&b=x+y&a=1", "a=1&b=x+y", "a=1&b=x%2by&a=2", "A=1&b=x+y&a=2", "a=1&b=x+y&a=2&c", "a=1%26b=x+y&a=2"]
    {
        assert!(of(changed).conflicts_with(&first), "{changed}");
    }
    assert!(of("a").conflicts_with(&of("a=")));
    assert!(of("ab=c").conflicts_with(&of("a=bc")));
    assert!(of("a&b=c").conflicts_with(&of("a=b&c")));
}

proptest! {
    #[test]
    fn any_request_is_hashed_without_a_panic(kind in "[ -~]{0,20}", body in proptest::collection::vec(any::<u8>(), 0..60)) {
        let mut head = head("POST", "/", &[]);
        for kind in [kind.as_str(), FORM, "multipart/form-data; boundary=b"] {
            head.headers.insert(CONTENT_TYPE, HeaderValue::from_str(kind).unwrap());
            for mode in MODES {
                let _ = policy(mode).print(&head, BodyAsRead::Whole(&body, Some(&body)), true);
            }
        }
    }

    #[test]
    fn a_form_is_its_pairs_by_name(pairs in proptest::collection::vec(("[a-c]{1,2}", "[ &=%+x]{0,3}"), 0..6), seed in any::<u64>()) {
        let write = |pairs: &[(String, String)]| -> String {
            let encode = |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02X}")).collect() };
            pairs.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect::<Vec<_>>().join("&")
        };
        let mut moved = pairs.clone();
        if pairs.len() > 1 {
            moved.rotate_left(seed as usize % pairs.len());
        }
        let (mut one, mut other) = (pairs.clone(), moved.clone());
        one.sort_by(|a, b| a.0.cmp(&b.0));
        other.sort_by(|a, b| a.0.cmp(&b.0));
        let form = policy(BodyMode::Form);
        prop_assert_eq!(of(&form, FORM, &write(&pairs)) == of(&form, FORM, &write(&moved)), one == other);
    }
}

/// The parts of a request with this body, as they came.
fn parts(head: &Parts, body: &[u8], tls: bool) -> record::Parts {
    policy(BodyMode::Ignore).print(head, BodyAsRead::Whole(body, Some(body)), tls).unwrap().parts
}

/// Which of the parts differ, in the order of `RequestPart::ALL`.
fn differing(one: &record::Parts, other: &record::Parts) -> Vec<record::RequestPart> {
    let print = record::Fingerprint { policy: [0; 4], digest: [0; 32] };
    let imprint = |policy: u8, parts: &record::Parts| record::Imprint {
        fingerprint: record::Fingerprint { policy: [policy; 4], ..print },
        details: Some(Arc::new(record::Details { parts: *parts, credentials: None })),
    };
    match imprint(0, one).compare(&imprint(1, other)) {
        record::Likeness::Differs(differences) => {
            record::RequestPart::ALL.into_iter().filter(|part| differences.has(*part)).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn every_part_counts_as_it_came_in_its_own_digest() {
    use record::RequestPart::{Body, Content, Host, Operation, Target};
    let fields = [("host", "a.test"), ("content-type", "text/plain")];
    let first = parts(&head("POST", "/pay?a=1", &fields), b"x", false);
    let with = |name, value| [fields[0], fields[1], (name, value)];
    for (head, body, part) in [
        (head("PUT", "/pay?a=1", &fields), "x", Target),
        (head("POST", "/pay?a=1&", &fields), "x", Target),
        (head("POST", "/pay", &fields), "x", Target),
        (head("POST", "/pay?a=1", &[("host", "b.test"), fields[1]]), "x", Host),
        (head("POST", "/pay?a=1", &[fields[1]]), "x", Host),
        (head("POST", "/pay?a=1", &with("x-amz-target", "A")), "x", Operation),
        (head("POST", "/pay?a=1", &with("x-method-override", "")), "x", Operation),
        (head("POST", "/pay?a=1", &[fields[0]]), "x", Content),
        (head("POST", "/pay?a=1", &with("content-encoding", "gzip")), "x", Content),
        (head("POST", "/pay?a=1", &fields), "", Body),
    ] {
        assert_eq!(differing(&first, &parts(&head, body.as_bytes(), false)), [part], "{head:?} {body}");
    }
    let same = head("POST", "/pay?a=1", &with("x-other", "1"));
    assert_eq!(differing(&first, &parts(&same, b"x", false)), []);
    // A body that nobody has read is equal to none, not even to an empty one.
    let unread = policy(BodyMode::Ignore).print(&head("POST", "/pay?a=1", &fields), BodyAsRead::Unread, false).unwrap();
    let empty = parts(&head("POST", "/pay?a=1", &fields), b"", false);
    assert_eq!(differing(&empty, &unread.parts), [Body]);
}

#[test]
fn fields_of_one_name_are_not_taken_for_those_of_another() {
    let of = |name: &str| parts(&head("POST", "/", &[(name, "A")]), b"", false);
    let operation = ["x-amz-target", "soapaction", "x-method-override", "x-http-method-override"];
    for (at, name) in operation.iter().enumerate() {
        for other in &operation[..at] {
            assert_eq!(differing(&of(name), &of(other)), [record::RequestPart::Operation]);
        }
    }
    assert_eq!(differing(&of("content-type"), &of("content-encoding")), [record::RequestPart::Content]);
}

#[test]
fn a_host_is_the_same_in_any_case_and_with_the_port_that_goes_without_saying() {
    let of = |target: &str, host: &str, tls: bool| parts(&head("POST", target, &[("host", host)]), b"", tls);
    for (target, host, tls) in [
        ("/", "A.test", false),
        ("/", "a.test:80", false),
        ("/", "a.test:", false),
        ("/", "a.TEST.:80", false),
        ("/", "a.test:443", true),
        ("http://a.test/", "b.test", false),
        ("http://A.test:80/", "b.test", true),
        ("https://a.test:443/", "b.test", false),
    ] {
        assert_eq!(differing(&of("/", "a.test", false), &of(target, host, tls)), [], "{target} {host} {tls}");
    }
    for (target, host, tls) in [
        ("/", "a.test:443", false),
        ("/", "a.test:80", true),
        ("/", "a.test:8080", false),
        ("/", "a.test80", false),
        ("/", "[::80]", false),
        ("/", "", false),
        ("https://a.test:80/", "a.test", false),
    ] {
        let differing = differing(&of("/", "a.test", false), &of(target, host, tls));
        assert_eq!(differing, [record::RequestPart::Host], "{target} {host} {tls}");
    }
    assert_eq!(differing(&of("/", "[::1]", false), &of("/", "[::1]:80", false)), []);
}

#[test]
fn the_host_counts_where_the_upstream_sees_it() {
    let of = |counts: bool, host: &str| {
        print(&Policy::new(&settings(BodyMode::Bytes), counts), &head("POST", "/", &[("host", host)]), b"")
    };
    assert!(of(true, "a.test").conflicts_with(&of(true, "b.test")));
    assert_eq!(of(true, "a.test"), of(true, "A.test:80"));
    assert_eq!(of(false, "a.test"), of(false, "b.test"));
}

#[test]
fn ignored_parameters_do_not_count_wherever_they_stand() {
    let ignore_query = vec!["nonce".to_owned(), "a b".to_owned()];
    let policy = Policy::new(&config::Fingerprint { ignore_query, ..settings(BodyMode::Bytes) }, false);
    let of = |target: &str| print(&policy, &head("POST", target, &[]), b"");
    for same in ["/p?x=1&y=2", "/p?nonce=1&x=1&y=2", "/p?x=1&no%6Ece&y=2&nonce=", "/p?x=1&a+b=1&y=2&a%20b=2"] {
        assert_eq!(of(same), of("/p?x=1&y=2"), "{same}");
    }
    for other in ["/p?y=2&x=1", "/p?x=1", "/p?x=1&y=2&", "/p?x=1&y=2&NONCE=1", "/p?x=1&y=2&nonce%=1", "/q?x=1&y=2"] {
        assert!(of(other).conflicts_with(&of("/p?x=1&y=2")), "{other}");
    }
    assert_eq!(of("/p?nonce=1"), of("/p"));
    // To some upstreams the amount is a parameter of its own.
    assert!(of("/p?nonce=1;amount=10").conflicts_with(&of("/p?nonce=2;amount=2000")));
    assert!(of("/p?x").conflicts_with(&of("/p%3Fx")), "where the path ends counts");
}

#[test]
fn the_headers_that_choose_an_operation_count_by_default() {
    let headers = OPERATION.to_vec();
    let policy = Policy::new(&config::Fingerprint { headers, ..settings(BodyMode::Bytes) }, false);
    let of = |fields: &[(&str, &str)]| print(&policy, &head("POST", "/", fields), b"");
    let cases: [&[(&str, &str)]; 5] = [
        &[],
        &[("x-amz-target", "A")],
        &[("soapaction", "A")],
        &[("x-amz-target", "A"), ("soapaction", "A")],
        &[("x-amz-target", "A"), ("x-amz-target", "A")],
    ];
    for (at, fields) in cases.iter().enumerate() {
        assert!(cases[..at].iter().all(|other| of(other).conflicts_with(&of(fields))), "{fields:?}");
    }
    assert_eq!(of(&[]), of(&[("accept", "text/plain")]));
}
