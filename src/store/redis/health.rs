//! Whether the servers can keep the promise: reachable, new enough, and set never to forget a record by themselves.
//!
//! Each is looked at before its first claim and every few seconds after that, because a server's settings can be changed
//! while it runs and a name can come to lead to another server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::Shared;
use super::ask::{Limits, Question, ask, error_of};
use super::lane::{Lane, Route};
use super::link::Link;
use super::server::Server;
use super::together;
use super::topology::Topology;
use crate::config::store::Acknowledged;
use crate::store::{StoreError, StoreErrorKind};

const CHECK_EVERY: Duration = Duration::from_secs(2);
const CHECK_EVERY_WHILE_DOWN: Duration = Duration::from_millis(500);
const OLDEST_VERSION: (u32, u32) = (7, 0);
/// The first that can say what is on disk.
const OLDEST_VERSION_WITH_WAITAOF: (u32, u32) = (7, 2);

/// What is asked of every server of the store, and who is told when one fails.
#[derive(Clone)]
pub(super) struct Watched {
    /// Whether a server that evicts keys is taken all the same.
    pub(super) allow_eviction: bool,
    /// What a claim waits for.
    pub(super) acknowledged: Option<Acknowledged>,
    /// Tells the one who watches the servers that an operation found one gone.
    pub(super) in_doubt: Arc<Notify>,
}

/// What was last seen of a server.
pub(super) struct Condition {
    watched: Watched,
    is_reachable: AtomicBool,
    last_failure: Mutex<String>,
    standing: ArcSwap<Standing>,
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
            last_failure: Mutex::default(),
            standing: ArcSwap::from_pointee(Standing::Unchecked),
        }
    }

    /// Whether it serves, as last seen.
    pub(super) fn ready(&self) -> Result<(), String> {
        if !self.is_reachable() {
            return Err(self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone());
        }
        match &**self.standing.load() {
            Standing::Fit => Ok(()),
            Standing::Unchecked => Err("Redis was not reached yet".into()),
            Standing::Replica => Err(IS_REPLICA.into()),
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
            *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = error.message.clone();
            self.is_reachable.store(false, Ordering::Release);
            self.watched.in_doubt.notify_one();
        }
    }

    /// Remembers that the server is there but lets nobody in.
    fn refused(&self, error: &StoreError) {
        self.standing.store(Arc::new(Standing::Unfit(error.message.clone())));
        self.is_reachable.store(true, Ordering::Release);
    }

    fn saw(&self, facts: &Facts) {
        self.standing.store(Arc::new(facts.standing(&self.watched)));
        self.is_reachable.store(true, Ordering::Release);
    }
}

const IS_REPLICA: &str = "this Redis is a replica: store.url must name the master";

/// Looks at one server.
pub(super) async fn check(link: &Link, limits: Limits) -> Result<Facts, StoreError> {
    let seen = see(link, limits).await;
    let condition = &link.server().condition;
    match &seen {
        Ok(facts) => condition.saw(facts),
        Err(error) if error.kind == StoreErrorKind::Refused => condition.refused(error),
        Err(error) => condition.failed(error),
    }
    seen
}

async fn see(link: &Link, limits: Limits) -> Result<Facts, StoreError> {
    let mut commands = redis::pipe();
    // CONFIG is often forbidden, and then only less is logged: INFO says what matters.
    commands.cmd("INFO").cmd("CONFIG").arg("GET").arg("save");
    let Value::Array(answers) = ask(Route::Fixed(link), &Question::Commands(commands), limits).await? else {
        return Ok(Facts::default());
    };
    let mut answers = answers.into_iter();
    let mut facts = match answers.next().map(Value::extract_error) {
        Some(Ok(Value::BulkString(info))) => Facts::read(&String::from_utf8_lossy(&info)),
        Some(Err(refusal)) => match error_of(link.server(), refusal) {
            error if error.kind == StoreErrorKind::Refused => Facts { refusal: error.message, ..Facts::default() },
            error => return Err(error),
        },
        _ => Facts::default(),
    };
    if facts.is_loading {
        return Err(StoreError::new(StoreErrorKind::Unreachable, false, "Redis is still loading its data"));
    }
    if let Some(Value::Array(pair)) = answers.next()
        && let Some(Value::BulkString(save)) = pair.get(1)
    {
        facts.snapshots = Some(String::from_utf8_lossy(save).into_owned());
    }
    Ok(facts)
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
            if facts.role == "slave"
                && let Topology::Changing(directory) = &shared.topology
            {
                directory.doubt();
            }
            if said.facts.as_ref() != Some(&facts) {
                facts.log(server, &shared.watched);
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

/// What the server says of itself, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    version: String,
    eviction: Option<String>,
    role: String,
    replicas: String,
    append_only: bool,
    /// When it writes snapshots; `None` when it does not say.
    snapshots: Option<String>,
    is_loading: bool,
    /// Why it says nothing.
    refusal: String,
}

impl Facts {
    fn read(info: &str) -> Facts {
        let mut facts = Facts::default();
        for (name, value) in info.lines().filter_map(|line| line.split_once(':')) {
            match name {
                "redis_version" => facts.version = value.to_owned(),
                "maxmemory_policy" => facts.eviction = Some(value.to_owned()),
                "role" => facts.role = value.to_owned(),
                "connected_slaves" => facts.replicas = value.to_owned(),
                "aof_enabled" => facts.append_only = value == "1",
                "loading" => facts.is_loading = value == "1",
                _ => {}
            }
        }
        facts
    }

    fn standing(&self, watched: &Watched) -> Standing {
        let allow_eviction = watched.allow_eviction;
        if self.role == "slave" {
            return Standing::Replica;
        }
        if allow_eviction && self.eviction.is_none() && watched.acknowledged.is_none() {
            return Standing::Fit;
        }
        let Some(policy) = &self.eviction else {
            return Standing::Unfit(format!(
                "the maxmemory-policy of Redis cannot be seen, because INFO is refused: allow it to this user, or set \
                 store.allow_eviction = true ({})",
                self.refusal
            ));
        };
        let version = self.version_number();
        if version < OLDEST_VERSION {
            return Standing::Unfit(format!("Redis {} is too old: 7.0 or newer is needed", self.version));
        }
        if policy != "noeviction" && !allow_eviction {
            return Standing::Unfit(format!(
                "Redis may forget claims: its maxmemory-policy is {policy} and must be noeviction (or set \
                 store.allow_eviction = true)"
            ));
        }
        watched.acknowledged.map_or(Standing::Fit, |wanted| self.acknowledges(wanted, version))
    }

    /// Whether claims can be acknowledged as the settings want it.
    fn acknowledges(&self, wanted: Acknowledged, version: (u32, u32)) -> Standing {
        if wanted.on_disk && version < OLDEST_VERSION_WITH_WAITAOF {
            let version = &self.version;
            return Standing::Unfit(format!("store.wait_aof needs Redis 7.2 or newer, and this is {version}"));
        }
        if wanted.on_disk && !self.append_only {
            return Standing::Unfit("store.wait_aof needs appendonly yes, and this Redis has no such file".into());
        }
        let replicas = self.replicas.parse().unwrap_or(0);
        if wanted.replicas > replicas {
            let wanted = wanted.replicas;
            return Standing::Short(format!("Redis has {replicas} replicas, and store.wait_replicas is {wanted}"));
        }
        Standing::Fit
    }

    /// Major and minor; zero if it does not say.
    fn version_number(&self) -> (u32, u32) {
        let mut numbers = self.version.split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    fn log(&self, server: &Server, watched: &Watched) {
        info!(
            address = server.address(),
            version = self.version,
            maxmemory_policy = self.eviction.as_deref().unwrap_or("not shown"),
            append_only = self.append_only,
            snapshots = self.snapshots.as_deref().unwrap_or("not shown"),
            replicas = self.replicas,
            "Redis was reached"
        );
        match self.standing(watched) {
            Standing::Unfit(reason) => warn!(reason, "Redis is not used: keyed requests are refused"),
            Standing::Short(reason) => warn!(reason, "keyed requests are refused until it has them"),
            Standing::Replica => warn!(IS_REPLICA),
            Standing::Fit | Standing::Unchecked => {}
        }
        if watched.allow_eviction && self.eviction.as_deref() != Some("noeviction") {
            warn!("store.allow_eviction is on: Redis may forget a claim, and a forgotten claim is a second execution");
        }
        if !self.append_only && self.snapshots.as_deref().is_none_or(str::is_empty) {
            warn!("Redis keeps nothing on disk as far as it shows: a restart forgets every record");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(version: &str, policy: Option<&str>) -> Facts {
        Facts {
            version: version.into(),
            eviction: policy.map(str::to_owned),
            role: "master".into(),
            ..Facts::default()
        }
    }

    fn watched(allow_eviction: bool, acknowledged: Option<Acknowledged>) -> Watched {
        Watched { allow_eviction, acknowledged, in_doubt: Arc::default() }
    }

    #[test]
    fn accepts_only_a_server_that_never_forgets_by_itself() {
        let standing = |facts: &Facts, allow| facts.standing(&watched(allow, None));
        assert_eq!(standing(&facts("7.0.15", Some("noeviction")), false), Standing::Fit);
        assert_eq!(standing(&facts("7.0.15", Some("volatile-lru")), true), Standing::Fit);
        assert_eq!(standing(&facts("8.0.0", None), true), Standing::Fit);
        let replica = Facts { role: "slave".into(), ..facts("7.2.0", Some("noeviction")) };
        assert_eq!(standing(&replica, true), Standing::Replica);
        for (unfit, allow) in [
            (facts("7.0.15", Some("volatile-lru")), false),
            (facts("7.0.15", Some("allkeys-lfu")), false),
            (facts("7.0.15", None), false),
            (facts("6.2.14", Some("noeviction")), true),
            (facts("", Some("noeviction")), true),
        ] {
            assert!(matches!(standing(&unfit, allow), Standing::Unfit(_)), "{unfit:?}");
        }
    }

    #[test]
    fn acknowledgements_need_replicas_and_on_disk_a_server_that_can_say_so() {
        let wanted = |replicas, on_disk| {
            let timeout = Duration::from_millis(200);
            watched(false, Some(Acknowledged { replicas, on_disk, timeout }))
        };
        let with = |version, replicas: &str, append_only| Facts {
            replicas: replicas.into(),
            append_only,
            ..facts(version, Some("noeviction"))
        };
        assert_eq!(with("7.0.15", "2", false).standing(&wanted(2, false)), Standing::Fit);
        assert!(matches!(with("7.0.15", "1", false).standing(&wanted(2, false)), Standing::Short(_)));
        assert_eq!(with("7.2.0", "1", true).standing(&wanted(1, true)), Standing::Fit);
        assert_eq!(with("8.0.1", "0", true).standing(&wanted(0, true)), Standing::Fit);
        for unfit in [with("7.0.15", "1", true), with("7.2.0", "1", false)] {
            assert!(matches!(unfit.standing(&wanted(1, true)), Standing::Unfit(_)), "{unfit:?}");
        }
    }

    #[test]
    fn reads_what_a_server_says() {
        let info = "# Server\r\nredis_version:7.0.15\r\naof_enabled:1\r\nmaxmemory_policy:noeviction\r\nrole:master\r\n\
                    connected_slaves:2\r\n";
        assert_eq!(
            Facts::read(info),
            Facts {
                version: "7.0.15".into(),
                eviction: Some("noeviction".into()),
                role: "master".into(),
                replicas: "2".into(),
                append_only: true,
                ..Facts::default()
            }
        );
        assert!(Facts::read("loading:1\r\n").is_loading);
    }
}
