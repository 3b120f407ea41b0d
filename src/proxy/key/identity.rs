//! Whose key it is: the record id, from the route's name, the scope parts and the key.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

use http::request::Parts;
use sha2::{Digest, Sha256};

use super::Key;
use super::scope::{self, ScopeFault};
use super::transcript::Transcript;
use crate::config::Route;
use crate::record::RecordId;

/// The name of a request's record, and two hashes for counters that live in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the record.
    pub id: RecordId,
    /// The caller: the same for all keys of one scope on one route. Differs from process to process.
    pub scope_hash: u64,
    /// The key's value, whatever the scope. Differs from process to process.
    pub key_hash: u64,
}

/// The name in the certificate that the client has shown: bytes that no other name has. Looked for among a request's
/// extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientName(pub Arc<[u8]>);

/// Names the record of a key that came with this request; `tls` says by which scheme it came.
///
/// The id is made of the first sixteen bytes of SHA-256 over the length-prefixed route name, scope parts and key. A
/// missing scope part is not an empty one.
///
/// # Errors
///
/// A part of the scope stands there more than once, with different values.
pub fn identify(route: &Route, head: &Parts, tls: bool, key: &Key) -> Result<Identity, ScopeFault> {
    let mut transcript = Transcript::kept();
    transcript.part(route.name.as_bytes());
    transcript.count(route.scope.len());
    for part in &route.scope {
        scope::add(&mut transcript, part, head, tls)?;
    }
    let scope_hash = process_hash(transcript.text());
    transcript.part(key.value());
    let digest = Sha256::digest(transcript.text());
    let hash = std::array::from_fn(|at| digest[at]);
    Ok(Identity { id: RecordId::new(route.name.clone(), hash), scope_hash, key_hash: process_hash(key.value()) })
}

/// Keyed by chance once per process: nobody outside can make two of them meet in a counter.
fn process_hash(bytes: &[u8]) -> u64 {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    STATE.get_or_init(RandomState::new).hash_one(bytes)
}
