//! The credentials that come with a request, as short hashes: for routes on which only the first caller gets the answer.
//!
//! What is in the scope is not looked at: another one there has another record.

use std::num::NonZeroU64;

use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;

use super::super::key::transcript::Transcript;
use super::short;
use crate::config::{Route, ScopePart};
use crate::record::{Credentials, RecordId};

/// The fields that may carry a credential.
const FIELDS: [HeaderName; Credentials::HEADERS] =
    [AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("api-key")];
/// Cookies with shorter values are no secrets.
const SHORTEST_SECRET: usize = 16;

/// What is compared on one route.
#[derive(Clone, Debug)]
pub struct Compared {
    fields: [bool; Credentials::HEADERS],
    cookies: bool,
}

impl Compared {
    /// What the settings ask for; `None` if callers are not compared.
    pub fn of(route: &Route) -> Option<Compared> {
        route.compares_credentials().then(|| {
            let mut compared = Compared { fields: [true; Credentials::HEADERS], cookies: true };
            for part in &route.scope {
                compared.leave_out(part);
            }
            compared
        })
    }

    fn leave_out(&mut self, part: &ScopePart) {
        match part {
            ScopePart::Header(name) if *name == COOKIE => self.cookies = false,
            ScopePart::Header(name) => {
                for (known, is_compared) in FIELDS.iter().zip(&mut self.fields) {
                    *is_compared &= known != name;
                }
            }
            ScopePart::Cookie(_) => self.cookies = false,
            ScopePart::Query(_)
            | ScopePart::Host
            | ScopePart::Path
            | ScopePart::ClientCert
            | ScopePart::Constant(_) => {}
        }
    }

    /// The hashes of what came with this request.
    pub fn credentials(&self, head: &Parts, id: &RecordId) -> Credentials {
        let headers = std::array::from_fn(|field| {
            let name = &FIELDS[field];
            (self.fields[field] && head.headers.contains_key(name)).then(|| of_field(head, name, id))
        });
        let cookies = if self.cookies { cookies(head, id) } else { Vec::new() };
        Credentials::new(headers, cookies)
    }
}

/// Equal lines count once: some proxies double them.
fn of_field(head: &Parts, name: &HeaderName, id: &RecordId) -> NonZeroU64 {
    let mut transcript = salted(id);
    let lines: Vec<_> = head.headers.get_all(name).iter().collect();
    for (at, line) in lines.iter().enumerate() {
        if !lines[..at].contains(line) {
            transcript.part(line.as_bytes());
        }
    }
    NonZeroU64::new(finish(transcript)).unwrap_or(NonZeroU64::MAX)
}

/// In HTTP/2 each cookie may have a line of its own.
fn cookies(head: &Parts, id: &RecordId) -> Vec<u64> {
    let lines = head.headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(|pair| of_cookie(pair.trim_ascii(), id)).collect()
}

fn of_cookie(pair: &[u8], id: &RecordId) -> Option<u64> {
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (&pair[..equals], &pair[equals + 1..]);
    (value.len() >= SHORTEST_SECRET).then(|| {
        let mut transcript = salted(id);
        transcript.part(name);
        transcript.part(value);
        finish(transcript)
    })
}

/// Salted with the record's name, so that equal credentials of two records have hashes that differ.
fn salted(id: &RecordId) -> Transcript {
    let mut transcript = Transcript::new();
    transcript.raw(id.hash());
    transcript
}

fn finish(transcript: Transcript) -> u64 {
    u64::from_be_bytes(short(&transcript.finish()))
}
