//! HTTP/1.1 as bytes on a socket, for both sides: reads heads and bodies, and says where they broke off.
//!
//! Deliberately not hyper: the scenarios must see and send what a library would refuse or tidy up.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Header fields in the order of the wire, names as they came.
pub(crate) type Fields = Vec<(String, Vec<u8>)>;

/// A start line and its header fields.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// Without its line end.
    pub(crate) start: String,
    pub(crate) fields: Fields,
    /// Every byte up to and with the empty line.
    pub(crate) raw: Vec<u8>,
}

impl Head {
    fn parse(raw: Vec<u8>) -> Head {
        let mut lines = raw.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let start = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
        let fields = lines.take_while(|line| !line.is_empty()).map(field).collect();
        Head { start, fields, raw }
    }

    /// The framing of a body after this head.
    pub(crate) fn framing(&self, otherwise: Framing) -> Framing {
        if values(&self.fields, "transfer-encoding").any(|v| v.eq_ignore_ascii_case(b"chunked")) {
            return Framing::Chunked;
        }
        match values(&self.fields, "content-length").next() {
            Some(length) => Framing::Length(String::from_utf8_lossy(length).parse().expect("a length is a number")),
            None => otherwise,
        }
    }
}

fn field(line: &[u8]) -> (String, Vec<u8>) {
    let colon = line.iter().position(|b| *b == b':').unwrap_or(line.len());
    let value = line.get(colon + 1..).unwrap_or_default();
    (String::from_utf8_lossy(&line[..colon]).into_owned(), value.trim_ascii().to_vec())
}

/// All values of a field, in order.
pub(crate) fn values<'a, 'n>(fields: &'a Fields, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
    fields.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_slice())
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(usize),
    Chunked,
    UntilClose,
}

/// A body as far as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    pub(crate) trailers: Fields,
    /// Whether its end was seen.
    pub(crate) complete: bool,
}

/// A socket and what was read from it too early.
pub(crate) struct Wire<S> {
    pub(crate) socket: S,
    buffer: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(crate) fn new(socket: S) -> Wire<S> {
        Wire { socket, buffer: Vec::new() }
    }

    /// Writes all of it.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await?;
        self.socket.flush().await
    }

    /// The next head, `None` when the peer closed before its first byte.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                return Ok(Some(Head::parse(self.take(end + 4))));
            }
            if self.fill().await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(broken_off()) };
            }
        }
    }

    /// The body, or as much of it as came before the peer closed or broke the connection.
    pub(crate) async fn body(&mut self, framing: Framing) -> Body {
        let mut body = Body::default();
        body.complete = match framing {
            Framing::None => true,
            Framing::Length(length) => self.exactly(length, &mut body.bytes).await.is_ok(),
            Framing::Chunked => self.chunks(&mut body).await.is_ok(),
            Framing::UntilClose => self.until_closed(&mut body.bytes).await.is_ok(),
        };
        body
    }

    /// Waits until more bytes of a body are there, without looking for its end; `None` when there are no more.
    pub(crate) async fn some(&mut self) -> Option<Vec<u8>> {
        if self.buffer.is_empty() && self.fill().await.unwrap_or(0) == 0 {
            return None;
        }
        Some(std::mem::take(&mut self.buffer))
    }

    /// Whether the peer closes now, without another byte.
    pub(crate) async fn closes(&mut self) -> bool {
        self.buffer.is_empty() && self.fill().await.unwrap_or(0) == 0
    }

    async fn exactly(&mut self, length: usize, into: &mut Vec<u8>) -> io::Result<()> {
        let wanted = into.len() + length;
        loop {
            let n = self.buffer.len().min(wanted - into.len());
            into.extend(self.buffer.drain(..n));
            if into.len() == wanted {
                return Ok(());
            }
            if self.fill().await? == 0 {
                return Err(broken_off());
            }
        }
    }

    async fn chunks(&mut self, body: &mut Body) -> io::Result<()> {
        loop {
            let line = self.line().await?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| broken_off())?;
            if size == 0 {
                break;
            }
            self.exactly(size, &mut body.bytes).await?;
            self.line().await?;
        }
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok(());
            }
            body.trailers.push(field(line.as_bytes()));
        }
    }

    async fn until_closed(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        loop {
            into.append(&mut self.buffer);
            if self.fill().await? == 0 {
                return Ok(());
            }
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let mut line = self.take(end + 2);
                line.truncate(end);
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            if self.fill().await? == 0 {
                return Err(broken_off());
            }
        }
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        self.buffer.drain(..length).collect()
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.socket.read_buf(&mut self.buffer).await
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Whether `bytes` contain `what`.
pub(crate) fn contains(bytes: &[u8], what: &[u8]) -> bool {
    find(bytes, what).is_some()
}

fn broken_off() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}
