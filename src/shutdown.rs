//! Starting and stopping: the signal to stop, the ready latch, and the count of tasks that must finish.
//!
//! It knows nothing of what it stops. The order in which things stop is `app`'s.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

/// Tells everyone that holds a clone to stop. Never taken back.
#[derive(Clone, Debug)]
pub struct Signal(Arc<SignalInner>);

// Aligned, as all here that each core has its own of: those of two cores should not share a line of the caches.
#[derive(Debug, Default)]
#[repr(align(64))]
struct SignalInner {
    given: AtomicBool,
    waiting: Notify,
    followers: Mutex<Vec<Weak<SignalInner>>>,
}

impl SignalInner {
    fn give(&self) {
        self.given.store(true, Ordering::SeqCst);
        self.waiting.notify_waiters();
    }
}

impl Signal {
    /// A signal that has not been given.
    pub fn new() -> Signal {
        Signal(Arc::default())
    }

    /// Another signal, which is given with this one. Each core waits for its own: whoever waits takes a lock, twice.
    #[must_use]
    pub fn follower(&self) -> Signal {
        let follower = Signal::new();
        let mut followers = self.followers();
        followers.retain(|follower| follower.strong_count() > 0);
        followers.push(Arc::downgrade(&follower.0));
        // Given under the lock, so either this sees it or the giver sees the follower.
        if self.is_given() {
            follower.0.give();
        }
        drop(followers);
        follower
    }

    /// Gives the signal.
    pub fn give(&self) {
        let followers = self.followers();
        self.0.give();
        followers.iter().filter_map(Weak::upgrade).for_each(|follower| Signal(follower).give());
    }

    /// Whether it was given.
    pub fn is_given(&self) -> bool {
        self.0.given.load(Ordering::SeqCst)
    }

    /// Returns when it is given, at once if it was.
    pub async fn given(&self) {
        let mut given = pin!(self.0.waiting.notified());
        // Heard from here on, so that it cannot be given unnoticed behind the look.
        given.as_mut().enable();
        if !self.is_given() {
            given.await;
        }
    }

    fn followers(&self) -> MutexGuard<'_, Vec<Weak<SignalInner>>> {
        self.0.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Signal {
    fn default() -> Signal {
        Signal::new()
    }
}

/// Whether the process wants traffic: turned on once it serves, off again when it drains.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// Turns the latch on or off.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Whether it is on.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Counts running tasks, so that a stop can wait for them.
#[derive(Clone, Debug)]
pub struct Tasks(Arc<Place>);

/// Where one core counts its tasks.
#[derive(Debug)]
#[repr(align(64))]
struct Place {
    running: AtomicUsize,
    all: Arc<AllTasks>,
}

#[derive(Debug, Default)]
struct AllTasks {
    places: Mutex<Vec<Weak<Place>>>,
    idle: Notify,
}

impl Tasks {
    /// The same count, which another core adds to in a place of its own.
    #[must_use]
    pub fn for_another_core(&self) -> Tasks {
        Tasks::in_a_place_of(self.0.all.clone())
    }

    fn in_a_place_of(all: Arc<AllTasks>) -> Tasks {
        let place = Arc::new(Place { running: AtomicUsize::new(0), all });
        let mut places = place.all.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.push(Arc::downgrade(&place));
        drop(places);
        Tasks(place)
    }

    /// Counts one more task until the guard is dropped.
    pub fn enter(&self) -> TaskGuard {
        self.0.running.fetch_add(1, Ordering::AcqRel);
        TaskGuard(self.clone())
    }

    /// How many run now, on all cores.
    pub fn running(&self) -> usize {
        let places = self.0.all.places.lock().unwrap_or_else(PoisonError::into_inner);
        // A place that is gone has no guard, and so no task.
        places.iter().filter_map(Weak::upgrade).map(|place| place.running.load(Ordering::Acquire)).sum()
    }

    /// Returns when none runs.
    pub async fn finished(&self) {
        loop {
            let mut idle = pin!(self.0.all.idle.notified());
            idle.as_mut().enable();
            if self.running() == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Default for Tasks {
    fn default() -> Tasks {
        Tasks::in_a_place_of(Arc::default())
    }
}

/// One counted task. Dropping it, by return or by panic, counts it out.
#[derive(Debug)]
pub struct TaskGuard(Tasks);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if self.0.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.all.idle.notify_waiters();
        }
    }
}

/// Runs a future as a counted task of this runtime. It is not cancelled when the returned handle is dropped.
pub fn spawn_counted<F>(tasks: &Tasks, future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let guard = tasks.enter();
    tokio::spawn(async move {
        let _guard = guard;
        future.await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_follower_is_given_with_its_signal_whenever_it_came() {
        let signal = Signal::new();
        let (before, gone) = (signal.follower(), signal.follower());
        drop(gone);
        let waiting = tokio::spawn(async move { before.follower().given().await });
        tokio::task::yield_now().await;
        assert!(!signal.is_given() && !waiting.is_finished());
        signal.give();
        waiting.await.unwrap();
        assert!(signal.follower().is_given());
        signal.follower().given().await;
    }

    #[tokio::test]
    async fn tasks_of_all_cores_are_waited_for() {
        let first = Tasks::default();
        let second = first.for_another_core();
        let (one, other) = (first.enter(), second.enter());
        assert_eq!((first.running(), second.running()), (2, 2));
        let waiting = tokio::spawn(async move { first.finished().await });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "one runs on the other core");
        // That core's own handle is gone by then.
        drop(second);
        drop(other);
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn waits_for_every_task_even_one_that_panics() {
        let tasks = Tasks::default();
        let signal = Signal::new();
        let until = signal.clone();
        let first = spawn_counted(&tasks, async move { until.given().await });
        let second = spawn_counted(&tasks, async { panic!("on purpose") });
        assert!(second.await.is_err());
        assert_eq!(tasks.running(), 1);
        signal.give();
        tasks.finished().await;
        first.await.unwrap();
        assert_eq!(tasks.running(), 0);
    }
}
