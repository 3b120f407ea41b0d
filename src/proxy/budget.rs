//! Budgets: how much of something may be held at a time, and guards that give back what they took.
//!
//! Requests in flight, duplicates that wait and the bytes of bodies are bounded alike. A budget knows no problem: who asks
//! says what a refusal means.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use prometheus_client::metrics::gauge::Gauge;

/// Bounds something that is held at a time, on all cores together. Each has a handle of its own, so that they pass only
/// the count back and forth; and the count is one number, also where metrics show it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Handle>);

// Aligned: the handles of two cores should not share a line of the caches.
#[derive(Debug)]
#[repr(align(64))]
struct Handle(Arc<Bound>);

#[derive(Debug)]
struct Bound {
    limit: AtomicI64,
    used: Gauge,
}

impl Budget {
    /// A budget of this size.
    pub fn new(limit: usize) -> Budget {
        Budget::shown_by(&Gauge::default(), limit)
    }

    /// A budget of this size, and a gauge that shows what is taken.
    pub fn shown_by(gauge: &Gauge, limit: usize) -> Budget {
        let bound = Bound { limit: AtomicI64::new(number(limit)), used: gauge.clone() };
        Budget(Arc::new(Handle(Arc::new(bound))))
    }

    /// The same budget for another core.
    #[must_use]
    pub fn for_another_core(&self) -> Budget {
        Budget(Arc::new(Handle(self.bound().clone())))
    }

    /// Changes its size. What is taken stays taken, also where that is more than the new size.
    pub fn set_limit(&self, limit: usize) {
        self.bound().limit.store(number(limit), Ordering::Relaxed);
    }

    /// Takes this much until the returned share is dropped, or nothing when it is not there.
    pub fn take(&self, amount: usize) -> Option<Share> {
        let mut share = self.nothing();
        share.grow(amount).then_some(share)
    }

    /// A share that has nothing yet.
    pub fn nothing(&self) -> Share {
        Share { budget: self.clone(), amount: 0 }
    }

    fn bound(&self) -> &Arc<Bound> {
        &self.0.0
    }
}

fn number(amount: usize) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// A part of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    amount: i64,
}

impl Share {
    /// Takes more, and says whether it was there.
    pub fn grow(&mut self, amount: usize) -> bool {
        let (bound, amount) = (self.budget.bound(), number(amount));
        let before = bound.used.inc_by(amount);
        if before.saturating_add(amount) > bound.limit.load(Ordering::Relaxed) {
            bound.used.dec_by(amount);
            return false;
        }
        self.amount += amount;
        true
    }

    /// Parts with this much of it, or with all that there is.
    pub fn split(&mut self, amount: usize) -> Share {
        let amount = number(amount).min(self.amount);
        self.amount -= amount;
        Share { budget: self.budget.clone(), amount }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.budget.bound().used.dec_by(self.amount);
        }
    }
}

/// Adds one to a gauge until it is dropped.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    /// Counts one more.
    pub fn new(gauge: &Gauge) -> Counted {
        gauge.inc();
        Counted(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_overdrawn_and_gets_everything_back() {
        let gauge = Gauge::default();
        let budget = Budget::shown_by(&gauge, 10);
        let elsewhere = budget.for_another_core();
        let mut first = budget.take(6).unwrap();
        assert!(elsewhere.take(5).is_none());
        assert!(first.grow(4));
        assert!(!first.grow(1));
        let part = first.split(7);
        assert_eq!(gauge.get(), 10);
        drop(first);
        assert_eq!(gauge.get(), 7);
        drop(part);
        assert_eq!(gauge.get(), 0);
        drop(elsewhere.take(10).unwrap());
    }

    #[test]
    fn a_budget_that_shrinks_keeps_what_is_taken_and_grants_no_more() {
        let budget = Budget::new(10);
        let share = budget.take(6).unwrap();
        budget.set_limit(4);
        assert!(budget.take(1).is_none());
        drop(share);
        assert!(budget.take(4).is_some());
        assert!(budget.take(5).is_none());
    }
}
