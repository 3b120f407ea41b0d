//! Passing through: requests without protection, as a plain reverse proxy handles them.
//!
//! Bodies stream both ways without being held. A message that was certainly not sent goes out once more; nothing else
//! is ever sent again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Request, StatusCode, Uri, Version, request};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::task::JoinHandle;

use super::Shared;
use super::body::{self, Arriving, Body, BodyError, Held};
use super::claim::Chain;
use super::error::{Kind, Problem};
use super::headers::{self, CacheStatus, Peer};
use super::notes::{Notes, Sending};
use super::respond::Answer;
use super::route::{self, Route};
use super::tunnel::{self, Bounds, Offer};
use crate::metrics::RequestResult;
use crate::record::Reason;
use crate::upstream::{RequestBody, ResponseBody, SendError, switched};

/// The body of a plain request: as it comes, or read already while a key was looked for.
#[derive(Debug)]
pub enum Plain {
    /// Still on its way.
    Coming(Incoming),
    /// Here.
    Read(Bytes),
}

impl Plain {
    /// Whether there is a body, of whatever length.
    fn is_there(&self) -> bool {
        match self {
            Plain::Coming(body) => !body.is_end_stream(),
            Plain::Read(bytes) => !bytes.is_empty(),
        }
    }
}

/// What passing through takes from the proxy.
pub struct Passage<'a> {
    /// The client.
    pub peer: Peer,
    /// Given back when the response, or what comes after a 101, has ended.
    pub held: Held,
    /// How long an upgraded connection may be silent.
    pub idle: Duration,
    /// What counts upgraded connections, and ends them.
    pub shared: &'a Shared,
    /// What is noted of the request.
    pub notes: &'a Notes,
}

/// Forwards a request without protection.
pub async fn pass(route: &Route, head: &request::Parts, body: Plain, passage: Passage<'_>) -> Result<Answer, Problem> {
    let progress = Progress::default();
    let owed = Owed(progress.clone());
    let framing = framing(head, &body);
    let offer = Offer::of(head, body.is_there()).filter(|_| route.pool.can_switch());
    let body = match body {
        Plain::Coming(body) if body.is_end_stream() => {
            body::settle(head).await;
            RequestBody::empty()
        }
        Plain::Coming(body) => {
            let body = body::begun(head, body).await?;
            let doubt = if head.version == Version::HTTP_2 { Doubt::Unasked } else { Doubt::None };
            RequestBody::stream(Watched { body, progress: progress.clone(), doubt })
        }
        Plain::Read(bytes) => RequestBody::full(bytes),
    };
    let target = route::target(&route.config, head);
    let request = |body| {
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = Uri::from(target.clone());
        *request.headers_mut() = headers::to_upstream(&route.config, head, passage.peer, None);
        request.headers_mut().extend(framing.clone());
        if let Some(offer) = &offer {
            offer.ask(request.headers_mut());
        }
        request
    };
    let mut sending = Sending::begin(passage.notes, &route.config, &head.method, &target);
    let sent = progress.bounded(route.config.timeout, send(route, request, body, &mut sending)).await;
    match &sent {
        Some(Ok(response)) => sending.ended(Some(response.status().as_u16()), None),
        Some(Err(Failure::NotSent(_))) => sending.ended(None, Some("not-sent")),
        Some(Err(Failure::Broken)) => sending.ended(None, Some(Reason::Reset.as_str())),
        None => sending.ended(None, Some(Reason::Timeout.as_str())),
    }
    let Some(sent) = sent else {
        return Err(broken(head, Kind::OutcomeUnknownTimeout, "The upstream did not answer in time."));
    };
    let (parts, body) = match sent {
        Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            return switch(offer, response, passage).ok_or_else(|| {
                // Passed on, it would change how the caller reads.
                broken(head, Kind::OutcomeUnknownBroken, "The upstream switched to a protocol that was not asked for.")
            });
        }
        Ok(response) => response.into_parts(),
        Err(_) if progress.is_broken() => {
            let what =
                "The request body broke off or is badly framed; the upstream got a part of the request at the most.";
            return Err(Problem::new(Kind::BodyInvalid, what));
        }
        Err(Failure::NotSent(why)) => {
            let detail = format!("Nothing was sent to the upstream: {why}.");
            return Err(Problem::new(Kind::UpstreamUnreachable, detail));
        }
        Err(Failure::Broken) => {
            let what = "The connection to the upstream broke after the request was sent.";
            return Err(broken(head, Kind::OutcomeUnknownBroken, what));
        }
    };
    let mut response =
        http::Response::new(Body::passing(body, route.config.abandon_after, Box::new((owed, passage.held))));
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers::from_upstream(&parts, true);
    headers::add_cache_status(response.headers_mut(), &CacheStatus::Bypass("unprotected"));
    Ok(Answer::new(response, RequestResult::Unprotected))
}

/// Answers that the connection switches, and has it run on as a tunnel; `None` if the upstream did so unasked.
fn switch(offer: Option<Offer>, upstream: http::Response<ResponseBody>, passage: Passage<'_>) -> Option<Answer> {
    let Passage { held, idle, shared, .. } = passage;
    let offer = offer?;
    let protocol = offer.chosen(upstream.headers())?;
    let mut response = http::Response::new(Body::full(Bytes::new()));
    let (parts, body) = upstream.into_parts();
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers::from_upstream(&parts, false);
    headers::add_cache_status(response.headers_mut(), &CacheStatus::Bypass("unprotected"));
    tunnel::announce(response.headers_mut(), protocol);
    let bounds = Bounds { idle, cut_off: shared.cut_off.clone(), counted: shared.tasks.enter(), held };
    tunnel::run(offer.accepted(), switched(http::Response::from_parts(parts, body)), bounds, |_| ());
    Some(Answer::new(response, RequestResult::Unprotected))
}

/// How the body is framed towards the upstream: rebuilt, never passed on. hyper would leave the body of a GET out that
/// has neither field.
fn framing(head: &request::Parts, body: &Plain) -> Option<(HeaderName, HeaderValue)> {
    let length = match body {
        Plain::Coming(body) if body.size_hint().exact().is_none() => {
            return Some((TRANSFER_ENCODING, HeaderValue::from_static("chunked")));
        }
        Plain::Coming(body) => body.size_hint().exact()?,
        Plain::Read(bytes) => bytes.len() as u64,
    };
    let is_said = length > 0 || head.headers.contains_key(CONTENT_LENGTH);
    is_said.then(|| (CONTENT_LENGTH, HeaderValue::from(length)))
}

enum Failure {
    NotSent(String),
    Broken,
}

/// Sends the request that is made with this body, and once more if that was certainly not sent and the body is still there.
async fn send(
    route: &Route,
    request: impl Fn(RequestBody) -> Request<RequestBody>,
    body: RequestBody,
    sending: &mut Sending,
) -> Result<http::Response<ResponseBody>, Failure> {
    let connection = route.pool.checkout().await.map_err(|error| not_sent(route, &error))?;
    let mut first = request(body);
    sending.mark(first.headers_mut());
    let mut again = match connection.send(first).await {
        Ok(response) => return Ok(response),
        // Only a message that was handed back still has its body, or one whose stream was refused before its body came.
        Err(SendError::NotSent { request: Some(request), .. }) => *request,
        Err(SendError::NotSent { body: Some(body), .. }) => request(*body),
        Err(error @ SendError::NotSent { .. }) => return Err(not_sent(route, &error)),
        Err(error) => return Err(broke(route, &error)),
    };
    route.metrics.upstream_resends.inc();
    sending.again();
    let connection = route.pool.connect().await.map_err(|error| not_sent(route, &error))?;
    sending.mark(again.headers_mut());
    match connection.send(again).await {
        Ok(response) => Ok(response),
        Err(error @ SendError::NotSent { .. }) => Err(not_sent(route, &error)),
        Err(error) => Err(broke(route, &error)),
    }
}

fn not_sent(route: &Route, error: &dyn std::error::Error) -> Failure {
    tracing::warn!(route = %route.config.name, error = %Chain(error), "upstream not reached");
    Failure::NotSent(error.to_string())
}

fn broke(route: &Route, error: &dyn std::error::Error) -> Failure {
    tracing::warn!(route = %route.config.name, error = %Chain(error), "upstream broke off an unprotected request");
    Failure::Broken
}

/// Nobody holds a record of a plain request. Whether it may be repeated is a matter of its method (RFC 9110 section
/// 9.2.2).
fn broken(head: &request::Parts, kind: Kind, what: &str) -> Problem {
    let problem = Problem::new(kind, format!("{what} The request was not protected; it may have been executed."));
    if head.method.is_idempotent() { problem.same_key_after(Duration::from_secs(1)) } else { problem }
}

/// How far a streaming request body is, so that a long upload is not taken for a silent upstream.
#[derive(Clone, Debug, Default)]
struct Progress(Arc<AtomicU64>);

/// What [`Progress`] counts to when the body broke.
const BROKEN: u64 = u64::MAX;

/// What it counts to when nobody is owed an answer any more.
const ABANDONED: u64 = u64::MAX - 1;

/// The answer that is owed to the client, until it has it or is gone.
struct Owed(Progress);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.0.store(ABANDONED, Ordering::Relaxed);
    }
}

impl Progress {
    /// Whether it was the client's body that failed.
    fn is_broken(&self) -> bool {
        self.0.load(Ordering::Relaxed) == BROKEN
    }

    /// Waits for the future as long as the body moves, and for `patience` after it stopped.
    async fn bounded<F: Future>(&self, patience: Duration, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        loop {
            let before = self.0.load(Ordering::Relaxed);
            match tokio::time::timeout(patience, future.as_mut()).await {
                Ok(output) => return Some(output),
                Err(_) if self.0.load(Ordering::Relaxed) != before => {}
                Err(_) => return None,
            }
        }
    }
}

/// Whether the end of a body may be none: in HTTP/2 the body of a request that its client has taken back can end in good
/// order.
#[derive(Debug)]
enum Doubt {
    /// It is the end.
    None,
    /// It has not come yet.
    Unasked,
    /// It has come, and is believed once this task has had its turn: the server's, to notice that the request is gone,
    /// comes before it. A mere second look would not do, since hyper takes several in one turn.
    Asked(JoinHandle<()>),
}

/// The client has taken its request back.
#[derive(Debug, thiserror::Error)]
#[error("the client took the request back before its body had ended")]
struct TakenBack;

/// A request body that says when it moves.
struct Watched {
    body: Arriving,
    progress: Progress,
    doubt: Doubt,
}

impl Watched {
    /// The end, or the news that it is none.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if matches!(self.doubt, Doubt::Unasked) {
            self.doubt = Doubt::Asked(tokio::spawn(std::future::ready(())));
        }
        if let Doubt::Asked(turn) = &mut self.doubt {
            // It cannot fail.
            let _ = ready!(Pin::new(turn).poll(cx));
            self.doubt = Doubt::None;
            if self.progress.0.load(Ordering::Relaxed) == ABANDONED {
                return Poll::Ready(Some(Err(TakenBack.into())));
            }
        }
        Poll::Ready(None)
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = match self.doubt {
            Doubt::Asked(_) => return self.poll_end(cx),
            _ => Pin::new(&mut self.body).poll_frame(cx),
        };
        match polled {
            Poll::Ready(Some(Err(_))) => self.progress.0.store(BROKEN, Ordering::Relaxed),
            Poll::Ready(None) => return self.poll_end(cx),
            Poll::Ready(_) => _ = self.progress.0.fetch_add(1, Ordering::Relaxed),
            Poll::Pending => {}
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.doubt, Doubt::None) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
