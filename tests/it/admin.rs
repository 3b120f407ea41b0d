//! The operators' listener of a real proxy: what it says of mistakes, and of the process itself.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::{Store, World, eventually, ms};

on_each_store! {
    async fn a_cursor_that_no_page_gave_out_is_a_mistake_of_the_call(store) {
        let world = World::new(store).await;
        let answer = world.proxy().admin("GET", "/records?cursor=zz.1.x", None).await;
        answer.assert_problem(400, "request-invalid");
        assert_eq!(world.proxy().metric("onceproxy_store_errors_total", &[]).await, 0.0);
    }
}

/// Whether the other side has not closed it.
fn is_open(connection: &TcpStream) -> bool {
    connection.try_read(&mut [0; 1]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[tokio::test]
async fn connections_that_say_nothing_keep_no_probe_waiting() {
    let world = World::new(Store::memory()).await;
    let mut silent = Vec::new();
    for _ in 0..700 {
        silent.push(TcpStream::connect(world.proxy().admin_address()).await.unwrap());
    }
    let probe = world.proxy().admin("GET", "/livez", None).await;
    assert_eq!(probe.status, 200);
    // It was not the deadline for their heads that made room.
    assert!(silent.iter().filter(|connection| is_open(connection)).count() > 256);
}

#[tokio::test]
async fn an_answer_that_nobody_takes_is_given_up() {
    let world = World::new(Store::memory()).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut unread = socket.connect(world.proxy().admin_address()).await.unwrap();
    let questions = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".repeat(2000);
    // More answers than the kernels of both sides hold.
    let asked = unread.write_all(questions.as_bytes());
    let _ = tokio::time::timeout(ms(500), asked).await;
    eventually("the connection to be cut", async || {
        let error = unread.take_error().unwrap();
        (error.is_some() || unread.write_all(b"\r\n").await.is_err()).then_some(())
    })
    .await;
    assert_eq!(world.proxy().admin("GET", "/livez", None).await.status, 200);
}
