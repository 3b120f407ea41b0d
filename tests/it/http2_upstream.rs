//! An upstream of HTTP/2: the promise is the same there.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Response, StatusCode};
use tokio::net::TcpListener;

use crate::support::relay::Relay;
use crate::support::{Connection, Request, Store, World, eventually};

/// How long a connection may be silent in the tests of pings.
const SILENCE: std::time::Duration = crate::support::ms(100);

/// What the upstream does with one request.
#[derive(Clone, Copy)]
enum Act {
    Create,
    Refuse,
    /// After the first of the body.
    RefuseLate,
    Cancel,
    /// Half of a body, and then a reset that says no error.
    Cut,
    /// Says something before the answer.
    Hint,
    /// A body of 64 MiB.
    Big,
    /// An answer that takes ten times as long as a connection may be silent.
    Late,
}

/// An upstream that does these in order, then creates; and how many requests it was asked.
async fn upstream(acts: &[Act]) -> (String, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(0));
    let (acts, count) = (acts.to_vec(), asked.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acts, count) = (acts.clone(), count.clone());
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    let number = {
                        let mut count = count.lock().unwrap();
                        *count += 1;
                        *count
                    };
                    act(acts.get(number - 1).copied().unwrap_or(Act::Create), request.into_body(), respond, number);
                }
            });
        }
    });
    (url, asked)
}

fn act(act: Act, mut body: RecvStream, mut respond: SendResponse<Bytes>, number: usize) {
    let head = Response::builder().status(StatusCode::CREATED).body(()).unwrap();
    match act {
        Act::Refuse => respond.send_reset(Reason::REFUSED_STREAM),
        Act::RefuseLate => {
            tokio::spawn(async move {
                body.data().await;
                respond.send_reset(Reason::REFUSED_STREAM);
            });
        }
        Act::Cancel => respond.send_reset(Reason::CANCEL),
        Act::Create => {
            let mut body = respond.send_response(head, false).unwrap();
            body.send_data(format!("ch_{number}").into(), true).unwrap();
        }
        Act::Hint => {
            let hints = Response::builder().status(StatusCode::EARLY_HINTS).header("link", "</a>").body(()).unwrap();
            respond.send_informational(hints).unwrap();
            self::act(Act::Create, body, respond, number);
        }
        Act::Big => {
            let mut body = respond.send_response(head, false).unwrap();
            body.send_data(vec![0; 64 << 20].into(), true).unwrap();
        }
        Act::Late => {
            tokio::spawn(async move {
                tokio::time::sleep(10 * SILENCE).await;
                let mut body = respond.send_response(head, false).unwrap();
                body.send_data(format!("ch_{number}").into(), true).unwrap();
            });
        }
        Act::Cut => {
            let mut body = respond.send_response(head, false).unwrap();
            body.send_data(Bytes::from_static(b"ch_"), false).unwrap();
            tokio::spawn(async move {
                tokio::time::sleep(crate::support::ms(50)).await;
                body.send_reset(Reason::NO_ERROR);
            });
        }
    }
}

async fn world(acts: &[Act]) -> (World, Arc<Mutex<usize>>) {
    let (url, asked) = upstream(acts).await;
    let route = format!("upstream = \"{url}\"\n upstream_protocol = \"h2\"");
    (World::with(Store::memory(), &route).await, asked)
}

#[tokio::test]
async fn a_keyed_request_is_executed_once_and_replayed() {
    let (world, asked) = world(&[]).await;
    let first = world.pay("k").await;
    first.assert_executed(201);
    assert_eq!(first.text(), "ch_1");
    assert_eq!(world.pay("k").await.assert_replay(201).text(), "ch_1");
    let plain = world.send(&Request::new("GET", "/x")).await;
    assert_eq!((plain.status, plain.text().as_str(), plain.complete), (201, "ch_2", true));
    assert_eq!(*asked.lock().unwrap(), 2);
}

#[tokio::test]
async fn a_refused_stream_is_sent_once_more_and_no_more() {
    let (world, asked) = world(&[Act::Refuse, Act::Create, Act::Refuse, Act::Refuse]).await;
    world.pay("k").await.assert_executed(201);
    assert_eq!(*asked.lock().unwrap(), 2);
    assert_eq!(world.proxy().metric("onceproxy_upstream_resends_total", &[("route", "pay")]).await, 1.0);
    world.pay("l").await.assert_problem(502, "upstream-unreachable");
    // Nothing ran, so the key is free.
    world.pay("l").await.assert_executed(201);
    assert_eq!(*asked.lock().unwrap(), 5);
}

#[tokio::test]
async fn a_refused_plain_request_is_sent_once_more_if_its_body_is_still_there() {
    let acts = [
        [Act::Refuse, Act::Create, Act::Refuse, Act::Create],
        [Act::RefuseLate, Act::Create, Act::RefuseLate, Act::Refuse],
        [Act::Refuse, Act::Create, Act::Create, Act::Create],
    ]
    .concat();
    let (world, asked) = world(&acts).await;
    assert_eq!(world.send(&Request::new("GET", "/x")).await.status, 201);
    assert_eq!(*asked.lock().unwrap(), 2);
    // A body that comes after the refusal.
    let mut connection = Connection::open(world.address()).await;
    connection.write(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n").await;
    eventually("the second sending", async || (*asked.lock().unwrap() == 4).then_some(())).await;
    connection.write(b"body").await;
    assert_eq!(connection.answer().await.status, 201);
    // One that came whole, with its head, however late the refusal.
    assert_eq!(world.send(&Request::new("POST", "/x").body("body")).await.status, 201);
    assert_eq!(*asked.lock().unwrap(), 6);
    assert_eq!(world.proxy().metric("onceproxy_upstream_resends_total", &[("route", "pay")]).await, 3.0);
    // One of which a part has gone through is gone; and what is refused twice is not sent a third time.
    let mut connection = Connection::open(world.address()).await;
    connection.write(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n").await;
    eventually("the sending", async || (*asked.lock().unwrap() == 7).then_some(())).await;
    connection.write(b"body").await;
    connection.answer().await.assert_problem(502, "upstream-unreachable");
    assert_eq!(*asked.lock().unwrap(), 7);
    world.send(&Request::new("GET", "/x")).await.assert_problem(502, "upstream-unreachable");
    assert_eq!(*asked.lock().unwrap(), 9);
}

#[tokio::test]
async fn a_cancelled_stream_and_a_cut_body_are_held_as_unknown() {
    for fault in [Act::Cancel, Act::Cut] {
        let (world, asked) = world(&[fault]).await;
        world.pay("k").await.assert_problem(502, "outcome-unknown");
        world.pay("k").await.assert_unknown();
        assert_eq!(*asked.lock().unwrap(), 1);
    }
}

#[tokio::test]
async fn a_connection_that_leads_nowhere_costs_the_requests_that_were_sent_on_it_and_no_more() {
    let (url, asked) = upstream(&[]).await;
    let relay = Relay::before(url.strip_prefix("http://").unwrap().parse().unwrap());
    let route = format!(
        "upstream = \"http://{}\"\n upstream_protocol = \"h2\"\n h2_ping_after = \"100ms\"\n h2_ping_timeout = \"100ms\"",
        relay.address
    );
    // Each core has connections of its own.
    let world = World::build(Store::memory()).top("threads = 1").route(&route).start().await;
    world.pay("k-0").await.assert_executed(201);
    relay.hang();
    // Within the patience of the caller, which is seconds: the ping found it out.
    let lost = world.pay("k-1").await;
    assert_eq!(lost.assert_problem(502, "outcome-unknown").json()["reason"], "reset");
    relay.mend();
    for number in 2..10 {
        world.pay(&format!("k-{number}")).await.assert_executed(201);
    }
    world.pay("k-1").await.assert_unknown();
    assert!(*asked.lock().unwrap() <= 10, "each once");
}

#[tokio::test]
async fn an_upstream_that_is_slow_and_there_keeps_its_connection() {
    let (url, asked) = upstream(&[Act::Late, Act::Late]).await;
    let route = format!(
        "upstream = \"{url}\"\n upstream_protocol = \"h2\"\n h2_ping_after = \"100ms\"\n h2_ping_timeout = \"5s\""
    );
    let world = World::with(Store::memory(), &route).await;
    for key in ["k-1", "k-2"] {
        world.pay(key).await.assert_executed(201);
    }
    assert_eq!(*asked.lock().unwrap(), 2);
}

#[tokio::test]
async fn downloads_that_nobody_reads_hold_up_no_keyed_request() {
    const DOWNLOADS: usize = 16;
    let (url, asked) = upstream(&[Act::Big; DOWNLOADS]).await;
    let route = format!("upstream = \"{url}\"\n upstream_protocol = \"h2\"");
    let world = World::build(Store::memory()).top("threads = 1").route(&route).start().await;
    let mut unread = Vec::new();
    for number in 1..=DOWNLOADS {
        let mut connection = Connection::open(world.address()).await;
        connection.write(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n").await;
        eventually("the download", async || (*asked.lock().unwrap() == number).then_some(())).await;
        unread.push(connection);
    }
    // It takes a while until the sockets on the way are full, and the windows after them.
    for number in 0..600 {
        world.pay(&format!("k-{number}")).await.assert_executed(201);
    }
}

#[tokio::test]
async fn interim_answers_reach_the_client() {
    let (world, _asked) = world(&[Act::Hint, Act::Hint]).await;
    for request in [Request::pay().key("k"), Request::new("GET", "/x")] {
        let mut connection = Connection::open(world.address()).await;
        connection.send(&request).await;
        let early = connection.interim().await;
        assert_eq!((early.status, early.field("link")), (103, Some("</a>")), "{}", early.shown());
        assert_eq!(connection.interim().await.status, 201);
    }
}
