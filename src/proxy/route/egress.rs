//! Egress: the route of a request that names its host itself, as a client does that uses this proxy as its `HTTP_PROXY`.
//!
//! A route whose upstream is `https://{host}` becomes one of its own for each host that a request names and that the
//! settings allow: with its own connections, and with the host in its scope. After that it is a route like any other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::request;
use http::uri::Authority;

use super::Route;
use crate::alarm::Alarms;
use crate::config::{self, ScopePart};
use crate::proxy::error::{Kind, Problem};

/// So many hosts have connections of their own at a time. Beyond it all begin anew, so that a pattern in the allow-list
/// is no way to fill the memory.
const MOST: usize = 256;

/// The routes of this core towards the hosts that requests have named.
#[derive(Debug, Default)]
pub struct Destinations(Mutex<HashMap<(String, u16), Arc<Route>>>);

/// The route that a request goes by: the one that took it, or the one towards the host that it names.
pub fn destination(route: &Arc<Route>, head: &request::Parts) -> Result<Arc<Route>, Problem> {
    if !route.config.upstream.is_requested() {
        return Ok(route.clone());
    }
    let authority = named(head).ok_or_else(|| refused("The request names no host.".to_owned()))?;
    if head.uri.scheme_str() == Some("https") && !route.config.upstream.tls {
        let what = "The request asks for https, and this route would speak http to the outside.";
        return Err(refused(what.to_owned()));
    }
    // An address of IPv6 comes in brackets.
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let upstream = route.config.upstream.at(host, authority.port_u16());
    let upstream = upstream.ok_or_else(|| refused(format!("{authority} is not a host that this proxy may reach.")))?;
    towards(route, upstream)
}

fn named(head: &request::Parts) -> Option<Authority> {
    let authority = match head.uri.authority() {
        Some(authority) => authority.clone(),
        None => head.headers.get(http::header::HOST)?.to_str().ok()?.parse().ok()?,
    };
    // With anything else in it, a user or a port that is none, another reader may understand another host.
    let understood = match authority.port() {
        Some(port) => format!("{}:{port}", authority.host()),
        None => authority.host().to_owned(),
    };
    (!authority.host().is_empty() && authority.as_str() == understood).then_some(authority)
}

fn towards(route: &Arc<Route>, upstream: config::Upstream) -> Result<Arc<Route>, Problem> {
    let mut known = route.destinations.0.lock().unwrap_or_else(PoisonError::into_inner);
    let place = (upstream.host.clone(), upstream.port);
    if let Some(found) = known.get(&place) {
        return Ok(found.clone());
    }
    let pool = route.pool.towards(&upstream).map_err(|error| refused(format!("{error}.")))?;
    let mut config = config::Route::clone(&route.config);
    // Two hosts do not share keys.
    config.scope.push(ScopePart::Constant(upstream.authority()));
    // The port that the client named may be that of http.
    config.preserve_host = false;
    config.upstream = upstream;
    let made = Arc::new(Route {
        config: Arc::new(config),
        pool,
        in_flight: route.in_flight.clone(),
        buffered: route.buffered.clone(),
        metrics: route.metrics.clone(),
        index: route.index,
        destinations: Destinations::default(),
        guard: route.guard.clone(),
        alarms: Alarms::default(),
        outage: route.outage.clone(),
        failures: route.failures.clone(),
    });
    if known.len() >= MOST {
        known.clear();
    }
    known.insert(place, made.clone());
    Ok(made)
}

fn refused(what: String) -> Problem {
    Problem::new(Kind::EgressRefused, format!("{what} Nothing was forwarded; allow is a setting of [egress]."))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn head(target: &str, host: Option<&str>) -> request::Parts {
        let request = Request::builder().uri(target);
        let request = host.into_iter().fold(request, |request, host| request.header("host", host));
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_host_is_the_targets_or_the_fields() {
        for (target, host, authority) in [
            ("http://a.example/x", Some("a.example"), Some("a.example")),
            ("http://a.example:81/x", None, Some("a.example:81")),
            ("/x", Some("a.example:81"), Some("a.example:81")),
            ("/x", Some("[::1]:81"), Some("[::1]:81")),
            ("/x", Some("[::1]"), Some("[::1]")),
            ("/x", Some(""), None),
            ("/x", None, None),
            ("/x", Some("a.example:"), None),
            ("/x", Some("a.example:99999"), None),
            ("/x", Some("user@a.example"), None),
            ("/x", Some("user@a.example:81"), None),
        ] {
            assert_eq!(named(&head(target, host)).as_ref().map(Authority::as_str), authority, "{target} at {host:?}");
        }
    }
}
