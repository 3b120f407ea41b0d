//! Gathers an answer's body before the caller gets any of it, as far as it may be held.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::HeaderMap;
use http_body::{Body as _, Frame};

use crate::proxy::body::Pieces;
use crate::proxy::budget::Share;
use crate::proxy::headers;
use crate::upstream::{BodyError, ResponseBody};

/// What came of a body.
pub(super) enum Gathered {
    /// It is over.
    All(Bytes, Option<Box<HeaderMap>>, Share),
    /// It goes on.
    Begun(Begun),
}

/// The first of a body that goes on.
pub(super) struct Begun {
    pub(super) bytes: Bytes,
    /// Whether it can still be kept. If not, it is too long, or there is no room.
    pub(super) is_kept: bool,
}

/// Reads a body to its end, or until it is more than can be kept; a stream until there is nothing of it without waiting.
pub(super) async fn gather(
    body: &mut ResponseBody,
    is_stream: bool,
    limit: usize,
    share: &mut Share,
) -> Result<Gathered, BodyError> {
    let mut pieces = Pieces::default();
    let mut trailers = None;
    loop {
        let frame = match poll_fn(|cx| next(body, is_stream, cx)).await {
            Coming::Frame(frame) => frame?,
            Coming::End => break,
            Coming::Later => return Ok(Gathered::Begun(Begun { bytes: pieces.into_bytes(), is_kept: true })),
        };
        match frame.into_data() {
            Ok(data) => {
                let fits = pieces.len() + data.len() <= limit && share.grow(data.len());
                pieces.push(data);
                if !fits {
                    return Ok(Gathered::Begun(Begun { bytes: pieces.into_bytes(), is_kept: false }));
                }
            }
            Err(frame) => trailers = headers::frame_to_pass(frame).into_trailers().ok().map(Box::new),
        }
    }
    let share = share.split(pieces.len());
    Ok(Gathered::All(pieces.into_bytes(), trailers, share))
}

enum Coming {
    Frame(Result<Frame<Bytes>, BodyError>),
    End,
    /// Nothing of the stream is there.
    Later,
}

fn next(body: &mut ResponseBody, is_stream: bool, cx: &mut Context<'_>) -> Poll<Coming> {
    match Pin::new(body).poll_frame(cx) {
        Poll::Ready(Some(frame)) => Poll::Ready(Coming::Frame(frame)),
        Poll::Ready(None) => Poll::Ready(Coming::End),
        Poll::Pending if is_stream => Poll::Ready(Coming::Later),
        Poll::Pending => Poll::Pending,
    }
}
