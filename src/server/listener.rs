//! The listening sockets and the one loop that accepts from them.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{Limits, Listen};
use crate::metrics::Metrics;
use crate::seldom::Seldom;
use crate::shutdown::Signal;

use super::core::{Caller, Core, Dealer};
use super::greet::Greeting;
use super::room::Room;
use super::tls::Tls;
use super::unix::{self, SocketFile};

/// Connections that the kernel holds while they wait to be accepted. It cuts this to its own limit (`somaxconn`).
const BACKLOG: i32 = 4096;

/// How long accepting rests when the process or the machine is out of files or memory.
const REST: Duration = Duration::from_millis(50);

/// A bound socket that nobody accepts from yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// The address it is bound to, with the port that was taken if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket itself, for a listener with an accept loop of its own. Needs a runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    pub fn into_tokio(self) -> io::Result<tokio::net::TcpListener> {
        tokio::net::TcpListener::from_std(self.socket)
    }
}

/// A bound place that nobody accepts from yet, and how its connections are greeted.
#[derive(Debug)]
pub struct Door {
    place: Place,
    greeting: Greeting,
}

#[derive(Debug)]
enum Place {
    Tcp(Listener),
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

impl Door {
    /// Binds a place where clients connect. Addresses speak TLS if there is some, unless they are plain; where there is
    /// none, `h2c` says whether clients may begin in HTTP/2.
    ///
    /// # Errors
    /// The place cannot be had.
    pub fn open(listen: &Listen, tls: Option<&Tls>, h2c: bool) -> Result<Door, BindError> {
        let place = match listen {
            Listen::Tcp { address, .. } => Place::Tcp(bind(*address)?),
            Listen::Unix(path) => {
                let (socket, file) = unix::bind(path, BACKLOG)
                    .map_err(|source| BindError { place: format!("unix:{}", path.display()), source })?;
                Place::Unix(socket, file)
            }
        };
        let greeting = match tls.filter(|_| listen.is_secured()) {
            Some(tls) => Greeting::Tls(tls.clone()),
            None if h2c => Greeting::Sniff,
            None => Greeting::Plain,
        };
        Ok(Door { place, greeting })
    }

    /// Whether its connections speak TLS.
    pub fn is_secured(&self) -> bool {
        matches!(self.greeting, Greeting::Tls(_))
    }
}

/// The address that it is bound to, or `unix:` and the path.
impl std::fmt::Display for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Tcp(listener) => write!(f, "{}", listener.address),
            Place::Unix(_, file) => write!(f, "unix:{}", file.path().display()),
        }
    }
}

/// A listener whose connections speak HTTP/1 without TLS.
impl From<Listener> for Door {
    fn from(listener: Listener) -> Door {
        Door { place: Place::Tcp(listener), greeting: Greeting::Plain }
    }
}

/// Why a place could not be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {place}: {}", reason(.place, .source))]
pub struct BindError {
    place: String,
    source: io::Error,
}

fn reason(place: &str, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse if place.starts_with("unix:") => {
            "another process is listening there; stop it, or choose another path"
        }
        io::ErrorKind::AddrInUse => "another process is listening there; stop it, or choose another port",
        io::ErrorKind::AddrNotAvailable => "this machine does not have that address",
        io::ErrorKind::PermissionDenied => "it is not permitted (ports below 1024 need a privilege)",
        io::ErrorKind::AlreadyExists => "there is a file that is no socket",
        io::ErrorKind::NotFound => "there is no such folder",
        _ => "the system refused",
    }
}

/// Binds a listening socket. A port that another socket is listening on is an error; one whose connections are still
/// dying after a restart is not.
pub fn bind(address: SocketAddr) -> Result<Listener, BindError> {
    let listen = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Listener { socket, address })
    };
    listen().map_err(|source| BindError { place: address.to_string(), source })
}

/// Accepts connections and gives each to the core with the fewest, until the signal is given.
///
/// At the limit of connections the one that has been idle for longest is closed for the next; where none is idle that one
/// waits, and further ones in the backlog. When stopped it still deals out
/// what the backlog holds, since those clients believe that they are connected, and then closes the socket and drops
/// the cores. The error is that a socket cannot be watched, or that no core is left.
pub async fn accept(
    doors: Vec<Door>,
    cores: Vec<Core>,
    limits: &Limits,
    stop: &Signal,
    metrics: &Metrics,
) -> io::Result<()> {
    let mut watched = Watched::new(doors)?;
    let seats = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let mut dealer = Dealer::new(cores, metrics.listeners().clone());
    let mut stopped = std::pin::pin!(stop.given());
    let (mut resting, mut waiting) = (false, None);
    let crowded = Seldom::each_minute();
    loop {
        if dealer.is_alone() {
            return Err(io::Error::other("every core that serves connections is gone"));
        }
        let next = tokio::select! {
            biased;
            () = &mut stopped => break,
            next = next(&mut watched, &mut waiting) => next,
        };
        match next {
            Ok(()) => {
                resting = false;
                let permit = tokio::select! {
                    biased;
                    () = &mut stopped => break,
                    permit = seat(&seats, dealer.room(), &crowded) => permit,
                };
                if let Some((from, greeting)) = waiting.take() {
                    dealer.deal(from, greeting, permit);
                }
            }
            Err(error) if is_the_connections(&error) => {}
            Err(error) => {
                if !std::mem::replace(&mut resting, true) {
                    tracing::error!(%error, "accepting failed; trying on");
                }
                tokio::time::sleep(REST).await;
            }
        }
    }
    if let (Some((from, greeting)), Ok(permit)) = (waiting, seats.clone().try_acquire_owned()) {
        dealer.deal(from, greeting, permit);
    }
    for (socket, greeting) in watched.doors {
        let socket = socket.into_std()?;
        while let Ok(permit) = seats.clone().try_acquire_owned()
            && let Ok(from) = socket.accept()
        {
            dealer.deal(from, greeting.clone(), permit);
        }
    }
    Ok(())
}

/// The listening sockets as the runtime watches them.
struct Watched {
    doors: Vec<(WatchedSocket, Greeting)>,
    /// Which is asked first: the one behind the one that had a connection last, so that none starves.
    first: usize,
}

impl Watched {
    fn new(doors: Vec<Door>) -> io::Result<Watched> {
        let doors = doors.into_iter().map(|Door { place, greeting }| {
            let socket = match place {
                Place::Tcp(listener) => WatchedSocket::Tcp(listener.into_tokio()?),
                Place::Unix(socket, file) => {
                    WatchedSocket::Unix { socket: tokio::net::UnixListener::from_std(socket)?, _file: file }
                }
            };
            Ok((socket, greeting))
        });
        Ok(Watched { doors: doors.collect::<io::Result<_>>()?, first: 0 })
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Caller, Greeting)>> {
        for offset in 0..self.doors.len() {
            let index = (self.first + offset) % self.doors.len();
            let (socket, greeting) = &self.doors[index];
            if let Poll::Ready(accepted) = socket.poll_accept(cx) {
                self.first = index + 1;
                return Poll::Ready(accepted.map(|from| (from, greeting.clone())));
            }
        }
        Poll::Pending
    }
}

enum WatchedSocket {
    Tcp(tokio::net::TcpListener),
    /// The file goes with it.
    Unix {
        socket: tokio::net::UnixListener,
        _file: SocketFile,
    },
}

impl WatchedSocket {
    /// The next connection, out of this thread's runtime: it goes to its core's.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Caller>> {
        match self {
            WatchedSocket::Tcp(socket) => socket.poll_accept(cx).map(|accepted| {
                let (stream, remote) = accepted?;
                let stream = stream.into_std()?;
                ready(&stream)?;
                Ok(Caller::Tcp(stream, remote))
            }),
            WatchedSocket::Unix { socket, .. } => {
                socket.poll_accept(cx).map(|accepted| Ok(Caller::Unix(accepted?.0.into_std()?)))
            }
        }
    }

    /// The socket without the runtime. The file of a Unix socket goes: nobody else is to come.
    fn into_std(self) -> io::Result<LastCalls> {
        match self {
            WatchedSocket::Tcp(socket) => Ok(LastCalls::Tcp(socket.into_std()?)),
            WatchedSocket::Unix { socket, _file } => Ok(LastCalls::Unix(socket.into_std()?)),
        }
    }
}

/// A socket whose backlog is emptied.
enum LastCalls {
    Tcp(TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

impl LastCalls {
    fn accept(&self) -> io::Result<Caller> {
        match self {
            LastCalls::Tcp(socket) => {
                let (stream, remote) = socket.accept()?;
                ready(&stream)?;
                Ok(Caller::Tcp(stream, remote))
            }
            LastCalls::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Caller::Unix(stream))
            }
        }
    }
}

/// Waits for the next connection, and puts it into `waiting`.
async fn next(watched: &mut Watched, waiting: &mut Option<(Caller, Greeting)>) -> io::Result<()> {
    *waiting = Some(poll_fn(|cx| watched.poll_accept(cx)).await?);
    Ok(())
}

/// A seat for a connection. Where there is none, idle connections are asked to close until there is.
async fn seat(seats: &Arc<Semaphore>, room: &Room, crowded: &Seldom<()>) -> OwnedSemaphorePermit {
    loop {
        if let Ok(permit) = seats.clone().try_acquire_owned() {
            return permit;
        }
        if let Some(left_out) = crowded.count(()) {
            tracing::warn!(
                left_out,
                "limits.connections is reached; the connection that is idle for longest makes room"
            );
        }
        room.make();
        if let Ok(permit) = tokio::time::timeout(REST, seats.clone().acquire_owned()).await {
            return permit.expect("the semaphore is never closed");
        }
    }
}

/// Sets what an accepted socket needs.
fn ready(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    // Heads and bodies may go out as separate writes; nothing is gained by holding the second back.
    stream.set_nodelay(true)
}

/// Whether an error says something of one connection only, which is over then.
fn is_the_connections(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, InvalidInput};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | InvalidInput)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_refused_by_name() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = bind(first.address()).unwrap_err();
        let expected = format!(
            "cannot listen on {}: another process is listening there; stop it, or choose another port",
            first.address()
        );
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_port_whose_connections_are_dying_can_be_bound() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.address();
        let client = TcpStream::connect(address).unwrap();
        first.socket.set_nonblocking(false).unwrap();
        // Closed here first, so that this side is the one in TIME_WAIT.
        drop(first.socket.accept().unwrap());
        drop(first);
        drop(client);
        bind(address).unwrap();
    }
}
