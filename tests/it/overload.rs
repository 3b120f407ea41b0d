//! Limits: over them a request is refused before anything is claimed, and all that is not over them goes on.

use crate::support::{Connection, Gate, Pending, Request, Script, Step, Store, World, eventually, ms, reply};

async fn waiting(world: &World, count: usize) {
    let what = format!("{count} waiting duplicates");
    eventually(&what, async || (world.proxy().metric("onceproxy_waiting", &[]).await == count as f64).then_some(()))
        .await;
}

on_each_store! {
    async fn a_full_route_refuses_before_it_claims_and_holds_nobody_else_up(store) {
        let more = "[[route]]\nname = \"other\"\npath = \"/other\"\nupstream = \"UPSTREAM\"\n";
        let world = World::build(store).route("max_in_flight = 2").more(more).start().await;
        let gate = Gate::new();
        for key in ["k-1", "k-2"] {
            world.upstream.next(reply(201).body(key).behind(&gate));
        }
        let first = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let second = world.begin_pay("k-2");
        world.upstream.reached(2).await;

        // Keyed and plain requests alike.
        for refused in [world.pay("k-3").await, world.send(&Request::new("GET", "/")).await] {
            refused.assert_problem(503, "overloaded");
            assert_eq!((refused.field("Retry-After"), refused.retry().as_str()), (Some("1"), "same-key"));
        }
        let claimed = world.proxy().open_records("claimed").await;
        assert_eq!(claimed.len(), 2, "a refused request left a claim: {claimed:?}");
        // Duplicates of what runs, and other routes, are not concerned.
        let joiner = world.begin_pay("k-1");
        waiting(&world, 1).await;
        world.send(&Request::new("POST", "/other").json("{}").key("k-1")).await.assert_executed(201);
        assert_eq!(world.send(&Request::new("GET", "/other")).await.status, 201);

        gate.open();
        first.answer().await.assert_executed(201);
        assert_eq!(joiner.answer().await.text(), "k-1");
        second.answer().await.assert_executed(201);
        // The refused key was never used.
        eventually("a free place", async || (world.pay("k-3").await.status == 201).then_some(())).await;
        assert_eq!(world.executions(), 5);
    }

    async fn over_the_total_of_waiting_duplicates_other_keys_go_on(store) {
        let world = World::build(store).more("[limits]\nwaiting = 2\n").start().await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("first").behind(&gate));
        let first = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let joiners: Vec<Pending> = (0..2).map(|_| world.begin_pay("k-1")).collect();
        waiting(&world, 2).await;
        let refused = world.pay("k-1").await;
        refused.assert_problem(503, "overloaded");
        assert_eq!(refused.field("Retry-After"), Some("1"));
        world.pay("k-2").await.assert_executed(201);
        assert_eq!(world.send(&Request::new("GET", "/")).await.status, 201);
        gate.open();
        first.answer().await.assert_executed(201);
        for joiner in joiners {
            assert_eq!(joiner.answer().await.text(), "first");
        }
        world.pay("k-1").await.assert_replay(201);
    }

    async fn bodies_that_nobody_reads_count_until_they_are_read_or_gone(store) {
        // Far more than the kernel takes for a client that does not read.
        const LARGE: usize = 12 << 20;
        let world = World::build(store)
            .route("max_response_body = \"16MiB\"")
            .more("[limits]\nbuffered = \"32MiB\"\n")
            .start()
            .await;
        let held = async |bodies: usize| {
            let what = format!("{bodies} bodies to be held");
            let bytes = async || world.proxy().metric("onceproxy_buffered_bytes", &[]).await;
            eventually(&what, async || (bytes().await == (bodies * LARGE) as f64).then_some(())).await;
        };
        world.upstream.next(reply(201).body(vec![b'x'; LARGE]));
        let mut unread = Vec::new();
        for n in 1..=2 {
            let mut connection = Connection::open(world.address()).await;
            connection.send(&Request::pay().key("k-1")).await;
            assert_eq!(connection.head().await.status, 201);
            unread.push(connection);
            held(n).await;
        }
        let refused = world.pay("k-1").await;
        refused.assert_problem(503, "overloaded");
        assert_eq!(refused.retry(), "same-key");
        drop(unread.pop());
        held(1).await;
        assert_eq!(world.pay("k-1").await.assert_replay(201).body.len(), LARGE);
        drop(unread);
        held(0).await;
        assert_eq!(world.executions(), 1);
    }

    async fn over_the_total_of_buffered_bytes_nothing_is_claimed(store) {
        let world = World::build(store).more("[limits]\nbuffered = \"1MiB\"\n").start().await;
        let gate = Gate::new();
        world.upstream.next(reply(201).behind(&gate));
        let large = |key: &str, size: usize| Request::new("POST", "/pay").key(key).body(vec![b'x'; size]);
        let first = large("k-1", 700 << 10).begin(world.address());
        world.upstream.reached(1).await;
        let refused = world.send(&large("k-2", 700 << 10)).await;
        refused.assert_problem(503, "overloaded");
        assert_eq!(refused.field("Retry-After"), Some("1"));
        assert_eq!(world.proxy().open_records("claimed").await.len(), 1);
        // What fits goes on, and so does what is not held at all.
        world.pay("k-3").await.assert_executed(201);
        assert_eq!(world.send(&Request::new("PUT", "/").body(vec![b'x'; 2 << 20])).await.status, 201);
        gate.open();
        first.answer().await.assert_executed(201);
        eventually("memory to be free", async || {
            (world.send(&large("k-2", 700 << 10)).await.status == 201).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_reload_changes_the_limits_and_keeps_the_counts() {
    let mut world = World::build(Store::Memory).route("max_in_flight = 1").start().await;
    let gate = Gate::new();
    world.upstream.next(reply(201).behind(&gate));
    world.upstream.next(reply(201).behind(&gate));
    let first = world.begin_pay("k-1");
    world.upstream.reached(1).await;
    world.pay("k-2").await.assert_problem(503, "overloaded");
    world.change_route("max_in_flight = 2");
    world.proxy().hang_up();
    eventually("the new limit", async || {
        let config = world.proxy().admin("GET", "/config", None).await.text();
        config.contains("max_in_flight = 2").then_some(())
    })
    .await;
    let second = world.begin_pay("k-2");
    world.upstream.reached(2).await;
    // The one from before the reload counts too.
    world.pay("k-3").await.assert_problem(503, "overloaded");
    gate.open();
    first.answer().await.assert_executed(201);
    second.answer().await.assert_executed(201);
}

#[tokio::test]
async fn an_unprotected_response_that_stalls_is_cut_and_gives_its_place_back() {
    let world = World::with(Store::Memory, "abandon_after = \"300ms\"\n timeout = \"300ms\"\n max_in_flight = 1").await;
    let begun = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
    world.upstream.next(Script(vec![Step::Bytes(begun.to_vec()), Step::Never]));
    let mut connection = Connection::open(world.address()).await;
    connection.send(&Request::new("GET", "/")).await;
    let cut = connection.answer().await;
    assert_eq!((cut.text().as_str(), cut.complete), ("half", false));
    eventually("a free place", async || (world.send(&Request::new("GET", "/")).await.status == 201).then_some(()))
        .await;
}

#[tokio::test]
async fn an_unprotected_response_may_take_its_time_while_it_moves() {
    let world = World::with(Store::Memory, "abandon_after = \"900ms\"\n timeout = \"900ms\"").await;
    let mut steps = vec![Step::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_vec())];
    for _ in 0..5 {
        steps.extend([Step::Pause(ms(300)), Step::Bytes(b"x".to_vec())]);
    }
    world.upstream.next(Script(steps));
    assert_eq!(world.send(&Request::new("GET", "/")).await.text(), "xxxxx");
}
