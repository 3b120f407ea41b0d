//! Step 6, forward: one attempt at the upstream, and what is known of it afterwards.
//!
//! The upstream is sent the request at most once. Only a message that was certainly not sent (handed back by the
//! connection) goes out a second time, on a fresh connection, and is counted.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap};
use http::uri::PathAndQuery;
use http::{Method, StatusCode, Uri, response};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::body::{self, Body, Pieces};
use super::budget::Share;
use super::error::Problem;
use super::flights::{Conclusion, Seat};
use super::headers::{self, CacheStatus};
use super::lease::Lease;
use super::notes::Sending;
use super::route::Route;
use crate::chain::Chain;
use crate::config::Verdict;
use crate::fields::essence;
use crate::metrics::RequestResult;
use crate::record::{Reason, Response};
use crate::upstream::{ConnectError, Connection, RequestBody, ResponseBody, SendError};

/// A keyed request as the upstream is to see it.
#[derive(Debug)]
pub struct Outgoing {
    /// The method.
    pub method: Method,
    /// The target in origin form.
    pub target: PathAndQuery,
    /// All fields, the length of the body among them.
    pub fields: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// What the bodies of this attempt take of the budget.
    pub share: Share,
}

impl Outgoing {
    fn request(&self) -> http::Request<RequestBody> {
        let mut request = http::Request::new(RequestBody::full(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from(self.target.clone());
        *request.headers_mut() = self.fields.clone();
        request
    }
}

/// The attempt's caller, as long as it is owed an answer.
#[derive(Debug)]
pub struct Caller(Option<oneshot::Sender<Delivery>>);

/// What the attempt's caller gets.
#[derive(Debug)]
pub enum Delivery {
    /// The end of the attempt.
    Concluded(std::sync::Arc<Conclusion>),
    /// A response that flows while the attempt goes on.
    Flowing(Box<http::Response<Body>>, RequestResult),
    /// Another process's attempt is running: the caller is a duplicate after all, and waits like one.
    Elsewhere(Seat),
}

impl Caller {
    /// The caller behind this channel.
    pub fn new(sender: oneshot::Sender<Delivery>) -> Caller {
        Caller(Some(sender))
    }

    /// Gives the caller its answer, and says whether it was still there.
    pub fn deliver(&mut self, delivery: Delivery) -> bool {
        self.0.take().is_some_and(|sender| sender.send(delivery).is_ok())
    }

    /// Whether the caller went away, or its time ended, before it was answered.
    pub fn left(&self) -> bool {
        self.0.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// What is known of the attempt.
#[derive(Debug)]
pub enum Outcome {
    /// Certainly not one byte was sent.
    NotSent(Problem),
    /// A whole response arrived.
    Answered(Box<Whole>),
    /// A whole response arrived, and flowed to the caller without being kept.
    Flowed(Response),
    /// Nobody can tell.
    Unknown(Reason, Option<Response>),
}

/// A response that was read to its end.
#[derive(Debug)]
pub struct Whole {
    /// The status.
    pub status: StatusCode,
    /// The fields as the caller gets them.
    pub fields: HeaderMap,
    /// The trailers, if there were any.
    pub trailers: Option<HeaderMap>,
    /// The body, which counts against the budget for as long as somebody has it.
    pub body: Bytes,
    /// The same, for the store.
    pub uncounted: Bytes,
}

/// Sends the request and reads the response, under the lease.
pub async fn forward(route: &Route, lease: &Lease, outgoing: &mut Outgoing, caller: &mut Caller) -> Outcome {
    let mut sending = Sending::begin(lease.notes(), &route.config, &outgoing.method, &outgoing.target);
    let outcome = attempt(route, lease, outgoing, &mut sending, caller).await;
    match &outcome {
        Outcome::Answered(whole) => sending.ended(Some(whole.status.as_u16()), None),
        Outcome::Flowed(kept) => sending.ended(Some(kept.status()), None),
        Outcome::Unknown(reason, kept) => sending.ended(kept.as_ref().map(Response::status), Some(reason.as_str())),
        Outcome::NotSent(_) => sending.ended(None, Some("not-sent")),
    }
    outcome
}

async fn attempt(
    route: &Route,
    lease: &Lease,
    outgoing: &mut Outgoing,
    sending: &mut Sending,
    caller: &mut Caller,
) -> Outcome {
    let started = Instant::now();
    let (mut head, mut body) = {
        let sending = pin!(send(route, lease, outgoing, sending));
        match route.alarms.bound(lease.abandon_at(), sending).await {
            Some(Ok(response)) => response.into_parts(),
            Some(Err(outcome)) => return *outcome,
            None if lease.was_sent() => return Outcome::Unknown(Reason::Timeout, None),
            None => return Outcome::NotSent(unreachable("no connection could be made in time")),
        }
    };
    let outcome = match receive(route, lease, outgoing, &mut head, &mut body).await {
        Received::Over(outcome) => outcome,
        Received::TooMuch(begun) => Box::pin(flow(route, lease, &head, begun, body, caller)).await,
    };
    route.metrics.upstream_seconds.took(started.elapsed());
    outcome
}

/// What is known when nothing came back. Boxed, as all that is rare here: the future of each attempt would be larger.
type Unanswered = Box<Outcome>;

async fn send(
    route: &Route,
    lease: &Lease,
    outgoing: &Outgoing,
    sending: &mut Sending,
) -> Result<http::Response<ResponseBody>, Unanswered> {
    let connection = match route.pool.reuse() {
        Some(connection) => connection,
        None => Box::pin(route.pool.checkout()).await.map_err(|error| not_connected(lease, &error))?,
    };
    lease.may_send().await.map_err(not_sent)?;
    match hand_over(lease, connection, outgoing, sending).await {
        Ok(response) => return Ok(response),
        Err(SendError::NotSent { .. }) => lease.set_sent(false),
        Err(error) => return Err(broken(lease, &error)),
    }
    Box::pin(send_again(route, lease, outgoing, sending)).await
}

/// Sends once more what was certainly not sent, on a fresh connection.
async fn send_again(
    route: &Route,
    lease: &Lease,
    outgoing: &Outgoing,
    sending: &mut Sending,
) -> Result<http::Response<ResponseBody>, Unanswered> {
    route.metrics.upstream_resends.inc();
    sending.again();
    let connection = route.pool.connect().await.map_err(|error| not_connected(lease, &error))?;
    lease.may_send().await.map_err(not_sent)?;
    match hand_over(lease, connection, outgoing, sending).await {
        Ok(response) => Ok(response),
        Err(SendError::NotSent { source, .. }) => {
            lease.set_sent(false);
            Err(not_sent(unreachable(source)))
        }
        Err(error) => Err(broken(lease, &error)),
    }
}

/// Gives the request to the connection at once: from here on a byte of it may have left.
fn hand_over(
    lease: &Lease,
    connection: Connection,
    outgoing: &Outgoing,
    sending: &Sending,
) -> impl Future<Output = Result<http::Response<ResponseBody>, SendError>> + Send + use<> {
    lease.set_sent(true);
    let mut request = outgoing.request();
    sending.mark(request.headers_mut());
    connection.send(request)
}

fn not_connected(lease: &Lease, error: &ConnectError) -> Unanswered {
    tracing::warn!(record = %lease.claim().id, error = %Chain(error), "upstream not reached");
    not_sent(unreachable(error.outline()))
}

fn not_sent(problem: Problem) -> Unanswered {
    Box::new(Outcome::NotSent(problem))
}

fn broken(lease: &Lease, error: &SendError) -> Unanswered {
    tracing::warn!(record = %lease.claim().id, error = %Chain(error), "upstream broke off");
    Box::new(Outcome::Unknown(Reason::Reset, None))
}

fn unreachable(why: impl std::fmt::Display) -> Problem {
    Problem::new(
        super::error::Kind::UpstreamUnreachable,
        format!("Nothing was sent to the upstream: {why}. The same request with the same key may be sent again."),
    )
}

/// A response's body, as far as it is kept.
enum Received {
    /// It is over, or no more of it comes.
    Over(Outcome),
    /// It is too large to be kept, or never ends; this is what came of it.
    TooMuch(Bytes),
}

async fn receive(
    route: &Route,
    lease: &Lease,
    outgoing: &mut Outgoing,
    head: &mut response::Parts,
    body: &mut ResponseBody,
) -> Received {
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        // Nobody asked for it. Passed on, it would make the caller read what follows as another protocol.
        return Received::Over(Outcome::Unknown(Reason::Status, Some(kept_head(route, lease, head))));
    }
    let bodiless = outgoing.method == Method::HEAD || head.status == StatusCode::NOT_MODIFIED;
    let limit = route.config.max_response_body;
    let declared = body.size_hint().exact().unwrap_or(0);
    if !bodiless && (declared > limit as u64 || is_event_stream(head)) {
        return Received::TooMuch(Bytes::new());
    }
    let collected = {
        let collecting = pin!(collect(body, limit, &mut outgoing.share));
        route.alarms.bound(lease.abandon_at(), collecting).await
    };
    Received::Over(match collected {
        Some(Ok(Collected::All(bytes, trailers, share))) => Outcome::Answered(Box::new(Whole {
            status: head.status,
            fields: headers::from_upstream(std::mem::take(&mut head.headers), head.version, bodiless),
            trailers: trailers.map(|trailers| *trailers),
            uncounted: bytes.clone(),
            body: body::counted(bytes, share),
        })),
        Some(Ok(Collected::TooMuch(begun))) => return Received::TooMuch(begun),
        Some(Err(error)) => {
            tracing::warn!(record = %lease.claim().id, error = %Chain(&*error), "upstream's response broke off");
            Outcome::Unknown(Reason::Truncated, Some(kept_head(route, lease, head)))
        }
        None => Outcome::Unknown(Reason::Timeout, Some(kept_head(route, lease, head))),
    })
}

fn is_event_stream(head: &response::Parts) -> bool {
    let content_type = head.headers.get(CONTENT_TYPE);
    content_type.is_some_and(|value| essence(value.as_bytes()).eq_ignore_ascii_case(b"text/event-stream"))
}

fn kept_head(route: &Route, lease: &Lease, head: &response::Parts) -> Response {
    let fields = headers::from_upstream(head.headers.clone(), head.version, false);
    headers::recorded(&route.config, head.status.as_u16(), &fields, None, None, lease.notes().origin())
}

enum Collected {
    All(Bytes, Option<Box<HeaderMap>>, Share),
    TooMuch(Bytes),
}

async fn collect(
    body: &mut ResponseBody,
    limit: usize,
    share: &mut Share,
) -> Result<Collected, Box<dyn std::error::Error + Send + Sync>> {
    let mut pieces = Pieces::default();
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                let fits = pieces.len() + data.len() <= limit && share.grow(data.len());
                pieces.push(data);
                if !fits {
                    return Ok(Collected::TooMuch(pieces.into_bytes()));
                }
            }
            Err(frame) => trailers = headers::frame_to_pass(frame).into_trailers().ok().map(Box::new),
        }
    }
    let share = share.split(pieces.len());
    Ok(Collected::All(pieces.into_bytes(), trailers, share))
}

/// Passes a response on while it arrives. It is kept without its body, and the patience counts between bytes.
async fn flow(
    route: &Route,
    lease: &Lease,
    head: &response::Parts,
    begun: Bytes,
    mut body: ResponseBody,
    caller: &mut Caller,
) -> Outcome {
    let kept = kept_head(route, lease, head);
    let patience = lease.claim().abandon_after;
    let mut relay = Relay::start(route, lease, head, caller);
    if !begun.is_empty() {
        relay.pass(Frame::data(begun), patience).await;
    }
    loop {
        match timeout(patience, body.frame()).await {
            Ok(None) => {
                relay.end(patience).await;
                return Outcome::Flowed(kept);
            }
            Ok(Some(Ok(frame))) => relay.pass(headers::frame_to_pass(frame), patience).await,
            Ok(Some(Err(error))) => {
                tracing::warn!(record = %lease.claim().id, error = %Chain(&error), "upstream's response broke off");
                return Outcome::Unknown(Reason::Truncated, Some(kept));
            }
            Err(_) => return Outcome::Unknown(Reason::Timeout, Some(kept)),
        }
    }
}

/// Hands a flowing response to its caller, for as long as there is one. Dropped without [`Relay::end`], it breaks the
/// caller's response off.
struct Relay(Option<mpsc::Sender<Option<Frame<Bytes>>>>);

impl Relay {
    fn start(route: &Route, lease: &Lease, head: &response::Parts, caller: &mut Caller) -> Relay {
        // A few frames: enough to keep both sides busy, few enough to hold a fast upstream back.
        let (sender, receiver) = mpsc::channel(4);
        let mut response = http::Response::new(Body::relayed(receiver));
        *response.status_mut() = head.status;
        *response.headers_mut() = headers::from_upstream(head.headers.clone(), head.version, true);
        let (status, result) = match route.config.statuses.verdict(head.status.as_u16()) {
            _ if !lease.is_protected() => (CacheStatus::Bypass("store-error"), RequestResult::Unprotected),
            Verdict::Record => (CacheStatus::Missed(Some("response-not-retained")), RequestResult::Executed),
            Verdict::Release => (CacheStatus::Missed(None), RequestResult::Released),
            Verdict::Unknown => (CacheStatus::Missed(Some("outcome-unknown")), RequestResult::Unknown),
        };
        headers::add_cache_status(response.headers_mut(), &status);
        let there = caller.deliver(Delivery::Flowing(Box::new(response), result));
        Relay(there.then_some(sender))
    }

    async fn pass(&mut self, frame: Frame<Bytes>, patience: Duration) {
        self.send(Some(frame), patience).await;
    }

    async fn end(&mut self, patience: Duration) {
        self.send(None, patience).await;
    }

    async fn send(&mut self, frame: Option<Frame<Bytes>>, patience: Duration) {
        // A caller that stopped reading is given up like one that left; the upstream is still listened to.
        if let Some(sender) = &self.0
            && !matches!(timeout(patience, sender.send(frame)).await, Ok(Ok(())))
        {
            self.0 = None;
        }
    }
}
