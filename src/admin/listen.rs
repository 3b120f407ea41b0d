//! The accept loop of the admin listener: bounded connections of which the oldest makes room, deadlines for heads and for
//! answers that nobody takes, and an orderly stop.
//!
//! `axum::serve` has none of these. Kept apart from [`crate::server`], which shares clients between cores and counts
//! them; a probe must be answered even when clients have used up what that one allows.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use super::Peer;
use crate::shutdown::Signal;

/// Connections at a time. For a further one the oldest goes that is not being answered: a probe must come through, whoever
/// holds connections and says nothing, or does not read.
const CONNECTIONS: usize = 512;
/// How long a client may leave its answer where it is.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Until a head must be complete, and how long a connection may be idle. Short, so that connections which say nothing
/// cannot keep probes waiting for long.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest head. A record id and a token are short.
const HEAD_BYTES: usize = 16 * 1024;
/// How long a stop waits for calls that are being answered.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after an accept that failed for want of file descriptors, say: at once it would fail again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` is given, then lets running calls end within a few seconds and returns.
///
/// Dropping the future cuts every connection.
pub async fn serve(listener: TcpListener, router: Router, stop: Signal) {
    let mut connections = JoinSet::new();
    let mut open: VecDeque<Open> = VecDeque::new();
    loop {
        tokio::select! {
            biased;
            () = stop.given() => break,
            Some(_) = connections.join_next() => open.retain(|open| !open.task.is_finished()),
            (socket, peer) = accept(&listener) => {
                if open.len() >= CONNECTIONS {
                    make_room(&mut open);
                }
                let calls = Calls::default();
                let task = connections.spawn(connection(socket, peer, calls.clone(), router.clone(), stop.clone()));
                open.push_back(Open { task, calls });
            }
        }
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_TIMEOUT, finished).await.is_err() {
        tracing::warn!(connections = connections.len(), "admin connections cut at stop");
    }
}

/// Calls that are being answered on a connection.
type Calls = Arc<AtomicUsize>;

/// A connection.
struct Open {
    task: AbortHandle,
    calls: Calls,
}

/// Cuts the oldest connection that is not being answered. Few are at a time, and each for a bounded time.
fn make_room(open: &mut VecDeque<Open>) {
    if let Some(oldest) = open.iter().position(|open| open.calls.load(Ordering::Relaxed) == 0)
        && let Some(Open { task, .. }) = open.remove(oldest)
    {
        task.abort();
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "admin connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One call that is being answered.
struct Call(Calls);

impl Call {
    fn begin(calls: &Calls) -> Call {
        calls.fetch_add(1, Ordering::Relaxed);
        Call(calls.clone())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connection(socket: TcpStream, peer: SocketAddr, calls: Calls, router: Router, stop: Signal) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer));
        let (router, call) = (router.clone(), Call::begin(&calls));
        async move {
            let answer = router.oneshot(request).await.unwrap_or_else(|never| match never {});
            drop(call);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut socket = TimeoutStream::new(socket);
    socket.set_write_timeout(Some(WRITE_TIMEOUT));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(Box::pin(socket)), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.given() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "admin connection ended early");
    }
}
