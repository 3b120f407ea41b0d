//! Faithful replay: what was recorded comes back byte for byte, and nothing that must not.

use crate::support::wire::contains;
use crate::support::{Gate, Request, Script, Step, World, eventually, ms, reply};

on_each_store! {
    async fn d1_status_and_fields_are_replayed_as_they_came(store) {
        let world = World::new(store).await;
        let replies = [
            reply(201).field("Location", "/payments/1").field("ETag", "\"v1\"").body("made"),
            reply(406).field("Content-Type", "text/plain").body("no"),
            reply(302).field("Location", "https://shop.test/next"),
            reply(200).field("X-B", "1").field("X-A", "2").field("x-b", "3").field("X-Raw", b"caf\xe9 \xf0\x9f"),
            reply(299).field("X-Empty", "").field("Link", "<a>; rel=next").field("Link", "<b>; rel=prev"),
            reply(500).field("Content-Type", "application/json").body("{}"),
        ];
        for (n, reply) in replies.into_iter().enumerate() {
            let key = format!("k-{n}");
            world.upstream.next(reply);
            let first = world.pay(&key).await;
            first.assert_executed(first.status);
            for _ in 0..2 {
                let replay = world.pay(&key).await;
                replay.assert_replay(first.status);
                assert_eq!(replay.essence(), first.essence());
            }
            assert_eq!(world.executions(), n + 1);
        }
    }

    async fn d1_the_first_answer_is_the_upstreams(store) {
        let world = World::new(store).await;
        world.upstream.next(reply(201).field("Location", "/payments/1").field("X-Raw", b"\xe9").body("made"));
        let first = world.pay("k-1").await;
        assert_eq!(first.field("Location"), Some("/payments/1"));
        assert_eq!(first.all("X-Raw"), [b"\xe9"]);
        assert_eq!((first.status, first.text().as_str()), (201, "made"));
    }

    async fn d2_cookies_and_challenges_are_neither_kept_nor_replayed(store) {
        let world = World::new(store).await;
        let gate = Gate::new();
        let secrets = reply(201)
            .field("Set-Cookie", "session=sugar-secret")
            .field("WWW-Authenticate", "Bearer realm=sugar-secret")
            .field("Proxy-Authenticate", "Basic realm=sugar-secret")
            .field("X-Plain", "plain-marker");
        world.upstream.next(secrets.behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let joiner = world.begin_pay("k-1");
        eventually("the joiner to wait", async || {
            (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
        })
        .await;
        gate.open();
        let first = owner.answer().await;
        assert_eq!(first.field("Set-Cookie"), Some("session=sugar-secret"), "{}", first.shown());
        assert!(first.field("WWW-Authenticate").is_some(), "{}", first.shown());
        for other in [joiner.answer().await, world.pay("k-1").await] {
            other.assert_replay(201);
            assert_eq!(other.field("X-Plain"), Some("plain-marker"));
            for field in ["Set-Cookie", "WWW-Authenticate", "Proxy-Authenticate"] {
                assert_eq!(other.field(field), None, "{}", other.shown());
            }
        }
        let stored = world.stored_bytes().await;
        assert!(!contains(&stored, b"sugar-secret"));
        assert!(stored.is_empty() || contains(&stored, b"plain-marker"), "looked in the wrong place");
        assert_eq!(world.executions(), 1);
    }

    async fn d2_a_route_may_keep_a_cookie(store) {
        let world = World::with(store, "keep_headers = [\"Set-Cookie\"]").await;
        world.upstream.next(reply(201).field("Set-Cookie", "a=1").field("Set-Cookie", "b=2"));
        world.pay("k-1").await.assert_executed(201);
        let replay = world.pay("k-1").await;
        assert_eq!(replay.assert_replay(201).all("Set-Cookie"), [b"a=1", b"b=2"]);
    }

    async fn d3_empty_and_falsy_bodies_are_recorded(store) {
        let world = World::new(store).await;
        let bodies = [(204, ""), (200, "0"), (200, "false"), (200, "null"), (200, "\"\""), (200, "")];
        for (n, (status, body)) in bodies.into_iter().enumerate() {
            let key = format!("k-{n}");
            world.upstream.next(reply(status).field("Content-Type", "application/json").body(body));
            world.pay(&key).await.assert_executed(status);
            assert_eq!(world.pay(&key).await.assert_replay(status).text(), body);
            assert_eq!(world.executions(), n + 1);
        }
    }

    async fn d4_every_byte_survives(store) {
        let world = World::new(store).await;
        let every: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        // Not a gzip file at all: a proxy that looked inside would notice.
        let encoded = reply(200).field("Content-Encoding", "gzip").body(b"\x1f\x8b\x08not really gzip\0\xff");
        for (key, script) in [("k-1", reply(200).body(&every)), ("k-2", encoded)] {
            world.upstream.next(script);
            let first = world.pay(key).await;
            let replay = world.pay(key).await;
            replay.assert_replay(200);
            assert_eq!(replay.essence(), first.essence());
            assert!(first.complete && replay.complete);
        }
        assert_eq!(world.pay("k-1").await.body, every);
        assert_eq!(world.pay("k-2").await.field("Content-Encoding"), Some("gzip"));
    }

    async fn d4_chunks_with_pauses_are_put_together(store) {
        let world = World::new(store).await;
        let bytes = |text: &str| Step::Bytes(text.as_bytes().to_vec());
        world.upstream.next(Script(vec![
            bytes("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\none\r\n"),
            Step::Pause(ms(100)),
            bytes("3;ext=1\r\ntw"),
            Step::Pause(ms(100)),
            bytes("o\r\n5\r\nthree\r\n0\r\nX-Sum: 11\r\n\r\n"),
        ]));
        let first = world.pay("k-1").await;
        assert_eq!((first.text().as_str(), first.complete), ("onetwothree", true), "{}", first.shown());
        let replay = world.pay("k-1").await;
        assert_eq!((replay.assert_replay(200).text().as_str(), replay.complete), ("onetwothree", true));
        assert_eq!(replay.trailers, first.trailers);
        assert_eq!(world.executions(), 1);
    }

    async fn d4_a_body_that_ends_with_the_connection_is_recorded(store) {
        let world = World::new(store).await;
        world.upstream.next(Script::bytes_then_close("HTTP/1.1 200 OK\r\n\r\nuntil the end"));
        world.pay("k-1").await.assert_executed(200);
        assert_eq!(world.pay("k-1").await.assert_replay(200).text(), "until the end");
        world.upstream.next(Script::bytes_then_close("HTTP/1.0 200 OK\r\nServer: old\r\n\r\nold"));
        world.pay("k-2").await.assert_executed(200);
        assert_eq!(world.pay("k-2").await.assert_replay(200).text(), "old");
        assert_eq!(world.executions(), 2);
    }

    async fn d5_a_replay_says_so_and_a_first_execution_does_not(store) {
        let world = World::new(store).await;
        let first = world.pay("k-1").await;
        assert_eq!(first.field("Idempotent-Replayed"), None);
        assert_eq!(first.field("Cache-Status"), Some("onceproxy; fwd=miss; stored"));
        assert_eq!(first.field("Age"), None);
        let replay = world.pay("k-1").await;
        assert_eq!(replay.all("Idempotent-Replayed"), [b"true"]);
        assert_eq!(replay.field("Date"), first.field("Date"));
        let age: u64 = replay.field("Age").expect("an Age").parse().unwrap();
        assert!(age < 60, "{age}");
        let status = replay.field("Cache-Status").unwrap();
        let ttl = status.strip_prefix("onceproxy; hit; ttl=").unwrap_or_else(|| panic!("{status}"));
        let ttl: u64 = ttl.parse().unwrap();
        assert!((1..=60).contains(&ttl), "{status}");
    }

    async fn d5_an_upstreams_own_mark_passes_once(store) {
        let world = World::new(store).await;
        world.upstream.next(reply(201).field("Idempotent-Replayed", "true").field("Cache-Status", "inner; hit"));
        let first = world.pay("k-1").await;
        assert_eq!(first.all("Idempotent-Replayed"), [b"true"]);
        let replay = world.pay("k-1").await;
        assert_eq!(replay.all("Idempotent-Replayed"), [b"true"], "{}", replay.shown());
        assert_eq!(world.executions(), 1);
    }

    async fn d6_a_finished_duplicate_is_a_replay_even_fifty_at_once(store) {
        let world = World::with(store, "on_duplicate = \"reject\"").await;
        let first = world.pay("k-1").await;
        world.pay("k-1").await.assert_replay(201);
        let pending: Vec<_> = (0..50).map(|_| world.begin_pay("k-1")).collect();
        for pending in pending {
            assert_eq!(pending.answer().await.assert_replay(201).body, first.body);
        }
        assert_eq!(world.executions(), 1);
    }
}

on_shared_stores! {
    async fn d6_a_proxy_that_saw_the_attempt_running_elsewhere_notices_its_end(store) {
        for preference in [None, Some("wait=0")] {
            let duplicate = if preference.is_some() { "wait" } else { "reject" };
            let route = format!("on_duplicate = \"{duplicate}\"");
            let world = World::build(store).proxies(2).relayed().route(&route).start().await;
            let request = match preference {
                Some(preference) => Request::pay().key("k-1").field("Prefer", preference),
                None => Request::pay().key("k-1"),
            };
            let gate = Gate::new();
            world.upstream.next(reply(201).behind(&gate));
            let owner = world.begin_pay("k-1");
            world.upstream.reached(1).await;
            // What the other proxy does after its refusal is still under way when the attempt is over.
            world.relay().delay(ms(200));
            request.send(world.proxies[1].address).await.assert_in_flight();
            gate.open();
            owner.answer().await.assert_executed(201);
            request.send(world.proxies[1].address).await.assert_replay(201);
            assert_eq!(world.executions(), 1);
        }
    }
}

on_lasting_stores! {
    async fn d1_a_replay_survives_a_restart(store) {
        let mut world = World::new(store).await;
        world.upstream.next(reply(201).field("Location", "/payments/1").field("X-Raw", b"\xe9").body(b"\0\xff"));
        let first = world.pay("k-1").await;
        world.restart().await;
        let replay = world.pay("k-1").await;
        replay.assert_replay(201);
        assert_eq!(replay.essence(), first.essence());
        assert_eq!(world.executions(), 1);
    }
}
