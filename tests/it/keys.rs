//! Key, scope, fingerprint: whose request it is, and whether it is the same one.

use crate::support::{Gate, Request, Store, World, ms, reply};

/// `POST /pay` with this body under `k-1`.
fn paying(body: &str) -> Request {
    Request::new("POST", "/pay").key("k-1").json(body)
}

/// A multipart body of two parts.
fn multipart(boundary: &str, amount: &str) -> Request {
    let part = |name: &str, value: &str| {
        format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let body = format!("{}{}--{boundary}--\r\n", part("amount", amount), part("currency", "EUR"));
    let kind = format!("multipart/form-data; boundary={boundary}");
    Request::new("POST", "/pay").key("k-1").field("Content-Type", kind).body(body)
}

on_each_store! {
    async fn c1_callers_with_the_same_key_do_not_see_each_other(store) {
        let world = World::new(store).await;
        let callers = [Some("Bearer a"), Some("Bearer b"), None, Some("")];
        let as_caller = |caller: Option<&str>| match caller {
            Some(credential) => Request::pay().key("k-1").field("Authorization", credential),
            None => Request::pay().key("k-1"),
        };
        let mut bodies = Vec::new();
        for (n, caller) in callers.into_iter().enumerate() {
            let answer = world.send(&as_caller(caller)).await;
            answer.assert_executed(201);
            bodies.push(answer.body);
            assert_eq!(world.executions(), n + 1);
        }
        for (caller, body) in callers.into_iter().zip(bodies) {
            assert_eq!(world.send(&as_caller(caller)).await.assert_replay(201).body, body);
        }
        assert_eq!(world.executions(), callers.len());
    }

    async fn c2_the_same_key_on_two_routes_is_two_operations(store) {
        let route = "[[route]]\nname = \"b\"\npath = \"/b\"\nupstream = \"UPSTREAM\"\n";
        let world = World::build(store).route("path = \"/a\"").more(route).start().await;
        let a = world.send(&Request::pay().key("k-1").target("/a")).await;
        let b = world.send(&Request::pay().key("k-1").target("/b")).await;
        a.assert_executed(201);
        b.assert_executed(201);
        assert_ne!(a.body, b.body);
        assert_eq!(world.executions(), 2);
    }

    async fn c2_the_same_key_on_two_paths_of_a_route_is_reused(store) {
        let world = World::new(store).await;
        world.send(&Request::pay().key("k-1").target("/a")).await.assert_executed(201);
        world.send(&Request::pay().key("k-1").target("/b")).await.assert_problem(422, "key-reused");
        assert_eq!(world.executions(), 1);
    }

    async fn c3_the_query_counts(store) {
        let world = World::new(store).await;
        world.send(&Request::pay().key("k-1").target("/pay?amount=10")).await.assert_executed(201);
        for other in ["/pay?amount=20", "/pay?amount=10&", "/pay", "/pay?", "/pay?amount=%310"] {
            let answer = world.send(&Request::pay().key("k-1").target(other)).await;
            answer.assert_problem(422, "key-reused");
        }
        world.send(&Request::pay().key("k-1").target("/pay?amount=10")).await.assert_replay(201);
        assert_eq!(world.executions(), 1);
    }

    async fn c3_the_method_counts(store) {
        let world = World::new(store).await;
        world.pay("k-1").await.assert_executed(201);
        let patch = Request::new("PATCH", "/pay").json(r#"{"amount":10}"#).key("k-1");
        world.send(&patch).await.assert_problem(422, "key-reused");
        assert_eq!(world.executions(), 1);
    }

    async fn c4_another_request_is_told_so_while_the_first_runs(store) {
        for duplicate in ["wait", "reject"] {
            let world = World::with(store, &format!("on_duplicate = \"{duplicate}\"")).await;
            let gate = Gate::new();
            world.upstream.next(reply(201).behind(&gate));
            let owner = world.begin_pay("k-1");
            world.upstream.reached(1).await;
            // Answered although the gate is closed: it did not wait.
            let other = world.send(&paying(r#"{"amount":11}"#)).await;
            other.assert_reused(&["body"], "after-correction", None);
            assert!(other.text().contains("still running"), "{}", other.shown());
            gate.open();
            owner.answer().await.assert_executed(201);
            assert_eq!(world.executions(), 1);
        }
    }

    async fn c4_of_two_different_requests_at_once_one_runs_and_the_other_is_told(store) {
        let world = World::new(store).await;
        two_requests_under_one_key_at_once(&world).await;
    }

    async fn c4_a_released_key_is_free_for_another_request(store) {
        let world = World::new(store).await;
        world.upstream.next(reply(429));
        world.pay("k-1").await.assert_executed(429);
        world.send(&paying(r#"{"amount":11}"#)).await.assert_executed(201);
        world.pay("k-1").await.assert_problem(422, "key-reused");
        assert_eq!(world.executions(), 2);
    }

    async fn c5_chunks_count_by_their_bytes(store) {
        let world = World::new(store).await;
        world.send(&paying("first body").chunked(3)).await.assert_executed(201);
        world.send(&paying("other body").chunked(3)).await.assert_problem(422, "key-reused");
        for same in [paying("first body"), paying("first body").chunked(1), paying("first body").chunked(100)] {
            world.send(&same).await.assert_replay(201);
        }
        assert_eq!(world.executions(), 1);
        assert_eq!(world.upstream.last().body, b"first body");
    }

    async fn c6_numbers_are_not_read_as_doubles(store) {
        for mode in ["bytes", "json"] {
            let world = World::with(store, &format!("fingerprint.body = \"{mode}\"")).await;
            world.send(&paying(r#"{"amount":9007199254740993}"#)).await.assert_executed(201);
            world.send(&paying(r#"{"amount":9007199254740992}"#)).await.assert_problem(422, "key-reused");
            world.send(&paying(r#"{"amount":9007199254740993}"#)).await.assert_replay(201);
            assert_eq!(world.executions(), 1);
        }
    }

    async fn c7_the_same_body_under_two_keys_runs_twice(store) {
        let world = World::new(store).await;
        world.pay("k-1").await.assert_executed(201);
        world.pay("k-2").await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn c8_keys_keep_their_letter_case(store) {
        let world = World::new(store).await;
        world.pay("ABC").await.assert_executed(201);
        world.pay("abc").await.assert_executed(201);
        world.pay("ABC").await.assert_replay(201);
        assert_eq!(world.executions(), 2);
    }

    async fn c9_a_key_given_twice_is_refused(store) {
        let world = World::new(store).await;
        for twice in [
            Request::pay().key("k-1").key("k-1"),
            Request::pay().key("k-1").key("k-2"),
            Request::pay().key("k-1, k-1"),
            Request::pay().key("\"k-1\", \"k-1\""),
            Request::pay().key("k-1").key(""),
        ] {
            world.send(&twice).await.assert_problem(400, "key-invalid");
        }
        assert_eq!(world.executions(), 0);
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 1);
    }

    async fn c10_quoted_and_bare_are_the_same_key(store) {
        let world = World::new(store).await;
        world.pay("\"k-1\"").await.assert_executed(201);
        for same in ["k-1", "\"k-1\"", "\"k-1\";a=1", "\"k-1\" ; b"] {
            let answer = world.pay(same).await;
            // White space before `;` is not allowed by the grammar of parameters.
            if same.contains(" ;") {
                answer.assert_problem(400, "key-invalid");
            } else {
                answer.assert_replay(201);
            }
        }
        world.pay(r#""a\"b\\c""#).await.assert_executed(201);
        world.pay(r#""a\"b\\c""#).await.assert_replay(201);
        world.pay(r#""a\"b\\d""#).await.assert_executed(201);
        assert_eq!(world.executions(), 3);
    }

    async fn c12_the_boundary_counts_in_bytes_and_not_in_multipart(store) {
        let world = World::new(store).await;
        world.send(&multipart("one", "10")).await.assert_executed(201);
        world.send(&multipart("two", "10")).await.assert_problem(422, "key-reused");

        let world = World::with(store, "fingerprint.body = \"multipart\"").await;
        world.send(&multipart("one", "10")).await.assert_executed(201);
        world.send(&multipart("two", "10")).await.assert_replay(201);
        world.send(&multipart("three", "11")).await.assert_problem(422, "key-reused");
        assert_eq!(world.executions(), 1);
    }

    async fn c13_member_order_counts_in_bytes_and_not_in_json(store) {
        let (one, other) = (r#"{"a":1,"b":2}"#, "{\"b\":2, \"a\":1}\n");
        let world = World::new(store).await;
        world.send(&paying(one)).await.assert_executed(201);
        world.send(&paying(other)).await.assert_problem(422, "key-reused");

        let world = World::with(store, "fingerprint.body = \"json\"\n fingerprint.ignore = [\"/sent_at\"]").await;
        world.send(&paying(one)).await.assert_executed(201);
        world.send(&paying(other)).await.assert_replay(201);
        world.send(&paying(r#"{"a":1,"b":2,"sent_at":"now"}"#)).await.assert_replay(201);
        world.send(&paying(r#"{"a":1,"b":3}"#)).await.assert_problem(422, "key-reused");
        world.send(&paying(r#"{"a":1,"a":2}"#)).await.assert_problem(400, "body-invalid");
        assert_eq!(world.executions(), 1);
    }
}

on_shared_stores! {
    async fn c4_of_two_different_requests_to_two_proxies_one_runs(store) {
        let world = World::build(store).proxies(2).start().await;
        two_requests_under_one_key_at_once(&world).await;
    }

    async fn c1_a_shared_store_without_a_scope_is_said_loudly(store) {
        let world = World::with(store, "scope = []").await;
        assert!(world.proxy().logged("scope").await.contains("WARN"));
        let world = World::new(store).await;
        // Warnings come before a listener is named, which is what the start of a world waits for.
        let log = world.proxy().log();
        assert!(!log.iter().any(|line| line.contains("WARN") && line.contains("scope")), "{log:#?}");
    }
}

/// Ten times twenty requests at once, half of them with another body.
async fn two_requests_under_one_key_at_once(world: &World) {
    world.upstream.always(|request| reply(201).body(&request.body).delayed(ms(5)));
    for n in 0..10 {
        let bodies = [r#"{"amount":1}"#, r#"{"amount":2}"#];
        let key = format!("k-{n}");
        let pending: Vec<_> = (0..20)
            .map(|i| {
                let proxy = &world.proxies[i / 2 % world.proxies.len()];
                Request::new("POST", "/pay").key(&key).json(bodies[i % 2]).begin(proxy.address)
            })
            .collect();
        let mut answers = Vec::new();
        for pending in pending {
            answers.push(pending.answer().await);
        }
        assert_eq!(world.executions(), n + 1);
        let ran = world.upstream.last().body;
        for (i, answer) in answers.iter().enumerate() {
            if bodies[i % 2].as_bytes() == ran {
                assert_eq!((answer.status, &answer.body), (201, &ran), "{}", answer.shown());
            } else {
                answer.assert_problem(422, "key-reused");
            }
        }
    }
}

#[tokio::test]
async fn c10_broken_keys_are_refused_and_nothing_is_sent() {
    let world = World::new(Store::Memory).await;
    let broken: [&[u8]; 16] = [
        b"\"k-1",
        b"\"",
        b"k\"1",
        b"\"\"",
        b"\"k\\x\"",
        b"\"k\\",
        b"\"k-1\" x",
        b"\"k-1\"x",
        b"k 1",
        b"k\t1",
        b"a,b",
        b"",
        b"k\xfc",
        b"\"k\xfc\"",
        b"\xc3\xbc",
        b"\"k\x7f\"",
    ];
    for key in broken {
        let answer = world.send(&Request::pay().field("Idempotency-Key", key)).await;
        // Some of these bytes no header field may have: then the whole request is refused, before it has a key.
        assert_eq!(answer.status, 400, "{:?}: {}", String::from_utf8_lossy(key), answer.shown());
        if !key.contains(&0x7f) {
            answer.assert_problem(400, "key-invalid");
        }
    }
    assert_eq!(world.executions(), 0);
    assert!(world.proxy().open_records("").await.is_empty());
}

#[tokio::test]
async fn c11_endless_keys_are_refused_before_the_store_is_asked() {
    let world = World::new(Store::Memory).await;
    for (length, statuses) in [(255, [201, 201]), (256, [400, 400]), (8192, [400, 400]), (65536, [431, 400])] {
        let claims = world.proxy().metric("onceproxy_store_seconds_count", &[("operation", "claim")]).await;
        let answer = world.pay(&"k".repeat(length)).await;
        assert!(statuses.contains(&answer.status), "{length}: {}", answer.shown());
        if length > 255 {
            let after = world.proxy().metric("onceproxy_store_seconds_count", &[("operation", "claim")]).await;
            assert_eq!(after, claims, "the store was asked about a key of {length} bytes");
        }
    }
    world.pay(&format!("\"{}\"", "k".repeat(255))).await.assert_replay(201);
    assert_eq!(world.executions(), 1);
}
