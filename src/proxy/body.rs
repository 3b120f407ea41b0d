//! Bodies: how a keyed request's body is read whole, and what a response to the client is made of.
//!
//! Everything that is held in memory is accounted for in one [`Budget`] of the process, so that many large bodies are
//! refused rather than swapped.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::EXPECT;
use http::{HeaderMap, Version, request};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

use super::budget::{Budget, Share};
use super::error::{Kind, Problem};
use super::headers;
use crate::alarm::Alarms;
use crate::shutdown::Signal;
use crate::upstream::ResponseBody;

/// How much of an unwanted request body is read and thrown away, so that the client gets to see the refusal.
const DRAIN_LIMIT: usize = 4 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// How long a client of HTTP/2 that asks whether to send its body (`Expect`) may wait for the answer. Longer than the
/// second after which most clients send it anyway (RFC 9110 section 10.1.1).
const EXPECT_TIME: Duration = Duration::from_secs(3);

/// How long a stop lets a body arrive that nothing has been claimed for.
const STOPPING_TIME: Duration = Duration::from_secs(2);
/// How often the reader of a slow body looks whether a stop has begun. Waiting for the signal itself would take a lock of
/// the process for every request.
const LOOK_EVERY: Duration = Duration::from_millis(250);

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

/// Bodies below this size are not counted once they are on their way: the buffers of their connection cost as much.
const COUNTED_FROM: usize = 16 << 10;

/// A body that goes on counting until its last byte was written, or it was thrown away. Clones count once.
pub fn counted(body: Bytes, share: Share) -> Bytes {
    struct Counted {
        body: Bytes,
        _share: Share,
    }
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.body
        }
    }
    if body.len() < COUNTED_FROM { body } else { Bytes::from_owner(Counted { body, _share: share }) }
}

/// A recorded body that is about to be sent, or the news that too many are on their way.
pub fn to_replay(body: Bytes, budget: &Budget) -> Result<Bytes, Problem> {
    if body.len() < COUNTED_FROM {
        return Ok(body);
    }
    let share = budget.take(body.len()).ok_or_else(|| {
        Problem::new(
            Kind::Overloaded,
            "Too many bytes of bodies are being held. The request was executed; its response can be had in a while.",
        )
    })?;
    Ok(counted(body, share))
}

/// A request body that was read to its end, and its share of the budget.
#[derive(Debug)]
pub struct Whole {
    /// The bytes.
    pub bytes: Bytes,
    /// Given back when the bytes are no longer needed.
    pub share: Share,
}

/// How long a body may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience<'a> {
    /// In all.
    pub within: Duration,
    /// Once this is given, only a moment more.
    pub stopping: &'a Signal,
    /// What keeps the time.
    pub alarms: &'a Alarms,
}

/// Why a body was not waited for any longer.
enum Late {
    TimedOut,
    Stopping,
}

impl Patience<'_> {
    async fn wait<F: Future>(self, mut arriving: Pin<&mut F>) -> Result<F::Output, Late> {
        let end = Instant::now() + self.within;
        let mut stop = None;
        loop {
            let next = end.min(Instant::now() + LOOK_EVERY);
            if let Some(output) = self.alarms.bound(next, arriving.as_mut()).await {
                return Ok(output);
            }
            if Instant::now() >= end {
                return Err(Late::TimedOut);
            }
            if self.stopping.is_given() && *stop.get_or_insert(Instant::now() + STOPPING_TIME) <= Instant::now() {
                return Err(Late::Stopping);
            }
        }
    }
}

/// Reads a body to its end, within a size and a time. Request trailers of keyed requests are dropped.
pub async fn read(
    head: &request::Parts,
    body: Incoming,
    max: usize,
    patience: Patience<'_>,
    budget: &Budget,
) -> Result<Whole, Problem> {
    let declared = body.size_hint().exact();
    if declared.is_some_and(|length| length > max as u64) {
        discard(head, body);
        return Err(too_large(max));
    }
    let mut share = budget.nothing();
    if declared == Some(0) {
        settle(head).await;
        return Ok(Whole { bytes: Bytes::new(), share });
    }
    let mut body = begun(head, body).await?;
    let collected = {
        let collecting = pin!(collect(&mut body, max, &mut share));
        patience.wait(collecting).await
    };
    match collected {
        Ok(Ok(bytes)) => {
            settle(head).await;
            Ok(Whole { bytes, share })
        }
        Ok(Err(problem)) => {
            drain(body.rest);
            Err(problem)
        }
        Err(Late::TimedOut) => Err(Problem::new(
            Kind::BodyTimeout,
            format!(
                "The request body did not arrive within {}; nothing was forwarded.",
                humantime::format_duration(patience.within)
            ),
        )),
        Err(Late::Stopping) => Err(Problem::new(
            Kind::Overloaded,
            "The proxy is stopping, and the request body had not arrived; nothing was claimed or forwarded.",
        )),
    }
}

async fn collect(body: &mut Arriving, max: usize, share: &mut Share) -> Result<Bytes, Problem> {
    let mut pieces = Pieces::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| broken())?;
        let Ok(data) = frame.into_data() else { continue };
        if pieces.len() + data.len() > max {
            return Err(too_large(max));
        }
        if !share.grow(data.len()) {
            return Err(overloaded());
        }
        pieces.push(data);
    }
    Ok(pieces.into_bytes())
}

/// Gives way once before the end of a body is believed. A stream of HTTP/2 that its client has reset can look like one whose
/// body has ended, or never began; the server looks for a reset whenever its service waits, and drops it then.
pub async fn settle(head: &request::Parts) {
    if head.version == Version::HTTP_2 {
        tokio::task::yield_now().await;
    }
}

/// A request body of which the beginning may be here already.
#[derive(Debug)]
pub struct Arriving {
    first: Option<Frame<Bytes>>,
    rest: Incoming,
}

/// Makes sure that a body is coming, and takes what is here of it. In HTTP/1.1 asking for it has a client that waits
/// (`Expect`) told to go on. In HTTP/2 the server below cannot say that: a client that does wait is told to repeat the
/// request without asking.
pub async fn begun(head: &request::Parts, body: Incoming) -> Result<Arriving, Problem> {
    let mut arriving = Arriving { first: None, rest: body };
    let expects = head.headers.contains_key(EXPECT);
    if head.version != Version::HTTP_2 {
        if !expects {
            // What came with the head has been read with it. Whoever asks for the rest is woken by it.
            let here = Pin::new(&mut arriving.rest).poll_frame(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(Some(first)) = here {
                arriving.first = Some(first.map_err(|_| broken())?);
            }
        }
        return Ok(arriving);
    }
    if !expects || arriving.rest.is_end_stream() {
        return Ok(arriving);
    }
    match Box::pin(tokio::time::timeout(EXPECT_TIME, arriving.rest.frame())).await {
        Ok(first) => {
            arriving.first = first.transpose().map_err(|_| broken())?;
            Ok(arriving)
        }
        Err(_) => Err(Problem::new(
            Kind::ExpectationFailed,
            "Over HTTP/2 this proxy does not answer 100 (Continue), and the request body did not come without it. Send the \
             same request without Expect; nothing was forwarded.",
        )),
    }
}

impl Arriving {
    /// The whole body, if it is here in one piece.
    pub fn take_whole(&mut self) -> Option<Bytes> {
        let is_whole = self.rest.is_end_stream() && self.first.as_ref().is_some_and(Frame::is_data);
        self.first.take_if(|_| is_whole)?.into_data().ok()
    }
}

impl http_body::Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.rest.size_hint();
        let here = self.first.as_ref().and_then(Frame::data_ref).map_or(0, |data| data.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + here);
        }
        hint.set_lower(hint.lower() + here);
        hint
    }
}

/// The pieces of a body that is gathered to be held for a while. Most bodies come in one piece; a large one is not copied.
#[derive(Debug, Default)]
pub struct Pieces {
    first: Bytes,
    rest: BytesMut,
}

impl Pieces {
    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: Bytes) {
        if self.is_empty() {
            self.first = own(piece);
            return;
        }
        if self.rest.is_empty() {
            self.rest.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.rest.extend_from_slice(&piece);
    }

    /// All of them, in order.
    pub fn into_bytes(self) -> Bytes {
        if self.rest.is_empty() { self.first } else { self.rest.freeze() }
    }
}

/// A small piece is copied out of the buffer it was read into: it would keep all of that alive, and make its connection
/// take another one.
fn own(piece: Bytes) -> Bytes {
    /// About what the buffer of a connection holds.
    const SMALL: usize = 8 * 1024;
    if piece.len() <= SMALL { Bytes::copy_from_slice(&piece) } else { piece }
}

fn broken() -> Problem {
    Problem::new(Kind::BodyInvalid, "The request body broke off or is badly framed; nothing was forwarded.")
}

fn too_large(max: usize) -> Problem {
    Problem::new(
        Kind::BodyTooLarge,
        format!("The request body is larger than the {max} bytes that this route takes; nothing was forwarded."),
    )
}

fn overloaded() -> Problem {
    Problem::new(Kind::Overloaded, "Too many bytes of bodies are being held; nothing was forwarded.")
}

/// Gets rid of a body that nobody wants, before any of it was read. A client that asked whether to send it
/// (RFC 9110 section 10.1.1) is answered by the refusal alone.
pub fn discard(head: &request::Parts, body: Incoming) {
    if !head.headers.contains_key(EXPECT) {
        drain(body);
    }
}

/// Goes on reading a body that nobody wants, within limits, so that the client can read the answer first.
///
/// Past the limits the body is dropped, and the server closes the connection: left bytes are never the next request.
fn drain(mut body: Incoming) {
    if body.is_end_stream() {
        return;
    }
    tokio::spawn(async move {
        let reading = async {
            let mut left = DRAIN_LIMIT;
            while let Some(Ok(frame)) = body.frame().await {
                let length = frame.data_ref().map_or(0, Bytes::len);
                let Some(less) = left.checked_sub(length) else { return };
                left = less;
            }
        };
        let _ = tokio::time::timeout(DRAIN_TIME, reading).await;
    });
}

/// The body of a response to the client.
#[derive(Debug)]
pub struct Body(Inner);

#[derive(Debug)]
enum Inner {
    Whole { data: Option<Bytes>, trailers: Option<Box<HeaderMap>> },
    Relayed { frames: mpsc::Receiver<Option<Frame<Bytes>>>, ended: bool },
    Upstream(Box<Passing>),
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

    /// A body that a task hands over piece by piece, with `None` at its end. A channel closed before that is a body cut
    /// short, so that a task which fails never looks like one that finished.
    pub fn relayed(frames: mpsc::Receiver<Option<Frame<Bytes>>>) -> Body {
        Body(Inner::Relayed { frames, ended: false })
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
            Inner::Relayed { ended: true, .. } => Poll::Ready(None),
            Inner::Relayed { frames, ended } => frames.poll_recv(cx).map(|received| match received {
                Some(Some(frame)) => Some(Ok(frame)),
                Some(None) => {
                    *ended = true;
                    None
                }
                None => {
                    *ended = true;
                    Some(Err(CutShort.into()))
                }
            }),
            Inner::Upstream(passing) => passing.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Inner::Relayed { ended, .. } => *ended,
            Inner::Upstream(passing) => passing.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            // With trailers the length is left open: they can only be sent in a chunked body.
            Inner::Whole { data, trailers: None } => SizeHint::with_exact(data.as_ref().map_or(0, |d| d.len() as u64)),
            Inner::Whole { .. } | Inner::Relayed { .. } => SizeHint::default(),
            Inner::Upstream(passing) => passing.body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_out_in_order_and_whole() {
        let large = Bytes::from(vec![7; 20_000]);
        for parts in
            [vec![], vec![large.clone()], vec![Bytes::new(), large.clone()], vec![large.clone(), "b".into(), large]]
        {
            let mut pieces = Pieces::default();
            parts.iter().for_each(|part| pieces.push(part.clone()));
            assert_eq!(pieces.len(), parts.iter().map(Bytes::len).sum::<usize>());
            assert_eq!(pieces.into_bytes(), parts.concat());
        }
    }
}
