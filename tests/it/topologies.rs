//! Redis in the topologies of production, with real servers: the contract on each, and what happens when they change.
//!
//! `make test-stores` runs these alone.

use std::sync::Arc;

use onceproxy::config::store::{Backend, Place, Redis, Sentinels, StoreConfig, Topology};
use onceproxy::metrics::Metrics;
use onceproxy::store::{Opened, Store};

use crate::contract::{self, until};
use crate::support::topologies::{Cluster, Watched};

mod contract_on_each;

/// One process: a store, its metrics and its background work.
struct Process {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    background: tokio::task::JoinHandle<()>,
}

impl Process {
    fn open(config: &StoreConfig) -> Process {
        let metrics = Metrics::new();
        let Opened { store, background } = onceproxy::store::open(config, &metrics).unwrap();
        Process { store, metrics, background: tokio::spawn(background) }
    }

    async fn ready(config: &StoreConfig) -> Process {
        let process = Process::open(config);
        until("the store is ready", async || process.store.ready().ok()).await;
        process
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.background.abort();
    }
}

/// A store without its background work, so that nothing but the test's operations reaches the servers.
fn quiet(config: &StoreConfig) -> Arc<dyn Store> {
    onceproxy::store::open(config, &Metrics::new()).unwrap().store
}

/// The settings that a URL gives.
fn redis_of(url: &str) -> Redis {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (places, name) = rest.split_once('/').unwrap_or((rest, ""));
    let place = |text: &str| {
        let (host, port) = text.rsplit_once(':').unwrap();
        Place { host: host.to_owned(), port: port.parse().unwrap() }
    };
    let places: Vec<Place> = places.split(',').map(place).collect();
    Redis::new(match scheme {
        "redis+cluster" => Topology::Cluster(places),
        "redis+sentinel" => {
            Topology::Sentinel(Sentinels { places, master: name.to_owned(), username: None, password: None })
        }
        _ => panic!("not a topology: {url}"),
    })
}

fn cluster_config(cluster: &Cluster) -> StoreConfig {
    contract::config(Backend::Redis(redis_of(&cluster.url())))
}

fn sentinel_config(watched: &Watched) -> StoreConfig {
    contract::config(Backend::Redis(redis_of(&watched.url())))
}
