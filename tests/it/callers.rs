//! Who is who: the parts of a scope, what counts once, and what is refused because nobody could tell.

use crate::support::{Answer, Connection, Request, Store, World};

/// `POST /pay` under `k-1` with these fields.
fn paying(fields: &[(&str, &str)]) -> Request {
    fields.iter().fold(Request::pay().key("k-1"), |request, (name, value)| request.field(name, value))
}

/// Each of these requests runs, and is replayed for itself.
async fn each_for_itself(world: &World, requests: &[Request]) {
    let before = world.executions();
    let mut bodies = Vec::new();
    for (n, request) in requests.iter().enumerate() {
        let answer = world.send(request).await;
        answer.assert_executed(201);
        bodies.push(answer.body);
        assert_eq!(world.executions(), before + n + 1);
    }
    for (request, body) in requests.iter().zip(bodies) {
        assert_eq!(world.send(request).await.assert_replay(201).body, body);
    }
    assert_eq!(world.executions(), before + requests.len());
}

fn assert_scope_invalid(answer: &Answer, place: &str) {
    answer.assert_problem(400, "scope-invalid");
    assert_eq!(answer.retry(), "after-correction");
    assert!(answer.text().contains(place), "{}", answer.shown());
}

on_each_store! {
    async fn c1_every_credential_of_the_default_scope_separates_callers(store) {
        let world = World::new(store).await;
        let none: &[(&str, &str)] = &[];
        let callers = [
            none,
            &[("Authorization", "Bearer a")],
            &[("X-Api-Key", "a")],
            &[("Api-Key", "a")],
            &[("Authorization", "Bearer a"), ("X-Api-Key", "a")],
            &[("X-Api-Key", "")],
        ];
        each_for_itself(&world, &callers.map(paying)).await;
    }

    async fn l4_a_credential_that_stands_there_twice_counts_once(store) {
        let world = World::new(store).await;
        let a = ("Authorization", "Bearer a");
        world.send(&paying(&[a, a])).await.assert_executed(201);
        for same in [&[a][..], &[a, a, a]] {
            world.send(&paying(same)).await.assert_replay(201);
        }
        for (name, one, other) in [
            ("Authorization", "Bearer a", "Bearer b"),
            ("X-Api-Key", "a", "b"),
            ("Api-Key", "a", "A"),
            ("X-Api-Key", "a", ""),
        ] {
            let answer = world.send(&paying(&[(name, one), (name, other)])).await;
            assert_scope_invalid(&answer, &name.to_ascii_lowercase());
        }
        assert_eq!(world.executions(), 1);
    }

    async fn l4_a_parameter_of_the_scope_that_stands_there_twice_counts_once(store) {
        let world = World::with(store, "scope = [\"query:account\"]\n fingerprint.body = \"ignore\"").await;
        world.send(&Request::pay().key("k-1").target("/pay?account=a&account=%61")).await.assert_executed(201);
        world.send(&Request::pay().key("k-1").target("/pay?account=a&account=%61")).await.assert_replay(201);
        let different = world.send(&Request::pay().key("k-1").target("/pay?account=a&account=b")).await;
        assert_scope_invalid(&different, "query:account");
        assert_eq!(world.executions(), 1);
    }

    async fn l5_one_event_goes_to_several_addresses(store) {
        type Sender = (&'static str, &'static [(&'static str, &'static str)], &'static str);
        let senders: &[Sender] = &[
            ("", &[("webhook-id", "m1")], "{}"),
            ("", &[("Idempotency-Key", "m1")], "{}"),
            ("github", &[("X-GitHub-Delivery", "m1"), ("X-GitHub-Hook-ID", "1")], "{}"),
            ("stripe", &[("Content-Type", "application/json")], r#"{"id":"evt_1"}"#),
            ("cloudevents", &[("ce-id", "1"), ("ce-source", "/a")], "{}"),
        ];
        for (preset, fields, body) in senders {
            let preset = if preset.is_empty() { String::new() } else { format!("key_preset = \"{preset}\"") };
            let world = World::with(store, &format!("preset = \"webhook\"\n {preset}")).await;
            let delivery = |path: &str| {
                let request = Request::new("POST", path).body(body);
                fields.iter().fold(request, |request, (name, value)| request.field(name, value))
            };
            each_for_itself(&world, &["/hooks/a", "/hooks/b", "/hooks/a/"].map(delivery)).await;
            // The same address with another query is the same one: it is the fingerprint that differs.
            world.send(&delivery("/hooks/a?x=1")).await.assert_problem(422, "key-reused");
        }
    }

    async fn n1_an_api_key_separates_callers(store) {
        let world = World::new(store).await;
        let callers = ["alice", "bob"].map(|name| paying(&[("X-Api-Key", name)]));
        each_for_itself(&world, &callers).await;
    }

    async fn n2_a_cookie_in_the_scope_separates_callers(store) {
        let world = World::with(store, "scope = [\"cookie:sid\"]").await;
        let (one, other) = ("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210");
        let with = |cookies: String| paying(&[("Cookie", &cookies)]);
        each_for_itself(&world, &[with(format!("sid={one}; lb=0123456789abcdef")), with(format!("sid={other}")), paying(&[])]).await;
        // Another cookie, the order, the lines and quotation marks do not count.
        let quoted = format!("\"{one}\"");
        for same in [
            with(format!("sid={one}; lb=fedcba9876543210")),
            with(format!("lb=1;sid={one}")),
            with(format!("sid={quoted}")),
            with(format!("sid={one}; sid={quoted}")),
            paying(&[("Cookie", "lb=1"), ("Cookie", &format!("sid={one}"))]),
        ] {
            world.send(&same).await.assert_replay(201);
        }
        for different in [with(format!("sid={one}; sid={other}")), paying(&[("Cookie", "sid=a"), ("Cookie", "sid=b")])] {
            assert_scope_invalid(&world.send(&different).await, "cookie:sid");
        }
        assert_eq!(world.executions(), 3);
    }

    async fn j1_a_host_in_the_scope_separates_tenants(store) {
        let world = World::with(store, "scope = [\"host\"]").await;
        let mut seen = Vec::new();
        for host in ["a.test", "b.test", "a.test:8080"] {
            seen.push(at(&world, "/pay", host).await);
        }
        for answer in &seen {
            answer.assert_executed(201);
        }
        for same in ["a.test:80", "A.Test"] {
            let answer = at(&world, "/pay", same).await;
            // Whether the fingerprint takes the two spellings for one is not asked here: it is the same record.
            assert!(answer.is_replay(), "{same}: {}", answer.shown());
        }
        assert_eq!(world.executions(), 3);
    }
}

/// `POST` to a target at this `Host`, under `k-1`.
async fn at(world: &World, target: &str, host: &str) -> Answer {
    let mut connection = Connection::open(world.address()).await;
    let head =
        format!("POST {target} HTTP/1.1\r\nHost: {host}\r\nIdempotency-Key: k-1\r\nContent-Length: 2\r\n\r\n{{}}");
    connection.write(head.as_bytes()).await;
    connection.answer().await
}

#[tokio::test]
async fn a_connection_field_may_not_take_a_cookie_or_the_host_of_the_scope_off() {
    let world = World::with(Store::Memory, "scope = [\"cookie:sid\", \"host\"]").await;
    for name in ["cookie", "Host"] {
        let answer = world.send(&paying(&[("Cookie", "sid=a"), ("Connection", name)])).await;
        answer.assert_problem(400, "key-invalid");
    }
    assert_eq!(world.executions(), 0);
}

#[tokio::test]
async fn a_path_in_the_scope_is_the_one_that_came() {
    let world = World::with(Store::Memory, "scope = [\"path\"]\n path = \"/in/\"\n strip_prefix = true").await;
    let to = |target: &str| Request::pay().key("k-1").target(target);
    each_for_itself(&world, &["/in/a", "/in/b", "/in/%61"].map(to)).await;
    assert_eq!(world.upstream.last().target, "/%61");
}
