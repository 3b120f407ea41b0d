//! Budgets: how much of something may be held at a time, and guards that give back what they took.
//!
//! Requests in flight, duplicates that wait and the bytes of bodies are bounded alike. A budget knows no problem: who asks
//! says what a refusal means.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::metrics::gauge::Gauge;

/// Bounds something that is held at a time. Shared by all cores.
#[derive(Clone, Debug)]
pub struct Budget(Arc<BudgetInner>);

#[derive(Debug)]
struct BudgetInner {
    limit: AtomicUsize,
    used: AtomicUsize,
    gauge: Option<Gauge>,
}

impl Budget {
    /// A budget of this size.
    pub fn new(limit: usize) -> Budget {
        Budget(Arc::new(BudgetInner { limit: AtomicUsize::new(limit), used: AtomicUsize::new(0), gauge: None }))
    }

    /// Changes its size. What is taken stays taken, also where that is more than the new size.
    pub fn set_limit(&self, limit: usize) {
        self.0.limit.store(limit, Ordering::Relaxed);
    }

    /// The same budget, with a gauge that shows what is taken.
    pub fn shown_by(self, gauge: &Gauge) -> Budget {
        let limit = AtomicUsize::new(self.0.limit.load(Ordering::Relaxed));
        Budget(Arc::new(BudgetInner { limit, used: AtomicUsize::new(0), gauge: Some(gauge.clone()) }))
    }

    /// Takes this much until the returned share is dropped, or nothing when it is not there.
    pub fn take(&self, amount: usize) -> Option<Share> {
        let mut share = Share { budget: self.clone(), amount: 0 };
        share.grow(amount).then_some(share)
    }

    /// How much is taken now.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }
}

/// A part of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    amount: usize,
}

impl Share {
    /// Takes more, and says whether it was there.
    pub fn grow(&mut self, amount: usize) -> bool {
        let inner = &self.budget.0;
        let before = inner.used.fetch_add(amount, Ordering::Relaxed);
        if before.saturating_add(amount) > inner.limit.load(Ordering::Relaxed) {
            inner.used.fetch_sub(amount, Ordering::Relaxed);
            return false;
        }
        if let Some(gauge) = &inner.gauge {
            gauge.inc_by(i64::try_from(amount).unwrap_or(i64::MAX));
        }
        self.amount += amount;
        true
    }

    /// Parts with this much of it, or with all that there is.
    pub fn split(&mut self, amount: usize) -> Share {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        Share { budget: self.budget.clone(), amount }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let inner = &self.budget.0;
        inner.used.fetch_sub(self.amount, Ordering::Relaxed);
        if let Some(gauge) = &inner.gauge {
            gauge.dec_by(i64::try_from(self.amount).unwrap_or(i64::MAX));
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
        let budget = Budget::new(10);
        let mut first = budget.take(6).unwrap();
        assert!(budget.take(5).is_none());
        assert!(first.grow(4));
        assert!(!first.grow(1));
        assert_eq!(budget.used(), 10);
        drop(first);
        assert_eq!(budget.used(), 0);
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
