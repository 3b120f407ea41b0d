//! What "the same request" is, also across a change of settings; who may have its answer; and what a refusal says.

use crate::support::{Connection, Gate, Request, Script, Store, World, eventually, reply};

const POLICY_CHANGED: &str = "onceproxy_fingerprint_policy_changed_total";
const RELOADS: &str = "onceproxy_config_reloads_total";
const CORRECT: &str = "after-correction";

/// The request of the cases under `k-1`.
fn pay() -> Request {
    Request::pay().key("k-1")
}

/// The same with these cookies.
fn with_cookies(cookies: &str) -> Request {
    if cookies.is_empty() { pay() } else { pay().field("Cookie", cookies) }
}

/// A cookie of this name, whose value has this many bytes.
fn cookie(name: &str, letter: char, length: usize) -> String {
    format!("{name}={}", String::from(letter).repeat(length))
}

async fn reload(world: &mut World, route: &str) {
    let labels = [("result", "success")];
    let before = world.proxy().metric(RELOADS, &labels).await;
    world.change_route(route);
    world.proxy().hang_up();
    eventually("the settings to be in force", async || {
        (world.proxy().metric(RELOADS, &labels).await > before).then_some(())
    })
    .await;
}

async fn policy_changed(world: &World) -> f64 {
    world.proxy().metric(POLICY_CHANGED, &[("route", "pay")]).await
}

on_each_store! {
    async fn j1_two_tenants_by_host_are_two_requests(store) {
        let world = World::new(store).await;
        world.send(&pay().host("a.test")).await.assert_executed(201);
        world.send(&pay().host("b.test")).await.assert_reused(&["host"], CORRECT, Some(201));
        world.send(&pay().host("b.test").target("/other")).await.assert_reused(&["target", "host"], CORRECT, Some(201));
        for same in ["a.test", "A.Test", "a.test:80", "a.test:", "a.test.", "A.test.:80"] {
            world.send(&pay().host(same)).await.assert_replay(201);
        }
        for other in ["a.test:8080", "a.test:443", "aa.test", "test"] {
            world.send(&pay().host(other)).await.assert_reused(&["host"], CORRECT, Some(201));
        }
        // In absolute form the target names the host.
        world.send(&pay().target("http://A.test/pay").host("a.test")).await.assert_replay(201);
        world.send(&pay().target("http://b.test/pay").host("b.test")).await.assert_reused(&["host"], CORRECT, Some(201));
        assert_eq!(world.executions(), 1);
    }

    async fn j1_a_host_that_the_upstream_does_not_see_does_not_count(store) {
        let world = World::with(store, "preserve_host = false").await;
        world.send(&pay().host("a.test")).await.assert_executed(201);
        world.send(&pay().host("b.test")).await.assert_replay(201);
        let other = Request::new("POST", "/pay").key("k-1").host("b.test").json("{}");
        world.send(&other).await.assert_reused(&["body"], CORRECT, Some(201));
        assert_eq!(world.executions(), 1);
    }

    async fn j2_settings_that_a_reload_changes_never_make_another_request_the_same(store) {
        let mut world = World::new(store).await;
        world.send(&pay()).await.assert_executed(201);
        for (number, changed) in [
            "fingerprint.headers = [\"X-Tenant\", \"X-Amz-Target\"]",
            "fingerprint.body = \"json\"",
            "fingerprint.body = \"ignore\"",
            "fingerprint.ignore_query = [\"nonce\"]",
            "preserve_host = false",
        ].into_iter().enumerate() {
            reload(&mut world, changed).await;
            world.send(&pay().target("/refund")).await.assert_reused(&["target"], CORRECT, Some(201));
            world.send(&pay().target("/pay?nonce=1")).await.assert_reused(&["target"], CORRECT, Some(201));
            world.send(&pay().host("b.test")).await.assert_reused(&["host"], CORRECT, Some(201));
            world.send(&pay().field("SOAPAction", "refund")).await.assert_reused(&["headers"], CORRECT, Some(201));
            let spaced = Request::new("POST", "/pay").key("k-1").json(r#"{"amount": 10}"#);
            world.send(&spaced).await.assert_reused(&["body"], CORRECT, Some(201));
            let untyped = Request::new("POST", "/pay").key("k-1").body(r#"{"amount":10}"#);
            world.send(&untyped).await.assert_reused(&["headers"], CORRECT, Some(201));
            assert_eq!(policy_changed(&world).await, number as f64);
            world.send(&pay()).await.assert_replay(201);
            assert_eq!(policy_changed(&world).await, number as f64 + 1.0);
        }
        assert_eq!(world.executions(), 1);
    }

    async fn j2_a_reload_while_the_first_runs(store) {
        let mut world = World::new(store).await;
        let gate = Gate::new();
        world.upstream.next(reply(201).behind(&gate));
        let first = pay().begin(world.address());
        world.upstream.reached(1).await;
        reload(&mut world, "fingerprint.headers = [\"X-Tenant\"]").await;
        let running = world.send(&pay().target("/refund")).await;
        running.assert_reused(&["target"], CORRECT, None);
        let joins = pay().begin(world.address());
        eventually("the same request to wait", async || {
            (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
        })
        .await;
        gate.open();
        first.answer().await.assert_executed(201);
        joins.answer().await.assert_replay(201);
        assert_eq!((world.executions(), policy_changed(&world).await), (1, 1.0));
    }

    async fn j3_a_header_that_chooses_the_operation_is_part_of_the_request(store) {
        for (key, name) in ["X-Amz-Target", "SOAPAction", "X-HTTP-Method-Override", "x-method-override"].iter().enumerate() {
            let world = World::new(store).await;
            let with = |value: &str| Request::pay().key(&format!("k-{key}")).field(name, value);
            world.send(&with("A")).await.assert_executed(201);
            world.send(&with("B")).await.assert_reused(&["headers"], CORRECT, Some(201));
            let without = Request::pay().key(&format!("k-{key}"));
            world.send(&without).await.assert_reused(&["headers"], CORRECT, Some(201));
            world.send(&without.clone().field(name, "")).await.assert_reused(&["headers"], CORRECT, Some(201));
            let both = Request::new("POST", "/pay").json("{}").key(&format!("k-{key}")).field(name, "B");
            world.send(&both).await.assert_reused(&["headers", "body"], CORRECT, Some(201));
            world.send(&with("A")).await.assert_replay(201);
            assert_eq!(world.executions(), 1);
        }
    }

    async fn j3_headers_that_choose_nothing_are_named_only_where_they_count(store) {
        let world = World::with(store, "fingerprint.headers = [\"X-Version\"]").await;
        world.send(&pay().field("X-Version", "1")).await.assert_executed(201);
        world.send(&pay().field("X-Version", "2")).await.assert_reused(&["headers"], CORRECT, Some(201));
        world.send(&pay().field("X-Version", "1").field("X-Amz-Target", "B")).await.assert_replay(201);
        let untyped = Request::new("POST", "/pay").key("k-1").field("X-Version", "1").body(r#"{"amount":10}"#);
        world.send(&untyped).await.assert_replay(201);
        // The type differs too, but it is the body that counts.
        let other = Request::new("POST", "/pay").key("k-1").field("X-Version", "1").body("amount=10");
        world.send(&other).await.assert_reused(&["body"], CORRECT, Some(201));
        assert_eq!(world.executions(), 1);
    }

    async fn k1_a_body_written_in_another_way_after_an_unknown_is_for_an_operator(store) {
        let world = World::new(store).await;
        world.upstream.next(Script::close());
        assert_eq!(world.pay("k-1").await.status, 502);
        let spaced = Request::new("POST", "/pay").key("k-1").json(r#"{"amount": 10}"#);
        let refused = world.send(&spaced).await;
        refused.assert_reused(&["body"], "operator", None);
        assert!(refused.text().contains("not known"), "{}", refused.shown());
        world.upstream.next(reply(504));
        assert_eq!(world.pay("k-2").await.status, 504);
        world.send(&Request::pay().key("k-2").target("/x")).await.assert_reused(&["target"], "operator", Some(504));
        assert_eq!(world.executions(), 2);
    }

    async fn k2_a_body_written_in_another_way_after_an_answer_is_told_of_it(store) {
        let world = World::new(store).await;
        world.pay("k-1").await.assert_executed(201);
        let spaced = Request::new("POST", "/pay").key("k-1").json(r#"{"amount": 10}"#);
        let refused = world.send(&spaced).await;
        refused.assert_reused(&["body"], CORRECT, Some(201));
        assert!(refused.text().contains("ended with 201"), "{}", refused.shown());
        assert_eq!(world.executions(), 1);
    }

    async fn l1_a_nonce_in_the_query_does_not_count(store) {
        let world = World::with(store, "fingerprint.ignore_query = [\"nonce\", \"X-Sig\"]").await;
        world.send(&pay().target("/pay?nonce=1&amount=1&X-Sig=a")).await.assert_executed(201);
        for same in ["/pay?nonce=2&amount=1", "/pay?amount=1", "/pay?amount=1&nonce", "/pay?n%6Fnce=3&amount=1&nonce=4"] {
            world.send(&pay().target(same)).await.assert_replay(201);
        }
        for other in ["/pay?nonce=1&amount=2", "/pay?nonce=1", "/refund?nonce=1&amount=1", "/pay?Nonce=1&amount=1"] {
            world.send(&pay().target(other)).await.assert_reused(&["target"], CORRECT, Some(201));
        }
        // The nonce is not what this one is refused for.
        let other = Request::new("POST", "/pay?nonce=9&amount=1").key("k-1").json("{}");
        world.send(&other).await.assert_reused(&["body"], CORRECT, Some(201));
        assert_eq!(world.executions(), 1);
        assert_eq!(world.upstream.last().target, "/pay?nonce=1&amount=1&X-Sig=a");
    }

    async fn n2_a_cookie_tells_the_first_caller_from_a_stranger(store) {
        let world = World::new(store).await;
        let (sid, lb) = (cookie("sid", 's', 32), cookie("lb", 'l', 16));
        let first = format!("{sid}; {lb}");
        world.send(&with_cookies(&first)).await.assert_executed(201);
        world.send(&with_cookies(&format!("{sid}; {}", cookie("lb", 'm', 16)))).await.assert_replay(201);
        world.send(&with_cookies(&format!("seen=1;{sid}"))).await.assert_replay(201);
        world.send(&pay().field("Cookie", &sid).field("Cookie", cookie("other", 'o', 40))).await.assert_replay(201);
        let strangers = [
            format!("{}; {}", cookie("sid", 't', 32), cookie("lb", 'm', 16)),
            // The same value under another name, and a part of it.
            cookie("dis", 's', 32),
            cookie("sid", 's', 31),
            "sid=short".to_owned(),
            String::new(),
        ];
        for stranger in &strangers {
            let refused = world.send(&with_cookies(stranger)).await;
            refused.assert_problem(403, "other-caller");
            assert_eq!(refused.json().get("original_status"), None);
            // Nor does a stranger learn whether its request is the same.
            world.send(&with_cookies(stranger).target("/other")).await.assert_problem(403, "other-caller");
        }
        world.send(&with_cookies(&sid).target("/other")).await.assert_reused(&["target"], CORRECT, Some(201));
        assert_eq!(world.executions(), 1);
        let counted = world.proxy().metric("onceproxy_requests_total", &[("result", "other_caller")]).await;
        assert_eq!(counted, 2.0 * strangers.len() as f64);
    }

    async fn n2_headers_with_credentials_outside_of_the_scope_must_be_equal(store) {
        let world = World::with(store, "scope = []").await;
        let from = |fields: &[(&str, &str)]| fields.iter().fold(pay(), |request, (name, value)| request.field(name, value));
        let first = [("Authorization", "Bearer a"), ("X-Api-Key", "alice")];
        world.send(&from(&first)).await.assert_executed(201);
        world.send(&from(&first)).await.assert_replay(201);
        world.send(&from(&[first[0], first[0], first[1]])).await.assert_replay(201);
        // Cookies that only the second has do not count.
        world.send(&from(&[first[0], first[1], ("Cookie", &cookie("sid", 's', 32))])).await.assert_replay(201);
        let api_key = ("Api-Key", "alice");
        for stranger in [&[first[0]][..], &[first[1]], &[], &[first[0], first[1], api_key], &[first[0], api_key]] {
            world.send(&from(stranger)).await.assert_problem(403, "other-caller");
        }
        assert_eq!(world.executions(), 1);
    }

    async fn n2_who_shares_the_scope_may_have_it_where_the_route_says_so(store) {
        let world = World::with(store, "scope = []\nreplay_to = \"scope\"").await;
        world.send(&pay().field("Authorization", "Bearer a")).await.assert_executed(201);
        world.send(&pay().field("Authorization", "Bearer b")).await.assert_replay(201);
        world.send(&with_cookies(&cookie("sid", 's', 32))).await.assert_replay(201);
        assert_eq!(world.executions(), 1);
    }

    async fn n2_a_stranger_neither_joins_nor_takes_over(store) {
        for settings in ["on_duplicate = \"wait\"", "on_duplicate = \"reject\"", "on_unknown = \"resend\""] {
            let world = World::with(store, settings).await;
            let (sid, other) = (cookie("sid", 's', 32), cookie("sid", 't', 32));
            let gate = Gate::new();
            world.upstream.next(Script::close().behind(&gate));
            let first = with_cookies(&sid).begin(world.address());
            world.upstream.reached(1).await;
            // Answered although the gate is closed: it did not wait.
            world.send(&with_cookies(&other)).await.assert_problem(403, "other-caller");
            gate.open();
            assert_eq!(first.answer().await.status, 502);
            world.send(&with_cookies(&other)).await.assert_problem(403, "other-caller");
            assert_eq!(world.executions(), 1);
        }
    }

    async fn n2_a_record_made_before_callers_were_compared_is_nobodys(store) {
        let mut world = World::with(store, "replay_to = \"scope\"").await;
        world.pay("k-1").await.assert_executed(201);
        reload(&mut world, "replay_to = \"same-credentials\"").await;
        world.pay("k-1").await.assert_problem(403, "other-caller");
        world.pay("k-2").await.assert_executed(201);
        reload(&mut world, "replay_to = \"scope\"").await;
        for key in ["k-1", "k-2"] {
            world.pay(key).await.assert_replay(201);
        }
        assert_eq!(world.executions(), 2);
    }

    async fn a_request_that_waits_to_send_its_body_is_refused_only_with_the_body(store) {
        let mut world = World::with(store, "fingerprint.body = \"ignore\"").await;
        let expecting = |body: &str| Request::new("POST", "/pay").key("k-1").json(body).field("Expect", "100-continue");
        let whole = r#"{"amount":10}"#;
        world.send(&expecting(whole)).await.assert_executed(201);
        let head = |request: &Request| {
            let bytes = request.to_bytes();
            bytes[..bytes.len() - whole.len()].to_vec()
        };
        // Under the same settings the head alone is enough.
        let mut connection = Connection::open(world.address()).await;
        connection.write(&head(&expecting(whole))).await;
        connection.answer().await.assert_replay(201);
        let empty = Request::new("POST", "/pay").key("k-2").json("");
        world.send(&empty).await.assert_executed(201);
        reload(&mut world, "fingerprint.headers = []").await;
        // Whether it is the same only the body can tell.
        let expecting_other = Request::new("POST", "/pay").key("k-2").json(whole).field("Expect", "100-continue");
        world.send(&expecting_other).await.assert_reused(&["body"], CORRECT, Some(201));
        world.send(&expecting(whole)).await.assert_replay(201);
        world.send(&expecting(r#"{"amount":11}"#)).await.assert_reused(&["body"], CORRECT, Some(201));
        assert_eq!(world.executions(), 2);
    }
}

on_lasting_stores! {
    async fn k1_a_claim_whose_owner_is_gone_is_as_unknown(store) {
        let mut world = World::with(store, "lease = \"300ms\"").await;
        world.upstream.next(Script::never());
        let first = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        world.proxies[0].kill();
        first.hang_up().await;
        world.proxies[0].start_again().await;
        let other = pay().target("/other");
        let refused = eventually("the lease to be over", async || {
            let answer = world.send(&other).await;
            (answer.json()["retry"] == "operator").then_some(answer)
        })
        .await;
        refused.assert_reused(&["target"], "operator", None);
        assert_eq!(world.executions(), 1);
    }

    async fn j2_settings_that_a_restart_changes_never_make_another_request_the_same(store) {
        let mut world = World::new(store).await;
        let body = |body: &str| Request::new("POST", "/pay").key("k-1").json(body);
        world.send(&body(r#"{"a":1,"b":2}"#)).await.assert_executed(201);
        world.change_route("fingerprint.body = \"json\"");
        world.restart().await;
        world.send(&body(r#"{"b":2,"a":1}"#)).await.assert_reused(&["body"], CORRECT, Some(201));
        world.send(&body(r#"{"a":1,"b":2}"#)).await.assert_replay(201);
        assert_eq!((world.executions(), policy_changed(&world).await), (1, 1.0));
    }
}

on_shared_stores! {
    async fn n2_a_caller_who_is_like_a_duplicate_must_be_like_the_first(store) {
        let world = World::build(store).proxies(2).start().await;
        let gate = Gate::new();
        let cookies = |letters: &str| -> Request {
            let cookies: Vec<_> = letters.chars().map(|letter| cookie(&letter.to_string(), letter, 16)).collect();
            with_cookies(&cookies.join("; "))
        };
        world.upstream.next(reply(201).behind(&gate));
        let first = cookies("ab").begin(world.address());
        world.upstream.reached(1).await;
        let there = &world.proxies[1];
        let waits = async |count: f64| {
            eventually("a duplicate to wait", async || {
                (there.metric("onceproxy_waiting", &[]).await == count).then_some(())
            })
            .await;
        };
        let leads = cookies("bc").begin(there.address);
        waits(1.0).await;
        // One is like both, the other only like the one that waits.
        let (honest, stranger) = (cookies("bd").begin(there.address), cookies("cd").begin(there.address));
        waits(3.0).await;
        gate.open();
        first.answer().await.assert_executed(201);
        leads.answer().await.assert_replay(201);
        honest.answer().await.assert_replay(201);
        stranger.answer().await.assert_problem(403, "other-caller");
        assert_eq!(world.executions(), 1);
    }

    async fn j1_and_n2_hold_for_those_who_meet_on_two_proxies(store) {
        for settings in ["on_duplicate = \"wait\"", "on_duplicate = \"reject\""] {
            let world = World::build(store).proxies(2).route(settings).start().await;
            let gate = Gate::new();
            let sid = cookie("sid", 's', 32);
            world.upstream.next(reply(201).behind(&gate));
            let first = with_cookies(&sid).begin(world.address());
            world.upstream.reached(1).await;
            let there = world.proxies[1].address;
            let stranger = with_cookies(&cookie("sid", 't', 32));
            let other = with_cookies(&sid).host("b.test");
            stranger.send(there).await.assert_problem(403, "other-caller");
            other.send(there).await.assert_reused(&["host"], CORRECT, None);
            let same = with_cookies(&sid).begin(there);
            if settings.contains("wait") {
                eventually("the same request to wait", async || {
                    (world.proxies[1].metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
                })
                .await;
                // They meet a flight of this process that waits for the other's.
                stranger.send(there).await.assert_problem(403, "other-caller");
                other.send(there).await.assert_reused(&["host"], CORRECT, None);
            } else {
                same.answer().await.assert_in_flight();
                gate.open();
                first.answer().await.assert_executed(201);
                continue;
            }
            gate.open();
            first.answer().await.assert_executed(201);
            same.answer().await.assert_replay(201);
            stranger.send(there).await.assert_problem(403, "other-caller");
            other.send(there).await.assert_reused(&["host"], CORRECT, Some(201));
            assert_eq!(world.executions(), 1);
        }
    }
}

/// Makes of the one completed record what a program of before would have written: no block, and its version.
const AS_BEFORE: &str = "local key = redis.call('KEYS', '*:r:*')[1]; local value = redis.call('GET', key); \
    return redis.call('SET', key, string.char(1) .. value:sub(2, 5) .. string.char(0) .. value:sub(7, 116) \
    .. value:sub(117 + 8 * value:byte(6)))";

#[tokio::test]
async fn a_record_of_an_earlier_version_is_refused_with_a_plain_sentence() {
    let mut world = World::with(Store::Redis, "replay_to = \"scope\"").await;
    world.pay("k-1").await.assert_executed(201);
    assert_eq!(world.redis().command(&["EVAL", AS_BEFORE, "0"]).await, b"+OK\r\n");
    reload(&mut world, "fingerprint.headers = []").await;
    for request in [pay(), pay().target("/other")] {
        let refused = world.send(&request).await;
        refused.assert_problem(422, "key-reused");
        let json = refused.json();
        assert_eq!((json.get("differs"), &json["original_status"]), (None, &201.into()), "{}", refused.shown());
        let detail = json["detail"].as_str().unwrap();
        assert!(detail.contains("earlier version") && detail.contains("ended with 201"), "{detail}");
        // To send it again as it was would not help.
        assert_eq!(refused.retry(), "operator");
    }
    reload(&mut world, "replay_to = \"same-credentials\"").await;
    world.pay("k-1").await.assert_problem(403, "other-caller");
    assert_eq!(world.executions(), 1);
}
