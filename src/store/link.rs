//! One connection for many callers, opened by the first and again when it broke.
//!
//! All callers' questions follow each other on it without waiting; nothing is ever sent twice by itself. How a connection
//! is made, and what is asked on it, is left to the back-ends that talk to servers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A server, as far as a [`Link`] to it has to know.
pub(super) trait Peer: Send + Sync {
    /// An open connection. Clones share it; it closes when the last one is dropped.
    type Connection: Clone + Send;
    /// Why there is none. All who waited for it are told the same.
    type Failure: Clone + Send;

    /// Opens a connection.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Self::Failure>> + Send;

    /// Whether a connection can still be used.
    fn is_open(&self, connection: &Self::Connection) -> bool;

    /// Whether both are the same connection.
    fn is_same(one: &Self::Connection, other: &Self::Connection) -> bool;
}

/// A connection to one server that is there when it is needed.
pub(super) struct Link<P: Peer> {
    peer: Arc<P>,
    // Held only to look or to put in, never across an await.
    current: Mutex<Current<P>>,
    connecting: tokio::sync::Mutex<()>,
}

struct Current<P: Peer> {
    connection: Option<P::Connection>,
    failed_attempts: u64,
    failure: Option<P::Failure>,
}

impl<P: Peer> Link<P> {
    /// A link that is not open yet.
    pub(super) fn new(peer: Arc<P>) -> Link<P> {
        let current = Current { connection: None, failed_attempts: 0, failure: None };
        Link { peer, current: Mutex::new(current), connecting: tokio::sync::Mutex::default() }
    }

    /// Where it leads.
    pub(super) fn peer(&self) -> &Arc<P> {
        &self.peer
    }

    /// The open connection. One caller opens it while the others wait, and all who waited share its failure.
    pub(super) async fn connection(&self) -> Result<P::Connection, P::Failure> {
        let failed_before = match self.look() {
            Ok(connection) => return Ok(connection),
            Err(failed) => failed,
        };
        let _connecting = self.connecting.lock().await;
        match self.look() {
            Ok(connection) => return Ok(connection),
            Err(failed) if failed != failed_before => {
                if let Some(failure) = self.lock().failure.clone() {
                    return Err(failure);
                }
            }
            Err(_) => {}
        }
        // Boxed, as all that is rare on the way of an operation: it would make the future of each larger.
        let connected = Box::pin(self.peer.connect()).await;
        let mut current = self.lock();
        match &connected {
            Ok(connection) => current.connection = Some(connection.clone()),
            Err(failure) => {
                current.failed_attempts += 1;
                current.failure = Some(failure.clone());
            }
        }
        connected
    }

    /// The open connection, or how many attempts have failed so far.
    fn look(&self) -> Result<P::Connection, u64> {
        let current = self.lock();
        match &current.connection {
            Some(connection) if self.peer.is_open(connection) => Ok(connection.clone()),
            _ => Err(current.failed_attempts),
        }
    }

    /// Gives this connection up, so that the next caller opens another. What is under way on it goes on.
    pub(super) fn discard(&self, broken: &P::Connection) {
        self.lock().connection.take_if(|current| P::is_same(current, broken));
    }

    fn lock(&self) -> MutexGuard<'_, Current<P>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
