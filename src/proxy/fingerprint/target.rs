//! Where a request goes: its target less the parameters that do not count, and its host.

use std::borrow::Cow;

use http::request::Parts;

use super::super::key::pairs::pairs;
use super::super::key::transcript::{Sink, Transcript};
use super::short;
use crate::record;

/// A short digest of method, path and query as they came.
pub(super) fn digest(head: &Parts) -> [u8; 16] {
    let mut transcript = Transcript::new();
    transcript.part(head.method.as_str().as_bytes());
    transcript.part(path_and_query(head).as_bytes());
    short(&transcript.finish())
}

pub(super) fn path_and_query(head: &Parts) -> &str {
    head.uri.path_and_query().map_or("", |target| target.as_str())
}

/// The names of the parameters that do not count, sorted.
#[derive(Clone, Debug)]
pub(super) struct IgnoredQuery(Vec<String>);

impl IgnoredQuery {
    pub(super) fn new(names: &[String]) -> IgnoredQuery {
        let mut names = names.to_vec();
        names.sort_unstable();
        names.dedup();
        IgnoredQuery(names)
    }

    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Adds path and query without these parameters. What is left of the query counts as it came; if nothing is, it is as
    /// if there had been none.
    pub(super) fn add(&self, transcript: &mut Transcript<impl Sink>, head: &Parts) {
        if self.0.is_empty() {
            return transcript.part(path_and_query(head).as_bytes());
        }
        transcript.part(head.uri.path().as_bytes());
        let query = head.uri.query();
        let left: Vec<&str> =
            query.map_or(Vec::new(), |query| query.split('&').filter(|pair| self.counts(pair)).collect());
        transcript.count(left.len());
        left.iter().for_each(|pair| transcript.part(pair.as_bytes()));
    }

    fn counts(&self, pair: &str) -> bool {
        // Some upstreams take a semicolon for the end of a pair: what follows it is not the value of this one.
        if pair.contains(';') {
            return true;
        }
        let Some(pair) = pairs(pair.as_bytes()).next() else { return true };
        // A broken percent-encoding may mean anything to the upstream.
        !pair.name.is_sound() || !self.0.iter().any(|name| pair.name.means(name))
    }
}

/// The host that a request names, as it counts; empty where it names none.
pub(super) struct Host<'a>(Cow<'a, str>);

/// The host of a request; `tls` says by which scheme it came.
pub(super) fn host(head: &Parts, tls: bool) -> Host<'_> {
    Host(super::super::host::host(head, tls).unwrap_or_default())
}

impl Host<'_> {
    pub(super) fn add(&self, transcript: &mut Transcript<impl Sink>) {
        transcript.part(self.0.as_bytes());
    }

    pub(super) fn digest(&self) -> [u8; 16] {
        if self.0.is_empty() {
            return record::Parts::NONE;
        }
        let mut transcript = Transcript::new();
        self.add(&mut transcript);
        short(&transcript.finish())
    }
}
