//! Limits refuse what would take a place, and nothing else: what is known already is answered however full it is.

use crate::support::proxy::Proxy;
use crate::support::{Connection, Gate, Pending, Request, Store, World, eventually, reply};

/// Another request under this key.
fn other(key: &str) -> Request {
    Request::new("POST", "/pay").json(r#"{"amount":11}"#).key(key)
}

/// A request that runs until the gate is opened.
async fn running(world: &World, key: &str) -> (Pending, Gate) {
    let gate = Gate::new();
    world.upstream.next(reply(201).behind(&gate));
    let before = world.executions();
    let owner = world.begin_pay(key);
    world.upstream.reached(before + 1).await;
    (owner, gate)
}

on_each_store! {
    async fn over_the_limit_in_flight_what_is_done_is_replayed_and_nothing_new_is_claimed(store) {
        let world = World::build(store).more("[limits]\nin_flight = 1\n").start().await;
        world.pay("k-done").await.assert_executed(201);
        let (owner, gate) = running(&world, "k-run").await;
        world.pay("k-done").await.assert_replay(201);
        world.send(&other("k-done")).await.assert_problem(422, "key-reused");
        world.pay("k-new").await.assert_problem(503, "overloaded");
        let open = world.proxy().only_open_record().await;
        assert_eq!(open["state"], "claimed", "only the running request holds a claim: {open}");
        gate.open();
        owner.answer().await.assert_executed(201);
        let free = eventually("a free place", async || {
            let answer = world.pay("k-new").await;
            (answer.status != 503).then_some(answer)
        })
        .await;
        free.assert_executed(201);
        assert_eq!(world.executions(), 3);
    }
}

#[tokio::test]
async fn only_what_would_wait_is_refused_where_all_places_to_wait_are_taken() {
    let world = World::build(Store::Memory).more("[limits]\nwaiting = 1\n").start().await;
    let (owner, gate) = running(&world, "k-1").await;
    let waiter = world.begin_pay("k-1");
    eventually("the first to wait", async || {
        (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
    })
    .await;
    world.send(&other("k-1")).await.assert_problem(422, "key-reused");
    world.send(&Request::pay().key("k-1").field("Prefer", "wait=0")).await.assert_in_flight();
    world.pay("k-1").await.assert_problem(503, "overloaded");
    gate.open();
    owner.answer().await.assert_executed(201);
    waiter.answer().await.assert_replay(201);
    assert_eq!(world.executions(), 1);
}

#[tokio::test]
async fn clients_take_no_file_that_the_upstream_and_the_store_need() {
    let mut world = World::build(Store::redis()).alone().top("threads = 1").start().await;
    let few = ["sh", "-c", "ulimit -n 200 && exec \"$0\" \"$@\""];
    let proxy = Proxy::start_by(&few, world.config()).await;
    world.proxies[0] = proxy;
    world.proxy().ready().await;
    world.proxy().logged("fewer files may be open than limits.connections and limits.in_flight need").await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.extend(Connection::try_open(world.address()).await);
    }
    // Each needs a file for its client and one for the upstream.
    let paid: Vec<_> = (0..40).map(|number| world.begin_pay(&format!("k-{number}"))).collect();
    for pending in paid {
        pending.answer().await.assert_executed(201);
    }
    assert_eq!(world.proxy().readyz().await, Some(200));
    let log = world.proxy().log().join("\n");
    assert!(!log.contains("Too many open files"), "{log}");
}
