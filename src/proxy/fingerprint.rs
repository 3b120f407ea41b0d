//! The fourth step: what a request is, in 36 bytes, so that a key used for another request is noticed.
//!
//! A digest over method, path and query as received, the body in the way the route's settings say, and the header
//! fields they name. Separate from the key, because the same key with another fingerprint is a caller's mistake.
//! Pure: it waits for nothing.

mod form;
mod json;
mod multipart;

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName};
use http::request::Parts;

use super::key::JsonFault;
use super::key::transcript::Transcript;
use crate::config::{self, BodyMode};
use crate::record;
use json::Ignored;

/// Changes whenever the same request would get another digest; stored digests of other versions are not compared.
const FORMAT_VERSION: u8 = 1;

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
    ignored: Ignored,
}

impl Policy {
    /// The policy of these settings, to be made once per route.
    pub fn new(config: &config::Fingerprint) -> Policy {
        let mut headers = config.headers.clone();
        headers.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        headers.dedup();
        let mut ignore = config.ignore.clone();
        ignore.sort_unstable();
        ignore.dedup();
        let ignored = Ignored::new(&ignore);
        Policy { id: id(config.body, &headers, &ignore), body: config.body, headers, ignored }
    }

    /// Whether the fingerprint is the same for every body.
    pub fn ignores_body(&self) -> bool {
        self.body == BodyMode::Ignore
    }

    /// The fingerprint of a request whose whole body is there.
    ///
    /// # Errors
    ///
    /// In `json` mode: an object of the body names a member twice, or the body nests too deep.
    pub fn fingerprint(&self, head: &Parts, body: &[u8]) -> Result<record::Fingerprint, BodyFault> {
        let mut transcript = Transcript::new();
        transcript.part(head.method.as_str().as_bytes());
        transcript.part(head.uri.path_and_query().map_or("", |target| target.as_str()).as_bytes());
        for name in &self.headers {
            transcript.field(&head.headers, name);
        }
        self.add_body(&mut transcript, head, body)?;
        Ok(record::Fingerprint { policy: self.id, digest: transcript.finish() })
    }

    fn add_body(&self, transcript: &mut Transcript, head: &Parts, body: &[u8]) -> Result<(), BodyFault> {
        let understood = match self.body {
            BodyMode::Ignore => {
                transcript.tag(tag::IGNORED);
                true
            }
            BodyMode::Bytes => {
                transcript.tag(tag::BYTES);
                transcript.part(body);
                true
            }
            BodyMode::Json => json::add(transcript, body, &self.ignored)?,
            BodyMode::Form => form::add(transcript, &head.headers, body),
            BodyMode::Multipart => multipart::add(transcript, &head.headers, body),
        };
        if !understood {
            transcript.tag(tag::OTHER);
            transcript.part(body);
        }
        Ok(())
    }
}

/// The value of the one `Content-Type` line; with two of them nobody can say what the body is.
fn content_type(headers: &HeaderMap) -> Option<&[u8]> {
    let mut lines = headers.get_all(CONTENT_TYPE).iter();
    let only = lines.next()?;
    lines.next().is_none().then(|| only.as_bytes())
}

/// Format version and settings, hashed.
fn id(body: BodyMode, headers: &[HeaderName], ignore: &[String]) -> [u8; 4] {
    let mut transcript = Transcript::new();
    transcript.tag(FORMAT_VERSION);
    transcript.tag(match body {
        BodyMode::Ignore => tag::IGNORED,
        BodyMode::Bytes => tag::BYTES,
        BodyMode::Json => tag::JSON,
        BodyMode::Form => tag::FORM,
        BodyMode::Multipart => tag::MULTIPART,
    });
    transcript.count(headers.len());
    headers.iter().for_each(|name| transcript.part(name.as_str().as_bytes()));
    transcript.count(ignore.len());
    ignore.iter().for_each(|pointer| transcript.part(pointer.as_bytes()));
    let digest = transcript.finish();
    std::array::from_fn(|at| digest[at])
}

#[cfg(test)]
mod tests;
