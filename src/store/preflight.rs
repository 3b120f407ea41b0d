//! What only use can show: whether every operation is permitted and works, how long the store takes, and what time it has.
//!
//! A store's settings may look right while its user lacks one command, its scripts are switched off or its disk is full.
//! So a record of its own, under a key that no caller can have, is taken once through its whole life. It runs before the
//! process is ready, after the store was away, and in `onceproxy store check`.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use tokio::time::sleep;
use tracing::{info, warn};

use super::report::Report;
use super::{Answer, Query, Store, StoreError};
use crate::record::{
    Claim, ClaimReply, CompleteReply, DoubtReply, Finding, Fingerprint, ForgetReply, LookReply, OnUnknown, Reason,
    RecordId, ReleaseReply, RenewReply, ResolveReply, Response, Taken, Timestamp, Token,
};

/// The route of the probe's records. No route of the settings can have this name: theirs are in lower case.
const ROUTE: &str = "PREFLIGHT";
/// Lease and retention of the probe's records: what a crash leaves of them is gone soon.
const LIFE: Duration = Duration::from_secs(5);
/// How many looks the latency is taken from.
const LOOKS: usize = 15;
/// A store's clock that is this far from the process's is told to the operator: leases do not mind, people do.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);
/// What the clocks' milliseconds cannot tell.
const CLOCK_GRAIN: Duration = Duration::from_millis(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// How soon a store is tried again that could not be used, or refused something.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// How long one that works is left alone, whatever it refuses.
const BETWEEN_TRIES: Duration = Duration::from_secs(2);

/// What the last probe of a store came to. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Standing(Arc<ArcSwapOption<Result<(), String>>>);

impl Standing {
    /// A standing for a store that needs no probe.
    pub fn passed() -> Standing {
        let standing = Standing::default();
        standing.set(Ok(()));
        standing
    }

    /// Whether the store passed, or why it may not be relied on.
    pub fn ready(&self) -> Result<(), String> {
        match self.0.load().as_deref() {
            Some(verdict) => verdict.clone(),
            None => Err("it was not tried yet".to_owned()),
        }
    }

    fn set(&self, verdict: Result<(), String>) {
        self.0.store(Some(Arc::new(verdict)));
    }
}

/// Probes the store when it can first be reached, again when it was away, and when it refused an operation: it may be
/// full, and still answer. Says in the log what it found.
pub async fn watch(store: Arc<dyn Store>, standing: Standing) {
    let mut told = None;
    loop {
        while store.ready().is_err() {
            sleep(BETWEEN_LOOKS).await;
        }
        let probed = probe(&*store).await;
        // What the probe was refused itself counts as well, and was seen.
        let refusals = store.refusals();
        match probed {
            Ok(report) => {
                let broken = report.broken();
                match &broken {
                    None => info!(found = %report, "the store was tried, and works"),
                    Some(reason) if told.as_ref() == Some(reason) => {}
                    Some(reason) => warn!(reason, "the store was tried, and cannot be used"),
                }
                told.clone_from(&broken);
                standing.set(broken.map_or(Ok(()), Err));
                if told.is_some() {
                    sleep(AFTER_FAILURE).await;
                    continue;
                }
                sleep(BETWEEN_TRIES).await;
            }
            // It went away in the middle; what it is worth is not known.
            Err(error) => {
                warn!(%error, "the store could not be tried");
                sleep(BETWEEN_LOOKS).await;
                continue;
            }
        }
        while store.ready().is_ok() && store.refusals() == refusals {
            sleep(AFTER_FAILURE).await;
        }
    }
}

/// Takes a record of its own through its life.
///
/// # Errors
/// If the store could not be reached. What it refuses is a remark in the report.
pub async fn probe(store: &dyn Store) -> Result<Report, StoreError> {
    let mut probe = Probe { store, report: Report::default(), refusals: Vec::new() };
    probe.latency().await?;
    probe.completed().await?;
    probe.doubted().await?;
    probe.listed().await?;
    Ok(probe.finish())
}

struct Probe<'a> {
    store: &'a dyn Store,
    report: Report,
    refusals: Vec<String>,
}

impl Probe<'_> {
    /// Waits for an operation. `None` if the store refused it, which is noted.
    async fn ask<T>(&mut self, operation: &'static str, answer: Answer<'_, T>) -> Result<Option<T>, StoreError> {
        match answer.await {
            Ok(reply) => Ok(Some(reply)),
            Err(error) if error.is_away() => Err(error),
            Err(error) => {
                self.refusals.push(format!("{operation} ({})", error.message));
                Ok(None)
            }
        }
    }

    /// Does one step. Says whether it was answered as it must be; what else was answered is noted.
    async fn step<T: Debug>(
        &mut self,
        operation: &'static str,
        answer: Answer<'_, T>,
        is_right: impl FnOnce(&T) -> bool,
    ) -> Result<bool, StoreError> {
        let reply = self.ask(operation, answer).await?;
        let right = reply.as_ref().is_some_and(is_right);
        if let Some(reply) = reply.filter(|_| !right) {
            self.refusals.push(format!("{operation} (answered with {reply:?})"));
        }
        Ok(right)
    }

    async fn claimed(&mut self, claim: &Claim) -> Result<bool, StoreError> {
        let granted = |reply: &_| matches!(reply, ClaimReply::Granted { .. });
        self.step("claim", self.store.claim(claim), granted).await
    }

    /// Gives back what was claimed, where a later step failed.
    async fn released(&mut self, claim: &Claim) -> Result<(), StoreError> {
        self.step("release", self.store.release(claim), |reply| *reply == ReleaseReply::Absent).await.map(drop)
    }

    async fn latency(&mut self) -> Result<(), StoreError> {
        let claim = claim();
        let mut took = Vec::with_capacity(LOOKS);
        for _ in 0..LOOKS {
            let start = Instant::now();
            let look = self.store.look(&claim.id, &claim.imprint);
            if !self.step("look", look, |reply| *reply == LookReply::Absent).await? {
                return Ok(());
            }
            took.push(start.elapsed());
        }
        took.sort_unstable();
        let (median, worst) = (took[LOOKS / 2], took[LOOKS - 1]);
        self.report.fact("latency", format!("{}, and {} at worst in {LOOKS} looks", millis(median), millis(worst)));
        Ok(())
    }

    /// claim, renew, get, complete, look, forget.
    async fn completed(&mut self) -> Result<(), StoreError> {
        let claim = claim();
        let (start, from) = (Instant::now(), wall_clock());
        if !self.claimed(&claim).await? {
            return Ok(());
        }
        self.report.fact("claim", format!("took {}", millis(start.elapsed())));
        self.step("renew", self.store.renew(&claim), |reply| *reply == RenewReply::Extended).await?;
        self.clock(&claim, from).await?;
        let response = Response::new(200, std::iter::empty(), std::iter::empty(), Some(Bytes::from_static(b"{}")));
        let complete = self.store.complete(&claim, &response, LIFE);
        if !self.step("complete", complete, |reply| *reply == CompleteReply::Stored).await? {
            return self.released(&claim).await;
        }
        let replayed =
            |reply: &_| matches!(reply, LookReply::Taken(Taken::Completed(replay)) if replay.response == response);
        self.step("look", self.store.look(&claim.id, &claim.imprint), replayed).await?;
        let forget = self.store.forget(&claim.id, claim.token, false);
        self.step("forget", forget, |reply| *reply == ForgetReply::Forgotten).await.map(drop)
    }

    /// claim, doubt, resolve; and claim, release.
    async fn doubted(&mut self) -> Result<(), StoreError> {
        let doubted = claim();
        if self.claimed(&doubted).await? {
            let doubt = self.store.doubt(&doubted, Reason::Reset, None);
            if self.step("doubt", doubt, |reply| *reply == DoubtReply::Held).await? {
                let resolve = self.store.resolve(&doubted.id, doubted.token, &Finding::NotExecuted, true);
                self.step("resolve", resolve, |reply| *reply == ResolveReply::Resolved).await?;
            } else {
                self.released(&doubted).await?;
            }
        }
        let released = claim();
        if self.claimed(&released).await? {
            self.released(&released).await?;
        }
        Ok(())
    }

    async fn listed(&mut self) -> Result<(), StoreError> {
        let query = Query { route: Some(ROUTE.to_owned()), limit: 1, ..Query::default() };
        self.ask("list", self.store.list(&query)).await.map(drop)
    }

    /// What time the store has, by what it wrote into the record: a moment between `from` and now, were the clocks one.
    async fn clock(&mut self, claim: &Claim, from: Timestamp) -> Result<(), StoreError> {
        let to = wall_clock();
        let Some(Some(record)) = self.ask("get", self.store.get(&claim.id)).await? else { return Ok(()) };
        let (ahead, behind) = (record.claimed_at.since(to), from.since(record.claimed_at));
        let (apart, direction) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
        if apart < CLOCK_GRAIN {
            self.report.fact("clock", "the same as this machine's");
            return Ok(());
        }
        let apart = format!("{:.2} s {direction}", apart.as_secs_f64());
        self.report.fact("clock", format!("{apart} this machine's"));
        if ahead.max(behind) > CLOCK_TOLERANCE {
            self.report.weakens(format!(
                "the store's clock is {apart} this machine's: leases go by the store's clock alone and are safe, but the \
                 times of records do not match those of logs; let both follow one time server"
            ));
        }
        Ok(())
    }

    fn finish(mut self) -> Report {
        self.refusals.dedup();
        match self.refusals.is_empty() {
            true => {
                self.report.fact("operations", "each was run and permitted");
                self.report.fact("rights", "all that are needed");
            }
            false => {
                let refusals = self.refusals.join(", ");
                let operations = self.refusals.iter().filter_map(|refusal| refusal.split(" (").next());
                self.report.fact("rights", format!("not enough for {}", operations.collect::<Vec<_>>().join(", ")));
                self.report.fact("operations", "some are refused");
                self.report.breaks(format!(
                    "not every operation works; compare the rights of the store's user with those in docs/stores.md: {refusals}"
                ));
            }
        }
        self.report
    }
}

fn wall_clock() -> Timestamp {
    Timestamp(0) + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A claim of a record that no caller can have; what becomes of it hurts nobody.
pub(super) fn claim() -> Claim {
    let token = Token::new();
    Claim {
        id: RecordId::new(ROUTE.into(), *Token::new().as_bytes()),
        token,
        imprint: Fingerprint { policy: [0; 4], digest: [0; 32] }.into(),
        quoted: false,
        lease: LIFE,
        abandon_after: LIFE,
        on_unknown: OnUnknown::Hold,
        // A probe that is cut off in the middle sends nothing, so what it leaves may go.
        unknown_retention: Some(LIFE),
    }
}

fn millis(span: Duration) -> String {
    let millis = span.as_secs_f64() * 1000.0;
    if millis < 10.0 { format!("{millis:.2} ms") } else { format!("{millis:.0} ms") }
}
