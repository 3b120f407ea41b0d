//! The canonical form of an `application/x-www-form-urlencoded` body: decoded pairs, sorted by name.
//!
//! The order of equal names counts, because it is the order of a list's elements; that of different names does not.

use http::HeaderMap;

use super::super::key::pairs::{Encoded, Pair, pairs};
use super::super::key::transcript::Transcript;
use super::{content_type, tag};
use crate::fields::essence;

/// Adds a form; says no, adding nothing, if the body is not declared as one or its percent-encoding is broken.
pub(super) fn add(transcript: &mut Transcript, headers: &HeaderMap, body: &[u8]) -> bool {
    if !content_type(headers).is_some_and(is_form) || !Encoded(body).is_sound() || u32::try_from(body.len()).is_err() {
        return false;
    }
    let mut names: Vec<Name> = pairs(body).map(|pair| Name::of(&pair)).collect();
    names.sort_by(|a, b| a.text(body).decoded().cmp(b.text(body).decoded()));
    transcript.tag(tag::FORM);
    transcript.count(names.len());
    let mut text = Vec::new();
    for pair in names.iter().filter_map(|name| pairs(&body[name.start as usize..]).next()) {
        add_decoded(transcript, pair.name, &mut text);
        // `a` and `a=` differ: some upstreams take the first as null.
        transcript.count(usize::from(pair.value.is_some()));
        if let Some(value) = pair.value {
            add_decoded(transcript, value, &mut text);
        }
    }
    true
}

/// Where a pair's name is: eight bytes a pair, so that a body of tiny pairs does not become many times its size, and
/// no search for its end, so that sorting costs no more for long values.
struct Name {
    start: u32,
    end: u32,
}

impl Name {
    /// Positions fit: longer bodies are not read as forms.
    fn of(pair: &Pair<'_>) -> Name {
        Name { start: pair.at as u32, end: (pair.at + pair.name.0.len()) as u32 }
    }

    fn text<'a>(&self, body: &'a [u8]) -> Encoded<'a> {
        Encoded(&body[self.start as usize..self.end as usize])
    }
}

fn add_decoded(transcript: &mut Transcript, encoded: Encoded<'_>, text: &mut Vec<u8>) {
    text.clear();
    text.extend(encoded.decoded());
    transcript.part(text);
}

fn is_form(content_type: &[u8]) -> bool {
    essence(content_type).eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}
