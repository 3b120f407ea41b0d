//! One source of a key: whether it is present, and the key in it.

use std::cell::OnceCell;

use http::request::Parts;

use super::fault::{InvalidKey, KeyFault, Malformed, place};
use super::join::Join;
use super::json::{Document, JsonFault, Kind};
use super::{Key, header, pairs};
use crate::config::KeySource;
use crate::record::Fingerprint;

/// What the head alone says about a source.
pub(super) enum Reading {
    Key(Key),
    Absent,
    NeedsBody,
}

impl From<Option<Key>> for Reading {
    fn from(key: Option<Key>) -> Reading {
        key.map_or(Reading::Absent, Reading::Key)
    }
}

/// A request whose body is complete. The body is read as JSON once, however many sources ask.
pub(super) struct Whole<'a> {
    head: &'a Parts,
    body: &'a [u8],
    fingerprint: &'a Fingerprint,
    document: OnceCell<Result<Document<'a>, JsonFault>>,
}

impl<'a> Whole<'a> {
    pub(super) fn new(head: &'a Parts, body: &'a [u8], fingerprint: &'a Fingerprint) -> Whole<'a> {
        Whole { head, body, fingerprint, document: OnceCell::new() }
    }

    fn document(&self) -> Result<&Document<'a>, JsonFault> {
        self.document.get_or_init(|| Document::read(self.body)).as_ref().map_err(|fault| *fault)
    }
}

/// Reads a source from the head, as far as that goes.
pub(super) fn in_head(source: &KeySource, head: &Parts, max_length: usize) -> Result<Reading, KeyFault> {
    match source {
        KeySource::Header(_) | KeySource::Query(_) => Ok(head_part(source, head, max_length)?.into()),
        KeySource::Json(_) | KeySource::Fingerprint => Ok(Reading::NeedsBody),
        KeySource::Joined(parts) => {
            let mut join = Join::default();
            for part in parts {
                match in_head(part, head, max_length)? {
                    Reading::Key(key) => join.add(part, &key),
                    Reading::Absent => join.miss(part),
                    Reading::NeedsBody => join.defer(part),
                }
            }
            Ok(join.in_head(source, max_length)?)
        }
    }
}

/// Reads a source from the whole request; `None` if it is absent.
pub(super) fn in_whole(source: &KeySource, whole: &Whole<'_>, max_length: usize) -> Result<Option<Key>, KeyFault> {
    match source {
        KeySource::Header(_) | KeySource::Query(_) => Ok(head_part(source, whole.head, max_length)?),
        KeySource::Json(pointer) => json_part(source, pointer, whole, max_length),
        KeySource::Fingerprint => Ok(Some(fingerprint_part(whole.fingerprint))),
        KeySource::Joined(parts) => {
            let mut join = Join::default();
            for part in parts {
                match in_whole(part, whole, max_length)? {
                    Some(key) => join.add(part, &key),
                    None => join.miss(part),
                }
            }
            Ok(join.finish(source, max_length)?)
        }
    }
}

fn head_part(source: &KeySource, head: &Parts, max_length: usize) -> Result<Option<Key>, InvalidKey> {
    let key = match source {
        KeySource::Header(name) => {
            only(head.headers.get_all(name).iter(), |line| header::parse(line.as_bytes(), max_length))
        }
        KeySource::Query(name) => {
            only(pairs::parameter(head.uri.query().unwrap_or_default(), name), |value| parameter(value, max_length))
        }
        KeySource::Json(_) | KeySource::Fingerprint | KeySource::Joined(_) => Ok(None),
    };
    key.map_err(|wrong| InvalidKey::new(source, wrong))
}

/// Reads the one of its kind, if there is one.
fn only<T>(
    mut all: impl Iterator<Item = T>,
    read: impl Fn(T) -> Result<Key, Malformed>,
) -> Result<Option<Key>, Malformed> {
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(only), None) => read(only).map(Some),
        (Some(_), Some(_)) => Err(Malformed::Repeated),
    }
}

fn parameter(value: pairs::Encoded<'_>, max_length: usize) -> Result<Key, Malformed> {
    if !value.is_sound() {
        return Err(Malformed::Percent);
    }
    Key::new(value.decoded().take(max_length.saturating_add(1)).collect(), false, max_length)
}

fn json_part(source: &KeySource, pointer: &str, whole: &Whole<'_>, max_length: usize) -> Result<Option<Key>, KeyFault> {
    let fault = |fault| KeyFault::Body { place: place(source), fault };
    let document = whole.document().map_err(fault)?;
    let Some(node) = document.find(pointer).map_err(fault)? else {
        return Ok(None);
    };
    let key = match document.kind(node) {
        Kind::String(text) => string(text.to_bytes(max_length), max_length),
        // The text of the number, not its value: 9007199254740993 and …992 are two keys.
        Kind::Number(text) => Key::new(text.to_vec(), false, max_length),
        Kind::Word(b"null") => return Ok(None),
        Kind::Word(_) | Kind::Object | Kind::Array => Err(Malformed::Type),
    };
    key.map(Some).map_err(|wrong| InvalidKey::new(source, wrong).into())
}

fn string(bytes: Option<Vec<u8>>, max_length: usize) -> Result<Key, Malformed> {
    let bytes = bytes.ok_or(Malformed::TooLong(max_length))?;
    let text = String::from_utf8(bytes).map_err(|_| Malformed::Surrogate)?;
    Key::new(text.into_bytes(), false, max_length)
}

/// The digest in hex. The route's `max_key_length` speaks of what callers send, not of this.
fn fingerprint_part(fingerprint: &Fingerprint) -> Key {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| DIGITS[usize::from(nibble & 15)];
    Key { value: fingerprint.digest.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect(), quoted: false }
}
