//! Whether each core's own way to the store carries a first execution: the claim, and what is recorded after it.
//!
//! Every core has connections of its own, and a store may take some of them and not others (a limit of clients, a proxy
//! in between), or may grant a claim and refuse the answer (a right that was taken away). A request that is executed then
//! cannot be recorded. So each way is tried at start, again after every completion that failed, and from time to time
//! where none has succeeded lately; and while completions are known to fail nothing new is claimed on it. What is
//! recorded already is replayed all the same.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::{Store, StoreError, StoreErrorKind, preflight};
use crate::record::{Claim, ClaimReply, Response};

/// How often a way that failed is tried again.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// How long the record of a try is kept: gone before anybody can look.
const KEPT: Duration = Duration::from_millis(1);
/// How often a store that is away is looked at.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The ways of all cores. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    all: Arc<Mutex<Vec<Arc<Way>>>>,
    patience: Duration,
}

impl Ways {
    /// No core's yet. A way that has failed for less than `patience` is no reason not to be ready.
    pub(super) fn new(patience: Duration) -> Ways {
        Ways { all: Arc::default(), patience }
    }

    /// Whether every core's way carries a first execution, or why one does not.
    pub fn ready(&self) -> Result<(), String> {
        let ways = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let failing = ways.iter().enumerate().find_map(|(core, way)| Some((core, way.failing(self.patience)?)));
        match failing {
            None => Ok(()),
            Some((core, why)) if ways.len() > 1 => Err(format!("on the connections of core {core}: {why}")),
            Some((_, why)) => Err(why),
        }
    }

    /// The way of a further core. One that is not to be tried first is taken to work until it fails.
    pub(super) fn add(&self, is_tried_first: bool) -> Arc<Way> {
        let state = if is_tried_first { State::Untried } else { State::Works };
        let way = Way {
            is_closed: AtomicBool::new(false),
            has_worked: AtomicBool::new(false),
            in_doubt: Notify::new(),
            state: Mutex::new(state),
        };
        let way = Arc::new(way);
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&way));
        way
    }
}

/// One core's way to the store.
#[derive(Debug)]
pub(super) struct Way {
    /// Whether it fails, to be read for each claim.
    is_closed: AtomicBool,
    /// Whether a completion has succeeded since somebody last looked.
    has_worked: AtomicBool,
    in_doubt: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Untried,
    Works,
    Fails { since: Instant, kind: StoreErrorKind, why: String },
}

impl Way {
    /// Why nothing may be claimed now, if so.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        if !self.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        match &*self.lock() {
            State::Fails { kind, why, .. } => Some(StoreError::without_effect(
                *kind,
                format!("nothing is claimed while answers cannot be recorded: {why}"),
            )),
            State::Untried | State::Works => None,
        }
    }

    /// Learns what a completion came to.
    pub(super) fn saw(&self, failure: Option<&StoreError>) {
        match failure {
            None => {
                self.has_worked.store(true, Ordering::Relaxed);
                if self.is_closed.load(Ordering::Relaxed) {
                    self.open();
                }
            }
            // A record that cannot be read says nothing about others.
            Some(error) if error.is_away() || error.kind.is_refusal() => {
                self.close(error);
                self.doubt();
            }
            Some(_) => {}
        }
    }

    /// Has it tried soon.
    pub(super) fn doubt(&self) {
        self.in_doubt.notify_one();
    }

    fn failing(&self, patience: Duration) -> Option<String> {
        match &*self.lock() {
            State::Untried => Some("they were not tried yet".to_owned()),
            State::Fails { since, why, .. } if since.elapsed() >= patience => Some(why.clone()),
            State::Fails { .. } | State::Works => None,
        }
    }

    fn open(&self) {
        let before = std::mem::replace(&mut *self.lock(), State::Works);
        self.is_closed.store(false, Ordering::Relaxed);
        if let State::Fails { since, .. } = before {
            tracing::info!(for_ms = since.elapsed().as_millis(), "answers can be recorded again on this core");
        }
    }

    fn close(&self, error: &StoreError) {
        let mut state = self.lock();
        let since = match &*state {
            State::Fails { since, .. } => *since,
            State::Untried | State::Works => {
                tracing::warn!(%error, "answers cannot be recorded on this core; nothing new is claimed until they can");
                Instant::now()
            }
        };
        *state = State::Fails { since, kind: error.kind, why: error.message.clone() };
        self.is_closed.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when it should be tried: after a failure, or when nothing has shown for this long that it works.
    async fn due(&self, every: Option<Duration>) {
        let Some(every) = every else { return self.in_doubt.notified().await };
        while timeout(every, self.in_doubt.notified()).await.is_err() {
            if !self.has_worked.swap(false, Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Tries a core's way when that is due, on its own connections; to be run by the core's loop. `every` is how often where
/// nothing else shows that it works; without it, after failures only.
pub(super) async fn keep(way: Arc<Way>, store: Arc<dyn Store>, every: Option<Duration>) -> Infallible {
    if every.is_none() {
        way.due(every).await;
    }
    let mut executed = pair();
    loop {
        while store.ready().is_err() {
            sleep(BETWEEN_LOOKS).await;
        }
        match try_out(&*store, &executed).await {
            Ok(true) => {
                way.open();
                executed = pair();
                way.due(every).await;
            }
            // A completion may fail and be there all the same. It shows nothing of the next.
            Ok(false) => executed = pair(),
            // The same claims again: a way that fails for hours leaves two records behind, not two for each try.
            Err(error) => {
                way.close(&error);
                let _ = timeout(AFTER_FAILURE, way.in_doubt.notified()).await;
            }
        }
    }
}

fn pair() -> [Claim; 2] {
    [preflight::claim(), preflight::claim()]
}

/// First executions without the execution. Two at once, because a store may have several connections for claims. What is
/// recorded expires by itself, without a trace: a tombstone for each try would be more than all that an idle store holds.
/// Says whether both were claimed, and so recorded.
async fn try_out(store: &dyn Store, [one, other]: &[Claim; 2]) -> Result<bool, StoreError> {
    let execute = async |claim: &Claim| {
        let is_granted = matches!(store.claim(claim).await?, ClaimReply::Granted { .. });
        if is_granted {
            let response = Response::new(200, std::iter::empty(), std::iter::empty(), Some(Bytes::from_static(b"{}")));
            store.complete(claim, &response, KEPT).await?;
        }
        Ok::<_, StoreError>(is_granted)
    };
    let (one, other) = tokio::join!(execute(one), execute(other));
    Ok(one? && other?)
}
