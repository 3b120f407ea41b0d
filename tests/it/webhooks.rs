//! Webhooks: senders deliver again until they see a 2xx, and must not see one early. And clients that make a new key
//! for every attempt.

use crate::support::{Answer, Gate, Request, Script, Store, World, eventually, reply};

/// A delivery as a webhook sender makes it.
fn delivery(id: &str) -> Request {
    Request::new("POST", "/hook").field("webhook-id", id).json(r#"{"event":"paid"}"#)
}

const WEBHOOK: &str = "preset = \"webhook\"";

on_each_store! {
    async fn h2_a_new_key_for_every_attempt_runs_and_is_counted(store) {
        let world = World::new(store).await;
        world.pay("k-1").await.assert_executed(201);
        world.pay("k-2").await.assert_executed(201);
        assert_eq!(world.executions(), 2);
        let counted = async || world.proxy().metric("onceproxy_new_key_same_request_total", &[("route", "pay")]).await;
        assert_eq!(counted().await, 1.0);
        world.send(&Request::new("POST", "/pay").key("k-3").json(r#"{"amount":11}"#)).await.assert_executed(201);
        world.pay("k-1").await.assert_replay(201);
        assert_eq!(counted().await, 1.0);
    }

    async fn h2_the_same_key_under_another_scope_is_counted(store) {
        let world = World::new(store).await;
        for token in ["Bearer one", "Bearer two"] {
            world.send(&Request::pay().key("k-1").field("Authorization", token)).await.assert_executed(201);
        }
        let labels = [("route", "pay")];
        assert_eq!(world.proxy().metric("onceproxy_same_request_new_scope_total", &labels).await, 1.0);
    }

    async fn h2_deliveries_are_not_taken_for_a_client_that_changes_its_key(store) {
        let world = World::with(store, "preset = \"webhook\"\n key_preset = \"shopify\"").await;
        for (id, topic, body) in [("e1", "orders/paid", "one"), ("e2", "orders/paid", "two"), ("e1", "orders/edited", "one")] {
            let request = Request::new("POST", "/hook").field("X-Shopify-Event-Id", id).field("X-Shopify-Topic", topic);
            world.send(&request.field("X-Shopify-Shop-Domain", "a.example").body(body)).await.assert_executed(201);
        }
        let labels = [("route", "pay")];
        for name in ["onceproxy_new_key_same_request_total", "onceproxy_same_request_new_scope_total"] {
            assert_eq!(world.proxy().metric(name, &labels).await, 0.0, "{name}");
        }
    }

    async fn i1_a_delivery_that_failed_is_forwarded_again(store) {
        let world = World::with(store, WEBHOOK).await;
        world.upstream.next(reply(500));
        world.send(&delivery("m1")).await.assert_executed(500);
        world.send(&delivery("m1")).await.assert_executed(201);
        world.send(&delivery("m1")).await.assert_replay(201);
        assert_eq!(world.executions(), 2);
    }

    async fn i1_a_delivery_whose_outcome_is_unknown_is_forwarded_again(store) {
        let world = World::with(store, WEBHOOK).await;
        world.upstream.next(Script::close());
        let first = world.send(&delivery("m1")).await;
        first.assert_problem(502, "outcome-unknown");
        assert_eq!(first.retry(), "same-key");
        world.send(&delivery("m1")).await.assert_executed(201);
        world.send(&delivery("m1")).await.assert_replay(201);
        assert_eq!(world.executions(), 2);
    }

    async fn i2_a_second_delivery_is_not_acknowledged_before_the_first_succeeds(store) {
        let world = World::with(store, WEBHOOK).await;
        let gate = Gate::new();
        world.upstream.next(reply(500).behind(&gate));
        let first = delivery("m1").begin(world.address());
        world.upstream.reached(1).await;
        let second = delivery("m1").begin(world.address());
        eventually("the second to wait", async || {
            (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
        })
        .await;
        gate.open();
        let not_acknowledged = |answer: &Answer| assert!(answer.status >= 300, "{}", answer.shown());
        not_acknowledged(&first.answer().await);
        not_acknowledged(&second.answer().await);
        world.send(&delivery("m1")).await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn i3_a_key_may_be_made_of_parts_of_the_body(store) {
        let key = "key = [[\"json:/eventCode\", \"json:/pspReference\"]]";
        let world = World::with(store, &format!("{WEBHOOK}\n{key}")).await;
        let event = |code: &str| {
            let body = format!(r#"{{"eventCode":"{code}","pspReference":"X"}}"#);
            Request::new("POST", "/hook").json(&body)
        };
        world.send(&event("AUTH")).await.assert_executed(201);
        world.send(&event("AUTH")).await.assert_replay(201);
        assert_eq!(world.executions(), 1);
        world.send(&event("CAPTURE")).await.assert_executed(201);
        assert_eq!(world.executions(), 2);
        let partial = Request::new("POST", "/hook").json(r#"{"eventCode":"AUTH"}"#);
        world.send(&partial).await.assert_problem(400, "key-invalid");
        assert_eq!(world.executions(), 2);
        let foreign = world.send(&Request::new("POST", "/hook").body("not JSON")).await;
        assert_eq!(foreign.assert_executed(201).field("Cache-Status"), Some("onceproxy; fwd=bypass; detail=unprotected"));
        assert_eq!(world.executions(), 3);
    }

    async fn i4_a_wanted_redelivery_needs_the_record_forgotten(store) {
        let world = World::with(store, WEBHOOK).await;
        let gate = Gate::new();
        world.upstream.next(reply(200).behind(&gate));
        let first = delivery("m1").begin(world.address());
        world.upstream.reached(1).await;
        let id = world.proxy().only_open_record().await["id"].as_str().unwrap().to_owned();
        gate.open();
        first.answer().await.assert_executed(200);
        world.send(&delivery("m1")).await.assert_replay(200);
        let record = world.proxy().record(&id).await.expect("the completed record");
        assert_eq!(record["state"], "completed");
        let forgotten = world.proxy().forget(&record).await;
        assert!((200..300).contains(&forgotten.status), "{}", forgotten.shown());
        assert!(world.proxy().record(&id).await.is_none());
        world.send(&delivery("m1")).await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn i5_a_delivery_without_an_id_is_passed_and_marked_or_refused(store) {
        let world = World::with(store, WEBHOOK).await;
        let bare = Request::new("POST", "/hook").json("{}");
        for n in 1..=2 {
            let answer = world.send(&bare).await;
            answer.assert_executed(201);
            assert_eq!(answer.field("Cache-Status"), Some("onceproxy; fwd=bypass; detail=unprotected"));
            assert_eq!(world.executions(), n);
        }
        let world = World::with(store, &format!("{WEBHOOK}\n key_required = true")).await;
        let answer = world.send(&bare).await;
        answer.assert_problem(400, "key-missing");
        assert_eq!(answer.retry(), "after-correction");
        assert_eq!(world.executions(), 0);
    }
}

#[tokio::test]
async fn a_delivery_that_joined_a_refused_one_of_other_bytes_is_tried_itself() {
    let world = World::with(Store::memory(), WEBHOOK).await;
    let gate = Gate::new();
    world.upstream.next(reply(401).body("forged").behind(&gate));
    let forged = Request::new("POST", "/hook").field("webhook-id", "m1").json(r#"{"event":"forged"}"#);
    let (first, again) = (forged.begin(world.address()), forged.begin(world.address()));
    world.upstream.reached(1).await;
    let genuine = delivery("m1").begin(world.address());
    eventually("both to wait", async || (world.proxy().metric("onceproxy_waiting", &[]).await == 2.0).then_some(()))
        .await;
    gate.open();
    for refused in [first.answer().await, again.answer().await] {
        assert_eq!((refused.status, refused.text().as_str()), (401, "forged"), "{}", refused.shown());
    }
    genuine.answer().await.assert_executed(201);
    assert_eq!(world.executions(), 2);
    world.send(&delivery("m1")).await.assert_replay(201);
}
