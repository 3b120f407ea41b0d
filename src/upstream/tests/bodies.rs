//! Which bodies ended, and what becomes of their connection.

use super::*;

/// The response to one request, answered with these bytes and then closed.
async fn answered_and_closed(answer: &[u8]) -> (Peer, Pool, http::Response<ResponseBody>) {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let (response, (stream, _)) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(answer));
    drop(stream);
    (peer, pool, response.unwrap())
}

#[tokio::test]
async fn body_without_framing_ends_with_fin() {
    for version in ["1.1", "1.0"] {
        let answer = format!("HTTP/{version} 200 OK\r\n\r\nto the end");
        let (_peer, pool, response) = answered_and_closed(answer.as_bytes()).await;
        assert_eq!(text(response).await, "to the end");
        assert!(!pool.checkout().await.unwrap().is_reused());
    }
}

#[tokio::test]
async fn body_without_framing_does_not_end_with_a_reset() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let answer = b"HTTP/1.1 200 OK\r\n\r\nto the e";
    let (response, (stream, _)) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(answer));
    let mut body = response.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "to the e");
    reset(stream);
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn cut_bodies_are_errors() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nwhole\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\nwhole\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nwhole\r\n0\r\n\r\n",
    ] {
        let (_peer, _pool, response) = answered_and_closed(answer.as_bytes()).await;
        let ended = tokio::time::timeout(LONG, response.into_body().collect()).await.expect("it ends");
        assert!(ended.is_err(), "{answer:?} was taken for a whole response");
    }
}

#[tokio::test]
async fn trailers_pass_and_the_connection_stays() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n";
    let (response, (mut stream, _)) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(answer));
    let mut body = response.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ok");
    // A server may stop reading here.
    let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["x-sum"], "7");
    drop(body);

    let again = async {
        read_request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
    };
    let (response, ()) = tokio::join!(send(&pool, post("/", "")), again);
    assert_eq!(text(response.unwrap()).await, "ok");
}

/// Hyper's server asks for nothing more once a body says that it has ended.
#[tokio::test]
async fn reader_that_stops_at_the_end_gives_the_connection_back() {
    for answer in [OK, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"] {
        let peer = Peer::start().await;
        let pool = peer.pool();
        let (response, _stream) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(answer));
        let mut body = response.unwrap().into_body();
        while !http_body::Body::is_end_stream(&body) {
            body.frame().await.unwrap().unwrap();
        }
        drop(body);
        assert!(pool.checkout().await.unwrap().is_reused());
    }
}

#[tokio::test]
async fn large_bodies_pass_whole_in_both_directions() {
    const SIZE: usize = 3 << 20;
    let peer = Peer::start().await;
    let pool = peer.pool();
    let bytes: Bytes = (0..SIZE).map(|n| (n % 251) as u8).collect::<Vec<_>>().into();
    let request =
        http::Request::post("/").header("content-length", SIZE).body(RequestBody::full(bytes.clone())).unwrap();
    let serve = async {
        let mut stream = peer.accept().await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let mut body = vec![0; SIZE];
        stream.read_exact(&mut body).await.unwrap();
        stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n").as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        stream
    };
    let ask = async { send(&pool, request).await.unwrap().into_body().collect().await.unwrap().to_bytes() };
    let (_stream, received) = tokio::join!(serve, ask);
    assert!(received == bytes);
}

#[tokio::test]
async fn dropped_body_closes_the_connection() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let (response, (mut stream, _)) = tokio::join!(
        send(&pool, post("/", "")),
        peer.answer_one(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    );
    drop(response.unwrap());
    closed_by_us(&mut stream).await;
    exchange(&peer, &pool).await;
}

#[tokio::test]
async fn broken_body_closes_the_connection() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot a size\r\n";
    let (response, (mut stream, _)) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(answer));
    let mut body = response.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_err());
    closed_by_us(&mut stream).await;
}
