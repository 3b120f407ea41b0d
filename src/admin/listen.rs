//! The accept loop of the admin listener: bounded connections, a deadline for heads, and an orderly stop.
//!
//! `axum::serve` has none of the three. Kept apart from [`crate::server`], which shares clients between cores and counts
//! them; a probe must be answered even when clients have used up what that one allows.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::Peer;
use crate::shutdown::Signal;

/// Connections at a time; further ones wait in the backlog.
const CONNECTIONS: usize = 512;
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
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.given() => break,
            Some(_) = connections.join_next() => {}
            (socket, peer, permit) = accept(&listener, &permits) => {
                connections.spawn(connection(socket, peer, permit, router.clone(), stop.clone()));
            }
        }
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_TIMEOUT, finished).await.is_err() {
        tracing::warn!(connections = connections.len(), "admin connections cut at stop");
    }
}

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let permit = Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => return (socket, peer, permit),
            Err(error) => {
                tracing::warn!(%error, "admin connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(socket: TcpStream, peer: SocketAddr, _permit: OwnedSemaphorePermit, router: Router, stop: Signal) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer));
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.oneshot(request).await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(socket), service);
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
