//! Failures at a chosen byte: which were certainly not sent, and which are doubt. (Cases B5, B6 and their kind.)

use super::*;

/// What the proxy wants to know: not sent and handed back, not sent, or doubt.
#[track_caller]
fn not_sent(sent: Result<http::Response<ResponseBody>, SendError>) -> Option<Box<http::Request<RequestBody>>> {
    let error = sent.expect_err("it fails");
    assert!(!error.may_have_run(), "{error:?}");
    assert!(std::error::Error::source(&error).is_some());
    match error {
        SendError::NotSent { request, .. } => request,
        SendError::SpeaksTls { .. } | SendError::MayHaveRun { .. } => unreachable!(),
    }
}

#[track_caller]
fn doubt(sent: Result<http::Response<ResponseBody>, SendError>) {
    let error = sent.expect_err("it fails");
    assert!(error.may_have_run(), "{error:?}");
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn refused_is_not_sent() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    drop(peer.listener);
    let error = pool.checkout().await.unwrap_err();
    assert!(
        matches!(&error, ConnectError::Connect { source, .. }
        if source.kind() == std::io::ErrorKind::ConnectionRefused),
        "{error:?}"
    );
    assert!(!error.may_have_run());
    assert_eq!(peer.metrics.upstream_sends.get(), 0);
}

#[tokio::test]
async fn unknown_name_is_not_sent() {
    let upstream =
        config::Upstream { tls: false, host: "no-such-name.invalid".into(), port: 80, ..config::Upstream::default() };
    let pool = Pool::new(&upstream, LONG, LONG, &Metrics::new().route("r")).unwrap();
    let error = pool.checkout().await.unwrap_err();
    assert!(matches!(error, ConnectError::Resolve { .. }), "{error:?}");
}

#[tokio::test]
async fn name_is_resolved() {
    let peer = Peer::start().await;
    let upstream = config::Upstream { host: "localhost".into(), ..plain(peer.address) };
    let pool = Pool::new(&upstream, LONG, LONG, &peer.metrics).unwrap();
    exchange(&peer, &pool).await;
}

#[tokio::test]
async fn accepted_and_closed_at_once_is_handed_back() {
    let peer = Peer::start().await;
    let connection = peer.pool().connect().await.unwrap();
    drop(peer.accept().await);
    let request = not_sent(connection.send(post("/pay", "body")).await).expect("it is handed back");
    assert_eq!(request.uri(), "/pay");
    assert_eq!(request.into_body().collect().await.unwrap().to_bytes(), "body");
}

#[tokio::test]
async fn accepted_and_reset_at_once_is_handed_back() {
    let peer = Peer::start().await;
    let connection = peer.pool().connect().await.unwrap();
    reset(peer.accept().await);
    assert!(not_sent(connection.send(post("/", "")).await).is_some());
}

/// The peer closes while this runtime cannot see it: the FIN is in the kernel, and no event was polled. Without the
/// look before writing the request would be written, and be in doubt.
#[tokio::test]
async fn close_that_the_runtime_has_not_seen_is_handed_back() {
    for by_reset in [false, true] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let metrics = Metrics::new().route("r");
        let pool = Pool::new(&plain(listener.local_addr().unwrap()), LONG, LONG, &metrics).unwrap();
        let (close, closing) = std::sync::mpsc::channel();
        let (closed, wait_closed) = std::sync::mpsc::channel();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            read_blocking(&mut stream);
            std::io::Write::write_all(&mut stream, OK).unwrap();
            closing.recv().unwrap();
            if by_reset {
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
            drop(stream);
            closed.send(()).unwrap();
        });
        assert_eq!(text(send(&pool, post("/", "")).await.unwrap()).await, "ok");
        let connection = pool.checkout().await.unwrap();
        close.send(()).unwrap();
        // Blocks this thread, and so the runtime.
        wait_closed.recv().unwrap();
        assert!(not_sent(connection.send(post("/", "")).await).is_some());
        peer.join().unwrap();
    }
}

/// Reads a request without a body.
fn read_blocking(stream: &mut std::net::TcpStream) {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(b"\r\n\r\n") {
        std::io::Read::read_exact(stream, &mut byte).unwrap();
        read.push(byte[0]);
    }
}

#[tokio::test]
async fn read_and_closed_without_an_answer_is_doubt() {
    for reused in [false, true] {
        for by_reset in [false, true] {
            for answer in ["", "HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 20"] {
                let peer = Peer::start().await;
                let pool = peer.pool();
                let mut stream = if reused { Some(exchange(&peer, &pool).await) } else { None };
                let connection = pool.checkout().await.unwrap();
                assert_eq!(connection.is_reused(), reused);
                let serve = async {
                    let mut stream = match stream.take() {
                        Some(stream) => stream,
                        None => peer.accept().await,
                    };
                    assert!(read_request(&mut stream).await.ends_with(b"body"));
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    if by_reset { reset(stream) } else { drop(stream) }
                };
                let (sent, ()) = tokio::join!(connection.send(post("/", "body")), serve);
                doubt(sent);
                // Executed once: no other connection came, and one send was counted.
                assert!(!peer.has_another().await);
                assert_eq!(peer.metrics.upstream_sends.get(), if reused { 2 } else { 1 });
            }
        }
    }
}

#[tokio::test]
async fn upload_cut_off_is_doubt() {
    let peer = Peer::start().await;
    let connection = peer.pool().checkout().await.unwrap();
    let request = http::Request::post("/").body(RequestBody::full(vec![0; 8 << 20].into())).unwrap();
    let serve = async {
        let mut stream = peer.accept().await;
        stream.read_exact(&mut [0; 100]).await.unwrap();
        reset(stream);
    };
    let (sent, ()) = tokio::join!(connection.send(request), serve);
    doubt(sent);
}

/// Hyper holds the head back until it knows of a body, and fails with the head in its buffer: only the count tells.
#[tokio::test]
async fn body_that_fails_before_its_first_byte_is_not_sent() {
    struct Fails;
    impl http_body::Body for Fails {
        type Data = Bytes;
        type Error = std::io::Error;
        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Ready(Some(Err(std::io::ErrorKind::Other.into())))
        }
    }
    let peer = Peer::start().await;
    let connection = peer.pool().checkout().await.unwrap();
    let mut stream = peer.accept().await;
    let sent = connection.send(http::Request::post("/").body(RequestBody::stream(Fails)).unwrap()).await;
    assert!(not_sent(sent).is_none(), "hyper took it apart");
    let mut arrived = Vec::new();
    let _ = stream.read_to_end(&mut arrived).await;
    assert_eq!(arrived, b"");
}

#[tokio::test]
async fn garbage_for_an_answer_is_doubt() {
    for answer in ["\x16\x03\x01 not http\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n", "ok\r\n\r\n", "HTTP/1.1 099 x\r\n\r\n"] {
        let peer = Peer::start().await;
        let pool = peer.pool();
        let (sent, _) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(answer.as_bytes()));
        doubt(sent);
    }
}

/// Bytes that come unasked would be taken for the answer to the next request.
#[tokio::test]
async fn unasked_answer_is_never_given_to_a_later_request() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let answers = [OK, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong"].concat();
    let (response, (_stream, _)) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(&answers));
    assert_eq!(text(response.unwrap()).await, "ok");
    exchange(&peer, &pool).await;
}

#[tokio::test]
async fn dropped_send_closes_the_connection() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let connection = pool.checkout().await.unwrap();
    let mut stream = peer.accept().await;
    let sending = tokio::spawn(connection.send(post("/", "")));
    read_request(&mut stream).await;
    sending.abort();
    closed_by_us(&mut stream).await;
    exchange(&peer, &pool).await;
}
