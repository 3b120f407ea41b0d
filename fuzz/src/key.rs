//! The key of a request: from a field, bare or quoted, from the query, from a JSON body, and from several of them.
//!
//! The input has three lines: the value of the field, the query, and the body, which is all the rest. They are put into
//! one request, and routes that look in different places are asked for its key.

use std::sync::LazyLock;

use http::header::{CONNECTION, HeaderValue};
use http::request::Parts;
use http::{HeaderName, Request};
use onceproxy::config::Route;
use onceproxy::proxy::key::{Found, Key, check_connection, from_body, from_head, identify};
use onceproxy::record::{Fingerprint, RecordId};
use serde_json::Value;

use super::form::decode;
use super::request::route;

const FIELD: HeaderName = HeaderName::from_static("idempotency-key");
const LONGEST: usize = 64;

static ROUTES: LazyLock<[Route; 6]> = LazyLock::new(|| {
    [
        "key = [\"header:Idempotency-Key\"]",
        "key = [\"query:op id\"]",
        "key = [\"json:/data/id\"]",
        "key = [\"header:Idempotency-Key\", \"query:op id\", \"json:/data/0/id\", \"fingerprint\"]",
        "key = [[\"header:Idempotency-Key\", \"query:op id\"], [\"query:op id\", \"json:/data/id\"]]",
        "key = [[\"json:/data/id\", \"json:/data/0/id\", \"header:Idempotency-Key\"]]\nscope = [\"query:op id\", \"header:a\"]",
    ]
    .map(|key| route(&format!("{key}\nmax_key_length = {LONGEST}")))
});

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut lines = input.splitn(3, |byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (field, query, body) = (line(), line(), line());
    let Some(head) = head(field, query) else { return };
    let fingerprint = Fingerprint { policy: [0; 4], digest: [0xA5; 32] };
    let keys = ROUTES.each_ref().map(|route| {
        let key = of_whole(route, &head, body, &fingerprint);
        of_head(route, &head, &key);
        if let Ok(Some(key)) = &key {
            sound(route, &head, key);
        }
        let _ = check_connection(route, &head);
        key.map_err(drop)
    });
    assert_eq!(keys[0], expected_field(field), "the field {:?}", field.escape_ascii().to_string());
    assert_eq!(
        keys[1].as_ref().map(|key| key.as_ref().map(Key::value)),
        expected_parameter(&head).as_ref().map(|k| k.as_deref()).map_err(|()| &())
    );
    in_document(&keys[2], body);
    twice(&head);
}

fn head(field: &[u8], query: &[u8]) -> Option<Parts> {
    let query = std::str::from_utf8(query).ok()?;
    let mut head = Request::post(format!("/v1/charges?{query}")).body(()).ok()?.into_parts().0;
    // No line at all is one of the cases.
    if !field.is_empty() {
        let value = HeaderValue::from_bytes(field).ok()?;
        head.headers.insert(CONNECTION, value.clone());
        head.headers.insert(FIELD, value);
    }
    Some(head)
}

fn of_whole(route: &Route, head: &Parts, body: &[u8], fingerprint: &Fingerprint) -> Result<Option<Key>, String> {
    from_body(route, head, Some(body), fingerprint).map_err(|fault| fault.to_string())
}

/// What the head alone says is what the whole request says.
fn of_head(route: &Route, head: &Parts, whole: &Result<Option<Key>, String>) {
    match from_head(route, head) {
        Ok(Found::Key(key)) => assert_eq!(whole.as_ref(), Ok(&Some(key))),
        Ok(Found::Absent) => assert_eq!(whole.as_ref(), Ok(&None)),
        Ok(Found::NeedsBody) => {}
        // The body may have another fault, and come first in the list.
        Err(fault) => assert!(whole.is_err(), "{fault}, but not in the whole request"),
    }
}

fn sound(route: &Route, head: &Parts, key: &Key) {
    let value = key.value();
    assert!(!value.is_empty() && !value.iter().any(u8::is_ascii_control));
    // Joined parts carry their lengths, and the fingerprint has a length of its own.
    assert!(value.len() <= LONGEST + 3 * 4, "{} bytes", value.len());
    for quoted in [true, false] {
        let written = key.to_header_value(quoted);
        if value.is_ascii() {
            let again = Request::post("/").header(FIELD, written).body(()).expect("a key is a field's value");
            let found = from_head(&WIDE, &again.into_parts().0).expect("a written key is read");
            assert!(matches!(&found, Found::Key(again) if again.value() == value), "{key:?} came back as {found:?}");
        }
    }
    let identity = identify(route, head, false, key);
    assert_eq!(identity, identify(route, head, false, key));
    // A parameter of the scope that stands there twice with different values.
    let Ok(identity) = identity else { return };
    assert_eq!(identity.id.to_string().parse::<RecordId>().ok(), Some(identity.id));
}

static WIDE: LazyLock<Route> = LazyLock::new(|| route("key = [\"header:Idempotency-Key\"]\nmax_key_length = 8192"));

/// Two lines are refused, also when they say the same.
fn twice(head: &Parts) {
    let mut head = head.clone();
    if let Some(value) = head.headers.get(FIELD).cloned() {
        head.headers.append(FIELD, value);
        assert!(from_head(&ROUTES[0], &head).is_err(), "two lines are taken for one key");
    }
}

/// The key of a field by the grammar alone (RFC 9651 section 3.3.3, and the bare form), parameters left to the product.
fn expected_field(field: &[u8]) -> Result<Option<Key>, ()> {
    if field.is_empty() {
        return Ok(None);
    }
    let text = field.trim_ascii();
    let decoded = match text.strip_prefix(b"\"") {
        None => {
            let is_bare = text.iter().all(|byte| byte.is_ascii_graphic() && !b"\",".contains(byte));
            is_bare.then(|| text.to_vec()).ok_or(())
        }
        Some(inside) => quoted(inside),
    };
    let head = head(field, b"").ok_or(())?;
    let Ok(Found::Key(key)) = from_head(&ROUTES[0], &head) else {
        let is_long = decoded.as_ref().is_ok_and(|decoded| decoded.is_empty() || decoded.len() > LONGEST);
        assert!(decoded.is_err() || is_long || has_parameters(text), "a sound key is refused");
        return Err(());
    };
    assert_eq!(Ok(key.value()), decoded.as_deref(), "the key is another one");
    assert_eq!(key.is_quoted(), text.starts_with(b"\""));
    Ok(Some(key))
}

/// The inside of a string up to its closing quotation mark, where nothing but parameters may follow.
fn quoted(inside: &[u8]) -> Result<Vec<u8>, ()> {
    let mut value = Vec::new();
    let mut rest = inside;
    loop {
        match rest {
            [b'\\', byte @ (b'"' | b'\\'), after @ ..] => {
                value.push(*byte);
                rest = after;
            }
            [b'"', after @ ..] if after.is_empty() || after.starts_with(b";") => return Ok(value),
            [byte @ (0x20..=0x21 | 0x23..=0x5B | 0x5D..=0x7E), after @ ..] => {
                value.push(*byte);
                rest = after;
            }
            _ => return Err(()),
        }
    }
}

fn has_parameters(text: &[u8]) -> bool {
    text.starts_with(b"\"") && text.contains(&b';')
}

/// The key of the query by plain decoding.
fn expected_parameter(head: &Parts) -> Result<Option<Vec<u8>>, ()> {
    let query = head.uri.query().unwrap_or_default();
    let pieces = query.split('&').filter(|piece| !piece.is_empty());
    let halves = pieces.map(|piece| piece.split_once('=').unwrap_or((piece, "")));
    let values: Vec<&str> = halves
        .filter(|(name, _)| decode(name.as_bytes()).as_deref() == Some(b"op id"))
        .map(|(_, value)| value)
        .collect();
    match values.as_slice() {
        [] => Ok(None),
        [value] => {
            let key = decode(value.as_bytes()).ok_or(())?;
            let is_key = (1..=LONGEST).contains(&key.len()) && !key.iter().any(u8::is_ascii_control);
            is_key.then_some(Some(key)).ok_or(())
        }
        _ => Err(()),
    }
}

/// A key in the body is what `serde_json` finds there.
fn in_document(key: &Result<Option<Key>, ()>, body: &[u8]) {
    let (Ok(key), Ok(document)) = (key, serde_json::from_slice::<Value>(body)) else { return };
    match (key, document.pointer("/data/id")) {
        (None, None | Some(Value::Null)) => {}
        (Some(key), Some(Value::String(text))) => assert_eq!(key.value(), text.as_bytes()),
        (Some(key), Some(Value::Number(number))) => {
            let text = std::str::from_utf8(key.value()).expect("a number is ASCII");
            // serde_json may be off by the last bit.
            let (read, found) = (text.parse::<f64>().unwrap_or(f64::NAN), number.as_f64().unwrap_or(f64::NAN));
            assert!((read - found).abs() <= read.abs() * 1e-12 + f64::MIN_POSITIVE, "{text} and {number}");
        }
        (key, found) => panic!("{key:?} where serde_json finds {found:?}"),
    }
}
