//! Requests in flight: each takes its place under the limit of the proxy and of its route, and in the gauge.
//!
//! A plain request holds it until its response has ended, a keyed one until its attempt has.

use super::budget::Share;
use super::error::Problem;
use super::route::Route;
use super::shared::Shared;

/// A request in flight, counted against the limits and in the gauge.
#[derive(Debug)]
pub struct InFlight {
    _total: Share,
    /// The gauge shows it.
    _own: Share,
}

impl InFlight {
    /// Takes a place, or says which limit leaves none.
    pub fn enter(shared: &Shared, route: &Route) -> Result<InFlight, Problem> {
        let total = shared.in_flight.take(1).ok_or_else(|| Problem::overloaded("requests in flight"))?;
        let own = route.in_flight.take(1).ok_or_else(|| Problem::overloaded("requests in flight on this route"))?;
        Ok(InFlight { _total: total, _own: own })
    }
}
