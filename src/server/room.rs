//! Room for one more connection: which of those that are open may go for it.
//!
//! At `limits.connections` the one that has been idle for longest is closed, as nginx does it: clients that keep
//! connections open and use none of them must not lock all others out. Connections note by themselves whether they are
//! busy; that costs a store in memory, and only who needs room looks at all of them.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tokio::time::Instant;

/// The connections that are open, on all cores.
#[derive(Debug)]
pub(super) struct Room {
    opened: Instant,
    guests: Mutex<Guests>,
}

#[derive(Debug, Default)]
struct Guests {
    next: u64,
    open: HashMap<u64, Arc<Guest>>,
}

/// One connection, as far as it is known here.
#[derive(Debug)]
struct Guest {
    busy: AtomicBool,
    /// When something was last done here, in milliseconds of the room's clock.
    last: AtomicU64,
    leaves: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Room {
    /// An empty one.
    pub(super) fn new() -> Arc<Room> {
        Arc::new(Room { opened: Instant::now(), guests: Mutex::default() })
    }

    /// Notes a connection that opens. It is idle.
    pub(super) fn enter(self: &Arc<Room>) -> Place {
        let guest = Arc::new(Guest {
            busy: AtomicBool::new(false),
            last: AtomicU64::new(self.time(Instant::now())),
            leaves: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        let mut guests = self.guests();
        let number = guests.next;
        guests.next += 1;
        guests.open.insert(number, guest.clone());
        Place { presence: Presence { room: self.clone(), guest }, number }
    }

    /// Asks the connection that has been idle for longest to close; says whether there was one.
    pub(super) fn make(&self) -> bool {
        let guests = self.guests();
        let may_go = |guest: &&Arc<Guest>| !guest.busy.load(Ordering::Relaxed) && !guest.leaves.load(Ordering::Relaxed);
        let longest = guests.open.values().filter(may_go).min_by_key(|guest| guest.last.load(Ordering::Relaxed));
        let Some(guest) = longest else { return false };
        guest.leaves.store(true, Ordering::Release);
        if let Some(waker) = &*lock(&guest.waker) {
            waker.wake_by_ref();
        }
        true
    }

    fn time(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.opened).as_millis()).unwrap_or(u64::MAX)
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        lock(&self.guests)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is half done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection's place in the room, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    presence: Presence,
    number: u64,
}

impl Deref for Place {
    type Target = Presence;

    fn deref(&self) -> &Presence {
        &self.presence
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.guests().open.remove(&self.number);
    }
}

/// What a connection says of itself, and what it is asked.
#[derive(Clone, Debug)]
pub(super) struct Presence {
    room: Arc<Room>,
    guest: Arc<Guest>,
}

impl Presence {
    /// Has this task woken when the connection is to leave.
    pub(super) fn wake_with(&self, waker: &Waker) {
        *lock(&self.guest.waker) = Some(waker.clone());
    }

    /// Whether the connection is to close as soon as it is idle.
    pub(super) fn must_leave(&self) -> bool {
        self.guest.leaves.load(Ordering::Acquire)
    }

    /// Whether a request is being answered.
    pub(super) fn is_busy(&self) -> bool {
        self.guest.busy.load(Ordering::Relaxed)
    }

    /// Notes whether one is.
    pub(super) fn set_busy(&self, busy: bool) {
        self.guest.busy.store(busy, Ordering::Relaxed);
    }

    /// Notes that something was done.
    pub(super) fn used(&self, at: Instant) {
        self.guest.last.store(self.room.time(at), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_one_goes_first_and_busy_ones_never() {
        let room = Room::new();
        let places: Vec<Place> = (0..4).map(|_| room.enter()).collect();
        for place in [2, 0, 3, 1] {
            tokio::time::advance(Duration::from_secs(1)).await;
            places[place].used(Instant::now());
        }
        places[2].set_busy(true);
        let leaving = || places.iter().map(|place| place.must_leave()).collect::<Vec<_>>();
        assert!(room.make());
        assert_eq!(leaving(), [true, false, false, false]);
        assert!(room.make() && room.make());
        assert_eq!(leaving(), [true, true, false, true]);
        assert!(!room.make(), "the last one is busy");
        places[2].set_busy(false);
        assert!(room.make() && !room.make());
    }

    #[test]
    fn who_has_left_is_not_asked() {
        let room = Room::new();
        drop(room.enter());
        assert!(!room.make());
    }
}
