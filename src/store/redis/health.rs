//! Whether this server can keep the promise: reachable, new enough, and set never to forget a record by itself.
//!
//! Looked at when the store is opened and every few seconds after that, because a server's settings can be changed
//! while it runs and a name can come to lead to another server.

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
use super::link::Link;
use crate::store::{NotReady, StoreError, StoreErrorKind};

const CHECK_EVERY: Duration = Duration::from_secs(2);
const CHECK_EVERY_WHILE_DOWN: Duration = Duration::from_millis(500);
const OLDEST_MAJOR_VERSION: u32 = 7;

/// What was last seen of the server.
pub(super) struct Health {
    is_reachable: AtomicBool,
    last_failure: Mutex<String>,
    standing: ArcSwap<Standing>,
    allow_eviction: bool,
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
    pub(super) fn new(allow_eviction: bool) -> Health {
        Health {
            is_reachable: AtomicBool::new(true),
            last_failure: Mutex::default(),
            standing: ArcSwap::from_pointee(Standing::Unchecked),
            allow_eviction,
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
            Standing::Unchecked => Err(NotReady::ForNow("Redis was not reached yet".into())),
            Standing::Unfit(reason) => Err(NotReady::ForNow(reason.clone())),
        }
    }

    /// Whether the last thing heard of the server was an answer.
    pub(super) fn is_reachable(&self) -> bool {
        self.is_reachable.load(Ordering::Acquire)
    }

    /// Remembers that an operation failed, if that says something about the server.
    pub(super) fn failed(&self, error: &StoreError) {
        if matches!(error.kind, StoreErrorKind::Unreachable | StoreErrorKind::TimedOut) {
            *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = error.message.clone();
            self.is_reachable.store(false, Ordering::Release);
            self.in_doubt.notify_one();
        }
    }

    /// Remembers that the server is there but lets nobody in.
    fn refused(&self, error: &StoreError) {
        self.standing.store(Arc::new(Standing::Unfit(error.message.clone())));
        self.is_reachable.store(true, Ordering::Release);
    }

    fn saw(&self, facts: &Facts) {
        self.standing.store(Arc::new(facts.standing(self.allow_eviction)));
        self.is_reachable.store(true, Ordering::Release);
    }
}

/// Refuses a claim on a server that might forget it; looks at the server first if nobody has yet.
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
    let seen = see(link, limits).await;
    match &seen {
        Ok(facts) => shared.health.saw(facts),
        Err(error) if error.kind == StoreErrorKind::Refused => shared.health.refused(error),
        Err(error) => shared.health.failed(error),
    }
    seen
}

async fn see(link: &Link, limits: Limits) -> Result<Facts, StoreError> {
    let mut commands = redis::pipe();
    // CONFIG is often forbidden, and then only less is logged: INFO says what matters.
    commands.cmd("INFO").cmd("CONFIG").arg("GET").arg("save");
    let Value::Array(answers) = ask(link, &Question::Commands(commands), limits).await? else {
        return Ok(Facts::default());
    };
    let mut answers = answers.into_iter();
    let mut facts = match answers.next().map(Value::extract_error) {
        Some(Ok(Value::BulkString(info))) => Facts::read(&String::from_utf8_lossy(&info)),
        Some(Err(refusal)) => match error_of(link, refusal) {
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

/// Looks at the server again and again, and says in the log what changed.
pub(super) async fn watch_server(shared: &Shared, link: &Link) {
    let mut seen: Option<Facts> = None;
    let mut was_down = false;
    loop {
        match check(shared, link, Limits::new(shared.timeout, false)).await {
            Ok(facts) => {
                if was_down {
                    info!(address = link.endpoint().address(), "Redis is back");
                }
                was_down = false;
                if seen.as_ref() != Some(&facts) {
                    facts.log(link, shared.health.allow_eviction);
                    seen = Some(facts);
                }
            }
            Err(error) => {
                if !was_down {
                    warn!(error = %error, "Redis is not there; keyed requests are refused until it is");
                }
                was_down = true;
            }
        }
        if was_down {
            sleep(CHECK_EVERY_WHILE_DOWN).await;
        } else {
            // One failed operation makes the process not ready; whether that is true is found out at once.
            let _ = timeout(CHECK_EVERY, shared.health.in_doubt.notified()).await;
        }
    }
}

/// What the server says of itself, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
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

    fn standing(&self, allow_eviction: bool) -> Standing {
        if allow_eviction && self.eviction.is_none() {
            return Standing::Fit;
        }
        let Some(policy) = &self.eviction else {
            return Standing::Unfit(format!(
                "the maxmemory-policy of Redis cannot be seen, because INFO is refused: allow it to this user, or set \
                 store.allow_eviction = true ({})",
                self.refusal
            ));
        };
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_none_or(|major| major < OLDEST_MAJOR_VERSION) {
            return Standing::Unfit(format!("Redis {} is too old: 7.0 or newer is needed", self.version));
        }
        if self.role == "slave" {
            return Standing::Unfit("this Redis is a replica: store.url must name the master".into());
        }
        if policy != "noeviction" && !allow_eviction {
            return Standing::Unfit(format!(
                "Redis may forget claims: its maxmemory-policy is {policy} and must be noeviction (or set \
                 store.allow_eviction = true)"
            ));
        }
        Standing::Fit
    }

    fn log(&self, link: &Link, allow_eviction: bool) {
        info!(
            address = link.endpoint().address(),
            version = self.version,
            maxmemory_policy = self.eviction.as_deref().unwrap_or("not shown"),
            append_only = self.append_only,
            snapshots = self.snapshots.as_deref().unwrap_or("not shown"),
            replicas = self.replicas,
            "Redis was reached"
        );
        if let Standing::Unfit(reason) = self.standing(allow_eviction) {
            warn!(reason, "Redis is not used: keyed requests are refused");
        }
        if allow_eviction && self.eviction.as_deref() != Some("noeviction") {
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

    #[test]
    fn accepts_only_a_server_that_never_forgets_by_itself() {
        assert_eq!(facts("7.0.15", Some("noeviction")).standing(false), Standing::Fit);
        assert_eq!(facts("7.0.15", Some("volatile-lru")).standing(true), Standing::Fit);
        assert_eq!(facts("8.0.0", None).standing(true), Standing::Fit);
        let replica = Facts { role: "slave".into(), ..facts("7.2.0", Some("noeviction")) };
        for (unfit, allow) in [
            (facts("7.0.15", Some("volatile-lru")), false),
            (facts("7.0.15", Some("allkeys-lfu")), false),
            (facts("7.0.15", None), false),
            (facts("6.2.14", Some("noeviction")), true),
            (replica, true),
        ] {
            assert!(matches!(unfit.standing(allow), Standing::Unfit(_)), "{unfit:?}");
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
