//! Which servers there are: one for good, or those that a directory names from time to time.

use std::sync::Arc;
use std::time::Duration;

use super::directory::Directory;
use super::health::Watched;
use super::keys::SHARDS;
use super::server::{Access, Server};
use crate::config::store::{Redis, Topology as Config};
use crate::store::kept::Renewals;
use crate::store::{NotReady, OpenError};

/// The servers of a store.
pub(super) enum Topology {
    /// One server.
    One(Arc<Server>),
    /// A master that sentinels name, or the masters of a cluster.
    Changing(Arc<Directory>),
}

impl Topology {
    /// Reads the files; connects to nobody.
    pub(super) fn new(
        config: &Redis,
        timeout: Duration,
        watched: Watched,
        renewals: &Renewals,
    ) -> Result<Topology, OpenError> {
        let access = Access::new(config, timeout, watched, renewals.clone())?;
        Ok(match &config.topology {
            Config::One(place) => Topology::One(Arc::new(Server::new(place.clone(), Arc::new(access))?)),
            Config::Socket(path) => Topology::One(Arc::new(Server::at_socket(path.clone(), Arc::new(access)))),
            Config::Sentinel(sentinels) => {
                Topology::Changing(Arc::new(Directory::of_sentinels(sentinels, access, timeout)?))
            }
            Config::Cluster(places) => Topology::Changing(Arc::new(Directory::of_cluster(places, access, timeout)?)),
        })
    }

    /// Whether the shards are spread over servers, and with them the channels.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Topology::Changing(directory) if directory.is_cluster())
    }

    /// The servers that hold records, as far as they are known.
    pub(super) fn servers(&self) -> Vec<Arc<Server>> {
        match self {
            Topology::One(server) => vec![Arc::clone(server)],
            Topology::Changing(directory) => directory.servers(),
        }
    }

    /// The shards, together where one server has them all, in their order.
    pub(super) async fn groups(&self) -> Vec<Vec<u8>> {
        match self {
            Topology::One(_) => vec![shards().collect()],
            Topology::Changing(directory) => {
                if directory.servers().is_empty() {
                    // Whether somebody answers shows when the groups are asked.
                    let _ = directory.server_of(0).await;
                }
                directory.groups()
            }
        }
    }

    /// The shards of these by the servers that have them now, as far as that is known.
    pub(super) fn grouped<T>(&self, items: Vec<T>, shard: impl Fn(&T) -> u8) -> Vec<Vec<T>> {
        let Topology::Changing(directory) = self else { return vec![items] };
        let mut groups: Vec<(Option<Arc<Server>>, Vec<T>)> = Vec::new();
        for item in items {
            let server = directory.known_server_of(shard(&item));
            let is_same =
                |known: &Option<Arc<Server>>| known.as_ref().map(Arc::as_ptr) == server.as_ref().map(Arc::as_ptr);
            match groups.iter_mut().find(|(known, _)| is_same(known)) {
                Some((_, group)) => group.push(item),
                None => groups.push((server, vec![item])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Whether keyed requests have a chance.
    ///
    /// Of a cluster one server that serves is enough: a probe that failed for all because a part is away would turn a
    /// part of an outage into a whole one. Settings under which claims are forgotten are another matter.
    pub(super) fn ready(&self) -> Result<(), NotReady> {
        let servers = self.servers();
        if let Some(unfit) = servers.iter().find_map(|server| server.condition.unfit()) {
            return Err(NotReady::ForNow(unfit));
        }
        let mut away = None;
        for server in servers {
            match server.condition.ready() {
                Ok(()) => return Ok(()),
                Err(reason) => away = away.or(Some(reason)),
            }
        }
        Err(NotReady::ForNow(away.unwrap_or_else(|| match self {
            Topology::One(_) => "Redis was not reached yet".into(),
            Topology::Changing(directory) => directory.last_failure(),
        })))
    }
}

/// All shards.
pub(super) fn shards() -> impl Iterator<Item = u8> {
    (0..SHARDS).map(|shard| shard.to_be_bytes()[1])
}

/// Keeps what is known of the servers up to date, for as long as it is polled.
pub(super) async fn keep(topology: &Topology) {
    if let Topology::Changing(directory) = topology {
        directory.keep().await;
    }
}
