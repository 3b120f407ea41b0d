//! Deadlines without a timer set and taken back for each.
//!
//! Nearly everything that is waited for comes long before its deadline. So an alarm that was set for one wait is left
//! running when that is over, and serves the next: it rings early then, and only then is it set anew. A timer that is due
//! before all others has the runtime wake itself, by a system call. What is waited for is others' affair.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// So many are kept when nobody needs them.
const MOST: usize = 256;

/// Alarms for waits of about the same length. They belong to the runtime on which they are waited for: to one core.
#[derive(Debug, Default)]
pub struct Alarms(Mutex<Vec<Pin<Box<Sleep>>>>);

impl Alarms {
    /// An alarm that rings once, after this time.
    pub fn after(&self, patience: Duration) -> Alarm<'_> {
        self.at(Instant::now() + patience)
    }

    /// An alarm that rings once, at this moment.
    pub fn at(&self, deadline: Instant) -> Alarm<'_> {
        Alarm { alarms: self, deadline, sleep: None }
    }

    /// Returns at this moment.
    pub async fn until(&self, deadline: Instant) {
        let mut alarm = self.at(deadline);
        poll_fn(|cx| alarm.poll(cx)).await;
    }

    /// Waits for this until the deadline; `None` if it comes first. What is waited for is lent: a future keeps room twice
    /// for what it is given.
    pub fn bound<'a, F: Future>(&'a self, deadline: Instant, future: Pin<&'a mut F>) -> Bounded<'a, F> {
        Bounded { future, alarm: self.at(deadline) }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Pin<Box<Sleep>>>> {
        // Nothing is half done under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One deadline. Dropped, it leaves its timer to the next.
#[derive(Debug)]
pub struct Alarm<'a> {
    alarms: &'a Alarms,
    deadline: Instant,
    /// Rings at the deadline, or before; there once the alarm was looked at.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm<'_> {
    /// Sets the deadline anew, counted from now.
    pub fn put_off(&mut self, patience: Duration) {
        self.deadline = Instant::now() + patience;
    }

    /// Waits until the deadline.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (alarms, deadline) = (self.alarms, self.deadline);
        let sleep = self.sleep.get_or_insert_with(|| {
            let kept = alarms.kept().pop();
            kept.unwrap_or_else(|| Box::pin(sleep_until(deadline)))
        });
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

/// A wait with a deadline.
#[derive(Debug)]
#[must_use = "nothing is waited for before it is polled"]
pub struct Bounded<'a, F> {
    future: Pin<&'a mut F>,
    alarm: Alarm<'a>,
}

impl<F: Future> Future for Bounded<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        match self.future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.alarm.poll(cx).map(|()| None),
        }
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if let Some(sleep) = self.sleep.take() {
            let mut kept = self.alarms.kept();
            if kept.len() < MOST {
                kept.push(sleep);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn rings(alarm: &mut Alarm<'_>) -> Duration {
        let began = Instant::now();
        poll_fn(|cx| alarm.poll(cx)).await;
        began.elapsed()
    }

    /// Has the alarm looked at once, as by a request that is answered.
    async fn look(mut alarm: Alarm<'_>) {
        assert!(poll_fn(|cx| Poll::Ready(alarm.poll(cx).is_pending())).await);
    }

    #[tokio::test(start_paused = true)]
    async fn rings_at_its_own_deadline_whatever_it_was_left_at() {
        let alarms = Alarms::default();
        for left_at in [10 * SECOND, 2 * SECOND, SECOND / 2] {
            look(alarms.after(left_at)).await;
            tokio::time::advance(SECOND / 4).await;
            assert_eq!(rings(&mut alarms.after(SECOND)).await, SECOND, "left at {left_at:?}");
            assert_eq!(alarms.kept().len(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_rung_serves_again() {
        let alarms = Alarms::default();
        let mut first = alarms.after(SECOND);
        assert_eq!(rings(&mut first).await, SECOND);
        first.put_off(2 * SECOND);
        assert_eq!(rings(&mut first).await, 2 * SECOND);
        drop(first);
        assert_eq!(rings(&mut alarms.after(3 * SECOND)).await, 3 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_what_comes_first() {
        let alarms = Alarms::default();
        let began = Instant::now();
        assert_eq!(alarms.bound(began + SECOND, pin!(ready(7))).await, Some(7));
        assert!(alarms.kept().is_empty(), "nothing was waited for");
        assert_eq!(alarms.bound(began + SECOND, pin!(pending::<()>())).await, None);
        assert_eq!(began.elapsed(), SECOND);
        alarms.until(began + 3 * SECOND).await;
        assert_eq!((began.elapsed(), alarms.kept().len()), (3 * SECOND, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn two_at_a_time_are_two() {
        let alarms = Alarms::default();
        let (mut early, mut late) = (alarms.after(SECOND), alarms.after(3 * SECOND));
        assert_eq!(tokio::join!(rings(&mut late), rings(&mut early)), (3 * SECOND, SECOND));
        drop((early, late));
        assert_eq!(alarms.kept().len(), 2);
    }
}
