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
async fn connections_over_the_limit_wait_in_the_backlog() {
    let world = World::with(Limits { connections: 1, ..limits() }, 1);
    let mut first = world.connect().await;
    assert_eq!(first.get("/1").await, "/1 ");
    let mut second = world.connect().await;
    second.send(get("/2")).await;
    assert_eq!(first.get("/1").await, "/1 ");
    assert_eq!(world.metrics.listeners().connections.get(), 1);
    assert_eq!(world.served(), 2);
    drop(first);
    assert_eq!(second.answer().await, "/2 ");
    assert_eq!(world.metrics.listeners().connections.get(), 1);
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
