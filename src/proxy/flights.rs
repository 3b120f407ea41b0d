//! The join table: which keys this process is working on, so that duplicates wait in memory and not at the store.
//!
//! One entry is one *flight*: the attempt of the first request that asked for the key, and whoever joined it. The table
//! is the only thing that requests on different cores share; its locks are held for a look-up and never over an await.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::Notify;

use super::error::{Kind, Problem};
use super::outcome::Head;
use crate::record::{Fate, Imprint, RecordId, Replay, Response};

const SHARDS: usize = 64;

/// Whether the attempt may send: not decided yet.
const ASKED: u8 = 0;
/// It may: the store granted the claim.
const GRANTED: u8 = 1;
/// It may not any more: its caller was told that nothing is sent.
const CALLED_OFF: u8 = 2;

/// How an attempt ended, for its caller and for all who joined it.
#[derive(Clone, Debug)]
pub enum Conclusion {
    /// The upstream answered, whole.
    Answered(Box<Answered>),
    /// There is a completed record.
    Replay {
        /// What it holds.
        replay: Box<Replay>,
        /// Whether it came to be completed while its attempt was waited for.
        waited: bool,
    },
    /// Nothing to show but a problem.
    Problem(Box<Problem>),
}

impl Conclusion {
    /// The response as it is recorded, if it is one.
    pub fn recorded(&self) -> Option<&Response> {
        match self {
            Conclusion::Answered(answered) => Some(&answered.recorded),
            Conclusion::Replay { replay, .. } => Some(&replay.response),
            Conclusion::Problem(_) => None,
        }
    }
}

impl Conclusion {
    /// What is known of the request that this is the conclusion of, and the status of its answer; `None` where its key is
    /// free again, or was never taken.
    pub fn fate(&self) -> Option<(Fate, Option<u16>)> {
        match self {
            Conclusion::Answered(answered) => {
                let status = Some(answered.recorded.status());
                match answered.settled {
                    Settled::Stored | Settled::NotRetained | Settled::NotRecorded => Some((Fate::Answered, status)),
                    Settled::Doubted => Some((Fate::Unknown, status)),
                    Settled::Released | Settled::Unprotected => None,
                }
            }
            Conclusion::Replay { replay, .. } => Some((Fate::Answered, Some(replay.response.status()))),
            Conclusion::Problem(problem) => problem.fate(),
        }
    }
}

impl From<Problem> for Conclusion {
    fn from(problem: Problem) -> Conclusion {
        Conclusion::Problem(Box::new(problem))
    }
}

/// A whole answer of the upstream.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Status and fields as the attempt's own caller gets them.
    pub head: Head,
    /// The trailers as the attempt's own caller gets them.
    pub trailers: Option<HeaderMap>,
    /// The body.
    pub body: Bytes,
    /// The same as it is recorded, and as those who joined get it.
    pub recorded: Response,
    /// What became of it.
    pub settled: Settled,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is recorded.
    Stored,
    /// It is recorded, but without its body: the store had no room for it.
    NotRetained,
    /// Recording it failed, or found another's record.
    NotRecorded,
    /// Its status means "not executed"; the key is free again.
    Released,
    /// Its status means "cannot tell"; the key is held.
    Doubted,
    /// It was never to be recorded, because the store could not be asked for a claim.
    Unprotected,
}

/// How far a flight is.
#[derive(Clone, Debug)]
pub enum Stage {
    /// The store has not answered yet.
    Claiming,
    /// The attempt holds the claim.
    Granted,
    /// Another process's attempt holds it, and the flight waits for that one.
    Elsewhere,
    /// Over.
    Done(Arc<Conclusion>),
}

/// One key that this process is working on.
#[derive(Debug)]
pub struct Flight {
    imprint: Imprint,
    /// [`ASKED`], and then once and for all [`GRANTED`] or [`CALLED_OFF`].
    leave_to_send: AtomicU8,
    /// The attempt's caller was told that the outcome is unknown, while the attempt goes on.
    told_unknown: AtomicBool,
    /// How far it is, and how often that has changed.
    stage: Mutex<(u8, Stage)>,
    changed: Notify,
    seats: AtomicUsize,
    deserted: Notify,
}

/// The table, as one core has it in hand.
#[derive(Debug)]
pub struct Flights {
    shards: Arc<[Mutex<Shard>]>,
}

type Shard = HashMap<[u8; 16], Arc<Flight>>;

/// What a request does about its key.
#[derive(Debug)]
pub enum Turn {
    /// It is the first: it asks the store.
    Lead(Lead),
    /// It joins a flight.
    Join(Seat),
}

impl Flight {
    fn new(imprint: &Imprint) -> Flight {
        Flight {
            imprint: imprint.clone(),
            leave_to_send: AtomicU8::new(ASKED),
            told_unknown: AtomicBool::new(false),
            stage: Mutex::new((0, Stage::Claiming)),
            changed: Notify::new(),
            seats: AtomicUsize::new(0),
            deserted: Notify::new(),
        }
    }

    /// Says how far it is. Whoever takes a seat meanwhile sees it, or is seen here: both hold the lock in between.
    fn set_stage(&self, stage: Stage) {
        let mut present = lock(&self.stage);
        *present = (present.0 + 1, stage);
        drop(present);
        if self.has_seats() {
            self.changed.notify_waiters();
        }
    }

    fn has_seats(&self) -> bool {
        self.seats.load(Ordering::Acquire) > 0
    }

    fn was_granted(&self) -> bool {
        self.leave_to_send.load(Ordering::Acquire) == GRANTED
    }

    /// Decides whether the attempt may send, unless that is decided already. Says whether it is decided like this now.
    fn decide(&self, leave: u8) -> bool {
        self.leave_to_send.compare_exchange(ASKED, leave, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Flights {
    /// An empty table.
    pub fn new() -> Arc<Flights> {
        Arc::new(Flights { shards: (0..SHARDS).map(|_| Mutex::default()).collect() })
    }

    /// The same table in the hand of another core: each lead has one, and the cores would count them together.
    pub fn for_another_core(&self) -> Arc<Flights> {
        Arc::new(Flights { shards: self.shards.clone() })
    }

    /// Joins the flight of this record, or starts one.
    pub fn enter(self: &Arc<Flights>, id: &RecordId, imprint: &Imprint) -> Turn {
        let mut shard = self.shard(id);
        if let Some(flight) = shard.get(id.hash()) {
            // Taking the seat under the lock makes the number of seats final once the flight left the table.
            return Turn::Join(Seat::take(flight));
        }
        let flight = Arc::new(Flight::new(imprint));
        shard.insert(*id.hash(), flight.clone());
        Turn::Lead(Lead { flights: self.clone(), flight, id: id.clone(), listed: true, done: false })
    }

    fn shard(&self, id: &RecordId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(id.hash()[0]) % SHARDS])
    }
}

/// A poisoned shard holds a map that is still whole: no code that can panic runs under the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The attempt's side of a flight. Dropped before its end (a panic), it tells everyone so.
#[derive(Debug)]
pub struct Lead {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    id: RecordId,
    listed: bool,
    done: bool,
}

impl Lead {
    /// The record it is about.
    pub fn id(&self) -> &RecordId {
        &self.id
    }

    /// A seat for the attempt's own caller, should it come to wait like the others.
    pub fn seat(&self) -> Seat {
        Seat::take(&self.flight)
    }

    /// What can be asked after the attempt has taken the lead along.
    pub fn witness(&self) -> Witness {
        Witness(self.flight.clone())
    }

    /// Whether the attempt's caller was told that the outcome is unknown.
    pub fn told_unknown(&self) -> bool {
        self.flight.told_unknown.load(Ordering::Acquire)
    }

    /// Says that the store granted the claim. False if the attempt was called off before that, and must not send.
    #[must_use = "an attempt that was called off must not send"]
    pub fn granted(&self) -> bool {
        let granted = self.flight.decide(GRANTED);
        if granted {
            self.flight.set_stage(Stage::Granted);
        }
        granted
    }

    /// Says that another process holds the claim.
    pub fn elsewhere(&self) {
        self.flight.set_stage(Stage::Elsewhere);
    }

    /// Returns when nobody has a seat any more.
    pub async fn deserted(&self) {
        loop {
            let mut deserted = pin!(self.flight.deserted.notified());
            deserted.as_mut().enable();
            if !self.flight.has_seats() {
                return;
            }
            deserted.await;
        }
    }

    /// Takes the flight off the table if nobody has a seat any more, and says whether it did.
    pub fn leave_if_deserted(&mut self) -> bool {
        let mut shard = self.flights.shard(&self.id);
        // Seats are taken under the same lock.
        if self.flight.has_seats() {
            return false;
        }
        if std::mem::take(&mut self.listed) {
            shard.remove(self.id.hash());
        }
        true
    }

    /// Takes the flight off the table: the next request with this key asks the store.
    pub fn leave(&mut self) {
        if std::mem::take(&mut self.listed) {
            self.flights.shard(&self.id).remove(self.id.hash());
        }
    }

    /// Tells everyone how it ended, if anyone is there or may still come.
    pub fn conclude(&mut self, conclusion: &Arc<Conclusion>) {
        self.done = true;
        if self.listed || self.flight.has_seats() {
            self.flight.set_stage(Stage::Done(conclusion.clone()));
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.leave();
        if !self.done {
            let problem = Problem::new(Kind::OutcomeUnknownBroken, "The proxy failed while the request was running.");
            self.conclude(&Arc::new(problem.about(&self.id).into()));
        }
    }
}

/// What the attempt's caller keeps of the flight.
#[derive(Debug)]
pub struct Witness(Arc<Flight>);

impl Witness {
    /// Notes that the caller is told that the outcome is unknown.
    pub fn tell_unknown(&self) {
        self.0.told_unknown.store(true, Ordering::Release);
    }

    /// Calls the attempt off, unless its claim was granted by now: whoever is told that nothing was sent must be told the
    /// truth, also about what comes later. Says whether it is called off.
    pub fn call_off(&self) -> bool {
        self.0.decide(CALLED_OFF)
    }
}

/// A duplicate's side of a flight.
#[derive(Debug)]
pub struct Seat {
    flight: Arc<Flight>,
    /// How many changes of the stage were seen.
    seen: u8,
}

impl Seat {
    fn take(flight: &Arc<Flight>) -> Seat {
        flight.seats.fetch_add(1, Ordering::AcqRel);
        Seat { flight: flight.clone(), seen: 0 }
    }

    /// What the flight's first request was.
    pub fn imprint(&self) -> &Imprint {
        &self.flight.imprint
    }

    /// Whether this process's attempt was granted the claim.
    pub fn was_granted(&self) -> bool {
        self.flight.was_granted()
    }

    /// How far the flight is.
    pub fn stage(&mut self) -> Stage {
        let present = lock(&self.flight.stage);
        self.seen = present.0;
        present.1.clone()
    }

    /// Returns when the stage changed since it was last asked for.
    pub async fn changed(&mut self) {
        loop {
            let mut changed = pin!(self.flight.changed.notified());
            // Heard from here on, so that none is missed behind the look.
            changed.as_mut().enable();
            if lock(&self.flight.stage).0 != self.seen {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.flight.seats.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.flight.deserted.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> RecordId {
        RecordId::new("r".into(), [7; 16])
    }

    fn imprint() -> Imprint {
        crate::record::Fingerprint { policy: [0; 4], digest: [1; 32] }.into()
    }

    #[tokio::test]
    async fn a_flight_that_is_dropped_wakes_its_joiners_and_leaves_the_table() {
        let flights = Flights::new();
        let Turn::Lead(lead) = flights.enter(&id(), &imprint()) else { panic!("the table is empty") };
        let Turn::Join(mut seat) = flights.enter(&id(), &imprint()) else { panic!("the flight is listed") };
        assert!(matches!(seat.stage(), Stage::Claiming));
        drop(lead);
        seat.changed().await;
        assert!(matches!(seat.stage(), Stage::Done(_)));
        assert!(flights.shard(&id()).is_empty());
    }

    #[tokio::test]
    async fn a_flight_off_the_table_is_not_joined() {
        let flights = Flights::new();
        let Turn::Lead(mut first) = flights.enter(&id(), &imprint()) else { panic!("the table is empty") };
        first.leave();
        let Turn::Lead(_second) = flights.enter(&id(), &imprint()) else { panic!("the first has left") };
        // The first must not take the second off the table when it goes.
        drop(first);
        assert_eq!(flights.shard(&id()).len(), 1);
    }

    #[tokio::test]
    async fn desertion_is_noticed() {
        let flights = Flights::new();
        let Turn::Lead(lead) = flights.enter(&id(), &imprint()) else { panic!("the table is empty") };
        let seat = lead.seat();
        let waiting = tokio::spawn(async move { lead.deserted().await });
        drop(seat);
        waiting.await.unwrap();
    }
}
