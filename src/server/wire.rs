//! The bytes of one connection, between the socket and hyper: follows where messages end, keeps the deadlines, and closes
//! so that the last answer arrives. Once the connection has left HTTP it does none of this.
//!
//! Deadlines run only while nobody else can act: a head that has begun to arrive, an idle connection, a client that does
//! not take its answer. One timer serves them all. It is left where it is when a deadline moves further away, which is
//! what every request does; it rings early then, and is set anew.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::Limits;

use super::exchange::Exchange;
use super::framing::{Broken, Follower};
use super::greet::FIRST_REQUEST;
use super::socket::{LINGER, LINGER_BYTES, Socket};

/// One connection's socket.
#[derive(Debug)]
pub(super) struct Wire {
    socket: Socket,
    follower: Follower,
    exchange: Arc<Exchange>,
    header_timeout: Duration,
    idle_timeout: Duration,
    /// When the present wait began: accepted, a head begun, a byte of an answer taken.
    since: Instant,
    alarm: Pin<Box<Sleep>>,
    /// The rest of interim answers that have begun to be written.
    interim: Vec<u8>,
    /// Whether all that hyper had to write is written, so that interim answers do not come into the middle of it.
    is_clean: bool,
    /// Whether the framing of a body was found broken. Nothing more is read.
    broken: bool,
    /// Bytes that may still be read and thrown away, once the writing side is closed.
    linger: Option<usize>,
}

impl Wire {
    /// The wire of a connection that was accepted at this time.
    pub(super) fn new(socket: Socket, accepted: Instant, limits: &Limits, exchange: Arc<Exchange>) -> Wire {
        Wire {
            socket,
            follower: Follower::default(),
            exchange,
            header_timeout: limits.header_timeout,
            idle_timeout: limits.idle_timeout,
            since: accepted,
            alarm: Box::pin(sleep_until(accepted + limits.header_timeout.min(limits.idle_timeout))),
            interim: Vec::new(),
            is_clean: true,
            broken: false,
            linger: None,
        }
    }

    /// Looks at what has been read, and takes back what must not be.
    fn arrived(&mut self, buffer: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let bytes = &buffer.filled()[before..];
        let (had_begun, heads) = (self.follower.is_in_head(), self.follower.heads());
        let followed = self.follower.follow(bytes);
        self.exchange.set_receiving(self.follower.is_in_body());
        self.exchange.ask_server(self.follower.take_asterisks());
        for place in self.follower.take_newer_versions() {
            buffer.filled_mut()[before + place] = b'1';
        }
        match followed {
            Ok(()) => {
                let begins = self.follower.is_in_head() && (!had_begun || self.follower.heads() > heads);
                // The first head's time runs from accepting the connection.
                if begins && self.follower.heads() > 0 {
                    self.since = Instant::now();
                }
                Ok(())
            }
            Err(Broken::Head(number, fault)) => {
                self.exchange.refuse(number, fault);
                Ok(())
            }
            Err(Broken::Body(sound)) => {
                self.broken = true;
                buffer.set_filled(before + sound);
                if sound == 0 { Err(broken_body()) } else { Ok(()) }
            }
        }
    }

    /// When the client's silence is too long; `None` while it is not the client's turn.
    fn deadline(&self) -> Option<Instant> {
        if self.exchange.is_answering() {
            return None;
        }
        if self.exchange.is_stalled() {
            return Some(self.since + self.idle_timeout);
        }
        let is_first = self.follower.heads() == 0;
        if let (false, Some(drain)) = (self.follower.is_between(), self.exchange.drain().since()) {
            // Of a head that is on its way the rest is there in a moment, and nothing has come of one that is not.
            return Some((self.since + self.header_timeout).min(self.since.max(drain) + FIRST_REQUEST));
        }
        let leaves = self.exchange.drain().has_begun() || self.exchange.presence().must_leave();
        let patience = match (self.follower.is_between(), leaves) {
            (false, _) => self.header_timeout,
            (true, true) if is_first => FIRST_REQUEST.min(self.header_timeout),
            (true, true) => Duration::ZERO,
            (true, false) if is_first => self.header_timeout,
            (true, false) => self.idle_timeout,
        };
        Some(self.since + patience)
    }

    /// Waits until the deadline. A deadline of `None` is asked for again after a while.
    fn poll_deadline(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        if let Some(deadline) = deadline
            && deadline < self.alarm.deadline()
        {
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            self.alarm.as_mut().reset(deadline);
        }
        while self.alarm.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            match deadline {
                Some(deadline) if deadline <= now => return Poll::Ready(()),
                Some(deadline) => self.alarm.as_mut().reset(deadline),
                // Whatever deadline comes will be counted from later than now.
                None => self.alarm.as_mut().reset(now + self.header_timeout.min(self.idle_timeout)),
            }
        }
        Poll::Pending
    }

    /// Nothing to read: too long?
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let deadline = self.deadline();
        ready!(self.poll_deadline(cx, deadline));
        if !self.follower.is_between() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the head did not arrive in time")));
        }
        if self.socket.has_arrived() {
            // The runtime has not told us yet. It will.
            return Poll::Pending;
        }
        // Read as the end of the stream: hyper closes an idle connection then.
        Poll::Ready(Ok(()))
    }

    /// Keeps the time of the last progress in writing.
    fn wrote(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if self.exchange.has_switched() {
            return result;
        }
        if let Poll::Ready(result) = result {
            self.exchange.set_stalled(false);
            self.since = Instant::now();
            self.exchange.presence().used(self.since);
            return Poll::Ready(result);
        }
        self.poll_stall(cx).map(Err)
    }

    /// Notes that TLS has let go of all that it held. It never holds anything back without TLS.
    fn pushed(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if result.is_pending() {
            return self.poll_stall(cx).map(Err);
        }
        if self.exchange.is_stalled() {
            self.exchange.set_stalled(false);
            self.since = Instant::now();
        }
        result
    }

    /// Writes what comes before the answer, if anything. hyper has written all that it has.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.interim.is_empty() {
                self.interim = self.exchange.outbox().take(cx);
            }
            if self.interim.is_empty() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_rest_of_interim(cx))?;
            let result = Pin::new(&mut self.socket).poll_flush(cx);
            ready!(self.pushed(cx, result))?;
        }
    }

    /// Writes what must be before what hyper writes next.
    fn poll_before_writing(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_clean && self.exchange.outbox().is_full() {
            self.interim.extend(self.exchange.outbox().take(cx));
        }
        ready!(self.poll_rest_of_interim(cx))?;
        self.is_clean = false;
        Poll::Ready(Ok(()))
    }

    /// Writes the rest of interim answers that have been begun.
    fn poll_rest_of_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.interim.is_empty() {
            let result = Pin::new(&mut self.socket).poll_write(cx, &self.interim);
            match ready!(self.wrote(cx, result))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.interim.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The client does not take what is written: too long?
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if !self.exchange.is_stalled() {
            self.exchange.set_stalled(true);
            self.since = Instant::now();
        }
        ready!(self.poll_deadline(cx, Some(self.since + self.idle_timeout)));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answer"))
    }
}

fn broken_body() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the framing of the body is broken")
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.broken {
            return Poll::Ready(Err(broken_body()));
        }
        if self.exchange.has_switched() {
            return Pin::new(&mut self.socket).poll_read(cx, buffer);
        }
        let before = buffer.filled().len();
        match Pin::new(&mut self.socket).poll_read(cx, buffer) {
            Poll::Ready(Ok(())) => Poll::Ready(self.arrived(buffer, before)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.poll_silence(cx),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_writing(cx))?;
        let result = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.wrote(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_writing(cx))?;
        let result = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.wrote(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_flush(cx);
        ready!(self.pushed(cx, result))?;
        self.is_clean = true;
        self.poll_interim(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.exchange.has_switched() {
            return Pin::new(&mut self.socket).poll_shutdown(cx);
        }
        if self.linger.is_none() {
            let result = Pin::new(&mut self.socket).poll_shutdown(cx);
            ready!(self.pushed(cx, result))?;
            if self.follower.is_between() && !self.socket.has_arrived() {
                return Poll::Ready(Ok(()));
            }
            self.linger = Some(LINGER_BYTES);
            self.alarm.as_mut().reset(Instant::now() + LINGER);
        }
        let mut left = self.linger.unwrap_or(0);
        let wasted = self.socket.poll_waste(cx, &mut left);
        self.linger = Some(left);
        if wasted.is_ready() { Poll::Ready(Ok(())) } else { self.alarm.as_mut().poll(cx).map(Ok) }
    }
}
