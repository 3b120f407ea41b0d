//! A disk that is full: real writes that fail. No claim is granted, nothing is sent, and once there is room all goes on.
//!
//! The servers may not let their files grow any more; to them that is a short write, as on a full disk.

use crate::support::{Answer, Gate, Request, Store as On, World, eventually, reply, within_deadline};

/// A request that runs while the disk fills up.
struct Running {
    gate: Gate,
    pending: crate::support::Pending,
}

async fn begin(world: &World) -> Running {
    let gate = Gate::new();
    world.upstream.next(reply(201).body("done").behind(&gate));
    let pending = world.begin_pay("running");
    world.upstream.reached(1).await;
    Running { gate, pending }
}

async fn by_other(world: &World, key: &str) -> Answer {
    Request::pay().key(key).field("Prefer", "wait=0").send(world.proxies[1].address).await
}

/// While there is no room: new keys are refused and not sent, whoever runs gets its answer, and nobody runs it again.
async fn fails_closed(world: &World, running: Running) {
    let refused = world.pay("new").await;
    assert_eq!((refused.status, refused.problem().as_str()), (503, "store-unavailable"), "{}", refused.shown());
    eventually("the probe to say that nothing can be written", async || {
        let answer = world.proxy().admin("GET", "/readyz", None).await;
        (answer.status == 503).then_some(())
    })
    .await;
    running.gate.open();
    let answer = running.pending.answer().await;
    assert_eq!((answer.status, answer.text().as_str()), (201, "done"), "{}", answer.shown());
    // Postgres may find room for it where older versions of the claim's row were.
    let is_recorded = answer.field("Cache-Status") == Some("onceproxy; fwd=miss; stored");
    assert!(world.postgres.is_some() || !is_recorded, "{}", answer.shown());
    // The process that has it replays it, from memory if need be; the other knows of an attempt at most.
    let again = world.pay("running").await;
    assert_eq!((again.status, again.text().as_str()), (201, "done"), "{}", again.shown());
    let elsewhere = by_other(world, "running").await;
    let known = ["store-unavailable", "request-in-progress", "outcome-unknown"].contains(&elsewhere.problem().as_str());
    assert!(known || is_recorded && elsewhere.is_replay(), "{}", elsewhere.shown());
    assert_eq!(world.executions(), 1);
}

/// Once there is room: the answer is recorded, new keys run, each once.
async fn comes_back(world: &World) {
    for proxy in &world.proxies {
        proxy.ready().await;
    }
    eventually("the answer to be recorded", async || by_other(world, "running").await.is_replay().then_some(())).await;
    eventually("the refused key to be free", async || {
        let answer = world.pay("new").await;
        (answer.status == 201).then_some(())
    })
    .await;
    by_other(world, "new").await.assert_replay(201);
    assert_eq!(world.executions(), 2);
}

fn build(store: On) -> crate::support::world::Builder {
    // The lease runs out while nothing can be written.
    World::build(store).proxies(2).store("timeout = \"1s\"").route("lease = \"1s\"")
}

#[tokio::test]
async fn a_full_disk_of_postgres_fails_closed() {
    within_deadline("postgres without room", async {
        let world = build(On::Postgres).start().await;
        let running = begin(&world).await;
        let postgres = world.postgres.as_ref().unwrap();
        let columns = "hash, route, revision, version, encryption, state, watched, tombstones, body, expires_at";
        let values = "gen_random_uuid(), 'filler', 1, 1, 0, 3, false, '', convert_to(repeat('x', SIZE), 'UTF8'), 9e15";
        postgres.fill("once.records", columns, values);
        fails_closed(&world, running).await;
        eventually("the probe to say which", async || {
            let reason = world.proxy().admin("GET", "/readyz", None).await.text();
            reason.contains("could not extend file").then_some(())
        })
        .await;
        postgres.leave_room();
        comes_back(&world).await;
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_of_a_redis_that_writes_its_log_later_fails_closed() {
    within_deadline("redis without room", async {
        let world = build(On::Redis).redis(&["--appendonly", "yes"]).start().await;
        let running = begin(&world).await;
        world.redis().leave_room(false);
        // It is granted in memory, and written a moment later: then Redis notices.
        eventually("Redis to notice", async || {
            world.redis().command(&["SET", "once:noticed", "1"]).await;
            let info = String::from_utf8(world.redis().command(&["INFO", "persistence"]).await).unwrap();
            info.contains("aof_last_write_status:err").then_some(())
        })
        .await;
        fails_closed(&world, running).await;
        eventually("the probe to say which", async || {
            let reason = world.proxy().admin("GET", "/readyz", None).await.text();
            reason.contains("cannot write its append-only file").then_some(())
        })
        .await;
        world.redis().leave_room(true);
        comes_back(&world).await;
    })
    .await;
}

/// With `appendfsync always` it had to answer for what it cannot write, and ends instead.
#[tokio::test]
async fn a_full_disk_of_a_redis_that_writes_its_log_at_once_ends_it_and_fails_closed() {
    within_deadline("redis without room, synced", async {
        let mut world = build(On::Redis).redis(&["--appendonly", "yes", "--appendfsync", "always"]).start().await;
        let running = begin(&world).await;
        world.redis().leave_room(false);
        fails_closed(&world, running).await;
        let redis = world.redis.as_mut().unwrap();
        assert!(redis.has_ended());
        redis.restart().await;
        comes_back(&world).await;
    })
    .await;
}
