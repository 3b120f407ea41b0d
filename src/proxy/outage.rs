//! What keeps many requests from making an outage of the store worse than it is.
//!
//! Each request that got no answer to its claim hands back what it may have been granted, again and again, and each says
//! in the log that it failed. Here the hand-backs take turns while the store does not answer, and each kind of failure is
//! told once a second. Separate from [`super::claim`], which says what is handed back and for how long.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::chain::Chain;
use crate::record::RecordId;
use crate::seldom::Seldom;
use crate::store::StoreError;

/// So many may be under way of which no answer is known to come.
const FEWEST: usize = 32;
/// So many may be under way at a store that answers. Round trips share connections, so this bounds no round trip.
const MOST: usize = 8192;

/// The outage of the store as the requests of one route see it, on all cores.
#[derive(Debug)]
pub struct Outage {
    /// For hand-backs.
    pub turns: Turns,
    /// By operation and kind of error.
    failures: Seldom<(&'static str, &'static str)>,
}

impl Default for Outage {
    fn default() -> Outage {
        Outage { turns: Turns::default(), failures: Seldom::each_second() }
    }
}

impl Outage {
    /// Warns that an operation failed. Of failures of one kind one a second is a warning, which says how many were left
    /// out before it; the others are there at the level `debug`.
    pub fn warn(&self, id: &RecordId, error: &StoreError, what: &'static str) {
        let kind = error.kind.as_str();
        let error = Chain(error);
        match self.failures.count((what, kind)) {
            Some(0) => tracing::warn!(record = %id, kind, %error, "{what}"),
            Some(left_out) => tracing::warn!(record = %id, kind, %error, left_out, "{what}"),
            None => tracing::debug!(record = %id, kind, %error, "{what}"),
        }
    }
}

/// Turns at something that may hang: few at a time while nothing is answered, and soon as many as there are when it is.
///
/// Each answer makes room for one more, so that the number doubles with every round trip; each silence takes one place
/// away. So a store that hangs is asked by a handful, and one that wakes has been asked by all after a few round trips,
/// which is well within any lease that began when it woke.
#[derive(Debug)]
pub struct Turns {
    free: Semaphore,
    places: AtomicUsize,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { free: Semaphore::new(FEWEST), places: AtomicUsize::new(FEWEST) }
    }
}

impl Turns {
    /// Waits for a turn, behind those who came before.
    pub async fn take(&self) -> Turn<'_> {
        let place = self.free.acquire().await.expect("nobody closes it");
        Turn { turns: self, place }
    }
}

/// A turn. Dropped without an end it changes nothing.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    place: SemaphorePermit<'a>,
}

impl Turn<'_> {
    /// Ends it, and says whether there was an answer, whatever it was.
    pub fn end(self, was_answered: bool) {
        let Turn { turns, place } = self;
        let change = |places: usize| match was_answered {
            true => (places < MOST).then(|| places + 1),
            false => (places > FEWEST).then(|| places - 1),
        };
        // A count beside the semaphore's own; the two may differ only for a moment.
        if turns.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_err() {
            return;
        }
        match was_answered {
            true => turns.free.add_permits(1),
            false => place.forget(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    /// A store that hangs until it is awake, and then takes this long for each answer.
    struct Sleeper {
        outage: Outage,
        is_awake: AtomicBool,
        under_way: AtomicUsize,
        at_most: AtomicUsize,
        asked: AtomicUsize,
    }

    const PATIENCE: Duration = Duration::from_secs(1);
    const SLOW: Duration = Duration::from_millis(900);

    impl Sleeper {
        /// Asks in turn until there is an answer, as a hand-back does.
        async fn hand_back(&self) {
            loop {
                let turn = self.outage.turns.take().await;
                self.asked.fetch_add(1, Ordering::Relaxed);
                let now = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
                self.at_most.fetch_max(now, Ordering::Relaxed);
                let is_awake = self.is_awake.load(Ordering::Relaxed);
                tokio::time::sleep(if is_awake { SLOW } else { PATIENCE }).await;
                self.under_way.fetch_sub(1, Ordering::Relaxed);
                turn.end(is_awake);
                if is_awake {
                    return;
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_ask_a_store_that_hangs_and_all_one_that_wakes() {
        let store = Arc::new(Sleeper {
            outage: Outage::default(),
            is_awake: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            at_most: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
        });
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..4096 {
            let store = Arc::clone(&store);
            waiting.spawn(async move { store.hand_back().await });
        }
        // It hangs for a minute, half a second longer than whole turns.
        tokio::time::sleep(Duration::from_millis(60_500)).await;
        assert_eq!(store.at_most.load(Ordering::Relaxed), FEWEST);
        assert_eq!(store.asked.load(Ordering::Relaxed), 61 * FEWEST, "each turn is one question");
        let woke = Instant::now();
        store.is_awake.store(true, Ordering::Relaxed);
        while waiting.join_next().await.is_some() {}
        // Those under way, then 32, 64, … 4096: within one lease of the default, though each answer takes nearly a second.
        assert!(woke.elapsed() < Duration::from_secs(10), "{:?}", woke.elapsed());
        assert_eq!(store.asked.load(Ordering::Relaxed), 61 * FEWEST + 4096, "each is handed back, and once");
    }

    #[tokio::test(start_paused = true)]
    async fn places_that_were_made_are_taken_away_again() {
        let turns = Turns::default();
        for _ in 0..100 {
            turns.take().await.end(true);
        }
        assert_eq!(turns.free.available_permits(), FEWEST + 100);
        for _ in 0..1000 {
            turns.take().await.end(false);
        }
        assert_eq!(turns.free.available_permits(), FEWEST);
        drop(turns.take().await);
        assert_eq!(turns.free.available_permits(), FEWEST, "a turn that was cut off is over");
    }
}
