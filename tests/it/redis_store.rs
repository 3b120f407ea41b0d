//! The Redis store on real servers: the contract, and what it adds to it.

use std::sync::Arc;
use std::time::Duration;

use onceproxy::config::store::{Backend, Redis, StoreConfig};
use onceproxy::metrics::Metrics;
use onceproxy::store::{Opened, Store};

use super::contract::{self, until};
use super::redis_server::RedisServer;

fn backend(port: u16) -> Redis {
    Redis { host: "127.0.0.1".into(), port, db: 0, username: None, password: None, tls: None }
}

fn config(port: u16) -> StoreConfig {
    contract::config(Backend::Redis(backend(port)))
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
    // Whichever of the two sweeps, the other shows its counts.
    drop(two);
    contract::sweep(&*one.store, &one.metrics).await;
    let _ = Duration::ZERO;
}
