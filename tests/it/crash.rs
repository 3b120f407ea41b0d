//! Crash and doubt: what nobody can know is held, what certainly did not happen is given back.

use std::time::Duration;

use serde_json::json;

use crate::support::tls::Authority;
use crate::support::{Answer, Connection, Gate, Request, Script, Step, Store, World, eventually, ms, pass, reply};

/// A route that gives up soon: the caller after 1.5 s, the proxy after 3 s.
const HASTY: &str = "timeout = \"1500ms\"\n abandon_after = \"3s\"\n lease = \"1s\"\n on_duplicate = \"reject\"";

/// Repeats `k-1` while it is said to be running, and returns the first other answer.
async fn once_settled(world: &World) -> Answer {
    eventually("the record to be settled", async || {
        let answer = world.pay("k-1").await;
        if answer.problem() == "request-in-progress" {
            answer.assert_in_flight();
            return None;
        }
        Some(answer)
    })
    .await
}

/// Kills the first proxy while `k-1` is with the upstream.
async fn kill_the_owner(world: &mut World) {
    world.upstream.next(Script::never());
    let owner = world.begin_pay("k-1");
    world.upstream.reached(1).await;
    world.proxies[0].kill();
    owner.hang_up().await;
}

/// An attempt whose upstream never answers, until the record is unknown.
async fn abandoned(store: Store) -> World {
    let world = World::with(store, HASTY).await;
    world.upstream.next(Script::never());
    let first = world.pay("k-1").await;
    first.assert_problem(504, "outcome-unknown");
    once_settled(&world).await.assert_unknown();
    world
}

async fn gauge_of_unknown_reaches(world: &World, count: f64) {
    eventually("the gauge of unknown records", async || {
        let labels = [("state", "unknown")];
        (world.proxy().metric("onceproxy_records_open", &labels).await == count).then_some(())
    })
    .await;
}

on_lasting_stores! {
    async fn b1_a_killed_owner_leaves_an_unknown_record(store) {
        let mut world = World::with(store, "lease = \"1s\"\n on_duplicate = \"reject\"").await;
        kill_the_owner(&mut world).await;
        world.restart().await;
        let answer = once_settled(&world).await;
        answer.assert_unknown();
        let record = world.proxy().record(&answer.record()).await.expect("the record it names");
        assert_eq!((&record["state"], &record["reason"]), (&json!("unknown"), &json!("lapsed")));
        gauge_of_unknown_reaches(&world, 1.0).await;
        world.pay("k-1").await.assert_unknown();
        assert_eq!(world.executions(), 1);
    }

    async fn b1_a_killed_owner_shows_without_any_duplicate(store) {
        let mut world = World::with(store, "lease = \"1s\"").await;
        kill_the_owner(&mut world).await;
        world.restart().await;
        gauge_of_unknown_reaches(&world, 1.0).await;
        let stale = world.proxy().metric("onceproxy_stale_claims_total", &[("route", "pay")]).await;
        assert_eq!(stale, 1.0, "whoever finds it counts it");
    }

    async fn b9_a_stop_leaves_nothing_open(store) {
        let mut world = World::new(store).await;
        let gate = Gate::new();
        let slow = gate.clone();
        world.upstream.always(move |_| reply(201).body("done").behind(&slow));
        let keys: Vec<_> = (0..20).map(|n| format!("k-{n}")).collect();
        let pending: Vec<_> = keys.iter().map(|key| world.begin_pay(key)).collect();
        world.upstream.reached(20).await;
        world.proxies[0].terminate();
        eventually("/readyz to turn false", async || (world.proxy().readyz().await == Some(503)).then_some(())).await;
        gate.open();
        for pending in pending {
            pending.answer().await.assert_executed(201);
        }
        let status = world.proxies[0].ended().await;
        assert_eq!(status.code(), Some(0), "{status}");

        world.restart().await;
        assert!(world.proxy().open_records("").await.is_empty());
        for key in &keys {
            world.pay(key).await.assert_replay(201);
        }
        assert_eq!(world.executions(), 20);
    }

    async fn b9_what_a_stop_cannot_wait_for_is_doubted(store) {
        let mut world = World::build(store).top("drain_timeout = \"1s\"").start().await;
        world.upstream.next(Script::never());
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        world.proxies[0].terminate();
        let answer = owner.answer().await;
        assert_eq!((answer.status, answer.problem().as_str()), (502, "outcome-unknown"), "{}", answer.shown());
        assert_eq!(world.proxies[0].ended().await.code(), Some(0));
        world.restart().await;
        world.pay("k-1").await.assert_unknown();
        assert_eq!(world.proxy().only_open_record().await["reason"], "drained");
        assert_eq!(world.executions(), 1);
    }

    async fn b10_running_and_cannot_tell_are_never_mixed_up(store) {
        let mut world = World::with(store, "lease = \"1s\"\n on_duplicate = \"reject\"").await;
        world.upstream.next(Script::never());
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let running = world.pay("k-1").await;
        running.assert_in_flight();
        assert_eq!((running.retry().as_str(), running.field("Stripe-Should-Retry")), ("same-key", Some("true")));
        world.proxies[0].kill();
        owner.hang_up().await;
        world.restart().await;
        let unknown = once_settled(&world).await;
        unknown.assert_unknown();
        assert_eq!(unknown.field("Stripe-Should-Retry"), Some("false"));
        assert_ne!(unknown.json()["title"], running.json()["title"]);
        assert!(unknown.field("Retry-After").is_none(), "{}", unknown.shown());
    }
}

on_shared_stores! {
    async fn b1_a_waiter_is_told_when_the_owner_on_another_proxy_dies(store) {
        let mut world = World::build(store).proxies(2).route("lease = \"1s\"").start().await;
        world.upstream.next(Script::never());
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let waiter = Request::pay().key("k-1").begin(world.proxies[1].address);
        world.proxies[0].kill();
        owner.hang_up().await;
        waiter.answer().await.assert_unknown();
        assert_eq!(world.executions(), 1);
    }

    async fn b1_an_owner_that_slept_past_its_lease_and_lost_its_key_never_sends(store) {
        // One core: another would have to connect first, and cannot while replies are held back.
        let world = World::build(store).proxies(2).top("threads = 1").relayed().route("lease = \"1s\"").start().await;
        world.pay("warm-up").await.assert_executed(201);
        // The store grants the claim and its reply is held back; meanwhile the process that asked is stopped.
        world.relay().hold_replies();
        let sleeper = world.begin_pay("k-1");
        eventually("the claim", async || (world.open_in_store().await == 1).then_some(())).await;
        world.proxies[0].pause();
        world.relay().mend();
        let other = &world.proxies[1];
        let record = eventually("the lease to run out", async || other.open_records("unknown").await.pop()).await;
        assert_eq!(world.executions(), 1, "stopped before it sent");
        // An operator who takes the process for dead, and a caller who repeats.
        let resolved = other.resolve(&record, json!({"outcome": "not-executed", "force": true})).await;
        assert_eq!(resolved.status, 200, "{}", resolved.shown());
        let repeat = Request::pay().key("k-1").send(other.address).await;
        repeat.assert_executed(201);
        world.proxies[0].resume();
        let answer = sleeper.answer().await;
        assert!(answer.status >= 400 || answer.body == repeat.body, "{}", answer.shown());
        world.pay("k-1").await.assert_replay(201);
        assert_eq!(world.executions(), 2, "the sleeper sent although its key was another's");
    }

    async fn b5_a_waiter_on_another_proxy_is_told_that_nobody_can_tell(store) {
        let world = World::build(store).proxies(2).start().await;
        let gate = Gate::new();
        world.upstream.next(Script::close().behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let waiter = Request::pay().key("k-1").begin(world.proxies[1].address);
        eventually("the duplicate to wait", async || {
            (world.proxies[1].metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
        })
        .await;
        gate.open();
        owner.answer().await.assert_problem(502, "outcome-unknown");
        waiter.answer().await.assert_unknown();
        assert_eq!(world.executions(), 1);
    }
}

on_stores! {
    [redis postgres second_line cluster sentinel]
    async fn b1_another_proxy_finds_the_killed_owners_record_unknown(store) {
        let builder = World::build(store).proxies(2);
        let mut world = builder.route("lease = \"1s\"\n on_duplicate = \"reject\"").start().await;
        kill_the_owner(&mut world).await;
        // The other proxy is the only one left.
        world.proxies.remove(0);
        once_settled(&world).await.assert_unknown();
        gauge_of_unknown_reaches(&world, 1.0).await;
        assert_eq!(world.executions(), 1);
    }
}

on_stores! {
    [redis postgres second_line cluster]
    async fn b8_a_store_that_fails_after_the_upstream_ran_costs_no_answer(store) {
        let world = World::build(store).relayed().store("timeout = \"500ms\"").start().await;
        world.pay("warm-up").await.assert_executed(201);
        let gate = Gate::new();
        world.upstream.next(reply(201).body("charged").behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(2).await;
        let id = world.proxy().only_open_record().await["id"].as_str().unwrap().to_owned();
        world.relay().cut();
        gate.open();
        let first = owner.answer().await;
        assert_eq!((first.status, first.text().as_str()), (201, "charged"), "{}", first.shown());
        // This process knows the answer, whether or not the store does.
        assert_eq!(world.pay("k-1").await.assert_replay(201).text(), "charged");
        world.relay().mend();
        world.proxy().record_in_state(&id, "completed").await;
        assert_eq!(world.pay("k-1").await.assert_replay(201).text(), "charged");
        assert_eq!(world.executions(), 2);
    }

    async fn b8_a_completion_that_never_lands_ends_as_unknown(store) {
        let world = World::build(store).proxies(2).relayed().store("timeout = \"500ms\"")
            .route("abandon_after = \"3s\"\n timeout = \"1s\"\n lease = \"1s\"").start().await;
        world.pay("warm-up").await.assert_executed(201);
        let gate = Gate::new();
        world.upstream.next(reply(201).behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(2).await;
        let abandon = eventually("the record", async || {
            let record = world.proxy().open_records("claimed").await.pop()?;
            humantime::parse_rfc3339(record["abandon_at"].as_str()?).ok()
        })
        .await;
        world.relay().cut();
        gate.open();
        assert_eq!(owner.answer().await.status, 201);
        let left = abandon.duration_since(std::time::SystemTime::now()).unwrap_or_default();
        pass(left + ms(1500)).await;
        world.relay().mend();
        let answer = eventually("the store to be back", async || {
            let answer = Request::pay().key("k-1").send(world.proxies[1].address).await;
            (answer.status != 503).then_some(answer)
        })
        .await;
        if store == Store::SecondLine {
            // Which was not cut off: it has the answer, and Redis gets it back.
            answer.assert_replay(201);
        } else {
            answer.assert_unknown();
        }
        assert_eq!(world.executions(), 2);
    }
}

on_each_store! {
    async fn b2_a_late_answer_is_recorded_and_replayed(store) {
        let world = World::with(store, "timeout = \"2s\"\n lease = \"1s\"\n on_duplicate = \"reject\"").await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("late").behind(&gate));
        let first = world.pay("k-1").await;
        first.assert_problem(504, "outcome-unknown");
        assert_eq!(first.retry(), "same-key");
        assert!(first.field("Retry-After").is_some(), "{}", first.shown());
        assert_eq!(first.field("Stripe-Should-Retry"), Some("true"));
        world.pay("k-1").await.assert_in_flight();
        gate.open();
        assert_eq!(once_settled(&world).await.assert_replay(201).text(), "late");
        assert_eq!(world.proxy().metric("onceproxy_late_answers_total", &[("route", "pay")]).await, 1.0);
        assert_eq!(world.executions(), 1);
    }

    async fn b2_a_duplicate_that_waits_gets_the_late_answer(store) {
        let world = World::with(store, "timeout = \"2s\"\n lease = \"1s\"").await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("late").behind(&gate));
        world.pay("k-1").await.assert_problem(504, "outcome-unknown");
        let second = world.begin_pay("k-1");
        gate.open();
        assert_eq!(second.answer().await.assert_replay(201).text(), "late");
        assert_eq!(world.executions(), 1);
    }

    async fn b3_an_answer_that_never_comes_is_unknown_for_ever(store) {
        let world = abandoned(store).await;
        let record = world.proxy().only_open_record().await;
        assert_eq!((&record["state"], &record["reason"]), (&json!("unknown"), &json!("timeout")));
        // Two more leases: nothing takes the record back.
        pass(Duration::from_secs(2)).await;
        world.pay("k-1").await.assert_unknown();
        assert_eq!(world.executions(), 1);
    }

    async fn b3_an_answer_that_never_comes_is_unknown_after_ten_leases(store) {
        let world = World::with(store, &format!("{HASTY}\n lease = \"200ms\"")).await;
        world.upstream.always(|_| Script::never());
        // A machine that sleeps through a lease of this length sends nothing, says so, and is asked again.
        let first = eventually("a request that is sent", async || {
            let answer = world.pay("k-1").await;
            (answer.status == 504).then_some(answer)
        })
        .await;
        first.assert_problem(504, "outcome-unknown");
        once_settled(&world).await.assert_unknown();
        pass(Duration::from_secs(2)).await;
        for _ in 0..3 {
            world.pay("k-1").await.assert_unknown();
        }
        assert_eq!(world.executions(), 1);
    }

    async fn b4_a_504_of_the_upstreams_gateway_is_passed_on_and_then_unknown(store) {
        for status in [502, 504] {
            let world = World::new(store).await;
            world.upstream.next(reply(status).body("gateway"));
            let first = world.pay("k-1").await;
            assert_eq!((first.status, first.text().as_str()), (status, "gateway"), "{}", first.shown());
            assert!(!first.field("Cache-Status").unwrap_or_default().contains("stored"), "{}", first.shown());
            let second = world.pay("k-1").await;
            second.assert_unknown();
            assert_eq!(second.json()["original_status"], status, "{}", second.shown());
            assert_eq!(world.executions(), 1);
        }
    }

    async fn b5_a_request_read_and_not_answered_is_never_sent_again(store) {
        for end in [Script::close(), Script::reset(), Script::bytes_then_close("HTTP/1.1 201 Cr")] {
            let world = World::new(store).await;
            // One connection of the client, so that one core with its one upstream connection serves both.
            let mut connection = Connection::open(world.address()).await;
            connection.send(&Request::pay().key("warm-up")).await;
            connection.answer().await.assert_executed(201);
            world.upstream.next(end);
            connection.send(&Request::pay().key("k-1")).await;
            connection.answer().await.assert_problem(502, "outcome-unknown");
            assert_eq!(world.upstream.last().connection, 1, "it came on the reused connection");
            world.pay("k-1").await.assert_unknown();
            assert_eq!(world.executions(), 2);
        }
    }

    async fn b6_a_refused_connection_gives_the_key_back(store) {
        let mut world = World::build(store).upstream_closed().start().await;
        let first = world.pay("k-1").await;
        first.assert_problem(502, "upstream-unreachable");
        assert_eq!((first.retry().as_str(), first.field("Stripe-Should-Retry")), ("same-key", Some("true")));
        assert!(world.proxy().open_records("").await.is_empty());
        world.upstream.open();
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 1);
    }

    async fn b6_a_failed_tls_handshake_gives_the_key_back(store) {
        let authority = Authority::new();
        let ca = format!("upstream = \"https://AUTHORITY\"\n ca_file = \"{}\"", authority.file().display());
        let world = World::build(store).route(&ca).start().await;
        world.upstream.speak_tls(Authority::new().certificate_for("127.0.0.1"));
        world.pay("k-1").await.assert_problem(502, "upstream-unreachable");
        world.upstream.speak_tls(authority.certificate_for("127.0.0.1"));
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 1);
    }

    async fn b6_an_unknown_name_gives_the_key_back(store) {
        let mut world = World::with(store, "upstream = \"http://upstream.invalid:80\"").await;
        world.pay("k-1").await.assert_problem(502, "upstream-unreachable");
        assert!(world.proxy().open_records("").await.is_empty());
        world.change_route("upstream = \"UPSTREAM\"");
        world.restart().await;
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 1);
    }

    async fn b7_not_executed_lets_the_key_run_again(store) {
        let world = abandoned(store).await;
        let record = world.proxy().only_open_record().await;
        // Refused until the attempt is over by the store's clock, which the proxy's own runs a little ahead of.
        let resolved = eventually("the finding to be taken", async || {
            let answer = world.proxy().resolve(&record, json!({"outcome": "not-executed"})).await;
            (answer.status != 409).then_some(answer)
        })
        .await;
        assert_eq!(resolved.status, 200, "{}", resolved.shown());
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn b7_not_executed_is_refused_while_the_attempt_may_run(store) {
        let world = World::with(store, "timeout = \"2s\"\n lease = \"1s\"").await;
        let gate = Gate::new();
        world.upstream.next(Script::close().behind(&gate));
        world.pay("k-1").await.assert_problem(504, "outcome-unknown");
        let record = world.proxy().only_open_record().await;
        let not_executed = json!({"outcome": "not-executed"});
        assert_eq!(world.proxy().resolve(&record, not_executed.clone()).await.status, 409, "it is still claimed");
        gate.open();
        let id = record["id"].as_str().unwrap();
        let record = world.proxy().record_in_state(id, "unknown").await;
        let refused = world.proxy().resolve(&record, not_executed).await;
        assert_eq!(refused.status, 409, "before abandon_at: {}", refused.shown());
        let forced = world.proxy().resolve(&record, json!({"outcome": "not-executed", "force": true})).await;
        assert_eq!(forced.status, 200, "{}", forced.shown());
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn b7_executed_replays_what_the_operator_found(store) {
        let world = abandoned(store).await;
        let record = world.proxy().only_open_record().await;
        let headers = json!([["content-type", "text/plain"], ["X-Found", "by hand"]]);
        let response = json!({"status": 201, "headers": headers, "body": "found"});
        let resolved = world.proxy().resolve(&record, json!({"outcome": "executed", "response": response})).await;
        assert_eq!(resolved.status, 200, "{}", resolved.shown());
        let replay = world.pay("k-1").await;
        replay.assert_replay(201);
        assert_eq!((replay.text().as_str(), replay.field("X-Found")), ("found", Some("by hand")));
        assert_eq!(world.executions(), 1);
    }

    async fn b7_a_finding_for_another_token_is_refused(store) {
        let world = abandoned(store).await;
        let mut record = world.proxy().only_open_record().await;
        let id = record["id"].as_str().unwrap().to_owned();
        record["token"] = json!("00000000-0000-4000-8000-000000000000");
        let refused = world.proxy().resolve(&record, json!({"outcome": "not-executed"})).await;
        assert_eq!(refused.status, 409, "{}", refused.shown());
        assert_eq!(world.proxy().record(&id).await.unwrap()["state"], "unknown");
        world.pay("k-1").await.assert_unknown();
        assert_eq!(world.executions(), 1);
    }

    async fn b11_stale_connections_cost_no_execution_and_no_certainty(store) {
        let world = World::new(store).await;
        // The upstream closes each connection a moment after its answer, just as the next request is written.
        world.upstream.always(|request| {
            Script(vec![Step::Reply(reply(201)), Step::Pause(ms(request.number as u64 % 4)), Step::Close])
        });
        let (mut answered, mut unknown, mut unsent) = (0, 0, 0);
        for n in 0..1000 {
            let answer = world.pay(&format!("k-{n}")).await;
            match (answer.status, answer.problem().as_str()) {
                (201, _) => answered += 1,
                (502, "outcome-unknown") => unknown += 1,
                (502, "upstream-unreachable") => unsent += 1,
                _ => panic!("{}", answer.shown()),
            }
        }
        let received = world.upstream.received();
        let mut keys: Vec<_> = received.iter().filter_map(|r| r.field("Idempotency-Key")).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), received.len(), "a key ran twice");
        let executions = world.executions();
        let seen = format!("answered {answered}, unknown {unknown}, unsent {unsent}, executions {executions}");
        assert!(answered <= executions && executions <= answered + unknown, "{seen}");
        // Every resend is the proxy's own, and counted: nobody below it repeats a request.
        let sends = world.proxy().metric("onceproxy_upstream_sends_total", &[]).await as usize;
        let resends = world.proxy().metric("onceproxy_upstream_resends_total", &[]).await as usize;
        assert!((answered + unknown..=1000).contains(&(sends - resends)), "{seen}, sends {sends}, resends {resends}");
    }
}
