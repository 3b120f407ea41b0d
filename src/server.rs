//! Listen: the first step. Accepts connections, reads requests under limits and deadlines, refuses what is ambiguous
//! before anyone acts on it, and drains.
//!
//! One acceptor ([`accept`]) gives each connection to the core with the fewest; each core is a thread that runs
//! [`serve`] on a runtime of its own, and a request never leaves it. What a request means is left to the service:
//! nothing here knows of keys or records, and the service need not know which version of HTTP a request came by.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::Limits;
use crate::interim::Interim;
use crate::shutdown::{Signal, Tasks, spawn_counted};

mod answer;
mod client;
mod core;
mod drain;
mod exchange;
mod fault;
mod flow;
mod framing;
mod greet;
mod head;
mod http2;
mod listener;
mod outbox;
mod room;
mod socket;
mod streams;
mod tls;
mod unix;
mod wire;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod tests;

pub use self::core::{Core, Inbox, core};
pub use client::ClientName;
pub use listener::{BindError, Door, Listener, accept, bind};
pub use tls::{CertificateError, Tls, faults};

use self::core::{Accepted, Caller, Seat};
use answer::Answer;
use drain::Drain;
use exchange::{Exchange, Turn};
use fault::HeadFault;
use greet::{GreetError, Greeted, Greeting, Version};
use socket::Socket;
use streams::Streams;
use wire::Wire;

/// The two ends of the connection that a request came by.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The client's address; `None` on a Unix socket.
    pub remote: Option<SocketAddr>,
    /// The address that it connected to; `None` on a Unix socket.
    pub local: Option<SocketAddr>,
    /// Whether they speak TLS.
    pub tls: bool,
    /// Where interim answers to the request go, if the client can be told.
    pub interim: Option<Interim>,
}

/// What a body's error has to become so that hyper can report it.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Serves the connections that arrive in the inbox, each as a task of the current runtime, until the acceptor is gone
/// and the last connection is closed. Dropping the future leaves its connections running; they end with the runtime.
///
/// Each connection is greeted as its door says, within `header_timeout`. The service is called once for each request whose
/// head is sound; others get 400 and their connection is closed.
/// When `stop` is given, connections between two requests close at once, running requests get their answers with
/// `Connection: close`, and requests that have begun to arrive are still served. There is no deadline for that: it is
/// the caller's, who may drop the future. A service that panics costs its connection, nothing else.
///
/// Requests of a client that has shown a certificate have its [`ClientName`] among their extensions.
///
/// An answer of 101, or a 2xx to `CONNECT`, ends HTTP on its connection, whose bytes are then the service's: it has them from
/// [`hyper::upgrade::on`]. Such a connection keeps its place under the limit, has no deadline here, and is not waited
/// for.
///
/// A client that goes away while its request runs drops the service's future: work that must finish belongs in a task.
pub async fn serve<S, F, B>(mut inbox: Inbox, service: S, limits: &Limits, stop: &Signal)
where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let tasks = Tasks::default();
    let house = Arc::new(House {
        http1: protocol(limits),
        http2: http2::protocol(limits, &tasks),
        service,
        limits: limits.clone(),
        drain: Arc::default(),
    });
    let drain = house.drain.clone();
    let mut stopped = pin!(stop.given());
    loop {
        tokio::select! {
            biased;
            () = &mut stopped, if !drain.has_begun() => drain.begin(),
            accepted = inbox.next() => match accepted {
                Some(accepted) => spawn(accepted, &house, &tasks),
                None => break,
            },
        }
    }
    // The acceptor is gone. Its end is the stop as well, whichever this core hears of first.
    drain.begin();
    tasks.finished().await;
}

/// The settings of the protocol.
///
/// No deadline is set here: hyper knows one timer for heads and for idle connections, so [`Wire`] keeps both. The limit
/// of 100 fields is hyper's own; another would cost two allocations a request. `half_close` stays off, so that a client
/// that has gone is noticed.
fn protocol(limits: &Limits) -> http1::Builder {
    /// The smallest buffer that hyper takes.
    const SMALLEST_BUFFER: usize = 8192;
    let mut http = http1::Builder::new();
    http.max_buf_size(limits.header_bytes.max(SMALLEST_BUFFER)).max_header_size(limits.header_bytes);
    http
}

/// What the connections of a core have in common.
struct House<S> {
    http1: http1::Builder,
    http2: hyper::server::conn::http2::Builder<http2::Spawner>,
    service: S,
    limits: Limits,
    drain: Arc<Drain>,
}

/// Runs one connection as a counted task.
fn spawn<S, F, B>(accepted: Accepted, house: &Arc<House<S>>, tasks: &Tasks)
where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let Accepted { from, greeting, at, seat } = accepted;
    // A plain connection has a task without room for what only the others need.
    match (from, greeting) {
        (Caller::Tcp(stream, remote), greeting) => {
            let opened = stream.local_addr().and_then(|local| Ok((TcpStream::from_std(stream)?, local)));
            let Some((stream, local)) = opened.map_err(|error| broke(Some(remote), &error)).ok() else { return };
            let peer = |tls| Peer { remote: Some(remote), local: Some(local), tls, interim: None };
            match greeting {
                Greeting::Plain => spawn_http1(stream.into(), at, peer(false), house, seat, tasks),
                Greeting::Sniff => spawn_greeted(greet::sniff(stream.into()), at, peer(false), house, seat, tasks),
                Greeting::Tls(tls) => {
                    let shaking = async move { greet::shake_hands(stream, &tls).await };
                    spawn_greeted(shaking, at, peer(true), house, seat, tasks);
                }
            }
        }
        (Caller::Unix(stream), greeting) => {
            let opened = tokio::net::UnixStream::from_std(stream);
            let Some(stream) = opened.map_err(|error| broke(None, &error)).ok() else { return };
            let peer = Peer { remote: None, local: None, tls: false, interim: None };
            match greeting {
                Greeting::Plain | Greeting::Tls(_) => spawn_http1(stream.into(), at, peer, house, seat, tasks),
                Greeting::Sniff => spawn_greeted(greet::sniff(stream.into()), at, peer, house, seat, tasks),
            }
        }
    }
}

fn broke(remote: Option<SocketAddr>, error: &std::io::Error) {
    tracing::debug!(?remote, %error, "a connection broke before it was served");
}

/// Runs a connection that speaks HTTP/1.
fn spawn_http1<S, F, B>(socket: Socket, at: Instant, peer: Peer, house: &Arc<House<S>>, seat: Seat, tasks: &Tasks)
where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let running = serve_http1(socket, at, peer, None, house, seat);
    spawn_counted(tasks, running);
}

/// Runs a connection that has to say first what it speaks.
fn spawn_greeted<S, F, B>(
    greeting: impl Future<Output = Result<Greeted, GreetError>> + Send + 'static,
    at: Instant,
    peer: Peer,
    house: &Arc<House<S>>,
    seat: Seat,
    tasks: &Tasks,
) where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let house = house.clone();
    spawn_counted(tasks, async move {
        let limits = &house.limits;
        match Box::pin(greet::in_time(limits.header_timeout, &house.drain, greeting)).await {
            Ok(Greeted { socket, version: Version::One, client }) => {
                serve_http1(socket, at, peer, client, &house, seat).await;
            }
            Ok(Greeted { socket, version: Version::Two, client }) => {
                let service = house.service.clone();
                let service = move |mut request: Request<Incoming>, peer| {
                    name(&mut request, client.as_ref());
                    service(request, peer)
                };
                let streams = Streams::new(at, limits, seat.place.clone());
                let served = http2::serve(socket, &streams, &house.http2, service, peer.clone(), &house.drain);
                if let Err(error) = Box::pin(served).await {
                    if error.is_abuse() {
                        seat.is_abused();
                    }
                    tracing::debug!(remote = ?peer.remote, %error, "a connection ended early");
                }
            }
            Err(error) => {
                if peer.tls {
                    seat.has_failed();
                }
                let source = std::error::Error::source(&error);
                tracing::debug!(remote = ?peer.remote, %error, source, "a connection was not served");
            }
        }
    });
}

/// Serves a connection that speaks HTTP/1 to its end.
fn serve_http1<S, F, B>(
    socket: Socket,
    at: Instant,
    peer: Peer,
    client: Option<ClientName>,
    house: &House<S>,
    seat: Seat,
) -> impl Future<Output = ()> + Send + use<S, F, B>
where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let exchange = Arc::new(Exchange::new(house.drain.clone(), seat));
    let wire = Wire::new(socket, at, &house.limits, exchange.clone());
    let (shared, service, remote) = (exchange.clone(), house.service.clone(), peer.remote);
    let answering = service_fn(move |mut request: Request<Incoming>| {
        name(&mut request, client.as_ref());
        let turn = exchange.begin();
        let connects = request.method() == Method::CONNECT;
        if request.method() == Method::OPTIONS && exchange.asks_server() {
            head::ask_server(&mut request);
        }
        // Clients of HTTP/1.0 know no interim answers.
        let interim = (request.version() == http::Version::HTTP_11).then(|| exchange.interim());
        let verdict = exchange.verdict().and_then(|()| head::address(&mut request));
        // Boxed, as the connection is: a future that another one takes over would be kept room for twice.
        let called = verdict.map(|()| Box::pin(service(request, Peer { interim, ..peer.clone() })));
        answer(called, turn, peer.remote, connects)
    });
    let connection = Box::pin(house.http1.serve_connection(TokioIo::new(wire), answering).with_upgrades());
    async move {
        if let Err(error) = drive(connection, &shared).await {
            tracing::debug!(?remote, %error, "a connection ended early");
        }
    }
}

/// Says by whom a request was made, if that is known.
fn name(request: &mut Request<Incoming>, client: Option<&ClientName>) {
    if let Some(client) = client {
        request.extensions_mut().insert(client.clone());
    }
}

/// Waits for the service's answer, or refuses the request.
async fn answer<F, B>(
    called: Result<Pin<Box<F>>, HeadFault>,
    turn: Turn,
    remote: Option<SocketAddr>,
    connects: bool,
) -> Result<Response<Answer<B>>, Infallible>
where
    F: Future<Output = Response<B>>,
{
    let answered = match called {
        Ok(running) => Ok(running.await),
        Err(fault) => {
            tracing::debug!(?remote, %fault, "a request was refused by its head");
            Err(fault)
        }
    };
    turn.exchange().outbox().close();
    if turn.exchange().is_receiving() {
        // Lets hyper see first whether the service has dropped the body. If so, the connection cannot be used again,
        // and the answer should say it: clients stop sending then.
        tokio::task::yield_now().await;
    }
    let drains = turn.exchange().drain().has_begun();
    let switches = answered.as_ref().is_ok_and(|response| {
        response.status() == StatusCode::SWITCHING_PROTOCOLS || connects && response.status().is_success()
    });
    if switches {
        turn.exchange().switch();
    }
    let mut response = match answered {
        Ok(response) => response.map(|body| Answer::of(body, turn)),
        Err(fault) => Answer::refusal(fault, turn),
    };
    // An answer that says `close` as well would not switch. What follows a refused CONNECT was meant for the tunnel, and
    // must not be read as a request.
    if !switches && (drains || connects) {
        answer::close(&mut response);
    }
    Ok(response)
}

/// Runs a connection to its end, and has it end with the request that is being answered when draining begins. A
/// connection that is between two requests then is closed by its [`Wire`].
async fn drive<S, B>(
    mut connection: Pin<Box<http1::UpgradeableConnection<TokioIo<Wire>, S>>>,
    exchange: &Exchange,
) -> hyper::Result<()>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let drain = exchange.drain();
    let mut wake = None;
    let mut told = false;
    poll_fn(|cx| {
        // The waker of a task stays the same, so that once is enough.
        wake.get_or_insert_with(|| {
            exchange.presence().wake_with(cx.waker());
            drain.wake(cx.waker())
        });
        if !told && drain.has_begun() && (exchange.is_answering() || exchange.is_stalled()) {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await
}
