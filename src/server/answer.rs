//! The body of an answer: the service's, or the sentence of a refusal. It also ends the turn, so that the connection's
//! deadlines know when the answer was handed over.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use http_body::{Body, Frame, SizeHint};

use super::exchange::Turn;
use super::fault::HeadFault;

/// The body that hyper writes.
#[derive(Debug)]
pub(super) struct Answer<B> {
    content: Content<B>,
    /// Ends when hyper drops the body, which it does with its last frame.
    _turn: Turn,
}

#[derive(Debug)]
enum Content<B> {
    Given(B),
    Text(Option<Bytes>),
}

impl<B> Answer<B> {
    pub(super) fn of(body: B, turn: Turn) -> Answer<B> {
        Answer { content: Content::Given(body), _turn: turn }
    }

    /// A refusal. The connection is closed behind it: its bytes cannot be trusted any more.
    pub(super) fn refusal(fault: HeadFault, turn: Turn) -> Response<Answer<B>> {
        let mut response = refusal(fault).map(|text| Answer { content: Content::Text(Some(text)), _turn: turn });
        close(&mut response);
        response
    }
}

/// The fault's status and its sentence.
pub(super) fn refusal(fault: HeadFault) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(format!("{fault}\n")));
    *response.status_mut() = fault.status();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Has the connection closed behind this answer.
pub(super) fn close<B>(response: &mut Response<B>) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

impl<B> Body for Answer<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.content {
            Content::Given(body) => Pin::new(body).poll_frame(cx),
            Content::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Given(body) => body.is_end_stream(),
            Content::Text(text) => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Given(body) => body.size_hint(),
            Content::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
