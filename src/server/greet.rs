//! The beginning of a connection: the TLS handshake, and which version of HTTP the client speaks.
//!
//! All of it stands under the deadline of a head, so that a client that connects and says nothing is not waited for. A
//! plain connection on which HTTP/2 is switched off needs no greeting and is never here.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::client::ClientName;
use super::drain::Drain;
use super::socket::Socket;
use super::tls::Tls;

/// How long a draining server waits for the first request of a connection that it has accepted.
pub(super) const FIRST_REQUEST: Duration = Duration::from_millis(250);

/// What an HTTP/2 client says first (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How a connection is greeted.
#[derive(Clone, Debug)]
pub(super) enum Greeting {
    /// Not at all: it speaks HTTP/1.
    Plain,
    /// By looking whether it begins like HTTP/2.
    Sniff,
    /// By a TLS handshake, in which the client chooses.
    Tls(Tls),
}

/// The versions of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// A connection that has come to speak.
#[derive(Debug)]
pub(super) struct Greeted {
    pub(super) socket: Socket,
    pub(super) version: Version,
    /// Who the client is, if it showed a certificate.
    pub(super) client: Option<ClientName>,
}

/// Why a connection never came to speak.
#[derive(Debug, Error)]
pub(super) enum GreetError {
    #[error("the client did not say what it speaks in time")]
    TooLate,
    #[error("stopped before the client said what it speaks")]
    Stopped,
    #[error("the client went away")]
    Io(#[from] io::Error),
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
}

/// Runs what must be done within this time; while draining, within a moment.
pub(super) async fn in_time<T>(
    within: Duration,
    drain: &Arc<Drain>,
    greeting: impl Future<Output = Result<T, GreetError>>,
) -> Result<T, GreetError> {
    let cut_short = async {
        drain.begun().await;
        tokio::time::sleep(FIRST_REQUEST).await;
    };
    tokio::select! {
        biased;
        done = tokio::time::timeout(within, greeting) => done.unwrap_or(Err(GreetError::TooLate)),
        () = cut_short => Err(GreetError::Stopped),
    }
}

/// Shakes hands.
pub(super) async fn shake_hands(stream: TcpStream, tls: &Tls) -> Result<Greeted, GreetError> {
    let acceptor = TlsAcceptor::from(tls.current());
    let stream = acceptor.accept(stream).await.map_err(GreetError::Handshake)?;
    let version = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Version::Two,
        _ => Version::One,
    };
    let client = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).and_then(ClientName::of);
    Ok(Greeted { socket: stream.into(), version, client })
}

/// Reads as much as is needed to tell the two versions apart: no byte more than the preface, since whoever reads next
/// must find all of them.
pub(super) async fn sniff(mut socket: Socket) -> Result<Greeted, GreetError> {
    let mut early = Vec::with_capacity(PREFACE.len());
    while early.len() < PREFACE.len() && PREFACE.starts_with(&early) {
        let mut rest = [0; PREFACE.len()];
        let read = socket.read(&mut rest[early.len()..]).await?;
        if read == 0 {
            break;
        }
        let from = early.len();
        early.extend_from_slice(&rest[from..from + read]);
    }
    let version = if early == PREFACE { Version::Two } else { Version::One };
    Ok(Greeted { socket: socket.after(early), version, client: None })
}
