//! The stop as one core's connections see it: a flag that costs a load, and the wakers of those that wait.
//!
//! A connection could wait for the process's signal itself, but then every wake-up of every connection would take a
//! lock that all cores share.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use tokio::time::Instant;

/// Whether this core drains.
#[derive(Debug, Default)]
pub(super) struct Drain {
    begun: AtomicBool,
    since: OnceLock<Instant>,
    sleepers: Mutex<Sleepers>,
}

#[derive(Debug, Default)]
struct Sleepers {
    next: u64,
    wakers: HashMap<u64, Waker>,
}

impl Drain {
    /// Whether it has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// When it began.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since.get().copied()
    }

    /// Begins it and wakes every connection.
    pub(super) fn begin(&self) {
        self.since.get_or_init(Instant::now);
        self.begun.store(true, Ordering::Release);
        self.sleepers().wakers.values().for_each(Waker::wake_by_ref);
    }

    /// Has this task woken when draining begins, until the guard is dropped. A caller that looks at
    /// [`Drain::has_begun`] afterwards misses nothing.
    pub(super) fn wake(self: &Arc<Drain>, waker: &Waker) -> WakeGuard {
        let mut sleepers = self.sleepers();
        let number = sleepers.next;
        sleepers.next += 1;
        sleepers.wakers.insert(number, waker.clone());
        drop(sleepers);
        WakeGuard { drain: self.clone(), number }
    }

    /// Returns when it has begun.
    pub(super) async fn begun(self: &Arc<Drain>) {
        let mut wake = None;
        poll_fn(|cx| {
            // The waker of a task stays the same, so that once is enough.
            wake.get_or_insert_with(|| self.wake(cx.waker()));
            if self.has_begun() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        // Nothing is half done under this lock.
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the waker back when dropped.
#[derive(Debug)]
pub(super) struct WakeGuard {
    drain: Arc<Drain>,
    number: u64,
}

impl Drop for WakeGuard {
    fn drop(&mut self) {
        self.drain.sleepers().wakers.remove(&self.number);
    }
}
