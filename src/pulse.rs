//! Whether the loops turn: each core's beats, counted against those of the process's main thread.
//!
//! A core that is blocked answers nobody, and nobody else notices: the admin listener has a thread of its own. Turns are
//! counted and not measured, so that a process that was stopped as a whole (SIGSTOP, a suspended machine) is not taken for
//! one that hangs.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

/// How often each loop beats.
const BEAT: Duration = Duration::from_secs(1);

/// The beats of all loops. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Pulses(Arc<Beats>);

#[derive(Debug, Default)]
struct Beats {
    /// Beats of the main thread.
    turns: AtomicU64,
    cores: Mutex<Vec<Pulse>>,
}

/// The beats of one core: the main thread's turn at its last one.
type Pulse = Arc<AtomicU64>;

impl Pulses {
    /// Beats for the main thread.
    pub async fn beat(&self) -> Infallible {
        beat(|| {
            self.0.turns.fetch_add(1, Ordering::Relaxed);
        })
        .await
    }

    /// Beats for a core, from now on; to be run by its loop.
    pub async fn beat_for_core(&self) -> Infallible {
        let pulse = Pulse::new(AtomicU64::new(self.turns()));
        self.0.cores.lock().unwrap_or_else(PoisonError::into_inner).push(pulse.clone());
        beat(|| pulse.store(self.turns(), Ordering::Relaxed)).await
    }

    /// For how long the loop of some core has not turned, if that is at least `stall`.
    pub fn stalled(&self, stall: Duration) -> Option<Duration> {
        let cores = self.0.cores.lock().unwrap_or_else(PoisonError::into_inner);
        let last = cores.iter().map(|pulse| pulse.load(Ordering::Relaxed)).min()?;
        let missed = self.turns().saturating_sub(last);
        let silent = BEAT.saturating_mul(u32::try_from(missed).unwrap_or(u32::MAX));
        (silent >= stall).then_some(silent)
    }

    fn turns(&self) -> u64 {
        self.0.turns.load(Ordering::Relaxed)
    }
}

async fn beat(beat: impl Fn()) -> Infallible {
    let mut ticks = interval(BEAT);
    // Beats that were missed are not made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        beat();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_core_that_stands_still_is_noticed_and_a_process_that_does_is_not() {
        let pulses = Pulses::default();
        let run = |core: bool| {
            let pulses = pulses.clone();
            tokio::spawn(async move { if core { pulses.beat_for_core().await } else { pulses.beat().await } })
        };
        let (main, _one, two) = (run(false), run(true), run(true));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(pulses.stalled(STALL), None);
        // Nothing beats: the process stood still.
        main.abort();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(pulses.stalled(STALL), None);
        let _main = run(false);
        two.abort();
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(pulses.stalled(STALL), None);
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(pulses.stalled(STALL).is_some_and(|silent| silent < 2 * STALL));
    }
}
