//! One connection and the one send that it is good for at a time.
//!
//! Here it is decided whether a failed request was sent. Two signs are exact: hyper hands the request back before it
//! has turned it into bytes, or the count of bytes is what it was just before the hand-over. Everything else is doubt;
//! no other error of hyper tells the two apart. See `docs/guarantees.md`.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::SendRequest;
use tokio::task::JoinHandle;

use super::Shared;
use super::body::{BoxError, RequestBody, ResponseBody};
use super::connect::{MAX_BUFFER, MAX_HEADERS};
use super::interim::OnInterim;
use super::streams::Stream;
use super::wire::Meter;

/// A connection's two halves: the task that reads and writes, and the handle that gives it requests.
///
/// Dropped while idle it closes in good order; dropped while a request is on its way it is cut off at once.
#[derive(Debug)]
pub(super) struct Link {
    sender: SendRequest<RequestBody>,
    task: JoinHandle<()>,
    meter: Arc<Meter>,
}

impl Link {
    pub(super) fn new(sender: SendRequest<RequestBody>, task: JoinHandle<()>, meter: Arc<Meter>) -> Link {
        Link { sender, task, meter }
    }

    /// Whether it can take a request now, as far as is known without looking at the network.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    /// The address that it leads to, on a network.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        self.meter.peer()
    }

    /// Waits until it can take a request; fails if it is closed.
    pub(super) async fn ready(&mut self) -> hyper::Result<()> {
        self.sender.ready().await
    }

    /// Cuts the connection off and returns how many bytes may have left by then.
    ///
    /// Only the ended task makes the count final: hyper may hold a head in its buffer when it reports an error, and
    /// flush it afterwards.
    async fn cut(&mut self) -> u64 {
        self.task.abort();
        // Ended, cancelled or panicked: in every case nothing is left that could write.
        let _ = (&mut self.task).await;
        self.meter.written()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Without its sender the task closes by itself, but not while it has a body to write (hyper #4176).
        if !self.sender.is_ready() {
            self.task.abort();
        }
    }
}

/// A request failed after a connection was there.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Certainly not sent, or refused before it was looked at: not one byte of it left, or the upstream says
    /// `REFUSED_STREAM` (RFC 9113 section 8.7).
    #[error("the connection was closed before the request was sent, or the upstream refused its stream")]
    NotSent {
        /// The request, unless hyper had taken it apart already.
        request: Option<Box<Request<RequestBody>>>,
        /// Its body alone, where the request was refused and nothing had been taken from the body.
        body: Option<Box<RequestBody>>,
        /// What hyper or h2 said.
        source: BoxError,
    },
    /// Sent, and refused unread by a TLS stack: its first word was an alert. No server of HTTP has seen the request.
    #[error(
        "`{host}` speaks TLS there, and refused the request unread: write https:// in the URL of the upstream, or another port"
    )]
    SpeaksTls {
        /// The upstream's host.
        host: String,
        /// What hyper found in place of an answer.
        source: hyper::Error,
    },
    /// Bytes may have left, and nobody can tell what became of them.
    #[error("the upstream gave no usable answer")]
    MayHaveRun {
        /// A [`hyper::Error`], an [`h2::Error`] or an [`AmbiguousResponse`].
        source: BoxError,
    },
}

impl SendError {
    /// Whether the request may have run.
    pub fn may_have_run(&self) -> bool {
        matches!(self, SendError::MayHaveRun { .. })
    }

    /// Whether an answer came, with a head that is longer than is read.
    pub fn is_head_too_large(&self) -> bool {
        matches!(self, SendError::MayHaveRun { source } if source.is::<HeadTooLarge>())
    }
}

/// A connection that ended without a byte of an answer, in a place where no TLS was spoken.
///
/// A crash looks like this; so does a TLS stack that closes without an alert when the first bytes are those of HTTP, as
/// OpenSSL's does. Nobody can tell the two apart, so it stays a doubt, and the log says what may be wrong.
#[derive(Debug, thiserror::Error)]
#[error("it closed the connection without a byte; if it speaks TLS there, write https:// in its URL")]
struct Silent(#[source] hyper::Error);

/// The upstream takes fewer requests on the connection than it did (RFC 9113 section 6.5.2), and this is one too many.
#[derive(Debug, thiserror::Error)]
#[error("the upstream has lowered SETTINGS_MAX_CONCURRENT_STREAMS")]
struct FewerStreams;

/// A response whose head is longer than is read. The request has run, most likely; nobody knows with what result.
#[derive(Debug, thiserror::Error)]
#[error("the head of its answer is over {} KiB or {} fields, which is the limit", MAX_BUFFER / 1024, MAX_HEADERS)]
struct HeadTooLarge(#[source] hyper::Error);

/// A response whose end two readers could see in two places (RFC 9112 section 6.3).
#[derive(Debug, thiserror::Error)]
#[error("the response's framing is ambiguous: {0}")]
pub struct AmbiguousResponse(&'static str);

/// A connection that is good for one request. Dropped, it closes.
#[derive(Debug)]
pub struct Connection {
    via: Via,
    shared: Arc<Shared>,
    reused: bool,
    interim: Option<OnInterim>,
}

/// What carries a request.
#[derive(Debug)]
pub(super) enum Via {
    Own(Link),
    Stream(Stream),
}

impl Connection {
    pub(super) fn fresh(via: Via, shared: Arc<Shared>) -> Connection {
        Connection { via, shared, reused: false, interim: None }
    }

    pub(super) fn reused(via: Via, shared: Arc<Shared>) -> Connection {
        Connection { via, shared, reused: true, interim: None }
    }

    /// Has somebody told of what the upstream says before its answer to the request that is sent on it.
    #[must_use]
    pub fn telling(self, interim: Option<OnInterim>) -> Connection {
        Connection { interim, ..self }
    }

    /// Whether it has carried a request before, so that the upstream may be about to close it.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Sends one request, exactly once, and waits for the head of its response. Interim responses are passed over,
    /// but for `101`, which is returned.
    ///
    /// Target and header fields go out as they are, in HTTP/2 without those of an HTTP/1.1 connection; `host` and framing
    /// are the caller's. Each hand-over counts as one upstream send, also one that is handed back. Dropping the future, or
    /// the body that it returns, closes the connection; the request may have run then.
    pub fn send(
        self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, SendError>> + Send {
        let Connection { via, shared, reused, interim } = self;
        // Handed over before the first wait: a future that holds the request is large, and this one every request has.
        let handed_over = match via {
            Via::Own(link) if link.is_ready() => Ok(hand_over(link, request, interim, &shared)),
            Via::Own(link) => Err(Ok(Box::new((link, request, interim)))),
            Via::Stream(stream) => Err(Err(Box::pin(send_on(stream, request, interim, shared.clone())))),
        };
        async move {
            let handed = match handed_over {
                Ok(handed) => handed,
                Err(Err(sending)) => return sending.await,
                Err(Ok(waiting)) => {
                    let (mut link, request, interim) = *waiting;
                    match link.ready().await {
                        Ok(()) => hand_over(link, request, interim, &shared),
                        Err(source) => {
                            let request = Some(Box::new(request));
                            return Err(SendError::NotSent { request, body: None, source: source.into() });
                        }
                    }
                }
            };
            let Handed { link, method, before, answer } = handed;
            let failed = match answer.await {
                Ok(response) => {
                    // An upstream says it with every answer, and the first is soon enough.
                    if !reused {
                        shared.idle.heed(response.headers());
                    }
                    return receive(&method, response, link, &shared);
                }
                Err(error) => Box::pin(failure(error, link, before, &shared)),
            };
            Err(failed.await)
        }
    }
}

/// What a failed send means for its request.
async fn failure(
    mut error: TrySendError<Request<RequestBody>>,
    mut link: Link,
    before: u64,
    shared: &Shared,
) -> SendError {
    if let Some(request) = error.take_message() {
        let source = error.into_error().into();
        return SendError::NotSent { request: Some(Box::new(request)), body: None, source };
    }
    let written = link.cut().await;
    let source = error.into_error();
    match written == before {
        true => SendError::NotSent { request: None, body: None, source: source.into() },
        false if link.meter.saw_tls_alert() => SendError::SpeaksTls { host: shared.dialer.host(), source },
        false if source.is_parse_too_large() => SendError::MayHaveRun { source: HeadTooLarge(source).into() },
        false if link.meter.heard_nothing() => SendError::MayHaveRun { source: Silent(source).into() },
        false => SendError::MayHaveRun { source: source.into() },
    }
}

/// A request that hyper has, and what will be asked if no answer comes.
struct Handed<A> {
    link: Link,
    method: Method,
    /// Bytes that were written before it.
    before: u64,
    answer: Pin<Box<A>>,
}

fn hand_over(
    mut link: Link,
    mut request: Request<RequestBody>,
    interim: Option<OnInterim>,
    shared: &Shared,
) -> Handed<impl Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>> + Send + use<>> {
    *request.version_mut() = Version::HTTP_11;
    link.meter.look_before_writing();
    let method = request.method().clone();
    link.meter.awaits_answer(interim);
    let before = link.meter.written();
    shared.sends.inc();
    let answer = Box::pin(link.sender.try_send_request(request));
    Handed { link, method, before, answer }
}

/// The same in HTTP/2. Dropped, it resets the stream and leaves the connection to the others.
async fn send_on(
    stream: Stream,
    request: Request<RequestBody>,
    interim: Option<OnInterim>,
    shared: Arc<Shared>,
) -> Result<Response<ResponseBody>, SendError> {
    let method = request.method().clone();
    if !stream.is_allowed() {
        // Since it was taken the upstream has lowered how many it takes. `h2` would keep the request until it takes more.
        return Err(SendError::NotSent { request: Some(Box::new(request)), body: None, source: FewerStreams.into() });
    }
    shared.sends.inc();
    let (head, body) = stream.send(request, interim, shared.dialer.upstream()).await?;
    let body = body.declared(&head.headers, has_body(&method, head.status));
    Ok(Response::from_parts(head, ResponseBody::stream(body)))
}

fn receive(
    method: &Method,
    response: Response<Incoming>,
    link: Link,
    shared: &Shared,
) -> Result<Response<ResponseBody>, SendError> {
    let (mut head, incoming) = response.into_parts();
    if has_body(method, head.status) {
        check_framing(&mut head.headers).map_err(|source| SendError::MayHaveRun { source: source.into() })?;
    }
    let body = match head.status {
        StatusCode::SWITCHING_PROTOCOLS => ResponseBody::switching(incoming, link, shared.idle.clone()),
        _ => ResponseBody::new(incoming, link, shared.idle.clone()),
    };
    Ok(Response::from_parts(head, body))
}

fn has_body(method: &Method, status: StatusCode) -> bool {
    let without = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED];
    !(method == Method::HEAD || status.is_informational() || without.contains(&status))
}

/// Refuses what hyper lets through: both framings, a repeated `transfer-encoding`, codings besides `chunked` (we would
/// have to undo them). An equal length said repeatedly is said once afterwards; hyper has refused different ones.
fn check_framing(headers: &mut HeaderMap) -> Result<(), AmbiguousResponse> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        if codings.next().is_some() {
            return Err(AmbiguousResponse("transfer-encoding is repeated"));
        }
        if !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") {
            return Err(AmbiguousResponse("transfer-encoding is not just chunked"));
        }
        if headers.contains_key(CONTENT_LENGTH) {
            return Err(AmbiguousResponse("it has both transfer-encoding and content-length"));
        }
        return Ok(());
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else { return Ok(()) };
    let said_once = length.as_bytes().split(|byte| *byte == b',').next().unwrap_or_default();
    if lengths.next().is_some() || said_once.len() != length.len() {
        let length = HeaderValue::from_bytes(said_once.trim_ascii())
            .map_err(|_| AmbiguousResponse("content-length is not a number"))?;
        headers.insert(CONTENT_LENGTH, length);
    }
    Ok(())
}
