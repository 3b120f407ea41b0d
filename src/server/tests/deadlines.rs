//! How long a client may take.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_at_the_header_timeout() {
    let world = World::with(Limits { idle_timeout: 1000 * SECOND, ..limits() }, 1);
    let mut client = world.connect().await;
    pass(9 * SECOND).await;
    assert_eq!(client.get("/").await, "/ ");
    let mut client = world.connect().await;
    pass(11 * SECOND).await;
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_head_that_trickles_in_is_cut_at_the_header_timeout() {
    let world = World::with(Limits { idle_timeout: 1000 * SECOND, ..limits() }, 1);
    let mut client = world.connect().await;
    assert_eq!(client.get("/").await, "/ ");
    // The connection was idle for longer than a head may take. The head's time begins with its first byte.
    pass(100 * SECOND).await;
    let request = get("/slow");
    let (early, late) = request.as_bytes().split_at(9);
    for byte in early {
        client.send([*byte]).await;
        pass(SECOND).await;
    }
    client.send(late).await;
    assert_eq!(client.answer().await, "/slow ");

    for byte in &request.as_bytes()[..12] {
        // It may be closed by now.
        let _ = client.0.write_all(&[*byte]).await;
        pass(SECOND).await;
    }
    let mut rest = Vec::new();
    let _ = patiently(client.0.read_to_end(&mut rest)).await;
    assert!(rest.is_empty());
    assert_eq!(world.served(), 2);
}

#[tokio::test]
async fn an_idle_connection_is_closed_at_the_idle_timeout() {
    let world = World::start();
    let mut client = world.connect().await;
    for _ in 0..3 {
        assert_eq!(client.get("/").await, "/ ");
        pass(59 * SECOND).await;
    }
    assert_eq!(client.get("/").await, "/ ");
    pass(61 * SECOND).await;
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn neither_a_slow_body_nor_a_slow_answer_is_cut() {
    let world = World::start();
    let mut client = world.connect().await;
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n").await;
    for byte in b"abc" {
        pass(100 * SECOND).await;
        client.send([*byte]).await;
    }
    assert_eq!(client.answer().await, "/ abc");
    client.send(get("/wait")).await;
    pass(1000 * SECOND).await;
    world.script.go.give();
    assert_eq!(client.answer().await, "/wait ");
    // Its time counts from the answer's end, however long the answer took.
    pass(59 * SECOND).await;
    assert_eq!(client.get("/").await, "/ ");
}

#[tokio::test]
async fn a_client_that_does_not_take_its_answer_is_cut() {
    for path in ["/big", "/long"] {
        let world = World::start();
        let mut client = world.connect().await;
        client.send(get(path)).await;
        client.until("\r\n\r\n").await;
        let mut part = vec![0; BIG / 4];
        for _ in 0..2 {
            pass(59 * SECOND).await;
            patiently(client.0.read_exact(&mut part)).await.unwrap();
        }
        // More than once: the kernel may take another piece after the first.
        for _ in 0..10 {
            pass(61 * SECOND).await;
        }
        let mut rest = Vec::new();
        let _ = patiently(client.0.read_to_end(&mut rest)).await;
        assert!(rest.len() < BIG / 2, "{path}: it got everything");
    }
}
