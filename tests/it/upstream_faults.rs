//! An upstream that is odd on the wire: what it says too early, too often or too much is never taken for an answer.

use crate::support::{Connection, Gate, Request, Script, Step, Store, World, eventually, ms, pass, reply};

fn bytes(text: &str) -> Step {
    Step::Bytes(text.as_bytes().to_vec())
}

#[tokio::test]
async fn interim_answers_are_not_the_answer() {
    let world = World::new(Store::Memory).await;
    world.upstream.next(Script(vec![
        bytes("HTTP/1.1 100 Continue\r\n\r\n"),
        bytes("HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"),
        Step::Reply(reply(201).body("final")),
    ]));
    assert_eq!(world.pay("k-1").await.assert_executed(201).text(), "final");
    assert_eq!(world.pay("k-1").await.assert_replay(201).text(), "final");
    assert_eq!(world.executions(), 1);
}

on_each_store! {
    async fn an_answer_whose_head_is_too_long_says_so(store) {
        let world = World::new(store).await;
        let long = format!("X-Long: {}\r\n", "a".repeat(2 << 20));
        let many: String = (0..300).map(|number| format!("X-{number}: a\r\n")).collect();
        for (key, fields) in [("long", long), ("many", many)] {
            let answer = format!("HTTP/1.1 201 Created\r\n{fields}Content-Length: 0\r\n\r\n");
            world.upstream.next(Script::bytes_then_close(&answer));
            let first = world.pay(key).await;
            first.assert_problem(502, "outcome-unknown");
            assert_eq!(first.json()["reason"], "head-too-large", "{}", first.shown());
            let duplicate = world.pay(key).await;
            duplicate.assert_unknown();
            assert_eq!(duplicate.json()["reason"], "head-too-large", "{}", duplicate.shown());
        }
        world.proxy().logged("over 256 KiB or 256 fields, which is the limit").await;
        assert_eq!(world.executions(), 2);
    }
}

#[tokio::test]
async fn a_status_from_600_on_is_passed_and_unknown() {
    let world = World::new(Store::Memory).await;
    world.upstream.next(reply(999).body("odd"));
    let first = world.pay("k-1").await;
    assert_eq!((first.status, first.text().as_str()), (999, "odd"), "{}", first.shown());
    world.pay("k-1").await.assert_unknown();
    assert_eq!(world.executions(), 1);
}

#[tokio::test]
async fn a_switch_of_protocols_that_nobody_asked_for_is_unknown() {
    let world = World::new(Store::Memory).await;
    let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n";
    world.upstream.next(Script::bytes_then_close(switch));
    // Passed on, it would make the caller read what follows as another protocol.
    world.pay("k-1").await.assert_problem(502, "outcome-unknown");
    world.pay("k-1").await.assert_unknown();
    world.upstream.next(Script::bytes_then_close(switch));
    assert_eq!(world.send(&Request::new("GET", "/pay")).await.status, 502);
    assert_eq!(world.executions(), 2);
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_unknown() {
    let unreadable = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        "SMTP ready\r\n\r\n",
        "\0\0\0\0\r\n\r\n",
    ];
    for bytes in unreadable {
        let world = World::new(Store::Memory).await;
        world.upstream.next(Script::bytes_then_close(bytes));
        world.pay("k-1").await.assert_problem(502, "outcome-unknown");
        world.pay("k-1").await.assert_unknown();
        assert_eq!(world.executions(), 1);
    }
}

#[tokio::test]
async fn bytes_after_an_answer_never_answer_the_next_request() {
    let world = World::new(Store::Memory).await;
    world.upstream.next(Script(vec![bytes(
        "HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nrightHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong",
    )]));
    let mut connection = Connection::open(world.address()).await;
    connection.send(&Request::pay().key("k-1")).await;
    let first = connection.answer().await;
    assert!(first.status == 201 && first.text() == "right", "{}", first.shown());
    for key in ["k-2", "k-3"] {
        connection.send(&Request::pay().key(key)).await;
        let next = connection.answer().await;
        assert_ne!(next.text(), "wrong", "{key} got the rest of another answer");
        next.assert_executed(201);
    }
    assert_eq!(world.executions(), 3);
}

#[tokio::test]
async fn a_farewell_on_an_idle_connection_never_answers_the_next_request() {
    let world = World::new(Store::Memory).await;
    let gate = Gate::new();
    world.upstream.next(Script(vec![
        Step::Reply(reply(201)),
        Step::Wait(gate.clone()),
        bytes("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        Step::Close,
    ]));
    let mut connection = Connection::open(world.address()).await;
    connection.send(&Request::pay().key("k-1")).await;
    connection.answer().await.assert_executed(201);
    gate.open();
    // Time for the farewell to arrive before the next request is written.
    pass(ms(100)).await;
    connection.send(&Request::pay().key("k-2")).await;
    connection.answer().await.assert_executed(201);
    assert_eq!(world.executions(), 2);
}

#[tokio::test]
async fn a_long_upload_that_is_answered_early_keeps_its_answer() {
    let world = World::new(Store::Memory).await;
    let body = vec![b'x'; 4 * 1024 * 1024];
    world.upstream.next(reply(201).body("whole"));
    let request = Request::new("POST", "/pay").key("k-1").body(&body);
    assert_eq!(world.send(&request).await.assert_executed(201).text(), "whole");
    assert_eq!(world.upstream.last().body, body);
    assert_eq!(world.send(&request).await.assert_replay(201).text(), "whole");
}

#[tokio::test]
async fn an_attempt_that_only_waits_for_headers_is_bounded_too() {
    let route = "timeout = \"300ms\"\n abandon_after = \"1s\"\n lease = \"1s\"";
    let world = World::with(Store::Memory, route).await;
    // A head that never ends, byte by byte.
    let mut steps = vec![bytes("HTTP/1.1 201 Created\r\n")];
    for _ in 0..100 {
        steps.extend([bytes("X-Drip: 1\r\n"), Step::Pause(ms(50))]);
    }
    world.upstream.next(Script(steps));
    world.pay("k-1").await.assert_problem(504, "outcome-unknown");
    let record =
        eventually("the attempt to be given up", async || world.proxy().open_records("unknown").await.pop()).await;
    assert_eq!(record["reason"], "timeout");
    assert_eq!(world.executions(), 1);
}
