//! The third step: finds the key of a request, in the order of the route's sources, and names the record it belongs to.
//!
//! The first source that is present decides; a malformed key is refused and never falls through to the next source.
//! Sources that need the body are told apart, so that a request without a key is not read for nothing. Pure: it waits
//! for nothing and knows neither the store nor status codes.

mod fault;
mod header;
mod identity;
mod join;
pub(super) mod json;
pub(super) mod pairs;
mod scope;
mod source;
pub(super) mod transcript;

use http::HeaderValue;
use http::header::{CONNECTION, COOKIE, HOST, HeaderName};
use http::request::Parts;

use fault::place_of_scope;
pub use fault::{InvalidKey, KeyFault, Malformed, Unreadable};
pub use identity::{ClientName, Identity, identify};
pub use json::JsonFault;
pub use scope::ScopeFault;

use crate::config::{KeySource, Route, ScopePart};
use crate::fields;
use crate::record::Fingerprint;
use source::Reading;

/// The key of a request, decoded.
///
/// It is never empty, has no control characters, and holds at most as many bytes as its route allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    value: Vec<u8>,
    quoted: bool,
}

impl Key {
    fn new(value: Vec<u8>, quoted: bool, max_length: usize) -> Result<Key, Malformed> {
        if value.is_empty() {
            return Err(Malformed::Empty);
        }
        if value.len() > max_length {
            return Err(Malformed::TooLong(max_length));
        }
        if value.iter().any(u8::is_ascii_control) {
            return Err(Malformed::Control);
        }
        Ok(Key { value, quoted })
    }

    /// The bytes of the key, without quotation marks and escapes.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Whether it came as a quoted string.
    pub fn is_quoted(&self) -> bool {
        self.quoted
    }

    /// The key as the value of a field, as a structured-field string (RFC 9651 section 4.1.6) or bare.
    ///
    /// A key that cannot be written in the wanted form takes the other one: one with a space, comma or quotation mark
    /// is quoted, one with bytes beyond ASCII (from a query or body) goes as it is.
    pub fn to_header_value(&self, quoted: bool) -> HeaderValue {
        let is_ascii = self.value.is_ascii();
        let needs_quotes = !self.value.iter().all(|byte| header::is_bare(*byte));
        let text = if is_ascii && (quoted || needs_quotes) { quote(&self.value) } else { self.value.clone() };
        HeaderValue::try_from(text).expect("a key has no control characters, and those alone are refused")
    }
}

fn quote(value: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(value.len() + 2);
    text.push(b'"');
    for byte in value {
        if matches!(byte, b'"' | b'\\') {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text.push(b'"');
    text
}

/// What the head of a request says about its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key.
    Key(Key),
    /// No source is present.
    Absent,
    /// The sources that come first are absent, and the next one needs the body: ask [`from_body`].
    NeedsBody,
}

/// Looks for the key in the head of a request.
///
/// # Errors
///
/// The first source present is malformed.
pub fn from_head(route: &Route, head: &Parts) -> Result<Found, KeyFault> {
    for source in &route.key {
        match source::in_head(source, head, route.max_key_length)? {
            Reading::Key(key) => return Ok(Found::Key(key)),
            Reading::Absent => {}
            Reading::NeedsBody => return Ok(Found::NeedsBody),
        }
    }
    Ok(Found::Absent)
}

/// Looks for the key in the whole request, all of whose body is there; `None` in its place if it cannot be decoded.
///
/// A body in another format than a source's has no key for it, and the next source is asked.
///
/// # Errors
///
/// The first source present is malformed; the JSON on the way to a key could be read in two ways; or there is no key,
/// the route requires one, and a source could not read the body.
pub fn from_body(
    route: &Route,
    head: &Parts,
    body: Option<&[u8]>,
    fingerprint: &Fingerprint,
) -> Result<Option<Key>, KeyFault> {
    let whole = source::Whole::new(head, body, fingerprint);
    for source in &route.key {
        if let Some(key) = source::in_whole(source, &whole, route.max_key_length)? {
            return Ok(Some(key));
        }
    }
    match whole.unread() {
        Some(fault) if route.key_required => Err(fault),
        _ => Ok(None),
    }
}

/// Whether a source of the route's keys looks into the body.
pub fn reads_body(route: &Route) -> bool {
    fn reads(source: &KeySource) -> bool {
        match source {
            KeySource::Json(_) | KeySource::Form(_) => true,
            KeySource::Joined(parts) => parts.iter().any(reads),
            KeySource::Header(_) | KeySource::Query(_) | KeySource::Fingerprint => false,
        }
    }
    route.key.iter().any(reads)
}

/// Refuses a `Connection` field that names a header of the key, the scope or the fingerprint: such a field is meant for
/// this hop only and would be gone before the next (RFC 9110 section 7.6.1), so two hops would see two requests.
///
/// # Errors
///
/// [`KeyFault::Invalid`] with the header's name.
pub fn check_connection(route: &Route, head: &Parts) -> Result<(), KeyFault> {
    if !head.headers.contains_key(CONNECTION) {
        return Ok(());
    }
    let named = |name: &HeaderName| {
        fields::list(&head.headers, &CONNECTION).any(|option| option.eq_ignore_ascii_case(name.as_str().as_bytes()))
    };
    let scope = route.scope.iter().filter_map(|part| match part {
        ScopePart::Header(name) => Some(name),
        ScopePart::Cookie(_) => Some(&COOKIE),
        ScopePart::Host => Some(&HOST),
        ScopePart::Query(_) | ScopePart::Path | ScopePart::ClientCert | ScopePart::Constant(_) => None,
    });
    let refused = route
        .key
        .iter()
        .find_map(|source| find_header(source, &named))
        .or_else(|| scope.chain(&route.fingerprint.headers).find(|name| named(name)));
    match refused {
        Some(name) => Err(InvalidKey::new(&KeySource::Header(name.clone()), Malformed::HopByHop).into()),
        None => Ok(()),
    }
}

fn find_header<'a>(source: &'a KeySource, named: &impl Fn(&HeaderName) -> bool) -> Option<&'a HeaderName> {
    match source {
        KeySource::Header(name) => Some(name).filter(|name| named(name)),
        KeySource::Joined(parts) => parts.iter().find_map(|part| find_header(part, named)),
        KeySource::Query(_) | KeySource::Json(_) | KeySource::Form(_) | KeySource::Fingerprint => None,
    }
}

#[cfg(test)]
mod tests;
