//! A resend shows the upstream the key as the first send did: an upstream that compares keys by their bytes must find
//! its own record, whichever form the duplicate chose.

use crate::support::{Script, World};

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
