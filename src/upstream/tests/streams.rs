//! HTTP/2: what is sent, what is shared, and which ends prove that nothing ran.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;

/// A request with its body, the connection that it came by (from 1), and what answers it.
type Arrived = (usize, Request<Bytes>, SendResponse<Bytes>);

/// An upstream that speaks HTTP/2 and leaves every answer to the test.
struct H2Peer {
    address: SocketAddr,
    metrics: RouteMetrics,
    connections: Arc<AtomicUsize>,
    arrived: mpsc::UnboundedReceiver<Arrived>,
    task: JoinHandle<()>,
}

impl Drop for H2Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl H2Peer {
    async fn start(streams: u32) -> H2Peer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::default());
        let (sender, arrived) = mpsc::unbounded_channel();
        let task = tokio::spawn({
            let connections = connections.clone();
            async move {
                let mut open = tokio::task::JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let number = 1 + connections.fetch_add(1, Ordering::Relaxed);
                    open.spawn(serve(stream, streams, number, sender.clone()));
                }
            }
        });
        H2Peer { address, metrics: Metrics::new().route("r"), connections, arrived, task }
    }

    fn upstream(&self) -> config::Upstream {
        config::Upstream { http2: true, ..plain(self.address) }
    }

    fn pool(&self) -> Pool {
        Pool::new(&self.upstream(), LONG, LONG, &self.metrics).unwrap()
    }

    async fn next(&mut self) -> Arrived {
        tokio::time::timeout(LONG, self.arrived.recv()).await.expect("a request comes").unwrap()
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn serve(stream: TcpStream, streams: u32, number: usize, sender: mpsc::UnboundedSender<Arrived>) {
    let Ok(mut connection) = h2::server::Builder::new().max_concurrent_streams(streams).handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let sender = sender.clone();
        tokio::spawn(async move {
            let (head, mut incoming) = request.into_parts();
            let mut body = Vec::new();
            while let Some(Ok(data)) = incoming.data().await {
                let _ = incoming.flow_control().release_capacity(data.len());
                body.extend(data);
            }
            let _ = sender.send((number, Request::from_parts(head, body.into()), respond));
        });
    }
}

fn answer(mut respond: SendResponse<Bytes>, text: &'static str) {
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    body.send_data(Bytes::from_static(text.as_bytes()), true).unwrap();
}

#[tokio::test]
async fn requests_go_out_as_they_are_and_share_one_connection() {
    let mut peer = H2Peer::start(100).await;
    let pool = peer.pool();
    let mut request = post("/a/../%2e?q#not", "x");
    request.headers_mut().insert("transfer-encoding", "chunked".parse().unwrap());
    request.headers_mut().remove("content-length");
    let (first, second) =
        (tokio::spawn(send_owned(pool.clone(), request)), tokio::spawn(send_owned(pool.clone(), post("/2", "y"))));
    let ((one, request, first_respond), (two, _, second_respond)) = (peer.next().await, peer.next().await);
    assert_eq!((one, two, peer.connections()), (1, 1, 1));
    let uri = request.uri();
    assert_eq!((uri.scheme_str(), uri.authority().map(|a| a.as_str())), (Some("http"), Some("upstream.test")));
    assert_eq!(uri.path_and_query().unwrap(), "/a/../%2e?q");
    assert_eq!(request.headers(), &HeaderMap::new());
    assert_eq!(request.body(), "x");
    answer(first_respond, "ok");
    answer(second_respond, "ok");
    for sent in [first, second] {
        assert_eq!(text(sent.await.unwrap().unwrap()).await, "ok");
    }
    assert!(pool.checkout().await.unwrap().is_reused());
    assert_eq!(peer.metrics.upstream_sends.get(), 2);
}

async fn send_owned(pool: Pool, request: Request<RequestBody>) -> Result<http::Response<ResponseBody>, SendError> {
    send(&pool, request).await
}

#[tokio::test]
async fn bodies_of_any_size_flow_and_trailers_arrive() {
    let mut peer = H2Peer::start(100).await;
    let pool = peer.pool();
    let large = Bytes::from(vec![b'x'; 3 << 20]);
    let streamed = RequestBody::stream(http_body_util::Full::new(large.clone()));
    let request = Request::post("/").header("host", "a").body(streamed).unwrap();
    let sent = tokio::spawn(send_owned(pool, request));
    let (_, request, mut respond) = peer.next().await;
    assert_eq!(request.body().len(), large.len());
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    body.send_data(large.clone(), false).unwrap();
    body.send_trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), "1".parse().unwrap())])).unwrap();
    let collected = sent.await.unwrap().unwrap().into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-sum"], "1");
    assert_eq!(collected.to_bytes(), large);
}

#[tokio::test]
async fn only_a_refused_stream_proves_that_nothing_ran() {
    for (reason, may_have_run) in [
        (Reason::REFUSED_STREAM, false),
        (Reason::CANCEL, true),
        (Reason::INTERNAL_ERROR, true),
        (Reason::NO_ERROR, true),
        (Reason::ENHANCE_YOUR_CALM, true),
    ] {
        let mut peer = H2Peer::start(100).await;
        let pool = peer.pool();
        let sent = tokio::spawn(send_owned(pool.clone(), post("/", "x")));
        peer.next().await.2.send_reset(reason);
        let error = sent.await.unwrap().unwrap_err();
        assert_eq!(error.may_have_run(), may_have_run, "{reason:?}: {error:?}");
        // It was this stream's end and not the connection's.
        assert!(pool.checkout().await.unwrap().is_reused());
    }
}

/// A frame (RFC 9113 section 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    [&[0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Reads up to a frame of this kind and returns its payload.
async fn read_frame(stream: &mut TcpStream, kind: u8) -> Vec<u8> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == kind {
            return payload;
        }
    }
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// Takes the preface and answers the first ping, as bytes.
async fn greet(stream: &mut TcpStream) {
    stream.read_exact(&mut [0; 24]).await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, b"")).await.unwrap();
    let ping = read_frame(stream, PING).await;
    stream.write_all(&frame(PING, 1, 0, &ping)).await.unwrap();
}

#[tokio::test]
async fn goaway_says_what_has_not_run_and_its_connection_is_not_used_again() {
    // The last stream that it covers: none, this one, all, or no word at all.
    for (last, may_have_run) in
        [(Some([0, 0, 0, 0]), false), (Some([0, 0, 0, 1]), true), (Some([0x7f, 0xff, 0xff, 0xff]), true), (None, true)]
    {
        let peer = Peer::start().await;
        let upstream = config::Upstream { http2: true, ..plain(peer.address) };
        let pool = Pool::new(&upstream, LONG, LONG, &peer.metrics).unwrap();
        let serve = async {
            let mut stream = peer.accept().await;
            greet(&mut stream).await;
            read_frame(&mut stream, HEADERS).await;
            if let Some(last) = last {
                stream.write_all(&frame(GOAWAY, 0, 0, &[last, [0, 0, 0, 0]].concat())).await.unwrap();
            }
        };
        let (sent, ()) = tokio::join!(send(&pool, post("/", "x")), serve);
        let error = sent.unwrap_err();
        assert_eq!(error.may_have_run(), may_have_run, "{last:?}: {error:?}");
        let again = async {
            let mut stream = peer.accept().await;
            greet(&mut stream).await;
            stream
        };
        let (connection, _stream) = tokio::join!(pool.checkout(), again);
        assert!(!connection.unwrap().is_reused());
    }
}

#[tokio::test]
async fn body_that_is_cut_is_an_error_whatever_the_reason() {
    for reason in [Reason::CANCEL, Reason::NO_ERROR, Reason::INTERNAL_ERROR] {
        let mut peer = H2Peer::start(100).await;
        let sent = tokio::spawn(send_owned(peer.pool(), post("/", "x")));
        let mut respond = peer.next().await.2;
        let mut body = respond.send_response(Response::new(()), false).unwrap();
        body.send_data(Bytes::from_static(b"half"), false).unwrap();
        let mut response = sent.await.unwrap().unwrap().into_body();
        assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
        body.send_reset(reason);
        assert!(response.frame().await.unwrap().is_err(), "{reason:?} passed for an end");
    }
}

#[tokio::test]
async fn upstream_that_speaks_http_1_is_not_sent_to() {
    let peer = Peer::start().await;
    let upstream = config::Upstream { http2: true, ..plain(peer.address) };
    let pool = Pool::new(&upstream, LONG, LONG, &peer.metrics).unwrap();
    let serve = async {
        let mut stream = peer.accept().await;
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await.unwrap();
        stream
    };
    let (connected, _stream) = tokio::join!(pool.checkout(), serve);
    let error = connected.unwrap_err();
    assert!(matches!(error, ConnectError::NotHttp2 { source: Some(_), .. }), "{error:?}");
    assert_eq!(peer.metrics.upstream_sends.get(), 0);
}

#[tokio::test]
async fn more_requests_than_streams_get_another_connection() {
    let mut peer = H2Peer::start(1).await;
    let pool = peer.pool();
    let first = tokio::spawn(send_owned(pool.clone(), post("/1", "x")));
    let (one, _, first_respond) = peer.next().await;
    let second = tokio::spawn(send_owned(pool.clone(), post("/2", "x")));
    let (two, _, second_respond) = peer.next().await;
    assert_eq!((one, two), (1, 2));
    answer(first_respond, "ok");
    answer(second_respond, "ok");
    for sent in [first, second] {
        assert_eq!(text(sent.await.unwrap().unwrap()).await, "ok");
    }
}

#[tokio::test]
async fn dropped_response_ends_its_stream_and_leaves_the_connection() {
    let mut peer = H2Peer::start(100).await;
    let pool = peer.pool();
    let sent = tokio::spawn(send_owned(pool.clone(), post("/", "x")));
    let mut respond = peer.next().await.2;
    sent.abort();
    let reset = std::future::poll_fn(|cx| respond.poll_reset(cx));
    assert_eq!(tokio::time::timeout(LONG, reset).await.expect("a reset comes").unwrap(), Reason::CANCEL);
    assert!(pool.checkout().await.unwrap().is_reused());
}

#[tokio::test]
async fn unused_connection_is_closed_after_the_idle_timeout() {
    let peer = Peer::start().await;
    let upstream = config::Upstream { http2: true, ..plain(peer.address) };
    let pool = Pool::new(&upstream, LONG, Duration::from_millis(50), &peer.metrics).unwrap();
    let serve = async {
        let mut stream = peer.accept().await;
        greet(&mut stream).await;
        stream
    };
    let (connected, mut stream) = tokio::join!(pool.checkout(), serve);
    drop(connected.unwrap());
    closed_by_us(&mut stream).await;
}

#[tokio::test]
async fn upstream_that_takes_no_requests_is_sent_none() {
    let peer = H2Peer::start(0).await;
    let pool = peer.pool();
    for connections in 1..=2 {
        let error = pool.checkout().await.unwrap_err();
        assert!(matches!(error, ConnectError::NoStreams { .. }), "{error:?}");
        assert_eq!(peer.connections(), connections);
    }
    assert_eq!(peer.metrics.upstream_sends.get(), 0);
}

#[tokio::test]
async fn request_beyond_what_the_upstream_takes_by_now_is_not_sent() {
    let peer = Peer::start().await;
    let upstream = config::Upstream { http2: true, ..plain(peer.address) };
    let pool = Pool::new(&upstream, LONG, LONG, &peer.metrics).unwrap();
    let greeted = async {
        let mut stream = peer.accept().await;
        greet(&mut stream).await;
        stream
    };
    let (connection, mut stream) = tokio::join!(pool.checkout(), greeted);
    // SETTINGS_MAX_CONCURRENT_STREAMS, 0 from now on; acknowledged behind the settings of the beginning.
    stream.write_all(&frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 0])).await.unwrap();
    for _ in 0..2 {
        assert_eq!(read_frame(&mut stream, SETTINGS).await, b"");
    }
    let sent = tokio::time::timeout(LONG, connection.unwrap().send(post("/", "x"))).await.expect("it ends");
    assert!(matches!(sent, Err(SendError::NotSent { request: Some(_), .. })), "{sent:?}");
    assert_eq!(peer.metrics.upstream_sends.get(), 0);
}
