//! Outcomes told in the body of an answer, and the rules that read them there (`[[route.when]]`).

use std::io::Write as _;

use crate::support::{Gate, Script, Store, World, eventually, reply};

/// A world whose route has these rules, each in one line.
async fn world(store: Store, rules: &str) -> World {
    let sections: String =
        rules.lines().map(|rule| format!("[[route.when]]\n{}\n", rule.replace("; ", "\n"))).collect();
    World::build(store).more(&sections).start().await
}

const THROTTLED: &str = r#"{"data":null,"errors":[{"message":"slow down","extensions":{"code":"THROTTLED"}}]}"#;

on_each_store! {
    async fn m3_an_outcome_in_the_body_decides(store) {
        let world = world(
            store,
            "status = \"2xx\"; json = \"/errors/0/extensions/code\"; is = [\"THROTTLED\", \"UNAUTHENTICATED\"]; then = \"release\"\n\
             status = \"2xx\"; json = \"/errors/0/extensions/code\"; is = [\"INTERNAL\"]; then = \"unknown\"\n\
             status = [\"503\", \"502\"]; json = \"/charged\"; is = [true]; then = \"record\"",
        )
        .await;
        world.upstream.next(reply(200).field("Content-Type", "application/json").body(THROTTLED));
        let first = world.pay("k-1").await;
        assert_eq!((first.status, first.text().as_str()), (200, THROTTLED));
        assert_eq!(first.field("Cache-Status"), Some("onceproxy; fwd=miss; detail=released"));
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 2);

        world.upstream.next(reply(200).body(THROTTLED.replace("THROTTLED", "INTERNAL")));
        let first = world.pay("k-2").await;
        assert_eq!(first.field("Cache-Status"), Some("onceproxy; fwd=miss; detail=outcome-unknown"));
        let repeat = world.pay("k-2").await;
        repeat.assert_unknown();
        assert_eq!(repeat.json()["original_status"], 200);

        // What the lists release, or cannot tell, a body may say was done.
        for status in [503, 502] {
            let key = format!("k-{status}");
            world.upstream.next(reply(status).body(r#"{"charged": true}"#));
            world.pay(&key).await.assert_executed(status);
            world.pay(&key).await.assert_replay(status);
        }
        // Any other code, and what has none, is judged by the lists.
        for (n, body) in [THROTTLED.replace("THROTTLED", "BAD_USER_INPUT"), "{}".to_owned()].into_iter().enumerate() {
            let key = format!("k-other-{n}");
            world.upstream.next(reply(200).body(&body));
            world.pay(&key).await.assert_executed(200);
            assert_eq!(world.pay(&key).await.assert_replay(200).text(), body);
        }
        assert_eq!(world.executions(), 7);
    }

    async fn m3_an_attempt_that_was_joined_tells_all_the_same(store) {
        let world = world(store, "json = \"/ok\"; is = [false]; then = \"release\"").await;
        let gate = Gate::new();
        world.upstream.next(reply(200).body("{\"ok\": false}").behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let joiner = world.begin_pay("k-1");
        eventually("the duplicate to wait", async || {
            (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
        })
        .await;
        gate.open();
        assert_eq!(owner.answer().await.text(), "{\"ok\": false}");
        let joined = joiner.answer().await;
        assert_eq!((joined.text().as_str(), joined.is_replay()), ("{\"ok\": false}", false), "{}", joined.shown());
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }
}

/// Whether an answer with this body frees the key under this rule.
async fn frees(world: &World, key: &str, script: impl Into<Script>) -> bool {
    world.upstream.next(script.into());
    world.pay(key).await;
    let repeat = world.pay(key).await;
    match repeat.is_replay() {
        true => false,
        false => repeat.assert_executed(201).status == 201,
    }
}

#[tokio::test]
async fn a_rule_compares_values_exactly() {
    let cases: [(&str, &[&str], &[&str]); 12] = [
        ("json = \"/a\"; is = [429]", &["{\"a\":429}"], &["{\"a\":\"429\"}", "{\"a\":429.0}", "{\"a\":4290}"]),
        ("json = \"/a\"; is = [1.50]", &["{\"a\":1.50}"], &["{\"a\":1.5}", "{\"a\":\"1.50\"}"]),
        ("json = \"/a\"; is = [true]", &["{\"a\":true}"], &["{\"a\":\"true\"}", "{\"a\":false}", "{\"a\":1}"]),
        ("json = \"/a\"; is = [\"null\"]", &["{\"a\":null}"], &["{\"a\":\"null\"}", "{}", "{\"a\":0}"]),
        (
            "json = \"/a\"; is = [\"x\"]",
            &["{\"a\":\"x\"}", "{\"a\":\"\\u0078\"}"],
            &["{\"a\":\"X\"}", "{\"a\":[\"x\"]}"],
        ),
        ("json = \"/a\"; is = [1, \"b\"]", &["{\"a\":1}", "{\"a\":\"b\"}"], &["{\"a\":\"1\"}"]),
        (
            "json = \"/a\"; empty = true",
            &["{\"a\":[]}", "{\"a\":{ }}"],
            &["{\"a\":[0]}", "{\"a\":\"\"}", "{\"a\":null}", "{}"],
        ),
        ("json = \"/a\"; exists = true", &["{\"a\":1}", "{\"a\":null}", "{\"a\":[]}"], &["{}", "{\"b\":1}", "[1]"]),
        ("json = \"/a\"; exists = false", &["{}", "[]", "\"a\""], &["{\"a\":null}", "not JSON", "", "{\"b\":1"]),
        (
            "json = \"/a~1b/m~0n/0\"; is = [1]",
            &["{\"a/b\":{\"m~n\":[1]}}"],
            &["{\"a\":{\"b\":1}}", "{\"a/b\":{\"m~n\":[2,1]}}"],
        ),
        ("json = \"\"; empty = true", &["[]", "{}", "\u{feff}{}"], &["[[]]", "null"]),
        // Readers differ in which of two members counts.
        (
            "json = \"/a\"; is = [1]",
            &["{\"a\":1,\"b\":2}"],
            &["{\"a\":1,\"a\":1}", "{\"a\":1,\"b\":2,\"b\":2}", "{\"a\":1} x"],
        ),
    ];
    for (n, (rule, matching, others)) in cases.into_iter().enumerate() {
        let world = world(Store::Memory, &format!("{rule}; then = \"release\"")).await;
        let all = matching.iter().map(|body| (body, true)).chain(others.iter().map(|body| (body, false)));
        for (m, (body, matches)) in all.enumerate() {
            let freed = frees(&world, &format!("k-{n}-{m}"), reply(200).body(body)).await;
            assert_eq!(freed, matches, "{rule} and {body}");
        }
    }
}

#[tokio::test]
async fn a_compressed_body_is_decoded_before_it_is_looked_at() {
    let world = World::build(Store::Memory)
        .route("max_response_body = \"1KiB\"")
        .more("[[route.when]]\njson = \"/a\"\nis = [1]\nthen = \"release\"\n")
        .start()
        .await;
    for (n, (coding, body, freed)) in [
        ("gzip", gzip(b"{\"a\":1}"), true),
        ("x-gzip", gzip(b"{\"a\":1}"), true),
        ("gzip", gzip(b"{\"a\":2}"), false),
        ("gzip, gzip", gzip(&gzip(b"{\"a\":1}")), true),
        ("identity", b"{\"a\":1}".to_vec(), true),
        // Not what it says, unknown, cut off, and more than is decoded.
        ("gzip", b"{\"a\":1}".to_vec(), false),
        ("rot13", b"{\"a\":1}".to_vec(), false),
        ("gzip", gzip(b"{\"a\":1}")[..20].to_vec(), false),
        ("gzip", gzip(&[&[b' '; 2048][..], b"{\"a\":1}"].concat()), false),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k-{n}");
        world.upstream.next(reply(200).field("Content-Encoding", coding).body(&body));
        let first = world.pay(&key).await;
        assert_eq!((&first.body, first.field("Content-Encoding")), (&body, Some(coding)), "as it came");
        assert_eq!(!world.pay(&key).await.is_replay(), freed, "{n}: {coding}");
    }
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn the_first_rule_that_matches_decides_and_only_for_its_statuses() {
    let rules = "status = \"200\"; json = \"/a\"; is = [1]; then = \"record\"\n\
                 status = [\"2xx\", \"404\"]; json = \"/a\"; exists = true; then = \"release\"";
    let world = world(Store::Memory, rules).await;
    for (status, body, freed) in [
        (200, "{\"a\":1}", false),
        (200, "{\"a\":2}", true),
        (202, "{\"a\":1}", true),
        (404, "{\"a\":1}", true),
        (400, "{\"a\":1}", false),
        (404, "{}", false),
    ] {
        let key = format!("k-{status}-{}", body.len() + usize::from(body.contains('2')));
        assert_eq!(frees(&world, &key, reply(status).body(body)).await, freed, "{status} {body}");
    }
}

#[tokio::test]
async fn what_flows_or_is_too_long_matches_no_rule() {
    let rule = "json = \"/a\"; exists = true; then = \"release\"";
    let sections = format!("[[route.when]]\n{}\n", rule.replace("; ", "\n"));
    let world = World::build(Store::Memory).route("max_response_body = \"1KiB\"").more(&sections).start().await;
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(1024));
    world.upstream.next(reply(200).body(&long));
    assert_eq!(world.pay("k-long").await.text(), long);
    world.pay("k-long").await.assert_problem(409, "response-not-retained");
    // In one piece or in several, it means the same.
    for (n, content_type) in ["application/x-ndjson", "text/event-stream; charset=utf-8"].into_iter().enumerate() {
        let key = format!("k-{n}");
        let script = reply(200).field("Content-Type", content_type).body("{\"a\":1}\n");
        assert!(!frees(&world, &key, script).await, "{content_type}");
    }
    assert!(frees(&world, "k-whole", reply(200).body("{\"a\":1}")).await);
}
