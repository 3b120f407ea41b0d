//! What belongs to one hop alone: the version of each side, trailers and their announcement, what `Connection` names,
//! and `Expect`.

use crate::support::wire::values;
use crate::support::{Answer, Connection, Request, Script, Step, Store, World};

fn assert_trailer(answer: &Answer) {
    let seen: Vec<_> = values(&answer.trailers, "x-checksum").collect();
    assert_eq!(seen, [b"abc"], "{}", answer.shown());
    assert_eq!(answer.text(), "done");
}

on_each_store! {
    async fn trailers_that_nobody_announced_reach_the_caller_and_the_replay(store) {
        let world = World::new(store).await;
        let answer = "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ndone\r\n0\r\nX-Checksum: abc\r\n\r\n";
        world.upstream.next(Script(vec![Step::Bytes(answer.into())]));
        let request = Request::pay().key("k-1").field("TE", "trailers");
        let first = world.send(&request).await;
        assert_trailer(first.assert_executed(201));
        let replay = world.send(&request).await;
        assert_trailer(replay.assert_replay(201));
        assert_eq!(world.executions(), 1);
    }

    async fn via_names_the_version_in_which_the_upstream_answered(store) {
        let world = World::new(store).await;
        world.upstream.next(Script::bytes_then_close("HTTP/1.0 201 Created\r\nContent-Length: 4\r\n\r\ndone"));
        let first = world.pay("k-1").await;
        let replay = world.pay("k-1").await;
        for answer in [first.assert_executed(201), replay.assert_replay(201)] {
            assert_eq!(answer.all("Via"), [b"1.0 onceproxy"], "{}", answer.shown());
        }
        world.pay("k-2").await;
        assert_eq!(world.pay("k-2").await.all("Via"), [b"1.1 onceproxy"]);
    }
}

#[tokio::test]
async fn forwarded_fields_that_connection_names_go_no_further() {
    let world = World::new(Store::Memory).await;
    let forged = Request::pay()
        .field("X-Forwarded-For", "192.0.2.1")
        .field("X-Forwarded-Host", "elsewhere.test")
        .field("Forwarded", "for=192.0.2.1")
        .field("Connection", "X-Forwarded-For, X-Forwarded-Host, Forwarded");
    for request in [forged.clone().key("k-1"), forged] {
        world.send(&request).await.assert_executed(201);
        let received = world.upstream.last();
        assert_eq!(received.all("X-Forwarded-For"), ["127.0.0.1"]);
        assert_eq!(received.all("X-Forwarded-Host"), ["shop.test"]);
        assert_eq!(received.all("Forwarded"), ["for=127.0.0.1;proto=http;host=\"shop.test\""]);
    }
}

#[tokio::test]
async fn connection_may_not_name_the_key_of_a_request_that_is_not_protected() {
    let world = World::new(Store::Memory).await;
    let answer = world.send(&Request::new("GET", "/pay").key("k-1").field("Connection", "Idempotency-Key")).await;
    answer.assert_problem(400, "key-invalid");
    assert_eq!(world.executions(), 0);
}

#[tokio::test]
async fn a_refusal_that_needs_no_body_does_not_ask_for_it() {
    let route = "path = \"/v1\"\n key_required = true\n max_request_body = \"1KiB\"";
    let world = World::with(Store::Memory, route).await;
    let post = |target| Request::new("POST", target).field("Expect", "100-continue").body(vec![b'x'; 2048]);
    for (request, status) in [
        (post("/other").key("k-1"), "404"),
        (post("/v1/pay"), "400"),
        (post("/v1/pay").key("a,b"), "400"),
        (post("/v1/pay").key("k-1"), "413"),
    ] {
        let whole = request.to_bytes();
        let mut connection = Connection::open(world.address()).await;
        connection.write(&whole[..whole.len() - 2048]).await;
        let answer = connection.body_until("urn:onceproxy:problem:").await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    assert_eq!(world.executions(), 0);
}
