//! Several parts that make one key together: all of them, or none.

use super::Key;
use super::fault::{InvalidKey, Malformed};
use super::source::Reading;
use crate::config::KeySource;

/// The parts seen so far.
///
/// The list is present when any part is. The fingerprint is always there and says nothing, so it counts only in a
/// list of nothing else.
#[derive(Default)]
pub(super) struct Join<'a> {
    /// `LENGTH:PART` for each, so that `("a", "bc")` and `("ab", "c")` are two keys, and still one line of text.
    text: Vec<u8>,
    /// The bytes that the caller sent.
    length: usize,
    present: bool,
    missing: Option<&'a KeySource>,
    needs_body: bool,
    body_may_decide: bool,
}

impl<'a> Join<'a> {
    /// A part that is there.
    pub(super) fn add(&mut self, part: &KeySource, key: &Key) {
        self.text.extend_from_slice(key.value().len().to_string().as_bytes());
        self.text.push(b':');
        self.text.extend_from_slice(key.value());
        if *part != KeySource::Fingerprint {
            self.present = true;
            self.length += key.value().len();
        }
    }

    /// A part that is not there.
    pub(super) fn miss(&mut self, part: &'a KeySource) {
        self.missing.get_or_insert(part);
    }

    /// A part that the head does not show.
    pub(super) fn defer(&mut self, part: &KeySource) {
        self.needs_body = true;
        self.body_may_decide |= *part != KeySource::Fingerprint;
    }

    /// What the head alone says. A missing part is told before the body is read.
    pub(super) fn in_head(self, source: &KeySource, max_length: usize) -> Result<Reading, InvalidKey> {
        let decided_by_missing = self.missing.is_some() && (self.present || !self.body_may_decide);
        if self.needs_body && !decided_by_missing {
            return Ok(Reading::NeedsBody);
        }
        self.finish(source, max_length).map(Reading::from)
    }

    /// The key if all parts are there, `None` if none is. `source` is the whole list.
    pub(super) fn finish(self, source: &KeySource, max_length: usize) -> Result<Option<Key>, InvalidKey> {
        match self.missing {
            Some(part) if self.present => Err(InvalidKey::new(part, Malformed::PartMissing)),
            Some(_) => Ok(None),
            None if self.length > max_length => Err(InvalidKey::new(source, Malformed::TooLong(max_length))),
            // A list without parts is nowhere.
            None if self.text.is_empty() => Ok(None),
            None => Ok(Some(Key { value: self.text, quoted: false })),
        }
    }
}
