//! Why a key is refused, in words for the caller. The key itself is never in them.

use crate::config::{KeySource, ScopePart};

use super::json::JsonFault;

/// Why no key can be taken from a request, although there is one.
#[derive(Debug, thiserror::Error)]
pub enum KeyFault {
    /// The key is malformed, stands twice, is too long, empty, or a part of it is missing.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
    /// The key should be in the body, and the body cannot be used.
    #[error("the key is taken from the body ({place}), but {fault}")]
    Body {
        /// The source, as in the settings.
        place: String,
        /// What is wrong with the body.
        #[source]
        fault: Unreadable,
    },
}

/// Why a body gives no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It cannot be read as JSON.
    #[error(transparent)]
    Json(#[from] JsonFault),
    /// It is no form, by its `Content-Type` or its bytes.
    #[error("the body is not a form (application/x-www-form-urlencoded)")]
    NotForm,
    /// Its `Content-Encoding` cannot be taken off.
    #[error("the body cannot be decoded as its Content-Encoding says")]
    Encoded,
}

/// A source that is present and gives no key.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {wrong}")]
pub struct InvalidKey {
    /// The source, as in the settings.
    pub place: String,
    /// What is wrong with it.
    #[source]
    pub wrong: Malformed,
}

impl InvalidKey {
    pub(super) fn new(source: &KeySource, wrong: Malformed) -> InvalidKey {
        InvalidKey { place: place(source), wrong }
    }
}

/// What is wrong with a key.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// Two or more field lines or parameters.
    #[error("the key stands there more than once; send it exactly once")]
    Repeated,
    /// Nothing in it.
    #[error("the key is empty; send at least one character, or leave it out")]
    Empty,
    /// More bytes than the route allows.
    #[error("the key is longer than the {0} bytes that this route takes")]
    TooLong(usize),
    /// A bare key with a character that may not stand there.
    #[error("a bare key holds visible ASCII characters without quotation mark and comma; quote it if it has spaces")]
    Bare,
    /// It begins with a quotation mark and is not a structured-field string.
    #[error(
        "the key begins with a quotation mark, but is not a string of RFC 9651; close it and escape only \\\" and \\\\"
    )]
    Quoted(#[source] sfv::Error),
    /// A control character.
    #[error("the key holds a control character")]
    Control,
    /// A `%` without two hex digits.
    #[error("the key's percent-encoding is broken; write %25 for a percent sign")]
    Percent,
    /// A JSON string with half of a surrogate pair.
    #[error("the key holds half of a surrogate pair, which no text has")]
    Surrogate,
    /// A JSON value of another type.
    #[error("the key must be a string or a number in the body")]
    Type,
    /// A joined key of which only some parts are there.
    #[error("this part of the key is missing, while other parts are there; send all of them")]
    PartMissing,
    /// `Connection` names the field.
    #[error("the Connection field names this header, which must reach the upstream; take it off that list")]
    HopByHop,
}

/// A part of the scope in the words of the settings.
pub(super) fn place_of_scope(part: &ScopePart) -> String {
    match part {
        ScopePart::Header(name) => format!("header:{name}"),
        ScopePart::Query(name) => format!("query:{name}"),
        ScopePart::Cookie(name) => format!("cookie:{name}"),
        ScopePart::Host => "host".to_owned(),
        ScopePart::Path => "path".to_owned(),
        ScopePart::ClientCert => "client-cert".to_owned(),
        ScopePart::Constant(_) => "constant".to_owned(),
    }
}

/// A source in the words of the settings.
pub(super) fn place(source: &KeySource) -> String {
    match source {
        KeySource::Header(name) => format!("header:{name}"),
        KeySource::Query(name) => format!("query:{name}"),
        KeySource::Json(pointer) => format!("json:{pointer}"),
        KeySource::Form(name) => format!("form:{name}"),
        KeySource::Fingerprint => "fingerprint".to_owned(),
        KeySource::Joined(parts) => format!("[{}]", parts.iter().map(place).collect::<Vec<_>>().join(", ")),
    }
}
