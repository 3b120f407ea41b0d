//! Answers that did not need the request's body, and the bodies that are left.

use super::*;

#[tokio::test]
async fn an_answer_before_the_end_of_a_large_body_arrives() {
    let world = World::start();
    let client = world.connect().await;
    let (mut read, mut write) = client.0.into_split();
    write.write_all(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 16777216\r\n\r\n").await.unwrap();
    // A client that writes all it has before it reads.
    let line = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n0123456789012345678901234567\r\n".as_bytes();
    let body = line.repeat(16_777_216 / line.len() + 1);
    patiently(write.write_all(&body[..16_777_216])).await.unwrap();
    write.shutdown().await.unwrap();
    let mut answer = String::new();
    patiently(read.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.ends_with("\r\n\r\nno"), "{answer:?}");
    assert!(answer.contains("connection: close\r\n"), "{answer:?}");
    assert_eq!(world.served(), 1);
}

#[tokio::test]
async fn a_small_body_that_nobody_read_is_not_the_next_request() {
    let world = World::start();
    let mut client = world.connect().await;
    let body = get("/smuggled");
    let head = format!("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
    client.send(format!("{head}{body}{}", get("/next"))).await;
    assert_eq!(client.answer().await, "no");
    assert_eq!(client.answer().await, "/next ");
    assert_eq!(world.served(), 2);
}

#[tokio::test]
async fn a_client_that_waits_for_100_gets_it_when_its_body_is_wanted() {
    let world = World::start();
    let head = |path| format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    let mut client = world.connect().await;
    client.send(head("/")).await;
    assert_eq!(client.until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("abc").await;
    assert_eq!(client.answer().await, "/ abc");

    client.send(head("/early")).await;
    let answer = client.until("no").await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("connection: close\r\n"), "{answer:?}");
    client.0.shutdown().await.unwrap();
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_client_that_goes_on_sending_is_not_read_for_ever() {
    let world = World::start();
    let client = world.connect().await;
    let (mut read, mut write) = client.0.into_split();
    write.write_all(b"POST /early HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
    // Never closes; writing fails once the server has.
    let block = [b'x'; 64 * 1024];
    let sending = async { while write.write_all(&block).await.is_ok() {} };
    patiently(sending).await;
    let mut answer = Vec::new();
    let _ = patiently(read.read_to_end(&mut answer)).await;
    assert_eq!(world.served(), 1);
}

#[tokio::test]
async fn a_service_that_panics_costs_one_connection() {
    let world = World::start();
    let mut bystander = world.connect().await;
    assert_eq!(bystander.get("/").await, "/ ");
    let mut client = world.connect().await;
    client.send(get("/panic")).await;
    assert_eq!(client.rest().await, "");
    assert_eq!(bystander.get("/").await, "/ ");
    assert_eq!(world.connect().await.get("/").await, "/ ");
}
