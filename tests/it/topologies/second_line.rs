//! Postgres as the second line behind a Redis that forgets.

use std::sync::atomic::Ordering;

use onceproxy::config::store::{Backend, Place, Redis, SecondLine, StoreConfig, Topology};
use onceproxy::record::{
    ClaimReply, CompleteReply, Finding, LookReply, OnUnknown, Reason, ReleaseReply, ResolveReply, State, Taken,
};
use onceproxy::store::StoreErrorKind;

use super::postgres::trips::counting;
use super::postgres::{
    DAY, GRANTED, Process, again, backend, claim, completed, keeps_the_contract, quiet, replay, response,
};
use crate::contract;
use crate::postgres_server::{ADMIN, DATABASE, PostgresServer, fresh_schema};
use crate::redis_server::RedisServer;
use crate::support::{Gate, Request, Store, World, eventually, ms, reply};

fn lines(redis: u16, postgres: u16) -> StoreConfig {
    let first = Redis::new(Topology::One(Place { host: "127.0.0.1".into(), port: redis }));
    StoreConfig {
        prefix: fresh_schema(),
        second_line: Some(SecondLine { postgres: backend(postgres), timeout: std::time::Duration::from_secs(10) }),
        ..contract::config(Backend::Redis(first))
    }
}

async fn prepared(redis: &RedisServer, postgres: u16) -> StoreConfig {
    let config = lines(redis.port(), postgres);
    onceproxy::store::init(&config).await.unwrap();
    config
}

#[tokio::test]
async fn the_two_lines_together_keep_the_contract() {
    let redis = RedisServer::start(&[]);
    let config = prepared(&redis, PostgresServer::shared().port()).await;
    keeps_the_contract(&config).await;
}

#[tokio::test]
async fn a_first_execution_adds_two_trips_to_postgres_and_a_replay_none() {
    let redis = RedisServer::start(&[]);
    let server = PostgresServer::shared();
    let config = prepared(&redis, server.port()).await;
    let (port, trips) = counting(server.port()).await;
    let mut second = config.second_line.clone().unwrap();
    second.postgres = backend(port);
    let store = quiet(&StoreConfig { second_line: Some(second), ..config });
    completed(&*store, &response(1)).await;
    let before = trips.load(Ordering::SeqCst);
    let done = completed(&*store, &response(1)).await;
    assert_eq!(trips.load(Ordering::SeqCst) - before, 2);
    replay(&*store, &done).await;
    let running = claim();
    assert_eq!(store.claim(&running).await.unwrap(), GRANTED);
    assert!(matches!(store.claim(&again(&running)).await.unwrap(), ClaimReply::Taken(Taken::InProgress { .. })));
    assert_eq!(trips.load(Ordering::SeqCst) - before, 3, "one for the claim; replays and duplicates end at Redis");
}

#[tokio::test]
async fn what_redis_forgot_is_replayed_or_held_and_redis_knows_it_again() {
    let redis = RedisServer::start(&[]);
    let config = prepared(&redis, PostgresServer::shared().port()).await;
    let store = quiet(&config);
    let done = completed(&*store, &response(9)).await;
    let doubted = claim();
    assert_eq!(store.claim(&doubted).await.unwrap(), GRANTED);
    store.doubt(&doubted, Reason::Status, Some(&response(3))).await.unwrap();
    let running = claim();
    assert_eq!(store.claim(&running).await.unwrap(), GRANTED);
    redis.command(&["FLUSHALL"]);
    assert_eq!(replay(&*store, &done).await, response(9));
    let ClaimReply::Taken(Taken::Unknown(held)) = store.claim(&again(&doubted)).await.unwrap() else {
        panic!("not held")
    };
    assert_eq!(held.original_status, Some(201));
    assert!(matches!(store.claim(&again(&running)).await.unwrap(), ClaimReply::Taken(Taken::InProgress { .. })));
    // Redis by itself: the records are back, and of the running attempt nothing is in its way.
    let redis_alone = quiet(&StoreConfig { second_line: None, ..config });
    assert_eq!(replay(&*redis_alone, &done).await, response(9));
    let record = redis_alone.get(&doubted.id).await.unwrap().unwrap();
    assert!(matches!(record.state, State::Unknown { reason: Reason::Status, .. }), "{record:?}");
    assert_eq!(redis_alone.get(&running.id).await.unwrap(), None);
    assert_eq!(store.complete(&running, &response(1), DAY).await.unwrap(), CompleteReply::Rewritten);
    assert_eq!(replay(&*redis_alone, &running).await, response(1));
}

#[tokio::test]
async fn another_request_that_got_a_forgotten_key_sends_nobody_away() {
    let redis = RedisServer::start(&[]);
    let config = prepared(&redis, PostgresServer::shared().port()).await;
    let store = quiet(&config);
    let redis_alone = quiet(&StoreConfig { second_line: None, ..config });
    let done = completed(&*store, &response(9)).await;
    let doubted = claim();
    assert_eq!(store.claim(&doubted).await.unwrap(), GRANTED);
    store.doubt(&doubted, Reason::Status, None).await.unwrap();
    let running = claim();
    assert_eq!(store.claim(&running).await.unwrap(), GRANTED);
    redis.command(&["FLUSHALL"]);
    // Other requests are between the two grants, of which they will get one.
    let mut imprint = done.imprint.clone();
    imprint.fingerprint.digest = [7; 32];
    let other = |claim: &onceproxy::record::Claim| onceproxy::record::Claim {
        imprint: imprint.clone(),
        lease: ms(1),
        ..again(claim)
    };
    let is_reused = |taken: &Taken| matches!(taken, Taken::Reused(_));
    for known in [&done, &doubted, &running] {
        assert_eq!(redis_alone.claim(&other(known)).await.unwrap(), GRANTED);
    }
    assert_eq!(replay(&*store, &done).await, response(9));
    let looked = store.look(&done.id, &done.imprint).await.unwrap();
    assert!(matches!(looked, LookReply::Taken(Taken::Completed(_))), "{looked:?}");
    assert!(matches!(store.claim(&again(&doubted)).await.unwrap(), ClaimReply::Taken(Taken::Unknown(_))));
    assert!(matches!(store.claim(&again(&running)).await.unwrap(), ClaimReply::Taken(Taken::InProgress { .. })));
    // Theirs is the refusal, also when their leases are over and Redis holds them as unknown.
    eventually("the other's lease to be over", async || {
        let reply = store.claim(&other(&done)).await.unwrap();
        matches!(&reply, ClaimReply::Taken(taken) if is_reused(taken)).then_some(())
    })
    .await;
    let looked = store.look(&done.id, &imprint).await.unwrap();
    assert!(matches!(&looked, LookReply::Taken(taken) if is_reused(taken)), "{looked:?}");
    // What an operator found of the one request is not given to the other.
    let finding = Finding::Executed { response: response(3), retention: DAY };
    assert_eq!(store.resolve(&doubted.id, doubted.token, &finding, true).await.unwrap(), ResolveReply::Resolved);
    assert_eq!(replay(&*store, &doubted).await, response(3));
    let others = store.claim(&other(&doubted)).await.unwrap();
    assert!(matches!(&others, ClaimReply::Taken(taken) if is_reused(taken)), "{others:?}");
}

#[tokio::test]
async fn a_release_frees_both_lines_and_a_resend_takes_over_in_both() {
    let redis = RedisServer::start(&[]);
    let config = prepared(&redis, PostgresServer::shared().port()).await;
    let store = quiet(&config);
    let first = claim();
    assert_eq!(store.claim(&first).await.unwrap(), GRANTED);
    assert_eq!(store.release(&first).await.unwrap(), ReleaseReply::Absent);
    let second = again(&first);
    assert_eq!(store.claim(&second).await.unwrap(), GRANTED);
    store.doubt(&second, Reason::Reset, None).await.unwrap();
    redis.command(&["FLUSHALL"]);
    let resend = onceproxy::record::Claim { on_unknown: OnUnknown::Resend, ..again(&first) };
    // Redis grants it as new; that it is a resend, the second line knows.
    assert_eq!(store.claim(&resend).await.unwrap(), ClaimReply::Granted { attempts: 2, taken_over: Some(false) });
    assert_eq!(store.release(&resend).await.unwrap(), ReleaseReply::UnknownAgain);
    assert!(matches!(store.claim(&again(&first)).await.unwrap(), ClaimReply::Taken(Taken::Unknown(_))));
}

#[tokio::test]
async fn while_the_second_line_is_away_nothing_is_granted_and_replays_go_on() {
    let redis = RedisServer::start(&[]);
    let mut postgres = PostgresServer::start(&[]);
    let mut config = prepared(&redis, postgres.port()).await;
    config.second_line.as_mut().unwrap().timeout = ms(500);
    let process = Process::open(&config);
    process.becomes_ready().await;
    let done = completed(&*process.store, &response(1)).await;
    postgres.kill();
    process.becomes_unready("").await;
    let refused = claim();
    let error = process.store.claim(&refused).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Unreachable, true), "{error}");
    assert_eq!(replay(&*process.store, &done).await, response(1));
    postgres.restart();
    process.becomes_ready().await;
    assert_eq!(process.store.claim(&again(&refused)).await.unwrap(), GRANTED, "nothing was left behind in Redis");
}

/// A world on Redis, with the second line or without it.
async fn world(second_line: bool, route: &str) -> World {
    let build = World::build(Store::Redis).route(route).proxies(2);
    if !second_line {
        return build.start().await;
    }
    let postgres = PostgresServer::shared();
    let config = lines(1, postgres.port());
    onceproxy::store::init(&config).await.unwrap();
    let url = format!("postgres://{ADMIN}@127.0.0.1:{}/{DATABASE}", postgres.port());
    build
        .store(&format!("prefix = \"{}\"", config.prefix))
        .more(&format!("[second_line]\nurl = \"{url}\"\ntimeout = \"5s\"\n"))
        .start()
        .await
}

#[tokio::test]
async fn a_redis_that_is_flushed_costs_a_second_execution_without_the_second_line_and_none_with_it() {
    for second_line in [false, true] {
        let world = world(second_line, "").await;
        let first = world.pay("k1").await;
        world.redis().command(&["FLUSHALL"]).await;
        let second = world.pay("k1").await;
        assert_eq!((first.status, second.status), (201, 201));
        assert_eq!(world.executions(), if second_line { 1 } else { 2 });
        assert_eq!(second.is_replay(), second_line);
        if second_line {
            assert_eq!(second.essence(), first.essence());
            // Brought back: Redis answers the next one by itself.
            let keys = String::from_utf8_lossy(&world.redis().command(&["KEYS", "*:r:*"]).await).into_owned();
            assert!(keys.starts_with("*1"), "{keys}");
            world.pay("k1").await.assert_replay(201);
            assert_eq!(world.executions(), 1);
        }
    }
}

#[tokio::test]
async fn a_redis_that_restarts_empty_while_a_request_runs_does_not_run_it_again() {
    for second_line in [false, true] {
        let mut world = world(second_line, "on_duplicate = \"reject\"\n lease = \"60s\"").await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("one").behind(&gate));
        let first = world.begin_pay("k1");
        world.upstream.reached(1).await;
        world.redis.as_mut().unwrap().restart().await;
        for proxy in &world.proxies {
            proxy.ready().await;
        }
        // The duplicate comes to another proxy, which has not seen the first.
        let second = Request::pay().key("k1").send(world.proxies[1].address).await;
        gate.open();
        let first = first.answer().await;
        assert_eq!(first.status, 201);
        if second_line {
            second.assert_problem(409, "request-in-progress");
            Request::pay().key("k1").send(world.proxies[1].address).await.assert_replay(201);
        } else {
            second.assert_executed(201);
        }
        assert_eq!(world.executions(), if second_line { 1 } else { 2 });
    }
}

#[tokio::test]
async fn a_proxy_that_is_killed_leaves_a_held_record_even_if_redis_forgets_it() {
    let mut world = world(true, "lease = \"1s\"").await;
    let gate = Gate::new();
    world.upstream.next(reply(201).behind(&gate));
    let first = world.begin_pay("k1");
    world.upstream.reached(1).await;
    world.proxies[0].kill();
    world.redis().command(&["FLUSHALL"]).await;
    first.hang_up().await;
    let ask = async || {
        let answer = Request::pay().key("k1").field("Prefer", "wait=0").send(world.proxies[1].address).await;
        (answer.problem() == "outcome-unknown").then_some(answer)
    };
    let held = eventually("the record to be held", ask).await;
    held.assert_unknown();
    assert_eq!(world.executions(), 1);
    // An operator sees it, and ends it in both lines.
    let record = world.proxies[1].record(&held.record()).await.unwrap();
    let finding = serde_json::json!({ "outcome": "not-executed", "force": true });
    assert_eq!(world.proxies[1].resolve(&record, finding).await.status, 200);
    gate.open();
    let again = Request::pay().key("k1").send(world.proxies[1].address).await;
    assert_eq!((again.status, world.executions()), (201, 2));
}
