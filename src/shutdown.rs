//! Starting and stopping: the signal to stop, the ready latch, and the count of tasks that must finish.
//!
//! It knows nothing of what it stops. The order in which things stop is `app`'s.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{Notify, watch};

/// Tells everyone that holds a clone to stop. Never taken back.
#[derive(Clone, Debug)]
pub struct Signal {
    sender: Arc<watch::Sender<bool>>,
    receiver: watch::Receiver<bool>,
}

impl Signal {
    /// A signal that has not been given.
    pub fn new() -> Signal {
        let (sender, receiver) = watch::channel(false);
        Signal { sender: Arc::new(sender), receiver }
    }

    /// Gives the signal.
    pub fn give(&self) {
        self.sender.send_replace(true);
    }

    /// Whether it was given.
    pub fn is_given(&self) -> bool {
        *self.receiver.borrow()
    }

    /// Returns when it is given, at once if it was.
    pub async fn given(&self) {
        let mut receiver = self.receiver.clone();
        // The sender lives as long as `self`, so this ends only by the signal.
        let _ = receiver.wait_for(|given| *given).await;
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
#[derive(Clone, Debug, Default)]
pub struct Tasks(Arc<TasksInner>);

#[derive(Debug, Default)]
struct TasksInner {
    running: AtomicUsize,
    idle: Notify,
}

impl Tasks {
    /// Counts one more task until the guard is dropped.
    pub fn enter(&self) -> TaskGuard {
        self.0.running.fetch_add(1, Ordering::AcqRel);
        TaskGuard(self.clone())
    }

    /// How many run now.
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::Acquire)
    }

    /// Returns when none runs.
    pub async fn finished(&self) {
        loop {
            let idle = self.0.idle.notified();
            let mut idle = std::pin::pin!(idle);
            idle.as_mut().enable();
            if self.running() == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// One counted task. Dropping it, by return or by panic, counts it out.
#[derive(Debug)]
pub struct TaskGuard(Tasks);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if self.0.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.idle.notify_waiters();
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
