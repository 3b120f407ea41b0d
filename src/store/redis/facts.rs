//! What a Redis server says of itself, and what follows from it for the promise.
//!
//! Separate from `health`, which decides when to look and what to do about it. `INFO` is needed; `CONFIG` is often
//! forbidden, and then less is known and that is said.

use redis::Value;

use super::ask::{Limits, Question, ask};
use super::failure::error_of;
use super::health::{Standing, Watched};
use super::lane::Route;
use super::link::Link;
use crate::config::store::Acknowledged;
use crate::store::report::Report;
use crate::store::{StoreError, StoreErrorKind};

const OLDEST_VERSION: (u32, u32) = (7, 0);
/// The first that can say what is on disk.
const OLDEST_VERSION_WITH_WAITAOF: (u32, u32) = (7, 2);
/// Why a replica must not be used.
pub(super) const IS_REPLICA: &str = "this Redis is a replica: store.url must name the master";
/// Every operation is a script, so one that does nothing tells whether they are let run.
const SCRIPT: &str = "return 1";
/// What is asked for by `CONFIG GET`.
const SETTINGS: [&str; 4] = ["save", "appendfsync", "min-replicas-to-write", "stop-writes-on-bgsave-error"];
/// A server that is fuller than this (in percent of `maxmemory`) soon refuses claims.
const NEARLY_FULL: u64 = 90;

/// What the server says of itself, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    version: String,
    eviction: Option<String>,
    role: String,
    is_cluster: bool,
    replicas: u64,
    replicas_online: u64,
    append_only: bool,
    /// The append-only file could not be written, and so nothing else can.
    appends_fail: bool,
    saves_fail: bool,
    is_loading: bool,
    max_memory: u64,
    used_memory: u64,
    /// What `CONFIG GET` shows; `None` where it does not.
    snapshots: Option<String>,
    append_fsync: Option<String>,
    min_replicas: Option<u64>,
    stops_when_saves_fail: Option<bool>,
    /// Why `INFO` says nothing.
    refusal: String,
    /// Why no script runs; `None` where they do.
    scripts_refused: Option<String>,
}

/// Asks the server.
pub(super) async fn see(link: &Link, limits: Limits) -> Result<Facts, StoreError> {
    let mut commands = redis::pipe();
    commands.cmd("INFO").cmd("CONFIG").arg("GET").arg(&SETTINGS).cmd("EVAL").arg(SCRIPT).arg(0);
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
        return Err(StoreError::without_effect(StoreErrorKind::Unreachable, "Redis is still loading its data"));
    }
    if let Some(settings) = answers.next() {
        facts.add_settings(settings);
    }
    if let Some(Err(refusal)) = answers.next().map(Value::extract_error) {
        match error_of(link.server(), refusal) {
            error if error.kind == StoreErrorKind::Refused => facts.scripts_refused = Some(error.message),
            error => return Err(error),
        }
    }
    Ok(facts)
}

impl Facts {
    fn read(info: &str) -> Facts {
        let mut facts = Facts::default();
        let (mut failed_save, mut failed_append) = (false, false);
        for (name, value) in info.lines().filter_map(|line| line.split_once(':')) {
            match name {
                "redis_version" => facts.version = value.to_owned(),
                "maxmemory_policy" => facts.eviction = Some(value.to_owned()),
                "role" => facts.role = value.to_owned(),
                "cluster_enabled" => facts.is_cluster = value == "1",
                "connected_slaves" => facts.replicas = value.parse().unwrap_or(0),
                "aof_enabled" => facts.append_only = value == "1",
                "rdb_last_bgsave_status" => failed_save = value != "ok",
                "aof_last_write_status" => failed_append = value != "ok",
                "loading" => facts.is_loading = value == "1",
                "maxmemory" => facts.max_memory = value.parse().unwrap_or(0),
                "used_memory" => facts.used_memory = value.parse().unwrap_or(0),
                _ if is_replica(name) && value.contains("state=online") => facts.replicas_online += 1,
                _ => {}
            }
        }
        facts.saves_fail = failed_save;
        facts.appends_fail = failed_append && facts.append_only;
        facts
    }

    /// Takes the answer of `CONFIG GET`, a flat list of names and values or, in RESP3, a map. An error shows nothing.
    fn add_settings(&mut self, answer: Value) {
        let text = |value: Value| match value {
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Value::SimpleString(text) => text,
            _ => String::new(),
        };
        let pairs: Vec<(Value, Value)> = match answer {
            Value::Map(pairs) => pairs,
            Value::Array(flat) => {
                let mut flat = flat.into_iter();
                std::iter::from_fn(|| Some((flat.next()?, flat.next()?))).collect()
            }
            _ => return,
        };
        for (name, value) in pairs.into_iter().map(|(name, value)| (text(name), text(value))) {
            match name.as_str() {
                "save" => self.snapshots = Some(value),
                "appendfsync" => self.append_fsync = Some(value),
                "min-replicas-to-write" => self.min_replicas = value.parse().ok(),
                "stop-writes-on-bgsave-error" => self.stops_when_saves_fail = Some(value == "yes"),
                _ => {}
            }
        }
    }

    /// The same without what changes all the time.
    pub(super) fn lasting(self) -> Facts {
        let is_nearly_full = self.is_nearly_full();
        Facts { used_memory: if is_nearly_full { self.max_memory } else { 0 }, ..self }
    }

    fn is_nearly_full(&self) -> bool {
        self.max_memory > 0 && self.used_memory / (self.max_memory / 100).max(1) >= NEARLY_FULL
    }

    /// The facts in words, and what is wrong or weak about them.
    pub(super) fn report(&self, watched: &Watched) -> Report {
        let mut report = Report::default();
        report.fact("version", if self.version.is_empty() { "not shown" } else { &self.version });
        report.fact("topology", self.topology());
        report.fact("persistence", self.persistence());
        let limit = match self.max_memory {
            0 => "no maxmemory".to_owned(),
            max => format!("maxmemory {} MiB", max >> 20),
        };
        report.fact("eviction", format!("{}, {limit}", self.eviction.as_deref().unwrap_or("not shown")));
        let scripts = self.scripts_refused.as_ref();
        report.fact("scripts", scripts.map_or_else(|| "run".to_owned(), |reason| format!("refused: {reason}")));
        self.remark_on_server(&mut report, watched);
        if report.broken().is_none() && self.eviction.is_some() {
            self.remark_on_durability(&mut report, watched.acknowledged);
        }
        if let Some(short) = self.short(watched) {
            report.breaks(short);
        }
        report
    }

    /// What the server may be used for.
    pub(super) fn standing(&self, watched: &Watched) -> Standing {
        if self.is_replica() {
            return Standing::Replica;
        }
        let mut report = Report::default();
        self.remark_on_server(&mut report, watched);
        match (report.broken(), self.short(watched)) {
            (Some(reason), _) => Standing::Unfit(reason),
            (None, Some(reason)) => Standing::Short(reason),
            (None, None) => Standing::Fit,
        }
    }

    /// Whether it says that it is a replica.
    pub(super) fn is_replica(&self) -> bool {
        self.role == "slave"
    }

    /// What claims will be refused for now, although nothing is wrong with the server itself.
    fn short(&self, watched: &Watched) -> Option<String> {
        if self.appends_fail {
            return Some("Redis cannot write its append-only file (is its disk full?), and refuses to write".into());
        }
        let wanted = watched.acknowledged?.replicas;
        let replicas = self.replicas;
        (u64::from(wanted) > replicas && self.eviction.is_some() && !self.is_replica())
            .then(|| format!("Redis has {replicas} replicas, and store.wait_replicas is {wanted}"))
    }

    fn topology(&self) -> String {
        let kind = if self.is_cluster { "a node of a cluster" } else { "one server" };
        match self.role.as_str() {
            "" => "not shown".to_owned(),
            "slave" => format!("{kind}, a replica"),
            role => {
                let least = self.min_replicas.map_or(String::new(), |least| format!(", min-replicas-to-write {least}"));
                format!("{kind}, {role} with {} replicas, {} in step{least}", self.replicas, self.replicas_online)
            }
        }
    }

    fn persistence(&self) -> String {
        if self.refusal.is_empty() {
            let fsync = self.append_fsync.as_deref().unwrap_or("not shown");
            let append =
                if self.append_only { format!("appendonly yes, appendfsync {fsync}") } else { "appendonly no".into() };
            let snapshots = match self.snapshots.as_deref() {
                None => "not shown",
                Some("") => "none",
                Some(times) => times,
            };
            format!("{append}, snapshots {snapshots}")
        } else {
            "not shown".to_owned()
        }
    }

    fn remark_on_server(&self, report: &mut Report, watched: &Watched) {
        let allow_eviction = watched.allow_eviction;
        let Some(policy) = &self.eviction else {
            if allow_eviction {
                report.weakens("INFO is refused, so nothing is known of this server: it may forget claims");
            } else if self.refusal.contains("\"NOAUTH\"") {
                report.breaks(format!(
                    "Redis wants a login: write the user and the password into store.url, or better into ONCEPROXY_STORE, as \
                     redis://USER:PASSWORD@HOST ({})",
                    self.refusal
                ));
            } else {
                report.breaks(format!(
                    "the maxmemory-policy of Redis cannot be seen, because INFO is refused: allow it to this user, or \
                     set store.allow_eviction = true ({})",
                    self.refusal
                ));
            }
            return;
        };
        if let Some(reason) = &self.scripts_refused {
            report.breaks(format!(
                "Redis runs no script for this user, and every operation is one: allow EVAL and EVALSHA ({reason})"
            ));
        }
        let version = self.version_number();
        if version < OLDEST_VERSION {
            report.breaks(format!("Redis {} is too old: 7.0 or newer is needed", self.version));
        }
        if self.is_replica() {
            report.breaks(IS_REPLICA);
        }
        if watched.acknowledged.is_some_and(|wanted| wanted.on_disk) {
            if version < OLDEST_VERSION_WITH_WAITAOF {
                let version = &self.version;
                report.breaks(format!("store.wait_aof needs Redis 7.2 or newer, and this is {version}"));
            } else if !self.append_only {
                report.breaks("store.wait_aof needs appendonly yes, and this Redis has no such file");
            }
        }
        if policy != "noeviction" {
            if allow_eviction {
                report.weakens(format!(
                    "store.allow_eviction is on and the maxmemory-policy is {policy}: Redis may forget a claim, and a \
                     forgotten claim is a second execution"
                ));
            } else {
                report.breaks(format!(
                    "Redis may forget claims: its maxmemory-policy is {policy} and must be noeviction (or set \
                     store.allow_eviction = true)"
                ));
            }
        }
    }

    /// Major and minor; zero if it does not say.
    fn version_number(&self) -> (u32, u32) {
        let mut numbers = self.version.split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    fn remark_on_durability(&self, report: &mut Report, acknowledged: Option<Acknowledged>) {
        let snapshots = self.snapshots.as_deref().is_some_and(|times| !times.is_empty());
        match (self.append_only, self.append_fsync.as_deref()) {
            (false, _) if !snapshots => {
                report.weakens("Redis keeps nothing on disk as far as it shows: a restart forgets every record");
            }
            (false, _) => report.weakens(
                "Redis keeps snapshots alone: a restart after a crash forgets every record since the last one; set \
                 appendonly yes",
            ),
            (true, Some("always")) => {}
            (true, Some("no")) => report.weakens(
                "appendfsync is no: a power loss forgets the claims of the last half minute or so; set always",
            ),
            (true, _) => report.weakens(
                "appendfsync is not shown to be always: a power loss may forget the claims of the last second or two",
            ),
        }
        match acknowledged.map_or(0, |wanted| u64::from(wanted.replicas)) {
            0 if self.replicas > 0 => report.weakens(
                "replication is asynchronous: a failover may forget claims that had not reached the promoted replica",
            ),
            wanted if wanted < self.replicas => report.weakens(format!(
                "claims wait for {wanted} of {} replicas: a failover to another one may forget them",
                self.replicas
            )),
            _ => {}
        }
        if self.saves_fail && self.stops_when_saves_fail != Some(false) {
            report.weakens("the server's last save failed: it refuses to write until one succeeds");
        }
        if self.is_nearly_full() {
            report.weakens(format!("more than {NEARLY_FULL} % of maxmemory is used: a full server refuses claims"));
        }
    }
}

/// Whether a line of `INFO replication` speaks of a replica: `slave0`, `slave1` and so on.
fn is_replica(name: &str) -> bool {
    name.strip_prefix("slave").is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::store::report::Weight;

    fn watched(allow_eviction: bool, acknowledged: Option<Acknowledged>) -> Watched {
        Watched { allow_eviction, acknowledged, patience: std::time::Duration::ZERO, in_doubt: Arc::default() }
    }

    fn facts(version: &str, policy: Option<&str>) -> Facts {
        Facts {
            version: version.into(),
            eviction: policy.map(str::to_owned),
            role: "master".into(),
            append_only: true,
            append_fsync: Some("always".into()),
            ..Facts::default()
        }
    }

    #[test]
    fn accepts_only_a_server_that_never_forgets_by_itself() {
        assert_eq!(facts("7.0.15", Some("noeviction")).report(&watched(false, None)).remarks, []);
        assert_eq!(facts("7.0.15", Some("volatile-lru")).report(&watched(true, None)).broken(), None);
        assert_eq!(facts("8.0.0", None).report(&watched(true, None)).broken(), None);
        let replica = Facts { role: "slave".into(), ..facts("7.2.0", Some("noeviction")) };
        for (unfit, allow) in [
            (facts("7.0.15", Some("volatile-lru")), false),
            (facts("7.0.15", Some("allkeys-lfu")), false),
            (facts("7.0.15", None), false),
            (facts("6.2.14", Some("noeviction")), true),
            (replica, true),
        ] {
            assert!(unfit.report(&watched(allow, None)).broken().is_some(), "{unfit:?}");
        }
    }

    #[test]
    fn says_what_each_setting_may_lose() {
        let sound = || facts("7.0.15", Some("noeviction"));
        let weak = [
            (Facts { append_only: false, ..sound() }, "a restart forgets every record"),
            (Facts { append_only: false, snapshots: Some("3600 1".into()), ..sound() }, "since the last one"),
            (Facts { append_fsync: Some("everysec".into()), ..sound() }, "the last second or two"),
            (Facts { append_fsync: None, ..sound() }, "not shown to be always"),
            (Facts { append_fsync: Some("no".into()), ..sound() }, "half minute"),
            (Facts { replicas: 1, ..sound() }, "asynchronous"),
            (Facts { saves_fail: true, ..sound() }, "refuses to write"),
            (Facts { max_memory: 1000, used_memory: 950, ..sound() }, "a full server"),
        ];
        for (facts, says) in weak {
            let report = facts.report(&watched(false, None));
            let remarks: Vec<_> = report.of(Weight::Weakens).collect();
            assert_eq!(remarks.len(), 1, "{remarks:?}");
            assert!(remarks[0].contains(says), "{remarks:?} should say {says}");
            assert_eq!(report.broken(), None);
        }
    }

    #[test]
    fn a_server_that_cannot_write_its_log_is_not_ready() {
        let facts = Facts { appends_fail: true, ..facts("7.0.15", Some("noeviction")) };
        let Standing::Short(reason) = facts.standing(&watched(false, None)) else { panic!("ready") };
        assert!(reason.contains("cannot write its append-only file"), "{reason}");
        assert_eq!(facts.report(&watched(false, None)).broken(), Some(reason));
        // A failure of before, on a server that keeps no such file any more.
        let failed = Facts::read("aof_enabled:0\r\naof_last_write_status:err\r\n");
        assert!(!failed.appends_fail);
    }

    #[test]
    fn acknowledgements_need_replicas_and_on_disk_a_server_that_can_say_so() {
        let wanted = |replicas, on_disk| {
            let timeout = Duration::from_millis(200);
            watched(false, Some(Acknowledged { replicas, on_disk, timeout }))
        };
        let with =
            |version, replicas, append_only| Facts { replicas, append_only, ..facts(version, Some("noeviction")) };
        assert_eq!(with("7.0.15", 2, false).standing(&wanted(2, false)), Standing::Fit);
        assert!(matches!(with("7.0.15", 1, false).standing(&wanted(2, false)), Standing::Short(_)));
        assert_eq!(with("7.2.0", 1, true).standing(&wanted(1, true)), Standing::Fit);
        assert_eq!(with("8.0.1", 0, true).standing(&wanted(0, true)), Standing::Fit);
        for unfit in [with("7.0.15", 1, true), with("7.2.0", 1, false)] {
            assert!(matches!(unfit.standing(&wanted(1, true)), Standing::Unfit(_)), "{unfit:?}");
        }
        let of = |replicas| with("7.0.15", replicas, true).report(&wanted(2, false));
        assert!(of(1).broken().is_some_and(|reason| reason.contains("wait_replicas is 2")));
        assert_eq!(of(2).remarks, []);
        assert!(
            of(3)
                .of(Weight::Weakens)
                .eq(["claims wait for 2 of 3 replicas: a failover to another one may forget them"])
        );
        let replica = Facts { role: "slave".into(), ..with("7.0.15", 0, true) };
        assert_eq!(replica.standing(&wanted(2, false)), Standing::Replica);
    }

    #[test]
    fn reads_what_a_server_says() {
        let info = "# Server\r\nredis_version:7.0.15\r\naof_enabled:1\r\nmaxmemory_policy:noeviction\r\nrole:master\r\n\
                    connected_slaves:2\r\nslave0:ip=127.0.0.1,port=1,state=online,offset=1,lag=0\r\n\
                    slave1:ip=127.0.0.1,port=2,state=wait_bgsave,offset=0,lag=0\r\nmaxmemory:2097152\r\n\
                    used_memory:1048576\r\nrdb_last_bgsave_status:ok\r\naof_last_write_status:err\r\n";
        let mut facts = Facts::read(info);
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        facts.add_settings(Value::Array(vec![text("save"), text(""), text("appendfsync"), text("everysec")]));
        facts.add_settings(Value::Map(vec![(text("min-replicas-to-write"), text("1"))]));
        assert_eq!(
            facts,
            Facts {
                version: "7.0.15".into(),
                eviction: Some("noeviction".into()),
                role: "master".into(),
                replicas: 2,
                replicas_online: 1,
                append_only: true,
                appends_fail: true,
                max_memory: 2 << 20,
                used_memory: 1 << 20,
                snapshots: Some(String::new()),
                append_fsync: Some("everysec".into()),
                min_replicas: Some(1),
                ..Facts::default()
            }
        );
        let report = facts.report(&watched(false, None));
        assert_eq!(
            report.to_string(),
            "version: 7.0.15, topology: one server, master with 2 replicas, 1 in step, min-replicas-to-write 1, \
             persistence: appendonly yes, appendfsync everysec, snapshots none, eviction: noeviction, maxmemory 2 MiB, \
             scripts: run"
        );
        assert!(Facts::read("loading:1\r\n").is_loading);
        assert!(!is_replica("slave_expires_tracked_keys"), "other lines begin alike");
    }

    #[test]
    fn is_the_same_server_while_its_memory_moves() {
        let at = |used| Facts { max_memory: 1000, used_memory: used, ..facts("7.0.15", Some("noeviction")) }.lasting();
        assert_eq!(at(100), at(800));
        assert_ne!(at(100), at(950));
    }
}
