//! The fourth step: what a request is, so that a key used for another request is noticed, and another caller.
//!
//! A digest over what counts under the route's settings: method, path and query less the parameters that are ignored, the
//! host where the upstream sees it, the listed header fields, and the body in the way the settings say. Beside it short
//! digests of the parts as they came, and hashes of credentials ([`credentials`]). Separate from the key, because the same
//! key with another fingerprint is a caller's mistake. Pure: it waits for nothing.

mod form;
mod json;
mod multipart;
mod remembered;
mod target;

pub mod credentials;
pub mod differs;

use std::sync::Arc;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use sha2::{Digest, Sha256};

use super::key::JsonFault;
use super::key::transcript::Transcript;
use crate::config::{self, BodyMode, OPERATION};
use crate::record;
use credentials::Compared;
use json::Ignored;
use remembered::Address;
use target::IgnoredQuery;

/// Changes whenever the same request would get another digest; stored digests of other versions are not compared.
const FORMAT_VERSION: u8 = 3;

/// How a body was hashed. The first bytes of what is hashed of it, so that no two ways can give one digest.
mod tag {
    pub(super) const IGNORED: u8 = 0;
    pub(super) const BYTES: u8 = 1;
    pub(super) const JSON: u8 = 2;
    pub(super) const FORM: u8 = 3;
    pub(super) const MULTIPART: u8 = 4;
    /// Not in the format that the settings name: byte by byte.
    pub(super) const OTHER: u8 = 5;
}

/// A body of which no fingerprint can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct BodyFault(#[from] JsonFault);

/// How the fingerprints of one route are made.
#[derive(Clone, Debug)]
pub struct Policy {
    id: [u8; 4],
    body: BodyMode,
    headers: Vec<HeaderName>,
    /// Whether no header field counts but those that choose an operation.
    operation_alone: bool,
    ignored: Ignored,
    ignored_query: IgnoredQuery,
    host: bool,
}

/// What the policy made of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Print {
    /// What the request is under the settings.
    pub fingerprint: record::Fingerprint,
    /// What it is as it came.
    pub parts: record::Parts,
}

/// Makes the imprints of the requests of one route.
#[derive(Clone, Debug)]
pub struct Imprinter {
    /// What counts.
    pub policy: Policy,
    callers: Option<Compared>,
}

impl Imprinter {
    /// As the route's settings say.
    pub fn of(route: &config::Route) -> Imprinter {
        Imprinter { policy: Policy::of(route), callers: Compared::of(route) }
    }

    /// The imprint of a request with this print, whose record this is.
    pub fn imprint(&self, head: &Parts, print: Print, record: &record::RecordId) -> record::Imprint {
        let credentials = self.callers.as_ref().map(|callers| callers.credentials(head, record));
        let details = Some(Arc::new(record::Details { parts: print.parts, credentials }));
        record::Imprint { fingerprint: print.fingerprint, details }
    }
}

/// A body as it came.
#[derive(Clone, Copy, Debug)]
pub enum BodyAsRead<'a> {
    /// All of it, and what is inside once its `Content-Encoding` is taken off: `None` if that cannot be done.
    Whole(&'a [u8], Option<&'a [u8]>),
    /// Nothing of it yet. What is made of such a request is equal only to one that was read under the same settings, if
    /// these leave the body out.
    Unread,
}

impl Policy {
    /// The policy of these settings, to be made once per route.
    pub fn of(route: &config::Route) -> Policy {
        Policy::new(&route.fingerprint, route.shows_host())
    }

    /// The same; `host` says whether the host counts.
    pub fn new(config: &config::Fingerprint, host: bool) -> Policy {
        let mut headers = config.headers.clone();
        headers.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        headers.dedup();
        let mut ignore = config.ignore.clone();
        ignore.sort_unstable();
        ignore.dedup();
        let ignored_query = IgnoredQuery::new(&config.ignore_query);
        Policy {
            id: id(config.body, &headers, &ignore, &ignored_query, host),
            body: config.body,
            operation_alone: headers.iter().all(|name| OPERATION.contains(name)),
            headers,
            ignored: Ignored::new(&ignore),
            ignored_query,
            host,
        }
    }

    /// Whether the body is read in a format, and not byte by byte.
    pub fn reads_formats(&self) -> bool {
        matches!(self.body, BodyMode::Json | BodyMode::Form | BodyMode::Multipart)
    }

    /// Whether the fingerprint is the same for every body.
    pub fn ignores_body(&self) -> bool {
        self.body == BodyMode::Ignore
    }

    /// The print of a request. `tls` says whether it came so, for the port that need not be named.
    ///
    /// # Errors
    ///
    /// In `json` mode: an object of the body names a member twice, or the body nests too deep.
    pub fn print(&self, head: &Parts, body: BodyAsRead<'_>, tls: bool) -> Result<Print, BodyFault> {
        let operation = fields(&head.headers, &OPERATION);
        // Hardly a request has a field that chooses an operation, and hardly a route compares others.
        let Address { target, host, begun: mut transcript } = match self.operation_alone && operation.is_none() {
            true => remembered::address(self, head, tls),
            false => self.address(head, tls),
        };
        let body_hash: Option<[u8; 32]> = match body {
            BodyAsRead::Whole(bytes, _) => Some(Sha256::digest(bytes).into()),
            BodyAsRead::Unread => None,
        };
        let parts = record::Parts::new([
            target,
            host,
            operation.unwrap_or(record::Parts::NONE),
            content(&head.headers),
            body_hash.map_or(record::Parts::UNREAD, |hash| short(&hash)),
        ]);
        let inside = if let BodyAsRead::Whole(_, inside) = body { inside } else { Some(&[][..]) };
        self.add_body(&mut transcript, head, inside, &body_hash.unwrap_or_default())?;
        let fingerprint = record::Fingerprint { policy: self.id, digest: transcript.finish() };
        Ok(Print { fingerprint, parts })
    }

    /// Where a request goes, and all else that counts of its head, hashed. `tls` says whether it came so.
    fn address(&self, head: &Parts, tls: bool) -> Address {
        let host = target::host(head, tls);
        let mut begun = Transcript::kept();
        begun.part(head.method.as_str().as_bytes());
        self.ignored_query.add(&mut begun, head);
        if self.host {
            host.add(&mut begun);
        }
        self.headers.iter().for_each(|name| begun.field(&head.headers, name));
        Address { target: target::digest(head), host: host.digest(), begun: begun.hashed() }
    }

    /// Adds the body. Where it counts byte by byte its hash stands for it, so that long ones are hashed once.
    fn add_body(
        &self,
        transcript: &mut Transcript,
        head: &Parts,
        inside: Option<&[u8]>,
        hash: &[u8; 32],
    ) -> Result<(), BodyFault> {
        let understood = match self.body {
            BodyMode::Ignore => {
                transcript.tag(tag::IGNORED);
                true
            }
            BodyMode::Bytes => {
                transcript.tag(tag::BYTES);
                transcript.raw(hash);
                true
            }
            BodyMode::Json => match inside {
                Some(inside) => json::add(transcript, inside, &self.ignored)?,
                None => false,
            },
            BodyMode::Form => inside.is_some_and(|inside| form::add(transcript, &head.headers, inside)),
            BodyMode::Multipart => inside.is_some_and(|inside| multipart::add(transcript, &head.headers, inside)),
        };
        if !understood {
            transcript.tag(tag::OTHER);
            transcript.raw(hash);
        }
        Ok(())
    }
}

/// A short digest of these fields with all their lines; `None` if there are none.
fn fields<const N: usize>(headers: &HeaderMap, names: &[HeaderName; N]) -> Option<[u8; 16]> {
    // Comparing with the few that came is faster than a look-up for each name.
    if !headers.keys().any(|name| names.contains(name)) {
        return None;
    }
    let mut transcript = Transcript::new();
    names.iter().for_each(|name| transcript.field(headers, name));
    Some(short(&transcript.finish()))
}

/// A short digest of what the head says of the body.
fn content(headers: &HeaderMap) -> [u8; 16] {
    let hashed = || fields(headers, &[CONTENT_TYPE, CONTENT_ENCODING]).unwrap_or(record::Parts::NONE);
    match content_type(headers) {
        Some(only) if !headers.contains_key(CONTENT_ENCODING) => remembered::content(only, hashed),
        _ => hashed(),
    }
}

fn short<const N: usize>(digest: &[u8; 32]) -> [u8; N] {
    std::array::from_fn(|at| digest[at])
}

/// The value of the one `Content-Type` line; with two of them nobody can say what the body is.
fn content_type(headers: &HeaderMap) -> Option<&[u8]> {
    let mut lines = headers.get_all(CONTENT_TYPE).iter();
    let only = lines.next()?;
    lines.next().is_none().then(|| only.as_bytes())
}

/// Format version and settings, hashed.
fn id(body: BodyMode, headers: &[HeaderName], ignore: &[String], query: &IgnoredQuery, host: bool) -> [u8; 4] {
    let mut transcript = Transcript::new();
    transcript.tag(FORMAT_VERSION);
    transcript.tag(match body {
        BodyMode::Ignore => tag::IGNORED,
        BodyMode::Bytes => tag::BYTES,
        BodyMode::Json => tag::JSON,
        BodyMode::Form => tag::FORM,
        BodyMode::Multipart => tag::MULTIPART,
    });
    transcript.tag(u8::from(host));
    let headers = headers.iter().map(HeaderName::as_str);
    add_list(&mut transcript, headers);
    add_list(&mut transcript, ignore.iter().map(String::as_str));
    add_list(&mut transcript, query.names());
    short(&transcript.finish())
}

fn add_list<'a>(transcript: &mut Transcript, list: impl ExactSizeIterator<Item = &'a str>) {
    transcript.count(list.len());
    list.for_each(|text| transcript.part(text.as_bytes()));
}

#[cfg(test)]
mod tests;
