//! Step 2, route: which settings a request falls under.
//!
//! A route that names the request's host goes before one that takes any; among those the longest path prefix wins,
//! by whole segments.

use std::sync::Arc;

use http::request;
use http::uri::PathAndQuery;

pub mod egress;

use self::egress::Destinations;
use super::budget::Budget;
use super::error::{Kind, Problem};
use super::guard::Guard;
use super::outage::Outage;
use crate::alarm::Alarms;
use crate::config;
use crate::metrics::RouteMetrics;
use crate::seldom::Seldom;
use crate::upstream::Pool;

/// A route with what it needs on this core.
#[derive(Debug)]
pub struct Route {
    /// The settings.
    pub config: Arc<config::Route>,
    /// Connections to the upstream.
    pub pool: Pool,
    /// What `max_in_flight` bounds, over all cores; a gauge shows it.
    pub in_flight: Budget,
    /// What `limits.buffered` bounds, over all routes and cores.
    pub buffered: Budget,
    /// Resolved metrics.
    pub metrics: RouteMetrics,
    /// Its place in the settings.
    pub index: usize,
    /// Where requests name the host: the routes towards those that were named.
    pub destinations: Destinations,
    /// What it asks of requests before it answers them.
    pub guard: Arc<Guard>,
    /// What bounds the waits for its upstream, its attempts and their leases.
    pub alarms: Alarms,
    /// What its requests know of an outage of the store, over all cores.
    pub outage: Arc<Outage>,
    /// What went wrong with its upstream, by kind, over all cores.
    pub failures: Arc<Seldom<&'static str>>,
}

impl Route {
    /// Its connections, if a route with these settings can go on with them. Certificates of its own are read anew with
    /// every change, so that one that was renewed under its old name is taken.
    pub fn reusable_pool(&self, next: &config::Route) -> Option<Pool> {
        let same = self.config.upstream == next.upstream
            && self.config.connect_timeout == next.connect_timeout
            && self.config.idle_timeout == next.idle_timeout;
        (same && next.upstream.ca_file.is_none() && next.upstream.client.is_none()).then(|| self.pool.clone())
    }
}

/// All routes, most specific first.
#[derive(Debug)]
pub struct Routes(Vec<Arc<Route>>);

impl Routes {
    /// Orders the routes by how specific they are.
    pub fn new(mut routes: Vec<Arc<Route>>) -> Routes {
        routes.sort_by_key(|route| (route.config.host.is_none(), std::cmp::Reverse(prefix(&route.config).len())));
        Routes(routes)
    }

    /// The route of this name.
    pub fn named(&self, name: &str) -> Option<&Route> {
        self.0.iter().map(Arc::as_ref).find(|route| *route.config.name == *name)
    }

    /// The same routes for another core: with connections of its own, those of the routes that it runs where they can
    /// be kept. The name is its own too: records bear it, and the cores would count the holders of one copy together.
    pub fn for_another_core(&self, buffered: &Budget, running: Option<&Routes>) -> Routes {
        let routes = self.0.iter().map(|route| {
            let name = Arc::from(&*route.config.name);
            let running = running.and_then(|routes| routes.named(&route.config.name));
            let kept = running.and_then(|running| running.reusable_pool(&route.config));
            Arc::new(Route {
                config: Arc::new(config::Route { name, ..config::Route::clone(&route.config) }),
                in_flight: running.map_or_else(|| route.in_flight.for_another_core(), |route| route.in_flight.clone()),
                buffered: buffered.clone(),
                pool: kept.unwrap_or_else(|| route.pool.for_another_core()),
                metrics: route.metrics.clone(),
                index: route.index,
                destinations: Destinations::default(),
                guard: route.guard.for_another_core(running.map(|route| &*route.guard)),
                alarms: Alarms::default(),
                outage: route.outage.clone(),
                failures: route.failures.clone(),
            })
        });
        Routes(routes.collect())
    }

    /// Gives each route's bound the size that the settings say.
    pub fn set_limits(&self) {
        for route in &self.0 {
            route.in_flight.set_limit(route.config.max_in_flight.unwrap_or(usize::MAX));
        }
    }

    /// The route that takes this request.
    pub fn find(&self, head: &request::Parts) -> Result<&Arc<Route>, Problem> {
        let path = match head.uri.path() {
            // It asks the server behind a host as a whole (RFC 9112 section 3.2.4).
            ASTERISK => "/",
            path => path,
        };
        self.0
            .iter()
            .find(|route| matches(&route.config, head, path))
            .ok_or_else(|| Problem::new(Kind::NoRoute, "No route of this proxy takes this host and path."))
    }
}

/// The target of an OPTIONS that asks a server and not one of its resources.
pub const ASTERISK: &str = "*";

/// The route's path without a slash at its end, so that `/v1` and `/v1/` take the same requests.
fn prefix(route: &config::Route) -> &str {
    route.path.strip_suffix('/').unwrap_or(&route.path)
}

fn matches(route: &config::Route, head: &request::Parts, path: &str) -> bool {
    let host_matches = match &route.host {
        None => true,
        Some(wanted) => requested_host(head).is_some_and(|host| host.eq_ignore_ascii_case(wanted)),
    };
    host_matches && rest_of(route, path).is_some()
}

/// What follows the route's prefix: empty, or beginning with a slash.
fn rest_of<'a>(route: &config::Route, path: &'a str) -> Option<&'a str> {
    let rest = path.strip_prefix(prefix(route))?;
    (path.starts_with('/') && (rest.is_empty() || rest.starts_with('/'))).then_some(rest)
}

/// The host that was asked for, without its port and without the dot of a name that is written out to the root: of an
/// absolute-form target, else of the `Host` field.
pub fn requested_host(head: &request::Parts) -> Option<&str> {
    let authority = match head.uri.authority() {
        Some(authority) => authority.as_str(),
        None => head.headers.get(http::header::HOST)?.to_str().ok()?,
    };
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    Some(host.strip_suffix('.').unwrap_or(host))
}

/// The target as the upstream gets it: as received, byte for byte, but for the prefix where it is to be taken off.
pub fn target(route: &config::Route, head: &request::Parts) -> PathAndQuery {
    let received = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    if !route.strip_prefix {
        return received;
    }
    let Some(rest) = rest_of(route, received.path()) else { return received };
    let slash = if rest.is_empty() { "/" } else { "" };
    let query = received.query().map(|q| format!("?{q}")).unwrap_or_default();
    // A suffix of a valid target that begins with a slash is a valid target.
    format!("{slash}{rest}{query}").parse().unwrap_or(received)
}
