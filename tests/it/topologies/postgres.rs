//! The Postgres store on real servers, directly and through PgBouncer in transaction mode.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use onceproxy::config::store::{Backend, Postgres, SslMode, StoreConfig};
use onceproxy::metrics::Metrics;
use onceproxy::record::{Claim, ClaimReply, CompleteReply, Fingerprint, OnUnknown, RecordId, Response, Taken, Token};
use onceproxy::store::{Opened, Store, StoreErrorKind};

use crate::contract::{self, until};
use crate::postgres_server::{ADMIN, DATABASE, PgBouncer, PostgresServer, fresh_schema};

mod access;
mod loss;
pub(super) mod trips;

pub(super) const GRANTED: ClaimReply = ClaimReply::Granted { attempts: 1, taken_over: None };
pub(super) const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn backend(port: u16) -> Postgres {
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

fn config_of(postgres: Postgres) -> StoreConfig {
    StoreConfig { prefix: fresh_schema(), ..contract::config(Backend::Postgres(postgres)) }
}

/// Settings with a schema of one's own, which is in place.
pub(super) async fn prepared(postgres: Postgres) -> StoreConfig {
    let config = config_of(postgres);
    onceproxy::store::init(&config).await.unwrap();
    config
}

/// The same records, reached in another way.
fn through(config: &StoreConfig, port: u16) -> StoreConfig {
    StoreConfig { backend: Backend::Postgres(backend(port)), ..config.clone() }
}

/// One process: a store, its metrics and its background work.
pub(super) struct Process {
    pub(super) store: Arc<dyn Store>,
    pub(super) metrics: Arc<Metrics>,
    background: tokio::task::JoinHandle<()>,
}

impl Process {
    pub(super) fn open(config: &StoreConfig) -> Process {
        let metrics = Metrics::new();
        let Opened { store, background, .. } = onceproxy::store::open(config, &metrics).unwrap();
        Process { store, metrics, background: tokio::spawn(background) }
    }

    pub(super) async fn becomes_ready(&self) {
        until("the store is ready", async || self.store.ready().ok()).await;
    }

    pub(super) async fn becomes_unready(&self, why: &str) {
        until(why, async || self.store.ready().err().filter(|reason| reason.to_string().contains(why))).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.background.abort();
    }
}

/// A store without its background work, so that nothing but the test's operations reaches the server.
pub(super) fn quiet(config: &StoreConfig) -> Arc<dyn Store> {
    onceproxy::store::open(config, &Metrics::new()).unwrap().store
}

pub(super) fn claim() -> Claim {
    Claim {
        id: RecordId::new("postgres".into(), *Token::new().as_bytes()),
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
pub(super) fn again(claim: &Claim) -> Claim {
    Claim { token: Token::new(), ..claim.clone() }
}

pub(super) fn response(size: usize) -> Response {
    Response::new(201, [(&b"location"[..], &b"/1"[..])], [], Some(Bytes::from(vec![b'x'; size])))
}

pub(super) async fn completed(store: &dyn Store, response: &Response) -> Claim {
    let claim = claim();
    assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
    assert_eq!(store.complete(&claim, response, DAY).await.unwrap(), CompleteReply::Stored);
    claim
}

pub(super) async fn replay(store: &dyn Store, claim: &Claim) -> Response {
    match store.claim(&again(claim)).await.unwrap() {
        ClaimReply::Taken(Taken::Completed(replay)) => replay.response,
        other => panic!("not a replay: {other:?}"),
    }
}

/// Two processes at the same store keep the contract, and whichever of them is left sweeps.
pub(super) async fn keeps_the_contract(config: &StoreConfig) {
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
        keeps_the_contract(&through(&config, pooler.port())).await;
        // Nobody listened on a connection that belongs to others.
        let listened = format!("SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN \"{}\"'", config.prefix);
        assert_eq!(server.sql(&listened), "0");
    }
}

#[tokio::test]
async fn many_claims_of_one_key_at_once_are_granted_once() {
    let server = PostgresServer::shared();
    let pooler = PgBouncer::before(server, "");
    let config = prepared(backend(server.port())).await;
    for port in [server.port(), pooler.port()] {
        let config = through(&config, port);
        let stores: Vec<_> = (0..8).map(|_| quiet(&config)).collect();
        for _ in 0..10 {
            let first = claim();
            let running: Vec<_> = (0..40)
                .map(|n| {
                    let (store, claim) = (Arc::clone(&stores[n % stores.len()]), again(&first));
                    tokio::spawn(async move { store.claim(&claim).await.unwrap() })
                })
                .collect();
            let mut granted = 0;
            for reply in running {
                match reply.await.unwrap() {
                    ClaimReply::Granted { .. } => granted += 1,
                    reply => assert!(matches!(reply, ClaimReply::Taken(Taken::InProgress { .. })), "{reply:?}"),
                }
            }
            assert_eq!(granted, 1);
        }
    }
}

#[tokio::test]
async fn a_waiter_is_woken_by_a_notification_and_behind_a_pooler_by_the_poll() {
    let server = PostgresServer::shared();
    let pooler = PgBouncer::before(server, "");
    let config = prepared(backend(server.port())).await;
    let owner = quiet(&config);
    for port in [server.port(), pooler.port()] {
        let process = Process::open(&through(&config, port));
        process.becomes_ready().await;
        let claim = claim();
        assert_eq!(owner.claim(&claim).await.unwrap(), GRANTED);
        let mut watch = process.store.watch(&claim.id).await.unwrap();
        let watched =
            format!("SELECT watched FROM \"{}\".records WHERE route = 'postgres' AND state = 1", config.prefix);
        assert_eq!(server.sql(&watched), "t", "whoever completes it is to notify");
        assert_eq!(owner.complete(&claim, &response(1), DAY).await.unwrap(), CompleteReply::Stored);
        until("the waiter is woken", async || {
            tokio::time::timeout(Duration::from_millis(50), watch.changed()).await.ok()
        })
        .await;
        replay(&*process.store, &claim).await;
    }
}

#[tokio::test]
async fn a_completion_that_nobody_waits_for_notifies_nobody() {
    let server = PostgresServer::shared();
    let config = prepared(backend(server.port())).await;
    let store = quiet(&config);
    let claim = completed(&*store, &response(1)).await;
    let watched = format!("SELECT watched FROM \"{}\".records", config.prefix);
    assert_eq!(server.sql(&watched), "f");
    drop(store.watch(&claim.id).await.unwrap());
    assert_eq!(server.sql(&watched), "f", "a decided record changes no more");
}

/// What the version before made, and left behind: no column, and rows that say nothing but the fingerprint.
#[tokio::test]
async fn a_schema_of_before_gets_its_column_by_init_and_its_rows_are_read_but_not_compared() {
    let server = PostgresServer::shared();
    let config = prepared(backend(server.port())).await;
    let process = Process::open(&config);
    process.becomes_ready().await;
    let done = completed(&*process.store, &response(9)).await;
    let running = claim();
    assert_eq!(process.store.claim(&running).await.unwrap(), GRANTED);
    let records = format!("\"{}\".records", config.prefix);
    server.sql(&format!("ALTER TABLE {records} DROP COLUMN details; UPDATE {records} SET version = 1"));
    process.becomes_unready("column `details`").await;
    assert!(process.store.claim(&again(&done)).await.is_err());

    let said = onceproxy::store::init(&config).await.unwrap();
    assert!(said[0].ends_with("missing and put back: the column details of records"), "{said:?}");
    process.becomes_ready().await;
    let said = onceproxy::store::init(&config).await.unwrap();
    assert!(said[0].ends_with("nothing was changed"), "{said:?}");
    assert_eq!(replay(&*process.store, &done).await, response(9));
    for known in [&done, &running] {
        let changed = contract::under_other_settings(&again(known));
        let ClaimReply::Taken(Taken::Reused(reused)) = process.store.claim(&changed).await.unwrap() else {
            panic!("{known:?} was compared")
        };
        assert_eq!(reused.differences.parts, None);
    }
    // Its own attempt goes on.
    assert_eq!(process.store.complete(&running, &response(1), DAY).await.unwrap(), CompleteReply::Stored);
    assert_eq!(replay(&*process.store, &running).await, response(1));
}
