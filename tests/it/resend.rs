//! A resend shows the upstream the key as the first send did: an upstream that compares keys by their bytes must find
//! its own record, whichever form the duplicate chose.

use crate::support::{Gate, Request, Script, World, eventually};

on_each_store! {
    async fn a_resend_keeps_the_form_of_the_key_under_another_name(store) {
        let world = World::with(store, "on_unknown = \"resend\"\n forward_key = \"PayPal-Request-Id\"").await;
        resends_keep_the_form(&world, "PayPal-Request-Id").await;
        assert!(world.upstream.received().iter().all(|request| request.field("Idempotency-Key").is_none()));
    }

    async fn a_resend_keeps_the_form_of_the_key_under_its_own_name(store) {
        let world = World::with(store, "on_unknown = \"resend\"\n forward_key = \"same\"").await;
        resends_keep_the_form(&world, "Idempotency-Key").await;
    }
}

on_shared_stores! {
    async fn whoever_waited_on_another_proxy_is_told_that_the_next_repeat_is_sent(store) {
        let world = World::build(store).proxies(2).route("on_unknown = \"resend\"").start().await;
        let gate = Gate::new();
        world.upstream.next(Script::reset().behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let other = &world.proxies[1];
        let waiter = Request::pay().key("k-1").begin(other.address);
        eventually("it to wait", async || (other.metric("onceproxy_waiting", &[]).await == 1.0).then_some(())).await;
        gate.open();
        owner.answer().await.assert_problem(502, "outcome-unknown");
        let waited = waiter.answer().await;
        waited.assert_problem(409, "outcome-unknown");
        assert_eq!((waited.retry().as_str(), waited.field("Retry-After")), ("same-key", Some("1")));
        assert_eq!(waited.field("Stripe-Should-Retry"), Some("true"));
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }
}

async fn resends_keep_the_form(world: &World, name: &str) {
    for (first, second) in [("\"k-1\"", "k-1"), ("k-2", "\"k-2\"")] {
        let before = world.executions();
        world.upstream.next(Script::reset());
        world.pay(first).await.assert_problem(502, "outcome-unknown");
        world.pay(second).await.assert_executed(201);
        let sends: Vec<_> = world.upstream.received()[before..].iter().map(|request| request.all(name)).collect();
        assert_eq!(sends, [[first], [first]], "{first}, then {second}");
        world.pay(second).await.assert_replay(201);
    }
}
