//! Chance that can be repeated: everything that a seed decides is rolled here.

use std::time::Duration;

/// SplitMix64: small, and the same on every machine.
#[derive(Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The dice of this seed.
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// A number below this one.
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// A time below this one, in whole milliseconds.
    pub(crate) fn time(&mut self, below: Duration) -> Duration {
        Duration::from_millis(self.roll(below.as_millis() as u64))
    }

    /// True once in so many times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }

    /// One of these, `None` if there are none.
    pub(crate) fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() { None } else { all.get(self.roll(all.len() as u64) as usize) }
    }
}
