//! Reaching an upstream through an HTTP proxy: `CONNECT`, and then bytes (RFC 9110 section 9.3.6).
//!
//! Also for upstreams without TLS, so that what is sent there is the same as without a proxy, and so is the knowledge of
//! whether it was sent: nothing of a request exists before the proxy has agreed.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connect::ConnectError;
use crate::config::{HttpProxy, Upstream};

/// The most that an answer to `CONNECT` may have in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Has the proxy at the other end connect to the upstream. Afterwards the stream is the upstream's.
pub(super) async fn connect(
    mut stream: TcpStream,
    proxy: &HttpProxy,
    upstream: &Upstream,
) -> Result<TcpStream, ConnectError> {
    match ask(&mut stream, &upstream.host_and_port()).await {
        Ok(status) if (200..300).contains(&status) => Ok(stream),
        Ok(status) => Err(ConnectError::ProxyRefused { proxy: proxy.authority(), status }),
        Err(source) => Err(ConnectError::ProxyBroke { proxy: proxy.authority(), source }),
    }
}

/// Sends `CONNECT` and reads the head of the answer. Its body, if it refuses, is left unread.
async fn ask(stream: &mut TcpStream, target: &str) -> io::Result<u16> {
    stream.write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).await?;
    let mut read = Vec::with_capacity(512);
    loop {
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let status = status(&read).ok_or_else(|| invalid("it does not speak HTTP/1"))?;
            let rest = read.split_off(end + 4);
            match status {
                // Interim responses come before the answer.
                100..200 => read = rest,
                // This side speaks first, so bytes that are here already are not the upstream's.
                200..300 if !rest.is_empty() => return Err(invalid("it sent more than the head of its answer")),
                _ => return Ok(status),
            }
            continue;
        }
        if read.len() > MAX_HEAD {
            return Err(invalid("the head of its answer is too large"));
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
        }
    }
}

fn status(head: &[u8]) -> Option<u16> {
    let rest = head.strip_prefix(b"HTTP/1.")?;
    let digits = rest.get(1..).and_then(|rest| rest.strip_prefix(b" "))?.get(..3)?;
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|status| (100..600).contains(status))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
