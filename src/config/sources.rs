//! The parts of a request that settings name: where a key is looked for, and what separates callers.

use http::header::HeaderName;
use toml::de::DeValue;

use super::mistakes::{Wrong, nearest, wrong};
use super::tree::{shown, string};
use super::values::{field_name, json_pointer};
use super::{ForwardKey, KeySource, ScopePart};

/// Parses an entry of `key`: a source, or an inner list that joins several.
pub(super) fn key_source(value: &DeValue<'_>) -> Result<KeySource, Wrong> {
    let Some(parts) = value.as_array() else { return string(value, single_source) };
    let right =
        "write two or more of \"header:NAME\", \"query:NAME\", \"json:/POINTER\", \"form:NAME\" in an inner list";
    let mut sources = Vec::new();
    for part in parts.iter() {
        match part.get_ref() {
            DeValue::Array(_) => return Err(wrong("an inner list holds another list", right)),
            part => match string(part, single_source)? {
                KeySource::Fingerprint => return Err(wrong("\"fingerprint\" cannot be joined with others", right)),
                source if sources.contains(&source) => {
                    return Err(wrong(format!("{} is named twice in an inner list", shown(part)), "name it once"));
                }
                source => sources.push(source),
            },
        }
    }
    if sources.len() < 2 {
        return Err(wrong("an inner list joins several sources", right));
    }
    Ok(KeySource::Joined(sources))
}

fn single_source(text: &str) -> Result<KeySource, Wrong> {
    match text.split_once(':') {
        Some(("header", name)) => field_name(name).map(KeySource::Header),
        Some(("query", name)) => parameter(name).map(KeySource::Query),
        Some(("json", pointer)) => json_pointer(pointer).map(KeySource::Json),
        Some(("form", name)) => form_field(name).map(KeySource::Form),
        None if text == "fingerprint" => Ok(KeySource::Fingerprint),
        _ => {
            let kinds = ["header", "query", "json", "form", "fingerprint"];
            Err(not_a_part(text, &kinds, "\"json:/POINTER\", \"form:NAME\" or \"fingerprint\""))
        }
    }
}

/// The word for the name in the client's certificate.
const CLIENT_CERT: &str = "client-cert";
/// The words for where a request goes.
const HOST: &str = "host";
const PATH: &str = "path";

/// Parses an entry of `scope`.
pub(super) fn scope_part(text: &str) -> Result<ScopePart, Wrong> {
    match text.split_once(':') {
        Some(("header", name)) => field_name(name).map(ScopePart::Header),
        Some(("query", name)) => parameter(name).map(ScopePart::Query),
        Some(("cookie", name)) => cookie(name).map(ScopePart::Cookie),
        Some(("constant", constant)) if !constant.is_empty() => Ok(ScopePart::Constant(constant.to_owned())),
        None if text == HOST => Ok(ScopePart::Host),
        None if text == PATH => Ok(ScopePart::Path),
        None if text == CLIENT_CERT => Ok(ScopePart::ClientCert),
        _ => {
            let others = "\"cookie:NAME\", \"host\", \"path\", \"client-cert\" or \"constant:TEXT\"";
            Err(not_a_part(text, &["header", "query", "cookie", "constant"], others))
        }
    }
}

/// Parses an entry of `fingerprint.ignore_query`.
pub(super) fn ignored_parameter(name: &str) -> Result<String, Wrong> {
    if name.is_empty() {
        return Err(wrong(
            "the name of a query parameter is empty",
            "write its name, such as \"nonce\", or take it out",
        ));
    }
    Ok(name.to_owned())
}

fn parameter(name: &str) -> Result<String, Wrong> {
    if name.is_empty() {
        return Err(wrong("the name of a query parameter is missing", "write \"query:NAME\""));
    }
    Ok(name.to_owned())
}

fn form_field(name: &str) -> Result<String, Wrong> {
    if name.is_empty() {
        return Err(wrong("the name of a form's field is missing", "write \"form:NAME\""));
    }
    Ok(name.to_owned())
}

/// A cookie's name is a token (RFC 6265 section 4.1.1), as a field's is, but its letter case counts.
fn cookie(name: &str) -> Result<String, Wrong> {
    if HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Err(wrong(format!("{name:?} is not the name of a cookie"), "write \"cookie:NAME\""));
    }
    Ok(name.to_owned())
}

fn not_a_part(text: &str, kinds: &[&'static str], others: &str) -> Wrong {
    let near = text.split_once(':').and_then(|(kind, name)| Some((nearest(kind, kinds.iter().copied())?, name)));
    let right = match near {
        Some((kind, name)) if kind != "fingerprint" && !name.is_empty() => {
            format!("did you mean {:?}?", format!("{kind}:{}", name.trim()))
        }
        // A kind by itself lacks its name.
        _ if HeaderName::from_bytes(text.as_bytes()).is_ok() && !kinds.contains(&text) => {
            // Headers are written with capitals or in several words; cookies seldom.
            let is_word = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            let cookie = (is_word && kinds.contains(&"cookie")).then(|| format!(" or \"cookie:{text}\""));
            format!("did you mean \"header:{text}\"{}?", cookie.unwrap_or_default())
        }
        _ => format!("write \"header:NAME\", \"query:NAME\", {others}"),
    };
    wrong(format!("{text:?} is not a part of a request"), right)
}

/// Parses `forward_key`.
pub(super) fn forward_key(text: &str) -> Result<ForwardKey, Wrong> {
    match text {
        "same" => Ok(ForwardKey::Same),
        "none" => Ok(ForwardKey::None),
        name => match field_name(name)?.as_str() {
            "host"
            | "via"
            | "forwarded"
            | "cache-status"
            | "content-type"
            | "authorization"
            | "proxy-authorization"
            | "cookie"
            | "accept"
            | "date"
            | "user-agent" => Err(wrong(
                format!("{name:?} has another meaning"),
                "write \"same\", \"none\", or a name such as \"PayPal-Request-Id\"",
            )),
            lower => {
                Ok(ForwardKey::Renamed(HeaderName::from_bytes(lower.as_bytes()).expect("a HeaderName's own text")))
            }
        },
    }
}

/// A key source as it is written in a file, quotes and all.
pub(super) fn print_key_source(source: &KeySource) -> toml::Value {
    match source {
        KeySource::Header(name) => format!("header:{name}").into(),
        KeySource::Query(name) => format!("query:{name}").into(),
        KeySource::Json(pointer) => format!("json:{pointer}").into(),
        KeySource::Form(name) => format!("form:{name}").into(),
        KeySource::Fingerprint => "fingerprint".into(),
        KeySource::Joined(parts) => parts.iter().map(print_key_source).collect::<Vec<_>>().into(),
    }
}

/// A part of the scope as it is written in a file.
pub(super) fn print_scope_part(part: &ScopePart) -> String {
    match part {
        ScopePart::Header(name) => format!("header:{name}"),
        ScopePart::Query(name) => format!("query:{name}"),
        ScopePart::Cookie(name) => format!("cookie:{name}"),
        ScopePart::Host => HOST.to_owned(),
        ScopePart::Path => PATH.to_owned(),
        ScopePart::ClientCert => CLIENT_CERT.to_owned(),
        ScopePart::Constant(constant) => format!("constant:{constant}"),
    }
}
