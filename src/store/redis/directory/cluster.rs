//! A cluster: which master has which slot.
//!
//! Any node may be asked. Their answers differ while the cluster changes: one that sees the cluster whole counts before
//! one that does not, and of those the one that has seen the highest epoch.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;

use super::{Found, gather, refusal, text};
use crate::config::store::Place;
use crate::store::OpenError;
use crate::store::redis::keys::SLOTS;
use crate::store::redis::link::Link;
use crate::store::redis::server::{Access, Server};
use crate::store::redis::topology::shards;

/// No more nodes are asked at once.
const ASKED_AT_MOST: usize = 5;

/// The nodes that are known.
pub(super) struct Guide {
    seeds: Vec<Arc<Link>>,
    links: Mutex<Vec<Arc<Link>>>,
}

impl Guide {
    /// Connects to nobody yet.
    pub(super) fn new(places: &[Place], access: &Arc<Access>) -> Result<Guide, OpenError> {
        let link = |place: &Place| Ok(Arc::new(Link::new(Arc::new(Server::new(place.clone(), Arc::clone(access))?))));
        let seeds = places.iter().map(link).collect::<Result<_, OpenError>>()?;
        Ok(Guide { seeds, links: Mutex::default() })
    }

    /// The node at this place, the same each time for as long as it is not forgotten.
    pub(super) fn server_at(&self, place: &Place, access: &Arc<Access>) -> Result<Arc<Server>, OpenError> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.iter().find(|link| link.server().place() == Some(place)) {
            return Ok(Arc::clone(link.server()));
        }
        let server = Arc::new(Server::new(place.clone(), Arc::clone(access))?);
        links.push(Arc::new(Link::new(Arc::clone(&server))));
        Ok(server)
    }

    /// Drops a node that has no slots any more.
    pub(super) fn forget(&self, server: &Arc<Server>) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| !Arc::ptr_eq(link.server(), server));
    }

    /// Asks some nodes.
    pub(super) async fn find(&self, patience: Duration) -> Result<Found, String> {
        let asked = self.to_be_asked();
        let question = || {
            let mut commands = redis::pipe();
            commands.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
            commands
        };
        let (answers, failures) = gather(&asked, question, patience, read).await;
        let best = answers.into_iter().max_by_key(|view| (view.is_whole, view.found.epoch));
        best.map(|view| view.found).ok_or_else(|| format!("no node says where the slots are: {}", failures.join("; ")))
    }

    /// First the nodes that answered last, then the others that are known, then those of the settings.
    fn to_be_asked(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let is_up = |link: &&Arc<Link>| link.server().condition.is_reachable();
        let (up, down): (Vec<_>, Vec<_>) = links.iter().partition(is_up);
        let mut asked: Vec<Arc<Link>> = Vec::new();
        for link in up.into_iter().chain(&self.seeds).chain(down) {
            if !asked.iter().any(|known| known.server().place() == link.server().place()) {
                asked.push(Arc::clone(link));
            }
        }
        asked.truncate(ASKED_AT_MOST);
        asked
    }
}

/// The cluster as one node sees it.
struct View {
    is_whole: bool,
    found: Found,
}

fn read(server: &Server, answer: &[Value]) -> Result<View, String> {
    if let Some(refusal) = refusal(answer) {
        return Err(refusal);
    }
    let [info, slots] = answer else { return Err("an answer that is not understood".into()) };
    let info = text(info).ok_or("CLUSTER INFO is not understood")?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let epoch = field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let Value::Array(ranges) = slots else { return Err("CLUSTER SLOTS is not understood".into()) };
    let asked = server.place().map_or("", |place| &place.host);
    let ranges: Option<Vec<_>> = ranges.iter().map(|range| self::range(range, asked)).collect();
    let ranges = ranges.ok_or("CLUSTER SLOTS is not understood")?;
    if ranges.is_empty() {
        return Err("it knows of no slots".into());
    }
    let owner_of = |slot: u16| ranges.iter().find(|(from, to, _)| (*from..=*to).contains(&slot));
    let owners = shards().map(|shard| owner_of(SLOTS[usize::from(shard)]).map(|(.., place)| place.clone())).collect();
    Ok(View { is_whole: field("cluster_state") == Some("ok"), found: Found { epoch, owners } })
}

/// First slot, last slot, master. A node that does not know its own name leaves it to whoever asked it.
fn range(value: &Value, asked: &str) -> Option<(u16, u16, Place)> {
    let Value::Array(parts) = value else { return None };
    let [Value::Int(from), Value::Int(to), Value::Array(master), ..] = &parts[..] else { return None };
    let host = match master.first()? {
        Value::Nil => asked.to_owned(),
        host => text(host).filter(|host| !host.is_empty()).unwrap_or_else(|| asked.to_owned()),
    };
    let Value::Int(port) = master.get(1)? else { return None };
    let place = Place { host, port: u16::try_from(*port).ok()? };
    Some((u16::try_from(*from).ok()?, u16::try_from(*to).ok()?, place))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::store::{Redis, Topology};
    use crate::store::kept::Renewals;
    use crate::store::redis::health::Watched;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn server() -> Server {
        let place = Place { host: "seed".into(), port: 7000 };
        let watched =
            Watched { allow_eviction: false, acknowledged: None, patience: Duration::ZERO, in_doubt: Arc::default() };
        let config = Redis::new(Topology::Cluster(vec![place.clone()]));
        let access = Access::new(&config, Duration::from_secs(1), watched, Renewals::default()).unwrap();
        Server::new(place, Arc::new(access)).unwrap()
    }

    #[test]
    fn reads_where_the_slots_are() {
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), bulk("id")]);
        let range = |from, to, nodes: Vec<Value>| {
            Value::Array([Value::Int(from), Value::Int(to)].into_iter().chain(nodes).collect())
        };
        let slots = Value::Array(vec![
            range(0, 8191, vec![node(bulk("10.0.0.1"), 7001), node(bulk("10.0.0.9"), 7009)]),
            range(8192, 16000, vec![node(Value::Nil, 7002)]),
        ]);
        let info = bulk("cluster_state:ok\r\ncluster_current_epoch:12\r\n");
        let view = read(&server(), &[info, slots]).unwrap();
        assert!(view.is_whole);
        assert_eq!(view.found.epoch, 12);
        for (shard, slot) in SLOTS.iter().enumerate() {
            let place = view.found.owners[shard].as_ref().map(|place| (place.host.as_str(), place.port));
            let right = match slot {
                0..=8191 => Some(("10.0.0.1", 7001)),
                8192..=16000 => Some(("seed", 7002)),
                _ => None,
            };
            assert_eq!(place, right, "{slot}");
        }
    }
}
