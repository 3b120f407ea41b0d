//! Dealing connections out to cores: the acceptor's end of a core, the core's own end, and the seat that counts a
//! connection from accept to close.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

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
    pub(super) stream: TcpStream,
    pub(super) remote: SocketAddr,
    pub(super) seat: Seat,
}

/// One connection's place: under the limit, in its core's count and in the gauge. Dropping it gives all three back.
#[derive(Debug)]
pub(super) struct Seat {
    open: Arc<AtomicUsize>,
    gauge: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Seat {
    fn take(open: Arc<AtomicUsize>, gauge: Gauge, permit: OwnedSemaphorePermit) -> Seat {
        open.fetch_add(1, Ordering::Relaxed);
        gauge.inc();
        Seat { open, gauge, _permit: permit }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }
}

/// The cores, as the one that deals to them.
#[derive(Debug)]
pub(super) struct Dealer {
    cores: Vec<Core>,
    gauge: Gauge,
}

impl Dealer {
    pub(super) fn new(cores: Vec<Core>, gauge: Gauge) -> Dealer {
        Dealer { cores, gauge }
    }

    /// Whether there is no core left to serve connections.
    pub(super) fn is_alone(&self) -> bool {
        self.cores.is_empty()
    }

    /// Gives the connection to the core that has the fewest open ones. A core that turns out to be gone gets no more,
    /// and this connection is closed.
    pub(super) fn deal(&mut self, stream: TcpStream, remote: SocketAddr, permit: OwnedSemaphorePermit) {
        let fewest = self.cores.iter().enumerate().min_by_key(|(_, core)| core.open.load(Ordering::Relaxed));
        let Some((index, core)) = fewest else { return };
        let seat = Seat::take(core.open.clone(), self.gauge.clone(), permit);
        if core.sender.send(Accepted { stream, remote, seat }).is_err() {
            tracing::error!(core = index, left = self.cores.len() - 1, "a core is gone; it gets no more connections");
            self.cores.remove(index);
        }
    }
}
