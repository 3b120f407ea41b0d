//! The store as it is run in production: each topology on real servers that the tests start themselves.
//!
//! `make test-stores` runs these alone. Each holds to the contract, and then shows what it adds and what it survives.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceproxy::config::store::{Acknowledged, Backend, Place, Redis, Sentinels, StoreConfig, Topology};
use onceproxy::metrics::Metrics;
use onceproxy::record::{Claim, ClaimReply, Fingerprint, OnUnknown, RecordId, Response, Taken, Token};
use onceproxy::store::{Opened, Store};

use crate::contract::{self, until};
use crate::support::topologies::{Cluster, Watched};

mod contract_on_each;
mod failover;
mod no_room;
mod postgres;
mod replicas;
mod second_line;
mod slots;
mod sockets;
mod trips;
mod valkey;

/// One process: a store, its metrics and its background work.
struct Process {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    background: tokio::task::JoinHandle<()>,
}

impl Process {
    fn open(config: &StoreConfig) -> Process {
        let metrics = Metrics::new();
        let Opened { store, background, .. } = onceproxy::store::open(config, &metrics).unwrap();
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

fn claim_in(shard: u8) -> Claim {
    let mut hash = *Token::new().as_bytes();
    hash[0] = shard;
    Claim {
        id: RecordId::new("redis".into(), hash),
        token: Token::new(),
        imprint: Fingerprint { policy: [1; 4], digest: [2; 32] }.into(),
        quoted: false,
        lease: HOUR,
        abandon_after: HOUR,
        on_unknown: OnUnknown::Hold,
        unknown_retention: None,
    }
}

/// The same request by another attempt.
fn again(claim: &Claim) -> Claim {
    Claim { token: Token::new(), ..claim.clone() }
}

fn response(size: usize) -> Response {
    Response::new(201, [(&b"location"[..], &b"/1"[..])], [], Some(Bytes::from(vec![b'x'; size])))
}

const GRANTED: ClaimReply = ClaimReply::Granted { attempts: 1, taken_over: None };
const HOUR: Duration = Duration::from_secs(3600);

/// The slot of a shard, as a node says.
fn slot_of(cluster: &Cluster, shard: u8) -> u16 {
    cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", &format!("{{{shard:02x}}}")]).parse().unwrap()
}

/// The same settings, with claims that count when this many replicas have them.
fn with_replicas(mut config: StoreConfig, replicas: u32) -> StoreConfig {
    if let Backend::Redis(redis) = &mut config.backend {
        redis.acknowledged = Some(Acknowledged { replicas, on_disk: false, timeout: Duration::from_millis(200) });
    }
    config
}
