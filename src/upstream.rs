//! Towards the upstream: one connection pool per route and core, for keyed and plain traffic alike, in HTTP/1.1 or 2.
//!
//! It is our own, and small, because the pools at hand cannot say the one thing that matters here: whether a request
//! that failed may have run. This one hands a request over exactly once, never resends, and tells "certainly not sent"
//! from "nobody can tell" ([`SendError`]). Keys, claims and records are unknown here; so is what a caller is told.

use std::sync::Arc;
use std::time::Duration;

use crate::config;
use crate::metrics::{Count, RouteMetrics};

mod body;
mod connect;
mod connection;
mod frames;
mod idle;
mod interim;
mod moves;
mod streams;
mod switch;
mod through;
mod tls;
mod wire;

#[cfg(test)]
mod tests;

pub use body::{BodyError, BoxError, RequestBody, ResponseBody};
pub use connect::{ConnectError, open_tunnel};
pub use connection::{AmbiguousResponse, Connection, SendError};
pub use interim::OnInterim;
pub use switch::switched;
pub use tls::{TlsSetupError, check_files};

use connect::Dialer;
use connection::Via;
use idle::IdleList;
use streams::Sessions;

/// Connections to one upstream, used by the tasks of one core. Cheap to clone; clones share everything.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    /// What plain requests go by. Their answers are read as slowly as clients take them, and on a connection that they share
    /// with others those would wait as well; so with HTTP/2 they have connections of their own.
    plain: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dialer: Arc<Dialer>,
    idle: Arc<IdleList>,
    /// In place of the idle list, where the upstream is spoken to in HTTP/2.
    sessions: Option<Sessions>,
    sends: Count,
}

impl Pool {
    /// A pool without connections. With TLS it reads the certificates to trust, so it belongs to the start.
    ///
    /// `connect_timeout` is for name, connection and TLS together. A connection unused for `idle_timeout` is closed;
    /// it should be shorter than the upstream's own, so that it is this side that closes first.
    pub fn new(
        upstream: &config::Upstream,
        connect_timeout: Duration,
        idle_timeout: Duration,
        metrics: &RouteMetrics,
    ) -> Result<Pool, TlsSetupError> {
        let dialer = Arc::new(Dialer::new(upstream, connect_timeout)?);
        Ok(Pool::of(dialer, idle_timeout, metrics.upstream_sends.clone()))
    }

    /// A pool to a place beside the upstreams, whose sends are not counted among theirs.
    ///
    /// # Errors
    /// The certificates to trust cannot be read.
    pub fn uncounted(
        upstream: &config::Upstream,
        connect_timeout: Duration,
        idle_timeout: Duration,
    ) -> Result<Pool, TlsSetupError> {
        let dialer = Arc::new(Dialer::new(upstream, connect_timeout)?);
        Ok(Pool::of(dialer, idle_timeout, Count::default()))
    }

    /// A pool to the same upstream with connections of its own, for another core. It does not read the certificates
    /// again, and resumes the TLS sessions of its siblings.
    #[must_use]
    pub fn for_another_core(&self) -> Pool {
        let Shared { dialer, idle, sends, .. } = &*self.shared;
        Pool::of(dialer.clone(), idle.timeout(), sends.clone())
    }

    fn of(dialer: Arc<Dialer>, idle_timeout: Duration, sends: Count) -> Pool {
        let is_http2 = dialer.upstream().http2;
        let shared = || {
            let (dialer, sends, moves) = (dialer.clone(), sends.clone(), dialer.moves());
            let sessions = is_http2.then(|| Sessions::new(idle_timeout, dialer.upstream().pings, moves.clone()));
            Arc::new(Shared { dialer, idle: IdleList::new(idle_timeout, moves.clone()), sessions, sends })
        };
        let one = shared();
        Pool { plain: if is_http2 { shared() } else { one.clone() }, shared: one }
    }

    /// The pool for requests whose answers go on as clients take them.
    #[must_use]
    pub fn for_plain(&self) -> Pool {
        Pool { shared: self.plain.clone(), plain: self.plain.clone() }
    }

    /// Whether a connection can leave HTTP for another protocol. One of HTTP/2, which requests share, cannot.
    pub fn can_switch(&self) -> bool {
        self.shared.sessions.is_none()
    }

    /// A pool to another host, for one whose upstream requests name: with connections of its own, and the certificates
    /// and timeouts of this one.
    ///
    /// # Errors
    /// If the host cannot be the name in a certificate.
    pub fn towards(&self, upstream: &config::Upstream) -> Result<Pool, TlsSetupError> {
        let Shared { dialer, idle, sends, .. } = &*self.shared;
        Ok(Pool::of(Arc::new(dialer.towards(upstream)?), idle.timeout(), sends.clone()))
    }

    /// What can be had without waiting: the idle connection that was used last and is found alive, or a stream of a shared
    /// one.
    pub fn reuse(&self) -> Option<Connection> {
        if let Some(sessions) = &self.shared.sessions {
            return sessions.take().map(|stream| Connection::reused(Via::Stream(stream), self.shared.clone()));
        }
        self.shared.idle.take().map(|link| Connection::reused(Via::Own(link), self.shared.clone()))
    }

    /// What can be had without waiting, or else a fresh connection.
    ///
    /// An error means that nothing was sent.
    pub async fn checkout(&self) -> Result<Connection, ConnectError> {
        if let Some(connection) = self.reuse() {
            return Ok(connection);
        }
        let Some(sessions) = &self.shared.sessions else { return self.connect().await };
        let dialing = self.shared.dialer.within(async { Ok(sessions.dialing().await) }).await?;
        if let Some(connection) = self.reuse() {
            return Ok(connection);
        }
        let connected = self.connect().await;
        drop(dialing);
        connected
    }

    /// A fresh connection, whatever is idle.
    ///
    /// An error means that nothing was sent. Dropping the future gives the connection up.
    pub async fn connect(&self) -> Result<Connection, ConnectError> {
        if let Some(sessions) = &self.shared.sessions {
            let stream = self.shared.dialer.dial_shared(sessions).await?;
            return Ok(Connection::fresh(Via::Stream(stream), self.shared.clone()));
        }
        let link = self.shared.dialer.dial().await?;
        Ok(Connection::fresh(Via::Own(link), self.shared.clone()))
    }
}
