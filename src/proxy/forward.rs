//! Step 6, forward: one attempt at the upstream, and what is known of it afterwards.
//!
//! The upstream is sent the request at most once. Only a message that was certainly not sent (handed back by the
//! connection) goes out a second time, on a fresh connection, and is counted.

use std::pin::pin;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use http::uri::PathAndQuery;
use http::{Method, StatusCode, Uri, request, response};
use http_body::Body as _;
use tokio::time::Instant;

use self::flow::{Streamed, flow};
use self::gather::{Begun, Gathered, gather};
use super::body;
use super::budget::Share;
use super::error::Problem;
use super::headers::{self, Peer};
use super::key::Key;
use super::lease::Lease;
use super::notes::Sending;
use super::outcome::{Arrived, Head, Kept, Outcome, is_grpc};
use super::route::{self, Route};
use crate::chain::Chain;
use crate::config;
use crate::fields::essence;
use crate::interim::Interim;
use crate::record::Reason;
use crate::upstream::{BodyError, ConnectError, Connection, RequestBody, ResponseBody, SendError};

mod caller;
mod flow;
mod gather;

pub use self::caller::{Caller, Delivery};

/// A keyed request as it came, read whole.
#[derive(Debug)]
pub struct Original {
    /// Its head.
    pub head: request::Parts,
    /// Who sent it.
    pub peer: Peer,
    /// Its body.
    pub body: body::Whole,
    /// Where interim answers to it go.
    pub interim: Option<Interim>,
}

impl Original {
    /// The request as the upstream is to see it. What is large is moved out of here.
    pub fn outgoing(&mut self, route: &config::Route, key: &Key) -> Outgoing {
        let Original { head, peer, body, interim } = self;
        let (bytes, share) = (std::mem::take(&mut body.bytes), body.share.split(usize::MAX));
        // A client that gave a length sees it reach the upstream, be it 0.
        let says_length = head.headers.contains_key(CONTENT_LENGTH) || !bytes.is_empty();
        let target = route::target(route, head);
        let mut fields = headers::to_upstream(route, head, *peer, Some(key));
        if says_length {
            fields.insert(CONTENT_LENGTH, bytes.len().into());
        }
        Outgoing { method: head.method.clone(), target, fields, interim: interim.take(), body: bytes, share }
    }
}

/// A keyed request as the upstream is to see it.
#[derive(Debug)]
pub struct Outgoing {
    /// The method.
    pub method: Method,
    /// The target in origin form.
    pub target: PathAndQuery,
    /// All fields, the length of the body among them.
    pub fields: HeaderMap,
    /// Where interim answers go.
    pub interim: Option<Interim>,
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

/// Sends the request and reads the response, under the lease.
pub async fn forward(route: &Route, lease: &Lease, outgoing: &mut Outgoing, caller: &mut Caller) -> Outcome {
    let mut sending = Sending::begin(lease.notes(), &route.config, &outgoing.method, &outgoing.target);
    let outcome = attempt(route, lease, outgoing, &mut sending, caller).await;
    match &outcome {
        Outcome::Answered(arrived) => sending.ended(Some(arrived.head.status.as_u16()), None),
        Outcome::Unknown(reason, head) => {
            sending.ended(head.as_ref().map(|head| head.status.as_u16()), Some(reason.as_str()));
        }
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
        Received::Flows { begun, is_stream } => {
            let stream = Streamed { head: taken(&mut head, true), begun, body, is_stream };
            Box::pin(flow(route, lease, stream, &mut outgoing.share, caller)).await
        }
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
        None => Box::pin(route.pool.checkout()).await.map_err(|error| not_connected(route, lease, &error))?,
    };
    lease.may_send().await.map_err(not_sent)?;
    match hand_over(lease, connection, outgoing, sending).await {
        Ok(response) => return Ok(response),
        Err(SendError::NotSent { .. }) => lease.set_sent(false),
        Err(error @ SendError::SpeaksTls { .. }) => return Err(refused_unread(route, lease, &error)),
        Err(error) => return Err(broken(route, lease, &error)),
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
    let connection = route.pool.connect().await.map_err(|error| not_connected(route, lease, &error))?;
    lease.may_send().await.map_err(not_sent)?;
    match hand_over(lease, connection, outgoing, sending).await {
        Ok(response) => Ok(response),
        Err(SendError::NotSent { source, .. }) => {
            lease.set_sent(false);
            Err(not_sent(unreachable(source)))
        }
        Err(error @ SendError::SpeaksTls { .. }) => Err(refused_unread(route, lease, &error)),
        Err(error) => Err(broken(route, lease, &error)),
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
    connection.telling(outgoing.interim.clone().map(headers::pass_interim)).send(request)
}

/// Tells what went wrong with the upstream: of each kind one a second is a warning, the others are there at `debug`. What
/// becomes of a record is told of each.
fn tell(route: &Route, lease: &Lease, error: &dyn std::error::Error, what: &'static str) {
    let (record, error) = (&lease.claim().id, Chain(error));
    match route.failures.count(what) {
        Some(left_out) => tracing::warn!(%record, %error, left_out, "{what}"),
        None => tracing::debug!(%record, %error, "{what}"),
    }
}

fn not_connected(route: &Route, lease: &Lease, error: &ConnectError) -> Unanswered {
    tell(route, lease, error, "upstream not reached");
    not_sent(unreachable(error.outline()))
}

/// It came to a TLS stack, which asks for a handshake and hands nothing on before: no server has seen the request.
fn refused_unread(route: &Route, lease: &Lease, error: &SendError) -> Unanswered {
    tell(route, lease, error, "upstream not reached");
    lease.set_sent(false);
    not_sent(unreachable(OVER_TLS))
}

fn not_sent(problem: Problem) -> Unanswered {
    Box::new(Outcome::NotSent(problem))
}

fn broken(route: &Route, lease: &Lease, error: &SendError) -> Unanswered {
    if error.is_head_too_large() {
        tell(route, lease, error, "upstream's answer has too long a head");
        return Box::new(Outcome::Unknown(Reason::HeadTooLarge, None));
    }
    tell(route, lease, error, "upstream broke off");
    Box::new(Outcome::Unknown(Reason::Reset, None))
}

/// What a caller is told of an upstream that wanted TLS.
pub(super) const OVER_TLS: &str = "it speaks TLS there, refused the request unread, and the settings say http://";

fn unreachable(why: impl std::fmt::Display) -> Problem {
    Problem::new(
        super::error::Kind::UpstreamUnreachable,
        format!("Nothing was sent to the upstream: {why}. The same request with the same key may be sent again."),
    )
}

/// What came of a response's body before its caller has any of it.
enum Received {
    /// It is over, or no more of it comes.
    Over(Outcome),
    /// It goes to the caller while it arrives; this is the first of it.
    Flows { begun: Begun, is_stream: bool },
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
        return Received::Over(Outcome::Unknown(Reason::Status, Some(Box::new(taken(head, false)))));
    }
    let bodiless = outgoing.method == Method::HEAD || head.status == StatusCode::NOT_MODIFIED;
    let limit = route.config.max_response_body;
    let declared = body.size_hint().exact().unwrap_or(0);
    let is_stream = !bodiless && is_stream(&route.config, &head.headers);
    if !bodiless && declared > limit as u64 {
        return Received::Flows { begun: Begun { bytes: Bytes::new(), is_kept: false }, is_stream };
    }
    let gathered = {
        let gathering = pin!(gather(body, is_stream, limit, &mut outgoing.share));
        route.alarms.bound(lease.abandon_at(), gathering).await
    };
    Received::Over(match gathered {
        Some(Ok(Gathered::All(bytes, trailers, share))) => Outcome::Answered(Box::new(Arrived {
            head: taken(head, bodiless),
            trailers: trailers.map(|trailers| *trailers),
            body: Some(Kept::new(bytes, share)),
            is_stream,
        })),
        Some(Ok(Gathered::Begun(begun))) => return Received::Flows { begun, is_stream },
        Some(Err(error)) => Outcome::Unknown(truncated(route, lease, &error), Some(Box::new(taken(head, false)))),
        None => Outcome::Unknown(Reason::Timeout, Some(Box::new(taken(head, false)))),
    })
}

/// Whether an answer goes to its caller while it arrives. Nothing says of a gRPC answer whether more messages follow.
fn is_stream(route: &config::Route, fields: &HeaderMap) -> bool {
    fields.get_all(CONTENT_TYPE).iter().any(|value| {
        let value = value.as_bytes();
        let media_type = essence(value);
        is_grpc(value) || route.stream_types.iter().any(|known| media_type.eq_ignore_ascii_case(known.as_bytes()))
    })
}

fn truncated(route: &Route, lease: &Lease, error: &BodyError) -> Reason {
    tell(route, lease, error, "upstream's response broke off");
    Reason::Truncated
}

/// Takes the head as the caller gets it; with its length where the body does not give that.
fn taken(head: &mut response::Parts, keep_length: bool) -> Head {
    let fields = headers::from_upstream(std::mem::take(&mut head.headers), head.version, keep_length);
    Head { status: head.status, fields }
}
