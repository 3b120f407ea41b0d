//! Whether the servers can keep the promise: reachable, new enough, and set never to forget a record by themselves.
//!
//! Each is looked at before its first claim and every few seconds after that, because a server's settings can be changed
//! while it runs and a name can come to lead to another server.

use std::collections::HashMap;
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
use super::lane::Lane;
use super::link::Link;
use super::server::Server;
use super::together;
use super::topology::Topology;
use crate::config::store::Acknowledged;
use crate::store::report::{Remark, Report, Weight};
use crate::store::{StoreError, StoreErrorKind};

const CHECK_EVERY: Duration = Duration::from_secs(2);
const CHECK_EVERY_WHILE_DOWN: Duration = Duration::from_millis(500);

/// What is asked of every server of the store, and who is told when one fails.
#[derive(Clone)]
pub(super) struct Watched {
    /// Whether a server that evicts keys is taken all the same.
    pub(super) allow_eviction: bool,
    /// What a claim waits for.
    pub(super) acknowledged: Option<Acknowledged>,
    /// How long a server may be away before that counts against readiness: for so long an operation waits for it.
    pub(super) patience: Duration,
    /// Tells the one who watches the servers that an operation found one gone.
    pub(super) in_doubt: Arc<Notify>,
}

/// What was last seen of a server.
pub(super) struct Condition {
    watched: Watched,
    is_reachable: AtomicBool,
    away: Mutex<Option<Away>>,
    standing: ArcSwap<Standing>,
}

/// That a server does not answer.
struct Away {
    since: Instant,
    last_failure: String,
}

/// Whether a server may hold claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Not looked at yet.
    Unchecked,
    /// It may.
    Fit,
    /// It may, but will hardly take one now, for this reason.
    Short(String),
    /// It must not, for this reason.
    Unfit(String),
    /// It is no master.
    Replica,
}

impl Condition {
    /// Nothing was seen yet.
    pub(super) fn new(watched: Watched) -> Condition {
        Condition {
            watched,
            is_reachable: AtomicBool::new(true),
            away: Mutex::default(),
            standing: ArcSwap::from_pointee(Standing::Unchecked),
        }
    }

    /// Whether it serves, as last seen. One that was away for no longer than an operation waits for it serves.
    pub(super) fn ready(&self) -> Result<(), String> {
        if let Some(away) = &*self.away()
            && away.since.elapsed() >= self.watched.patience
        {
            return Err(away.last_failure.clone());
        }
        match &**self.standing.load() {
            Standing::Fit => Ok(()),
            Standing::Unchecked => Err("Redis was not reached yet".into()),
            Standing::Replica => Err(facts::IS_REPLICA.into()),
            Standing::Short(reason) | Standing::Unfit(reason) => Err(reason.clone()),
        }
    }

    /// Why it must hold no claims although it is there.
    pub(super) fn unfit(&self) -> Option<String> {
        match &**self.standing.load() {
            Standing::Unfit(reason) if self.is_reachable() => Some(reason.clone()),
            _ => None,
        }
    }

    /// Whether the last thing heard of the server was an answer.
    pub(super) fn is_reachable(&self) -> bool {
        self.is_reachable.load(Ordering::Acquire)
    }

    /// What it may be used for.
    pub(super) fn standing(&self) -> arc_swap::Guard<Arc<Standing>> {
        self.standing.load()
    }

    /// What a claim waits for on it.
    pub(super) fn acknowledged(&self) -> Option<Acknowledged> {
        self.watched.acknowledged
    }

    /// Remembers that an operation failed, if that says something about the server.
    pub(super) fn failed(&self, error: &StoreError) {
        if matches!(error.kind, StoreErrorKind::Unreachable | StoreErrorKind::TimedOut) {
            let mut away = self.away();
            let since = away.as_ref().map_or_else(Instant::now, |away| away.since);
            *away = Some(Away { since, last_failure: error.message.clone() });
            self.is_reachable.store(false, Ordering::Release);
            self.watched.in_doubt.notify_one();
        }
    }

    /// Remembers that the server is there but lets nobody in.
    fn refused(&self, error: &StoreError) {
        self.standing.store(Arc::new(Standing::Unfit(error.message.clone())));
        self.answered();
    }

    fn saw(&self, facts: &Facts) {
        self.standing.store(Arc::new(facts.standing(&self.watched)));
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

/// Looks at one server.
pub(super) async fn check(link: &Link, limits: Limits) -> Result<Facts, StoreError> {
    let seen = facts::see(link, limits).await;
    let condition = &link.server().condition;
    match &seen {
        Ok(facts) => condition.saw(facts),
        Err(error) if error.kind == StoreErrorKind::Refused => condition.refused(error),
        Err(error) => condition.failed(error),
    }
    seen
}

/// Looks at the servers again and again, and says in the log what changed.
pub(super) async fn watch_servers(shared: &Shared, lane: &Lane) {
    let mut seen = HashMap::new();
    loop {
        let servers = shared.topology.servers();
        let limits = Limits::new(shared.timeout).impatient();
        let checks = servers.iter().map(|server| async move { check(&lane.to_server(server), limits).await });
        let mut is_one_down = false;
        let mut now = HashMap::new();
        for (server, facts) in servers.iter().zip(together::all(checks).await) {
            is_one_down |= facts.is_err();
            let before = seen.remove(&server.address());
            now.insert(server.address(), note(shared, server, before, facts));
        }
        seen = now;
        if is_one_down {
            sleep(CHECK_EVERY_WHILE_DOWN).await;
        } else {
            // One failed operation makes its server count as away; whether that is true is found out at once.
            let _ = timeout(CHECK_EVERY, shared.watched.in_doubt.notified()).await;
        }
    }
}

/// What was last said of a server in the log.
#[derive(Default)]
struct Said {
    facts: Option<Facts>,
    was_down: bool,
}

fn note(shared: &Shared, server: &Server, before: Option<Said>, facts: Result<Facts, StoreError>) -> Said {
    let mut said = before.unwrap_or_default();
    match facts {
        Ok(facts) => {
            if said.was_down {
                info!(address = server.address(), "Redis is back");
            }
            said.was_down = false;
            if facts.is_replica()
                && let Topology::Changing(directory) = &shared.topology
            {
                server.renounce_connections();
                directory.doubt();
            }
            let facts = facts.lasting();
            if said.facts.as_ref() != Some(&facts) {
                log(server, &facts.report(&shared.watched));
                said.facts = Some(facts);
            }
        }
        Err(error) => {
            if !said.was_down {
                warn!(error = %error, "Redis is not there; keyed requests are refused until it is");
            }
            said.was_down = true;
        }
    }
    said
}

/// See [`crate::store::Store::inspect`]. What is seen counts for the readiness as well.
pub(super) async fn inspect(shared: &Shared, lane: &Lane, limits: Limits) -> Result<Report, StoreError> {
    // Of several servers the first operation finds out which there are.
    let _ = shared.topology.groups().await;
    let servers = shared.topology.servers();
    if servers.is_empty() {
        let reason =
            shared.topology.ready().map_or_else(|reason| reason.to_string(), |()| "Redis cannot be found".into());
        return Err(StoreError::without_effect(StoreErrorKind::Unreachable, reason));
    }
    let checks = servers.iter().map(|server| async move { check(&lane.to_server(server), limits).await });
    let mut reports = Vec::new();
    for (server, facts) in servers.iter().zip(together::all(checks).await) {
        reports.push((server.address(), facts?.report(&shared.watched)));
    }
    Ok(one_of(reports))
}

/// One report of several servers: what all say is said once, what differs with the addresses.
fn one_of(reports: Vec<(String, Report)>) -> Report {
    let mut whole = Report::default();
    let addresses: Vec<&str> = reports.iter().map(|(address, _)| address.as_str()).collect();
    whole.fact("address", addresses.join(", "));
    let names: Option<Vec<_>> = reports.first().map(|(_, report)| report.facts.iter().map(|fact| fact.name).collect());
    for name in names.unwrap_or_default() {
        let value = |report: &Report| report.facts.iter().find(|fact| fact.name == name).map(|fact| fact.value.clone());
        let values: Vec<String> = reports.iter().filter_map(|(_, report)| value(report)).collect();
        let is_one = values.iter().all(|value| *value == values[0]);
        let each = || addresses.iter().zip(&values).map(|(address, value)| format!("{address}: {value}"));
        whole.fact(name, if is_one { values[0].clone() } else { each().collect::<Vec<_>>().join("; ") });
    }
    for (address, report) in &reports {
        for remark in &report.remarks {
            let is_said_by_all = reports.iter().all(|(_, report)| report.remarks.contains(remark));
            let text = if is_said_by_all { remark.text.clone() } else { format!("{address}: {}", remark.text) };
            if !whole.remarks.iter().any(|known| known.text == text) {
                whole.remarks.push(Remark { weight: remark.weight, text });
            }
        }
    }
    whole
}

fn log(server: &Server, report: &Report) {
    info!(address = server.address(), found = %report, "Redis was reached");
    if let Some(reason) = report.broken() {
        warn!(address = server.address(), reason, "Redis is not used: keyed requests are refused");
    }
    for weakness in report.of(Weight::Weakens) {
        warn!("{weakness}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_servers_are_one_report() {
        let report = |role: &str, weak: &[&str]| {
            let mut report = Report::default();
            report.fact("version", "7.0.15");
            report.fact("topology", role);
            weak.iter().for_each(|weak| report.weakens(*weak));
            report
        };
        let whole = one_of(vec![
            ("a:1".into(), report("with 1 replica", &["asynchronous", "no file"])),
            ("b:2".into(), report("alone", &["asynchronous"])),
        ]);
        assert_eq!(whole.to_string(), "address: a:1, b:2, version: 7.0.15, topology: a:1: with 1 replica; b:2: alone");
        assert_eq!(whole.of(Weight::Weakens).collect::<Vec<_>>(), ["asynchronous", "a:1: no file"]);
    }
}
