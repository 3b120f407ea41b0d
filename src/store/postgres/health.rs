//! Whether this server can keep the promise, as last seen: reachable, and fit by what it says of itself.
//!
//! Looked at when the store is opened and every few seconds after that, because a server can be demoted while it runs and
//! a name can come to lead to another server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::Shared;
use super::ask::Limits;
use super::facts::{self, Facts};
use super::link::Link;
use crate::store::report::{Report, Weight};
use crate::store::{NotReady, StoreError, StoreErrorKind};

const CHECK_EVERY: Duration = Duration::from_secs(2);
const CHECK_EVERY_WHILE_DOWN: Duration = Duration::from_millis(500);

/// What was last seen of the server.
pub(super) struct Health {
    /// How long it may be away before that counts against readiness: for so long an operation waits for it.
    patience: Duration,
    is_reachable: AtomicBool,
    away: Mutex<Option<Away>>,
    standing: ArcSwap<Standing>,
    is_direct: AtomicBool,
    // Tells the one who watches the server that an operation found it gone.
    in_doubt: Notify,
}

/// That the server does not answer.
struct Away {
    since: Instant,
    last_failure: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// Not looked at yet.
    Unchecked,
    /// The server may hold claims.
    Fit,
    /// It must not, for this reason.
    Unfit(String),
}

impl Health {
    /// Nothing was seen yet.
    pub(super) fn new(patience: Duration) -> Health {
        Health {
            patience,
            is_reachable: AtomicBool::new(true),
            away: Mutex::default(),
            standing: ArcSwap::from_pointee(Standing::Unchecked),
            is_direct: AtomicBool::new(false),
            in_doubt: Notify::new(),
        }
    }

    /// See [`crate::store::Store::ready`]. A server that was away for no longer than an operation waits for it is ready.
    pub(super) fn ready(&self) -> Result<(), NotReady> {
        if let Some(away) = &*self.away()
            && away.since.elapsed() >= self.patience
        {
            return Err(NotReady::ForNow(away.last_failure.clone()));
        }
        match &**self.standing.load() {
            Standing::Fit => Ok(()),
            Standing::Unchecked => Err(NotReady::ForNow("Postgres was not reached yet".into())),
            Standing::Unfit(reason) => Err(NotReady::ForNow(reason.clone())),
        }
    }

    /// Whether the last thing heard of the server was an answer.
    pub(super) fn is_reachable(&self) -> bool {
        self.is_reachable.load(Ordering::Acquire)
    }

    /// Whether connections lead to the server itself and not to a pooler: only then they can listen.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct.load(Ordering::Acquire)
    }

    /// Remembers that an operation failed, if that says something about the server.
    pub(super) fn failed(&self, error: &StoreError) {
        match error.kind {
            StoreErrorKind::Unreachable | StoreErrorKind::TimedOut => {
                let mut away = self.away();
                let since = away.as_ref().map_or_else(Instant::now, |away| away.since);
                *away = Some(Away { since, last_failure: error.message.clone() });
                self.is_reachable.store(false, Ordering::Release);
                self.in_doubt.notify_one();
            }
            // Perhaps it was demoted, or its schema is gone.
            StoreErrorKind::Refused => self.in_doubt.notify_one(),
            _ => {}
        }
    }

    fn saw(&self, facts: &Facts) {
        self.is_direct.store(facts.is_direct(), Ordering::Release);
        let broken = facts.report().broken();
        self.standing.store(Arc::new(broken.map_or(Standing::Fit, Standing::Unfit)));
        self.answered();
    }

    /// Remembers that the server is there but lets nobody in.
    fn refused(&self, error: &StoreError) {
        self.standing.store(Arc::new(Standing::Unfit(error.message.clone())));
        self.answered();
    }

    fn answered(&self) {
        *self.away() = None;
        self.is_reachable.store(true, Ordering::Release);
    }

    fn away(&self) -> MutexGuard<'_, Option<Away>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses a claim on a server that must not hold it; looks at the server first if nobody has yet.
pub(super) async fn admit_claim(shared: &Shared, link: &Link, limits: &Limits) -> Result<(), StoreError> {
    if **shared.health.standing.load() == Standing::Unchecked {
        Box::pin(check(shared, link, limits)).await?;
    }
    match &**shared.health.standing.load() {
        Standing::Unfit(reason) => Err(StoreError::without_effect(StoreErrorKind::Refused, reason.clone())),
        _ => Ok(()),
    }
}

async fn check(shared: &Shared, link: &Link, limits: &Limits) -> Result<Facts, StoreError> {
    let seen = facts::see(&shared.statements, link, limits).await;
    match &seen {
        Ok(facts) => shared.health.saw(facts),
        Err(error) if matches!(error.kind, StoreErrorKind::Refused | StoreErrorKind::Broken) => {
            shared.health.refused(error);
        }
        Err(error) => shared.health.failed(error),
    }
    seen
}

/// Looks at the server again and again, and says in the log what changed.
pub(super) async fn watch_server(shared: &Shared, link: &Link) {
    let mut seen: Option<Facts> = None;
    let mut was_down = false;
    loop {
        match check(shared, link, &Limits::new(shared.timeout).impatient()).await {
            Ok(facts) => {
                if was_down {
                    info!(address = link.endpoint().address(), "Postgres is back");
                }
                was_down = false;
                if seen.as_ref() != Some(&facts) {
                    log(link, &facts.report());
                    seen = Some(facts);
                }
            }
            Err(error) => {
                if !was_down {
                    warn!(error = %error, "Postgres is not there; keyed requests are refused until it is");
                }
                was_down = true;
            }
        }
        if was_down {
            sleep(CHECK_EVERY_WHILE_DOWN).await;
        } else {
            // One failed operation makes the process not ready; whether that is true is found out at once.
            let _ = timeout(CHECK_EVERY, shared.health.in_doubt.notified()).await;
            // A server that refuses everything is not asked without a pause.
            sleep(CHECK_EVERY_WHILE_DOWN / 10).await;
        }
    }
}

/// See [`crate::store::Store::inspect`]. What is seen counts for the readiness as well.
pub(super) async fn inspect(shared: &Shared, link: &Link, limits: &Limits) -> Result<Report, StoreError> {
    let mut report = Report::default();
    report.fact("address", link.endpoint().address());
    report.append(check(shared, link, limits).await?.report());
    Ok(report)
}

fn log(link: &Link, report: &Report) {
    info!(address = link.endpoint().address(), found = %report, "Postgres was reached");
    if let Some(reason) = report.broken() {
        warn!(reason, "Postgres is not used: keyed requests are refused");
    }
    for weakness in report.of(Weight::Weakens) {
        warn!("{weakness}");
    }
}
