//! The Redis store on real servers: the contract, and what it adds to it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceproxy::config::store::{Backend, Place, Redis, StoreConfig, Topology};
use onceproxy::metrics::Metrics;
use onceproxy::record::{Claim, ClaimReply, CompleteReply, Fingerprint, OnUnknown, RecordId, Response, Taken, Token};
use onceproxy::store::{Opened, Store};

use super::contract::{self, until};
use super::redis_server::{self, RedisServer};

mod access;
mod before;
mod limits;
mod loss;
mod server;
mod trips;
mod wakes;

fn backend(port: u16) -> Redis {
    backend_at("127.0.0.1", port)
}

fn backend_at(host: &str, port: u16) -> Redis {
    Redis::new(Topology::One(Place { host: host.into(), port }))
}

fn config_of(redis: Redis) -> StoreConfig {
    contract::config(Backend::Redis(redis))
}

fn config(port: u16) -> StoreConfig {
    config_of(backend(port))
}

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
        process.becomes_ready().await;
        process
    }

    async fn becomes_ready(&self) {
        until("the store is ready", async || self.store.ready().ok()).await;
    }

    async fn becomes_unready(&self) -> String {
        until("the store is not ready", async || self.store.ready().err()).await.to_string()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.background.abort();
    }
}

/// A store without its background work, so that nothing but the test's operations reaches the server.
fn quiet(config: &StoreConfig) -> Arc<dyn Store> {
    onceproxy::store::open(config, &Metrics::new()).unwrap().store
}

fn claim() -> Claim {
    Claim {
        id: RecordId::new("redis".into(), *Token::new().as_bytes()),
        token: Token::new(),
        imprint: Fingerprint { policy: [1; 4], digest: [2; 32] }.into(),
        quoted: false,
        lease: Duration::from_secs(3600),
        abandon_after: Duration::from_secs(3600),
        on_unknown: OnUnknown::Hold,
        unknown_retention: None,
    }
}

/// The same request by another attempt.
fn again(claim: &Claim) -> Claim {
    Claim { token: Token::new(), ..claim.clone() }
}

fn key_of(id: &RecordId) -> String {
    let hex = id.hex().to_string();
    format!("once:{{{}}}:r:{hex}", &hex[..2])
}

fn response(size: usize) -> Response {
    Response::new(201, [(&b"location"[..], &b"/1"[..])], [], Some(Bytes::from(vec![b'x'; size])))
}

const GRANTED: ClaimReply = ClaimReply::Granted { attempts: 1, taken_over: None };
const DAY: Duration = Duration::from_secs(86_400);

async fn completed(store: &dyn Store, response: &Response) -> Claim {
    let claim = claim();
    assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
    assert_eq!(store.complete(&claim, response, DAY).await.unwrap(), CompleteReply::Stored);
    claim
}

async fn replay(store: &dyn Store, claim: &Claim) -> Response {
    match store.claim(&again(claim)).await.unwrap() {
        ClaimReply::Taken(Taken::Completed(replay)) => replay.response,
        other => panic!("not a replay: {other:?}"),
    }
}

#[tokio::test]
async fn redis_keeps_the_contract() {
    let server = RedisServer::start(&[]);
    let (one, two) = (Process::open(&config(server.port())), Process::open(&config(server.port())));
    let handles = std::cell::Cell::new(0);
    contract::suite(|| {
        handles.set(handles.get() + 1);
        if handles.get() % 2 == 0 { one.store.for_core() } else { two.store.for_core() }
    })
    .await;
    // Whichever of the two swept, the one that is left does.
    drop(two);
    contract::sweep(&*one.store, &one.metrics).await;
}
