//! The requests of one HTTP/2 connection: how many are open, for which of them it is the client's turn, and how often it
//! has taken a request back. From these follow the connection's deadlines, and when it is closed for abuse.
//!
//! HTTP/1 needs none of it: there a connection has one request at a time, and its bytes say whose turn it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;

use crate::config::Limits;

use super::greet::FIRST_REQUEST;
use super::room::Presence;

/// How long a client that was told to go may take for it once its requests are answered.
const LEAVING: Duration = Duration::from_secs(1);

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Streams {
    accepted: Instant,
    header_timeout: Duration,
    idle_timeout: Duration,
    /// As many as may be open at a time, twice: a client may go away with all of them, once.
    most_credit: usize,
    spent: AtomicBool,
    presence: Presence,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The requests that are not over, and since when each waits for the client to take more of its answer.
    open: HashMap<u64, Option<Instant>>,
    /// Requests that there have been.
    begun: u64,
    /// Since when there is none.
    quiet_since: Instant,
    /// Requests that may still be taken back. Answered ones earn it again.
    credit: usize,
    waker: Option<Waker>,
}

/// What the connection has to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again at this time.
    Wait(Instant),
    /// Tell the client to go.
    Leave,
    /// Close.
    Cut(Misuse),
}

/// Why a connection is closed although its client is there.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum Misuse {
    #[error("the client takes back more requests than it lets be answered")]
    TakesBack,
    #[error("the client gives no room for its answers")]
    TakesNothing,
    #[error("the client does not leave")]
    Stays,
}

impl Streams {
    pub(super) fn new(accepted: Instant, limits: &Limits, presence: Presence) -> Arc<Streams> {
        let most_credit = limits.streams.saturating_mul(2);
        let state = State { open: HashMap::new(), begun: 0, quiet_since: accepted, credit: most_credit, waker: None };
        Arc::new(Streams {
            accepted,
            header_timeout: limits.header_timeout,
            idle_timeout: limits.idle_timeout,
            most_credit,
            spent: AtomicBool::default(),
            presence,
            state: Mutex::new(state),
        })
    }

    /// How long the client may take nothing.
    pub(super) fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// What the connection says of itself to who needs room.
    pub(super) fn presence(&self) -> &Presence {
        &self.presence
    }

    /// The waker of the connection's task.
    pub(super) fn wake_with(&self, waker: &Waker) {
        self.state().waker = Some(waker.clone());
    }

    /// When to look first.
    pub(super) fn first_look(&self) -> Instant {
        self.accepted + self.shortest()
    }

    /// No deadline that begins now is nearer than this.
    fn shortest(&self) -> Duration {
        self.header_timeout.min(self.idle_timeout)
    }

    /// Whether the client has taken back too many requests. The rest of the state need not be looked at for it.
    pub(super) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// What is due. `told` is when the client was told to go.
    pub(super) fn next(&self, draining: bool, told: Option<Instant>) -> Next {
        let now = Instant::now();
        if self.is_spent() {
            return Next::Cut(Misuse::TakesBack);
        }
        let state = self.state();
        if draining && told.is_none() && state.begun > 0 {
            return Next::Leave;
        }
        let due = if state.open.is_empty() {
            let patience = match (state.begun, draining, told) {
                (_, _, Some(_)) => LEAVING,
                (0, true, None) => FIRST_REQUEST.min(self.header_timeout),
                (0, false, None) => self.header_timeout,
                (_, _, None) => self.idle_timeout,
            };
            let late = if told.is_some() { Next::Cut(Misuse::Stays) } else { Next::Leave };
            Some((state.quiet_since.max(told.unwrap_or(state.quiet_since)) + patience, late))
        } else {
            let oldest = state.open.values().flatten().min();
            oldest.map(|since| (*since + self.idle_timeout, Next::Cut(Misuse::TakesNothing)))
        };
        match due {
            Some((at, late)) if at <= now => late,
            Some((at, _)) => Next::Wait(at),
            None => Next::Wait(now + self.shortest()),
        }
    }

    /// Counts one more request, until the turn is dropped.
    pub(super) fn begin(self: &Arc<Streams>) -> StreamTurn {
        let mut state = self.state();
        let number = state.begun;
        state.begun += 1;
        state.open.insert(number, None);
        self.presence.set_busy(true);
        StreamTurn { streams: self.clone(), number, over: false }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is half done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time from a request's head to the end of its answer.
#[derive(Debug)]
pub(super) struct StreamTurn {
    streams: Arc<Streams>,
    number: u64,
    /// Whether the answer has ended. If not when this is dropped, the client has taken the request back.
    over: bool,
}

impl StreamTurn {
    /// Notes whether it is the client's turn, to give room for more of the answer.
    pub(super) fn set_clients(&self, clients: bool) {
        self.streams.state().open.insert(self.number, clients.then(Instant::now));
    }

    /// Notes the end of the answer.
    pub(super) fn end(&mut self) {
        self.over = true;
    }
}

impl Drop for StreamTurn {
    fn drop(&mut self) {
        let mut state = self.streams.state();
        state.open.remove(&self.number);
        if state.open.is_empty() {
            state.quiet_since = Instant::now();
            self.streams.presence.used(state.quiet_since);
            self.streams.presence.set_busy(false);
        }
        state.credit = match self.over {
            true => (state.credit + 1).min(self.streams.most_credit),
            false => state.credit.saturating_sub(1),
        };
        if state.credit == 0 {
            self.streams.spent.store(true, Ordering::Relaxed);
            if let Some(waker) = &state.waker {
                waker.wake_by_ref();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn streams() -> Arc<Streams> {
        let room = super::super::room::Room::new();
        Streams::new(Instant::now(), &super::super::tests::limits(), room.enter().clone())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_told_to_go_when_it_is_idle_and_cut_when_it_stays() {
        let streams = streams();
        assert_eq!(streams.next(false, None), Next::Wait(Instant::now() + 10 * SECOND));
        let mut turn = streams.begin();
        tokio::time::advance(100 * SECOND).await;
        assert!(matches!(streams.next(false, None), Next::Wait(_)));
        turn.end();
        drop(turn);
        assert_eq!(streams.next(false, None), Next::Wait(Instant::now() + 60 * SECOND));
        tokio::time::advance(60 * SECOND).await;
        assert_eq!(streams.next(false, None), Next::Leave);
        let told = Some(Instant::now());
        assert_eq!(streams.next(false, told), Next::Wait(Instant::now() + LEAVING));
        tokio::time::advance(LEAVING).await;
        assert_eq!(streams.next(false, told), Next::Cut(Misuse::Stays));
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_requests_and_not_for_the_idle() {
        let streams = streams();
        assert_eq!(streams.next(true, None), Next::Wait(Instant::now() + FIRST_REQUEST));
        let turn = streams.begin();
        assert_eq!(streams.next(true, None), Next::Leave);
        tokio::time::advance(1000 * SECOND).await;
        assert!(matches!(streams.next(true, Some(Instant::now())), Next::Wait(_)));
        drop(turn);
        assert_eq!(streams.next(true, Some(Instant::now())), Next::Wait(Instant::now() + LEAVING));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_clients_own_time_counts_against_it() {
        let streams = streams();
        let (one, other) = (streams.begin(), streams.begin());
        one.set_clients(true);
        tokio::time::advance(59 * SECOND).await;
        other.set_clients(true);
        one.set_clients(false);
        tokio::time::advance(59 * SECOND).await;
        assert_eq!(streams.next(false, None), Next::Wait(Instant::now() + SECOND));
        tokio::time::advance(SECOND).await;
        assert_eq!(streams.next(false, None), Next::Cut(Misuse::TakesNothing));
    }

    #[tokio::test]
    async fn answers_earn_what_taking_back_costs() {
        let streams = streams();
        for _ in 0..1000 {
            drop(streams.begin());
            let mut turn = streams.begin();
            turn.end();
        }
        assert!(!streams.is_spent());
        for _ in 0..199 {
            drop(streams.begin());
        }
        assert!(!streams.is_spent());
        drop(streams.begin());
        assert_eq!(streams.next(false, None), Next::Cut(Misuse::TakesBack));
    }
}
