//! HTTP/2: the protocol's settings, how its requests become what the service knows from HTTP/1, and its answers.
//!
//! The service sees the same request whichever version it came by: a target in origin form, one `Host`, one `Cookie`.
//! The connection's deadlines are kept by `streams`, its bytes by `flow`.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::time::{Instant, sleep_until};

use crate::config::Limits;
use crate::shutdown::{Tasks, spawn_counted};

use super::drain::Drain;
use super::fault::HeadFault;
use super::flow::Flow;
use super::socket::Socket;
use super::streams::{Misuse, Next, StreamTurn, Streams};
use super::{BoxError, Peer, answer, head};

/// How much of one request's body may be on its way, unread.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The largest window that there is (RFC 9113, section 6.9.1).
const LARGEST_WINDOW: u32 = (1 << 31) - 1;

/// How much of one answer is handed over at a time. Small, so that an answer is over only when its client took nearly
/// all of it.
const PIECE: usize = 16 * 1024;

/// The settings of the protocol. Lists of fields are bounded like heads of HTTP/1: over it 431.
pub(super) fn protocol(limits: &Limits, tasks: &Tasks) -> http2::Builder<Spawner> {
    let streams = u32::try_from(limits.streams).unwrap_or(u32::MAX);
    // All that its streams may have on their way: bodies that nobody reads yet must not hold up the others.
    let window = STREAM_WINDOW.saturating_mul(streams).min(LARGEST_WINDOW);
    let mut http = http2::Builder::new(Spawner(tasks.clone()));
    http.max_concurrent_streams(streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(window)
        .max_send_buf_size(4 * PIECE);
    http
}

/// Runs each request of a connection as a counted task of its own.
#[derive(Clone, Debug)]
pub(super) struct Spawner(Tasks);

impl<F> hyper::rt::Executor<F> for Spawner
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        spawn_counted(&self.0, future);
    }
}

/// Why a connection ended before its time.
#[derive(Debug, Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Misuse(#[from] Misuse),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

impl Broken {
    /// Whether the client is to blame, and not the network.
    pub(super) fn is_abuse(&self) -> bool {
        match self {
            Broken::Misuse(misuse) => *misuse != Misuse::Stays,
            Broken::Http(error) => {
                let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
                cause.is_some_and(|cause| cause.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM))
            }
        }
    }
}

/// Serves one connection to its end. When draining begins, the client is told to make no more requests here, and those
/// that have begun are answered.
pub(super) async fn serve<S, F, B>(
    socket: Socket,
    streams: &Arc<Streams>,
    http: &http2::Builder<Spawner>,
    service: S,
    peer: Peer,
    drain: &Arc<Drain>,
) -> Result<(), Broken>
where
    S: Fn(Request<Incoming>, Peer) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let counted = streams.clone();
    let answering = service_fn(move |mut request: Request<Incoming>| {
        let turn = counted.begin();
        let is_head = request.method() == Method::HEAD;
        let called = head::adopt(&mut request).map(|()| service(request, peer.clone()));
        reply(called, turn, peer.remote, is_head)
    });
    let connection = http.serve_connection(TokioIo::new(Flow::new(socket, streams.idle_timeout())), answering);
    let mut connection = pin!(connection);
    let mut alarm = pin!(sleep_until(streams.first_look()));
    let (mut wake, mut told) = (None, None);
    poll_fn(|cx| {
        // The waker of a task stays the same, so that once is enough.
        wake.get_or_insert_with(|| {
            streams.wake_with(cx.waker());
            streams.presence().wake_with(cx.waker());
            drain.wake(cx.waker())
        });
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended.map_err(Broken::Http));
            }
            let draining = drain.has_begun() || streams.presence().must_leave();
            // Deadlines only ever move away, but for those of a client that is to go.
            let near = draining || told.is_some() || streams.is_spent();
            if alarm.as_mut().poll(cx).is_pending() && !near {
                return Poll::Pending;
            }
            match streams.next(draining, told) {
                Next::Cut(misuse) => return Poll::Ready(Err(misuse.into())),
                Next::Leave => {
                    told = Some(Instant::now());
                    connection.as_mut().graceful_shutdown();
                }
                Next::Wait(until) => {
                    if alarm.deadline() != until {
                        alarm.as_mut().reset(until);
                    }
                    if alarm.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    })
    .await
}

/// Waits for the service's answer, or refuses the request.
async fn reply<F, B>(
    called: Result<F, HeadFault>,
    mut turn: StreamTurn,
    remote: Option<SocketAddr>,
    is_head: bool,
) -> Result<Response<Reply<B>>, Infallible>
where
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes>,
{
    let mut response = match called {
        Ok(running) => running.await.map(|body| (Some(body), Bytes::new())),
        Err(fault) => {
            tracing::debug!(?remote, %fault, "a request was refused by its head");
            answer::refusal(fault).map(|text| (None, text))
        }
    };
    if is_head {
        without_body(&mut response);
    }
    let ended = response.body().0.as_ref().is_none_or(B::is_end_stream) && response.body().1.is_empty();
    if ended {
        turn.end();
    } else {
        turn.set_clients(true);
    }
    Ok(response.map(|(body, piece)| Reply { body, piece, turn }))
}

/// Takes the body off the answer to a HEAD, which hyper does for HTTP/1 alone, and leaves its length.
fn without_body<B: Body>(response: &mut Response<(Option<B>, Bytes)>) {
    let (body, piece) = response.body_mut();
    let length = body.as_ref().map_or(Some(piece.len() as u64), |body| body.size_hint().exact());
    (*body, *piece) = (None, Bytes::new());
    if let Some(length) = length.filter(|length| *length > 0) {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
    }
}

/// The body that hyper writes: the service's in small pieces, or the sentence of a refusal.
#[derive(Debug)]
struct Reply<B> {
    body: Option<B>,
    /// What is left of a frame that was too large to hand over whole.
    piece: Bytes,
    turn: StreamTurn,
}

impl<B: Body<Data = Bytes>> Reply<B> {
    fn hand_over(&mut self) -> Frame<Bytes> {
        let piece = self.piece.split_to(self.piece.len().min(PIECE));
        Frame::data(piece)
    }
}

impl<B> Body for Reply<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let polled = match &mut this.body {
            _ if !this.piece.is_empty() => Poll::Ready(Some(Ok(this.hand_over()))),
            None => Poll::Ready(None),
            Some(body) => match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        this.piece = data;
                        Poll::Ready(Some(Ok(this.hand_over())))
                    }
                    Err(trailers) => Poll::Ready(Some(Ok(trailers))),
                },
                polled => polled,
            },
        };
        let is_last = matches!(&polled, Poll::Ready(None | Some(Err(_)))) || this.is_end_stream();
        match polled.is_ready() {
            true if is_last => this.turn.end(),
            ready => this.turn.set_clients(ready),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && self.body.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), B::size_hint);
        let here = self.piece.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + here);
        }
        hint.set_lower(hint.lower() + here);
        hint
    }
}
