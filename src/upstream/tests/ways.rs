//! Other ways to the upstream than its address: a socket file, and an HTTP proxy. What fails there was never sent.

use tokio::net::UnixListener;

use super::*;

/// An upstream behind a socket file, without the file's listener.
fn at(path: &std::path::Path) -> config::Upstream {
    let socket = Some(path.to_owned());
    config::Upstream { host: "localhost".into(), port: 80, socket, ..config::Upstream::default() }
}

#[tokio::test]
async fn socket_file_is_spoken_to_like_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let metrics = Metrics::new().route("r");
    let pool = Pool::new(&at(&path), LONG, LONG, &metrics).unwrap();
    let serve = async {
        let mut stream = listener.accept().await.unwrap().0;
        let request = read_request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
        (stream, request)
    };
    let (response, (mut stream, request)) = tokio::join!(send(&pool, post("/a/../b", "x")), serve);
    assert_eq!(text(response.unwrap()).await, "ok");
    assert!(request.starts_with(b"POST /a/../b HTTP/1.1\r\n"), "{:?}", request.escape_ascii().to_string());

    // Kept, and used again.
    let connection = pool.checkout().await.unwrap();
    assert!(connection.is_reused());
    let again = async {
        read_request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
    };
    let (response, ()) = tokio::join!(connection.send(post("/", "x")), again);
    assert_eq!(text(response.unwrap()).await, "ok");

    // Closed while idle: the request comes back, unsent.
    let connection = pool.checkout().await.unwrap();
    drop(stream);
    let error = connection.send(post("/", "x")).await.unwrap_err();
    assert!(matches!(error, SendError::NotSent { request: Some(_), .. }), "{error:?}");
}

#[tokio::test]
async fn missing_socket_file_is_not_sent_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let metrics = Metrics::new().route("r");
    let pool = Pool::new(&at(&path), LONG, LONG, &metrics).unwrap();
    let error = pool.checkout().await.unwrap_err();
    assert!(matches!(&error, ConnectError::Socket { path: tried, .. } if *tried == path), "{error:?}");
    assert!(!error.may_have_run());
    assert_eq!(metrics.upstream_sends.get(), 0);
}

/// An upstream that can be had through this peer alone: its name does not resolve here.
fn behind(proxy: &Peer) -> config::Upstream {
    let proxy = config::HttpProxy { host: proxy.address.ip().to_string(), port: proxy.address.port() };
    config::Upstream { host: "far.invalid".into(), port: 80, proxy: Some(proxy), ..config::Upstream::default() }
}

fn pool_behind(proxy: &Peer, connect_timeout: Duration) -> Pool {
    Pool::new(&behind(proxy), connect_timeout, LONG, &proxy.metrics).unwrap()
}

#[tokio::test]
async fn proxy_is_asked_to_connect_and_then_carries_the_same_bytes() {
    let proxy = Peer::start().await;
    let pool = pool_behind(&proxy, LONG);
    let serve = async {
        let mut stream = proxy.accept().await;
        let asked = read_request(&mut stream).await;
        // An answer in pieces, behind one that is not final.
        for piece in
            [&b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 20"[..], b"0 Connection established\r\nVia: p\r\n", b"\r\n"]
        {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        let request = read_request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
        (asked, request, stream)
    };
    let (response, (asked, request, _stream)) = tokio::join!(send(&pool, post("/p?q", "x")), serve);
    assert_eq!(text(response.unwrap()).await, "ok");
    assert_eq!(asked, b"CONNECT far.invalid:80 HTTP/1.1\r\nHost: far.invalid:80\r\n\r\n");
    assert!(request.starts_with(b"POST /p?q HTTP/1.1\r\n"), "{:?}", request.escape_ascii().to_string());
    assert!(pool.checkout().await.unwrap().is_reused());
    assert_eq!(proxy.metrics.upstream_sends.get(), 1);
}

#[tokio::test]
async fn proxy_that_does_not_connect_is_not_sent_to() {
    let proxy = Peer::start().await;
    let pool = pool_behind(&proxy, LONG);
    let large = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 20_000]].concat();
    for (answer, refused) in [
        (&b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 2\r\n\r\nno"[..], Some(407)),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", Some(502)),
        (b"HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n", Some(301)),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nVia:", None),
        (b"HTTP/2 200\r\n\r\n", None),
        (b"SSH-2.0-x\r\n\r\n", None),
        (b"HTTP/1.1 999 X\r\n\r\n", None),
        (&large, None),
        (b"", None),
    ] {
        let serve = async {
            let mut stream = proxy.accept().await;
            read_request(&mut stream).await;
            let _ = stream.write_all(answer).await;
        };
        let (connected, ()) = tokio::join!(pool.checkout(), serve);
        let error = connected.unwrap_err();
        let shown = answer.escape_ascii().to_string();
        match (&error, refused) {
            (ConnectError::ProxyRefused { status, .. }, Some(refused)) => assert_eq!(*status, refused, "{shown}"),
            (ConnectError::ProxyBroke { .. }, None) => {}
            _ => panic!("{error:?} of {shown}"),
        }
        assert!(!error.may_have_run());
    }
    assert_eq!(proxy.metrics.upstream_sends.get(), 0);
}

#[tokio::test]
async fn proxy_that_is_silent_costs_no_more_than_the_connect_timeout() {
    let proxy = Peer::start().await;
    let pool = pool_behind(&proxy, Duration::from_millis(50));
    let error = pool.checkout().await.unwrap_err();
    assert!(matches!(&error, ConnectError::TimedOut { host, .. } if host == "far.invalid"), "{error:?}");
    assert_eq!(proxy.metrics.upstream_sends.get(), 0);
}
