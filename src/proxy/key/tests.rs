//! Keys of whole requests: which source decides, what is refused, and whose record it is.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use proptest::prelude::*;

use super::*;
use crate::config;

fn route(key: Vec<KeySource>) -> Route {
    Route {
        name: "payments".into(),
        host: None,
        path: "/".to_owned(),
        preset: "api",
        strip_prefix: false,
        upstream: config::Upstream {
            tls: false,
            host: "localhost".to_owned(),
            port: 80,
            ..config::Upstream::default()
        },
        methods: vec![http::Method::POST],
        key,
        key_required: true,
        max_key_length: 255,
        scope: vec![ScopePart::Header(HeaderName::from_static("authorization"))],
        authorize: None,
        authorize_timeout: Duration::from_secs(1),
        verify: None,
        replay_to: config::ReplayTo::Scope,
        fingerprint: config::Fingerprint {
            body: config::BodyMode::Bytes,
            headers: Vec::new(),
            ignore_query: Vec::new(),
            ignore: Vec::new(),
        },
        on_duplicate: config::OnDuplicate::Wait,
        wait_timeout: Duration::from_secs(30),
        statuses: config::StatusPolicy::record_all(),
        when: Vec::new(),
        stream_types: Vec::new(),
        on_unknown: config::OnUnknown::Hold,
        retention: Duration::from_secs(86_400),
        unknown_retention: None,
        timeout: Duration::from_secs(30),
        abandon_after: Duration::from_secs(300),
        lease: Duration::from_secs(10),
        max_in_flight: None,
        max_request_body: 8 << 20,
        max_response_body: 1 << 20,
        on_store_error: config::OnStoreError::Reject,
        keep_headers: Vec::new(),
        cors_origins: Vec::new(),
        forward_key: config::ForwardKey::Same,
        preserve_host: true,
        underscores: crate::config::Underscores::Drop,
        forwarded: config::Forwarded::Append,
        connect_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(4),
    }
}

fn header(name: &str) -> KeySource {
    KeySource::Header(name.parse().unwrap())
}

fn query(name: &str) -> KeySource {
    KeySource::Query(name.to_owned())
}

fn json(pointer: &str) -> KeySource {
    KeySource::Json(pointer.to_owned())
}

fn head(target: &str, fields: &[(&str, &str)]) -> Parts {
    let request = fields.iter().fold(Request::post(target), |request, (name, value)| request.header(*name, *value));
    request.body(()).unwrap().into_parts().0
}

const FINGERPRINT: Fingerprint = Fingerprint { policy: [0; 4], digest: [0xAB; 32] };

/// The key as text, `None` if absent; or the words of the refusal.
fn whole(sources: Vec<KeySource>, head: &Parts, body: &str) -> Result<Option<String>, String> {
    let key =
        from_body(&route(sources), head, Some(body.as_bytes()), &FINGERPRINT).map_err(|fault| fault.to_string())?;
    Ok(key.map(|key| String::from_utf8(key.value).unwrap()))
}

fn in_body(pointer: &str, body: &str) -> Result<Option<String>, String> {
    whole(vec![json(pointer)], &head("/", &[]), body)
}

fn in_head(sources: Vec<KeySource>, target: &str, fields: &[(&str, &str)]) -> Result<Found, String> {
    from_head(&route(sources), &head(target, fields)).map_err(|fault| fault.to_string())
}

fn key(value: &str) -> Found {
    Found::Key(Key { value: value.as_bytes().to_vec(), quoted: false })
}

#[test]
fn the_first_source_present_decides_and_never_falls_through() {
    let sources = || vec![header("webhook-id"), query("id"), header("idempotency-key")];
    assert_eq!(in_head(sources(), "/", &[]), Ok(Found::Absent));
    assert_eq!(in_head(sources(), "/", &[("idempotency-key", "c")]), Ok(key("c")));
    assert_eq!(in_head(sources(), "/?id=b", &[("idempotency-key", "c")]), Ok(key("b")));
    assert_eq!(in_head(sources(), "/?id=b", &[("webhook-id", "a")]), Ok(key("a")));
    let refused = in_head(sources(), "/?id=b", &[("webhook-id", "")]).unwrap_err();
    assert!(refused.starts_with("header:webhook-id: the key is empty"), "{refused}");
}

#[test]
fn two_lines_are_refused_even_if_they_agree() {
    let source = || vec![header("idempotency-key")];
    let refused = in_head(source(), "/", &[("idempotency-key", "k-1"), ("idempotency-key", "k-1")]).unwrap_err();
    assert!(refused.contains("more than once"), "{refused}");
    assert!(in_head(source(), "/", &[("idempotency-key", "k-1, k-1")]).is_err());
    assert_eq!(in_head(source(), "/", &[("idempotency-key", "k-1")]), Ok(key("k-1")));
}

#[test]
fn a_query_key_is_decoded_and_stands_once() {
    let read = |target: &str| in_head(vec![query("id")], target, &[]);
    assert_eq!(read("/?x=1&id=a%2Cb+c&y"), Ok(key("a,b c")));
    assert_eq!(read("/?%69d=a"), Ok(key("a")));
    assert_eq!(read("/?ID=a"), Ok(Found::Absent));
    assert_eq!(read(&format!("/?id={}", "%41".repeat(255))), Ok(key(&"A".repeat(255))));
    for (target, words) in [
        ("/?id=a&id=a", "more than once"),
        ("/?id=a&%69d=b", "more than once"),
        ("/?id=", "empty"),
        ("/?id", "empty"),
        ("/?id=%0a", "control"),
        ("/?id=%zz", "percent-encoding"),
        (&format!("/?id={}", "%41".repeat(256)), "longer than the 255 bytes"),
    ] {
        let refused = read(target).unwrap_err();
        assert!(refused.contains(words), "{target}: {refused}");
    }
}

#[test]
fn a_body_is_asked_for_only_when_its_source_is_reached() {
    let sources = || vec![header("a"), json("/id"), header("b")];
    assert_eq!(in_head(sources(), "/", &[("a", "k")]), Ok(key("k")));
    assert_eq!(in_head(sources(), "/", &[("b", "k")]), Ok(Found::NeedsBody));
    assert!(in_head(sources(), "/", &[("a", "k,k")]).is_err());
    assert_eq!(whole(sources(), &head("/", &[("b", "k")]), r#"{"id":"j"}"#), Ok(Some("j".to_owned())));
    assert_eq!(whole(sources(), &head("/", &[("b", "k")]), "{}"), Ok(Some("k".to_owned())));
    assert_eq!(whole(sources(), &head("/", &[("a", "k")]), "not JSON"), Ok(Some("k".to_owned())));
}

#[test]
fn a_body_key_is_a_string_or_the_text_of_a_number() {
    for (pointer, body, found) in [
        ("/id", r#"{"id":"evt_1"}"#, Some("evt_1")),
        ("/id", r#" { "x" : [ {"id":1} ] , "\u0069d" : "\u00e9\ud83d\ude00" } "#, Some("é😀")),
        ("/id", r#"{"id":9007199254740993}"#, Some("9007199254740993")),
        ("/id", r#"{"id":-1.50E+2}"#, Some("-1.50E+2")),
        ("/data/1/id", r#"{"data":[[{"id":0}],{"id":"b"},3]}"#, Some("b")),
        ("/data/1/id", r#"{"data":[[{"a":{"b":{}}},"]\\"],{"id":"b"}]}"#, Some("b")),
        ("/a~1b/m~0n/~01", r#"{"a/b":{"m~n":{"~1":"x"}}}"#, Some("x")),
        ("/", r#"{"":"x"}"#, Some("x")),
        ("", "\"x\"", Some("x")),
        ("", "7", Some("7")),
        ("/id", r#"{"id":null}"#, None),
        ("/id", "{}", None),
        ("/id/x", r#"{"id":"x"}"#, None),
        ("/data/01", r#"{"data":[1,2]}"#, None),
        ("/data/+1", r#"{"data":[1,2]}"#, None),
        ("/data/-", r#"{"data":[1,2]}"#, None),
        ("/data/2", r#"{"data":[1,2]}"#, None),
        ("/0", r#"[]"#, None),
    ] {
        assert_eq!(in_body(pointer, body), Ok(found.map(str::to_owned)), "{pointer} {body}");
    }
}

#[test]
fn a_body_that_gives_no_usable_key_is_refused() {
    for (body, words) in [
        (r#"{"id":true}"#, "a string or a number"),
        (r#"{"id":{}}"#, "a string or a number"),
        (r#"{"id":["x"]}"#, "a string or a number"),
        (r#"{"id":""}"#, "empty"),
        (r#"{"id":"a\nb"}"#, "control"),
        (r#"{"id":"\ud83d"}"#, "surrogate"),
        (&format!(r#"{{"id":"{}"}}"#, "k".repeat(256)), "longer"),
        (&format!(r#"{{"id":{}}}"#, "1".repeat(256)), "longer"),
    ] {
        let fault =
            from_body(&route(vec![json("/id")]), &head("/", &[]), Some(body.as_bytes()), &FINGERPRINT).unwrap_err();
        assert!(matches!(fault, KeyFault::Invalid(_)) && fault.to_string().contains(words), "{body}: {fault}");
    }
    let deep = "[".repeat(100_000);
    for (body, words) in [
        ("", "not JSON"),
        ("id=1", "not JSON"),
        (r#"{"id":"a"} x"#, "not JSON"),
        (r#"{"id":"a","id":"a"}"#, "twice, the second time at byte 11"),
        (r#"{"id":"a","\u0069d":"a"}"#, "twice"),
        (&deep, "nests deeper"),
    ] {
        let fault =
            from_body(&route(vec![json("/id")]), &head("/", &[]), Some(body.as_bytes()), &FINGERPRINT).unwrap_err();
        assert!(matches!(fault, KeyFault::Body { .. }) && fault.to_string().contains(words), "{body}: {fault}");
    }
    // Twice, but not on the way to the key.
    assert_eq!(in_body("/id", r#"{"x":1,"x":2,"id":"a"}"#), Ok(Some("a".to_owned())));
}

fn form(name: &str) -> KeySource {
    KeySource::Form(name.to_owned())
}

/// The key of a form, where the route requires one; `kind` is the `Content-Type`.
fn in_form(kind: &str, body: &str) -> Result<Option<String>, String> {
    whole(vec![form("order id")], &head("/", &[("content-type", kind)]), body)
}

#[test]
fn a_form_key_is_decoded_and_stands_once() {
    let read = |body: &str| in_form("application/x-www-form-urlencoded", body);
    assert_eq!(read("a=1&order+id=x%2Cy+z"), Ok(Some("x,y z".to_owned())));
    assert_eq!(read("order%20id=x&b"), Ok(Some("x".to_owned())));
    assert_eq!(in_form("Application/X-WWW-Form-Urlencoded; charset=UTF-8", "order+id=x"), Ok(Some("x".to_owned())));
    assert_eq!(read("a=1"), Ok(None));
    assert_eq!(read(""), Ok(None));
    for (body, words) in [
        ("order+id=x&order+id=x", "more than once"),
        ("order+id=", "empty"),
        ("order+id", "empty"),
        ("order+id=%zz", "percent-encoding"),
        ("order+id=%00", "control"),
    ] {
        let refused = read(body).unwrap_err();
        assert!(refused.starts_with("form:order id: ") && refused.contains(words), "{body}: {refused}");
    }
    for kind in ["application/json", "multipart/form-data; boundary=b", ""] {
        let refused = in_form(kind, "order+id=x").unwrap_err();
        assert!(refused.contains("(form:order id)") && refused.contains("not a form"), "{kind}: {refused}");
    }
}

#[test]
fn a_body_in_another_format_has_no_key_for_a_source() {
    let optional = |sources: Vec<KeySource>, head: &Parts, body: Option<&[u8]>| {
        let route = Route { key_required: false, ..route(sources) };
        let key = from_body(&route, head, body, &FINGERPRINT).map_err(|fault| fault.to_string())?;
        Ok::<_, String>(key.map(|key| String::from_utf8(key.value).unwrap()))
    };
    let plain = head("/", &[]);
    for body in ["", "id=1", "<xml/>", "{\"id\":", "\u{feff}", "\u{feff}\u{feff}{\"id\":\"x\"}"] {
        assert_eq!(optional(vec![json("/id")], &plain, Some(body.as_bytes())), Ok(None), "{body}");
        assert_eq!(optional(vec![form("id")], &plain, Some(body.as_bytes())), Ok(None), "{body}");
    }
    // What cannot be decoded has none either, and where one must be there, that is said.
    assert_eq!(optional(vec![json("/id"), form("id")], &plain, None), Ok(None));
    assert!(
        from_body(&route(vec![json("/id")]), &plain, None, &FINGERPRINT).unwrap_err().to_string().contains("decoded")
    );
    // The next source is asked, whether or not a key is required.
    let as_form = head("/", &[("content-type", "application/x-www-form-urlencoded")]);
    assert_eq!(optional(vec![json("/id"), form("id")], &as_form, Some(b"id=x")), Ok(Some("x".to_owned())));
    assert_eq!(whole(vec![json("/id"), form("id")], &as_form, "id=x"), Ok(Some("x".to_owned())));
    assert_eq!(whole(vec![json("/id"), KeySource::Fingerprint], &plain, "x"), Ok(Some("ab".repeat(32))));
    // A key that is there and malformed is refused all the same, and so is JSON that can be read in two ways.
    for body in ["{\"id\":\"\"}", "{\"id\":true}", "{\"id\":\"a\",\"id\":\"b\"}"] {
        assert!(optional(vec![json("/id")], &plain, Some(body.as_bytes())).is_err(), "{body}");
    }
    // A joined key with a part in a body of another format lacks that part.
    let joined = || vec![KeySource::Joined(vec![header("a"), json("/id")])];
    assert_eq!(optional(joined(), &plain, Some(b"x")), Ok(None));
    let refused = optional(joined(), &head("/", &[("a", "k")]), Some(b"x")).unwrap_err();
    assert!(refused.starts_with("json:/id: this part"), "{refused}");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_json() {
    assert_eq!(in_body("/id", "\u{feff}{\"id\":\"a\"}"), Ok(Some("a".to_owned())));
    assert_eq!(in_body("/id", "\u{feff} {\"id\":7}"), Ok(Some("7".to_owned())));
}

#[test]
fn the_fingerprint_can_be_the_key() {
    assert_eq!(in_head(vec![header("a"), KeySource::Fingerprint], "/", &[]), Ok(Found::NeedsBody));
    assert_eq!(whole(vec![KeySource::Fingerprint], &head("/", &[]), ""), Ok(Some("ab".repeat(32))));
}

#[test]
fn a_joined_key_needs_all_its_parts() {
    let sources = || vec![KeySource::Joined(vec![header("ce-source"), header("ce-id")]), header("idempotency-key")];
    let read = |fields: &[(&str, &str)]| in_head(sources(), "/", fields);
    assert_eq!(read(&[("ce-source", "a"), ("ce-id", "\"bc\"")]), Ok(key("1:a2:bc")));
    assert_eq!(read(&[("ce-source", "ab"), ("ce-id", "c")]), Ok(key("2:ab1:c")));
    assert_eq!(read(&[("idempotency-key", "k")]), Ok(key("k")));
    assert_eq!(read(&[]), Ok(Found::Absent));
    for (fields, missing) in
        [([("ce-id", "b"), ("idempotency-key", "k")], "ce-source"), ([("ce-source", "a"), ("x", "y")], "ce-id")]
    {
        let refused = read(&fields).unwrap_err();
        assert!(refused.starts_with(&format!("header:{missing}: this part of the key is missing")), "{refused}");
    }
    let long = "k".repeat(128);
    assert!(read(&[("ce-source", &long), ("ce-id", &long)]).unwrap_err().contains("longer than the 255 bytes"));
    assert!(read(&[("ce-source", &long), ("ce-id", &long[1..])]).is_ok());
}

#[test]
fn a_joined_key_reaches_into_the_body_only_if_it_must() {
    let sources = || vec![KeySource::Joined(vec![header("a"), json("/id")]), header("b")];
    assert_eq!(in_head(sources(), "/", &[("a", "x")]), Ok(Found::NeedsBody));
    assert_eq!(in_head(sources(), "/", &[]), Ok(Found::NeedsBody));
    assert_eq!(whole(sources(), &head("/", &[("a", "x")]), r#"{"id":7}"#), Ok(Some("1:x1:7".to_owned())));
    assert!(whole(sources(), &head("/", &[]), r#"{"id":7}"#).unwrap_err().starts_with("header:a: this part"));
    assert!(whole(sources(), &head("/", &[("a", "x")]), "{}").unwrap_err().starts_with("json:/id: this part"));
    assert_eq!(whole(sources(), &head("/", &[("b", "y")]), "{}"), Ok(Some("y".to_owned())));
    // A part that is missing for sure is told at once.
    let three = vec![KeySource::Joined(vec![header("a"), json("/id"), header("c")])];
    assert!(in_head(three, "/", &[("a", "x")]).is_err());
}

#[test]
fn the_fingerprint_does_not_make_a_joined_key_present() {
    let sources = || vec![KeySource::Joined(vec![header("a"), KeySource::Fingerprint])];
    assert_eq!(in_head(sources(), "/", &[]), Ok(Found::Absent));
    assert_eq!(whole(sources(), &head("/", &[]), ""), Ok(None));
    assert_eq!(in_head(sources(), "/", &[("a", "x")]), Ok(Found::NeedsBody));
    let joined = whole(sources(), &head("/", &[("a", "x")]), "").unwrap();
    assert_eq!(joined, Some(format!("1:x64:{}", "ab".repeat(32))));
    let alone = vec![KeySource::Joined(vec![KeySource::Fingerprint])];
    assert_eq!(in_head(alone, "/", &[]), Ok(Found::NeedsBody));
}

#[test]
fn a_forwarded_key_is_quoted_when_it_must_be() {
    let forwarded =
        |value: &str, quoted: bool| Key { value: value.as_bytes().to_vec(), quoted: false }.to_header_value(quoted);
    assert_eq!(forwarded("k-1", false), "k-1");
    assert_eq!(forwarded("k-1", true), "\"k-1\"");
    assert_eq!(forwarded("a b", false), "\"a b\"");
    assert_eq!(forwarded(r#"a"\"#, true), r#""a\"\\""#);
    assert_eq!(forwarded("\u{e9}", true).as_bytes(), "\u{e9}".as_bytes());
}

#[test]
fn a_connection_field_may_not_take_the_key_the_scope_or_the_fingerprint_off() {
    let mut route =
        route(vec![KeySource::Joined(vec![header("ce-source"), header("ce-id")]), header("idempotency-key")]);
    route.fingerprint.headers = vec![HeaderName::from_static("x-api-version")];
    let check =
        |fields: &[(&str, &str)]| check_connection(&route, &head("/", fields)).map_err(|fault| fault.to_string());
    for (connection, named) in [
        ("Idempotency-Key", "idempotency-key"),
        ("keep-alive ,\tCE-ID,x", "ce-id"),
        ("authorization", "authorization"),
        ("x-api-version", "x-api-version"),
    ] {
        let refused = check(&[("connection", "close"), ("connection", connection)]).unwrap_err();
        assert!(refused.starts_with(&format!("header:{named}: the Connection field")), "{refused}");
    }
    assert_eq!(check(&[("connection", "keep-alive, x-idempotency-key, , te")]), Ok(()));
    assert_eq!(check(&[]), Ok(()));
}

fn id(route: &Route, target: &str, fields: &[(&str, &str)]) -> Identity {
    let head = head(target, fields);
    let Found::Key(key) = from_head(route, &head).unwrap() else { panic!("no key") };
    identify(route, &head, false, &key).unwrap()
}

#[test]
fn a_quoted_key_and_the_bare_one_are_one_record_and_letter_case_makes_two() {
    let route = route(vec![header("k")]);
    let of = |value: &str| id(&route, "/", &[("k", value)]);
    assert_eq!(of("\"k-1\""), of("k-1"));
    assert_eq!(of("\"k-1\";v=2"), of("k-1"));
    assert_ne!(of("ABC").id, of("abc").id);
    assert_ne!(of("ABC").key_hash, of("abc").key_hash);
    assert_eq!(of("ABC").scope_hash, of("abc").scope_hash);
    assert_eq!(of("k-1").id.route(), "payments");
}

#[test]
fn every_scope_has_its_own_record() {
    let mut route = route(vec![header("k")]);
    route.scope.push(ScopePart::Query("account".to_owned()));
    let scopes: &[(&str, &[(&str, &str)])] = &[
        ("/", &[]),
        ("/", &[("authorization", "")]),
        ("/", &[("authorization", "Bearer a")]),
        ("/", &[("authorization", "Bearer b")]),
        ("/", &[("authorization", "a,b")]),
        ("/?account=", &[]),
        ("/?account=a", &[]),
        ("/?account=A", &[]),
        ("/?account=%zz", &[]),
        ("/?account=%25zz", &[]),
    ];
    let ids: Vec<Identity> =
        scopes.iter().map(|(target, fields)| id(&route, target, &[*fields, &[("k", "k-1")]].concat())).collect();
    for (at, one) in ids.iter().enumerate() {
        assert!(
            ids[..at].iter().all(|other| other.id != one.id && other.scope_hash != one.scope_hash),
            "{:?}",
            scopes[at]
        );
        assert_eq!(one.key_hash, ids[0].key_hash);
    }
    // What is not in the scope, and how it is written, does not count.
    let account_a = scopes.iter().position(|(target, _)| *target == "/?account=a").unwrap();
    assert_eq!(id(&route, "/x?account=%61&y", &[("k", "k-1"), ("z", "")]), ids[account_a]);
    // Two equal lines are one.
    let twice = [("k", "k-1"), ("authorization", "Bearer a"), ("authorization", "Bearer a")];
    assert_eq!(id(&route, "/", &twice), ids[2]);
}

#[test]
fn routes_and_constants_separate_records() {
    let one = route(vec![header("k")]);
    let other = Route { name: Arc::from("refunds"), ..one.clone() };
    let constant = |text: &str| Route { scope: vec![ScopePart::Constant(text.to_owned())], ..one.clone() };
    let of = |route: &Route| id(route, "/", &[("k", "k-1")]).id;
    assert_ne!(of(&one).hash(), of(&other).hash());
    assert_ne!(of(&constant("a:1")), of(&constant("a:2")));
}

#[test]
fn the_record_id_is_the_documented_hash() {
    // Stored records depend on it: this may only change together with a migration.
    let route = route(vec![header("k")]);
    assert_eq!(
        id(&route, "/", &[("k", "k-1"), ("authorization", "Bearer a")]).id.to_string(),
        "payments:3b388c7e34526d63b695c6be55a8bb0a"
    );
}

proptest! {
    #[test]
    fn joining_is_injective(a in proptest::collection::vec("[0-9:a]{1,4}", 2), b in proptest::collection::vec("[0-9:a]{1,4}", 2)) {
        let join = |parts: &[String]| {
            let source = vec![KeySource::Joined(vec![header("a"), header("b")])];
            in_head(source, "/", &[("a", &parts[0]), ("b", &parts[1])]).unwrap()
        };
        prop_assert_eq!(join(&a) == join(&b), a == b);
    }

    #[test]
    fn any_request_is_read_without_a_panic(field in "[ -~\u{80}-\u{ff}]{0,12}", query in "[id=&%0-9a-f+]{0,16}", body in proptest::collection::vec(any::<u8>(), 0..40)) {
        let mut head = head(&format!("/?{query}"), &[]);
        head.headers.insert("a", HeaderValue::from_bytes(field.as_bytes()).unwrap());
        for sources in [vec![header("a")], vec![super::tests::query("id"), json("/id")], vec![KeySource::Joined(vec![json("/0"), json("")])]] {
            let route = route(sources);
            if let Ok(Found::Key(key)) = from_head(&route, &head) {
                let _ = (identify(&route, &head, false, &key), key.to_header_value(false), key.to_header_value(true));
            }
            if let Ok(Some(key)) = from_body(&route, &head, Some(&body), &FINGERPRINT) {
                let _ = (identify(&route, &head, false, &key), key.to_header_value(false), key.to_header_value(true));
            }
        }
    }
}
