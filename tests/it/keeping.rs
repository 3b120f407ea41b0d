//! What is kept, and for how long.

use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::support::{Answer, Request, Script, World, eventually, pass, reply};

on_each_store! {
    async fn e1_a_429_is_not_an_execution(store) {
        let world = World::new(store).await;
        world.upstream.next(reply(429).field("Retry-After", "7").body("slow down"));
        let first = world.pay("k-1").await;
        first.assert_executed(429);
        assert_eq!((first.field("Retry-After"), first.text().as_str()), (Some("7"), "slow down"));
        assert_eq!(first.field("Cache-Status"), Some("onceproxy; fwd=miss; detail=released"));
        world.pay("k-1").await.assert_executed(201);
        world.pay("k-1").await.assert_replay(201);
        assert_eq!(world.executions(), 2);
    }

    async fn e1_every_released_status_gives_the_key_back(store) {
        let world = World::new(store).await;
        for (n, status) in [307, 308, 401, 403, 407, 408, 409, 412, 417, 421, 423, 425, 428, 429, 431, 503].into_iter().enumerate() {
            let key = format!("k-{status}");
            world.upstream.next(reply(status));
            world.pay(&key).await.assert_executed(status);
            world.pay(&key).await.assert_executed(201);
            assert_eq!(world.executions(), 2 * (n + 1));
        }
    }

    async fn e1_a_route_may_record_what_its_preset_releases(store) {
        let world = World::with(store, "record = [\"2xx\", \"308\", \"412\"]").await;
        for status in [308, 412] {
            world.upstream.next(reply(status));
            world.pay(&format!("k-{status}")).await.assert_executed(status);
            world.pay(&format!("k-{status}")).await.assert_replay(status);
        }
        assert_eq!(world.executions(), 2);
    }

    async fn m1_a_redirect_that_keeps_the_method_is_followed_with_the_key(store) {
        let world = World::new(store).await;
        for status in [307, 308] {
            let key = format!("k-{status}");
            world.upstream.next(reply(status).field("Location", "/pay/"));
            let first = world.pay(&key).await;
            assert_eq!((first.status, first.field("Location")), (status, Some("/pay/")), "{}", first.shown());
            assert_eq!(first.field("Cache-Status"), Some("onceproxy; fwd=miss; detail=released"));
            let followed = Request::pay().key(&key).target("/pay/");
            world.send(&followed).await.assert_executed(201);
            assert_eq!(world.upstream.last().target, "/pay/");
            world.send(&followed).await.assert_replay(201);
        }
        assert_eq!(world.executions(), 4);
    }

    async fn m1_a_redirect_that_changes_the_method_is_an_answer(store) {
        let world = World::new(store).await;
        for status in [301, 302, 303] {
            let key = format!("k-{status}");
            world.upstream.next(reply(status).field("Location", "/pay/1"));
            world.pay(&key).await.assert_executed(status);
            assert_eq!(world.pay(&key).await.assert_replay(status).field("Location"), Some("/pay/1"));
        }
        assert_eq!(world.executions(), 3);
    }

    async fn m2_a_precondition_that_failed_can_be_mended(store) {
        let world = World::new(store).await;
        world.upstream.next(reply(412));
        let with = |etag: &str| Request::pay().key("k-1").field("If-Match", etag);
        world.send(&with("\"old\"")).await.assert_executed(412);
        world.send(&with("\"new\"")).await.assert_executed(201);
        assert_eq!(world.upstream.last().field("If-Match").as_deref(), Some("\"new\""));
        world.send(&with("\"new\"")).await.assert_replay(201);
        assert_eq!(world.executions(), 2);
    }

    async fn e2_a_401_leaves_the_key_for_a_valid_token(store) {
        let world = World::with(store, "scope = []").await;
        world.upstream.next(reply(401));
        let with = |token: &str| Request::pay().key("k-1").field("Authorization", token);
        world.send(&with("Bearer stale")).await.assert_executed(401);
        world.send(&with("Bearer fresh")).await.assert_executed(201);
        world.send(&with("Bearer fresh")).await.assert_replay(201);
        world.send(&with("Bearer other")).await.assert_problem(403, "other-caller");
        assert_eq!(world.executions(), 2);
    }

    async fn e3_a_429_may_be_listed_as_unknown(store) {
        let world = World::with(store, "unknown = [\"429\"]").await;
        world.upstream.next(reply(429).body("partly applied"));
        let first = world.pay("k-1").await;
        assert_eq!((first.status, first.text().as_str()), (429, "partly applied"));
        let second = world.pay("k-1").await;
        second.assert_unknown();
        assert_eq!(second.json()["original_status"], 429);
        assert_eq!(world.executions(), 1);
    }

    async fn e4_a_corrected_request_is_told_what_the_first_one_ended_with(store) {
        let world = World::new(store).await;
        world.upstream.next(reply(400).body("amount missing"));
        world.send(&Request::new("POST", "/pay").key("k-1").json("{}")).await.assert_executed(400);
        let corrected = world.pay("k-1").await;
        corrected.assert_reused(&["body"], "after-correction", Some(400));
        let detail = corrected.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("ended with 400"), "{detail}");
        assert_eq!(world.executions(), 1);
    }

    async fn e5_a_503_is_released_on_api_and_unknown_on_payment(store) {
        let world = World::new(store).await;
        world.upstream.next(reply(503));
        world.pay("k-1").await.assert_executed(503);
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 2);

        let world = World::with(store, "preset = \"payment\"").await;
        world.upstream.next(reply(503));
        let first = world.pay("k-1").await;
        assert_eq!(first.status, 503, "{}", first.shown());
        world.pay("k-1").await.assert_unknown();
        assert_eq!(world.executions(), 1);
    }

    async fn e6_a_key_is_free_again_once_its_record_expired(store) {
        let world = World::with(store, "retention = \"2s\"").await;
        world.pay("k-1").await.assert_executed(201);
        let replay = world.pay("k-1").await;
        replay.assert_replay(201);
        let again = eventually("the record to expire", async || {
            let answer = world.pay("k-1").await;
            (!answer.is_replay()).then_some(answer)
        })
        .await;
        again.assert_executed(201);
        assert_ne!(again.body, replay.body);
        world.pay("k-1").await.assert_replay(201);
        assert_eq!(world.executions(), 2);
    }
}

on_each_store! {
    async fn e6_an_unknown_record_lapses_only_where_the_route_says_so(store) {
        let world = World::with(store, "unknown_retention = \"2s\"\n abandon_after = \"2s\"\n timeout = \"1s\"").await;
        world.upstream.next(reply(504));
        assert_eq!(world.pay("k-1").await.status, 504);
        world.pay("k-1").await.assert_unknown();
        once_lapsed(&world).await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn e6_an_outcome_that_the_attempt_itself_reported_ages_from_that_moment(store) {
        let world = World::with(store, "unknown_retention = \"2s\"\n abandon_after = \"10m\"").await;
        world.upstream.next(Script::reset());
        world.pay("k-1").await.assert_problem(502, "outcome-unknown");
        world.pay("k-1").await.assert_unknown();
        // Ten minutes would be longer than any test may take.
        once_lapsed(&world).await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn e5_where_the_upstream_honours_the_key_an_unknown_outcome_is_sent_again(store) {
        let world = World::with(store, "on_unknown = \"resend\"").await;
        world.upstream.next(Script::close());
        world.pay("\"k-1\"").await.assert_problem(502, "outcome-unknown");
        world.upstream.next(Script::close());
        world.pay("k-1").await.assert_problem(502, "outcome-unknown");
        assert_eq!(world.proxy().only_open_record().await["attempts"], 2);
        world.pay("k-1").await.assert_executed(201);
        world.pay("k-1").await.assert_replay(201);
        assert_eq!(world.executions(), 3);
        // The upstream compares keys by their bytes: each send carries the form of the first.
        let keys: Vec<_> = world.upstream.received().iter().map(|r| r.field("Idempotency-Key").unwrap()).collect();
        assert_eq!(keys, ["\"k-1\"", "\"k-1\"", "\"k-1\""]);
    }
}

on_lasting_stores! {
    async fn e6_a_lapsed_attempt_may_still_be_running_until_it_is_abandoned(store) {
        let settings = "unknown_retention = \"1s\"\n abandon_after = \"8s\"\n timeout = \"8s\"";
        let mut world = World::with(store, settings).await;
        world.upstream.next(Script::never());
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        world.proxies[0].kill();
        owner.hang_up().await;
        world.restart().await;
        let id = world.proxy().only_open_record().await["id"].as_str().unwrap().to_owned();
        let record = world.proxy().record_in_state(&id, "unknown").await;
        assert_eq!(record["expires_at"], record["abandon_at"]);
        once_lapsed(&world).await.assert_executed(201);
        let abandoned = humantime::parse_rfc3339(record["abandon_at"].as_str().unwrap()).unwrap();
        assert!(SystemTime::now() >= abandoned, "it ran again before {abandoned:?}");
        assert_eq!(world.executions(), 2);
    }

    async fn e7_the_lease_ends_in_seconds_and_the_record_does_not(store) {
        let mut world = World::with(store, "lease = \"1s\"\n retention = \"24h\"\n on_duplicate = \"reject\"").await;
        world.pay("k-0").await.assert_executed(201);
        world.upstream.next(Script::never());
        let owner = world.begin_pay("k-1");
        world.upstream.reached(2).await;
        world.proxies[0].kill();
        owner.hang_up().await;
        world.restart().await;
        let unknown = eventually("the lease to end", async || {
            let answer = world.pay("k-1").await;
            (answer.problem() == "outcome-unknown").then_some(answer)
        })
        .await;
        let record = world.proxy().record(&unknown.record()).await.expect("the unknown record");
        assert_eq!(record["expires_at"], json!(null), "an unknown record does not expire");
        // Neither the completed nor the unknown record goes with the lease.
        pass(Duration::from_secs(2)).await;
        world.pay("k-0").await.assert_replay(201);
        world.pay("k-1").await.assert_unknown();
        assert_eq!(world.executions(), 2);
    }
}

/// Repeats `k-1` while its outcome is held as unknown.
async fn once_lapsed(world: &World) -> Answer {
    eventually("the unknown record to lapse", async || {
        let answer = world.pay("k-1").await;
        let held = matches!(answer.problem().as_str(), "outcome-unknown" | "request-in-progress");
        (!held).then_some(answer)
    })
    .await
}
