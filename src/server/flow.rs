//! The bytes of one HTTP/2 connection, between the socket and hyper: cuts a client that takes nothing, and closes so that
//! the last answer arrives.
//!
//! Where messages begin and end is inside the frames here, so the other deadlines are kept by `streams`. Of the frames only
//! the first is looked at: it has to be the client's SETTINGS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::socket::{LINGER, Socket};

/// How many bytes a closed connection goes on reading, for what a client of good will has on its way.
const LINGER_BYTES: usize = 2 * 1024 * 1024;

/// Where the type of a client's first frame stands: behind the preface of 24 bytes and the frame's length. Its flags follow.
const FIRST_TYPE: usize = 24 + 3;
/// As much of a connection is looked at.
const LOOKED_AT: usize = FIRST_TYPE + 2;
/// The type of a SETTINGS frame, and its one flag (RFC 9113, section 6.5).
const SETTINGS: u8 = 4;
const ACKNOWLEDGED: u8 = 1;

/// One HTTP/2 connection's socket.
#[derive(Debug)]
pub(super) struct Flow {
    socket: Socket,
    patience: Duration,
    /// Rings when the client has taken nothing for too long, or has been closing for too long.
    alarm: Pin<Box<Sleep>>,
    stalled: bool,
    /// How much of the beginning was read, as far as that is looked at.
    read: usize,
    /// Bytes that may still be read and thrown away, once the writing side is closed.
    linger: Option<usize>,
}

impl Flow {
    /// A socket whose client may take nothing for so long.
    pub(super) fn new(socket: Socket, patience: Duration) -> Flow {
        Flow { socket, patience, alarm: Box::pin(sleep_until(Instant::now())), stalled: false, read: 0, linger: None }
    }

    /// Checks that the client's first frame is its SETTINGS (RFC 9113, section 3.4), which h2 does not.
    fn look_at_first_frame(&mut self, bytes: &[u8]) -> io::Result<()> {
        let before = self.read;
        self.read = LOOKED_AT.min(before + bytes.len());
        let at = |place: usize| bytes.get(place.checked_sub(before)?).copied();
        let is_other = at(FIRST_TYPE).is_some_and(|kind| kind != SETTINGS)
            || at(FIRST_TYPE + 1).is_some_and(|flags| flags & ACKNOWLEDGED != 0);
        match is_other {
            true => Err(io::Error::new(io::ErrorKind::InvalidData, "the client's first frame is not its SETTINGS")),
            false => Ok(()),
        }
    }

    /// Cuts a client that takes nothing for too long.
    fn taken<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = false;
            return result;
        }
        if !std::mem::replace(&mut self.stalled, true) {
            self.alarm.as_mut().reset(Instant::now() + self.patience);
        }
        ready!(self.alarm.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take what is written")))
    }
}

impl AsyncRead for Flow {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(cx, buffer);
        if self.read < LOOKED_AT {
            self.look_at_first_frame(&buffer.filled()[before..])?;
        }
        polled
    }
}

impl AsyncWrite for Flow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.taken(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.taken(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_flush(cx);
        self.taken(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            let result = Pin::new(&mut self.socket).poll_shutdown(cx);
            ready!(self.taken(cx, result))?;
            self.linger = Some(LINGER_BYTES);
            self.alarm.as_mut().reset(Instant::now() + LINGER);
        }
        // The client's last frames may be on their way: windows that it opened, settings that it acknowledges.
        let mut left = self.linger.unwrap_or(0);
        let wasted = self.socket.poll_waste(cx, &mut left);
        self.linger = Some(left);
        if wasted.is_ready() { Poll::Ready(Ok(())) } else { self.alarm.as_mut().poll(cx).map(Ok) }
    }
}
