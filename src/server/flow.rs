//! The bytes of one HTTP/2 connection, between the socket and hyper: cuts a client that takes nothing, and closes so that
//! the last answer arrives.
//!
//! Where messages begin and end is inside the frames here, so the other deadlines are kept by `streams`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::socket::{LINGER, Socket};

/// How many bytes a closed connection goes on reading: what its windows let a client have on its way, and some more.
const LINGER_BYTES: usize = 2 * 1024 * 1024;

/// One HTTP/2 connection's socket.
#[derive(Debug)]
pub(super) struct Flow {
    socket: Socket,
    patience: Duration,
    /// Rings when the client has taken nothing for too long, or has been closing for too long.
    alarm: Pin<Box<Sleep>>,
    stalled: bool,
    /// Bytes that may still be read and thrown away, once the writing side is closed.
    linger: Option<usize>,
}

impl Flow {
    /// A socket whose client may take nothing for so long.
    pub(super) fn new(socket: Socket, patience: Duration) -> Flow {
        Flow { socket, patience, alarm: Box::pin(sleep_until(Instant::now())), stalled: false, linger: None }
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
        Pin::new(&mut self.socket).poll_read(cx, buffer)
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
