//! The log's patience: what happens often is told once in a while, with how often it happened in between.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Remembers when each kind of event was told last. A kind is a value of `K`; there should be few of them.
#[derive(Debug)]
pub struct Seldom<K> {
    pause: Duration,
    kinds: Mutex<HashMap<K, Last>>,
}

/// When a kind was told last, and how many were left out since.
#[derive(Clone, Copy, Debug)]
struct Last {
    told_at: Instant,
    left_out: u64,
}

impl<K: Eq + Hash> Seldom<K> {
    /// Each kind is told once a second at most.
    pub fn each_second() -> Seldom<K> {
        Seldom::each(Duration::from_secs(1))
    }

    /// Each kind is told once a minute at most.
    pub fn each_minute() -> Seldom<K> {
        Seldom::each(Duration::from_secs(60))
    }

    fn each(pause: Duration) -> Seldom<K> {
        Seldom { pause, kinds: Mutex::default() }
    }

    /// Counts an event. `Some` if the caller should tell it now: how many of its kind were left out since the last one.
    pub fn count(&self, kind: K) -> Option<u64> {
        let now = Instant::now();
        // Each change of the map is one step: it is whole even after a panic.
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = kinds.get_mut(&kind) else {
            kinds.insert(kind, Last { told_at: now, left_out: 0 });
            return Some(0);
        };
        if now.duration_since(last.told_at) < self.pause {
            last.left_out += 1;
            return None;
        }
        Some(std::mem::replace(last, Last { told_at: now, left_out: 0 }).left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_told_once_in_a_while_and_says_how_many_were_left_out() {
        let seldom = Seldom::each_second();
        assert_eq!(seldom.count("slow"), Some(0));
        for _ in 0..1000 {
            assert_eq!(seldom.count("slow"), None);
        }
        assert_eq!(seldom.count("dead"), Some(0), "another kind");
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(seldom.count("slow"), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(seldom.count("slow"), Some(1001));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(seldom.count("slow"), Some(0));
    }
}
