//! The body of a request: read whole where the request has a key, taken as it comes where it has none, and got rid of where
//! nobody wants it.
//!
//! Nothing is claimed before a body is complete, so whatever fails here costs nothing.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Version, request};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::Pieces;
use crate::alarm::Alarms;
use crate::config::print_size;
use crate::fields::list;
use crate::proxy::budget::{Budget, Share};
use crate::proxy::error::{Kind, Problem};
use crate::shutdown::Signal;

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

/// Refuses what a client expects and nobody here can meet: anything but `100-continue` (RFC 9110 section 10.1.1). An empty
/// field expects nothing.
pub fn check_expectation(head: &request::Parts) -> Result<(), Problem> {
    if list(&head.headers, &EXPECT).all(|expected| expected.eq_ignore_ascii_case(b"100-continue")) {
        return Ok(());
    }
    Err(Problem::new(
        Kind::ExpectationFailed,
        "The request expects (Expect) something other than 100-continue, which this proxy cannot promise. Send the same \
         request without that field; nothing was claimed or forwarded.",
    ))
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

fn broken() -> Problem {
    Problem::new(Kind::BodyInvalid, "The request body broke off or is badly framed; nothing was forwarded.")
}

fn too_large(max: usize) -> Problem {
    Problem::new(
        Kind::BodyTooLarge,
        format!(
            "The request body is larger than max_request_body of this route, which is {}; nothing was claimed or forwarded.",
            print_size(max as u64)
        ),
    )
}

fn overloaded() -> Problem {
    Problem::new(Kind::Overloaded, "Too many bytes of bodies are being held; nothing was forwarded.")
}

/// Gets rid of a body that nobody wants, before any of it was read. A client that asked whether to send it
/// (RFC 9110 section 10.1.1) is answered by the refusal alone.
pub fn discard(head: &request::Parts, body: Incoming) {
    if !list(&head.headers, &EXPECT).any(|expected| expected.eq_ignore_ascii_case(b"100-continue")) {
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
