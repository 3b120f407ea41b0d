//! The canonical form of an `application/x-www-form-urlencoded` body: decoded pairs, sorted by name.
//!
//! The order of equal names counts, because it is the order of a list's elements; that of different names does not.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::super::key::pairs::{Encoded, Pair, pairs};
use super::super::key::transcript::Transcript;
use super::tag;

/// Adds a form; says no, adding nothing, if the body is not declared as one or its percent-encoding is broken.
pub(super) fn add(transcript: &mut Transcript, headers: &HeaderMap, body: &[u8]) -> bool {
    if !is_form(headers) || !Encoded(body).is_sound() {
        return false;
    }
    let mut sorted: Vec<Pair<'_>> = pairs(body).collect();
    sorted.sort_by(|a, b| a.name.decoded().cmp(b.name.decoded()));
    transcript.tag(tag::FORM);
    transcript.count(sorted.len());
    let mut text = Vec::new();
    for pair in sorted {
        add_decoded(transcript, pair.name, &mut text);
        // `a` and `a=` differ: some upstreams take the first as null.
        transcript.count(usize::from(pair.value.is_some()));
        if let Some(value) = pair.value {
            add_decoded(transcript, value, &mut text);
        }
    }
    true
}

fn add_decoded(transcript: &mut Transcript, encoded: Encoded<'_>, text: &mut Vec<u8>) {
    text.clear();
    text.extend(encoded.decoded());
    transcript.part(text);
}

fn is_form(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(only), None) = (types.next(), types.next()) else {
        return false;
    };
    let essence = only.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}
