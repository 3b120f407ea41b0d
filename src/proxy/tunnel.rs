//! Upgrades of plain requests: which are passed on, and the two byte streams behind a 101 (RFC 9110 section 7.8), or
//! behind the 200 to a `CONNECT`.
//!
//! Apart from passing through, since an upgraded connection outlives its request: from the answer on it is a counted task
//! that copies bytes both ways and knows nothing of HTTP.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Version, request};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep_until, timeout};

use super::body::Held;
use crate::chain::Chain;
use crate::fields::{entries, list};
use crate::shutdown::{Signal, TaskGuard};

/// The protocols that a request asks for and that can be passed on, as one value of `Upgrade`.
///
/// Never HTTP itself, in another version or under TLS: inside of such a connection requests would pass this proxy by
/// unseen. Those are ignored, as RFC 9110 section 7.8 allows; some clients ask for `h2c` with every request.
pub fn asked_for(head: &request::Parts) -> Option<HeaderValue> {
    if head.version != Version::HTTP_11 || !list(&head.headers, &CONNECTION).any(|name| is(name, "upgrade")) {
        return None;
    }
    let passed_on: Vec<&[u8]> = list(&head.headers, &UPGRADE).filter(|protocol| !is_http(protocol)).collect();
    if passed_on.is_empty() { None } else { HeaderValue::from_bytes(&passed_on.join(&b", "[..])).ok() }
}

fn is(text: &[u8], word: &str) -> bool {
    text.eq_ignore_ascii_case(word.as_bytes())
}

fn is_http(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
    ["http", "h2c", "h2", "h3", "tls"].iter().any(|word| is(name, word))
}

/// A request's wish to switch, and the client's side of the connection if it comes true.
pub struct Offer {
    protocols: HeaderValue,
    client: OnUpgrade,
}

impl Offer {
    /// The offer of a request without a body. One with a body is not asked to switch: its end would have to be awaited
    /// before the first byte of the other protocol.
    pub fn of(head: &request::Parts, has_body: bool) -> Option<Offer> {
        let client = head.extensions.get::<OnUpgrade>().filter(|_| !has_body)?.clone();
        Some(Offer { protocols: asked_for(head)?, client })
    }

    /// Puts the offer on the request to the upstream, from which the fields of the client's hop were taken.
    pub fn ask(&self, fields: &mut HeaderMap) {
        fields.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        fields.insert(UPGRADE, self.protocols.clone());
    }

    /// The protocol that the upstream has chosen; `None` if it was not offered.
    pub fn chosen(&self, answer: &HeaderMap) -> Option<HeaderValue> {
        let mut lines = answer.get_all(UPGRADE).iter();
        let chosen = lines.next().filter(|_| lines.next().is_none())?;
        let mut offered = entries(self.protocols.as_bytes());
        offered.any(|protocol| protocol.eq_ignore_ascii_case(chosen.as_bytes())).then(|| chosen.clone())
    }

    /// The client's side, where the upstream has answered 101.
    pub fn accepted(self) -> OnUpgrade {
        self.client
    }
}

/// Says to the client that its connection switches.
pub fn announce(fields: &mut HeaderMap, protocol: HeaderValue) {
    fields.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    fields.insert(UPGRADE, protocol);
}

/// What bounds an upgraded connection, and what counts it.
pub struct Bounds {
    /// How long no byte may come from either side.
    pub idle: Duration,
    /// Ends it, when a stop no longer waits.
    pub cut_off: Signal,
    /// Has a stop wait for it.
    pub counted: TaskGuard,
    /// The rest of what it takes: its place among the requests in flight.
    pub held: Held,
}

/// Copies both ways, as a task, until both sides have ended, one breaks, nothing moves, or a stop cuts it off. The end of
/// one side is passed on to the other, which may go on. The upstream may still have to leave HTTP, as the client has.
pub fn run<S>(
    client: OnUpgrade,
    upstream: impl Future<Output = io::Result<S>> + Send + 'static,
    bounds: Bounds,
    over: impl FnOnce(Carried) + Send + 'static,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    tokio::spawn(async move {
        let Bounds { idle, cut_off, counted: _counted, held: _held } = bounds;
        let clock = Clock::start();
        tokio::select! {
            result = copy(client, upstream, idle, &clock) => if let Err(error) = result {
                tracing::debug!(error = %Chain(&error), "an upgraded connection ended early");
            },
            () = cut_off.given() => {}
        }
        over(clock.carried());
    });
}

/// How many bytes came from each side, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    /// Bytes from the client.
    pub from_client: u64,
    /// Bytes from the upstream.
    pub from_upstream: u64,
    /// From the answer to the end.
    pub during: Duration,
}

async fn copy<S>(
    client: OnUpgrade,
    upstream: impl Future<Output = io::Result<S>>,
    idle: Duration,
    clock: &Clock,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let switch = async { tokio::try_join!(async { client.await.map_err(io::Error::other) }, upstream) };
    let (client, upstream) = timeout(idle, switch).await??;
    let mut client = Watched { stream: TokioIo::new(client), clock: clock.clone(), side: 0 };
    let mut upstream = Watched { stream: upstream, clock: clock.clone(), side: 1 };
    tokio::select! {
        copied = copy_bidirectional(&mut client, &mut upstream) => copied.map(|_| ()),
        () = clock.silent_for(idle) => Err(io::Error::new(io::ErrorKind::TimedOut, "no byte came from either side")),
    }
}

/// When the last byte came, from whichever side.
#[derive(Clone)]
struct Clock {
    started: Instant,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Milliseconds from the start.
    last: AtomicU64,
    /// Bytes from the client, and from the upstream.
    bytes: [AtomicU64; 2],
}

impl Clock {
    fn start() -> Clock {
        Clock { started: Instant::now(), counts: Arc::default() }
    }

    fn moved(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.counts.last.store(now, Ordering::Relaxed);
    }

    fn carried(&self) -> Carried {
        let [from_client, from_upstream] = [0, 1].map(|side: usize| self.counts.bytes[side].load(Ordering::Relaxed));
        Carried { from_client, from_upstream, during: self.started.elapsed() }
    }

    async fn silent_for(&self, idle: Duration) {
        loop {
            let end = self.started + Duration::from_millis(self.counts.last.load(Ordering::Relaxed)) + idle;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// A side that says when bytes come from it, and how many.
struct Watched<S> {
    stream: S,
    clock: Clock,
    /// Which of the counts is its own.
    side: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if polled.is_ready() {
            let bytes = (buffer.filled().len() - before) as u64;
            self.clock.counts.bytes[self.side].fetch_add(bytes, Ordering::Relaxed);
            self.clock.moved();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(version: Version, fields: &[(&str, &str)]) -> Option<String> {
        let mut request = http::Request::get("/").version(version);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        asked_for(&request.body(()).unwrap().into_parts().0).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn other_protocols_are_passed_on_and_http_is_not() {
        let wants = |upgrade| asked(Version::HTTP_11, &[("connection", "keep-alive, Upgrade"), ("upgrade", upgrade)]);
        assert_eq!(wants("websocket"), Some("websocket".to_owned()));
        assert_eq!(wants("SPDY/3.1 , tcp"), Some("SPDY/3.1, tcp".to_owned()));
        assert_eq!(wants("h2c, websocket, TLS/1.3,"), Some("websocket".to_owned()));
        for http in ["h2c", "H2C", "HTTP/2.0", "h2", "TLS/1.0", "", " , "] {
            assert_eq!(wants(http), None, "{http}");
        }
        assert_eq!(asked(Version::HTTP_11, &[("upgrade", "websocket")]), None);
        assert_eq!(asked(Version::HTTP_10, &[("connection", "upgrade"), ("upgrade", "websocket")]), None);
        let lines = [("connection", "upgrade"), ("upgrade", "a"), ("upgrade", "b")];
        assert_eq!(asked(Version::HTTP_11, &lines), Some("a, b".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_last_byte() {
        let clock = Clock::start();
        let started = Instant::now();
        let moving = async {
            tokio::time::sleep(Duration::from_secs(8)).await;
            clock.moved();
        };
        tokio::join!(moving, clock.silent_for(Duration::from_secs(10)));
        assert_eq!(started.elapsed().as_secs(), 18);
    }
}
