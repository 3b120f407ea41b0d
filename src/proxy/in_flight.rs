//! Requests in flight: each takes its place under the limit of the proxy and of its route, and in the gauge.
//!
//! A plain request holds it until its response has ended, a keyed one until its attempt has.

use super::budget::{Counted, Share};
use super::error::Problem;
use super::route::Route;
use super::shared::Shared;

/// A request in flight, counted against the limits and in the gauge.
#[derive(Debug)]
pub struct InFlight {
    _total: Share,
    _own: Option<Share>,
    _counted: Counted,
}

impl InFlight {
    /// Takes a place, or says which limit leaves none.
    pub fn enter(shared: &Shared, route: &Route) -> Result<InFlight, Problem> {
        let total = shared.in_flight.take(1).ok_or_else(|| Problem::overloaded("requests in flight"))?;
        // Without a limit nothing is counted: the cores would pass one number back and forth for nothing.
        let own = match route.config.max_in_flight {
            Some(_) => {
                Some(route.in_flight.take(1).ok_or_else(|| Problem::overloaded("requests in flight on this route"))?)
            }
            None => None,
        };
        Ok(InFlight { _total: total, _own: own, _counted: Counted::new(&route.metrics.in_flight) })
    }
}
