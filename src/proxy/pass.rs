//! Passing through: requests without protection, as a plain reverse proxy handles them.
//!
//! Bodies stream both ways without being held. A message that was certainly not sent goes out once more; nothing else
//! is ever sent again.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Request, StatusCode, Uri, Version, request};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::task::JoinHandle;

use super::body::{self, Arriving, Body, BodyError};
use super::error::{Kind, Problem};
use super::forward::OVER_TLS;
use super::headers::{self, CacheStatus, Peer};
use super::notes::{Notes, Sending};
use super::respond::Answer;
use super::route::{self, Route};
use super::shared::Shared;
use super::tunnel::{self, Bounds, Offer};
use crate::alarm::Alarm;
use crate::chain::Chain;
use crate::interim::Interim;
use crate::metrics::RequestResult;
use crate::record::Reason;
use crate::upstream::{ConnectError, RequestBody, ResponseBody, SendError, switched};

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
pub struct Passage<'a, H> {
    /// The client.
    pub peer: Peer,
    /// Where interim answers go.
    pub interim: Option<Interim>,
    /// Given back when the response, or what comes after a 101, has ended.
    pub held: H,
    /// How long an upgraded connection may be silent.
    pub idle: Duration,
    /// What counts upgraded connections, and ends them.
    pub shared: &'a Shared,
    /// What is noted of the request.
    pub notes: &'a Notes,
}

/// Forwards a request without protection.
pub async fn pass<H: Send + 'static>(
    route: &Route,
    head: &mut request::Parts,
    body: Plain,
    mut passage: Passage<'_, H>,
) -> Result<Answer, Problem> {
    let interim = passage.interim.take();
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
            let mut body = body::begun(head, body).await?;
            let is_http2 = head.version == Version::HTTP_2;
            let whole = if is_http2 { None } else { body.take_whole() };
            match whole {
                // As a stream it would be asked for by another task.
                Some(bytes) => RequestBody::full(bytes),
                None => {
                    let doubt = if is_http2 { Doubt::Unasked } else { Doubt::None };
                    RequestBody::stream(Watched { body, progress: progress.clone(), doubt })
                }
            }
        }
        Plain::Read(bytes) => RequestBody::full(bytes),
    };
    let target = route::target(&route.config, head);
    let mut sending = Sending::begin(passage.notes, &route.config, &head.method, &target);
    let make = |body| {
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = Uri::from(target);
        *request.headers_mut() = headers::to_upstream(&route.config, head, passage.peer, None);
        framing.write(request.headers_mut());
        if let Some(offer) = &offer {
            offer.ask(request.headers_mut());
        }
        request
    };
    let sent = send(route, make, body, &progress, &mut sending, interim).await;
    match &sent {
        Ok(response) => sending.ended(Some(response.status().as_u16()), None),
        Err(Failure::NotSent(_)) => sending.ended(None, Some("not-sent")),
        Err(Failure::Broken) => sending.ended(None, Some(Reason::Reset.as_str())),
        Err(Failure::TimedOut) => sending.ended(None, Some(Reason::Timeout.as_str())),
    }
    let (parts, body) = match sent {
        Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            return switch(offer, response, passage).ok_or_else(|| {
                // Passed on, it would change how the caller reads.
                broken(head, Kind::OutcomeUnknownBroken, "The upstream switched to a protocol that was not asked for.")
            });
        }
        Ok(response) => response.into_parts(),
        Err(Failure::TimedOut) if progress.waits() => {
            let what = "The rest of the request body did not come in time; the upstream got a part of the request at the most.";
            return Err(Problem::new(Kind::BodyTimeout, what));
        }
        Err(Failure::TimedOut) => {
            return Err(broken(head, Kind::OutcomeUnknownTimeout, "The upstream did not answer in time."));
        }
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
    let held = Box::new((owed, passage.held));
    let mut response = http::Response::new(Body::passing(body, route.config.abandon_after, held));
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers::from_upstream(parts.headers, parts.version, true);
    headers::add_cache_status(response.headers_mut(), &CacheStatus::Bypass("unprotected"));
    Ok(Answer::new(response, RequestResult::Unprotected))
}

/// Answers that the connection switches, and has it run on as a tunnel; `None` if the upstream did so unasked.
fn switch<H: Send + 'static>(
    offer: Option<Offer>,
    upstream: http::Response<ResponseBody>,
    passage: Passage<'_, H>,
) -> Option<Answer> {
    let Passage { held, idle, shared, .. } = passage;
    let offer = offer?;
    let protocol = offer.chosen(upstream.headers())?;
    let mut response = http::Response::new(Body::full(Bytes::new()));
    let (mut parts, body) = upstream.into_parts();
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers::from_upstream(std::mem::take(&mut parts.headers), parts.version, false);
    headers::add_cache_status(response.headers_mut(), &CacheStatus::Bypass("unprotected"));
    tunnel::announce(response.headers_mut(), protocol);
    let bounds = Bounds { idle, cut_off: shared.cut_off.clone(), counted: shared.tasks.enter(), held: Box::new(held) };
    tunnel::run(offer.accepted(), switched(http::Response::from_parts(parts, body)), bounds, |_| ());
    Some(Answer::new(response, RequestResult::Unprotected))
}

/// How the body is framed towards the upstream: rebuilt, never passed on. hyper would leave the body of a GET out that
/// has neither field.
enum Framing {
    /// There is no body, and the client says nothing of one.
    None,
    Length(u64),
    Chunked,
}

fn framing(head: &request::Parts, body: &Plain) -> Framing {
    let length = match body {
        Plain::Coming(body) => body.size_hint().exact(),
        Plain::Read(bytes) => Some(bytes.len() as u64),
    };
    match length {
        None => Framing::Chunked,
        Some(0) if !head.headers.contains_key(CONTENT_LENGTH) => Framing::None,
        Some(length) => Framing::Length(length),
    }
}

impl Framing {
    fn write(&self, fields: &mut HeaderMap) {
        match self {
            Framing::None => {}
            // Checked when it came, and nearly always in the words that it would be written in.
            Framing::Length(length) if fields.get(CONTENT_LENGTH).is_some_and(|line| says(line, *length)) => {}
            Framing::Length(length) => _ = fields.insert(CONTENT_LENGTH, HeaderValue::from(*length)),
            Framing::Chunked => {
                fields.remove(CONTENT_LENGTH);
                fields.append(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
    }
}

/// Whether a line is this number as it is usually written, and that alone.
fn says(line: &HeaderValue, number: u64) -> bool {
    let digits = line.as_bytes();
    let usual = digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || digits.first() != Some(&b'0'));
    usual && line.to_str().is_ok_and(|text| text.parse() == Ok(number))
}

enum Failure {
    NotSent(String),
    Broken,
    TimedOut,
}

/// Sends the request that is made with this body, and once more if that was certainly not sent and the body is still
/// there.
async fn send(
    route: &Route,
    make: impl FnOnce(RequestBody) -> Request<RequestBody>,
    body: RequestBody,
    progress: &Progress,
    sending: &mut Sending,
    interim: Option<Interim>,
) -> Result<http::Response<ResponseBody>, Failure> {
    let mut patience = Patience::new(route, progress);
    let pool = route.pool.for_plain();
    let connection = match pool.reuse() {
        Some(connection) => connection,
        None => patience.wait(Box::pin(pool.checkout())).await?.map_err(|error| not_connected(route, &error))?,
    };
    // Made only now, and gone before the next wait: the future of every request would be larger by it.
    let (head, answer) = {
        let mut request = make(body);
        sending.mark(request.headers_mut());
        // A stream of HTTP/2 may be refused, and then the body alone comes back.
        let head = (!route.pool.can_switch()).then(|| Box::new(head_of(&request)));
        (head, connection.telling(interim.clone().map(headers::pass_interim)).send(request))
    };
    let mut again = match patience.wait(pin!(answer)).await? {
        Ok(response) => return Ok(response),
        Err(SendError::NotSent { request: Some(request), .. }) => request,
        Err(error @ SendError::NotSent { body: None, .. }) => return Err(not_sent(route, &error)),
        Err(SendError::NotSent { body: Some(body), source, .. }) => match head {
            Some(head) => Box::new(head.map(|()| *body)),
            None => return Err(not_sent(route, &*source)),
        },
        Err(error @ SendError::SpeaksTls { .. }) => return Err(refused_unread(route, &error)),
        Err(error) => return Err(broke(route, &error)),
    };
    route.metrics.upstream_resends.inc();
    sending.again();
    let resent = Box::pin(async {
        let connection = pool.connect().await.map_err(|error| not_connected(route, &error))?;
        sending.mark(again.headers_mut());
        match connection.telling(interim.map(headers::pass_interim)).send(*again).await {
            Ok(response) => Ok(response),
            Err(error @ SendError::NotSent { .. }) => Err(not_sent(route, &error)),
            Err(error @ SendError::SpeaksTls { .. }) => Err(refused_unread(route, &error)),
            Err(error) => Err(broke(route, &error)),
        }
    });
    patience.wait(resent).await?
}

/// The request without its body.
fn head_of(request: &Request<RequestBody>) -> Request<()> {
    let mut head = Request::new(());
    *head.method_mut() = request.method().clone();
    *head.uri_mut() = request.uri().clone();
    *head.headers_mut() = request.headers().clone();
    head
}

/// As for keyed requests: of each kind one a second is a warning.
fn tell(route: &Route, error: &dyn std::error::Error, what: &'static str) {
    let (name, error) = (&route.config.name, Chain(error));
    match route.failures.count(what) {
        Some(left_out) => tracing::warn!(route = %name, %error, left_out, "{what}"),
        None => tracing::debug!(route = %name, %error, "{what}"),
    }
}

fn not_connected(route: &Route, error: &ConnectError) -> Failure {
    not_sent(route, error);
    Failure::NotSent(error.outline().to_owned())
}

fn refused_unread(route: &Route, error: &SendError) -> Failure {
    not_sent(route, error);
    Failure::NotSent(OVER_TLS.to_owned())
}

fn not_sent(route: &Route, error: &dyn std::error::Error) -> Failure {
    tell(route, error, "upstream not reached");
    Failure::NotSent(error.to_string())
}

fn broke(route: &Route, error: &dyn std::error::Error) -> Failure {
    tell(route, error, "upstream broke off an unprotected request");
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
struct Progress(Arc<Moved>);

#[derive(Debug, Default)]
struct Moved {
    /// Pieces so far.
    count: AtomicU64,
    /// Whether the upstream has room for more and the client has sent none.
    waits: AtomicBool,
}

/// What [`Progress`] counts to when the body broke.
const BROKEN: u64 = u64::MAX;

/// What it counts to when nobody is owed an answer any more.
const ABANDONED: u64 = u64::MAX - 1;

/// The answer that is owed to the client, until it has it or is gone.
struct Owed(Progress);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.0.count.store(ABANDONED, Ordering::Relaxed);
    }
}

impl Progress {
    fn count(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed)
    }

    /// Whether it is the client that is waited for.
    fn waits(&self) -> bool {
        self.0.waits.load(Ordering::Relaxed)
    }

    /// Whether it was the client's body that failed.
    fn is_broken(&self) -> bool {
        self.count() == BROKEN
    }
}

/// Waits for the upstream as long as the request's body moves, and for the route's `timeout` after it stopped.
struct Patience<'a> {
    progress: &'a Progress,
    within: Duration,
    alarm: Alarm<'a>,
    /// How far the body was when the alarm was set.
    before: u64,
}

impl<'a> Patience<'a> {
    fn new(route: &'a Route, progress: &'a Progress) -> Patience<'a> {
        let within = route.config.timeout;
        Patience { progress, within, alarm: route.alarms.after(within), before: progress.count() }
    }

    async fn wait<F: Future + Unpin>(&mut self, mut future: F) -> Result<F::Output, Failure> {
        poll_fn(|cx| {
            if let Poll::Ready(output) = Pin::new(&mut future).poll(cx) {
                return Poll::Ready(Ok(output));
            }
            while self.alarm.poll(cx).is_ready() {
                let now = self.progress.count();
                if now == self.before {
                    return Poll::Ready(Err(Failure::TimedOut));
                }
                self.before = now;
                self.alarm.put_off(self.within);
            }
            Poll::Pending
        })
        .await
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
            if self.progress.count() == ABANDONED {
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
        let Moved { count, waits } = &*self.progress.0;
        waits.store(polled.is_pending(), Ordering::Relaxed);
        match polled {
            Poll::Ready(Some(Err(_))) => count.store(BROKEN, Ordering::Relaxed),
            Poll::Ready(None) => return self.poll_end(cx),
            Poll::Ready(_) => _ = count.fetch_add(1, Ordering::Relaxed),
            Poll::Pending => {}
        }
        polled.map(|frame| frame.map(|frame| frame.map(headers::frame_to_pass).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.doubt, Doubt::None) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_left_as_it_came_only_in_the_usual_words() {
        for (line, is_left) in
            [("12", true), ("012", false), ("+12", false), ("12 ", false), ("12, 12", false), ("13", false)]
        {
            let mut fields = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static(line))]);
            assert_eq!(says(&fields[CONTENT_LENGTH], 12), is_left, "{line:?}");
            Framing::Length(12).write(&mut fields);
            assert_eq!(fields[CONTENT_LENGTH], "12");
        }
        assert!(says(&HeaderValue::from_static("0"), 0) && !says(&HeaderValue::from_static(""), 0));
    }
}
