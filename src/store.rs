//! The store's contract: what every back-end promises, in terms of claims and records.
//!
//! **Atomic.** Each operation is one step for all processes that share the store. What it does is defined by the rule
//! of the same name in [`crate::record`]; a back-end adds nothing to it.
//!
//! **Clock.** Leases and retention are measured by the store's clock alone, never by the caller's.
//!
//! **Lost replies.** An error does not say that nothing happened ([`StoreError::may_have_run`]). Every operation may be
//! repeated with the same token and then answers as the first time did or would have; a back-end repeats it itself
//! within `store.timeout`.
//!
//! **Order.** The operations of one attempt (one token) never overlap; the caller sees to that.
//!
//! **Expiry.** Reading an expired record finds it absent, whether or not memory was freed. Open records never expire
//! except by `unknown_retention`. A back-end's sweep turns lapsed claims into unknown and keeps the gauge
//! `onceproxy_records_open`.
//!
//! **Cancellation.** Dropping a returned future does not undo the operation; it may still happen.

use std::sync::Arc;
use std::time::Duration;

use self::kept::Renewals;
use self::measured::Measured;
use self::report::Report;
use self::ways::Ways;
use crate::config::store::{Backend, StoreConfig};
use crate::metrics::Metrics;
use crate::record::{
    Claim, ClaimReply, CompleteReply, DoubtReply, Finding, ForgetReply, Imprint, LookReply, Reason, Record, RecordId,
    ReleaseReply, RenewReply, ResolveReply, Response, Token,
};

pub mod codec;
pub mod kept;
pub mod marker;
pub mod preflight;
pub mod report;
pub mod ways;

mod clock;
mod disk;
mod index;
mod link;
mod measured;
mod memory;
mod postgres;
mod redis;
mod second_line;
mod watchers;

pub use disk::FolderState;

/// An opened store: a handle, those of the cores, and the work it needs done beside the requests.
pub struct Opened {
    /// The first handle.
    pub store: Arc<dyn Store>,
    /// The sweep, the subscription and the attempts to reach the store. It runs, on any runtime, until it is dropped.
    pub background: Background,
    /// The handles of the cores.
    pub cores: Cores,
    /// The files of its settings.
    pub renewals: Renewals,
}

/// Work that goes on until it is dropped.
pub type Background = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// A back-end, as it opens itself.
struct BackEnd {
    store: Arc<dyn Store>,
    background: Background,
}

/// Gives each core its handle, and knows how they fare.
pub struct Cores {
    measured: Arc<Measured>,
    ways: Ways,
    every: Option<Duration>,
}

impl Cores {
    /// A handle for a further core, and what its loop has to run for as long as the handle is used.
    pub fn handle(&self) -> (Arc<dyn Store>, Background) {
        let way = self.ways.add(self.every.is_some());
        let (guarded, bare) = self.measured.guarded_by(&way);
        let every = self.every;
        (guarded, Box::pin(async move { match ways::keep(way, bare, every).await {} }))
    }

    /// Whether they can record what they execute.
    pub fn ways(&self) -> &Ways {
        &self.ways
    }
}

/// Settings with which a store can never be opened: a certificate file that is not there, say; or a folder that cannot be
/// used as it is.
///
/// A store that cannot be *reached* is not an error here: it is not [ready](Store::ready), and goes on trying.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct OpenError {
    message: String,
    /// Whether it is the place that is wrong, and not what the settings say of it.
    unusable: bool,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl OpenError {
    /// An error that says what is wrong and what would be right.
    pub fn new(message: impl Into<String>) -> OpenError {
        OpenError { message: message.into(), unusable: false, source: None }
    }

    /// An error that says why the place itself cannot be used.
    pub fn unusable(message: impl Into<String>) -> OpenError {
        OpenError { unusable: true, ..OpenError::new(message) }
    }

    /// Whether other settings are needed, and not another state of the place.
    pub fn is_wrong_settings(&self) -> bool {
        !self.unusable
    }

    /// The same error with what caused it.
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> OpenError {
        self.source = Some(source.into());
        self
    }
}

/// Opens the back-end that the settings name, and says loudly when records will not survive a restart.
pub fn open(config: &StoreConfig, metrics: &Arc<Metrics>) -> Result<Opened, OpenError> {
    let renewals = Renewals::default();
    let opened = match &config.backend {
        Backend::Memory => memory::open(metrics),
        Backend::Disk { dir } => disk::open(dir, config.timeout, metrics)?,
        Backend::Redis(_) => redis::open(config, metrics, &renewals)?,
        Backend::Postgres(server) => {
            postgres::open(server, &config.prefix, config.timeout, metrics, "store", &renewals)?
        }
    };
    let opened = match &config.second_line {
        None => opened,
        Some(second) => {
            // The gauge and the counters are the first line's: what both see must not be counted twice.
            let apart = Metrics::new();
            let (server, prefix) = (&second.postgres, &config.prefix);
            second_line::behind(
                opened,
                postgres::open(server, prefix, second.timeout, &apart, "second_line", &renewals)?,
            )
        }
    };
    let measured = Arc::new(Measured::new(opened.store, metrics));
    let cores = Cores { measured: Arc::clone(&measured), ways: Ways::new(config.timeout), every: tried_every(config) };
    Ok(Opened { store: measured, background: opened.background, cores, renewals })
}

/// How often a core's way to the store is tried while nothing else shows that it works. In this process there is nothing
/// between a core and its store; on Postgres each try is written to a disk.
fn tried_every(config: &StoreConfig) -> Option<Duration> {
    match &config.backend {
        Backend::Memory | Backend::Disk { .. } => None,
        Backend::Redis(_) if config.second_line.is_none() => Some(Duration::from_secs(10)),
        Backend::Redis(_) | Backend::Postgres(_) => Some(Duration::from_secs(15)),
    }
}

/// What stands at the place of a disk store's folder. Makes nothing, while [`open`] makes the folder.
pub fn look_at_folder(dir: &std::path::Path) -> FolderState {
    disk::look_at(dir)
}

/// Reads the files that the settings of the store and of its second line name, as [`open`] would; connects to nothing and
/// makes nothing. Says what is wrong with them, and what else an opening would refuse.
pub fn check_files(config: &StoreConfig) -> Vec<OpenError> {
    let (metrics, none) = (Metrics::new(), Renewals::default());
    // Connections are opened by whoever asks the store, and nobody does. A folder has no files to check.
    let first = match &config.backend {
        Backend::Memory | Backend::Disk { .. } => None,
        Backend::Redis(_) => redis::open(config, &metrics, &none).err(),
        Backend::Postgres(server) => {
            postgres::open(server, &config.prefix, config.timeout, &metrics, "store", &none).err()
        }
    };
    let second = config.second_line.as_ref().and_then(|second| {
        postgres::open(&second.postgres, &config.prefix, second.timeout, &metrics, "second_line", &none).err()
    });
    first.into_iter().chain(second).collect()
}

/// Why a store could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The settings can never work, or the store needs no preparation.
    #[error(transparent)]
    Settings(OpenError),
    /// What is there cannot be changed to what is needed.
    #[error("{0}")]
    Schema(String),
    /// The server did not do it.
    #[error("{0}")]
    Failed(String),
}

/// Prepares what the store needs once, and the second line's if there is one; may be repeated. Says what was done.
pub async fn init(config: &StoreConfig) -> Result<Vec<String>, InitError> {
    let mut said = Vec::new();
    if let Backend::Postgres(server) = &config.backend {
        said.extend(postgres::init(server, &config.prefix, "store").await?);
    }
    if let Some(second) = &config.second_line {
        said.extend(postgres::init(&second.postgres, &config.prefix, "second_line").await?);
    }
    if said.is_empty() {
        said.push("this store needs no preparation".to_owned());
    }
    Ok(said)
}

/// The answer of a store operation, some time.
pub type Answer<'a, T> = std::pin::Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// One handle on a store. Handles are cheap to share within a core; each core takes its own by [`Store::for_core`].
pub trait Store: Send + Sync {
    /// A handle for another core, so that connections are not shared between cores. Opened on first use.
    fn for_core(&self) -> Arc<dyn Store>;

    /// See [`crate::record::claim`].
    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply>;

    /// See [`crate::record::look`]. Changes nothing but a lapsed claim.
    fn look<'a>(&'a self, id: &'a RecordId, asking: &'a Imprint) -> Answer<'a, LookReply>;

    /// See [`crate::record::renew`].
    fn renew<'a>(&'a self, claim: &'a Claim) -> Answer<'a, RenewReply>;

    /// See [`crate::record::complete`]. A store too full for the body records the response without it, and says so.
    fn complete<'a>(
        &'a self,
        claim: &'a Claim,
        response: &'a Response,
        retention: Duration,
    ) -> Answer<'a, CompleteReply>;

    /// See [`crate::record::release`].
    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ReleaseReply>;

    /// See [`crate::record::doubt`].
    fn doubt<'a>(&'a self, claim: &'a Claim, reason: Reason, response: Option<&'a Response>) -> Answer<'a, DoubtReply>;

    /// See [`crate::record::resolve`].
    fn resolve<'a>(
        &'a self,
        id: &'a RecordId,
        token: Token,
        finding: &'a Finding,
        force: bool,
    ) -> Answer<'a, ResolveReply>;

    /// See [`crate::record::forget`].
    fn forget<'a>(&'a self, id: &'a RecordId, token: Token, force: bool) -> Answer<'a, ForgetReply>;

    /// The record as an operator sees it: a lapsed claim is shown as unknown.
    fn get<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Option<Record>>;

    /// Open records (claimed, unknown) from an index, never by scanning everything; oldest first within the index.
    /// A cursor that no page ended with is a [`BadQuery`](StoreErrorKind::BadQuery).
    fn list<'a>(&'a self, query: &'a Query) -> Answer<'a, Page>;

    /// Begins to watch a record, before the look that decides to wait.
    fn watch<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Box<dyn Watch>>;

    /// What the store says of itself now: how it is set up, and what that means for the promise. Readiness goes by the
    /// same remarks.
    fn inspect(&self) -> Answer<'_, Report>;

    /// Whether the store can keep the promise at this moment, as last seen; never waits.
    fn ready(&self) -> Result<(), NotReady>;

    /// How many operations were refused so far by a store that is there, where that is counted. After one of them the
    /// store is tried ([`preflight`]): it may be full, or its user may have lost a right.
    fn refusals(&self) -> u64 {
        0
    }
}

/// One watcher of one record.
pub trait Watch: Send {
    /// Returns when the record may have changed since this was made or last returned. The caller bounds the wait: a
    /// store also wakes its watchers from time to time, in case a message was lost.
    fn changed(&mut self) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Why a store cannot be relied on now, in words for the probes and for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// It may pass by itself: the store is away, or set so that it forgets claims.
    #[error("{0}")]
    ForNow(String),
    /// It will not pass while this process runs, but a new one may open the store again.
    #[error("{0}")]
    UntilRestart(String),
}

/// Which open records an operator wants.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only claimed or only unknown ones.
    pub state: Option<OpenState>,
    /// Only those of the route with this name.
    pub route: Option<String>,
    /// At most this many; the store may return fewer together with a cursor.
    pub limit: usize,
    /// Where the last page ended.
    pub cursor: Option<String>,
}

/// The states of open records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenState {
    /// Owned by an attempt.
    Claimed,
    /// Held, because nobody can tell.
    Unknown,
}

/// One page of open records.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The records, with their ids.
    pub records: Vec<(RecordId, Record)>,
    /// Where to go on, `None` at the end.
    pub cursor: Option<String>,
}

/// How a store operation failed.
#[derive(Debug, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct StoreError {
    /// What kind of failure it was.
    pub kind: StoreErrorKind,
    /// Whether the operation may have happened all the same.
    pub may_have_run: bool,
    /// A plain sentence.
    pub message: String,
    /// What the driver said.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// An error of an operation that certainly did not happen.
    pub fn without_effect(kind: StoreErrorKind, message: impl Into<String>) -> StoreError {
        StoreError::new(kind, false, message)
    }

    /// An error of an operation that may have happened all the same.
    pub fn may_have_run(kind: StoreErrorKind, message: impl Into<String>) -> StoreError {
        StoreError::new(kind, true, message)
    }

    /// An error without a driver's error behind it.
    pub fn new(kind: StoreErrorKind, may_have_run: bool, message: impl Into<String>) -> StoreError {
        StoreError { kind, may_have_run, message: message.into(), source: None }
    }

    /// The same error with what caused it.
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
        self.source = Some(source.into());
        self
    }

    /// Whether it says that the store is not there, rather than that it will not.
    pub fn is_away(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unreachable | StoreErrorKind::TimedOut)
    }
}

/// The kinds of store failures: the label `kind` of `onceproxy_store_errors_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// No connection, or it broke; or the folder is held by another process.
    Unreachable,
    /// No answer within `store.timeout`.
    TimedOut,
    /// The store answered, and refused: full, read-only, not permitted, an eviction policy that forgets claims.
    Refused,
    /// A stored record cannot be read: damaged, or written by a newer version.
    Unreadable,
    /// The store failed in a way after which it cannot be trusted (a commit that failed).
    Broken,
    /// The store did not fail: it was asked with a cursor that it never gave out.
    BadQuery,
}

impl StoreErrorKind {
    /// Every kind that is a failure of the store, and counted as one.
    pub const FAILURES: [StoreErrorKind; 5] = [
        StoreErrorKind::Unreachable,
        StoreErrorKind::TimedOut,
        StoreErrorKind::Refused,
        StoreErrorKind::Unreadable,
        StoreErrorKind::Broken,
    ];

    /// The word in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            StoreErrorKind::Unreachable => "unreachable",
            StoreErrorKind::TimedOut => "timed-out",
            StoreErrorKind::Refused => "refused",
            StoreErrorKind::Unreadable => "unreadable",
            StoreErrorKind::Broken => "broken",
            StoreErrorKind::BadQuery => "bad-query",
        }
    }

    /// Whether the store is there and will not: then the same may be refused to everybody.
    pub fn is_refusal(self) -> bool {
        matches!(self, StoreErrorKind::Refused | StoreErrorKind::Broken)
    }

    /// Whether the store failed, and not whoever asked it.
    pub fn is_failure(self) -> bool {
        self != StoreErrorKind::BadQuery
    }
}

impl std::fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
