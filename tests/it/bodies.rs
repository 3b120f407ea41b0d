//! Keys in bodies, and bodies in which there is none: what is read, what is skipped and what passes.

use std::io::Write;

use crate::support::{Answer, Request, World};

const OPTIONAL: &str = "key = [\"json:/id\"]";

fn assert_unprotected(answer: &Answer) {
    answer.assert_executed(201);
    assert_eq!(answer.field("Cache-Status"), Some("onceproxy; fwd=bypass; detail=unprotected"));
}

fn posting(kind: &str, body: impl AsRef<[u8]>) -> Request {
    Request::new("POST", "/pay").field("Content-Type", kind).body(body)
}

/// The same text, compressed at another time: gzip writes that down.
fn gzip(text: impl AsRef<[u8]>, at: u32) -> Vec<u8> {
    let mut encoder = flate2::GzBuilder::new().mtime(at).write(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_ref()).unwrap();
    encoder.finish().unwrap()
}

fn zipped(text: impl AsRef<[u8]>, at: u32) -> Request {
    posting("application/json", gzip(text, at)).field("Content-Encoding", "gzip")
}

on_each_store! {
    async fn l2_the_time_in_a_gzip_does_not_count(store) {
        let world = World::with(store, "fingerprint.body = \"json\"\n max_request_body = \"64KiB\"").await;
        let text = r#"{"amount":10,"currency":"EUR"}"#;
        world.send(&zipped(text, 1).key("k-1")).await.assert_executed(201);
        assert_eq!(world.upstream.last().body, gzip(text, 1), "it goes on as it came");
        for same in [zipped(text, 2), zipped(r#"{"currency":"EUR", "amount":10}"#, 3), posting("application/json", text)] {
            world.send(&same.key("k-1")).await.assert_replay(201);
        }
        world.send(&zipped(r#"{"amount":11}"#, 1).key("k-1")).await.assert_problem(422, "key-reused");
        world.send(&zipped("0".repeat(10 << 20), 1).key("k-2")).await.assert_problem(413, "body-too-large");
        // What cannot be decoded counts by its bytes.
        let broken = posting("application/json", &gzip(text, 1)[..20]).field("Content-Encoding", "gzip").key("k-3");
        world.send(&broken).await.assert_executed(201);
        world.send(&broken).await.assert_replay(201);
        let unknown = |body: &str| posting("application/json", body).field("Content-Encoding", "x-own").key("k-4");
        world.send(&unknown(r#"{"a":1,"b":2}"#)).await.assert_executed(201);
        world.send(&unknown(r#"{"b":2,"a":1}"#)).await.assert_problem(422, "key-reused");
        assert_eq!(world.executions(), 3);
    }

    async fn l2_a_key_is_found_in_a_compressed_body(store) {
        let world = World::with(store, "key = [\"json:/id\"]\n fingerprint.body = \"json\"\n max_request_body = \"64KiB\"").await;
        let text = r#"{"id":"e1"}"#;
        world.send(&zipped(text, 1)).await.assert_executed(201);
        for same in [
            zipped(text, 2),
            posting("application/json", gzip(gzip(text, 1), 2)).field("Content-Encoding", "gzip, gzip"),
            posting("application/json", [gzip(r#"{"id":"#, 1), gzip(r#""e1"}"#, 2)].concat()).field("Content-Encoding", "x-gzip"),
        ] {
            world.send(&same).await.assert_replay(201);
        }
        world.send(&zipped("0".repeat(10 << 20), 1)).await.assert_problem(413, "body-too-large");
        assert_eq!(world.executions(), 1);
        let broken = posting("application/json", &gzip(text, 1)[..20]).field("Content-Encoding", "gzip");
        assert_unprotected(&world.send(&broken).await);
        let world = World::with(store, "key = [\"json:/id\"]\n key_required = true").await;
        world.send(&broken).await.assert_problem(400, "body-invalid");
        assert_eq!(world.executions(), 0);
    }

    async fn l3_a_byte_order_mark_is_skipped(store) {
        let world = World::with(store, &format!("{OPTIONAL}\n fingerprint.body = \"json\"")).await;
        world.send(&posting("application/json", "\u{feff}{\"id\":\"e1\",\"a\":1}")).await.assert_executed(201);
        assert_eq!(world.upstream.last().body, "\u{feff}{\"id\":\"e1\",\"a\":1}".as_bytes(), "it goes on as it came");
        for same in ["{\"a\":1,\"id\":\"e1\"}", "\u{feff}{\"id\":\"e1\",\"a\":1}"] {
            world.send(&posting("application/json", same)).await.assert_replay(201);
        }
        assert_eq!(world.executions(), 1);
    }

    async fn l3_a_body_without_a_key_passes_where_none_is_required(store) {
        for source in ["json:/id", "form:id"] {
            let world = World::with(store, &format!("key = [\"{source}\"]")).await;
            let foreign = [
                posting("application/json", ""),
                posting("text/plain", "hello"),
                posting("application/xml", "<id>1</id>"),
                posting("application/json", "{\"id\":"),
                posting("application/json", "{}"),
                posting("multipart/form-data; boundary=b", "--b--\r\n"),
                Request::new("POST", "/pay"),
            ];
            for (n, request) in foreign.iter().enumerate() {
                assert_unprotected(&world.send(request).await);
                assert_eq!(world.executions(), n + 1);
            }
        }
    }

    async fn l3_a_body_without_a_key_is_refused_where_one_is_required(store) {
        let required = |source: &str| format!("key = [\"{source}\"]\n key_required = true");
        let world = World::with(store, &required("json:/id")).await;
        for body in ["", "hello", "{\"id\":"] {
            world.send(&posting("application/json", body)).await.assert_problem(400, "body-invalid");
        }
        world.send(&posting("application/json", "{}")).await.assert_problem(400, "key-missing");
        assert_eq!(world.executions(), 0);
        let world = World::with(store, &required("form:id")).await;
        world.send(&posting("application/json", "{}")).await.assert_problem(400, "body-invalid");
        world.send(&posting("application/x-www-form-urlencoded", "a=1")).await.assert_problem(400, "key-missing");
        assert_eq!(world.executions(), 0);
    }

    async fn l3_a_key_that_is_there_and_malformed_is_refused_all_the_same(store) {
        let world = World::with(store, OPTIONAL).await;
        for body in [r#"{"id":""}"#, r#"{"id":{}}"#, r#"{"id":"a\nb"}"#] {
            world.send(&posting("application/json", body)).await.assert_problem(400, "key-invalid");
        }
        world.send(&posting("application/json", r#"{"id":"a","id":"b"}"#)).await.assert_problem(400, "body-invalid");
        assert_eq!(world.executions(), 0);
    }

    async fn l3_a_form_field_is_a_key(store) {
        let world = World::with(store, "key = [\"form:order id\", \"header:Idempotency-Key\"]").await;
        let form = |body: &str| posting("application/x-www-form-urlencoded", body);
        world.send(&form("order+id=a%2Fb&x=1")).await.assert_executed(201);
        world.send(&form("order+id=a%2Fb&x=1")).await.assert_replay(201);
        world.send(&form("order%20id=a/b&x=1")).await.assert_problem(422, "key-reused");
        for malformed in ["order+id=a&order+id=a", "order+id=", "order+id=%zz"] {
            world.send(&form(malformed)).await.assert_problem(400, "key-invalid");
        }
        // Without it the next source counts.
        world.send(&form("x=1").key("k-1")).await.assert_executed(201);
        world.send(&form("x=1").key("k-1")).await.assert_replay(201);
        assert_eq!(world.executions(), 2);
    }

    async fn l3_an_empty_validation_call_passes_a_webhook_route(store) {
        for preset in ["stripe", "adyen", "cloudevents", "github"] {
            let world = World::with(store, &format!("preset = \"webhook\"\n key_preset = \"{preset}\"")).await;
            assert_unprotected(&world.send(&Request::new("POST", "/hook")).await);
            assert_unprotected(&world.send(&posting("text/plain", "validate")).await);
        }
    }

    async fn o1_a_keyed_request_of_every_writing_method_runs_once(store) {
        let world = World::new(store).await;
        for (n, method) in ["POST", "PUT", "PATCH", "DELETE"].into_iter().enumerate() {
            let request = Request::new(method, "/pay").field("X-Idempotency-Key", method).json("{}");
            world.send(&request).await.assert_executed(201);
            world.send(&request).await.assert_replay(201);
            assert_eq!(world.executions(), n + 1);
        }
        // The first of the two headers decides.
        let both = |one: &str, other: &str| {
            Request::pay().field("X-Idempotency-Key", other).field("Idempotency-Key", one)
        };
        world.send(&both("k-1", "k-2")).await.assert_executed(201);
        world.send(&both("k-1", "k-3")).await.assert_replay(201);
        world.send(&Request::pay().key("k-1")).await.assert_replay(201);
        world.send(&both("a,b", "k-1")).await.assert_problem(400, "key-invalid");
        assert_eq!(world.executions(), 5);
    }

    async fn o2_a_key_that_protects_nothing_is_told(store) {
        let world = World::new(store).await;
        let counted = async |header: &str| {
            world.proxy().metric("onceproxy_unprotected_keys_total", &[("route", "pay"), ("header", header)]).await
        };
        for (n, (method, name, label)) in [
            ("POST", "Idempotency-Token", "idempotency-token"),
            ("PUT", "X-Idempotence-Key", "x-idempotence-key"),
            ("POST", "Idempotency_Key", "idempotency_key"),
            ("POST", "PayPal-Request-Id", "paypal-request-id"),
            ("POST", "X-Idempotency-Id", "other"),
            ("GET", "Idempotency-Key", "idempotency-key"),
            ("POST", "X-Request-Id", "x-request-id"),
        ]
        .into_iter()
        .enumerate()
        {
            for _ in 0..2 {
                assert_unprotected(&world.send(&Request::new(method, "/pay").field(name, "x")).await);
            }
            assert_eq!(world.executions(), 2 * (n + 1));
            assert_eq!(counted(label).await, if name == "X-Request-Id" { 0.0 } else { 2.0 }, "{name}");
        }
        let line = world.proxy().logged("\"header\":\"idempotency-token\"").await;
        assert!(line.contains("WARN") && line.contains("\"route\":\"pay\""), "{line}");
        let told = world.proxy().log().into_iter().filter(|line| line.contains("passed unprotected")).count();
        assert_eq!(told, 6, "each once, however often");
        // A request that is protected has nothing to be told of.
        world.send(&Request::pay().key("k-1").field("Idempotency-Token", "x")).await.assert_executed(201);
        assert_eq!(counted("idempotency-token").await, 2.0);
    }
}

#[tokio::test]
async fn start_says_who_is_kept_apart_from_whom() {
    let world = World::new(crate::support::Store::Memory).await;
    let line = world.proxy().logged("\"callers\":").await;
    for part in ["\"route\":\"pay\"", "header:authorization, header:x-api-key, header:api-key", "the credentials"] {
        assert!(line.contains(part), "{part}: {line}");
    }
}
