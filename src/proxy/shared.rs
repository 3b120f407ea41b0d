//! What the proxies of all cores share: the tables of what is running, the budgets, and the signals of a stop.
//!
//! Separate from [`super::core`], which is one core's alone and may be replaced while these keep their counts.

use std::sync::Arc;

use super::budget::Budget;
use super::flights::Flights;
use super::recent::Recent;
use super::underscores::Twins;
use super::unread::Unread;
use crate::config::Limits;
use crate::metrics::Metrics;
use crate::shutdown::{Signal, Tasks};
use crate::trace::Tracer;

/// What the proxies of all cores share. Each core has one of its own, whose parts count together: what is counted for each
/// request in one place, the cores pass back and forth.
#[derive(Debug)]
pub struct Shared {
    pub(super) flights: Arc<Flights>,
    pub(super) recent: Arc<Recent>,
    pub(super) unread: Arc<Unread>,
    pub(super) twins: Arc<Twins>,
    pub(super) in_flight: Budget,
    pub(super) waiting: Budget,
    pub(super) buffered: Budget,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tracer: Tracer,
    /// Attempts that run now; a stop waits for them.
    pub tasks: Tasks,
    /// Given when a stop begins: what has not come to a claim is not waited for long.
    pub stopping: Signal,
    /// Given when a stop no longer waits: each running attempt is doubted, or released.
    pub cut_off: Signal,
}

impl Shared {
    /// Empty tables, and budgets of these limits.
    pub fn new(limits: &Limits, metrics: &Arc<Metrics>, tracer: Tracer) -> Shared {
        Shared {
            flights: Flights::new(),
            recent: Recent::new(),
            unread: Arc::new(Unread::each_minute()),
            twins: Arc::new(Twins::each_minute()),
            in_flight: Budget::new(limits.in_flight),
            waiting: Budget::new(limits.waiting),
            buffered: Budget::shown_by(metrics.buffered_bytes(), limits.buffered),
            metrics: metrics.clone(),
            tracer,
            tasks: Tasks::default(),
            stopping: Signal::new(),
            cut_off: Signal::new(),
        }
    }

    /// The same for another core.
    pub(super) fn for_another_core(&self) -> Shared {
        Shared {
            flights: self.flights.for_another_core(),
            recent: self.recent.clone(),
            unread: self.unread.clone(),
            twins: self.twins.clone(),
            in_flight: self.in_flight.for_another_core(),
            waiting: self.waiting.for_another_core(),
            buffered: self.buffered.for_another_core(),
            metrics: self.metrics.clone(),
            tracer: self.tracer.clone(),
            tasks: self.tasks.for_another_core(),
            // Only looked at, while requests come.
            stopping: self.stopping.clone(),
            cut_off: self.cut_off.follower(),
        }
    }

    /// Changes the budgets' sizes. What is taken already stays taken.
    pub(super) fn set_limits(&self, limits: &Limits) {
        self.in_flight.set_limit(limits.in_flight);
        self.waiting.set_limit(limits.waiting);
        self.buffered.set_limit(limits.buffered);
    }
}
