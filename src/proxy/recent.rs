//! What was executed in the last minutes, to notice clients that defeat their own keys.
//!
//! A client that makes a new key for every attempt, or whose credential (part of the scope) changes between retries, is
//! not protected. The proxy cannot stop that, but it can count it. Hashes only, bounded in number, gone with the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::key::Identity;
use crate::metrics::RouteMetrics;
use crate::record::Fingerprint;
use crate::seldom::Seldom;

const SHARDS: usize = 16;
/// Entries of a shard and generation. Two generations of two tables: at most some 12 MiB in all.
const ENTRIES: usize = 4096;
/// How long a generation lasts; an entry is remembered for one to two of them.
const GENERATION: Duration = Duration::from_secs(180);

/// The requests of the last minutes.
#[derive(Debug)]
pub struct Recent {
    shards: Vec<Mutex<Shard>>,
    /// By route, of requests under another scope.
    rescoped: Seldom<String>,
}

#[derive(Debug)]
struct Shard {
    begun: Instant,
    /// Scope and request → key.
    keys: [HashMap<u64, u64>; 2],
    /// Key and request → scope.
    scopes: [HashMap<u64, u64>; 2],
}

impl Recent {
    /// Nothing yet.
    pub fn new() -> Arc<Recent> {
        let shard = || Shard { begun: Instant::now(), keys: Default::default(), scopes: Default::default() };
        Arc::new(Recent { shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(), rescoped: Seldom::each_minute() })
    }

    /// Notes a request that is about to be executed, and counts it if it looks like a retry under another name.
    pub fn note(&self, identity: &Identity, fingerprint: &Fingerprint, metrics: &RouteMetrics) {
        let request = u64::from_be_bytes(*fingerprint.digest.first_chunk().expect("a digest has 32 bytes"));
        let shard = &self.shards[fingerprint.digest[8] as usize % SHARDS];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        shard.age();
        if seen_otherwise(&mut shard.keys, request ^ identity.scope_hash, identity.key_hash) {
            metrics.new_key_same_request.inc();
        }
        if seen_otherwise(&mut shard.scopes, request ^ identity.key_hash.rotate_left(32), identity.scope_hash) {
            metrics.same_request_new_scope.inc();
            if let Some(left_out) = self.rescoped.count(identity.id.route().to_owned()) {
                tracing::warn!(record = %identity.id, left_out, "same key and request under another scope: does a credential change?");
            }
        }
    }
}

impl Shard {
    fn age(&mut self) {
        if self.begun.elapsed() < GENERATION && self.keys[0].len().max(self.scopes[0].len()) < ENTRIES {
            return;
        }
        self.begun = Instant::now();
        for table in [&mut self.keys, &mut self.scopes] {
            table.swap(0, 1);
            table[0].clear();
        }
    }
}

/// Remembers the value, and says whether there was another one.
fn seen_otherwise(table: &mut [HashMap<u64, u64>; 2], entry: u64, value: u64) -> bool {
    let older = table[1].get(&entry).copied();
    let before = table[0].insert(entry, value).or(older);
    before.is_some_and(|before| before != value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::record::RecordId;

    fn identity(scope_hash: u64, key_hash: u64) -> Identity {
        Identity { id: RecordId::new("r".into(), [0; 16]), scope_hash, key_hash }
    }

    #[tokio::test(start_paused = true)]
    async fn counts_a_new_key_and_a_new_scope_for_some_minutes() {
        let recent = Recent::new();
        let metrics = Metrics::new().route("r");
        let print = Fingerprint { policy: [0; 4], digest: [3; 32] };
        recent.note(&identity(1, 1), &print, &metrics);
        recent.note(&identity(1, 1), &print, &metrics);
        assert_eq!((metrics.new_key_same_request.get(), metrics.same_request_new_scope.get()), (0, 0));
        recent.note(&identity(1, 2), &print, &metrics);
        assert_eq!(metrics.new_key_same_request.get(), 1);
        recent.note(&identity(9, 2), &print, &metrics);
        assert_eq!(metrics.same_request_new_scope.get(), 1);
        for _ in 0..2 {
            tokio::time::advance(GENERATION).await;
            recent.note(&identity(5, 5), &Fingerprint { digest: [4; 32], ..print }, &metrics);
            // Both digests fall into different shards; this one ages with its own next note.
            recent.note(&identity(7, 7), &print, &metrics);
        }
        let before = metrics.new_key_same_request.get();
        recent.note(&identity(1, 3), &print, &metrics);
        assert_eq!(metrics.new_key_same_request.get(), before, "forgotten after two generations");
    }
}
