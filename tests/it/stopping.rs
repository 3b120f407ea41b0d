//! What a stop waits for: attempts that were claimed, and nothing that has only half arrived.

use bytes::Bytes;
use http::Request as Head;
use tokio::net::TcpStream;

use crate::support::{Connection, DEADLINE, Gate, Request, Store, World, eventually, reply};

/// Far longer than a scenario may take: what the stop waits for is seen by whether it ends.
const PATIENT: &str = "drain_timeout = \"10m\"\n h2c = true";

async fn world() -> World {
    World::build(Store::Memory)
        .top(PATIENT)
        .more("[limits]\nheader_timeout = \"9m\"\nbody_timeout = \"9m\"\n")
        .start()
        .await
}

/// Waits until the stop has begun everywhere: it stops listening at once.
async fn stopped_listening(world: &World) {
    let address = world.address();
    eventually("the end of listening", async || TcpStream::connect(address).await.is_err().then_some(())).await;
}

#[tokio::test]
async fn whoever_waits_for_another_process_is_told_when_this_one_ends() {
    let mut world = World::build(Store::Redis).proxies(2).top("drain_timeout = \"1s\"").start().await;
    let gate = Gate::new();
    world.upstream.next(reply(201).behind(&gate));
    let owner = world.begin_pay("k-1");
    world.upstream.reached(1).await;
    let waiter = Request::pay().key("k-1").begin(world.proxies[1].address);
    let waiting = async || world.proxies[1].metric("onceproxy_waiting", &[]).await;
    eventually("it to wait", async || (waiting().await == 1.0).then_some(())).await;
    world.proxies[1].terminate();
    waiter.answer().await.assert_problem(409, "request-in-progress");
    assert!(world.proxies[1].ended().await.success());
    assert!(!world.proxies[1].log().iter().any(|line| line.contains("left behind")));
    gate.open();
    owner.answer().await.assert_executed(201);
    assert_eq!(world.executions(), 1);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_requests_that_have_half_arrived() {
    let mut world = world().await;
    let whole = Request::pay().key("k-1").to_bytes();
    let (mut in_head, mut in_body) = (Connection::open(world.address()).await, Connection::open(world.address()).await);
    in_head.write(&whole[..40]).await;
    in_body.write(&whole[..whole.len() - 3]).await;
    let (mut h2, connection) = h2::client::handshake(TcpStream::connect(world.address()).await.unwrap()).await.unwrap();
    let connection = tokio::spawn(connection);
    let keyed = Head::post("http://shop.test/pay").header("idempotency-key", "k-2").body(()).unwrap();
    let (response, mut body) = h2.send_request(keyed, false).unwrap();
    body.send_data(Bytes::from_static(b"{"), false).unwrap();
    drop(h2);
    // An answer to another one, so that all of them have been read.
    world.pay("k-0").await.assert_executed(201);
    world.proxy().terminate();

    let refused = in_body.answer().await;
    refused.assert_problem(503, "overloaded");
    assert_eq!(
        (refused.retry().as_str(), refused.field("Connection")),
        ("same-key", Some("close")),
        "{}",
        refused.shown()
    );
    assert!(refused.text().contains("is stopping"), "{}", refused.shown());
    assert!(in_head.closes().await);
    let response = tokio::time::timeout(DEADLINE, response).await.expect("an answer in time").unwrap();
    assert_eq!(response.status(), 503);
    assert!(world.proxies[0].ended().await.success());
    assert_eq!(world.executions(), 1);
    connection.abort();
}

#[tokio::test]
async fn what_arrives_in_time_and_what_was_claimed_is_answered() {
    let mut world = world().await;
    let gate = Gate::new();
    world.upstream.next(reply(201).body("claimed").behind(&gate));
    let claimed = world.begin_pay("k-1");
    world.upstream.reached(1).await;
    let whole = Request::pay().key("k-2").to_bytes();
    let mut arriving = Connection::open(world.address()).await;
    arriving.write(&whole[..whole.len() - 3]).await;
    // Read before the stop: another connection's round trip.
    world.pay("k-0").await.assert_executed(201);
    world.proxy().terminate();
    stopped_listening(&world).await;
    arriving.write(&whole[whole.len() - 3..]).await;
    arriving.answer().await.assert_executed(201);
    assert!(!claimed.is_answered());
    gate.open();
    assert_eq!(claimed.answer().await.assert_executed(201).text(), "claimed");
    assert!(world.proxies[0].ended().await.success());
    assert_eq!(world.executions(), 3);
}
