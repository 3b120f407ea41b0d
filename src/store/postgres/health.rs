//! Whether this server can keep the promise: reachable, new enough, a primary that writes, with our schema in our version.
//!
//! Looked at when the store is opened and every few seconds after that, because a server can be demoted while it runs and
//! a name can come to lead to another server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_postgres::Row;
use tracing::{info, warn};

use super::ask::{Limits, ask};
use super::link::Link;
use super::row::odd_answer;
use super::{Shared, init};
use crate::store::{NotReady, StoreError, StoreErrorKind};

const CHECK_EVERY: Duration = Duration::from_secs(2);
const CHECK_EVERY_WHILE_DOWN: Duration = Duration::from_millis(500);
const OLDEST_VERSION: i32 = 130_000;

/// What was last seen of the server.
pub(super) struct Health {
    is_reachable: AtomicBool,
    last_failure: Mutex<String>,
    standing: ArcSwap<Standing>,
    is_direct: AtomicBool,
    // Tells the one who watches the server that an operation found it gone.
    in_doubt: Notify,
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
    pub(super) fn new() -> Health {
        Health {
            is_reachable: AtomicBool::new(true),
            last_failure: Mutex::default(),
            standing: ArcSwap::from_pointee(Standing::Unchecked),
            is_direct: AtomicBool::new(false),
            in_doubt: Notify::new(),
        }
    }

    /// See [`crate::store::Store::ready`].
    pub(super) fn ready(&self) -> Result<(), NotReady> {
        if !self.is_reachable() {
            let last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(NotReady::ForNow(last.clone()));
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
                *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = error.message.clone();
                self.is_reachable.store(false, Ordering::Release);
                self.in_doubt.notify_one();
            }
            // Perhaps it was demoted, or its schema is gone.
            StoreErrorKind::Refused => self.in_doubt.notify_one(),
            _ => {}
        }
    }

    fn saw(&self, facts: &Facts) {
        self.is_direct.store(facts.direct, Ordering::Release);
        self.standing.store(Arc::new(facts.standing()));
        self.is_reachable.store(true, Ordering::Release);
    }

    /// Remembers that the server is there but lets nobody in.
    fn refused(&self, error: &StoreError) {
        self.standing.store(Arc::new(Standing::Unfit(error.message.clone())));
        self.is_reachable.store(true, Ordering::Release);
    }
}

/// Refuses a claim on a server that must not hold it; looks at the server first if nobody has yet.
pub(super) async fn admit_claim(shared: &Shared, link: &Link, limits: Limits) -> Result<(), StoreError> {
    if **shared.health.standing.load() == Standing::Unchecked {
        Box::pin(check(shared, link, limits)).await?;
    }
    match &**shared.health.standing.load() {
        Standing::Unfit(reason) => Err(StoreError::new(StoreErrorKind::Refused, false, reason.clone())),
        _ => Ok(()),
    }
}

async fn check(shared: &Shared, link: &Link, limits: Limits) -> Result<Facts, StoreError> {
    let seen = see(shared, link, limits).await;
    match &seen {
        Ok(facts) => shared.health.saw(facts),
        Err(error) if matches!(error.kind, StoreErrorKind::Refused | StoreErrorKind::Broken) => {
            shared.health.refused(error);
        }
        Err(error) => shared.health.failed(error),
    }
    seen
}

async fn see(shared: &Shared, link: &Link, limits: Limits) -> Result<Facts, StoreError> {
    let rows = ask(link, &shared.statements.facts, &[], limits).await?;
    let [row] = rows.as_slice() else { return Err(odd_answer(None)) };
    let mut facts = Facts::read(row).map_err(|e| odd_answer(Some(e)))?;
    facts.schema.clone_from(&shared.statements.schema);
    if facts.has_schema {
        let rows = ask(link, &shared.statements.version, &[], limits).await?;
        facts.format = rows.first().and_then(|row| row.try_get(0).ok());
    }
    Ok(facts)
}

/// Looks at the server again and again, and says in the log what changed.
pub(super) async fn watch_server(shared: &Shared, link: &Link) {
    let mut seen: Option<Facts> = None;
    let mut was_down = false;
    loop {
        match check(shared, link, Limits::new(shared.timeout, false)).await {
            Ok(facts) => {
                if was_down {
                    info!(address = link.endpoint().address(), "Postgres is back");
                }
                was_down = false;
                if seen.as_ref() != Some(&facts) {
                    facts.log(link);
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

/// What the server says of itself, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    version: String,
    number: i32,
    standby: bool,
    read_only: bool,
    synchronous_commit: String,
    fsync: bool,
    /// No pooler is in between.
    direct: bool,
    has_schema: bool,
    /// The schema's version; `None` when it does not say.
    format: Option<i32>,
    /// The schema's name.
    schema: String,
}

impl Facts {
    fn read(row: &Row) -> Result<Facts, tokio_postgres::Error> {
        Ok(Facts {
            version: row.try_get("version")?,
            number: row.try_get("number")?,
            standby: row.try_get("standby")?,
            read_only: row.try_get("read_only")?,
            synchronous_commit: row.try_get("synchronous_commit")?,
            fsync: row.try_get("fsync")?,
            direct: row.try_get("direct")?,
            has_schema: row.try_get("has_schema")?,
            ..Facts::default()
        })
    }

    fn standing(&self) -> Standing {
        if self.number < OLDEST_VERSION {
            return Standing::Unfit(format!("Postgres {} is too old: 13 or newer is needed", self.version));
        }
        if self.standby {
            return Standing::Unfit("this Postgres is a standby: the URL must lead to the primary".into());
        }
        if self.read_only {
            return Standing::Unfit("this Postgres is read-only (default_transaction_read_only)".into());
        }
        match init::Fit::of(self.format.filter(|_| self.has_schema)) {
            init::Fit::Right => Standing::Fit,
            fit => Standing::Unfit(fit.complaint(&self.schema)),
        }
    }

    fn log(&self, link: &Link) {
        info!(
            address = link.endpoint().address(),
            version = self.version,
            synchronous_commit = self.synchronous_commit,
            fsync = self.fsync,
            direct = self.direct,
            "Postgres was reached"
        );
        if let Standing::Unfit(reason) = self.standing() {
            warn!(reason, "Postgres is not used: keyed requests are refused");
        }
        if matches!(self.synchronous_commit.as_str(), "off" | "local") {
            warn!(
                synchronous_commit = self.synchronous_commit,
                "this Postgres answers before a commit is safe; claims ask for synchronous_commit = on by themselves"
            );
        }
        if !self.fsync {
            warn!("fsync is off: a power loss can forget every record, and a forgotten claim is a second execution");
        }
        if !self.direct {
            info!("a pooler is before Postgres: changes by other processes are noticed by asking, not by notification");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let version = "15.1".to_owned();
        Facts { version, number: 150_001, has_schema: true, format: Some(1), schema: "once".into(), ..Facts::default() }
    }

    #[test]
    fn accepts_only_a_primary_that_writes_and_has_the_schema() {
        assert_eq!(facts().standing(), Standing::Fit);
        for (unfit, reason) in [
            (Facts { number: 120_009, ..facts() }, "too old"),
            (Facts { standby: true, ..facts() }, "standby"),
            (Facts { read_only: true, ..facts() }, "read-only"),
            (Facts { has_schema: false, format: None, ..facts() }, "onceproxy store init"),
            (Facts { format: None, ..facts() }, "onceproxy store init"),
            (Facts { format: Some(2), ..facts() }, "newer"),
        ] {
            let Standing::Unfit(said) = unfit.standing() else { panic!("{unfit:?}") };
            assert!(said.contains(reason), "{said}");
        }
    }
}
