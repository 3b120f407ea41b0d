//! Who has which shard now, where that changes: the master that sentinels name, or the masters of a cluster.
//!
//! What was found is kept until an operation finds it wrong, and is asked for again every second besides: a master that
//! was demoted keeps its connections. Nothing here waits for a server that hangs: several are asked at once, under a
//! deadline, and the newest answer counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, info, warn};

use super::keys::SHARDS;
use super::link::Link;
use super::server::{Access, Server};
use super::topology::shards;
use crate::config::store::{Place, Sentinels};
use crate::store::OpenError;

mod cluster;
mod sentinel;

const ASK_EVERY: Duration = Duration::from_secs(1);
/// Operations that find an answer wrong do not ask more often than this.
const LEAST_PAUSE: Duration = Duration::from_millis(50);
/// How long the rest of a majority is waited for once somebody answered.
const GRACE: Duration = Duration::from_millis(100);

/// Nobody says where a shard is.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Lost(String);

/// The servers of one store.
pub(super) struct Directory {
    guide: Guide,
    access: Arc<Access>,
    // For one answer of those who know; short, since an operation may wait for it.
    patience: Duration,
    map: ArcSwapOption<Map>,
    // Raised by an operation that found the map wrong.
    is_in_doubt: AtomicBool,
    asking: tokio::sync::Mutex<Option<Instant>>,
    version: watch::Sender<u64>,
    last_failure: Mutex<String>,
}

/// Who knows.
enum Guide {
    Sentinels(sentinel::Guide),
    Cluster(cluster::Guide),
}

/// Which server has which shard.
#[derive(Clone)]
struct Map {
    servers: Vec<Arc<Server>>,
    /// Of each shard, the place of its server in the list above.
    owners: Vec<Option<usize>>,
}

impl Map {
    fn server_of(&self, shard: u8) -> Option<&Arc<Server>> {
        self.owners.get(usize::from(shard)).copied().flatten().map(|owner| &self.servers[owner])
    }
}

/// What those who know say: of each shard, where its server is.
struct Found {
    /// Later answers have a higher one.
    epoch: u64,
    owners: Vec<Option<Place>>,
}

impl Directory {
    /// The master that these sentinels name.
    pub(super) fn of_sentinels(config: &Sentinels, access: Access, patience: Duration) -> Result<Directory, OpenError> {
        let guide = sentinel::Guide::new(config, &access)?;
        Ok(Directory::new(Guide::Sentinels(guide), access, patience))
    }

    /// The masters of the cluster to which these nodes belong.
    pub(super) fn of_cluster(places: &[Place], access: Access, patience: Duration) -> Result<Directory, OpenError> {
        let access = Arc::new(access);
        let guide = cluster::Guide::new(places, &access)?;
        Ok(Directory::new(Guide::Cluster(guide), Arc::unwrap_or_clone(access), patience))
    }

    fn new(guide: Guide, access: Access, timeout: Duration) -> Directory {
        Directory {
            guide,
            access: Arc::new(access),
            patience: timeout / 4,
            map: ArcSwapOption::empty(),
            is_in_doubt: AtomicBool::new(false),
            asking: tokio::sync::Mutex::default(),
            version: watch::Sender::new(0),
            last_failure: Mutex::new("Redis was not reached yet".into()),
        }
    }

    /// Whether these are the servers of a cluster.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.guide, Guide::Cluster(_))
    }

    /// The server that has this shard. Asks first if nobody did yet, or if the last answer was found wrong.
    pub(super) async fn server_of(&self, shard: u8) -> Result<Arc<Server>, Lost> {
        if !self.is_in_doubt.load(Ordering::Acquire)
            && let Some(server) = self.known_server_of(shard)
        {
            return Ok(server);
        }
        let asked = Box::pin(self.ask_again()).await;
        // A sentinel that does not answer says nothing against the master that was last named.
        self.known_server_of(shard).ok_or_else(|| {
            Lost(match asked {
                Ok(()) => "no server of the Redis cluster has the slot of this key".into(),
                Err(reason) => reason,
            })
        })
    }

    /// The server that had this shard when somebody last asked.
    pub(super) fn known_server_of(&self, shard: u8) -> Option<Arc<Server>> {
        self.map.load().as_ref().and_then(|map| map.server_of(shard).cloned())
    }

    /// Says that an operation found a server gone, or demoted.
    pub(super) fn doubt(&self) {
        self.is_in_doubt.store(true, Ordering::Release);
    }

    /// The server to which a node of the cluster sends a client for a single question.
    pub(super) fn server_at(&self, place: &Place) -> Option<Arc<Server>> {
        match &self.guide {
            Guide::Sentinels(_) => None,
            Guide::Cluster(guide) => guide.server_at(place, &self.access).ok(),
        }
    }

    /// Takes in what a node says of one shard.
    pub(super) fn moved(&self, shard: u8, place: &Place) {
        let Some(server) = self.server_at(place) else { return self.doubt() };
        self.map.rcu(|map| {
            let mut map = map.as_deref().cloned()?;
            let known = map.servers.iter().position(|known| Arc::ptr_eq(known, &server));
            let owner = known.unwrap_or(map.servers.len());
            if known.is_none() {
                map.servers.push(Arc::clone(&server));
            }
            *map.owners.get_mut(usize::from(shard))? = Some(owner);
            Some(Arc::new(map))
        });
        self.version.send_modify(|version| *version += 1);
    }

    /// The servers that have a shard.
    pub(super) fn servers(&self) -> Vec<Arc<Server>> {
        self.map.load().as_ref().map(|map| map.servers.clone()).unwrap_or_default()
    }

    /// The shards by their servers, in order; those that nobody has are alone.
    pub(super) fn groups(&self) -> Vec<Vec<u8>> {
        let map = self.map.load();
        let owner_of = |shard: u8| map.as_ref().and_then(|map| map.owners.get(usize::from(shard)).copied().flatten());
        let mut groups: Vec<(Option<usize>, Vec<u8>)> = Vec::new();
        for shard in shards() {
            let owner = owner_of(shard);
            match groups.iter_mut().find(|(known, _)| *known == owner) {
                Some((_, group)) => group.push(shard),
                None => groups.push((owner, vec![shard])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Tells when the map changed.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Why nothing is known.
    pub(super) fn last_failure(&self) -> String {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks again and again, for as long as it is polled.
    pub(super) async fn keep(&self) {
        let mut was_lost = false;
        loop {
            let asked = self.ask_again().await;
            if let Err(reason) = &asked
                && !was_lost
            {
                warn!(reason, "cannot ask where the master is; what was last known is used");
            }
            was_lost = asked.is_err();
            sleep(ASK_EVERY).await;
        }
    }

    /// Asks those who know. Of many that call at once one does it.
    async fn ask_again(&self) -> Result<(), String> {
        let called = Instant::now();
        let mut last = self.asking.lock().await;
        if last.is_some_and(|last| last >= called || called - last < LEAST_PAUSE) {
            return if self.map.load().is_some() { Ok(()) } else { Err(self.last_failure()) };
        }
        self.is_in_doubt.store(false, Ordering::Release);
        let found = match &self.guide {
            Guide::Sentinels(guide) => guide.find(self.patience).await,
            Guide::Cluster(guide) => guide.find(self.patience).await,
        };
        *last = Some(Instant::now());
        let taken = found.and_then(|found| self.take(&found));
        if let Err(reason) = &taken {
            self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone_from(reason);
        }
        taken
    }

    /// Puts what was found in the place of the map. A server that is named again stays the same.
    fn take(&self, found: &Found) -> Result<(), String> {
        let old = self.map.load_full();
        let (mut servers, mut owners): (Vec<Arc<Server>>, _) = (Vec::new(), Vec::with_capacity(found.owners.len()));
        for place in &found.owners {
            let Some(place) = place else {
                owners.push(None);
                continue;
            };
            let owner = match servers.iter().position(|server| server.place() == Some(place)) {
                Some(owner) => owner,
                None => {
                    servers.push(self.server_named(place, old.as_deref())?);
                    servers.len() - 1
                }
            };
            owners.push(Some(owner));
        }
        let is_same = old.as_ref().is_some_and(|old| {
            old.owners == owners
                && old.servers.len() == servers.len()
                && old.servers.iter().zip(&servers).all(|(old, new)| Arc::ptr_eq(old, new))
        });
        if is_same {
            return Ok(());
        }
        self.announce(old.as_deref(), &servers, found.epoch);
        self.map.store(Some(Arc::new(Map { servers, owners })));
        self.version.send_modify(|version| *version += 1);
        Ok(())
    }

    fn server_named(&self, place: &Place, old: Option<&Map>) -> Result<Arc<Server>, String> {
        if let Guide::Cluster(guide) = &self.guide {
            return guide.server_at(place, &self.access).map_err(|error| error.to_string());
        }
        let known =
            old.and_then(|old| old.servers.iter().find(|server| server.place() == Some(place) && !server.is_left()));
        match known {
            Some(server) => Ok(Arc::clone(server)),
            None => {
                let server = Server::new(place.clone(), Arc::clone(&self.access)).map_err(|error| error.to_string())?;
                Ok(Arc::new(server.only_as_master()))
            }
        }
    }

    fn announce(&self, old: Option<&Map>, servers: &[Arc<Server>], epoch: u64) {
        let is_new =
            |server: &Arc<Server>| !old.is_some_and(|old| old.servers.iter().any(|known| Arc::ptr_eq(known, server)));
        for server in servers.iter().filter(|server| is_new(server)) {
            info!(address = server.address(), epoch, "this Redis is a master now");
        }
        for server in old.iter().flat_map(|old| &old.servers) {
            if !servers.iter().any(|new| Arc::ptr_eq(new, server)) {
                info!(address = server.address(), epoch, "this Redis is no master of the store any more, and is left");
                server.leave();
                if let Guide::Cluster(guide) = &self.guide {
                    guide.forget(server);
                }
            }
        }
    }
}

/// Asks all of these at once. Returns the answers that came, when a majority has answered, when all have, or when
/// nobody else did within the grace; and for each that gave none, why.
async fn gather<A, F>(
    links: &[Arc<Link>],
    question: impl Fn() -> redis::Pipeline,
    patience: Duration,
    read: F,
) -> (Vec<A>, Vec<String>)
where
    F: Fn(&Server, &[Value]) -> Result<A, String>,
{
    let (tell, mut told) = mpsc::channel(links.len().max(1));
    for link in links {
        let (link, tell, question) = (Arc::clone(link), tell.clone(), question());
        // On its own, so that the connection to one that hangs is given up although nobody waits for its answer.
        tokio::spawn(async move {
            let answer = ask_one(&link, &question, patience).await;
            let _ = tell.send((link, answer)).await;
        });
    }
    drop(tell);
    let majority = links.len() / 2 + 1;
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    let mut end = Instant::now() + patience * 2;
    while answers.len() < majority {
        let Ok(Some((link, answer))) = timeout_at(end, told.recv()).await else { break };
        let server = link.server();
        match answer.and_then(|answer| read(server, &answer)) {
            Ok(answer) => {
                answers.push(answer);
                end = end.min(Instant::now() + GRACE);
            }
            Err(reason) => {
                debug!(address = server.address(), reason, "no use in asking this one where the master is");
                failures.push(format!("{}: {reason}", server.address()));
            }
        }
    }
    (answers, failures)
}

async fn ask_one(link: &Link, question: &redis::Pipeline, patience: Duration) -> Result<Vec<Value>, String> {
    let mut connection = match timeout(patience, link.connection()).await {
        Ok(connected) => connected.map_err(|error| error.to_string())?,
        Err(_) => return Err("no connection in time".into()),
    };
    let answer = connection.commands.send_packed_commands(question, 0, question.len());
    match timeout(patience, answer).await {
        Ok(Ok(answers)) => Ok(answers),
        Ok(Err(error)) => {
            link.discard(&connection);
            Err(error.to_string())
        }
        Err(_) => {
            link.discard(&connection);
            Err("no answer in time".into())
        }
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// What an answer says that is an error.
fn refusal(values: &[Value]) -> Option<String> {
    values.iter().find_map(|value| value.clone().extract_error().err()).map(|error| error.to_string())
}

/// A place for every shard.
fn everywhere(place: &Place) -> Vec<Option<Place>> {
    (0..SHARDS).map(|_| Some(place.clone())).collect()
}
