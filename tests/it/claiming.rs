//! Claiming, owning and waiting: two requests under one key, at every distance from each other.

use std::time::Duration;

use crate::support::relay::Loss;
use crate::support::{Answer, Pending, Request, Script, World, eventually, ms, reply};
use crate::support::{Gate, pass};

/// Waits until all but `left` of them are answered, and returns those answers with the rest still under way.
async fn all_but(left: usize, pending: Vec<Pending>) -> (Vec<Answer>, Vec<Pending>) {
    let total = pending.len();
    eventually("the duplicates to be answered", async || {
        (pending.iter().filter(|p| p.is_answered()).count() >= total - left).then_some(())
    })
    .await;
    let (answered, waiting): (Vec<_>, Vec<_>) = pending.into_iter().partition(Pending::is_answered);
    let mut answers = Vec::new();
    for pending in answered {
        answers.push(pending.answer().await);
    }
    (answers, waiting)
}

/// 100 equal requests, spread over all proxies of the world, of which one may run.
async fn hundred_at_once_are_rejected_but_one(world: &World) {
    let gate = Gate::new();
    world.upstream.next(reply(201).body("done").behind(&gate));
    let addresses = world.proxies.iter().map(|p| p.address).cycle();
    let pending: Vec<_> = addresses.take(100).map(|address| Request::pay().key("k-1").begin(address)).collect();

    let (refused, owner) = all_but(1, pending).await;
    assert_eq!(owner.len(), 1);
    for answer in &refused {
        answer.assert_in_flight();
    }
    world.upstream.reached(1).await;
    gate.open();
    for owner in owner {
        owner.answer().await.assert_executed(201);
    }
    for proxy in &world.proxies {
        Request::pay().key("k-1").send(proxy.address).await.assert_replay(201);
    }
    assert_eq!(world.executions(), 1);
}

on_each_store! {
    async fn a1_simultaneous_requests_run_once(store) {
        let world = World::with(store, "on_duplicate = \"reject\"").await;
        hundred_at_once_are_rejected_but_one(&world).await;
    }

    async fn a1_simultaneous_requests_that_wait_all_get_the_one_answer(store) {
        let world = World::new(store).await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("done").behind(&gate));
        let pending: Vec<_> = (0..100).map(|_| world.begin_pay("k-1")).collect();
        eventually("99 to wait", async || {
            (world.proxy().metric("onceproxy_waiting", &[]).await == 99.0).then_some(())
        })
        .await;
        gate.open();
        let mut replayed = 0;
        for pending in pending {
            let answer = pending.answer().await;
            assert_eq!((answer.status, answer.text().as_str()), (201, "done"), "{}", answer.shown());
            replayed += usize::from(answer.is_replay());
        }
        assert_eq!((world.executions(), replayed), (1, 99));
    }

    async fn a1_many_keys_at_once_run_once_each(store) {
        let world = World::new(store).await;
        let pending: Vec<_> = (0..400).map(|n| world.begin_pay(&format!("k-{}", n % 200))).collect();
        let mut bodies = std::collections::BTreeMap::new();
        for (n, pending) in pending.into_iter().enumerate() {
            let answer = pending.answer().await;
            assert_eq!(answer.status, 201, "{}", answer.shown());
            let same = bodies.entry(n % 200).or_insert_with(|| answer.body.clone()) == &answer.body;
            assert!(same, "k-{}: {}", n % 200, answer.shown());
        }
        assert_eq!(world.executions(), 200);
    }

    async fn a2_a_joiner_gets_what_the_owner_got(store) {
        let world = World::new(store).await;
        for script in [Script::from(reply(429).body("slow down")), Script::from(reply(504)), Script::close()] {
            let (before, gate) = (world.executions(), Gate::new());
            world.upstream.next(script.behind(&gate));
            let key = format!("k-{before}");
            let owner = world.begin_pay(&key);
            world.upstream.reached(before + 1).await;
            let joiner = world.begin_pay(&key);
            eventually("the duplicate to wait", async || {
                (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
            })
            .await;
            gate.open();
            let (owner, joiner) = (owner.answer().await, joiner.answer().await);
            assert_eq!((owner.status, &owner.body), (joiner.status, &joiner.body), "{}", joiner.shown());
            assert!(!joiner.is_replay(), "not from a record: {}", joiner.shown());
            assert_eq!(world.executions(), before + 1);
        }
    }

    async fn a2_refused_duplicates_leave_the_owners_record(store) {
        let world = World::with(store, "on_duplicate = \"reject\"").await;
        let gate = Gate::new();
        world.upstream.next(reply(201).behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let before = world.proxy().only_open_record().await;
        for _ in 0..2 {
            world.pay("k-1").await.assert_in_flight();
            let after = world.proxy().only_open_record().await;
            assert_eq!((&after["token"], &after["state"]), (&before["token"], &before["state"]));
        }
        gate.open();
        owner.answer().await.assert_executed(201);
        world.pay("k-1").await.assert_replay(201);
        assert_eq!(world.executions(), 1);
    }

    async fn a3_an_owner_renews_its_claim_for_as_long_as_it_runs(store) {
        let world = World::with(store, "on_duplicate = \"reject\"").await;
        let gate = Gate::new();
        world.upstream.next(reply(201).behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        for leases in [1, 2] {
            renewed_past(&world, Duration::from_secs(2 * leases)).await;
            world.pay("k-1").await.assert_in_flight();
        }
        gate.open();
        owner.answer().await.assert_executed(201);
        world.pay("k-1").await.assert_replay(201);
        assert_eq!(world.executions(), 1);
    }

    async fn a4_a_duplicate_close_to_the_completion_never_runs(store) {
        let world = World::new(store).await;
        world.upstream.always(|_| reply(201).delayed(ms(30)));
        for offset in (0..60).step_by(4) {
            let key = format!("k-{offset}");
            let first = world.begin_pay(&key);
            pass(ms(offset)).await;
            let second = world.pay(&key).await;
            let first = first.answer().await;
            assert_eq!((first.status, second.status), (201, 201), "offset {offset}: {}", second.shown());
        }
        assert_eq!(world.executions(), 15);
    }

    async fn a5_a_waiter_never_claims_without_looking_again(store) {
        let world = World::new(store).await;
        world.upstream.always(|_| reply(201).delayed(ms(10)));
        waiters_get_the_owners_answer(&world, 50).await;
    }

    async fn a6_a_waiter_does_not_take_over_an_owner_that_outlives_its_lease(store) {
        let world = World::with(store, "lease = \"1s\"").await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("slow").behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let waiters: Vec<_> = world.proxies.iter().map(|p| Request::pay().key("k-1").begin(p.address)).collect();
        renewed_past(&world, Duration::from_secs(2)).await;
        gate.open();
        owner.answer().await.assert_executed(201);
        for waiter in waiters {
            assert_eq!(waiter.answer().await.assert_replay(201).text(), "slow");
        }
        assert_eq!(world.executions(), 1);
    }

    async fn a8_two_requests_on_a_fresh_start_never_get_a_5xx(store) {
        for duplicate in ["wait", "reject"] {
            // At the first moment at which the port is open.
            let world = World::build(store).route(&format!("on_duplicate = \"{duplicate}\"")).cold().start().await;
            let pending: Vec<_> = (0..2).map(|_| world.begin_pay("k-1")).collect();
            for pending in pending {
                let answer = pending.answer().await;
                if answer.status == 409 {
                    answer.assert_in_flight();
                } else {
                    assert_eq!(answer.status, 201, "{}", answer.shown());
                }
            }
            assert_eq!(world.executions(), 1);
        }
    }

    async fn a9_an_unfinished_record_is_never_replayed(store) {
        let world = World::with(store, "on_duplicate = \"reject\"").await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("whole").behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        for _ in 0..5 {
            world.pay("k-1").await.assert_in_flight();
        }
        gate.open();
        assert_eq!(owner.answer().await.assert_executed(201).text(), "whole");
    }
}

on_shared_stores! {
    async fn a3_an_owner_keeps_its_claim_against_another_proxy(store) {
        let world = World::build(store).proxies(2).route("on_duplicate = \"reject\"").start().await;
        let gate = Gate::new();
        world.upstream.next(reply(201).behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        renewed_past(&world, Duration::from_secs(2)).await;
        Request::pay().key("k-1").send(world.proxies[1].address).await.assert_in_flight();
        gate.open();
        owner.answer().await.assert_executed(201);
        Request::pay().key("k-1").send(world.proxies[1].address).await.assert_replay(201);
        assert_eq!(world.executions(), 1);
    }

    async fn a4_a_duplicate_close_to_the_completion_never_runs_on_a_slow_store(store) {
        let world = World::build(store).proxies(2).relayed().start().await;
        world.relay().delay(ms(50));
        world.upstream.always(|_| reply(201).delayed(ms(30)));
        // Claim, upstream and completion take some 130 ms: the duplicate comes before, within and after each of them.
        for offset in (0..200).step_by(15) {
            let key = format!("k-{offset}");
            let first = world.begin_pay(&key);
            pass(ms(offset)).await;
            let second = Request::pay().key(&key).send(world.proxies[offset as usize % 2].address).await;
            let first = first.answer().await;
            assert_eq!((first.status, second.status), (201, 201), "offset {offset}: {}", second.shown());
        }
        assert_eq!(world.executions(), 14);
    }

    async fn a5_a_waiter_on_another_proxy_never_claims_without_looking_again(store) {
        let world = World::build(store).proxies(2).start().await;
        world.upstream.always(|_| reply(201).delayed(ms(10)));
        waiters_get_the_owners_answer(&world, 50).await;
    }

    async fn a6_a_waiter_on_another_proxy_outlives_the_lease_too(store) {
        let world = World::build(store).proxies(2).route("lease = \"1s\"").start().await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("slow").behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let waiter = Request::pay().key("k-1").begin(world.proxies[1].address);
        renewed_past(&world, Duration::from_secs(2)).await;
        assert!(!waiter.is_answered());
        gate.open();
        owner.answer().await.assert_executed(201);
        assert_eq!(waiter.answer().await.assert_replay(201).text(), "slow");
        assert_eq!(world.executions(), 1);
    }

    async fn a2_a_waiter_on_another_proxy_never_becomes_an_owner(store) {
        let world = World::build(store).proxies(2).start().await;
        let gate = Gate::new();
        world.upstream.next(reply(429).behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let waiter = Request::pay().key("k-1").begin(world.proxies[1].address);
        eventually("the duplicate to wait", async || {
            (world.proxies[1].metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
        })
        .await;
        gate.open();
        owner.answer().await.assert_executed(429);
        let answer = waiter.answer().await;
        assert_eq!(answer.assert_in_flight().field("Retry-After"), Some("1"));
        // Not that it still runs: it does not, and no operator would find it.
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("has ended without an answer that is kept"), "{detail}");
        assert_eq!(world.executions(), 1);
        Request::pay().key("k-1").send(world.proxies[1].address).await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }
}

on_stores! {
    [redis postgres second_line cluster sentinel]
    async fn a1_simultaneous_requests_to_two_proxies_run_once(store) {
        let world = World::build(store).proxies(2).route("on_duplicate = \"reject\"").start().await;
        hundred_at_once_are_rejected_but_one(&world).await;
    }
}

on_stores! {
    [redis postgres second_line cluster]
    async fn a7_a_claim_whose_reply_broke_off_recognises_itself(store) {
        let world = World::build(store).relayed().route("on_duplicate = \"reject\"").start().await;
        // The scripts are loaded and the connections open: what gets lost is the claim's own reply.
        world.pay("warm-up").await.assert_executed(201);
        world.relay().lose_reply_to(store.claims_by(), Loss::Cut);
        world.pay("k-1").await.assert_executed(201);
        assert_eq!((world.relay().lost(), world.executions()), (1, 2));
        world.pay("k-1").await.assert_replay(201);
    }

    async fn a7_a_claim_that_arrives_after_its_attempt_is_over_claims_nothing(store) {
        let builder = World::build(store).relayed().store("timeout = \"1s\"");
        let world = builder.route("on_duplicate = \"reject\"").start().await;
        world.pay("warm-up").await.assert_executed(201);
        world.relay().lose_reply_to(store.claims_by(), Loss::Late);
        world.upstream.next(reply(429));
        // Granted by a repeated message and then released, or given up: either way the attempt ends.
        let first = world.pay("k-1").await;
        assert!(matches!(first.status, 429 | 503), "{}", first.shown());
        eventually("the attempt to end", async || world.proxy().open_records("").await.is_empty().then_some(())).await;
        world.relay().let_go().await;
        assert!(world.proxy().open_records("").await.is_empty(), "a claim that nobody will ever use");
        let again = world.pay("k-1").await;
        assert!(!again.is_replay() && again.problem().is_empty(), "{}", again.shown());
    }

    async fn a7_a_claim_that_was_repeated_and_refused_claims_nothing_later(store) {
        let builder = World::build(store).relayed().proxies(2).store("timeout = \"1s\"");
        let world = builder.route("on_duplicate = \"reject\"").start().await;
        for proxy in &world.proxies {
            Request::pay().key(&format!("warm-up-{}", proxy.address)).send(proxy.address).await.assert_executed(201);
        }
        let gate = Gate::new();
        world.upstream.next(reply(429).behind(&gate));
        let first = world.begin_pay("k-1");
        world.upstream.reached(3).await;
        // The other proxy's first message is still on its way when its second is told that the key is taken.
        world.relay().lose_reply_to(store.claims_by(), Loss::Late);
        let second = Request::pay().key("k-1").send(world.proxies[1].address).await;
        assert!(matches!(second.status, 409 | 503), "{}", second.shown());
        gate.open();
        assert_eq!(first.answer().await.status, 429);
        eventually("the attempt to end", async || world.proxy().open_records("").await.is_empty().then_some(())).await;
        world.relay().let_go().await;
        assert!(world.proxy().open_records("").await.is_empty(), "a claim that nobody will ever use");
        world.pay("k-1").await.assert_executed(201);
    }

    async fn a7_a_claim_whose_connection_fell_silent_is_never_its_own_stranger(store) {
        let world = World::build(store).relayed().store("timeout = \"2s\"").start().await;
        world.pay("warm-up").await.assert_executed(201);
        world.relay().lose_reply_to(store.claims_by(), Loss::Silence);
        let answer = world.pay("k-1").await;
        assert_eq!(world.relay().lost(), 1);
        // Within the store's timeout it may find a new connection or not; it must not take itself for another.
        if answer.status == 503 {
            answer.assert_problem(503, "store-unavailable");
            assert_eq!(world.executions(), 1);
            world.pay("k-1").await.assert_executed(201);
        } else {
            answer.assert_executed(201);
        }
        assert_eq!(world.executions(), 2);
        world.pay("k-1").await.assert_replay(201);
    }
}

/// Waits until the one open claim's lease ends this much later than it did.
async fn renewed_past(world: &World, more: Duration) {
    let lease_until = async || {
        let record = world.proxy().only_open_record().await;
        humantime::parse_rfc3339(record["lease_until"].as_str().expect("a claim has a lease")).unwrap()
    };
    let first = lease_until().await;
    eventually("the lease to be renewed", async || (lease_until().await > first + more).then_some(())).await;
}

async fn waiters_get_the_owners_answer(world: &World, times: usize) {
    let last = world.proxies.last().unwrap().address;
    for n in 1..=times {
        let key = format!("k-{n}");
        let owner = world.begin_pay(&key);
        world.upstream.reached(n).await;
        let waiter = Request::pay().key(&key).send(last).await;
        waiter.assert_replay(201);
        assert_eq!(owner.answer().await.assert_executed(201).body, waiter.body);
        assert_eq!(world.executions(), n);
    }
}
