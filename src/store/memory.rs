//! The memory store: records in this process, gone with it.
//!
//! For tests and throw-away use. It applies the pure rules under a lock per shard; no operation ever waits, and its
//! clock is tokio's, so that tests can pause it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::clock::Clock;
use super::index::Position;
use super::report::Report;
use super::watchers::Watchers;
use super::{Answer, BackEnd, NotReady, Page, Query, Store, StoreError, Watch};
use crate::metrics::Metrics;
use crate::record::{
    self, Claim, ClaimReply, CompleteReply, DoubtReply, Finding, ForgetReply, Imprint, LookReply, Reason, Record,
    RecordId, ReleaseReply, RenewReply, ResolveReply, Response, Slot, Timestamp, Token,
};

mod shard;

use shard::Shard;

// Enough that the few cores of a sidecar rarely meet on a lock.
const SHARDS: usize = 16;
// How soon a claim that nobody renews any more shows in the metrics.
const SWEEP_EVERY: Duration = Duration::from_millis(500);
// Records that a sweep handles under one hold of a lock: some tens of microseconds.
const SWEEP_SLICE: usize = 128;

/// Opens an empty store. That nothing in it survives is among the warnings of the settings.
pub(super) fn open(metrics: &Arc<Metrics>) -> BackEnd {
    let shared = Shared {
        clock: Clock::start(),
        shards: Default::default(),
        watchers: Watchers::default(),
        metrics: Arc::clone(metrics),
    };
    let memory = Memory(Arc::new(shared));
    BackEnd { store: memory.for_core(), background: Box::pin(sweep_forever(memory)) }
}

#[derive(Clone)]
struct Memory(Arc<Shared>);

struct Shared {
    clock: Clock,
    shards: [Mutex<Shard>; SHARDS],
    watchers: Watchers,
    metrics: Arc<Metrics>,
}

impl Shared {
    fn shard(&self, id: &RecordId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(id.hash()[0]) % SHARDS])
    }

    /// Applies a rule to a record, and wakes its watchers if it changed.
    fn apply<R>(&self, id: &RecordId, token: Option<Token>, rule: impl FnOnce(&mut Slot, Timestamp) -> R) -> R {
        let mut shard = self.shard(id);
        // Taken under the lock, so that time never runs backwards for a record.
        let now = self.clock.now();
        let applied = shard.apply(id, token, now, |slot| rule(slot, now));
        drop(shard);
        if applied.lapsed {
            self.metrics.stale_claim(id.route());
        }
        if applied.changed {
            self.watchers.wake(id);
        }
        applied.reply
    }

    fn page(&self, query: &Query) -> Result<Page, StoreError> {
        let after = Position::of(query)?;
        let now = self.clock.now();
        let mut found = Vec::new();
        for shard in &self.shards {
            lock(shard).open_after(after.as_ref(), query, now, &mut found);
        }
        found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let is_last = found.len() <= query.limit;
        found.truncate(query.limit);
        let cursor = found.last().filter(|_| !is_last).map(|(position, _)| position.to_string());
        Ok(Page { records: found.into_iter().map(|(position, record)| (position.id, record)).collect(), cursor })
    }

    async fn sweep(&self) {
        let (mut claimed, mut unknown) = (0, 0);
        for shard in &self.shards {
            loop {
                let (swept, counts) = {
                    let mut shard = lock(shard);
                    (shard.sweep(self.clock.now(), SWEEP_SLICE), shard.open_counts())
                };
                for id in &swept.lapsed {
                    self.metrics.stale_claim(id.route());
                    self.watchers.wake(id);
                }
                if !swept.more {
                    claimed += counts.0;
                    unknown += counts.1;
                    break;
                }
                // It may be a million, on the thread that accepts connections and answers probes.
                tokio::task::yield_now().await;
            }
        }
        self.metrics.set_records_open("claimed", claimed);
        self.metrics.set_records_open("unknown", unknown);
    }
}

// A rule is pure, and what it did is written back after it returned: a panic leaves no shard half changed.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn sweep_forever(memory: Memory) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        memory.0.sweep().await;
    }
}

impl Store for Memory {
    fn for_core(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply> {
        let rule = |slot: &mut Slot, now| record::claim(slot, claim, now);
        Box::pin(async move { Ok(self.0.apply(&claim.id, Some(claim.token), rule)) })
    }

    fn look<'a>(&'a self, id: &'a RecordId, asking: &'a Imprint) -> Answer<'a, LookReply> {
        let rule = |slot: &mut Slot, now| record::look(slot, asking, now);
        Box::pin(async move { Ok(self.0.apply(id, None, rule)) })
    }

    fn renew<'a>(&'a self, claim: &'a Claim) -> Answer<'a, RenewReply> {
        let rule = |slot: &mut Slot, now| record::renew(slot, claim, now);
        Box::pin(async move { Ok(self.0.apply(&claim.id, Some(claim.token), rule)) })
    }

    fn complete<'a>(
        &'a self,
        claim: &'a Claim,
        response: &'a Response,
        retention: Duration,
    ) -> Answer<'a, CompleteReply> {
        let rule = move |slot: &mut Slot, now| record::complete(slot, claim, response.clone(), retention, now);
        Box::pin(async move { Ok(self.0.apply(&claim.id, Some(claim.token), rule)) })
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ReleaseReply> {
        let rule = |slot: &mut Slot, now| record::release(slot, claim, now);
        Box::pin(async move { Ok(self.0.apply(&claim.id, Some(claim.token), rule)) })
    }

    fn doubt<'a>(&'a self, claim: &'a Claim, reason: Reason, response: Option<&'a Response>) -> Answer<'a, DoubtReply> {
        let rule = move |slot: &mut Slot, now| record::doubt(slot, claim, reason, response.cloned(), now);
        Box::pin(async move { Ok(self.0.apply(&claim.id, Some(claim.token), rule)) })
    }

    fn resolve<'a>(
        &'a self,
        id: &'a RecordId,
        token: Token,
        finding: &'a Finding,
        force: bool,
    ) -> Answer<'a, ResolveReply> {
        let rule = move |slot: &mut Slot, now| record::resolve(slot, token, finding.clone(), force, now);
        Box::pin(async move { Ok(self.0.apply(id, Some(token), rule)) })
    }

    fn forget<'a>(&'a self, id: &'a RecordId, token: Token, force: bool) -> Answer<'a, ForgetReply> {
        let rule = move |slot: &mut Slot, now| record::forget(slot, token, force, now);
        Box::pin(async move { Ok(self.0.apply(id, Some(token), rule)) })
    }

    fn get<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Option<Record>> {
        Box::pin(async move { Ok(self.0.shard(id).get(id, self.0.clock.now())) })
    }

    fn list<'a>(&'a self, query: &'a Query) -> Answer<'a, Page> {
        Box::pin(async move { self.0.page(query) })
    }

    fn watch<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Box<dyn Watch>> {
        Box::pin(async move { Ok(Box::new(self.0.watchers.register(id)) as Box<dyn Watch>) })
    }

    fn inspect(&self) -> Answer<'_, Report> {
        let mut report = Report::default();
        report.fact("topology", "this process's memory");
        report.fact("persistence", "none");
        report
            .weakens("every end of the process forgets all records, and their keys run again: use it for tests alone");
        Box::pin(async { Ok(report) })
    }

    fn ready(&self) -> Result<(), NotReady> {
        Ok(())
    }
}
