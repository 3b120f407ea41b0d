//! Requests that two readers could read differently, and what becomes of them.

use super::*;

/// What a smuggler would like to have read as a request.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn ambiguous_requests_get_400_and_nothing_behind_them_is_served() {
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 35\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\nX: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: 1\rY: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\x7fb\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nNo colon\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX : 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nX: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET http://b/ HTTP/1.1\r\nHost: a/c\r\n\r\n",
        "GET / a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let world = World::start();
        let mut client = world.connect().await;
        client.send(format!("{request}{SMUGGLED}")).await;
        client.0.shutdown().await.unwrap();
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.0 400 "), "{request:?}: {answer:?}");
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "{request:?}: {answer:?}");
        assert_eq!(world.served(), 0, "{request:?}");
    }
}

#[tokio::test]
async fn a_fault_in_a_later_request_leaves_earlier_ones_alone() {
    let world = World::start();
    let mut client = world.connect().await;
    client.send(format!("{}{}GET / HTTP/1.1\nHost: a\r\n\r\n{SMUGGLED}", get("/1"), get("/2"))).await;
    assert_eq!(client.answer().await, "/1 ");
    assert_eq!(client.answer().await, "/2 ");
    assert!(client.rest().await.starts_with("HTTP/1.1 400 "));
    assert_eq!(world.served(), 2);
}

#[tokio::test]
async fn sound_requests_are_served_in_every_shape() {
    let world = World::start();
    for (request, body) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "/ "),
        ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "/ "),
        ("GET http://a:80/x HTTP/1.1\r\nHost: a\r\n\r\n", "/x "),
        ("GET / HTTP/1.0\r\n\r\n", "/ "),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "/ abc"),
        ("POST / HTTP/1.1\r\nhost:a\r\ntransfer-encoding:Chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\n\r\n", "/ abc"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nc\r\n0\r\nX-Sum: 1\r\n\r\n", "/ c"),
    ] {
        let mut client = world.connect().await;
        client.send(request).await;
        assert_eq!(client.answer().await, body, "{request:?}");
    }
}

#[tokio::test]
async fn requests_sent_at_once_are_answered_in_order() {
    let world = World::start();
    let mut client = world.connect().await;
    let post = "POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    client.send(format!("{}{post}{}", get("/1"), get("/3"))).await;
    for body in ["/1 ", "/2 abc", "/3 "] {
        assert_eq!(client.answer().await, body);
    }
    // However the bytes are cut, they are the same requests.
    for byte in post.bytes() {
        client.send([byte]).await;
    }
    assert_eq!(client.answer().await, "/2 abc");
}

#[tokio::test]
async fn a_body_whose_chunks_are_broken_fails_and_ends_the_connection() {
    for chunks in
        ["0x2\r\nab\r\n0\r\n\r\n", "2\r\nabc\r\n0\r\n\r\n", "2\nab\r\n0\r\n\r\n", "2\r\nab\n0\r\n\r\n", "-1\r\n"]
    {
        let world = World::start();
        let mut client = world.connect().await;
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
        client.send(format!("{head}{chunks}{SMUGGLED}")).await;
        client.0.shutdown().await.unwrap();
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("a broken body"), "{chunks:?}: {answer:?}");
        assert_eq!(world.served(), 1, "{chunks:?}");
    }
}

#[tokio::test]
async fn a_head_over_the_limit_gets_431() {
    for header_bytes in [1000, 100_000] {
        let world = World::with(Limits { header_bytes, ..limits() }, 1);
        let head = |size| format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(size));
        let mut client = world.connect().await;
        client.send(head(header_bytes - 100)).await;
        assert_eq!(client.answer().await, "/ ");
        client.send(head(header_bytes)).await;
        client.0.shutdown().await.unwrap();
        assert!(client.rest().await.starts_with("HTTP/1.1 431 "));
        assert_eq!(world.served(), 1);
    }
}
