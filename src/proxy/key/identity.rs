//! Whose key it is: the record id, from the route's name, the scope parts and the key.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

use http::request::Parts;

use super::Key;
use super::pairs;
use super::transcript::Transcript;
use crate::config::{Route, ScopePart};
use crate::record::RecordId;

/// The name of a request's record, and two hashes for counters that live in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the record.
    pub id: RecordId,
    /// The caller: the same for all keys of one scope on one route.
    pub scope_hash: u64,
    /// The key's value, whatever the scope. Differs from process to process.
    pub key_hash: u64,
}

/// The name in the certificate that the client has shown: bytes that no other name has. Looked for among a request's
/// extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientName(pub Arc<[u8]>);

/// Names the record of a key that came with this request.
///
/// The id is made of the first sixteen bytes of SHA-256 over the length-prefixed route name, scope parts and key. A
/// missing scope part is not an empty one.
pub fn identify(route: &Route, head: &Parts, key: &Key) -> Identity {
    let mut transcript = Transcript::new();
    transcript.part(route.name.as_bytes());
    transcript.count(route.scope.len());
    for part in &route.scope {
        add_scope_part(&mut transcript, part, head);
    }
    let scope = transcript.clone().finish();
    transcript.part(key.value());
    let id = transcript.finish();
    Identity {
        id: RecordId::new(route.name.clone(), first(&id)),
        scope_hash: u64::from_be_bytes(first(&scope)),
        key_hash: process_hash(key.value()),
    }
}

fn add_scope_part(transcript: &mut Transcript, part: &ScopePart, head: &Parts) {
    match part {
        ScopePart::Header(name) => transcript.field(&head.headers, name),
        ScopePart::Query(name) => add_parameter(transcript, head.uri.query().unwrap_or_default(), name),
        ScopePart::ClientCert => match head.extensions.get::<ClientName>() {
            Some(ClientName(name)) => {
                transcript.count(1);
                transcript.part(name);
            }
            None => transcript.count(0),
        },
        ScopePart::Constant(text) => transcript.part(text.as_bytes()),
    }
}

/// A broken percent-encoding means different things to different upstreams, so it counts as it stands, under another tag.
fn add_parameter(transcript: &mut Transcript, query: &str, name: &str) {
    transcript.count(pairs::parameter(query, name).count());
    for value in pairs::parameter(query, name) {
        if value.is_sound() {
            transcript.tag(b'd');
            transcript.part(&value.decoded().collect::<Vec<u8>>());
        } else {
            transcript.tag(b'r');
            transcript.part(value.0);
        }
    }
}

fn first<const N: usize>(digest: &[u8; 32]) -> [u8; N] {
    std::array::from_fn(|at| digest[at])
}

/// Keyed by chance once per process: nobody outside can make two keys meet in a counter.
fn process_hash(bytes: &[u8]) -> u64 {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    STATE.get_or_init(RandomState::new).hash_one(bytes)
}
