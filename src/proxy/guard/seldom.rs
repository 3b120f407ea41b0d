//! What is told once a minute at most, however often it happens.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const PAUSE: Duration = Duration::from_secs(60);

/// Remembers when something was told last.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether it is time to tell it again. Whoever is told so tells it.
    pub(super) fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.duration_since(last) >= PAUSE);
        if due {
            *last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_told_once_a_minute() {
        let seldom = Seldom::default();
        assert!(seldom.is_due() && !seldom.is_due());
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(!seldom.is_due());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(seldom.is_due() && !seldom.is_due());
    }
}
