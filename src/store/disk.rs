//! The disk store: records in a folder of this host, held by one process; the embedded default.
//!
//! Changes go through one [`writer`] thread, whose batches share one wait for the medium; what changes nothing (a
//! replay, a look, a list) is read beside it from the last committed state. A folder that another process holds is a
//! store that cannot be reached: every operation says so while the background keeps trying. One that cannot be used at all
//! is found when it is opened, and stops the start.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use super::clock::Clock;
use super::index::{Position, as_shown};
use super::report::Report;
use super::watchers::Watchers;
use super::{Answer, BackEnd, NotReady, OpenError, Page, Query, Store, StoreError, StoreErrorKind, Watch};
use crate::metrics::Metrics;
use crate::record::{
    self, Claim, ClaimReply, CompleteReply, DoubtReply, Finding, ForgetReply, Imprint, LookReply, Reason, Record,
    RecordId, ReleaseReply, RenewReply, ResolveReply, Response, Slot, Timestamp, Token,
};

mod folder;
#[cfg(test)]
mod medium;
mod reads;
mod tables;
#[cfg(test)]
mod tests;
mod writer;

use folder::Folder;
pub use folder::FolderState;
use reads::Reads;
use tables::{Counts, Fault, Found, Tables, View};
use writer::{Tell, Writer, unreadable_record};

// How often a folder that cannot be used is tried again, and how often lapsed and expired records are looked for.
const TICK: Duration = Duration::from_millis(500);
// Records that one transaction of the sweep handles; claims that arrive meanwhile share it or go in between.
const SWEEP_SLICE: usize = 128;
// Records that one transaction handles when a folder is opened.
const ORPHAN_SLICE: usize = 1024;

/// What stands at the place of a folder; makes nothing.
pub(super) fn look_at(dir: &Path) -> FolderState {
    folder::look_at(dir)
}

/// Opens the folder, or begins to try, if another process holds it.
///
/// # Errors
/// It cannot be used: something else is there, its files cannot be read, or its file system gives no right or no room to
/// write.
pub(super) fn open(dir: &Path, timeout: Duration, metrics: &Arc<Metrics>) -> Result<BackEnd, OpenError> {
    let tell = Tell { watchers: Watchers::default(), metrics: Arc::clone(metrics) };
    let disk = Disk(Arc::new(Shared { dir: dir.to_owned(), timeout, tell, phase: RwLock::new(Phase::default()) }));
    match Running::open(dir, &disk.0.tell) {
        // Only another process lets go of a folder by itself.
        Err(error) if error.kind != StoreErrorKind::Unreachable => return Err(OpenError::unusable(error.message)),
        opened => disk.0.enter(opened),
    }
    let background = keep_up(Arc::downgrade(&disk.0));
    Ok(BackEnd { store: Arc::new(disk), background: Box::pin(background) })
}

#[derive(Clone)]
struct Disk(Arc<Shared>);

struct Shared {
    dir: PathBuf,
    timeout: Duration,
    tell: Tell,
    phase: RwLock<Phase>,
}

enum Phase {
    /// Not opened yet; the kind and message are those of the last attempt.
    Closed(StoreErrorKind, String),
    Running(Arc<Running>),
}

impl Default for Phase {
    fn default() -> Phase {
        Phase::Closed(StoreErrorKind::Unreachable, "the folder is not opened yet".to_owned())
    }
}

/// An opened folder. The fields are dropped in this order: first the writer ends, last the folder is let go.
struct Running {
    writer: Writer,
    reads: Arc<Reads<View>>,
    tables: Arc<Tables>,
    clock: Clock,
    _folder: Folder,
}

impl Running {
    fn open(dir: &Path, tell: &Tell) -> Result<Running, StoreError> {
        let folder = Folder::hold(dir)?;
        let path = folder.records();
        // The library may panic on a file that was altered behind its back.
        let tables = catch_unwind(AssertUnwindSafe(|| Tables::open(&path))).unwrap_or_else(|_| {
            let message = format!("{} cannot be opened: it is damaged{}", path.display(), folder::RESTORE);
            Err(StoreError::without_effect(StoreErrorKind::Unreadable, message))
        })?;
        folder.seal().map_err(|error| folder::unusable(dir, error))?;
        Running::with(tables, folder, tell).map_err(|error| error.on_opening(&path))
    }

    fn with(tables: Tables, folder: Folder, tell: &Tell) -> Result<Running, Fault> {
        let clock = Clock::start();
        let mut counts = Counts::default();
        let mut from = None;
        loop {
            let orphaned = tables.batch(&mut counts, |batch| batch.orphan(from.as_ref(), ORPHAN_SLICE, clock.now()));
            let (next, changes) = orphaned?;
            tell.of(&changes);
            from = next;
            if from.is_none() {
                break;
            }
        }
        let tables = Arc::new(tables);
        let writer = Writer::start(Arc::clone(&tables), folder.place()?, counts, clock, tell.clone())?;
        Ok(Running { writer, reads: Arc::default(), tables, clock, _folder: folder })
    }

    /// The last committed state, `None` if the database has failed. Blocks on the medium, so not on a runtime's thread.
    fn look(&self) -> Option<View> {
        if self.writer.fault().is_some() {
            return None;
        }
        self.tables.view().inspect_err(|fault| self.writer.break_down(fault)).ok()
    }

    /// What a read says to its caller.
    fn conclude<R>(&self, result: Result<R, Fault>) -> Result<R, StoreError> {
        result.map_err(|fault| {
            self.writer.break_down(&fault);
            StoreError::without_effect(StoreErrorKind::Broken, "the database on disk failed").because(fault)
        })
    }

    /// What the caller of a read is told that was dropped.
    fn unread(&self) -> StoreError {
        let message = self.writer.fault().unwrap_or("reading the records panicked");
        StoreError::without_effect(StoreErrorKind::Broken, message)
    }
}

impl Shared {
    fn phase(&self) -> Result<Arc<Running>, (StoreErrorKind, String)> {
        // The lock is only ever held for a moment, and a phase is replaced as a whole.
        match &*self.phase.read().unwrap_or_else(PoisonError::into_inner) {
            Phase::Running(running) => Ok(Arc::clone(running)),
            Phase::Closed(kind, message) => Err((*kind, message.clone())),
        }
    }

    fn running(&self) -> Result<Arc<Running>, StoreError> {
        self.phase().map_err(|(kind, message)| StoreError::without_effect(kind, message))
    }

    /// Opens the folder if that is possible now. Blocks on the medium.
    fn try_open(&self) {
        self.enter(Running::open(&self.dir, &self.tell));
    }

    /// Uses what was opened. What has prevented it is logged once.
    fn enter(&self, opened: Result<Running, StoreError>) {
        let next = match opened {
            Ok(running) => {
                tracing::info!(store = "disk", dir = %self.dir.display(), "the folder of the records is open");
                Phase::Running(Arc::new(running))
            }
            Err(error) => Phase::Closed(error.kind, error.message),
        };
        let mut phase = self.phase.write().unwrap_or_else(PoisonError::into_inner);
        if let (Phase::Closed(_, old), Phase::Closed(_, new)) = (&*phase, &next)
            && old != new
        {
            tracing::error!(
                store = "disk",
                error = new,
                "the store cannot be opened now; waiting, and trying again and again: requests with a key get 503 until then"
            );
        }
        *phase = next;
        drop(phase);
        // Whoever waited for a change of a record that could not be seen looks again.
        self.tell.watchers.wake_all();
    }

    async fn bounded<T>(
        &self,
        may_have_run: bool,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|_| {
            let message = format!("the disk did not answer within {:?}", self.timeout);
            Err(StoreError::new(StoreErrorKind::TimedOut, may_have_run, message))
        })
    }
}

/// Keeps trying to open the folder, then sweeps, until the last handle is gone.
async fn keep_up(shared: Weak<Shared>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        match shared.running() {
            Ok(running) => sweep(&running, &shared.tell.metrics).await,
            // A panic there is reported by the panic hook, and the next tick tries again.
            Err(_) => drop(tokio::task::spawn_blocking(move || shared.try_open()).await),
        }
    }
}

async fn sweep(running: &Running, metrics: &Metrics) {
    // A failure has been logged by the writer, and stays for all that is asked afterwards.
    while let Ok((more, counts)) = running.writer.sweep(SWEEP_SLICE).await {
        metrics.set_records_open("claimed", counts.claimed);
        metrics.set_records_open("unknown", counts.unknown);
        if !more {
            return;
        }
    }
}

impl Disk {
    async fn write<R: Send + 'static>(
        &self,
        id: &RecordId,
        token: Token,
        rule: impl FnOnce(&mut Slot, Timestamp) -> R + Send + 'static,
    ) -> Result<R, StoreError> {
        let running = self.0.running()?;
        self.0.bounded(true, running.writer.apply(id.clone(), token, rule)).await
    }

    async fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&View, Timestamp) -> Result<R, Fault> + Send + 'static,
    ) -> Result<R, StoreError> {
        let running = self.0.running()?;
        let (reply, answer) = oneshot::channel();
        let by = Arc::clone(&running);
        let turn = running.reads.add(move |view: &View| {
            // The clock after the state: what was committed is never younger than what is concluded from it.
            let result = by.conclude(read(view, by.clock.now()));
            Box::new(move || drop(reply.send(result)))
        });
        if let Some(turn) = turn {
            // Each read holds the folder until it is done, and the thread does not: it may last a moment longer.
            let running = Arc::downgrade(&running);
            drop(tokio::task::spawn_blocking(move || turn.serve(|| running.upgrade()?.look())));
        }
        let result = self.0.bounded(false, async { Ok(answer.await) }).await?;
        result.unwrap_or_else(|_| Err(running.unread()))
    }

    async fn read_record<R: Send + 'static>(
        &self,
        id: &RecordId,
        read: impl FnOnce(Option<Record>, Timestamp) -> R + Send + 'static,
    ) -> Result<R, StoreError> {
        let key = id.clone();
        let found: Found<R> = self.read(move |view, now| Ok(view.get(&key)?.map(|record| read(record, now)))).await?;
        found.map_err(|unreadable| unreadable_record(id, unreadable))
    }
}

/// What a claim is answered with, if that changes nothing.
///
/// Such an answer holds for the moment of the read: nothing but the record decides it, no tombstone (those matter to a
/// grant alone), and what was committed later came later. So the writer, and the medium, need not be asked.
fn answer_without_change(record: Option<Record>, claim: &Claim, now: Timestamp) -> Option<ClaimReply> {
    let mut slot = Slot::new(record, false);
    let before = slot.record.clone();
    let reply = record::claim(&mut slot, claim, now);
    let changes = matches!(reply, ClaimReply::Granted { .. } | ClaimReply::Lost);
    (!changes && super::index::unchanged(before.as_ref(), slot.record.as_ref())).then_some(reply)
}

impl Store for Disk {
    fn for_core(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply> {
        Box::pin(async move {
            let ask = claim.clone();
            let known =
                self.read_record(&claim.id, move |record, now| answer_without_change(record, &ask, now)).await?;
            if let Some(reply) = known {
                return Ok(reply);
            }
            let ask = claim.clone();
            self.write(&claim.id, claim.token, move |slot, now| record::claim(slot, &ask, now)).await
        })
    }

    fn look<'a>(&'a self, id: &'a RecordId, asking: &'a Imprint) -> Answer<'a, LookReply> {
        let asking = asking.clone();
        // A lapse that it finds is a matter of time alone, so the sweep may be the one to write it down.
        Box::pin(self.read_record(id, move |record, now| record::look(&mut Slot::new(record, false), &asking, now)))
    }

    fn renew<'a>(&'a self, claim: &'a Claim) -> Answer<'a, RenewReply> {
        let ask = claim.clone();
        Box::pin(self.write(&claim.id, claim.token, move |slot, now| record::renew(slot, &ask, now)))
    }

    fn complete<'a>(
        &'a self,
        claim: &'a Claim,
        response: &'a Response,
        retention: Duration,
    ) -> Answer<'a, CompleteReply> {
        let (ask, response) = (claim.clone(), response.clone());
        Box::pin(
            self.write(&claim.id, claim.token, move |slot, now| record::complete(slot, &ask, response, retention, now)),
        )
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ReleaseReply> {
        let ask = claim.clone();
        Box::pin(self.write(&claim.id, claim.token, move |slot, now| record::release(slot, &ask, now)))
    }

    fn doubt<'a>(&'a self, claim: &'a Claim, reason: Reason, response: Option<&'a Response>) -> Answer<'a, DoubtReply> {
        let (ask, response) = (claim.clone(), response.cloned());
        Box::pin(self.write(&claim.id, claim.token, move |slot, now| record::doubt(slot, &ask, reason, response, now)))
    }

    fn resolve<'a>(
        &'a self,
        id: &'a RecordId,
        token: Token,
        finding: &'a Finding,
        force: bool,
    ) -> Answer<'a, ResolveReply> {
        let finding = finding.clone();
        Box::pin(self.write(id, token, move |slot, now| record::resolve(slot, token, finding, force, now)))
    }

    fn forget<'a>(&'a self, id: &'a RecordId, token: Token, force: bool) -> Answer<'a, ForgetReply> {
        Box::pin(self.write(id, token, move |slot, now| record::forget(slot, token, force, now)))
    }

    fn get<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Option<Record>> {
        Box::pin(self.read_record(id, |record, now| record.and_then(|record| as_shown(record, now))))
    }

    fn list<'a>(&'a self, query: &'a Query) -> Answer<'a, Page> {
        Box::pin(async move {
            let after = Position::of(query)?;
            let query = query.clone();
            self.read(move |view, now| view.page(&query, after, now)).await
        })
    }

    fn watch<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Box<dyn Watch>> {
        Box::pin(async move { Ok(Box::new(self.0.tell.watchers.register(id)) as Box<dyn Watch>) })
    }

    fn inspect(&self) -> Answer<'_, Report> {
        Box::pin(async {
            let running = self.0.running()?;
            let mut report = Report::default();
            report.fact("topology", format!("the folder {:?} of this host, held by this process", self.0.dir));
            report.fact("persistence", "an fsync before each claim is granted, and for each completion");
            if let Some(fault) = running.writer.fault() {
                report.breaks(fault);
            }
            Ok(report)
        })
    }

    fn ready(&self) -> Result<(), NotReady> {
        let running = self.0.phase().map_err(|(_, message)| NotReady::ForNow(message))?;
        running.writer.fault().map_or(Ok(()), |fault| Err(NotReady::UntilRestart(fault.to_owned())))
    }
}
