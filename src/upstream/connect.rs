//! How a connection comes to stand: name, TCP, TLS, HTTP, all within one timeout.
//!
//! Everything that fails here failed before a request existed, so each error means that nothing was sent. Names are
//! resolved anew for every connection: a fail-over by DNS is followed without a restart.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::connection::Link;
use super::moves::Moves;
use super::streams::{Sessions, Stream};
use super::through;
use super::tls::{H2, Tls, TlsSetupError};
use super::wire::{Family, Meter, Socket, Wire};
use crate::config;
use crate::reach::names::{self, Asker};
use crate::reach::{self, Patience, Unreached};
use crate::trust;

/// When the kernel gives a connection to an upstream up.
const PATIENCE: Patience = Patience {
    keepalive: Duration::from_secs(30),
    interval: Duration::from_secs(10),
    unacknowledged: Duration::from_secs(20),
};
/// A response head may have this many fields. Past it an executed request would turn into doubt, so it is generous, and worth
/// the memory that hyper takes for more than 100 each time.
pub(super) const MAX_HEADERS: usize = 256;
/// A response head may have this many bytes; also the largest piece of a body that is read at once.
pub(super) const MAX_BUFFER: usize = 256 * 1024;

/// No connection to the upstream could be had. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name did not resolve.
    #[error("cannot resolve `{host}`")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// The name resolved to no address at all.
    #[error("`{host}` has no address")]
    NoAddress {
        /// The name.
        host: String,
    },
    /// Every address of the name leads where requests that name their host must not get, whatever the name.
    #[error("`{host}` leads to an address that egress does not reach")]
    Forbidden {
        /// The name, or the address.
        host: String,
    },
    /// No address took the connection: refused, unreachable. This is the error of the last one that failed.
    #[error("cannot connect to {address}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The socket file took no connection: missing, refused, not permitted.
    #[error("cannot connect to the socket `{}`", path.display())]
    Socket {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The HTTP proxy would not connect to the upstream.
    #[error("the proxy `{proxy}` answered CONNECT with {status}")]
    ProxyRefused {
        /// The proxy's host and port.
        proxy: String,
        /// Its answer.
        status: u16,
    },
    /// The HTTP proxy gave no answer that could be understood.
    #[error("the proxy `{proxy}` did not answer CONNECT")]
    ProxyBroke {
        /// The proxy's host and port.
        proxy: String,
        /// What went wrong.
        source: io::Error,
    },
    /// The TLS handshake failed: untrusted certificate, another name, no common version, or the connection broke.
    #[error("TLS with `{host}` failed{}", advised(*advice))]
    Tls {
        /// The name that the certificate had to carry.
        host: String,
        /// What would mend it, where the source does not say so.
        advice: Option<&'static str>,
        /// What rustls or the kernel said.
        source: io::Error,
    },
    /// What answered there spoke no TLS at all.
    #[error("`{host}` does not speak TLS there: write http:// in the URL of the upstream, or another port")]
    NotTls {
        /// The name that the certificate had to carry.
        host: String,
        /// What rustls said.
        source: io::Error,
    },
    /// What answered there speaks TLS, which the settings do not say. HTTP/2 is spoken before a request exists.
    #[error("`{host}` speaks TLS there: write https:// in the URL of the upstream, or another port")]
    SpeaksTls {
        /// The upstream's host.
        host: String,
    },
    /// It did not stand in time.
    #[error("no connection to `{host}` within {after:?}")]
    TimedOut {
        /// The upstream's host.
        host: String,
        /// The route's `connect_timeout`.
        after: Duration,
    },
    /// It took the connection, and did not answer the TLS handshake in time.
    #[error(
        "`{host}` took the connection, but did not speak TLS within {after:?}; if it never does, write http:// in its URL"
    )]
    NoHandshake {
        /// The upstream's host.
        host: String,
        /// The route's `connect_timeout`.
        after: Duration,
    },
    /// The upstream does not speak HTTP/2, which the route wants.
    #[error("`{host}` does not speak HTTP/2")]
    NotHttp2 {
        /// The upstream's host.
        host: String,
        /// What it did instead; nothing if TLS agreed on no protocol.
        source: Option<h2::Error>,
    },
    /// It takes no request on a connection of HTTP/2 now (`SETTINGS_MAX_CONCURRENT_STREAMS` is 0).
    #[error("`{host}` allows no requests on its HTTP/2 connections (SETTINGS_MAX_CONCURRENT_STREAMS is 0)")]
    NoStreams {
        /// The upstream's host.
        host: String,
    },
    /// The upstream closed it before it could be used.
    #[error("`{host}` closed the connection before it was used")]
    Closed {
        /// The upstream's host.
        host: String,
        /// What hyper found.
        source: hyper::Error,
    },
}

impl ConnectError {
    /// What a caller may know of it: no name and no address of what lies behind the proxy. The log has the rest.
    pub fn outline(&self) -> &'static str {
        match self {
            ConnectError::Resolve { .. } | ConnectError::NoAddress { .. } => "its name did not resolve",
            ConnectError::Forbidden { .. } => "its address is not one that egress reaches",
            ConnectError::Connect { .. } | ConnectError::Socket { .. } => "it took no connection",
            ConnectError::ProxyRefused { .. } | ConnectError::ProxyBroke { .. } => {
                "the proxy on the way to it did not connect"
            }
            ConnectError::Tls { .. } => "TLS with it failed",
            ConnectError::NotTls { .. } => "it does not speak TLS there, and the settings say https://",
            ConnectError::SpeaksTls { .. } => "it speaks TLS there, and the settings say http://",
            ConnectError::NoHandshake { .. } => "it took the connection, but spoke no TLS in time",
            ConnectError::TimedOut { .. } => "no connection stood in time",
            ConnectError::NotHttp2 { .. } => "it does not speak HTTP/2",
            ConnectError::NoStreams { .. } => "it takes no requests now",
            ConnectError::Closed { .. } => "it closed the connection before it was used",
        }
    }

    /// The same, saying so if the time ended in the handshake of TLS.
    fn while_shaking_hands(self, shaking: &AtomicBool) -> ConnectError {
        match self {
            ConnectError::TimedOut { host, after } if shaking.load(Ordering::Relaxed) => {
                ConnectError::NoHandshake { host, after }
            }
            error => error,
        }
    }

    /// Whether a request may have run: never.
    pub fn may_have_run(&self) -> bool {
        false
    }
}

fn advised(advice: Option<&str>) -> String {
    advice.map(|advice| format!(" ({advice})")).unwrap_or_default()
}

/// What a handshake that failed says: mostly of a certificate, and sometimes that the settings mean another protocol.
fn failed_handshake(host: String, source: io::Error) -> ConnectError {
    let cause = source.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            ConnectError::NotTls { host, source }
        }
        cause => ConnectError::Tls { host, advice: cause.and_then(trust::advice), source },
    }
}

/// Makes connections to one upstream.
#[derive(Debug)]
pub(super) struct Dialer {
    upstream: config::Upstream,
    tls: Option<Tls>,
    timeout: Duration,
    moves: Arc<Moves>,
}

impl Dialer {
    pub(super) fn new(upstream: &config::Upstream, timeout: Duration) -> Result<Dialer, TlsSetupError> {
        let tls = if upstream.tls { Some(Tls::new(upstream)?) } else { None };
        Ok(Dialer { upstream: upstream.clone(), tls, timeout, moves: Moves::new(upstream) })
    }

    /// Where the name leads now.
    pub(super) fn moves(&self) -> &Arc<Moves> {
        &self.moves
    }

    pub(super) fn upstream(&self) -> &config::Upstream {
        &self.upstream
    }

    /// The same for another host.
    pub(super) fn towards(&self, upstream: &config::Upstream) -> Result<Dialer, TlsSetupError> {
        let tls = self.tls.as_ref().map(|tls| tls.towards(upstream)).transpose()?;
        Ok(Dialer { upstream: upstream.clone(), tls, timeout: self.timeout, moves: Moves::new(upstream) })
    }

    /// A connection of HTTP/1.1.
    pub(super) async fn dial(&self) -> Result<Link, ConnectError> {
        let shaking = AtomicBool::new(false);
        let connected = self.within(async {
            let (wire, meter) = self.establish(&shaking).await?;
            self.speak(wire, meter).await.map_err(|source| ConnectError::Closed { host: self.host(), source })
        });
        connected.await.map_err(|error| error.while_shaking_hands(&shaking))
    }

    /// A connection of HTTP/2 that requests share, and the first stream on it.
    pub(super) async fn dial_shared(&self, sessions: &Sessions) -> Result<Stream, ConnectError> {
        let shaking = AtomicBool::new(false);
        let connected = self.within(async {
            let (wire, meter) = self.establish(&shaking).await?;
            if wire.has_tls() && !wire.agreed_on(H2) {
                return Err(ConnectError::NotHttp2 { host: self.host(), source: None });
            }
            let not_http2 = |source| match meter.saw_tls_alert() {
                true => ConnectError::SpeaksTls { host: self.host() },
                false => ConnectError::NotHttp2 { host: self.host(), source: Some(source) },
            };
            let stream = sessions.begin(wire).await.map_err(not_http2)?;
            stream.ok_or_else(|| ConnectError::NoStreams { host: self.host() })
        });
        connected.await.map_err(|error| error.while_shaking_hands(&shaking))
    }

    /// What connecting takes, within the timeout.
    pub(super) async fn within<T>(
        &self,
        connecting: impl Future<Output = Result<T, ConnectError>>,
    ) -> Result<T, ConnectError> {
        // Boxed, since this is the rare way and would make every caller's future larger.
        match timeout(self.timeout, Box::pin(connecting)).await {
            Ok(established) => established,
            Err(_elapsed) => Err(ConnectError::TimedOut { host: self.host(), after: self.timeout }),
        }
    }

    /// A connection that HTTP can be spoken on. `shaking` says whether the handshake of TLS is under way.
    async fn establish(&self, shaking: &AtomicBool) -> Result<(Wire, Arc<Meter>), ConnectError> {
        let stream = self.reach().await?;
        let meter = Arc::new(Meter::to(stream.peer()));
        let socket = Socket::new(stream, meter.clone());
        let wire = match &self.tls {
            None => Wire::plain(socket),
            Some(tls) => {
                shaking.store(true, Ordering::Relaxed);
                let connected = tls.connector.connect(tls.name.clone(), socket).await;
                shaking.store(false, Ordering::Relaxed);
                Wire::tls(connected.map_err(|source| failed_handshake(self.host(), source))?)
            }
        };
        Ok((wire, meter))
    }

    async fn speak(&self, wire: Wire, meter: Arc<Meter>) -> hyper::Result<Link> {
        let (sender, connection) = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_BUFFER)
            .handshake(TokioIo::new(wire))
            .await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                // Whoever waits for an answer has got this error; left are faults of connections nobody uses.
                tracing::debug!(error = &error as &dyn std::error::Error, "idle upstream connection failed");
            }
        });
        let mut link = Link::new(sender, task, meter);
        link.ready().await?;
        Ok(link)
    }

    /// How errors call the upstream.
    pub(super) fn host(&self) -> String {
        match &self.upstream.socket {
            Some(path) => path.display().to_string(),
            None => self.upstream.host.clone(),
        }
    }

    async fn reach(&self) -> Result<Family, ConnectError> {
        let upstream = &self.upstream;
        if let Some(path) = &upstream.socket {
            let connected = UnixStream::connect(path).await;
            return connected.map(Family::Unix).map_err(|source| ConnectError::Socket { path: path.clone(), source });
        }
        let stream = match &upstream.proxy {
            None => {
                let egress = upstream.egress.as_deref().map(|egress| &egress.allow);
                reach(&upstream.host, upstream.port, egress).await?
            }
            Some(proxy) => through::connect(reach(&proxy.host, proxy.port, None).await?, proxy, upstream).await?,
        };
        Ok(Family::Tcp(stream))
    }
}

/// A TCP connection to whichever address of the name takes it first, of those that egress permits.
///
/// The addresses are judged here and not when the name was: it may have been given others in between (DNS rebinding).
async fn reach(host: &str, port: u16, egress: Option<&config::Hosts>) -> Result<TcpStream, ConnectError> {
    let asker = if egress.is_some() { Asker::Client } else { Asker::Settings };
    let found = names::addresses(host, asker).await;
    let found = found.map_err(|source| ConnectError::Resolve { host: host.to_owned(), source })?;
    let mut addresses: Vec<_> = found.into_iter().map(|address| SocketAddr::new(address, port)).collect();
    let found = addresses.len();
    addresses.retain(|address| egress.is_none_or(|egress| egress.permit_address(*address)));
    if addresses.is_empty() && found > 0 {
        return Err(ConnectError::Forbidden { host: host.to_owned() });
    }
    match reach::race(addresses, &PATIENCE).await {
        Some(connected) => connected.map_err(|Unreached { address, source }| ConnectError::Connect { address, source }),
        None => Err(ConnectError::NoAddress { host: host.to_owned() }),
    }
}

/// A connection for a tunnel, to an address that `tunnels` permits, within the timeout.
///
/// # Errors
/// There is none, and nothing was sent anywhere.
pub async fn open_tunnel(
    host: &str,
    port: u16,
    tunnels: &config::Hosts,
    within: Duration,
) -> Result<TcpStream, ConnectError> {
    let reached = timeout(within, reach(host, port, Some(tunnels))).await;
    reached.unwrap_or_else(|_elapsed| Err(ConnectError::TimedOut { host: host.to_owned(), after: within }))
}
