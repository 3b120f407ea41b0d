//! The bodies of both directions.
//!
//! A response's body owns the connection that it comes from: read to its end it gives the connection back to the pool,
//! dropped or broken before it closes it. So a half-read answer can never be met by the next request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;

use super::connection::Link;
use super::idle::IdleList;
use super::streams::StreamBody;

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request.
#[derive(Debug)]
pub enum RequestBody {
    /// All of it, as for keyed requests. No bytes is no body; `content-length: 0` is for the caller to say.
    Full(Full<Bytes>),
    /// As it comes.
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

impl RequestBody {
    /// No body.
    pub fn empty() -> RequestBody {
        RequestBody::full(Bytes::new())
    }

    /// A body that is there.
    pub fn full(bytes: Bytes) -> RequestBody {
        RequestBody::Full(Full::new(bytes))
    }

    /// A body that is still coming. With an exact size hint or a `content-length` it is sent with its length, else
    /// chunked; trailers are sent if a `trailer` field announces them.
    pub fn stream<B>(body: B) -> RequestBody
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        RequestBody::Stream(body.map_err(Into::into).boxed_unsync())
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            RequestBody::Full(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            RequestBody::Stream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Full(body) => body.is_end_stream(),
            RequestBody::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Full(body) => body.size_hint(),
            RequestBody::Stream(body) => body.size_hint(),
        }
    }
}

/// A response's body broke before its end. What arrived is not the response, and the request may have run.
#[derive(Debug, thiserror::Error)]
#[error("the response did not end properly")]
pub struct BodyError {
    source: BoxError,
}

impl BodyError {
    pub(super) fn new(source: impl Into<BoxError>) -> BodyError {
        BodyError { source: source.into() }
    }
}

/// The body of a response.
///
/// It ends properly after its declared length, after its last chunk (and trailers), or, with neither, when the upstream
/// closes the connection: by FIN, over TLS by `close_notify`. Anything else is a [`BodyError`].
#[derive(Debug)]
pub struct ResponseBody(Inner);

#[derive(Debug)]
enum Inner {
    Own(OwnBody),
    Stream(Box<StreamBody>),
}

/// The body on a connection of its own.
#[derive(Debug)]
struct OwnBody {
    incoming: Incoming,
    /// Until the end, or the first error.
    source: Option<Source>,
}

#[derive(Debug)]
struct Source {
    link: Link,
    pool: Arc<IdleList>,
}

impl ResponseBody {
    pub(super) fn new(incoming: Incoming, link: Link, pool: Arc<IdleList>) -> ResponseBody {
        let mut body = OwnBody { incoming, source: Some(Source { link, pool }) };
        if body.incoming.is_end_stream() {
            body.give_back();
        }
        ResponseBody(Inner::Own(body))
    }

    /// The body of a `101`, which ends at once: the connection stays with it until it is taken over or dropped.
    pub(super) fn switching(incoming: Incoming, link: Link, pool: Arc<IdleList>) -> ResponseBody {
        ResponseBody(Inner::Own(OwnBody { incoming, source: Some(Source { link, pool }) }))
    }

    /// The body on a stream of a shared connection.
    pub(super) fn stream(body: StreamBody) -> ResponseBody {
        ResponseBody(Inner::Stream(Box::new(body)))
    }
}

impl OwnBody {
    /// Gives the connection back if it can take another request, and closes it if not: the upstream wants to close
    /// or has closed, or has answered before it had the whole request.
    fn give_back(&mut self) {
        if let Some(source) = self.source.take()
            && source.link.is_ready()
        {
            source.pool.put(source.link);
        }
    }
}

impl OwnBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self;
        Poll::Ready(match ready!(Pin::new(&mut this.incoming).poll_frame(cx)) {
            Some(Ok(frame)) => {
                // Many readers stop here, without asking for the end.
                if frame.is_trailers() || this.incoming.is_end_stream() {
                    this.give_back();
                }
                Some(Ok(frame))
            }
            Some(Err(source)) => {
                this.source = None;
                Some(Err(BodyError::new(source)))
            }
            None => {
                this.give_back();
                None
            }
        })
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Inner::Own(body) => body.poll_frame(cx),
            Inner::Stream(body) => Pin::new(&mut **body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Own(body) => body.incoming.is_end_stream(),
            Inner::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Own(body) => body.incoming.size_hint(),
            Inner::Stream(body) => body.size_hint(),
        }
    }
}
