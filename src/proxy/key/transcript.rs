//! Parts that cannot run into each other: every part is preceded by its length, every list by its count.
//!
//! Record ids and fingerprints are hashes of such, so that `("a", "bc")` and `("ab", "c")` never meet.

use http::HeaderMap;
use http::header::HeaderName;
use sha2::{Digest, Sha256};

/// Where a transcript goes: into a hash, or as it is into a `Vec`.
pub(crate) trait Sink {
    /// Takes the next bytes.
    fn take(&mut self, bytes: &[u8]);
}

impl Sink for Sha256 {
    fn take(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }
}

impl Sink for Vec<u8> {
    fn take(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// What was written so far.
#[derive(Clone, Default)]
pub(crate) struct Transcript<S = Sha256>(S);

impl Transcript {
    /// An empty one that is hashed as it grows.
    pub(crate) fn new() -> Transcript {
        Transcript::default()
    }

    /// The SHA-256 of all of it.
    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

impl Transcript<Vec<u8>> {
    /// An empty one that is kept: for short texts, which are hashed faster at once.
    pub(crate) fn kept() -> Transcript<Vec<u8>> {
        Transcript(Vec::with_capacity(256))
    }

    /// All of it.
    pub(crate) fn text(&self) -> &[u8] {
        &self.0
    }

    /// Hashes it, to go on behind it: filled up with zeros to whole blocks of SHA-256, so that a copy has nothing left to
    /// hash of it. Its parts say where they end, so no other text has the same hash.
    pub(crate) fn hashed(mut self) -> Transcript {
        self.0.resize(self.0.len().next_multiple_of(64), 0);
        Transcript(Sha256::new_with_prefix(&self.0))
    }
}

impl<S: Sink> Transcript<S> {
    /// Adds one part of any length.
    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.take(bytes);
    }

    /// Adds a number: how many parts follow, or how many bytes.
    pub(crate) fn count(&mut self, count: usize) {
        self.0.take(&(count as u64).to_be_bytes());
    }

    /// Adds one byte that says what follows.
    pub(crate) fn tag(&mut self, tag: u8) {
        self.0.take(&[tag]);
    }

    /// Adds all lines of a field in their order. No line (count 0) is not one empty line.
    pub(crate) fn field(&mut self, headers: &HeaderMap, name: &HeaderName) {
        let lines = headers.get_all(name);
        self.count(lines.iter().count());
        for line in lines {
            self.part(line.as_bytes());
        }
    }

    /// Adds bytes without their length. The caller sees to it that nothing else could have given the same bytes.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.take(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash(parts: &[Vec<u8>]) -> [u8; 32] {
        let mut transcript = Transcript::new();
        parts.iter().for_each(|part| transcript.part(part));
        transcript.finish()
    }

    #[test]
    fn a_missing_field_an_empty_one_and_two_empty_ones_differ() {
        let name = HeaderName::from_static("x-account");
        let mut seen = Vec::new();
        let mut headers = HeaderMap::new();
        for _ in 0..3 {
            let mut transcript = Transcript::new();
            transcript.field(&headers, &name);
            seen.push(transcript.finish());
            headers.append(&name, http::HeaderValue::from_static(""));
        }
        assert_ne!(seen[0], seen[1]);
        assert_ne!(seen[1], seen[2]);
    }

    proptest! {
        #[test]
        fn where_a_part_ends_counts(bytes in proptest::collection::vec(any::<u8>(), 1..40), a in 0usize..40, b in 0usize..40) {
            let (a, b) = (a % (bytes.len() + 1), b % (bytes.len() + 1));
            let split = |at: usize| hash(&[bytes[..at].to_vec(), bytes[at..].to_vec()]);
            prop_assert_eq!(split(a) == split(b), a == b);
        }
    }
}
