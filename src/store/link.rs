//! One connection for many callers, opened by the first and again when it broke.
//!
//! All callers' questions follow each other on it without waiting; nothing is ever sent twice by itself. How a connection
//! is made, and what is asked on it, is left to the back-ends that talk to servers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::alarm::Alarms;

/// How long one attempt to connect may take, whoever waits for it.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(3);

/// A server, as far as a [`Link`] to it has to know.
pub(super) trait Peer: Send + Sync + 'static {
    /// An open connection. Clones share it; it closes when the last one is dropped.
    type Connection: Clone + Send + 'static;
    /// Why there is none. All who waited for it are told the same.
    type Failure: Clone + Send + 'static;

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
    alarms: Alarms,
    connecting: tokio::sync::Mutex<Option<Attempt<P>>>,
}

/// An attempt to connect that is under way. It goes on when whoever began it has no more time: where connecting takes
/// longer than an operation may, the link would never come about otherwise. `None` if it took too long itself.
struct Attempt<P: Peer>(JoinHandle<Option<Result<P::Connection, P::Failure>>>);

impl<P: Peer> Attempt<P> {
    fn begin(peer: &Arc<P>) -> Attempt<P> {
        let peer = Arc::clone(peer);
        // Boxed, as all that is rare on the way of an operation: it would make the future of each larger.
        let connecting = Box::pin(async move { peer.connect().await });
        Attempt(tokio::spawn(async move { timeout(LONGEST_ATTEMPT, connecting).await.ok() }))
    }
}

impl<P: Peer> Drop for Attempt<P> {
    fn drop(&mut self) {
        self.0.abort();
    }
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
        Link {
            peer,
            current: Mutex::new(current),
            alarms: Alarms::default(),
            connecting: tokio::sync::Mutex::new(None),
        }
    }

    /// Where it leads.
    pub(super) fn peer(&self) -> &Arc<P> {
        &self.peer
    }

    /// What bounds the waits for answers on it.
    pub(super) fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    /// The open connection, if there is one.
    pub(super) fn open(&self) -> Option<P::Connection> {
        self.look().ok()
    }

    /// The open connection. One caller opens it while the others wait, and all who waited share its failure.
    pub(super) async fn connection(&self) -> Result<P::Connection, P::Failure> {
        let failed_before = match self.look() {
            Ok(connection) => return Ok(connection),
            Err(failed) => failed,
        };
        let mut connecting = self.connecting.lock().await;
        match self.look() {
            Ok(connection) => return Ok(connection),
            Err(failed) if failed != failed_before => {
                if let Some(failure) = self.lock().failure.clone() {
                    return Err(failure);
                }
            }
            Err(_) => {}
        }
        let connected = loop {
            let attempt = connecting.get_or_insert_with(|| Attempt::begin(&self.peer));
            let was_over = attempt.0.is_finished();
            let ended = (&mut attempt.0).await;
            *connecting = None;
            match ended {
                // What came of it while nobody waited may not be so any more.
                Ok(Some(Ok(connection))) if was_over && !self.peer.is_open(&connection) => {}
                Ok(Some(Err(_))) if was_over => {}
                Ok(Some(connected)) => break connected,
                // One that took too long says nothing, and neither does one whose runtime has ended.
                Ok(None) | Err(_) => {}
            }
        };
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{Instant, sleep};

    use super::*;

    /// A server to which a connection takes this long, or fails as long as it is down.
    struct Slow {
        takes: Duration,
        is_down: std::sync::atomic::AtomicBool,
        attempts: AtomicU32,
    }

    impl Peer for Slow {
        type Connection = u32;
        type Failure = &'static str;

        async fn connect(&self) -> Result<u32, &'static str> {
            let attempt = self.attempts.fetch_add(1, Ordering::SeqCst) + 1;
            sleep(self.takes).await;
            if self.is_down.load(Ordering::SeqCst) { Err("refused") } else { Ok(attempt) }
        }

        fn is_open(&self, _: &u32) -> bool {
            true
        }

        fn is_same(one: &u32, other: &u32) -> bool {
            one == other
        }
    }

    fn link(takes: u64) -> Link<Slow> {
        let takes = Duration::from_millis(takes);
        Link::new(Arc::new(Slow { takes, is_down: false.into(), attempts: AtomicU32::new(0) }))
    }

    const PATIENCE: Duration = Duration::from_millis(250);

    #[tokio::test(start_paused = true)]
    async fn callers_that_have_less_time_than_connecting_takes_come_to_a_connection_all_the_same() {
        let link = link(700);
        let mut tries = 0;
        while timeout(PATIENCE, link.connection()).await.is_err() {
            tries += 1;
            assert!(tries < 10, "each begins anew");
        }
        assert_eq!((tries, link.peer().attempts.load(Ordering::SeqCst)), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_takes_too_long_gives_way_to_another() {
        let link = link(10_000);
        let start = Instant::now();
        assert!(timeout(Duration::from_secs(7), link.connection()).await.is_err());
        assert_eq!((start.elapsed(), link.peer().attempts.load(Ordering::SeqCst)), (Duration::from_secs(7), 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_nobody_waited_for_is_not_told_later() {
        let link = link(400);
        link.peer().is_down.store(true, Ordering::SeqCst);
        assert!(timeout(PATIENCE, link.connection()).await.is_err());
        sleep(Duration::from_secs(1)).await;
        link.peer().is_down.store(false, Ordering::SeqCst);
        assert_eq!(link.connection().await, Ok(2));
        link.peer().is_down.store(true, Ordering::SeqCst);
        link.discard(&2);
        assert_eq!(link.connection().await, Err("refused"), "who waits is told");
    }
}
