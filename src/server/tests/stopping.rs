//! What a stop does to connections: nothing that has begun is lost, nothing that is idle is waited for.

use super::*;

#[tokio::test]
async fn idle_connections_are_closed_and_running_requests_finish() {
    // No deadline helps out.
    let long = Duration::from_secs(1000);
    let world = World::with(Limits { header_timeout: long, idle_timeout: long, ..limits() }, 1);
    let mut idle = world.connect().await;
    assert_eq!(idle.get("/").await, "/ ");
    let mut running = world.connect().await;
    running.send(get("/wait")).await;
    let mut streaming = world.connect().await;
    streaming.send(get("/stream")).await;
    streaming.until("first \r\n").await;

    world.stop.give();
    assert_eq!(idle.rest().await, "");
    // The socket is closed once the acceptor has ended, which the idle connection's end does not wait for.
    let refused = async { while TcpStream::connect(world.address).await.is_ok() {} };
    patiently(refused).await;
    world.script.go.give();
    let answer = running.rest().await;
    assert!(answer.contains("connection: close\r\n") && answer.ends_with("/wait "), "{answer:?}");
    assert!(streaming.rest().await.ends_with("second\r\n0\r\n\r\n"));
    world.ended().await;
}

#[tokio::test]
async fn a_request_that_has_begun_to_arrive_is_served() {
    let world = World::start();
    let mut client = world.connect().await;
    assert_eq!(client.get("/").await, "/ ");
    let mut idle = world.connect().await;
    assert_eq!(idle.get("/").await, "/ ");
    client.send("GET /late HTTP/1.1\r\n").await;
    // Another connection's round trip, so that the server has read the half.
    assert_eq!(idle.get("/").await, "/ ");
    tokio::time::pause();
    world.stop.give();
    // The clock stands still while there is something to do, so this is no time but many turns of the server.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    client.send("Host: a\r\n\r\n").await;
    tokio::time::resume();
    assert_eq!(idle.rest().await, "");
    let answer = client.rest().await;
    assert!(answer.contains("connection: close\r\n") && answer.ends_with("/late "), "{answer:?}");
    world.ended().await;
}

#[tokio::test]
async fn a_head_that_does_not_go_on_is_not_waited_for() {
    let long = Duration::from_secs(1000);
    let world = World::with(Limits { header_timeout: long, idle_timeout: long, ..limits() }, 1);
    let mut first = world.connect().await;
    first.send("GET /late HTTP/1.1\r\n").await;
    let mut later = world.connect().await;
    assert_eq!(later.get("/").await, "/ ");
    later.send("GET /late HTT").await;
    assert_eq!(world.connect().await.get("/").await, "/ ");
    world.stop.give();
    assert_eq!(first.rest().await, "");
    assert_eq!(later.rest().await, "");
    world.ended().await;
}

#[tokio::test]
async fn connections_in_the_backlog_are_served() {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = Client(TcpStream::connect(listener.address()).await.unwrap());
        client.send(get("/waiting")).await;
        clients.push(client);
    }
    let world = World::on(listener, limits(), 2);
    world.stop.give();
    for mut client in clients {
        assert!(client.rest().await.ends_with("/waiting "));
    }
    world.ended().await;
}

#[tokio::test]
async fn a_request_that_was_sent_before_the_stop_is_served() {
    let world = World::start();
    let mut client = world.connect().await;
    assert_eq!(client.get("/").await, "/ ");
    client.send(get("/sent")).await;
    world.stop.give();
    assert!(client.rest().await.ends_with("/sent "));
    world.ended().await;
}

#[tokio::test]
async fn a_new_connection_has_a_moment_for_its_first_request() {
    let world = World::start();
    let mut client = world.connect().await;
    let mut idle = world.connect().await;
    assert_eq!(idle.get("/").await, "/ ");
    tokio::time::pause();
    world.stop.give();
    // The clock stands still while there is something to do, so this is no time but many turns of the server.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    client.send(get("/first")).await;
    tokio::time::resume();
    assert_eq!(idle.rest().await, "");
    assert!(client.rest().await.ends_with("/first "));
    world.ended().await;
}

#[tokio::test]
async fn a_connection_without_a_request_does_not_hold_up_the_stop() {
    let world = World::start();
    let mut silent = world.connect().await;
    assert_eq!(world.connect().await.get("/").await, "/ ");
    world.stop.give();
    assert_eq!(silent.rest().await, "");
    world.ended().await;
}

#[tokio::test]
async fn an_answer_that_is_on_its_way_arrives_whole() {
    let world = World::start();
    let mut client = world.connect().await;
    client.send(get("/big")).await;
    client.until("\r\n\r\n").await;
    let mut idle = world.connect().await;
    assert_eq!(idle.get("/").await, "/ ");
    world.stop.give();
    assert_eq!(idle.rest().await, "");
    assert_eq!(client.rest().await.len(), BIG);
    world.ended().await;
}
