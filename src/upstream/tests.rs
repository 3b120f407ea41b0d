//! The pool against raw TCP peers, which alone can close, reset or fall silent at a chosen byte.
//!
//! Here is what the tests share: a listener, a reader of requests, and pools that point at it.

mod bodies;
mod doubt;
mod pooling;
mod races;
mod sending;
mod streams;
mod tls;
mod ways;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::metrics::Metrics;

/// Nothing here takes long; a test that hangs fails by this.
const LONG: Duration = Duration::from_secs(20);

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An upstream that does only what the test makes it do.
struct Peer {
    listener: TcpListener,
    address: SocketAddr,
    metrics: RouteMetrics,
}

impl Peer {
    async fn start() -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Peer { listener, address, metrics: Metrics::new().route("r") }
    }

    fn pool(&self) -> Pool {
        self.pool_with_idle_timeout(LONG)
    }

    fn pool_with_idle_timeout(&self, idle_timeout: Duration) -> Pool {
        Pool::new(&plain(self.address), LONG, idle_timeout, &self.metrics).unwrap()
    }

    async fn accept(&self) -> TcpStream {
        tokio::time::timeout(LONG, self.listener.accept()).await.expect("a connection comes").unwrap().0
    }

    /// Accepts, reads one request and answers it with these bytes.
    async fn answer_one(&self, answer: &[u8]) -> (TcpStream, Vec<u8>) {
        let mut stream = self.accept().await;
        let request = read_request(&mut stream).await;
        stream.write_all(answer).await.unwrap();
        (stream, request)
    }

    /// Whether a connection waits that was never accepted.
    async fn has_another(&self) -> bool {
        tokio::time::timeout(Duration::from_millis(1), self.listener.accept()).await.is_ok()
    }
}

fn plain(address: SocketAddr) -> config::Upstream {
    config::Upstream { tls: false, host: address.ip().to_string(), port: address.port(), ..config::Upstream::default() }
}

/// Reads one request to its end; less, if the stream ends before.
async fn read_request(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut read = Vec::new();
    while !is_whole(&read) {
        let more = tokio::time::timeout(LONG, stream.read_buf(&mut read)).await.expect("a request comes").unwrap();
        if more == 0 {
            break;
        }
    }
    read
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    match field("content-length:") {
        Some(length) => body.len() >= length.parse().unwrap(),
        None if field("transfer-encoding:").is_some() => body.ends_with("0\r\n\r\n"),
        None => true,
    }
}

/// Waits until the other side has closed; whether by FIN or by reset is the same to it.
async fn closed_by_us(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await.expect("the connection is closed");
}

/// Closes with a reset instead of a FIN.
fn reset(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
    drop(stream);
}

fn post(target: &str, body: &'static str) -> http::Request<RequestBody> {
    http::Request::post(target)
        .header("host", "upstream.test")
        .header("content-length", body.len())
        .body(RequestBody::full(Bytes::from_static(body.as_bytes())))
        .unwrap()
}

/// Sends on whatever the pool gives.
async fn send(pool: &Pool, request: http::Request<RequestBody>) -> Result<http::Response<ResponseBody>, SendError> {
    let connection = pool.checkout().await.expect("the peer listens");
    tokio::time::timeout(LONG, connection.send(request)).await.expect("it ends")
}

async fn text(response: http::Response<ResponseBody>) -> String {
    let body = response.into_body().collect().await.expect("the body ends properly").to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// One exchange on the pool, read to its end. Returns the peer's side of the connection.
async fn exchange(peer: &Peer, pool: &Pool) -> TcpStream {
    let (response, (stream, _)) = tokio::join!(send(pool, post("/", "x")), peer.answer_one(OK));
    assert_eq!(text(response.unwrap()).await, "ok");
    stream
}
