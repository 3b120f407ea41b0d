//! The writer: one thread that owns all changes, and lets many callers share one wait for the medium.
//!
//! While one batch is on its way to the medium, the next ones gather in the channel; all of them go into the next
//! transaction. Nobody is answered before that transaction is committed, and after a commit that failed nobody is
//! answered with anything but a failure, ever: what the medium holds then is known only after a restart. The same goes for
//! a folder that was taken away: the sweep, twice a second, is a batch too, so that an idle store notices.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::super::clock::Clock;
use super::super::watchers::Watchers;
use super::super::{StoreError, StoreErrorKind};
use super::folder::Place;
use super::tables::{Batch, Change, Counts, Fault, Tables};
use crate::metrics::Metrics;
use crate::record::{RecordId, Slot, Timestamp, Token};

// Operations of one transaction, at most: bounds what a commit has to write and what its callers wait for.
const BATCH: usize = 256;

type Job = Box<dyn FnOnce(&mut Batch<'_>) -> Result<Settle, Fault> + Send>;
// Answers the caller. It is dropped uncalled when the commit failed, and the caller's receiver says so.
type Settle = Box<dyn FnOnce() + Send>;

/// The writer's thread, from the side of its callers. Dropping it ends the thread after what is under way.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    clock: Clock,
    fault: Arc<OnceLock<String>>,
}

/// What the writer tells others of what it did.
#[derive(Clone)]
pub(super) struct Tell {
    pub(super) watchers: Watchers,
    pub(super) metrics: Arc<Metrics>,
}

impl Tell {
    /// Wakes whoever waits for these records, and counts the claims among them that lapsed.
    pub(super) fn of(&self, changes: &[Change]) {
        for change in changes {
            if change.lapsed {
                self.metrics.stale_claim(change.id.route());
            }
            self.watchers.wake(&change.id);
        }
    }
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(
        tables: Arc<Tables>,
        place: Place,
        counts: Counts,
        clock: Clock,
        tell: Tell,
    ) -> std::io::Result<Writer> {
        let (jobs, queue) = channel();
        let fault = Arc::new(OnceLock::new());
        let thread_fault = Arc::clone(&fault);
        let thread = std::thread::Builder::new().name("onceproxy-disk".to_owned()).spawn(move || {
            let run = AssertUnwindSafe(|| serve(&queue, &tables, &place, counts, &tell, &thread_fault));
            if catch_unwind(run).is_err() {
                break_down(&thread_fault, "the database on disk failed: its thread panicked");
            }
            // Whoever is still in the queue is told by the end of its channel; those who wait for a change look again.
            drop(queue);
            tell.watchers.wake_all();
        })?;
        Ok(Writer { jobs: Some(jobs), thread: Some(thread), clock, fault })
    }

    /// Applies a rule, and answers when its outcome is on the medium.
    pub(super) fn apply<R: Send + 'static>(
        &self,
        id: RecordId,
        token: Token,
        rule: impl FnOnce(&mut Slot, Timestamp) -> R + Send + 'static,
    ) -> impl Future<Output = Result<R, StoreError>> + Send {
        let clock = self.clock;
        let name = id.clone();
        // The time is taken when the rule is applied: the order of the writer is the order of time.
        let answer = self.submit(move |batch| batch.apply(&id, token, clock.now(), rule));
        async move { answer.await?.map_err(|unreadable| unreadable_record(&name, unreadable)) }
    }

    /// Sweeps a slice of at most `limit` records. Says whether there may be more, and how many are open.
    pub(super) fn sweep(&self, limit: usize) -> impl Future<Output = Result<(bool, Counts), StoreError>> + Send {
        let clock = self.clock;
        self.submit(move |batch| Ok((batch.sweep(clock.now(), limit)?, batch.counts())))
    }

    /// Why nothing is done any more, if so.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// Stops all work, because a read has found the database failing.
    pub(super) fn break_down(&self, fault: &Fault) {
        break_down(&self.fault, &fault.to_string());
    }

    fn submit<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Batch<'_>) -> Result<R, Fault> + Send + 'static,
    ) -> impl Future<Output = Result<R, StoreError>> + Send {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |batch| {
            if reply.is_closed() {
                // Its caller gave up before it began: as if it had never arrived.
                return Ok(Box::new(|| {}));
            }
            let result = work(batch)?;
            Ok(Box::new(move || drop(reply.send(result))))
        });
        let refused = match (&self.jobs, self.fault()) {
            (Some(jobs), None) => jobs.send(job).is_err(),
            _ => true,
        };
        let fault = Arc::clone(&self.fault);
        async move {
            if refused {
                return Err(broken(&fault, false));
            }
            answer.await.map_err(|_| broken(&fault, true))
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Ends the queue. Then waits for the commit under way, so that the folder is free when this returns.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    queue: &Receiver<Job>,
    tables: &Tables,
    place: &Place,
    mut counts: Counts,
    tell: &Tell,
    fault: &OnceLock<String>,
) {
    while let Ok(first) = queue.recv() {
        let jobs = std::iter::once(first).chain(queue.try_iter()).take(BATCH);
        let mut settles: Vec<Settle> = Vec::new();
        let committed = tables.batch(&mut counts, |batch| {
            for job in jobs {
                settles.push(job(batch)?);
            }
            Ok(())
        });
        // Behind the commit: what it wrote counts only if whoever opens the folder finds it.
        let kept = committed.map_err(|error| error.to_string()).and_then(|done| place.check().map(|()| done));
        match kept {
            Ok(((), changes)) => tell.of(&changes),
            // Before the callers are let go: none of them is to get another operation in.
            Err(error) => return break_down(fault, &error),
        }
        settles.into_iter().for_each(|settle| settle());
    }
}

fn break_down(fault: &OnceLock<String>, message: &str) {
    if fault.set(message.to_owned()).is_ok() {
        tracing::error!(store = "disk", error = message, "the store has failed; requests are refused until a restart");
    }
}

/// What every caller is told after the database failed.
pub(super) fn broken(fault: &OnceLock<String>, may_have_run: bool) -> StoreError {
    let message = fault.get().cloned().unwrap_or_else(|| "the database on disk failed".to_owned());
    StoreError::new(StoreErrorKind::Broken, may_have_run, message + "; restart onceproxy to open it again")
}

/// What the callers of one record are told when it cannot be read.
pub(super) fn unreadable_record(id: &RecordId, unreadable: super::super::codec::Unreadable) -> StoreError {
    StoreError::without_effect(StoreErrorKind::Unreadable, format!("record {id}: {unreadable}")).because(unreadable)
}
