//! Who gets which connection, and how many there may be.

use super::*;

#[tokio::test]
async fn a_connection_goes_to_the_core_with_the_fewest() {
    let world = World::with(limits(), 2);
    let mut clients = Vec::new();
    for number in 0..4 {
        let mut client = world.connect().await;
        assert_eq!(client.get("/core").await, (number % 2).to_string());
        clients.push(client);
    }
    // Two connections of core 1 end. It gets the next two, where turns would have gone on with core 0.
    for index in [3, 1] {
        let mut leaving = clients.remove(index);
        leaving.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        leaving.rest().await;
    }
    for _ in 0..2 {
        let mut client = world.connect().await;
        assert_eq!(client.get("/core").await, "1");
        clients.push(client);
    }
}

#[tokio::test]
async fn at_the_limit_the_longest_idle_connection_makes_room() {
    let world = World::with(Limits { connections: 2, ..limits() }, 1);
    let (mut first, mut second) = (world.connect().await, world.connect().await);
    assert_eq!(first.get("/1").await, "/1 ");
    assert_eq!(second.get("/2").await, "/2 ");
    // The clock of the room counts milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(first.get("/3").await, "/3 ");
    let mut third = world.connect().await;
    assert_eq!(third.get("/4").await, "/4 ");
    assert_eq!(second.rest().await, "", "it was idle for longer than the first");
    assert_eq!(first.get("/5").await, "/5 ");
    assert_eq!(world.metrics.listeners().connections.get(), 2);
}

#[tokio::test]
async fn while_none_is_idle_connections_over_the_limit_wait() {
    let world = World::with(Limits { connections: 1, ..limits() }, 1);
    let mut first = world.connect().await;
    first.send("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n").await;
    patiently(async {
        while world.served() < 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut second = world.connect().await;
    second.send(get("/2")).await;
    let mut third = world.connect().await;
    third.send(get("/3")).await;
    assert_eq!(world.metrics.listeners().connections.get(), 1);
    first.send("x").await;
    assert!(first.rest().await.contains("/slow"), "it is answered before it makes room");
    assert_eq!(second.answer().await, "/2 ");
    assert_eq!(third.answer().await, "/3 ");
}

#[tokio::test]
async fn a_core_that_is_gone_gets_no_more_connections() {
    let world = World::with(limits(), 2);
    world.serve[0].abort();
    // The first may be dealt to it and is closed then.
    world.connect().await.0.read_to_end(&mut Vec::new()).await.unwrap();
    for _ in 0..3 {
        assert_eq!(world.connect().await.get("/core").await, "1");
    }
}

#[tokio::test]
async fn without_any_core_accepting_ends_and_says_so() {
    let world = World::with(limits(), 1);
    world.serve[0].abort();
    world.connect().await.0.read_to_end(&mut Vec::new()).await.unwrap();
    assert!(patiently(world.accept).await.unwrap().unwrap_err().to_string().contains("core"));
}
