//! The Postgres store on real servers, directly and through PgBouncer in transaction mode.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use onceproxy::config::store::{Backend, Postgres, SslMode, StoreConfig};
use onceproxy::metrics::Metrics;
use onceproxy::record::{Claim, ClaimReply, CompleteReply, Fingerprint, OnUnknown, RecordId, Response, Token};
use onceproxy::store::{Opened, Store};

use crate::contract::{self, until};
use crate::postgres_server::{ADMIN, DATABASE, PgBouncer, PostgresServer};

const GRANTED: ClaimReply = ClaimReply::Granted { attempts: 1, taken_over: None };
const DAY: Duration = Duration::from_secs(86_400);

fn backend(port: u16) -> Postgres {
    Postgres {
        host: "127.0.0.1".into(),
        port,
        database: DATABASE.into(),
        user: ADMIN.into(),
        password: None,
        sslmode: SslMode::Disable,
        ca_file: None,
        client: None,
    }
}

/// Settings with a schema that no other test has.
fn config_of(postgres: Postgres) -> StoreConfig {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("once.{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    StoreConfig { prefix, ..contract::config(Backend::Postgres(postgres)) }
}

/// The same, with the schema in place.
async fn prepared(postgres: Postgres) -> StoreConfig {
    let config = config_of(postgres);
    onceproxy::store::init(&config).await.unwrap();
    config
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
}

impl Drop for Process {
    fn drop(&mut self) {
        self.background.abort();
    }
}

/// Two processes at the same store keep the contract, and whichever of them is left sweeps.
async fn keeps_the_contract(config: &StoreConfig) {
    let (one, two) = (Process::open(config), Process::open(config));
    let handles = std::cell::Cell::new(0);
    contract::suite(|| {
        handles.set(handles.get() + 1);
        if handles.get() % 2 == 0 { one.store.for_core() } else { two.store.for_core() }
    })
    .await;
    drop(two);
    contract::sweep(&*one.store, &one.metrics).await;
}

#[tokio::test]
async fn postgres_keeps_the_contract() {
    let config = prepared(backend(PostgresServer::shared().port())).await;
    keeps_the_contract(&config).await;
}

#[tokio::test]
async fn postgres_behind_pgbouncer_keeps_the_contract() {
    let server = PostgresServer::shared();
    let config = prepared(backend(server.port())).await;
    // The first refuses the options of a login, the second passes over them.
    for settings in ["", "ignore_startup_parameters = options"] {
        let pooler = PgBouncer::before(server, settings);
        let config = StoreConfig { backend: Backend::Postgres(backend(pooler.port())), ..config.clone() };
        keeps_the_contract(&config).await;
    }
}
