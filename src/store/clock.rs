//! The clock of the stores that live in this process.
//!
//! It starts at the wall clock's time and then runs by the monotonic clock, so that a step of the wall clock in the
//! middle of a run neither lapses claims nor forgets records. A shared store has its own clock instead.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::record::Timestamp;

/// A clock that never goes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    base: Timestamp,
    start: Instant,
}

impl Clock {
    /// A clock that shows the wall clock's time now. It can be paused where tokio's clock can.
    pub(super) fn start() -> Clock {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { base: Timestamp(0) + since_epoch, start: Instant::now() }
    }

    /// The moment that it shows.
    pub(super) fn now(&self) -> Timestamp {
        self.base + self.start.elapsed()
    }
}
