//! Passing through: requests without protection, as a plain reverse proxy handles them.
//!
//! Bodies stream both ways without being held. A message that was certainly not sent goes out once more; nothing else
//! is ever sent again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Request, StatusCode, Uri, request};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;

use super::body::{Body, Held};
use super::claim::Chain;
use super::error::{Kind, Problem};
use super::headers::{self, CacheStatus, Peer};
use super::respond::Answer;
use super::route::{self, Route};
use crate::metrics::RequestResult;
use crate::upstream::{RequestBody, ResponseBody, SendError};

/// The body of a plain request: as it comes, or read already while a key was looked for.
#[derive(Debug)]
pub enum Plain {
    /// Still on its way.
    Coming(Incoming),
    /// Here.
    Read(Bytes),
}

/// Forwards a request without protection.
pub async fn pass(
    route: &Route,
    head: &request::Parts,
    body: Plain,
    peer: Peer,
    held: Held,
) -> Result<Answer, Problem> {
    let progress = Progress::default();
    let mut request = Request::new(match body {
        Plain::Coming(body) if body.is_end_stream() => RequestBody::full(Bytes::new()),
        Plain::Coming(body) => RequestBody::stream(Watched { body, progress: progress.clone() }),
        Plain::Read(bytes) => RequestBody::full(bytes),
    });
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = Uri::from(route::target(&route.config, head));
    *request.headers_mut() = headers::to_upstream(&route.config, head, peer, None);
    if let Some(length) = head.headers.get(CONTENT_LENGTH) {
        request.headers_mut().insert(CONTENT_LENGTH, length.clone());
    }
    let sending = send(route, request);
    let Some(sent) = progress.bounded(route.config.timeout, sending).await else {
        return Err(broken(head, Kind::OutcomeUnknownTimeout, "The upstream did not answer in time."));
    };
    let (parts, body) = match sent {
        // `Upgrade` was taken off, so nobody asked for it; passed on, it would change how the caller reads.
        Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            return Err(broken(head, Kind::OutcomeUnknownBroken, "The upstream switched protocols unasked."));
        }
        Ok(response) => response.into_parts(),
        Err(Failure::NotSent(why)) => {
            let detail = format!("Nothing was sent to the upstream: {why}.");
            return Err(Problem::new(Kind::UpstreamUnreachable, detail));
        }
        Err(Failure::Broken) => {
            let what = "The connection to the upstream broke after the request was sent.";
            return Err(broken(head, Kind::OutcomeUnknownBroken, what));
        }
    };
    let mut response = http::Response::new(Body::passing(body, held));
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers::from_upstream(&parts, true);
    headers::add_cache_status(response.headers_mut(), &CacheStatus::Bypass("unprotected"));
    Ok(Answer::new(response, RequestResult::Unprotected).with_via())
}

enum Failure {
    NotSent(String),
    Broken,
}

async fn send(route: &Route, request: Request<RequestBody>) -> Result<http::Response<ResponseBody>, Failure> {
    let connection = route.pool.checkout().await.map_err(|error| not_sent(route, &error))?;
    let again = match connection.send(request).await {
        Ok(response) => return Ok(response),
        // Only a message that was handed back still has its body.
        Err(SendError::NotSent { request: Some(request), .. }) => *request,
        Err(error @ SendError::NotSent { .. }) => return Err(not_sent(route, &error)),
        Err(error) => return Err(broke(route, &error)),
    };
    route.metrics.upstream_resends.inc();
    let connection = route.pool.connect().await.map_err(|error| not_sent(route, &error))?;
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

impl Progress {
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

/// A request body that says when it moves.
struct Watched {
    body: Incoming,
    progress: Progress,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() {
            self.progress.0.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
