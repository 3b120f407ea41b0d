//! The Postgres store against the pure rules: random operations at random moments, on a real server.
//!
//! Time is a table of the server that the test moves: the expression by which statements read the clock is exchanged,
//! nothing else. Operations and the model are those of the test of the Redis scripts.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::config::store::SslMode;
use crate::record::TOMBSTONE_TTL;
use crate::store::redis::differential::{Answered, Model, Operation, expect, finding, said, steps, token, usual};

#[path = "../../../tests/it/postgres_server.rs"]
#[allow(dead_code, reason = "integration tests use the rest of it")]
mod postgres_server;

use crate::store::kept::Renewals;
use postgres_server::{ADMIN, DATABASE, PostgresServer};

const PREFIX: &str = "differential";
const CLOCK: &str = "(SELECT at FROM differential_clock)";
const BEGIN: u64 = 1_700_000_000_000;

struct Bench {
    runtime: tokio::runtime::Runtime,
    store: PostgresStore,
    _server: PostgresServer,
}

impl Bench {
    fn new() -> Bench {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = PostgresServer::start(&[]);
        let config = Postgres {
            host: "127.0.0.1".into(),
            port: server.port(),
            database: DATABASE.into(),
            user: ADMIN.into(),
            password: None,
            sslmode: SslMode::Disable,
            ca_file: None,
            client: None,
        };
        runtime.block_on(init(&config, PREFIX, "store")).unwrap();
        server.sql(&format!("CREATE TABLE differential_clock AS SELECT {BEGIN}::bigint AS at"));
        let timeout = Duration::from_secs(20);
        let shared = Arc::new(Shared {
            statements: Statements::with_clock(PREFIX, timeout.as_millis(), CLOCK),
            endpoint: Arc::new(Endpoint::new(&config, timeout, "store", &Renewals::default()).unwrap()),
            timeout,
            health: Health::new(Duration::from_secs(1)),
            waiting: Waiting::default(),
            metrics: Metrics::new(),
        });
        Bench { runtime, store: PostgresStore::new(shared), _server: server }
    }

    fn run(&self, steps: &[(u64, Operation)]) -> Result<(), TestCaseError> {
        self.runtime.block_on(async {
            let id = RecordId::new("r".into(), *Token::new().as_bytes());
            let (mut model, mut now) = (Model::default(), BEGIN);
            for (step, operation) in steps {
                now += step;
                self.set_clock(now).await;
                let said = self.ask(&id, operation).await;
                let expected = expect(&mut model, &id, operation, Timestamp(now));
                prop_assert_eq!(said, expected, "{:?}", operation);
                let is_there = |record: &Record| record.expires_at().is_none_or(|at| at > Timestamp(now));
                let stored =
                    self.store.read(&id, true, &self.store.limits()).await.unwrap().row.and_then(|row| row.record);
                prop_assert_eq!(stored.filter(is_there), model.record.clone().filter(is_there), "{:?}", operation);
            }
            Ok(())
        })
    }

    async fn query(&self, statement: &str, params: &[Param<'_>]) -> Vec<tokio_postgres::Row> {
        ask(&self.store.claims, statement, params, &self.store.limits()).await.unwrap()
    }

    async fn set_clock(&self, now: u64) {
        let now = i64::try_from(now).unwrap();
        self.query("UPDATE differential_clock SET at = $1", &[(&now, Type::INT8)]).await;
    }

    async fn ask(&self, id: &RecordId, operation: &Operation) -> String {
        let store: &dyn Store = &self.store;
        match operation {
            Operation::Claim(a) => said(store.claim(&a.claim(id)).await),
            Operation::Look { imprint } => said(store.look(id, imprint).await),
            Operation::Renew(a) => said(store.renew(&a.claim(id)).await),
            Operation::Complete(a, response, keep) => {
                let response = response.as_ref().map_or(Response::new(204, [], [], None), Answered::response);
                said(store.complete(&a.claim(id), &response, Duration::from_millis(*keep)).await)
            }
            Operation::Release(a) => said(store.release(&a.claim(id)).await),
            Operation::Doubt(a, reason, response) => {
                let response = response.as_ref().map(Answered::response);
                said(store.doubt(&a.claim(id), Reason::ALL[usize::from(*reason)], response.as_ref()).await)
            }
            Operation::Resolve { token: t, executed, force } => {
                said(store.resolve(id, token(*t), &finding(executed.as_ref()), *force).await)
            }
            Operation::Forget { token: t, force } => said(store.forget(id, token(*t), *force).await),
            Operation::Sweep => {
                let most = 1000_i64;
                self.query(&self.store.shared.statements.lapse, &[(&most, Type::INT8)]).await;
                self.query(&self.store.shared.statements.expire, &[(&most, Type::INT8)]).await;
                String::new()
            }
        }
    }
}

#[test]
fn the_statements_do_what_the_rules_say() {
    let bench = Bench::new();
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&steps(), |steps| bench.run(&steps)).unwrap();
}

#[test]
fn a_tombstone_stands_for_as_long_as_the_rules_say_and_then_its_row_goes() {
    let bench = Bench::new();
    let id: RecordId = "r:00000000000000000000000000000001".parse().unwrap();
    let rows = || bench._server.sql("SELECT count(*) FROM differential.records");
    bench.runtime.block_on(async {
        let claim = Claim {
            id,
            token: token(0),
            imprint: usual(),
            quoted: false,
            lease: Duration::from_secs(1),
            abandon_after: Duration::from_secs(1),
            on_unknown: record::OnUnknown::Hold,
            unknown_retention: None,
        };
        assert_eq!(Store::release(&bench.store, &claim).await.unwrap(), ReleaseReply::Lost);
        let ttl = u64::try_from(TOMBSTONE_TTL.as_millis()).unwrap();
        for (at, reply) in [(BEGIN + ttl - 1, "Lost"), (BEGIN + ttl, "Granted")] {
            bench.set_clock(at).await;
            bench.ask(&claim.id, &Operation::Sweep).await;
            assert_eq!(rows(), if reply == "Lost" { "1" } else { "0" });
            assert!(said(Store::claim(&bench.store, &claim).await).starts_with(reply));
        }
    });
}

#[test]
fn a_row_of_another_version_is_refused_and_left_alone() {
    let bench = Bench::new();
    let id: RecordId = "r:00000000000000000000000000000002".parse().unwrap();
    let claim = |token_| Claim {
        id: id.clone(),
        token: token(token_),
        imprint: usual(),
        quoted: false,
        lease: Duration::from_secs(1),
        abandon_after: Duration::from_secs(1),
        on_unknown: record::OnUnknown::Resend,
        unknown_retention: None,
    };
    bench.runtime.block_on(async {
        Store::claim(&bench.store, &claim(0)).await.unwrap();
        for change in ["version = 3", "version = 2, encryption = 3", "encryption = 0, token = NULL"] {
            bench._server.sql(&format!("UPDATE differential.records SET {change}"));
            bench.set_clock(BEGIN + 5000).await;
            bench.ask(&id, &Operation::Sweep).await;
            for error in [
                Store::claim(&bench.store, &claim(1)).await.unwrap_err(),
                Store::renew(&bench.store, &claim(0)).await.unwrap_err(),
                Store::complete(&bench.store, &claim(0), &Response::new(204, [], [], None), TOMBSTONE_TTL)
                    .await
                    .unwrap_err(),
                Store::get(&bench.store, &id).await.unwrap_err(),
            ] {
                assert_eq!(error.kind, crate::store::StoreErrorKind::Unreadable, "{error}");
            }
        }
    });
}

#[test]
fn a_statement_that_may_have_run_counts_for_those_that_follow_in_its_operation() {
    let Bench { runtime, store, _server: server } = Bench::new();
    runtime.block_on(async {
        let limits = Limits::new(Duration::from_millis(500));
        let end_the_session = "SELECT pg_terminate_backend(pg_backend_pid())";
        let lost = ask(&store.claims, end_the_session, &[], &limits).await.unwrap_err();
        assert!(lost.may_have_run, "{lost}");
        drop(server);
        let unsent = ask(&store.claims, "SELECT 1", &[], &limits).await.unwrap_err();
        assert!(unsent.may_have_run, "{unsent}");
        let limits = Limits::new(Duration::from_millis(500));
        let of_another = ask(&store.claims, "SELECT 1", &[], &limits).await.unwrap_err();
        assert!(!of_another.may_have_run, "{of_another}");
    });
}
