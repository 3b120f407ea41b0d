//! The socket of one connection, whatever it is made of: TCP, a Unix socket, or TLS over TCP.
//!
//! An enum and not a trait object: the bytes of plain connections go through one predictable branch, and hyper's code is
//! there once. What the bytes mean, and how long they may take, is left to `wire` and `flow`.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// How long a closed connection goes on reading what its client was sending.
pub(super) const LINGER: Duration = Duration::from_secs(5);

/// How many bytes it reads then, at the most.
pub(super) const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// One connection's socket.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    /// What was read while finding out what the client speaks; read again before anything else.
    early: Vec<u8>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Socket {
        Socket { stream: Stream::Tcp(stream), early: Vec::new() }
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Socket {
        Socket { stream: Stream::Unix(stream), early: Vec::new() }
    }
}

impl From<TlsStream<TcpStream>> for Socket {
    fn from(stream: TlsStream<TcpStream>) -> Socket {
        Socket { stream: Stream::Tls(Box::new(stream)), early: Vec::new() }
    }
}

impl Socket {
    /// The same socket, which reads these bytes first.
    pub(super) fn after(self, early: Vec<u8>) -> Socket {
        Socket { early, ..self }
    }

    /// Asks the system itself, past the runtime, whether there is something to read.
    pub(super) fn has_arrived(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let socket = match &self.stream {
            Stream::Tcp(stream) => SockRef::from(stream),
            Stream::Unix(stream) => SockRef::from(stream),
            Stream::Tls(stream) => SockRef::from(stream.get_ref().0),
        };
        matches!(socket.peek(&mut byte), Ok(1))
    }

    /// Reads and throws away up to `left` bytes, until the client closes. Closing a socket that holds unread bytes sends
    /// a reset, which takes the answer from a client that has not read it yet (RFC 9112, section 9.6).
    pub(super) fn poll_waste(&mut self, cx: &mut Context<'_>, left: &mut usize) -> Poll<()> {
        let mut waste = [0; 16 * 1024];
        while *left > 0 {
            let mut buffer = ReadBuf::new(&mut waste);
            match Pin::new(&mut *self).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    *left = left.saturating_sub(buffer.filled().len());
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    fn read_early(&mut self, buffer: &mut ReadBuf<'_>) {
        let length = self.early.len().min(buffer.remaining());
        buffer.put_slice(&self.early[..length]);
        self.early.drain(..length);
    }
}

/// Does the same with whichever stream it is.
macro_rules! each {
    ($socket:expr, $stream:ident => $call:expr) => {
        match &mut $socket.stream {
            Stream::Tcp($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Stream::Unix($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Stream::Tls($stream) => {
                let $stream = Pin::new(&mut **$stream);
                $call
            }
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            self.read_early(buffer);
            return Poll::Ready(Ok(()));
        }
        each!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_shutdown(cx))
    }
}
