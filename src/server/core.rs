//! Dealing connections out to cores: the acceptor's end of a core, the core's own end, and the seat that counts a
//! connection from accept to close.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use crate::metrics::ListenerMetrics;

use super::greet::Greeting;
use super::room::{Place, Room};

/// Makes the two ends of a core. [`Core`] goes to [`accept`](super::accept), [`Inbox`] to the core's
/// [`serve`](super::serve), which ends when its [`Core`] is dropped and its connections are closed.
pub fn core() -> (Core, Inbox) {
    // Its length is bounded by the seats: a connection in the queue has one.
    let (sender, receiver) = mpsc::unbounded_channel();
    (Core { sender, open: Arc::default() }, Inbox { receiver })
}

/// The acceptor's end: where to put connections, and how many are open there.
#[derive(Debug)]
pub struct Core {
    sender: mpsc::UnboundedSender<Accepted>,
    open: Arc<AtomicUsize>,
}

/// The core's end.
#[derive(Debug)]
pub struct Inbox {
    receiver: mpsc::UnboundedReceiver<Accepted>,
}

impl Inbox {
    /// The next connection; `None` when there will be no more.
    pub(super) async fn next(&mut self) -> Option<Accepted> {
        self.receiver.recv().await
    }
}

/// A connection on its way to a core.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) from: Caller,
    pub(super) greeting: Greeting,
    pub(super) at: Instant,
    pub(super) seat: Seat,
}

/// Who connected.
#[derive(Debug)]
pub(super) enum Caller {
    /// By the network, from this address.
    Tcp(TcpStream, SocketAddr),
    /// By a Unix socket.
    Unix(UnixStream),
}

/// One connection's place: under the limit, in its core's count, in the gauge and in the room. Dropping it gives all back.
#[derive(Debug)]
pub(super) struct Seat {
    /// Whether it is busy, and may go if there is no room.
    pub(super) place: Place,
    open: Arc<AtomicUsize>,
    metrics: ListenerMetrics,
    _permit: OwnedSemaphorePermit,
}

impl Seat {
    fn take(open: Arc<AtomicUsize>, metrics: ListenerMetrics, place: Place, permit: OwnedSemaphorePermit) -> Seat {
        open.fetch_add(1, Ordering::Relaxed);
        metrics.connections.inc();
        Seat { place, open, metrics, _permit: permit }
    }

    /// Counts a connection on which TLS did not come about.
    pub(super) fn has_failed(&self) {
        self.metrics.handshake_failures.inc();
    }

    /// Counts a connection that is closed because of what its client does.
    pub(super) fn is_abused(&self) {
        self.metrics.abused.inc();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.metrics.connections.dec();
    }
}

/// The cores, as the one that deals to them.
#[derive(Debug)]
pub(super) struct Dealer {
    cores: Vec<Core>,
    metrics: ListenerMetrics,
    room: Arc<Room>,
}

impl Dealer {
    pub(super) fn new(cores: Vec<Core>, metrics: ListenerMetrics) -> Dealer {
        Dealer { cores, metrics, room: Room::new() }
    }

    /// The connections that are open.
    pub(super) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Whether there is no core left to serve connections.
    pub(super) fn is_alone(&self) -> bool {
        self.cores.is_empty()
    }

    /// Gives the connection to the core that has the fewest open ones. A core that turns out to be gone gets no more,
    /// and this connection is closed.
    pub(super) fn deal(&mut self, from: Caller, greeting: Greeting, permit: OwnedSemaphorePermit) {
        let fewest = self.cores.iter().enumerate().min_by_key(|(_, core)| core.open.load(Ordering::Relaxed));
        let Some((index, core)) = fewest else { return };
        let seat = Seat::take(core.open.clone(), self.metrics.clone(), self.room.enter(), permit);
        if core.sender.send(Accepted { from, greeting, at: Instant::now(), seat }).is_err() {
            tracing::error!(core = index, left = self.cores.len() - 1, "a core is gone; it gets no more connections");
            self.cores.remove(index);
        }
    }
}
