//! The proxy of one core: its settings with what they need there, and how they are replaced while it serves.
//!
//! Separate from the life of a request ([`super`]), which takes one look at a [`Core`] and keeps it to its end.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response};
use hyper::body::Incoming;

use super::body::Body;
use super::budget::Budget;
use super::fingerprint::Imprinter;
use super::guard::{Guard, GuardFault};
use super::headers::Client;
use super::route::egress::Destinations;
use super::route::{Route, Routes};
use super::shared::Shared;
use crate::alarm::Alarms;
use crate::config::{self, Config, Egress};
use crate::seldom::Seldom;
use crate::store::Store;
use crate::upstream::{Pool, TlsSetupError};

/// The proxy of one core. Clones are the same proxy.
///
/// Its settings can be replaced while it serves ([`reload`]): a request takes one look at them and keeps what it saw, so
/// that a running attempt ends under the settings it began with.
#[derive(Clone)]
pub struct Proxy(Arc<ArcSwap<Core>>);

/// One state of the settings, with what it needs on this core.
pub(super) struct Core {
    pub(super) routes: Routes,
    pub(super) egress: Arc<Egress>,
    /// How imprints are made, by the route's index.
    pub(super) imprinters: Vec<Imprinter>,
    pub(super) store: Arc<dyn Store>,
    pub(super) shared: Arc<Shared>,
    pub(super) body_timeout: Duration,
    /// What bounds the waits for clients' bodies.
    pub(super) bodies: Alarms,
    /// Of clients' connections.
    pub(super) idle_timeout: Duration,
    pub(super) log_requests: bool,
}

/// A route cannot be prepared: its name, and what is wrong.
pub type UnusableRoute = (String, RouteFault);

/// What a route needs cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RouteFault {
    /// TLS towards its upstream.
    #[error("cannot prepare TLS to the upstream")]
    Upstream(#[from] TlsSetupError),
    /// What its guard needs.
    #[error(transparent)]
    Guard(#[from] GuardFault),
}

/// Replaces the settings of the proxies of all cores: of all, or on an error of none.
///
/// A route whose upstream stays the same keeps its connections, unless it has certificates of its own to trust, which
/// are read anew. What the cores share keeps its counts under the new limits.
///
/// # Errors
/// The name of a route, if its certificates or secrets cannot be read.
pub fn reload(cores: &[Proxy], config: &Config) -> Result<(), UnusableRoute> {
    let mut next: Vec<Arc<Core>> = Vec::with_capacity(cores.len());
    for Proxy(core) in cores {
        let running = core.load_full();
        let made = match next.first() {
            None => running.with(config)?,
            Some(first) => first.on_another_core(running.store.clone(), running.shared.clone(), Some(&running.routes)),
        };
        next.push(Arc::new(made));
    }
    if let Some(first) = next.first() {
        first.shared.set_limits(&config.limits);
        first.routes.set_limits();
    }
    for (Proxy(core), next) in cores.iter().zip(next) {
        core.store(next);
    }
    Ok(())
}

impl Proxy {
    /// The proxy of the first core, with this handle on the store.
    ///
    /// # Errors
    /// The name of a route, if its certificates or secrets cannot be read.
    pub fn new(config: &Config, shared: &Shared, store: Arc<dyn Store>) -> Result<Proxy, UnusableRoute> {
        Core::new(config, &Arc::new(shared.for_another_core()), store, None).map(Proxy::of)
    }

    /// The proxy of a further core: with connections of its own, and its own handle on the store.
    pub fn for_another_core(&self, store: Arc<dyn Store>) -> Proxy {
        let core = self.0.load_full();
        Proxy::of(core.on_another_core(store, Arc::new(core.shared.for_another_core()), None))
    }

    fn of(core: Core) -> Proxy {
        Proxy(Arc::new(ArcSwap::from_pointee(core)))
    }

    /// Answers one request, under the settings as they are now.
    pub fn handle(&self, request: Request<Incoming>, client: Client) -> impl Future<Output = Response<Body>> + use<> {
        // Not a mere borrow: few of those are free of locks at a time, and this one lasts as long as the request.
        self.0.load_full().handle(request, client)
    }
}

impl Core {
    fn new(
        config: &Config,
        shared: &Arc<Shared>,
        store: Arc<dyn Store>,
        running: Option<&Routes>,
    ) -> Result<Core, UnusableRoute> {
        let routes = config.routes.iter().enumerate().map(|(index, config)| {
            let running = running.and_then(|routes| routes.named(&config.name));
            let prepared = prepare(index, config, shared, running);
            prepared.map_err(|error| (config.name.to_string(), error))
        });
        Ok(Core {
            routes: Routes::new(routes.collect::<Result<_, _>>()?),
            egress: config.egress.clone(),
            imprinters: config.routes.iter().map(|route| Imprinter::of(route)).collect(),
            store,
            shared: shared.clone(),
            body_timeout: config.limits.body_timeout,
            bodies: Alarms::default(),
            idle_timeout: config.limits.idle_timeout,
            log_requests: config.log.requests,
        })
    }

    /// This core under other settings.
    fn with(&self, config: &Config) -> Result<Core, UnusableRoute> {
        Core::new(config, &self.shared, self.store.clone(), Some(&self.routes))
    }

    /// The same settings on another core, which keeps what it can of the routes that it runs.
    fn on_another_core(&self, store: Arc<dyn Store>, shared: Arc<Shared>, running: Option<&Routes>) -> Core {
        Core {
            routes: self.routes.for_another_core(&shared.buffered, running),
            egress: self.egress.clone(),
            imprinters: self.imprinters.clone(),
            store,
            shared,
            body_timeout: self.body_timeout,
            bodies: Alarms::default(),
            idle_timeout: self.idle_timeout,
            log_requests: self.log_requests,
        }
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("routes", &self.0.load().routes).finish_non_exhaustive()
    }
}

/// The route of these settings, which goes on with what it can of the one of its name that runs.
fn prepare(
    index: usize,
    config: &Arc<config::Route>,
    shared: &Shared,
    running: Option<&Route>,
) -> Result<Arc<Route>, RouteFault> {
    let metrics = shared.metrics.route(&config.name);
    let pool = match running.and_then(|route| route.reusable_pool(config)) {
        Some(pool) => pool,
        None => Pool::new(&config.upstream, config.connect_timeout, config.idle_timeout, &metrics)?,
    };
    // That of the running route, so that what runs goes on counting. Its size is set once all is well.
    let in_flight = match running {
        Some(route) => route.in_flight.clone(),
        None => Budget::shown_by(&metrics.in_flight, config.max_in_flight.unwrap_or(usize::MAX)),
    };
    let destinations = Destinations::default();
    let guard = Guard::new(config, &shared.metrics, running.map(|route| &*route.guard))?;
    let alarms = Alarms::default();
    Ok(Arc::new(Route {
        pool,
        index,
        config: config.clone(),
        in_flight,
        buffered: shared.buffered.clone(),
        metrics,
        destinations,
        guard,
        alarms,
        outage: Arc::default(),
        failures: Arc::new(Seldom::each_second()),
    }))
}
