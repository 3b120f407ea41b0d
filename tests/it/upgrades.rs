//! Upgrades of plain requests: a WebSocket passes through, and what must not pass does not.
//!
//! The handshake and the frames are the examples of RFC 6455 (sections 1.3 and 5.7), byte by byte.

use tokio::net::{TcpListener, TcpStream};

use crate::support::wire::{Wire, values};
use crate::support::{Connection, DEADLINE, Request, Store, World, eventually, reply};

const ACCEPTED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// A text frame `Hello` from a client.
const MASKED_HELLO: &[u8] = &[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
/// The same from a server.
const HELLO: &[u8] = b"\x81\x05Hello";

fn handshake(target: &str) -> Request {
    Request::new("GET", target)
        .field("Connection", "keep-alive, Upgrade")
        .field("Upgrade", "websocket")
        .field("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
        .field("Sec-WebSocket-Version", "13")
}

/// A world whose upstream is this listener, which does only what the scenario makes it do.
async fn world(listener: &TcpListener, limits: &str, top: &str) -> World {
    let url = format!("upstream = \"http://{}\"", listener.local_addr().unwrap());
    World::build(Store::memory()).route(&url).more(&format!("[limits]\n{limits}\n")).top(top).start().await
}

async fn accept(listener: &TcpListener) -> Wire<TcpStream> {
    let accepted = tokio::time::timeout(DEADLINE, listener.accept()).await;
    Wire::new(accepted.expect("a connection to the upstream").unwrap().0)
}

/// A WebSocket through the proxy: the client's end and the upstream's.
async fn open(world: &World, listener: &TcpListener) -> (Connection, Wire<TcpStream>) {
    let mut client = Connection::open(world.address()).await;
    client.send(&handshake("/chat")).await;
    let mut upstream = accept(listener).await;
    upstream.head().await.unwrap().unwrap();
    upstream.write(ACCEPTED).await.unwrap();
    assert_eq!(client.head().await.status, 101);
    (client, upstream)
}

async fn frame(upstream: &mut Wire<TcpStream>, length: usize) -> Vec<u8> {
    let mut seen = Vec::new();
    while seen.len() < length {
        let more = tokio::time::timeout(DEADLINE, upstream.some()).await.expect("a frame in time");
        seen.extend(more.expect("a frame before the end"));
    }
    seen
}

async fn in_flight(world: &World, expected: f64) {
    let what = format!("{expected} in flight");
    eventually(&what, async || {
        (world.proxy().metric("onceproxy_in_flight", &[("route", "pay")]).await == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_websocket_passes_through_in_both_directions() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = world(&listener, "", "").await;
    let mut client = Connection::open(world.address()).await;
    client.send(&handshake("/chat?room=1")).await;

    let mut upstream = accept(&listener).await;
    let head = upstream.head().await.unwrap().unwrap();
    assert_eq!(head.start, "GET /chat?room=1 HTTP/1.1");
    let one = |name: &str| {
        let all: Vec<_> = values(&head.fields, name).map(|v| String::from_utf8_lossy(v).into_owned()).collect();
        assert_eq!(all.len(), 1, "{name}: {all:?}");
        all[0].clone()
    };
    assert_eq!((one("connection").as_str(), one("upgrade").as_str()), ("upgrade", "websocket"));
    assert_eq!(one("sec-websocket-key"), "dGhlIHNhbXBsZSBub25jZQ==");
    // The first frame comes together with the answer.
    upstream.write(&[ACCEPTED, HELLO].concat()).await.unwrap();

    let answer = client.head().await;
    assert_eq!(answer.status, 101);
    assert_eq!((answer.field("Connection"), answer.field("Upgrade")), (Some("upgrade"), Some("websocket")));
    assert_eq!(answer.field("Sec-WebSocket-Accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!((answer.field("Content-Length"), answer.field("Transfer-Encoding")), (None, None));
    assert_eq!(answer.field("Cache-Status"), Some("onceproxy; fwd=bypass; detail=unprotected"));
    assert_eq!(client.body_until("Hello").await, HELLO);

    client.write(MASKED_HELLO).await;
    assert_eq!(frame(&mut upstream, MASKED_HELLO.len()).await, MASKED_HELLO);
    // What looks like a request is a request no more.
    let bytes = b"POST /pay HTTP/1.1\nHost: a\r\nHost: b\r\n\r\n\x00\xff".repeat(5000);
    client.write(&bytes).await;
    assert_eq!(frame(&mut upstream, bytes.len()).await, bytes);
    upstream.write(HELLO).await.unwrap();
    assert_eq!(client.body_until("Hello").await, HELLO);
    in_flight(&world, 1.0).await;

    drop(client);
    assert!(tokio::time::timeout(DEADLINE, upstream.closes()).await.expect("the client's end is passed on"));
    drop(upstream);
    in_flight(&world, 0.0).await;
}

#[tokio::test]
async fn the_end_of_the_upstream_ends_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = world(&listener, "", "").await;
    let (mut client, upstream) = open(&world, &listener).await;
    drop(upstream);
    assert!(client.closes().await);
    drop(client);
    in_flight(&world, 0.0).await;
}

#[tokio::test]
async fn a_refused_handshake_leaves_http_as_it_is() {
    let world = World::new(Store::memory()).await;
    world.upstream.next(reply(426).field("Upgrade", "websocket").body("no"));
    let mut client = Connection::open(world.address()).await;
    client.send(&handshake("/chat")).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.text().as_str()), (426, "no"));
    client.send(&Request::pay().key("after")).await;
    client.answer().await.assert_executed(201);
    assert_eq!(world.executions(), 2);
}

#[tokio::test]
async fn a_key_and_an_upgrade_do_not_go_together() {
    let world = World::new(Store::memory()).await;
    let keyed = Request::pay().key("k").field("Connection", "upgrade");
    let answer = world.send(&keyed.clone().field("Upgrade", "websocket")).await;
    answer.assert_problem(400, "key-invalid");
    assert_eq!(answer.retry(), "after-correction");
    assert_eq!(world.executions(), 0);
    // Java's client asks for this with every request that it makes without TLS.
    let h2c = keyed.field("Upgrade", "h2c").field("HTTP2-Settings", "AAMAAABkAAQAAP__");
    world.send(&h2c).await.assert_executed(201);
    world.send(&h2c).await.assert_replay(201);
    let received = world.upstream.last();
    assert_eq!((received.field("Upgrade"), received.field("Connection")), (None, None));
}

#[tokio::test]
async fn another_protocol_than_the_offered_is_not_passed_on() {
    let world = World::new(Store::memory()).await;
    for (request, chosen) in [
        (handshake("/chat"), "Upgrade: h2c\r\n"),
        (handshake("/chat"), "Upgrade: websocket\r\nUpgrade: tcp\r\n"),
        (handshake("/chat"), ""),
        (Request::new("GET", "/chat"), "Upgrade: websocket\r\n"),
        (handshake("/chat").body("{}"), "Upgrade: websocket\r\n"),
    ] {
        let answer =
            format!("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n{chosen}\r\nPRI * HTTP/2.0\r\n");
        world.upstream.next(crate::support::Script::bytes_then_close(answer));
        world.send(&request).await.assert_problem(502, "outcome-unknown");
    }
}

#[tokio::test]
async fn a_silent_connection_is_closed_on_both_sides() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = world(&listener, "idle_timeout = \"500ms\"", "").await;
    let (mut client, mut upstream) = open(&world, &listener).await;
    assert!(client.closes().await);
    assert!(tokio::time::timeout(DEADLINE, upstream.closes()).await.expect("the upstream's side is closed"));
    in_flight(&world, 0.0).await;
}

#[tokio::test]
async fn an_upgraded_connection_keeps_its_place_under_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = world(&listener, "connections = 1", "").await;
    let (mut client, mut upstream) = open(&world, &listener).await;
    let second = Request::new("GET", "/second").begin(world.address());
    for _ in 0..100 {
        client.write(MASKED_HELLO).await;
        frame(&mut upstream, MASKED_HELLO.len()).await;
        upstream.write(HELLO).await.unwrap();
        client.body_until("Hello").await;
    }
    assert!(!second.is_answered());
    assert!(tokio::time::timeout(crate::support::ms(1), listener.accept()).await.is_err(), "the second was forwarded");
    drop((client, upstream));
    let mut upstream = accept(&listener).await;
    upstream.head().await.unwrap().unwrap();
    upstream.write(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    assert_eq!(second.answer().await.status, 204);
}

#[tokio::test]
async fn a_stop_waits_for_upgraded_connections_and_then_cuts_them_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut world = world(&listener, "", "drain_timeout = \"1s\"").await;
    let (mut client, mut upstream) = open(&world, &listener).await;
    world.proxy().terminate();
    // It stops listening before it waits.
    let address = world.address();
    eventually("the end of listening", async || TcpStream::connect(address).await.is_err().then_some(())).await;
    client.write(MASKED_HELLO).await;
    assert_eq!(frame(&mut upstream, MASKED_HELLO.len()).await, MASKED_HELLO);
    assert!(client.closes().await);
    assert!(world.proxies[0].ended().await.success());
    let left = world.proxy().log().into_iter().find(|line| line.contains("left behind"));
    assert_eq!(left, None);
}
