//! One source of a key: whether it is present, and the key in it.

use std::cell::OnceCell;

use http::header::CONTENT_TYPE;
use http::request::Parts;

use super::fault::{InvalidKey, KeyFault, Malformed, Unreadable, place};
use super::join::Join;
use super::json::{Document, JsonFault, Kind};
use super::{Key, header, pairs};
use crate::config::KeySource;
use crate::fields;
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

/// The media type of a form.
const FORM: &[u8] = b"application/x-www-form-urlencoded";

/// A request whose body is complete. The body is read as JSON once, however many sources ask.
pub(super) struct Whole<'a> {
    head: &'a Parts,
    /// `None` if it could not be decoded.
    body: Option<&'a [u8]>,
    fingerprint: &'a Fingerprint,
    document: OnceCell<Result<Document<'a>, Unreadable>>,
    /// The first source that could not read the body, and why.
    unread: OnceCell<(&'a KeySource, Unreadable)>,
}

impl<'a> Whole<'a> {
    pub(super) fn new(head: &'a Parts, body: Option<&'a [u8]>, fingerprint: &'a Fingerprint) -> Whole<'a> {
        Whole { head, body, fingerprint, document: OnceCell::new(), unread: OnceCell::new() }
    }

    /// Why a source could not read the body, if one could not.
    pub(super) fn unread(&self) -> Option<KeyFault> {
        self.unread.get().map(|(source, fault)| KeyFault::Body { place: place(source), fault: *fault })
    }

    fn document(&self) -> Result<&Document<'a>, Unreadable> {
        let read = || Ok(Document::read(self.body.ok_or(Unreadable::Encoded)?)?);
        self.document.get_or_init(read).as_ref().map_err(|fault| *fault)
    }

    /// The body, if it is declared as a form.
    fn form(&self) -> Result<&'a [u8], Unreadable> {
        let mut lines = self.head.headers.get_all(CONTENT_TYPE).iter();
        let is_form = match (lines.next(), lines.next()) {
            (Some(only), None) => fields::essence(only.as_bytes()).eq_ignore_ascii_case(FORM),
            _ => false,
        };
        if is_form { self.body.ok_or(Unreadable::Encoded) } else { Err(Unreadable::NotForm) }
    }

    /// What a source could read, or `None` where the body has another format.
    fn readable<T>(&self, source: &'a KeySource, read: Result<T, Unreadable>) -> Result<Option<T>, KeyFault> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(fault @ (Unreadable::Json(JsonFault::NotJson { .. }) | Unreadable::NotForm | Unreadable::Encoded)) => {
                let _ = self.unread.set((source, fault));
                Ok(None)
            }
            Err(fault) => Err(KeyFault::Body { place: place(source), fault }),
        }
    }
}

/// Reads a source from the head, as far as that goes.
pub(super) fn in_head(source: &KeySource, head: &Parts, max_length: usize) -> Result<Reading, KeyFault> {
    match source {
        KeySource::Header(_) | KeySource::Query(_) => Ok(head_part(source, head, max_length)?.into()),
        KeySource::Json(_) | KeySource::Form(_) | KeySource::Fingerprint => Ok(Reading::NeedsBody),
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
pub(super) fn in_whole<'a>(
    source: &'a KeySource,
    whole: &Whole<'a>,
    max_length: usize,
) -> Result<Option<Key>, KeyFault> {
    match source {
        KeySource::Header(_) | KeySource::Query(_) => Ok(head_part(source, whole.head, max_length)?),
        KeySource::Json(pointer) => json_part(source, pointer, whole, max_length),
        KeySource::Form(name) => form_part(source, name, whole, max_length),
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
        KeySource::Json(_) | KeySource::Form(_) | KeySource::Fingerprint | KeySource::Joined(_) => Ok(None),
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

fn form_part<'a>(
    source: &'a KeySource,
    name: &str,
    whole: &Whole<'a>,
    max_length: usize,
) -> Result<Option<Key>, KeyFault> {
    let Some(form) = whole.readable(source, whole.form())? else { return Ok(None) };
    let key = only(pairs::values(form, name), |value| parameter(value, max_length));
    key.map_err(|wrong| InvalidKey::new(source, wrong).into())
}

fn json_part<'a>(
    source: &'a KeySource,
    pointer: &str,
    whole: &Whole<'a>,
    max_length: usize,
) -> Result<Option<Key>, KeyFault> {
    let Some(document) = whole.readable(source, whole.document())? else { return Ok(None) };
    let found = document.find(pointer).map_err(|fault| KeyFault::Body { place: place(source), fault: fault.into() })?;
    let Some(node) = found else {
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
