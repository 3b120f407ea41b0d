//! The Lua scripts against the pure rules: random operations at random moments, on a real server.
//!
//! Time is a key of the server that the test moves: the text where a script reads its clock is exchanged, nothing else.
//! It begins an hour ahead of the server's own time, so that the server itself never expires a record before the rules
//! say so.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::config::store::{self as config, Redis};
use crate::record::tests::imprint;
use crate::record::{self, Slot, State, Timestamp};

#[path = "../../../tests/it/redis_server.rs"]
mod redis_server;

use crate::store::kept::Renewals;
use redis_server::RedisServer;

const CLOCK: &str = "local now = tonumber(redis.call('GET', 'clock'))\n";

#[derive(Clone, Debug)]
pub(in crate::store) enum Operation {
    Claim(Attempt),
    Look { imprint: Imprint },
    Renew(Attempt),
    Complete(Attempt, Option<Answered>, u64),
    Release(Attempt),
    Doubt(Attempt, u8, Option<Answered>),
    Resolve { token: u8, executed: Option<(Answered, u64)>, force: bool },
    Forget { token: u8, force: bool },
    Sweep,
}

#[derive(Clone, Debug)]
pub(in crate::store) struct Attempt {
    token: u8,
    imprint: Imprint,
    quoted: bool,
    lease: u64,
    abandon_after: u64,
    keep_unknown: Option<u64>,
    resend: bool,
}

#[derive(Clone, Debug)]
pub(in crate::store) struct Answered {
    status: u16,
    body: Option<usize>,
}

impl Answered {
    pub(in crate::store) fn response(&self) -> Response {
        let fields = [(&b"x"[..], &b"\x00\xff"[..])];
        Response::new(self.status, fields, [], self.body.map(|size| Bytes::from(vec![b'b'; size])))
    }
}

impl Attempt {
    pub(in crate::store) fn claim(&self, id: &RecordId) -> Claim {
        Claim {
            id: id.clone(),
            token: token(self.token),
            imprint: self.imprint.clone(),
            quoted: self.quoted,
            lease: Duration::from_millis(self.lease),
            abandon_after: Duration::from_millis(self.abandon_after),
            on_unknown: if self.resend { OnUnknown::Resend } else { OnUnknown::Hold },
            unknown_retention: self.keep_unknown.map(Duration::from_millis),
        }
    }
}

pub(in crate::store) fn token(number: u8) -> Token {
    Token::from_bytes([number + 1; 16])
}

/// The request of whatever is not about requests.
pub(in crate::store) fn usual() -> Imprint {
    let parts = record::Parts::new(Default::default());
    let details = record::Details { parts, credentials: None };
    let fingerprint = record::Fingerprint { policy: [0; 4], digest: [0; 32] };
    Imprint { fingerprint, details: Some(Arc::new(details)) }
}

// Steps and spans share a few values, so that moments fall on, just before and just after each other.
fn span() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(99), Just(100), Just(101), Just(250), 1..1000_u64]
}

fn attempt() -> impl Strategy<Value = Attempt> {
    let imprint = prop_oneof![3 => Just(usual()), 1 => imprint()];
    let keep = prop_oneof![3 => Just(None), 1 => span().prop_map(Some)];
    (0..4_u8, imprint, any::<bool>(), span(), span(), keep, any::<bool>()).prop_map(
        |(token, imprint, quoted, lease, abandon_after, keep_unknown, resend)| Attempt {
            token,
            imprint,
            quoted,
            lease,
            abandon_after,
            keep_unknown,
            resend,
        },
    )
}

fn answered() -> impl Strategy<Value = Answered> {
    let body =
        prop_oneof![Just(None), Just(Some(0)), Just(Some(5)), Just(Some(ALWAYS_KEPT + 1)), Just(Some(INLINE_BODY))];
    (prop_oneof![Just(201), Just(504)], body).prop_map(|(status, body)| Answered { status, body })
}

fn operation() -> impl Strategy<Value = Operation> {
    let maybe = || proptest::option::of(answered());
    prop_oneof![
        6 => attempt().prop_map(Operation::Claim),
        1 => imprint().prop_map(|imprint| Operation::Look { imprint }),
        2 => attempt().prop_map(Operation::Renew),
        2 => (attempt(), maybe(), span()).prop_map(|(a, r, keep)| Operation::Complete(a, r, keep)),
        3 => attempt().prop_map(Operation::Release),
        2 => (attempt(), prop_oneof![Just(0), 0..7_u8], maybe()).prop_map(|(a, reason, r)| Operation::Doubt(a, reason, r)),
        3 => (0..4_u8, proptest::option::weighted(0.3, (answered(), span())), proptest::bool::weighted(0.2))
            .prop_map(|(token, executed, force)| Operation::Resolve { token, executed, force }),
        1 => (0..4_u8, any::<bool>()).prop_map(|(token, force)| Operation::Forget { token, force }),
        1 => Just(Operation::Sweep),
    ]
    // The tree of all these on the stack is more than a test's thread has.
    .boxed()
}

pub(in crate::store) fn steps() -> impl Strategy<Value = Vec<(u64, Operation)>> {
    let step = || prop_oneof![3 => Just(0), 3 => span()];
    let any = || proptest::collection::vec((step(), operation()), 1..24);
    // What chance alone seldom brings about: a record that is unknown, or taken over, by attempts that go on.
    let unknown = (attempt(), span()).prop_map(|(a, step)| {
        let claim = Attempt { token: 0, imprint: usual(), lease: 1, ..a };
        vec![(0, Operation::Claim(claim)), (step, Operation::Sweep)]
    });
    let unknown = unknown.boxed();
    let taken_over = (unknown, attempt()).prop_map(|(mut steps, a)| {
        let claim = Attempt { token: 1, imprint: usual(), resend: true, keep_unknown: None, ..a };
        steps.push((0, Operation::Claim(claim)));
        steps
    });
    let taken_over = taken_over.boxed();
    let doubted = (attempt(), proptest::option::of(answered()), span()).prop_map(|(a, response, step)| {
        let claim = Attempt { token: 0, imprint: usual(), keep_unknown: None, ..a };
        let doubt = Operation::Doubt(claim.clone(), 0, response);
        vec![(0, Operation::Claim(claim)), (0, doubt), (step, Operation::Sweep)]
    });
    let begin = prop_oneof![2 => Just(Vec::new()), 1 => taken_over, 1 => doubted.boxed()].boxed();
    (begin, any()).prop_map(|(mut begin, rest)| {
        begin.extend(rest);
        of_one_request_each(&mut begin);
        begin
    })
}

/// An attempt is of one request from its claim to its end. What bears one token and one fingerprint was read alike.
fn of_one_request_each(steps: &mut [(u64, Operation)]) {
    let mut known: Vec<(u8, Imprint)> = Vec::new();
    for (_, operation) in steps {
        let (Operation::Claim(attempt)
        | Operation::Renew(attempt)
        | Operation::Complete(attempt, ..)
        | Operation::Release(attempt)
        | Operation::Doubt(attempt, ..)) = operation
        else {
            continue;
        };
        let same = |(token, imprint): &&(u8, Imprint)| {
            *token == attempt.token && imprint.fingerprint == attempt.imprint.fingerprint
        };
        match known.iter().find(same) {
            Some((_, imprint)) => attempt.imprint = imprint.clone(),
            None => known.push((attempt.token, attempt.imprint.clone())),
        }
    }
}

/// The pure rules, with the tombstones of one record.
#[derive(Default)]
pub(in crate::store) struct Model {
    pub(in crate::store) record: Option<Record>,
    tombstones: Vec<Token>,
}

impl Model {
    fn apply<R>(&mut self, token: Option<Token>, rule: impl FnOnce(&mut Slot) -> R) -> R {
        let tombstone = token.is_some_and(|token| self.tombstones.contains(&token));
        let mut slot = Slot::new(self.record.take(), tombstone);
        let reply = rule(&mut slot);
        self.record = slot.record;
        if slot.tombstone
            && let Some(token) = token
        {
            self.tombstones.push(token);
        }
        reply
    }
}

struct Bench {
    runtime: tokio::runtime::Runtime,
    server: RedisServer,
    store: RedisStore,
    begin: u64,
}

impl Bench {
    fn new() -> Bench {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = RedisServer::start(&[]);
        let redis = Redis::new(config::Topology::One(config::Place { host: "127.0.0.1".into(), port: server.port() }));
        let watched =
            Watched { allow_eviction: false, acknowledged: None, patience: Duration::ZERO, in_doubt: Arc::default() };
        let timeout = Duration::from_secs(10);
        let shared = Arc::new(Shared {
            keys: Keys::new("once"),
            scripts: Scripts::with_clock(CLOCK),
            topology: Topology::new(&redis, timeout, watched.clone(), &Renewals::default()).unwrap(),
            timeout,
            watched,
            subscriptions: Subscriptions::new(),
            metrics: Metrics::new(),
        });
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let begin = u64::try_from((now + Duration::from_secs(3600)).as_millis()).unwrap();
        Bench { runtime, server, store: RedisStore::new(shared), begin }
    }

    fn run(&self, steps: &[(u64, Operation)]) -> Result<(), TestCaseError> {
        self.runtime.block_on(async {
            let id = RecordId::new("r".into(), *Token::new().as_bytes());
            let (mut model, mut now) = (Model::default(), self.begin);
            for (step, operation) in steps {
                now += step;
                self.set_clock(now).await;
                let said = self.ask(&id, operation).await;
                let expected = expect(&mut model, &id, operation, Timestamp(now));
                prop_assert_eq!(said, expected, "{:?}", operation);
                self.compare(&id, &model, Timestamp(now)).await?;
            }
            Ok(())
        })
    }

    async fn commands(&self, commands: redis::Pipeline) -> Vec<Value> {
        let answer = ask(self.store.claims.to_shard(0), &Question::Commands(commands), self.store.limits()).await;
        let Ok(Value::Array(answers)) = answer else { panic!("no answer") };
        answers
    }

    async fn set_clock(&self, now: u64) {
        let mut commands = redis::pipe();
        commands.cmd("SET").arg("clock").arg(now);
        self.commands(commands).await;
    }

    /// What is stored, against the model: the record itself, and where the index has it.
    async fn compare(&self, id: &RecordId, model: &Model, now: Timestamp) -> Result<(), TestCaseError> {
        let mut commands = redis::pipe();
        commands.cmd("GET").arg(self.store.shared.keys.record(id));
        commands.cmd("ZSCORE").arg(self.store.shared.keys.open_of(id.hash()[0])).arg(id.to_string());
        commands.cmd("PEXPIRETIME").arg(self.store.shared.keys.record(id));
        let answers = self.commands(commands).await;
        let is_there = |record: &Record| record.expires_at().is_none_or(|at| at > now);
        let stored = match &answers[0] {
            Value::BulkString(value) => Some(codec::decode(Bytes::copy_from_slice(value)).unwrap()),
            _ => None,
        };
        let stored = stored.filter(is_there);
        prop_assert_eq!(&stored, &model.record.clone().filter(is_there));
        let Some(stored) = stored else { return Ok(()) };
        let expiry = stored.expires_at().map_or(-1, |at| i64::try_from(at.0).unwrap());
        prop_assert_eq!(&answers[2], &Value::Int(expiry), "when the server drops it");
        let place = match stored.state {
            State::Claimed { lease_until } => Some(CLAIMS_FROM + lease_until.0),
            State::Unknown { since, .. } => Some(since.0),
            State::Completed { .. } => None,
        };
        let score = match &answers[1] {
            Value::BulkString(score) => Some(std::str::from_utf8(score).unwrap().parse::<f64>().unwrap()),
            _ => None,
        };
        prop_assert_eq!(score, place.map(|place| place as f64), "its place in the index");
        Ok(())
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
                let call =
                    Call::new(&self.store.shared.scripts.lapse, &self.store.shared.keys.names(id, None)).arg(b"");
                self.store
                    .ask(&self.store.claims, id, call, self.store.limits())
                    .await
                    .map_err(StoreError::from)
                    .unwrap();
                String::new()
            }
        }
    }
}

pub(in crate::store) fn finding(executed: Option<&(Answered, u64)>) -> Finding {
    match executed {
        None => Finding::NotExecuted,
        Some((answered, keep)) => {
            Finding::Executed { response: answered.response(), retention: Duration::from_millis(*keep) }
        }
    }
}

pub(in crate::store) fn expect(model: &mut Model, id: &RecordId, operation: &Operation, now: Timestamp) -> String {
    match operation {
        Operation::Claim(a) => {
            let claim = a.claim(id);
            text(&model.apply(Some(claim.token), |slot| record::claim(slot, &claim, now)))
        }
        Operation::Look { imprint } => text(&model.apply(None, |slot| record::look(slot, imprint, now))),
        Operation::Renew(a) => {
            let claim = a.claim(id);
            text(&model.apply(Some(claim.token), |slot| record::renew(slot, &claim, now)))
        }
        Operation::Complete(a, response, keep) => {
            let claim = a.claim(id);
            let response = response.as_ref().map_or(Response::new(204, [], [], None), Answered::response);
            let keep = Duration::from_millis(*keep);
            text(&model.apply(Some(claim.token), |slot| record::complete(slot, &claim, response, keep, now)))
        }
        Operation::Release(a) => {
            let claim = a.claim(id);
            text(&model.apply(Some(claim.token), |slot| record::release(slot, &claim, now)))
        }
        Operation::Doubt(a, reason, response) => {
            let claim = a.claim(id);
            let (reason, response) = (Reason::ALL[usize::from(*reason)], response.as_ref().map(Answered::response));
            text(&model.apply(Some(claim.token), |slot| record::doubt(slot, &claim, reason, response, now)))
        }
        Operation::Resolve { token: t, executed, force } => {
            let finding = finding(executed.as_ref());
            text(&model.apply(Some(token(*t)), |slot| record::resolve(slot, token(*t), finding, *force, now)))
        }
        Operation::Forget { token: t, force } => {
            text(&model.apply(Some(token(*t)), |slot| record::forget(slot, token(*t), *force, now)))
        }
        Operation::Sweep => {
            if let Some(record) = &mut model.record {
                record::lapse(record, now);
            }
            String::new()
        }
    }
}

pub(in crate::store) fn said<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    text(&answer.unwrap())
}

fn text(reply: &impl std::fmt::Debug) -> String {
    format!("{reply:?}")
}

#[test]
fn the_scripts_do_what_the_rules_say() {
    let bench = Bench::new();
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&steps(), |steps| bench.run(&steps)).unwrap();
}

#[test]
fn a_tombstone_stands_for_as_long_as_the_rules_say() {
    let bench = Bench::new();
    let id: RecordId = "r:00000000000000000000000000000001".parse().unwrap();
    let release = |abandon_after| {
        Operation::Release(Attempt {
            token: 0,
            imprint: usual(),
            quoted: false,
            lease: 1,
            abandon_after,
            keep_unknown: None,
            resend: false,
        })
    };
    let ttl = u64::try_from(record::TOMBSTONE_TTL.as_millis()).unwrap();
    // An attempt repeats its end for as long as `abandon_after`.
    for (abandon_after, lives) in [(1, ttl), (2 * ttl, 2 * ttl)] {
        bench.runtime.block_on(async {
            bench.set_clock(bench.begin).await;
            assert_eq!(bench.ask(&id, &release(abandon_after)).await, "Lost");
        });
        let names = bench.store.shared.keys.names(&id, Some(token(0)));
        let left: u64 = bench.server.command(&["PTTL", names.keys().nth(2).unwrap()]).parse().unwrap();
        assert!(left <= lives && left > lives - 60_000, "{left}");
    }
}

#[test]
fn a_body_that_belongs_to_another_record_is_not_replayed() {
    let bench = Bench::new();
    let id: RecordId = "r:00000000000000000000000000000002".parse().unwrap();
    let attempt = Attempt {
        token: 0,
        imprint: usual(),
        quoted: false,
        lease: 1,
        abandon_after: 1,
        keep_unknown: None,
        resend: false,
    };
    bench.runtime.block_on(async {
        bench.set_clock(bench.begin).await;
        let answered = Answered { status: 201, body: Some(INLINE_BODY + 1) };
        let complete = Operation::Complete(attempt.clone(), Some(answered.clone()), 1000);
        assert_eq!(bench.ask(&id, &complete).await, "Rewritten");
        let store = &bench.store;
        let record = Store::get(store, &id).await.unwrap().unwrap();
        let (head, now) = (codec::encode(&record)[..codec::HEAD].to_vec(), Timestamp(bench.begin));
        let fetched = store.fetch(&id, &usual(), &head, now, store.limits()).await.unwrap();
        assert_eq!(fetched.unwrap().response, answered.response());
        let mut other = head.clone();
        other[8] ^= 1;
        assert_eq!(store.fetch(&id, &usual(), &other, now, store.limits()).await.unwrap(), None);
        Store::forget(store, &id, token(0), false).await.unwrap();
        assert_eq!(store.fetch(&id, &usual(), &head, now, store.limits()).await.unwrap(), None);
    });
}
