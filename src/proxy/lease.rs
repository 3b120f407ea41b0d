//! The lease: an attempt's hold on its key, from "granted" to "decided".
//!
//! It keeps the claim alive at the store, says whether a send may begin, and makes the writes that end the claim. The
//! attempt's store operations go through one lock, so that they never overlap; a renewal that waits for its reply makes
//! way for the write that ends the claim.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{MutexGuard, Notify};
use tokio::time::{Instant, sleep};

use super::error::{Kind, Problem};
use super::notes::Notes;
use super::route::Route;
use crate::record::{Claim, CompleteReply, DoubtReply, Reason, ReleaseReply, RenewReply, Response};
use crate::store::{Store, StoreError};

/// An attempt's hold on its key.
pub struct Lease {
    store: Arc<dyn Store>,
    claim: Claim,
    route: Arc<Route>,
    /// When the message was *begun* that gave the present lease: by the store's clock it cannot have begun earlier.
    since: Mutex<Instant>,
    /// The largest part of the lease that was used before a renewal, in thousandths.
    worst: AtomicU64,
    /// When the first claim message was begun.
    begun: Instant,
    /// When its reply was there. By the store's clock the claim was not granted later.
    granted: Instant,
    /// Held by whichever operation of this attempt is under way.
    operation: tokio::sync::Mutex<()>,
    /// Ends a renewal that is under way.
    make_way: Notify,
    /// Set just before the first byte may leave.
    sent: AtomicBool,
    /// False if the store could not be asked, and the route forwards all the same.
    protected: bool,
    /// Of the request whose attempt it is.
    notes: Notes,
}

impl Lease {
    /// The lease of a granted claim, whose message was begun at `begun`.
    pub fn granted(store: Arc<dyn Store>, claim: Claim, route: Arc<Route>, begun: Instant) -> Lease {
        Lease {
            store,
            claim,
            route,
            since: Mutex::new(begun),
            worst: AtomicU64::new(0),
            begun,
            granted: Instant::now(),
            operation: tokio::sync::Mutex::new(()),
            make_way: Notify::new(),
            sent: AtomicBool::new(false),
            protected: true,
            notes: Notes::none(),
        }
    }

    /// No lease at all: the store could not be asked, and the route forwards without it.
    pub fn unprotected(store: Arc<dyn Store>, claim: Claim, route: Arc<Route>, begun: Instant) -> Lease {
        let mut lease = Lease::granted(store, claim, route, begun);
        lease.protected = false;
        lease
    }

    /// Has what it does from now on noted here.
    pub fn write_notes(&mut self, notes: Notes) {
        self.notes = notes;
    }

    /// The notes of the request whose attempt it is.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// The claim it is about.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Whether a claim stands behind it.
    pub fn is_protected(&self) -> bool {
        self.protected
    }

    /// When the attempt stops listening: not before the record's own `abandon_at`, so that whoever finds the record
    /// unknown for lack of an answer may resolve it at once.
    pub fn abandon_at(&self) -> Instant {
        self.granted + self.claim.abandon_after
    }

    /// Whether a byte may have left.
    pub fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    /// Notes whether a byte may have left. Only a certain "not sent" takes it back.
    pub fn set_sent(&self, sent: bool) {
        self.sent.store(sent, Ordering::Release);
    }

    /// Asked just before the first byte: whether the claim is certainly alive for long enough to begin a send.
    ///
    /// With under a third of the lease left (a pause, a slow connect) it renews first, and only "extended" will do.
    pub async fn may_send(&self) -> Result<(), Problem> {
        if !self.protected || self.age() < self.claim.lease * 2 / 3 {
            return Ok(());
        }
        // Boxed, as all that is rare: the future of each attempt would be larger by it.
        Box::pin(self.confirm()).await
    }

    async fn confirm(&self) -> Result<(), Problem> {
        let _operation = self.operation.lock().await;
        match self.renew().await {
            Ok(RenewReply::Extended) => Ok(()),
            reply => {
                tracing::warn!(record = %self.claim.id, ?reply, "claim not confirmed before sending, nothing is sent");
                Err(Problem::new(
                    Kind::StoreUnavailable,
                    "The claim on this key could not be confirmed in time; nothing was sent.",
                )
                .about(&self.claim.id))
            }
        }
    }

    /// Renews the lease every third of it, until it is dropped, or the record is no longer this attempt's to renew.
    pub async fn keep_alive(&self) -> Infallible {
        if self.protected {
            let mut due = self.since() + self.claim.lease / 3;
            let mut failed = false;
            loop {
                self.route.alarms.until(due).await;
                // Boxed: most attempts never come to it.
                match Box::pin(self.keep_on(&mut failed)).await {
                    Some(next) => due = next,
                    None => break,
                }
            }
        }
        std::future::pending().await
    }

    /// Renews the lease once, unless a write that ends the claim wants its turn, and says when to do so again.
    async fn keep_on(&self, failed: &mut bool) -> Option<Instant> {
        let _operation = self.operation.lock().await;
        let third = self.claim.lease / 3;
        let due = Instant::now() + third;
        let renewed = tokio::select! {
            biased;
            () = self.make_way.notified() => return Some(due),
            renewed = self.renew() => renewed,
        };
        match renewed {
            Ok(RenewReply::Extended | RenewReply::Rewritten) => {
                *failed = false;
                Some(due)
            }
            Ok(reply @ (RenewReply::Lapsed | RenewReply::Lost)) => {
                tracing::info!(record = %self.claim.id, ?reply, "the record is decided, no longer renewed");
                None
            }
            Err(error) => {
                // Once for each outage: there may be thousands of attempts, and each tries often.
                if !std::mem::replace(failed, true) {
                    tracing::warn!(record = %self.claim.id, %error, "lease not renewed, trying on");
                }
                Some(Instant::now() + third / 4)
            }
        }
    }

    /// The turn of a write that ends the claim. A renewal that hangs must not keep the caller from its answer; should it
    /// arrive at the store after that write, it finds the record decided and changes nothing.
    async fn turn(&self) -> MutexGuard<'_, ()> {
        self.make_way.notify_waiters();
        self.operation.lock().await
    }

    async fn renew(&self) -> Result<RenewReply, StoreError> {
        let begun = Instant::now();
        let used = self.part_used();
        let reply = self.store.renew(&self.claim).await?;
        match reply {
            RenewReply::Extended => self.renewed(begun, used),
            RenewReply::Rewritten => {
                self.renewed(begun, used);
                self.route.metrics.rewritten_claims.inc();
                tracing::warn!(record = %self.claim.id, "the store had forgotten a claim, written anew");
            }
            RenewReply::Lapsed | RenewReply::Lost => {}
        }
        Ok(reply)
    }

    /// Records the response.
    pub async fn complete(&self, response: &Response, retention: Duration) -> Result<CompleteReply, StoreError> {
        let _operation = self.turn().await;
        let began = self.notes.clock();
        let reply = self.store.complete(&self.claim, response, retention).await;
        let reply = self.noted("store complete", began, reply)?;
        match &reply {
            CompleteReply::Stored | CompleteReply::Already(_) | CompleteReply::WithoutBody { rewritten: false } => {}
            CompleteReply::Rewritten | CompleteReply::WithoutBody { rewritten: true } => {
                self.route.metrics.rewritten_claims.inc();
                tracing::warn!(record = %self.claim.id, "the store had forgotten a claim, its response is recorded");
            }
            CompleteReply::Lost => {
                self.route.metrics.lost_writes.inc();
                tracing::error!(record = %self.claim.id, "response not recorded, the record is another attempt's");
            }
        }
        Ok(reply)
    }

    /// Hands the grant back: nothing was sent, or the upstream said that it did not execute.
    pub async fn release(&self) -> Result<ReleaseReply, StoreError> {
        let _operation = self.turn().await;
        let began = self.notes.clock();
        let reply = self.store.release(&self.claim).await;
        self.noted("store release", began, reply)
    }

    /// Says that nobody can tell.
    pub async fn doubt(&self, reason: Reason, response: Option<&Response>) -> Result<DoubtReply, StoreError> {
        let _operation = self.turn().await;
        let began = self.notes.clock();
        let reply = self.store.doubt(&self.claim, reason, response).await;
        let reply = self.noted("store doubt", began, reply)?;
        match reply {
            DoubtReply::Held => 0,
            DoubtReply::Rewritten => self.route.metrics.rewritten_claims.inc(),
            DoubtReply::Lost => self.route.metrics.lost_writes.inc(),
        };
        tracing::warn!(record = %self.claim.id, token = %self.claim.token, reason = reason.as_str(), "outcome unknown");
        Ok(reply)
    }

    fn noted<T>(
        &self,
        name: &'static str,
        began: Option<Instant>,
        reply: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.notes.stored(name, began, reply.as_ref().err().map(|error| error.kind.as_str()));
        reply
    }

    fn since(&self) -> Instant {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renewed(&self, begun: Instant, used: f64) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = begun;
        self.worst.fetch_max((used * 1000.0) as u64, Ordering::Relaxed);
    }

    fn age(&self) -> Duration {
        self.since().elapsed()
    }

    fn part_used(&self) -> f64 {
        self.age().as_secs_f64() / self.claim.lease.as_secs_f64()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.protected {
            let of_lease = self.part_used().max(self.worst.load(Ordering::Relaxed) as f64 / 1000.0);
            let of_patience = self.begun.elapsed().as_secs_f64() / self.claim.abandon_after.as_secs_f64();
            self.route.metrics.lease_used.used(of_lease.max(of_patience));
        }
    }
}

/// Times at which a failed write is tried again: soon at first, then less and less often, until a moment.
#[derive(Debug)]
pub struct Retries {
    until: Instant,
    pause: Duration,
    longest: Duration,
}

impl Retries {
    /// Tries until this moment, and at least once.
    pub fn until(until: Instant) -> Retries {
        Retries { until, pause: Duration::from_millis(50), longest: Duration::from_secs(1) }
    }

    /// The same, with pauses that grow up to this.
    pub fn with_pauses_up_to(self, longest: Duration) -> Retries {
        Retries { longest, ..self }
    }

    /// Returns `true` when it is time for another try, `false` when there is no more sense in one.
    pub async fn again(&mut self) -> bool {
        if self.pause > Duration::from_millis(50) && Instant::now() >= self.until {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.longest);
        true
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("claim", &self.claim).field("sent", &self.was_sent()).finish_non_exhaustive()
    }
}
