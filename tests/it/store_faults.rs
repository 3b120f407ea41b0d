//! A store that is gone, hangs, or forgets: refused, never guessed.

use std::time::Duration;

use crate::support::{Answer, Gate, Request, Store, World, eventually, ms, pass, reply};

fn assert_refused(answer: &Answer) {
    answer.assert_problem(503, "store-unavailable");
    assert_eq!((answer.retry().as_str(), answer.field("Stripe-Should-Retry")), ("same-key", Some("true")));
    assert!(answer.field("Retry-After").is_some(), "{}", answer.shown());
}

/// Repeats `k-1` while the store is away or a claim that nobody uses is not yet given back.
async fn once_back(world: &World) -> Answer {
    once_free(world, "k-1").await
}

/// The same with another key.
async fn once_free(world: &World, key: &str) -> Answer {
    eventually("the store to be back and the key to be free", async || {
        let answer = world.pay(key).await;
        (!matches!(answer.problem().as_str(), "store-unavailable" | "request-in-progress")).then_some(answer)
    })
    .await
}

on_shared_stores! {
    async fn g1_without_its_store_a_keyed_request_is_refused(store) {
        let mut world = World::build(store).alone().store("timeout = \"500ms\"").start().await;
        world.stop_store();
        for pending in [world.begin_pay("k-1"), world.begin_pay("k-1"), world.begin_pay("k-2")] {
            assert_refused(&pending.answer().await);
        }
        assert_eq!(world.executions(), 0);
        // What is not protected does not need the store.
        assert_eq!(world.send(&Request::new("GET", "/pay")).await.status, 201);
        eventually("/readyz to turn false", async || (world.proxy().readyz().await == Some(503)).then_some(())).await;
        world.start_store().await;
        once_back(&world).await.assert_executed(201);
        eventually("/readyz to turn true", async || (world.proxy().readyz().await == Some(200)).then_some(())).await;
    }

    async fn g1_a_route_may_forward_without_protection_and_says_so(store) {
        let mut world =
            World::build(store).alone().store("timeout = \"500ms\"").route("on_store_error = \"forward\"").start().await;
        world.stop_store();
        for n in 1..=2 {
            let answer = world.pay("k-1").await;
            answer.assert_executed(201);
            assert_eq!(answer.field("Cache-Status"), Some("onceproxy; fwd=bypass; detail=store-error"));
            assert_eq!(world.executions(), n);
        }
        let results = world.proxy().metric("onceproxy_requests_total", &[("result", "store_error")]).await;
        let unprotected = world.proxy().metric("onceproxy_requests_total", &[("result", "unprotected")]).await;
        assert_eq!(results + unprotected, 2.0);
        assert!(world.proxy().metric("onceproxy_store_errors_total", &[]).await >= 1.0);
    }

    async fn g1_forwarded_duplicates_on_one_process_still_join(store) {
        let mut world =
            World::build(store).alone().store("timeout = \"500ms\"").route("on_store_error = \"forward\"").start().await;
        world.stop_store();
        let gate = Gate::new();
        world.upstream.next(reply(201).body("one").behind(&gate));
        let first = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let second = world.begin_pay("k-1");
        eventually("the duplicate to wait", async || {
            (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
        })
        .await;
        gate.open();
        for answer in [first.answer().await, second.answer().await] {
            assert_eq!((answer.status, answer.text().as_str()), (201, "one"), "{}", answer.shown());
        }
        assert_eq!(world.executions(), 1);
    }

    async fn g1_a_proxy_starts_without_its_store_and_refuses(store) {
        let world = World::build(store).relayed().store("timeout = \"500ms\"").start().await;
        world.relay().cut();
        let mut world = world;
        world.proxies[0].kill();
        world.proxies[0].start_again().await;
        assert_eq!(world.proxy().readyz().await, Some(503));
        assert_refused(&world.pay("k-1").await);
        world.relay().mend();
        world.proxy().ready().await;
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 1);
    }

    // That it takes the timeout and no more than a tenth beyond, the store's own tests show by a clock that stands still.
    async fn g2_a_store_that_hangs_is_given_up(store) {
        let world = World::build(store).relayed().store("timeout = \"2s\"").start().await;
        world.pay("warm-up").await.assert_executed(201);
        world.relay().hang();
        assert_refused(&world.pay("k-1").await);
        assert_eq!(world.executions(), 1);
        world.relay().mend();
        // The claim that hung may have been made: it is given back, since nothing was sent.
        once_back(&world).await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn g2_whoever_was_told_that_nothing_was_sent_was_told_the_truth(store) {
        let builder = World::build(store).relayed().store("timeout = \"20s\"");
        let world = builder.route("timeout = \"2s\"\n lease = \"30s\"").start().await;
        world.pay("warm-up").await.assert_executed(201);
        // The store grants the claim, but says so only when the caller has gone.
        world.relay().delay(ms(3000));
        assert_refused(&world.pay("k-1").await);
        world.relay().delay(Duration::ZERO);
        once_back(&world).await.assert_executed(201);
        assert_eq!(world.executions(), 2, "what was refused was sent after all");
    }

    async fn g2_a_paused_store_burns_no_key(store) {
        let world = World::build(store).alone().store("timeout = \"500ms\"").route("lease = \"1s\"").start().await;
        world.pay("warm-up").await.assert_executed(201);
        world.pause_store();
        assert_refused(&world.pay("k-1").await);
        world.resume_store();
        // It now makes the claim that it was asked for; nobody uses it, so it must not end as unknown.
        once_back(&world).await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn g2_a_store_that_hangs_longer_than_a_lease_burns_no_key(store) {
        // Of the lease that begins when the store wakes up a third may pass before the claim is handed back. What is left
        // must last a busy machine.
        let world = World::build(store).alone().store("timeout = \"1s\"").route("lease = \"6s\"").start().await;
        world.pay("warm-up").await.assert_executed(201);
        world.pause_store();
        let keys: Vec<_> = (0..10).map(|n| format!("k-{n}")).collect();
        let refused: Vec<_> = keys.iter().map(|key| world.begin_pay(key)).collect();
        for pending in refused {
            assert_refused(&pending.answer().await);
        }
        pass(Duration::from_secs(7)).await;
        world.resume_store();
        // The claims that lay in its buffers are made now; their leases begin when nobody uses them any more.
        for key in &keys {
            once_free(&world, key).await.assert_executed(201);
        }
        assert!(world.proxy().open_records("").await.is_empty());
        assert_eq!(world.proxy().metric("onceproxy_stale_claims_total", &[]).await, 0.0);
        assert_eq!(world.executions(), 11);
    }

    async fn b6_a_store_that_is_away_longer_than_a_lease_burns_no_key_of_what_never_ran(store) {
        let world = World::build(store).relayed().store("timeout = \"500ms\"").route("lease = \"1s\"").start().await;
        let gate = Gate::new();
        world.upstream.next(reply(429).behind(&gate));
        let first = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        world.relay().hang();
        gate.open();
        first.answer().await.assert_executed(429);
        pass(Duration::from_secs(4)).await;
        world.relay().mend();
        // It has lapsed by now, which says nothing against what the attempt knows.
        let again = eventually("the key to be free", async || {
            let answer = world.pay("k-1").await;
            answer.problem().is_empty().then_some(answer)
        });
        again.await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    /// The renewal of one second hangs when the answer comes; waited out, the write that follows it would last longer than
    /// the caller does, who would be told that nobody knows what the upstream has just said.
    async fn a_renewal_that_hangs_does_not_keep_the_caller_from_its_answer(store) {
        let world = World::build(store).alone()
            .store("timeout = \"3s\"")
            .route("lease = \"3s\"\n timeout = \"6500ms\"")
            .start()
            .await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("one").behind(&gate));
        let first = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        world.pause_store();
        pass(ms(1800)).await;
        gate.open();
        let answer = first.answer().await;
        world.resume_store();
        assert_eq!((answer.status, answer.text().as_str()), (201, "one"), "{}", answer.shown());
        assert_eq!(answer.field("Cache-Status"), Some("onceproxy; fwd=miss; detail=not-recorded"));
        once_back(&world).await.assert_replay(201);
        assert_eq!(world.executions(), 1);
    }

    async fn a_relay_that_delays_everything_changes_nothing(store) {
        let world = World::build(store).relayed().start().await;
        world.relay().delay(ms(20));
        for n in 0..5 {
            let key = format!("k-{n}");
            world.pay(&key).await.assert_executed(201);
            world.pay(&key).await.assert_replay(201);
        }
        assert_eq!(world.executions(), 5);
    }
}

on_stores! {
    // The second line would not have forgotten.
    [redis postgres]
    async fn a_forgotten_claim_is_written_anew_while_its_attempt_runs(store) {
        let world = World::build(store).proxies(2).route("lease = \"1s\"\n on_duplicate = \"reject\"").start().await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("done").behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        world.forget_everything().await;
        eventually("the claim to be written anew", async || {
            (world.proxy().metric("onceproxy_rewritten_claims_total", &[("route", "pay")]).await >= 1.0).then_some(())
        })
        .await;
        Request::pay().key("k-1").send(world.proxies[1].address).await.assert_in_flight();
        gate.open();
        owner.answer().await.assert_executed(201);
        let replay = Request::pay().key("k-1").send(world.proxies[1].address).await;
        assert_eq!(replay.assert_replay(201).text(), "done");
        assert_eq!(world.executions(), 1);
    }

    async fn an_answer_whose_claim_was_forgotten_is_recorded_all_the_same(store) {
        let world = World::build(store).proxies(2).route("lease = \"30s\"").start().await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("done").behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        world.forget_everything().await;
        gate.open();
        owner.answer().await.assert_executed(201);
        let replay = Request::pay().key("k-1").send(world.proxies[1].address).await;
        assert_eq!(replay.assert_replay(201).text(), "done");
        assert_eq!(world.executions(), 1);
    }

    async fn an_owner_never_gets_the_answer_to_another_request_that_took_its_forgotten_key(store) {
        let world = World::build(store).proxies(2).route("lease = \"30s\"").start().await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("ten").behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        world.forget_everything().await;
        let other = Request::new("POST", "/pay").json(r#"{"amount":20}"#).key("k-1");
        world.upstream.next(reply(201).body("twenty"));
        assert_eq!(other.send(world.proxies[1].address).await.assert_executed(201).text(), "twenty");
        gate.open();
        let first = owner.answer().await;
        assert_eq!(first.assert_executed(201).text(), "ten");
        assert_eq!(first.field("Cache-Status"), Some("onceproxy; fwd=miss; detail=not-recorded"));
        world.pay("k-1").await.assert_problem(422, "key-reused");
        assert_eq!(other.send(world.address()).await.assert_replay(201).text(), "twenty");
        assert_eq!(world.proxy().metric("onceproxy_lost_writes_total", &[]).await, 1.0);
    }
}

on_stores! {
    [redis]
    async fn an_empty_value_under_a_records_key_is_no_free_key(store) {
        let world = World::with(store, "on_store_error = \"forward\"").await;
        world.pay("k-1").await.assert_executed(201);
        let spoil = "return redis.call('SET', redis.call('KEYS', '*:r:*')[1], '')";
        world.redis().command(&["EVAL", spoil, "0"]).await;
        assert_refused(&world.pay("k-1").await);
        assert_eq!(world.executions(), 1);
        let unreadable = [("operation", "claim"), ("kind", "unreadable")];
        assert_eq!(world.proxy().metric("onceproxy_store_errors_total", &unreadable).await, 1.0);
    }

    async fn g5_flushed_scripts_are_no_error(store) {
        let world = World::build(store).proxies(2).start().await;
        for n in 1..=3 {
            let key = format!("k-{n}");
            let gate = Gate::new();
            world.upstream.next(reply(201).behind(&gate));
            let owner = world.begin_pay(&key);
            world.upstream.reached(n).await;
            world.redis().command(&["SCRIPT", "FLUSH"]).await;
            gate.open();
            owner.answer().await.assert_executed(201);
            world.redis().command(&["SCRIPT", "FLUSH"]).await;
            Request::pay().key(&key).send(world.proxies[1].address).await.assert_replay(201);
        }
        assert_eq!(world.proxy().metric("onceproxy_store_errors_total", &[]).await, 0.0);
        assert_eq!(world.executions(), 3);
    }

    async fn a_redis_that_evicts_keys_is_refused(store) {
        let world = World::new(store).await;
        world.redis().command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
        let mut world = world;
        world.proxies[0].kill();
        world.proxies[0].start_again().await;
        eventually("the policy to be seen", async || (world.proxy().readyz().await == Some(503)).then_some(())).await;
        assert_refused(&world.pay("k-1").await);
        assert_eq!(world.executions(), 0);
        world.redis().command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
        world.proxies[0].restart().await;
        world.pay("k-1").await.assert_executed(201);
    }

    async fn a_damaged_record_is_refused_even_where_the_route_forwards(store) {
        let world = World::with(store, "on_store_error = \"forward\"").await;
        world.pay("k-1").await.assert_executed(201);
        let spoil = "local k = redis.call('KEYS', '*:r:*')[1] \
                     return redis.call('SETRANGE', k, 0, '\\255\\255\\255\\255')";
        world.redis().command(&["EVAL", spoil, "0"]).await;
        let refused = world.pay("k-1").await;
        assert_refused(&refused);
        assert_eq!(world.executions(), 1);
        // Who looks at it is not told to ask again: that never helps.
        let target = format!("/records/{}", refused.json()["record"].as_str().unwrap());
        let shown = world.proxy().admin("GET", &target, None).await;
        shown.assert_problem(503, "store-unavailable");
        let detail = shown.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("Asking again does not help") && !detail.contains("Ask again"), "{detail}");
        let unreadable = world.proxy().metric("onceproxy_store_errors_total", &[("kind", "unreadable")]).await;
        assert!(unreadable >= 1.0);
    }

    async fn a_full_redis_refuses_claims_and_takes_completions(store) {
        let world = World::build(store).store("timeout = \"500ms\"").start().await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("done").behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        world.redis().command(&["CONFIG", "SET", "maxmemory", "1"]).await;
        assert_refused(&world.pay("k-2").await);
        gate.open();
        let first = owner.answer().await;
        assert_eq!(first.assert_executed(201).field("Cache-Status"), Some("onceproxy; fwd=miss; stored"));
        world.pay("k-1").await.assert_replay(201);
        assert_eq!(world.executions(), 1);
    }

    async fn a_full_redis_says_that_it_did_not_keep_a_body(store) {
        let world = World::new(store).await;
        let gate = Gate::new();
        let body = vec![b'x'; 64 * 1024];
        world.upstream.next(reply(201).body(&body).behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        world.redis().command(&["CONFIG", "SET", "maxmemory", "1"]).await;
        gate.open();
        let first = owner.answer().await;
        let status = first.assert_executed(201).field("Cache-Status");
        assert_eq!(status, Some("onceproxy; fwd=miss; detail=response-not-retained"));
        assert_eq!(first.body, body);
        world.pay("k-1").await.assert_problem(409, "response-not-retained");
        assert_eq!(world.executions(), 1);
    }
}

#[tokio::test]
async fn a_folder_that_another_process_holds_is_a_store_that_cannot_be_reached() {
    let mut world = World::new(Store::Disk).await;
    let first = world.pay("k-1").await;
    world.add_proxy().await;
    let second = &world.proxies[1];
    assert_refused(&Request::pay().key("k-1").send(second.address).await);
    assert_eq!(second.readyz().await, Some(503));
    assert_eq!(world.executions(), 1);
    world.proxies.remove(0);
    world.proxy().ready().await;
    assert_eq!(world.pay("k-1").await.assert_replay(201).body, first.body);
    assert_eq!(world.executions(), 1);
}
