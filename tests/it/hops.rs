//! What belongs to one hop alone: the version of each side, trailers and their announcement, what `Connection` names,
//! and `Expect`.

use crate::support::wire::values;
use crate::support::{Answer, Connection, Gate, Request, Script, Step, Store, World, ms, reply};

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

    async fn interim_answers_reach_the_client_before_the_answer_and_no_replay(store) {
        let world = World::new(store).await;
        let gate = Gate::new();
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nX-Of-The-Hop: 1\r\nConnection: X-Of-The-Hop\r\n\r\n";
        let script = || {
            let early = format!("HTTP/1.1 102 Processing\r\n\r\n{hints}");
            Script(vec![Step::Bytes(early.into()), Step::Wait(gate.clone()), Step::Reply(reply(201).body("final"))])
        };
        for request in [Request::pay().key("k-1"), Request::pay()] {
            world.upstream.next(script());
            let mut connection = Connection::open(world.address()).await;
            connection.send(&request).await;
            assert_eq!(connection.interim().await.status, 102);
            let early = connection.interim().await;
            assert_eq!((early.status, early.field("Link")), (103, Some("</a>; rel=preload")), "{}", early.shown());
            assert_eq!((early.field("X-Of-The-Hop"), early.field("Connection")), (None, None), "{}", early.shown());
            assert_eq!(early.field("Via"), Some("1.1 onceproxy"));
            gate.open();
            let last = connection.interim().await;
            assert_eq!(last.status, 201, "{}", last.shown());
            connection.body_until("final").await;
            // The connection goes on, and a replay has nothing of it.
            connection.send(&Request::pay().key("k-1")).await;
            assert_eq!(connection.interim().await.status, 201);
        }
        // A client of HTTP/1.0 would take it for the answer.
        world.upstream.next(script());
        let old = Request::pay().key("k-2").http10().send(world.address()).await;
        assert_eq!((old.status, old.text().as_str()), (201, "final"));
        let mut connection = Connection::open(world.address()).await;
        world.upstream.next(script());
        connection.send(&Request::new("GET", "/").http10()).await;
        assert_eq!(connection.interim().await.status, 201);
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
async fn a_target_that_names_its_host_counts_before_the_field() {
    let world = World::new(Store::Memory).await;
    for keyed in [true, false] {
        let request = Request::new("POST", "http://other.test:81/pay");
        let request = if keyed { request.key("k-1") } else { request };
        assert_eq!(world.send(&request).await.status, 201);
        let received = world.upstream.last();
        assert_eq!((received.target.as_str(), received.all("Host")), ("/pay", vec!["other.test:81".to_owned()]));
        assert_eq!(received.all("X-Forwarded-Host"), ["other.test:81"]);
    }
}

#[tokio::test]
async fn max_forwards_counts_the_hops_of_options_and_trace() {
    let world = World::new(Store::Memory).await;
    for (method, status) in [("OPTIONS", 204), ("TRACE", 405)] {
        let last = world.send(&Request::new(method, "/pay").field("Max-Forwards", "0")).await;
        assert_eq!(last.status, status);
        assert!(last.field("Allow").is_some_and(|allowed| allowed.contains("OPTIONS")), "{}", last.shown());
        assert!(world.upstream.received().is_empty());
    }
    world.send(&Request::new("OPTIONS", "/pay").field("Max-Forwards", "3")).await;
    assert_eq!(world.upstream.last().all("Max-Forwards"), ["2"]);
    world.send(&Request::new("GET", "/pay").field("Max-Forwards", "0")).await;
    assert_eq!(world.upstream.last().all("Max-Forwards"), ["0"]);
}

const TWINS: [(&str, &str); 5] = [
    ("Idempotency_Key", "k-2"),
    ("X_Forwarded_For", "192.0.2.1"),
    ("Transfer_Encoding", "chunked"),
    ("X_Api_Key", "somebody"),
    ("X-HTTP_Method-Override", "DELETE"),
];

fn with_twins(request: Request) -> Request {
    TWINS.iter().fold(request.field("Of_Ours", "1"), |request, (name, value)| request.field(name, value))
}

#[tokio::test]
async fn what_applications_read_as_another_field_goes_no_further() {
    let world = World::new(Store::Memory).await;
    for request in [Request::pay().key("k-1"), Request::new("GET", "/pay")] {
        world.send(&with_twins(request)).await;
        let received = world.upstream.last();
        assert!(TWINS.iter().all(|(name, _)| received.all(name).is_empty()));
        assert_eq!(received.all("Of_Ours"), ["1"], "it means nothing here");
        assert_eq!(received.all("X-Forwarded-For"), ["127.0.0.1"]);
    }
    let dropped = world.proxy().metric("onceproxy_underscore_fields_total", &[("route", "pay")]).await;
    assert_eq!(dropped, 2.0 * TWINS.len() as f64);
    world.proxy().logged("a field was dropped that applications read as one with dashes").await;

    let world = World::build(Store::Memory).route("underscores = \"pass\"").start().await;
    world.send(&with_twins(Request::pay().key("k-1"))).await.assert_executed(201);
    assert!(TWINS.iter().all(|(name, value)| world.upstream.last().all(name) == [*value]));

    let world = World::build(Store::Memory).route("underscores = \"refuse\"").start().await;
    for request in [Request::pay().key("k-1"), Request::new("GET", "/pay")] {
        world.send(&with_twins(request)).await.assert_problem(400, "field-invalid");
    }
    assert!(world.upstream.received().is_empty());
    world.send(&Request::pay().key("k-1").field("Of_Ours", "1")).await.assert_executed(201);
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

#[tokio::test]
async fn a_later_minor_version_of_the_upstream_is_read_as_the_one_that_is_known() {
    let world = World::new(Store::Memory).await;
    let pieces = |pieces: &[&str]| {
        Script(pieces.iter().flat_map(|piece| [Step::Bytes((*piece).into()), Step::Pause(ms(20))]).collect())
    };
    for (key, script) in [
        ("whole", pieces(&["HTTP/1.2 201 Created\r\nContent-Length: 4\r\n\r\ndone"])),
        ("in-pieces", pieces(&["HTT", "P/1.", "9 201 Created\r\nContent-Length: 4\r\n\r\nd", "one"])),
    ] {
        world.upstream.next(script);
        assert_eq!(world.pay(key).await.assert_executed(201).text(), "done");
        assert_eq!(world.pay(key).await.assert_replay(201).text(), "done");
    }
    world.upstream.next(Script::bytes_then_close("HTTP/2.0 201 Created\r\nContent-Length: 4\r\n\r\ndone"));
    world.pay("major").await.assert_problem(502, "outcome-unknown");
}

#[tokio::test]
async fn a_request_for_the_server_as_a_whole_is_forwarded_or_answered() {
    let world = World::with(Store::memory(), "host = \"shop.test\"").await;
    world.send(&Request::new("OPTIONS", "*")).await;
    assert_eq!(world.upstream.last().target, "*");
    let executions = world.executions();
    let here = world.send(&Request::new("OPTIONS", "*").host("elsewhere.test")).await;
    assert_eq!((here.status, here.field("Allow").is_some()), (204, true), "{}", here.shown());
    assert_eq!(world.executions(), executions);
}

#[tokio::test]
async fn more_interim_answers_than_a_client_takes_hurt_nobody() {
    let world = World::new(Store::Memory).await;
    let many = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n".repeat(20_000);
    for key in ["k-1", "k-2"] {
        world.upstream.next(Script(vec![Step::Bytes(many.clone().into()), Step::Reply(reply(201).body("final"))]));
        assert_eq!(world.pay(key).await.assert_executed(201).text(), "final");
        assert_eq!(world.pay(key).await.assert_replay(201).text(), "final");
    }
    assert_eq!(world.executions(), 2);
}

#[tokio::test]
async fn an_interim_answer_finds_the_request_that_waits_and_no_other() {
    let world = World::new(Store::Memory).await;
    let gate = Gate::new();
    let late = "HTTP/1.1 103 Early Hints\r\nLink: </late>\r\n\r\n";
    // The caller has left when the hints come, and somebody else waits.
    world.upstream.next(Script(vec![
        Step::Wait(gate.clone()),
        Step::Bytes(late.into()),
        Step::Reply(reply(201).body("late")),
    ]));
    let mut connection = Connection::open(world.address()).await;
    connection.send(&Request::pay().key("k-1")).await;
    world.upstream.reached(1).await;
    drop(connection);
    let mut other = Connection::open(world.address()).await;
    gate.open();
    other.send(&Request::pay().key("k-2")).await;
    assert_eq!(other.interim().await.status, 201);
}
