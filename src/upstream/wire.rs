//! The byte stream under one connection: plain or TLS, with a count of what was written.
//!
//! The count decides whether a failed request was sent, so it may be too high but never too low: it stands above TLS,
//! where bytes that are only buffered count already. HTTP is left to hyper.

use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::{HeaderMap, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::frames::Frames;
use super::interim::{Heads, OnInterim};

/// What the two ends of a connection share: the task that does its reading and writing, and the sender of requests.
#[derive(Debug, Default)]
pub(super) struct Meter {
    written: AtomicU64,
    look: AtomicBool,
    /// Whether no TLS is spoken.
    plain: AtomicBool,
    /// Whether something has been read without TLS.
    read: AtomicBool,
    /// Whether the first that was read without TLS was an alert of TLS.
    alert: AtomicBool,
    /// One more than the last stream that a GOAWAY named; 0 as long as there was none.
    gone_from: AtomicU32,
    /// Whether an answer is waited for, of which nothing has come.
    awaits: AtomicBool,
    interim: Mutex<Option<OnInterim>>,
    /// The address at the other end, on a network.
    peer: Option<IpAddr>,
}

impl Meter {
    /// Of a connection to this address.
    pub(super) fn to(peer: Option<IpAddr>) -> Meter {
        Meter { peer, ..Meter::default() }
    }

    /// The address that the connection leads to, on a network.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Bytes of HTTP that may have left so far; an upper bound. Exact for comparisons once the task has ended.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Makes the next read ask the kernel itself; see [`Socket`].
    pub(super) fn look_before_writing(&self) {
        self.look.store(true, Ordering::Relaxed);
    }

    /// Notes that the next bytes begin an answer of HTTP/1, and who is told of what comes before it.
    pub(super) fn awaits_answer(&self, interim: Option<OnInterim>) {
        *self.interim.lock().unwrap_or_else(PoisonError::into_inner) = interim;
        self.awaits.store(true, Ordering::Relaxed);
    }

    fn tell(&self, status: StatusCode, fields: &HeaderMap) {
        if let Some(interim) = &*self.interim.lock().unwrap_or_else(PoisonError::into_inner) {
            interim.tell(status, Version::HTTP_11, fields);
        }
    }

    /// Whether the peer's first word without TLS was an alert of TLS: the bytes of HTTP went to a TLS stack, which hands
    /// nothing on before a handshake, so that no server of HTTP has read them.
    pub(super) fn saw_tls_alert(&self) -> bool {
        self.alert.load(Ordering::Relaxed)
    }

    /// Whether no TLS is spoken and not one byte was read.
    pub(super) fn heard_nothing(&self) -> bool {
        self.plain.load(Ordering::Relaxed) && !self.read.load(Ordering::Relaxed)
    }

    /// Looks at what was read without TLS, the first time.
    fn saw(&self, bytes: &[u8]) {
        if !self.read.load(Ordering::Relaxed) && !bytes.is_empty() {
            self.read.store(true, Ordering::Relaxed);
            self.alert.store(is_tls_alert(bytes), Ordering::Relaxed);
        }
    }

    /// Whether the peer has said that it processed no request of this stream, nor will (RFC 9113 section 6.8).
    pub(super) fn never_processed(&self, stream: u32) -> bool {
        let gone_from = self.gone_from.load(Ordering::Relaxed);
        gone_from > 0 && stream >= gone_from
    }

    /// Notes the last stream that a GOAWAY names.
    fn goes_away(&self, last: u32) {
        let gone_from = last.saturating_add(1);
        let _ = self.gone_from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            (before == 0 || gone_from < before).then_some(gone_from)
        });
    }

    fn count(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Whether this is one alert in clear, with which a TLS stack refuses what is no TLS (RFC 8446 sections 5.1 and 6): its
/// type, a version, the length 2, and a level.
fn is_tls_alert(bytes: &[u8]) -> bool {
    matches!(bytes, [21, 3, 0..=4, 0, 2, 1 | 2, _, ..])
}

/// A socket that can be made to look at itself, past the runtime.
///
/// An upstream's FIN may lie in the kernel while the runtime has not polled it yet, and a request written then is in
/// doubt although it need not be. Hyper reads before it writes a request, so one true read at that moment narrows the
/// window from "since the last turn of the event loop" to "since the system call before". In the race of
/// `tests/races.rs` that leaves about one request in a thousand in doubt instead of two hundred.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Family,
    meter: Arc<Meter>,
}

/// Where the socket leads.
#[derive(Debug)]
pub(super) enum Family {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Family {
    /// The address at the other end, on a network.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        match self {
            Family::Tcp(stream) => stream.peer_addr().ok().map(|peer| peer.ip()),
            Family::Unix(_) => None,
        }
    }
}

impl Socket {
    pub(super) fn new(stream: Family, meter: Arc<Meter>) -> Socket {
        Socket { stream, meter }
    }

    fn read_now(&self, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let socket = match &self.stream {
            Family::Tcp(stream) => socket2::SockRef::from(stream),
            Family::Unix(stream) => socket2::SockRef::from(stream),
        };
        // Nearly always there is nothing, and then the buffer need not be made ready.
        let there = socket.peek(&mut [MaybeUninit::uninit()]);
        match there.and_then(|_| (&*socket).read(buf.initialize_unfilled())) {
            Ok(read) => {
                buf.advance(read);
                Poll::Ready(Ok(()))
            }
            // The runtime's read before this one has registered the wake-up.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = match &mut self.stream {
            Family::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Family::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        // A read into no space would look like the end of the stream.
        if polled.is_ready() || buf.remaining() == 0 || !self.meter.look.load(Ordering::Relaxed) {
            return polled;
        }
        self.meter.look.store(false, Ordering::Relaxed);
        self.read_now(buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Family::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Family::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Family::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Family::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Family::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Family::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Family::Tcp(stream) => stream.is_write_vectored(),
            Family::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Family::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Family::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }
}

/// The stream that hyper reads and writes.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    meter: Arc<Meter>,
    /// Where HTTP/2 is spoken.
    frames: Option<Frames>,
    /// Where HTTP/1 is spoken.
    heads: Heads,
}

#[derive(Debug)]
enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Wire {
    pub(super) fn plain(socket: Socket) -> Wire {
        let meter = socket.meter.clone();
        meter.plain.store(true, Ordering::Relaxed);
        Wire { stream: Stream::Plain(socket), meter, frames: None, heads: Heads::Over }
    }

    pub(super) fn tls(tls: TlsStream<Socket>) -> Wire {
        let meter = tls.get_ref().0.meter.clone();
        Wire { stream: Stream::Tls(Box::new(tls)), meter, frames: None, heads: Heads::Over }
    }

    /// Looks at the frames from now on, of which the first is the next to be read. What they say is on the meter.
    pub(super) fn follow_frames(&mut self) -> Arc<Meter> {
        self.frames = Some(Frames::default());
        self.meter.clone()
    }

    pub(super) fn has_tls(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }

    /// Whether TLS has agreed on this protocol.
    pub(super) fn agreed_on(&self, protocol: &[u8]) -> bool {
        matches!(&self.stream, Stream::Tls(tls) if tls.get_ref().1.alpn_protocol() == Some(protocol))
    }

    /// Reads what the peer said before it closed: a write that fails comes before the read that would have seen it.
    fn look_at_last_words(&self, polled: &Poll<io::Result<usize>>) {
        if let (Poll::Ready(Err(_)), Stream::Plain(socket)) = (polled, &self.stream) {
            let mut bytes = [0; 16];
            let mut last = ReadBuf::new(&mut bytes);
            if let Poll::Ready(Ok(())) = socket.read_now(&mut last) {
                self.meter.saw(last.filled());
            }
        }
    }

    // A failed write to a socket has taken nothing. A failed write to TLS may have taken all of it, encrypted it and
    // sent a part before the socket failed.
    fn count(&self, polled: &Poll<io::Result<usize>>, offered: usize) {
        match (polled, &self.stream) {
            (Poll::Ready(Ok(written)), _) => self.meter.count(*written),
            (Poll::Ready(Err(_)), Stream::Tls(_)) => self.meter.count(offered),
            (Poll::Ready(Err(_)), Stream::Plain(_)) | (Poll::Pending, _) => {}
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = match &mut self.stream {
            Stream::Plain(socket) => {
                let polled = Pin::new(socket).poll_read(cx, buf);
                self.meter.saw(&buf.filled()[before..]);
                polled
            }
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        };
        if self.meter.awaits.load(Ordering::Relaxed) && buf.filled().len() > before {
            self.meter.awaits.store(false, Ordering::Relaxed);
            self.heads = Heads::awaited();
        }
        if !matches!(self.heads, Heads::Over) {
            let Wire { heads, meter, .. } = &mut *self;
            heads.follow(&mut buf.filled_mut()[before..], |status, fields| meter.tell(status, fields));
        }
        if let Some(last) = self.frames.as_mut().and_then(|frames| frames.follow(&buf.filled()[before..])) {
            self.meter.goes_away(last);
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = match &mut self.stream {
            Stream::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Stream::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        };
        self.count(&polled, buf.len());
        self.look_at_last_words(&polled);
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(socket) => socket.is_write_vectored(),
            Stream::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = match &mut self.stream {
            Stream::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            Stream::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        };
        self.count(&polled, bufs.iter().map(|buf| buf.len()).sum());
        self.look_at_last_words(&polled);
        polled
    }
}
