//! The body of a response to the client: there already, handed over by the attempt's task, or the upstream's own on its way
//! through.
//!
//! Whatever does not come to its end breaks off visibly; it never looks like a shorter body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Sleep, sleep};

use crate::proxy::headers;
use crate::upstream::ResponseBody;

/// What breaks a response's body on its way to the client.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an upstream's response ended before its end.
#[derive(Debug, thiserror::Error)]
#[error("the upstream's response ended before its end")]
pub struct CutShort;

/// The body of an upstream's response stopped coming.
#[derive(Debug, thiserror::Error)]
#[error("nothing more of the upstream's response came in time")]
pub struct Stalled;

/// The body of a response to the client.
#[derive(Debug)]
pub struct Body(Inner);

#[derive(Debug)]
enum Inner {
    Whole { data: Option<Bytes>, trailers: Option<Box<HeaderMap>> },
    Relayed(Box<Relayed>),
    Upstream(Box<Passing>),
}

/// A response that a task hands over piece by piece.
#[derive(Debug)]
struct Relayed {
    pieces: mpsc::Receiver<Bytes>,
    /// Comes after the last piece, with the trailers.
    end: oneshot::Receiver<Option<HeaderMap>>,
    ended: bool,
}

impl Relayed {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(piece) = ready!(self.pieces.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let end = ready!(Pin::new(&mut self.end).poll(cx));
        self.ended = true;
        Poll::Ready(match end {
            Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            Err(_) => Some(Err(CutShort.into())),
        })
    }
}

/// A plain response on its way through, and what must be held while it is.
#[derive(Debug)]
struct Passing {
    body: ResponseBody,
    patience: Duration,
    /// Runs while nothing comes, and only then: a client that does not read is not the upstream's fault.
    silence: Option<Pin<Box<Sleep>>>,
    _held: Held,
}

impl Passing {
    /// The next piece, or the news that none came for too long.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.silence = None;
            return Poll::Ready(frame.map(|frame| frame.map(headers::frame_to_pass).map_err(Into::into)));
        }
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(silence.as_mut().poll(cx));
        tracing::warn!(patience = ?self.patience, "upstream's unprotected response stalled, cut off");
        Poll::Ready(Some(Err(Stalled.into())))
    }
}

/// Whatever is given back when a passing response has ended.
pub type Held = Box<dyn std::any::Any + Send>;

impl Body {
    /// A body that is there already.
    pub fn full(bytes: Bytes) -> Body {
        Body(Inner::Whole { data: Some(bytes).filter(|b| !b.is_empty()), trailers: None })
    }

    /// A body that is there already, with trailers.
    pub fn with_trailers(bytes: Bytes, trailers: HeaderMap) -> Body {
        let trailers = (!trailers.is_empty()).then(|| Box::new(trailers));
        Body(Inner::Whole { data: Some(bytes).filter(|b| !b.is_empty()), trailers })
    }

    /// A body that a task hands over piece by piece, and then its end. Without that it is a body cut short, so that a task
    /// which fails never looks like one that finished.
    pub fn relayed(pieces: mpsc::Receiver<Bytes>, end: oneshot::Receiver<Option<HeaderMap>>) -> Body {
        Body(Inner::Relayed(Box::new(Relayed { pieces, end, ended: false })))
    }

    /// The upstream's own body, with something to hold until it ended. It is cut off when nothing comes for `patience`.
    pub fn passing(body: ResponseBody, patience: Duration, held: Held) -> Body {
        Body(Inner::Upstream(Box::new(Passing { body, patience, silence: None, _held: held })))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Inner::Whole { data, trailers } => {
                let frame = data.take().map(Frame::data).or_else(|| trailers.take().map(|t| Frame::trailers(*t)));
                Poll::Ready(frame.map(Ok))
            }
            Inner::Relayed(relayed) => relayed.poll_frame(cx),
            Inner::Upstream(passing) => passing.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Inner::Relayed(relayed) => relayed.ended,
            Inner::Upstream(passing) => passing.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            // With trailers the length is left open: they can only be sent in a chunked body.
            Inner::Whole { data, trailers: None } => SizeHint::with_exact(data.as_ref().map_or(0, |d| d.len() as u64)),
            Inner::Whole { .. } | Inner::Relayed(_) => SizeHint::default(),
            Inner::Upstream(passing) => passing.body.size_hint(),
        }
    }
}
