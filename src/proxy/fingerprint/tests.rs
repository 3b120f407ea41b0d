//! Fingerprints of whole requests: what counts in each mode, and what does not.

use http::{HeaderValue, Request};
use proptest::prelude::*;

use super::*;

fn policy(body: BodyMode) -> Policy {
    Policy::new(&settings(body), false)
}

fn settings(body: BodyMode) -> config::Fingerprint {
    config::Fingerprint { body, headers: Vec::new(), ignore_query: Vec::new(), ignore: Vec::new() }
}

/// The fingerprint of a whole request that came without TLS.
fn print(policy: &Policy, head: &Parts, body: &[u8]) -> record::Fingerprint {
    policy.print(head, BodyAsRead::Whole(body), false).unwrap().fingerprint
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
        (BodyMode::Bytes, "", json, "4c8e75c1ec19c39636f8fe6b5a8d77063783c0b270efa42b10cde38ff04a9fe9"),
        (BodyMode::Json, "", json, "fb01fcf7dd466359b4ae28beb02b8f013e2c6754f72d50727aee0a795ced074f"),
        (BodyMode::Form, FORM, "b=1&a=x+y&b", "d68fcf76a303ee8e5f20cd9cf397e71a173edf99d94e35affed77be99a934795"),
        (
            BodyMode::Multipart,
            "multipart/form-data; boundary=b",
            upload,
            "33fc4e2450672aac0ac65f2eeb6f459cc17c93bc026cd7386f704ab9a33ef1cd",
        ),
        (BodyMode::Json, "", "x", "509f06679bc13c5462fadf385c9a909cb0d1d282eed57258faccd7a067207f83"),
        (BodyMode::Ignore, "", "x", "cbc56b35680ac1f5183fb148b0d24acd15f6f4c53139e62f16071820cef1118a"),
    ] {
        let hex: String = of(&policy(mode), kind, body).digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, digest, "{mode:?}");
    }
    assert_eq!(policy(BodyMode::Bytes).id, [53, 172, 194, 34]);
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
                let _ = policy(mode).print(&head, BodyAsRead::Whole(&body), true);
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
