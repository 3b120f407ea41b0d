//! The listening socket and the one loop that accepts from it.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Limits;
use crate::metrics::Metrics;
use crate::shutdown::Signal;

use super::core::{Core, Dealer};

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

/// Why an address could not be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address}: {}", reason(.source))]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

fn reason(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process is listening there",
        io::ErrorKind::AddrNotAvailable => "this machine does not have that address",
        io::ErrorKind::PermissionDenied => "it is not permitted (ports below 1024 need a privilege)",
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
    listen().map_err(|source| BindError { address, source })
}

/// Accepts connections and gives each to the core with the fewest, until the signal is given or no core is left.
///
/// At the limit of connections it stops accepting; further ones wait in the backlog. When stopped it still deals out
/// what the backlog holds, since those clients believe that they are connected, and then closes the socket and drops
/// the cores. The error is that the socket cannot be watched.
pub async fn accept(
    listener: Listener,
    cores: Vec<Core>,
    limits: &Limits,
    stop: &Signal,
    metrics: &Metrics,
) -> io::Result<()> {
    let socket = tokio::net::TcpListener::from_std(listener.socket)?;
    let seats = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let mut dealer = Dealer::new(cores, metrics.connections().clone());
    let mut stopped = std::pin::pin!(stop.given());
    let mut resting = false;
    while !dealer.is_alone() {
        let next = tokio::select! {
            biased;
            () = &mut stopped => break,
            next = next(&socket, &seats) => next,
        };
        match next {
            Ok((stream, remote, permit)) => {
                resting = false;
                dealer.deal(stream, remote, permit);
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
    let socket = socket.into_std()?;
    while let Ok(permit) = seats.clone().try_acquire_owned()
        && let Ok((stream, remote)) = socket.accept()
        && ready(&stream).is_ok()
    {
        dealer.deal(stream, remote, permit);
    }
    Ok(())
}

/// The next connection, once there is a seat for it.
async fn next(
    socket: &tokio::net::TcpListener,
    seats: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = seats.clone().acquire_owned().await.expect("the semaphore is never closed");
    let (stream, remote) = socket.accept().await?;
    // It leaves this thread's runtime for its core's.
    let stream = stream.into_std()?;
    ready(&stream)?;
    Ok((stream, remote, permit))
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
        let expected = format!("cannot listen on {}: another process is listening there", first.address());
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
