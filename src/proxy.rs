//! The life of a request: route, key, fingerprint, claim, forward, record, respond.
//!
//! [`Proxy::steps`] is that life on one screen; each step is a file of its name. From the claim on, the work runs in a
//! counted task that a disconnecting client cannot cancel ([`Attempt::run`]); the client only listens to it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, request};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub mod route;

pub mod key;

pub mod fingerprint;

pub mod claim;
pub mod flights;
pub mod join;
pub mod lease;
pub mod recent;

pub mod forward;
pub mod pass;

pub mod record;

pub mod respond;

pub mod body;
pub mod error;
pub mod headers;

use self::body::{Body, Budget, Share};
use self::claim::Claimed;
use self::error::{Kind, Problem};
use self::fingerprint::Policy;
use self::flights::{Conclusion, Flights, Lead, Seat, Turn};
pub use self::headers::Peer;

use self::forward::{Caller, Delivery, Outcome, Outgoing};
use self::join::Joined;
use self::key::{Found, Identity, Key, KeyFault};
use self::lease::Lease;
use self::pass::Plain;
use self::recent::Recent;
use self::record::Ending;
use self::respond::Answer;
use self::route::{Route, Routes};
use crate::config::{Config, Limits};
use crate::metrics::{Metrics, RequestResult};
use crate::record::{Claim, Fingerprint, Reason};
use crate::shutdown::{Signal, TaskGuard, Tasks};
use crate::store::Store;
use crate::upstream::{Pool, TlsSetupError};

/// What the proxies of all cores share.
#[derive(Clone, Debug)]
pub struct Shared {
    flights: Arc<Flights>,
    recent: Arc<Recent>,
    in_flight: Budget,
    waiting: Budget,
    buffered: Budget,
    metrics: Arc<Metrics>,
    /// Attempts that run now; a stop waits for them.
    pub tasks: Tasks,
    /// Given when a stop no longer waits: each running attempt is doubted, or released.
    pub cut_off: Signal,
}

impl Shared {
    /// Empty tables, and budgets of these limits.
    pub fn new(limits: &Limits, metrics: &Arc<Metrics>) -> Shared {
        Shared {
            flights: Flights::new(),
            recent: Recent::new(),
            in_flight: Budget::new(limits.in_flight),
            waiting: Budget::new(limits.waiting),
            buffered: Budget::new(limits.buffered).shown_by(metrics.buffered_bytes()),
            metrics: metrics.clone(),
            tasks: Tasks::default(),
            cut_off: Signal::new(),
        }
    }
}

/// The proxy of one core.
#[derive(Clone)]
pub struct Proxy(Arc<Core>);

struct Core {
    routes: Routes,
    /// How fingerprints are made, by the route's index.
    policies: Vec<Policy>,
    store: Arc<dyn Store>,
    shared: Shared,
    body_timeout: Duration,
    log_requests: bool,
}

impl Proxy {
    /// The proxy of the first core, with this handle on the store.
    ///
    /// # Errors
    /// The name of a route, if the certificates for its `https` upstream cannot be read.
    pub fn new(config: &Config, shared: &Shared, store: Arc<dyn Store>) -> Result<Proxy, (String, TlsSetupError)> {
        let routes = config.routes.iter().enumerate().map(|(index, route)| {
            let metrics = shared.metrics.route(&route.name);
            let pool = Pool::new(&route.upstream, route.connect_timeout, route.idle_timeout, &metrics)
                .map_err(|error| (route.name.to_string(), error))?;
            Ok(Arc::new(Route { pool, index, config: route.clone(), metrics }))
        });
        Ok(Proxy(Arc::new(Core {
            routes: Routes::new(routes.collect::<Result<_, _>>()?),
            policies: config.routes.iter().map(|route| Policy::new(&route.fingerprint)).collect(),
            store,
            shared: shared.clone(),
            body_timeout: config.limits.body_timeout,
            log_requests: config.log.requests,
        })))
    }

    /// The proxy of a further core: with connections of its own, and its own handle on the store.
    pub fn for_another_core(&self) -> Proxy {
        Proxy(Arc::new(Core {
            routes: self.0.routes.for_another_core(),
            policies: self.0.policies.clone(),
            store: self.0.store.for_core(),
            shared: self.0.shared.clone(),
            body_timeout: self.0.body_timeout,
            log_requests: self.0.log_requests,
        }))
    }

    /// Answers one request.
    pub async fn handle(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let started = Instant::now();
        let (head, body) = request.into_parts();
        let route = match self.0.routes.find(&head) {
            Ok(route) => route.clone(),
            Err(problem) => {
                body::drain(body);
                self.0.shared.metrics.no_route();
                return problem.into_response();
            }
        };
        let answer = self.steps(&route, &head, body, peer).await.unwrap_or_else(Answer::problem);
        let took = started.elapsed();
        route.metrics.answered(answer.result, took);
        if self.0.log_requests {
            tracing::info!(
                route = %route.config.name,
                record = answer.record.as_ref().map(tracing::field::display),
                method = %head.method,
                status = answer.response.status().as_u16(),
                result = answer.result.as_str(),
                seconds = took.as_secs_f64(),
                "request"
            );
        }
        answer.response
    }

    /// The life of a request, after its route was found.
    async fn steps(
        &self,
        route: &Arc<Route>,
        head: &request::Parts,
        body: Incoming,
        peer: Peer,
    ) -> Result<Answer, Problem> {
        if !route.config.methods.contains(&head.method) {
            return self.pass(route, head, Plain::Coming(body), peer).await;
        }
        let found = match key_from_head(route, head) {
            Ok(Found::Absent) if route.config.key_required => Err(key_missing()),
            Ok(Found::Absent) => return self.pass(route, head, Plain::Coming(body), peer).await,
            found => found,
        };
        let found = match found {
            Ok(found) => found,
            Err(problem) => {
                body::drain(body);
                return Err(problem);
            }
        };
        let max = route.config.max_request_body;
        let body = body::read(body, max, self.0.body_timeout, &self.0.shared.buffered).await?;
        let fingerprint = self.0.policies[route.index]
            .fingerprint(head, &body.bytes)
            .map_err(|fault| Problem::new(Kind::BodyInvalid, fault.to_string()))?;
        let key = match found {
            Found::Key(key) => Some(key),
            _ => key::from_body(&route.config, head, &body.bytes, &fingerprint).map_err(|fault| key_problem(&fault))?,
        };
        let Some(key) = key else {
            if route.config.key_required {
                return Err(key_missing());
            }
            return self.pass(route, head, Plain::Read(body.bytes), peer).await;
        };
        let identity = key::identify(&route.config, head, &key);
        let id = self.0.log_requests.then(|| identity.id.clone());
        let keyed = Keyed { route, head, peer, body: Some(body), fingerprint, key, identity };
        let answer = self.keyed(keyed).await.unwrap_or_else(Answer::problem);
        Ok(Answer { record: id, ..answer })
    }

    /// Leads a flight for the key, or joins the one that is on.
    async fn keyed(&self, mut keyed: Keyed<'_>) -> Result<Answer, Problem> {
        loop {
            let seat = match self.0.shared.flights.enter(&keyed.identity.id, &keyed.fingerprint) {
                Turn::Lead(lead) => return self.lead(keyed, lead).await,
                Turn::Join(seat) => seat,
            };
            if !seat.fingerprint().conflicts_with(&keyed.fingerprint) {
                // It can only join now. Ten thousand of them should not hold their bodies while they wait.
                keyed.body = None;
            }
            match self.join(&keyed, seat).await? {
                Joined::AskStore(false) => {}
                Joined::AskStore(true) => {
                    let Keyed { route, identity, fingerprint, .. } = &keyed;
                    let conclusion = claim::ask(route, &self.0.store, &identity.id, fingerprint).await;
                    return Ok(keyed.first(Arc::new(conclusion)));
                }
                joined => return Ok(keyed.joined(joined)),
            }
        }
    }

    /// Runs the attempt as a counted task, and listens to it.
    async fn lead(&self, mut keyed: Keyed<'_>, mut lead: Lead) -> Result<Answer, Problem> {
        let (Some(in_flight), Some(body)) = (self.in_flight(keyed.route), keyed.body.take()) else {
            let problem = overloaded("requests in flight");
            lead.leave();
            lead.conclude(&Arc::new(problem.clone().into()));
            return Err(problem);
        };
        let (sender, receiver) = oneshot::channel();
        let witness = lead.witness();
        // Boxed, and with the guard inside, so that starting the task moves a pointer and not the whole work.
        let attempt = Box::new(Attempt {
            _counted: self.0.shared.tasks.enter(),
            route: keyed.route.clone(),
            store: self.0.store.clone(),
            shared: self.0.shared.clone(),
            claim: claim::attempt(&keyed.route.config, &keyed.identity.id, &keyed.fingerprint, keyed.key.is_quoted()),
            outgoing: keyed.outgoing(body),
            identity: keyed.identity.clone(),
            key: keyed.key.clone(),
            in_flight,
        });
        tokio::spawn(attempt.run(lead, Caller::new(sender)));
        match tokio::time::timeout(keyed.route.config.timeout, receiver).await {
            Ok(Ok(Delivery::Concluded(conclusion))) => Ok(keyed.first(conclusion)),
            Ok(Ok(Delivery::Flowing(response))) => Ok(Answer::new(*response, RequestResult::Executed).with_via()),
            Ok(Ok(Delivery::Elsewhere(seat))) => {
                let joined = self.join(&keyed, seat).await?;
                Ok(keyed.joined(joined))
            }
            Ok(Err(_)) => Err(Problem::doubted(&keyed.identity.id, Reason::Panic, false)),
            Err(_) if witness.was_granted() => Err(Problem::still_listening(&keyed.identity.id)),
            // The store has not even answered; if it grants the claim now, the attempt goes on for a repeat to find.
            Err(_) => Err(claim::unavailable(&keyed.identity.id)),
        }
    }

    async fn join(&self, keyed: &Keyed<'_>, seat: Seat) -> Result<Joined, Problem> {
        let route = keyed.route;
        let _share = self.0.shared.waiting.take(1).ok_or_else(|| overloaded("waiting duplicates"))?;
        let _counted = Counted::new(&route.metrics.waiting);
        let patience = keyed.preferred_wait().unwrap_or(route.config.wait_timeout);
        Ok(join::join(route, &keyed.identity.id, &keyed.fingerprint, seat, patience).await)
    }

    /// Passes a request through without protection.
    async fn pass(&self, route: &Route, head: &request::Parts, body: Plain, peer: Peer) -> Result<Answer, Problem> {
        let Some(in_flight) = self.in_flight(route) else {
            if let Plain::Coming(body) = body {
                body::drain(body);
            }
            return Err(overloaded("requests in flight"));
        };
        // Boxed: a keyed request, and each that waits, should not have room for this.
        Box::pin(pass::pass(route, head, body, peer, Box::new(in_flight))).await
    }

    fn in_flight(&self, route: &Route) -> Option<InFlight> {
        let share = self.0.shared.in_flight.take(1)?;
        Some(InFlight { _share: share, _counted: Counted::new(&route.metrics.in_flight) })
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("routes", &self.0.routes).finish_non_exhaustive()
    }
}

/// A keyed request, read whole.
struct Keyed<'a> {
    route: &'a Arc<Route>,
    head: &'a request::Parts,
    peer: Peer,
    /// Gone once the request can only join.
    body: Option<body::Whole>,
    fingerprint: Fingerprint,
    key: Key,
    identity: Identity,
}

impl Keyed<'_> {
    fn outgoing(&self, body: body::Whole) -> Outgoing {
        let route = &self.route.config;
        let key = Some((&self.key, self.key.is_quoted()));
        Outgoing {
            method: self.head.method.clone(),
            target: route::target(route, self.head),
            fields: headers::to_upstream(route, self.head, self.peer, key),
            body: body.bytes,
            has_length: self.head.headers.contains_key(http::header::CONTENT_LENGTH),
            share: body.share,
        }
    }

    /// How long the client wants to wait as a duplicate, if that is less than the route would let it.
    fn preferred_wait(&self) -> Option<Duration> {
        headers::preferred_wait(&self.head.headers).filter(|wait| *wait < self.route.config.wait_timeout)
    }

    fn first(&self, conclusion: Arc<Conclusion>) -> Answer {
        let answer = respond::first(conclusion);
        let duplicate = matches!(answer.result, RequestResult::Replayed | RequestResult::InProgress);
        if duplicate { answer.with_preference(self.preferred_wait()) } else { answer }
    }

    fn joined(&self, joined: Joined) -> Answer {
        let answer = match joined {
            Joined::Concluded(conclusion) => respond::joined(&conclusion),
            Joined::Refused(problem) => Answer::problem(problem),
            // A seat of its own flight: the store has just said that another process is at it.
            Joined::AskStore(_) => Answer::problem(Problem::in_progress(&self.identity.id)),
        };
        answer.with_preference(self.preferred_wait())
    }
}

/// One attempt at one key: what runs from the claim to the record, whether or not its caller is still there.
struct Attempt {
    /// Counts the task until it ends; a stop waits for it.
    _counted: TaskGuard,
    route: Arc<Route>,
    store: Arc<dyn Store>,
    shared: Shared,
    claim: Claim,
    outgoing: Outgoing,
    identity: Identity,
    key: Key,
    in_flight: InFlight,
}

impl Attempt {
    async fn run(self: Box<Self>, mut lead: Lead, mut caller: Caller) {
        match claim::claim(&self.route, &self.store, self.claim.clone()).await {
            Claimed::Granted(lease, first_form) => self.execute(lease, first_form, lead, caller).await,
            Claimed::Concluded(conclusion) => conclude(&mut lead, &mut caller, Arc::new(conclusion)),
            Claimed::GivenUp(lease, problem) => {
                conclude(&mut lead, &mut caller, Arc::new(problem.into()));
                tokio::select! {
                    () = claim::give_up(&lease) => {}
                    () = self.shared.cut_off.given() => {}
                }
            }
            Claimed::Elsewhere => {
                let Attempt { _counted, route, store, claim, outgoing, in_flight, .. } = *self;
                // From here on it only waits; it should not hold what an attempt needs.
                drop((outgoing, in_flight));
                caller.deliver(Delivery::Elsewhere(lead.seat()));
                let waiting = claim::elsewhere(&route, &store, &mut lead, &claim.fingerprint);
                let conclusion = Box::pin(waiting).await;
                conclude(&mut lead, &mut caller, Arc::new(conclusion));
            }
        }
    }

    async fn execute(self: Box<Self>, lease: Box<Lease>, first_form: Option<bool>, mut lead: Lead, mut caller: Caller) {
        let Attempt { _counted, route, shared, mut outgoing, identity, key, in_flight, .. } = *self;
        lead.granted();
        shared.recent.note(&identity, &lease.claim().fingerprint, &route.metrics);
        if let Some(quoted) = first_form {
            headers::keep_key_form(&route.config, &mut outgoing.fields, &key, quoted);
        }
        let ending = hold(&route, &lease, outgoing, &mut caller, &shared.cut_off).await;
        let Ending { conclusion, unfinished, hold } = ending;
        if caller.left() && matches!(*conclusion, Conclusion::Answered(_)) {
            route.metrics.late_answers.inc();
        }
        drop(in_flight);
        if hold {
            lead.conclude(&conclusion);
            caller.deliver(Delivery::Concluded(conclusion));
        } else {
            conclude(&mut lead, &mut caller, conclusion);
        }
        if let Some(unfinished) = unfinished {
            tokio::select! {
                () = Box::pin(record::finish(&route, &lease, unfinished)) => {}
                never = lease.keep_alive() => match never {},
                () = shared.cut_off.given() => {
                    tracing::error!(record = %lease.claim().id, "stopped before the outcome could be recorded");
                }
            }
        }
    }
}

/// Forwards and records, while the lease is kept alive; until the stop cuts it off, and even if it panics.
async fn hold(route: &Route, lease: &Lease, outgoing: Outgoing, caller: &mut Caller, cut_off: &Signal) -> Ending {
    let work = std::pin::pin!(async {
        let outcome = forward::forward(route, lease, outgoing, caller).await;
        record::record(route, lease, outcome).await
    });
    let worked = tokio::select! {
        biased;
        worked = catch_panic(work) => Some(worked),
        never = lease.keep_alive() => match never {},
        () = cut_off.given() => None,
    };
    match worked {
        Some(Some(ending)) => ending,
        Some(None) => {
            tracing::error!(record = %lease.claim().id, "an attempt panicked");
            Box::pin(record::record(route, lease, Outcome::Unknown(Reason::Panic, None))).await
        }
        None => Box::pin(record::drained(route, lease)).await,
    }
}

/// Off the table first, so that a later request asks the store; then everyone is told.
fn conclude(lead: &mut Lead, caller: &mut Caller, conclusion: Arc<Conclusion>) {
    lead.leave();
    lead.conclude(&conclusion);
    caller.deliver(Delivery::Concluded(conclusion));
}

/// The future's output, or `None` if it panicked. The panic itself is printed by the process's hook.
async fn catch_panic<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| match std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Some),
        Err(_) => std::task::Poll::Ready(None),
    })
    .await
}

/// A request in flight, counted against the limit and in the gauge.
#[derive(Debug)]
struct InFlight {
    _share: Share,
    _counted: Counted,
}

/// Adds one to a gauge until it is dropped.
#[derive(Debug)]
struct Counted(prometheus_client::metrics::gauge::Gauge);

impl Counted {
    fn new(gauge: &prometheus_client::metrics::gauge::Gauge) -> Counted {
        gauge.inc();
        Counted(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn key_from_head(route: &Route, head: &request::Parts) -> Result<Found, Problem> {
    key::check_connection(&route.config, head).map_err(|fault| key_problem(&fault))?;
    key::from_head(&route.config, head).map_err(|fault| key_problem(&fault))
}

fn key_problem(fault: &KeyFault) -> Problem {
    let kind = match fault {
        KeyFault::Invalid(_) => Kind::KeyInvalid,
        KeyFault::Body { .. } => Kind::BodyInvalid,
    };
    Problem::new(kind, fault.to_string())
}

fn key_missing() -> Problem {
    Problem::new(
        Kind::KeyMissing,
        "This route protects the request against running twice and needs a key for it. Send one that stays the same \
         over all retries of this operation.",
    )
}

fn overloaded(of_what: &str) -> Problem {
    Problem::new(Kind::Overloaded, format!("Too many {of_what}; nothing was claimed or forwarded."))
}
