//! The life of a request: route, key, fingerprint, claim, forward, record, respond.
//!
//! `Core::steps` is that life on one screen; each step is a file of its name. From the claim on, the work runs in a
//! counted task that a disconnecting client cannot cancel (`Attempt::run`); the client only listens to it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{Method, Request, Response, request};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub mod route;

pub mod key;

pub mod fingerprint;

mod attempt;
pub mod claim;
pub mod flights;
pub mod join;
pub mod lease;
pub mod recent;

pub mod connect;
pub mod forward;
pub mod pass;
pub mod tunnel;

pub mod record;

pub mod respond;

pub mod body;
pub mod error;
pub mod headers;
pub mod notes;

use self::attempt::Attempt;
use self::body::{Body, Budget, Patience, Share};
use self::claim::Looked;
use self::error::{Kind, Problem};
use self::fingerprint::Policy;
use self::flights::{Conclusion, Flights, Lead, Seat, Turn};
use self::forward::{Caller, Delivery, Outgoing};
pub use self::headers::Peer;
use self::join::Joined;
pub use self::key::ClientName;
use self::key::{Found, Identity, Key, KeyFault};
use self::notes::{Diary, Notes};
use self::pass::{Passage, Plain};
use self::recent::Recent;
use self::respond::Answer;
use self::route::egress::{self, Destinations};
use self::route::{Route, Routes};
use crate::alarm::Alarms;
use crate::config::{Config, Egress, Limits, OnDuplicate};
use crate::metrics::{Metrics, RequestResult};
use crate::record::{Fingerprint, Reason};
use crate::shutdown::{Signal, Tasks};
use crate::store::Store;
use crate::trace::Tracer;
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
    tracer: Tracer,
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
            in_flight: Budget::new(limits.in_flight),
            waiting: Budget::new(limits.waiting),
            buffered: Budget::new(limits.buffered).shown_by(metrics.buffered_bytes()),
            metrics: metrics.clone(),
            tracer,
            tasks: Tasks::default(),
            stopping: Signal::new(),
            cut_off: Signal::new(),
        }
    }

    /// Changes the budgets' sizes. What is taken already stays taken.
    fn set_limits(&self, limits: &Limits) {
        self.in_flight.set_limit(limits.in_flight);
        self.waiting.set_limit(limits.waiting);
        self.buffered.set_limit(limits.buffered);
    }
}

/// The proxy of one core. Clones are the same proxy.
///
/// Its settings can be replaced while it serves ([`reload`]): a request takes one look at them and keeps what it saw, so
/// that a running attempt ends under the settings it began with.
#[derive(Clone)]
pub struct Proxy(Arc<ArcSwap<Core>>);

/// One state of the settings, with what it needs on this core.
struct Core {
    routes: Routes,
    egress: Arc<Egress>,
    /// How fingerprints are made, by the route's index.
    policies: Vec<Policy>,
    store: Arc<dyn Store>,
    shared: Shared,
    body_timeout: Duration,
    /// What bounds the waits for clients' bodies.
    bodies: Alarms,
    /// Of clients' connections.
    idle_timeout: Duration,
    log_requests: bool,
}

/// A route's upstream cannot be prepared: the name of the route, and what is wrong.
pub type UnusableRoute = (String, TlsSetupError);

/// Replaces the settings of the proxies of all cores: of all, or on an error of none.
///
/// A route whose upstream stays the same keeps its connections, unless it has certificates of its own to trust, which
/// are read anew. What the cores share keeps its counts under the new limits.
///
/// # Errors
/// The name of a route, if the certificates for its `https` upstream cannot be read.
pub fn reload(cores: &[Proxy], config: &Config) -> Result<(), UnusableRoute> {
    let mut next: Vec<Arc<Core>> = Vec::with_capacity(cores.len());
    for Proxy(core) in cores {
        let running = core.load_full();
        let made = match next.first() {
            None => running.with(config)?,
            Some(first) => first.for_another_core(running.store.clone(), Some(&running.routes)),
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
    /// The name of a route, if the certificates for its `https` upstream cannot be read.
    pub fn new(config: &Config, shared: &Shared, store: Arc<dyn Store>) -> Result<Proxy, UnusableRoute> {
        Core::new(config, shared, store, None).map(Proxy::of)
    }

    /// The proxy of a further core: with connections of its own, and its own handle on the store.
    pub fn for_another_core(&self) -> Proxy {
        let core = self.0.load_full();
        Proxy::of(core.for_another_core(core.store.for_core(), None))
    }

    fn of(core: Core) -> Proxy {
        Proxy(Arc::new(ArcSwap::from_pointee(core)))
    }

    /// Answers one request, under the settings as they are now.
    pub fn handle(&self, request: Request<Incoming>, peer: Peer) -> impl Future<Output = Response<Body>> + use<> {
        // Not a mere borrow: few of those are free of locks at a time, and this one lasts as long as the request.
        self.0.load_full().handle(request, peer)
    }
}

impl Core {
    fn new(
        config: &Config,
        shared: &Shared,
        store: Arc<dyn Store>,
        running: Option<&Routes>,
    ) -> Result<Core, UnusableRoute> {
        let routes = config.routes.iter().enumerate().map(|(index, config)| {
            let metrics = shared.metrics.route(&config.name);
            let running = running.and_then(|routes| routes.named(&config.name));
            let pool = match running.and_then(|route| route.reusable_pool(config)) {
                Some(pool) => pool,
                None => Pool::new(&config.upstream, config.connect_timeout, config.idle_timeout, &metrics)
                    .map_err(|error| (config.name.to_string(), error))?,
            };
            // Of the same name, so that what runs goes on counting. Its size is set once all is well.
            let in_flight = match running {
                Some(route) => route.in_flight.clone(),
                None => Budget::new(config.max_in_flight.unwrap_or(usize::MAX)),
            };
            let destinations = Destinations::default();
            let alarms = Alarms::default();
            let (config, buffered) = (config.clone(), shared.buffered.clone());
            Ok(Arc::new(Route { pool, index, config, in_flight, buffered, metrics, destinations, alarms }))
        });
        Ok(Core {
            routes: Routes::new(routes.collect::<Result<_, _>>()?),
            egress: config.egress.clone(),
            policies: config.routes.iter().map(|route| Policy::new(&route.fingerprint)).collect(),
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
    fn for_another_core(&self, store: Arc<dyn Store>, running: Option<&Routes>) -> Core {
        Core {
            routes: self.routes.for_another_core(running),
            egress: self.egress.clone(),
            policies: self.policies.clone(),
            store,
            shared: self.shared.clone(),
            body_timeout: self.body_timeout,
            bodies: Alarms::default(),
            idle_timeout: self.idle_timeout,
            log_requests: self.log_requests,
        }
    }

    /// Answers one request. Taken apart before the future begins, which would keep room for it twice.
    fn handle(self: Arc<Core>, request: Request<Incoming>, peer: Peer) -> impl Future<Output = Response<Body>> + use<> {
        let started = Instant::now();
        let (mut head, body) = request.into_parts();
        let notes = Notes::begin(&self.shared.tracer, self.log_requests, &head, peer);
        let mut diary = Diary::open(notes, self.log_requests, started);
        async move {
            if head.method == Method::CONNECT {
                let answer = Box::pin(self.connect(&mut head, peer, diary.notes())).await;
                diary.answered(&answer.response, answer.result);
                return answer.response;
            }
            let route = match self.routes.find(&head) {
                Ok(route) => route.clone(),
                Err(problem) => {
                    body::discard(&head, body);
                    self.shared.metrics.answered_without_route(RequestResult::NoRoute);
                    let response = problem.into_response();
                    diary.answered(&response, RequestResult::NoRoute);
                    return response;
                }
            };
            diary.taken_by(&route.config.name);
            let answer = match egress::destination(&route, &head) {
                Ok(route) => self.steps(&route, &mut head, body, peer, diary.notes()).await,
                Err(problem) => {
                    body::discard(&head, body);
                    Err(problem)
                }
            };
            let answer = answer.unwrap_or_else(Answer::problem);
            route.metrics.answered(answer.result, started.elapsed());
            diary.answered(&answer.response, answer.result);
            answer.response
        }
    }

    /// Answers a `CONNECT`, which no route takes.
    async fn connect(&self, head: &mut request::Parts, peer: Peer, notes: &Notes) -> Answer {
        let connecting = async {
            let total = self.shared.in_flight.take(1).ok_or_else(|| overloaded("requests in flight"))?;
            let held: body::Held = Box::new((total, Counted::new(self.shared.metrics.tunnels())));
            let passage = Passage { peer, held, idle: self.idle_timeout, shared: &self.shared, notes };
            connect::connect(head, &self.egress.tunnels, passage).await
        };
        let answer = connecting.await.unwrap_or_else(Answer::problem);
        self.shared.metrics.answered_without_route(answer.result);
        answer
    }

    /// The life of a request, after its route was found.
    async fn steps(
        &self,
        route: &Arc<Route>,
        head: &mut request::Parts,
        body: Incoming,
        peer: Peer,
        notes: &Notes,
    ) -> Result<Answer, Problem> {
        let found = match key_from_head(route, head) {
            Ok(Found::Absent) => return self.pass(route, head, Plain::Coming(body), peer, notes).await,
            Ok(found) => found,
            Err(problem) => {
                body::discard(head, body);
                return Err(problem);
            }
        };
        // Boxed: a plain request, whose way ends here, should not have room for this.
        Box::pin(self.protect(route, head, found, body, peer, notes)).await
    }

    /// The life of a request that may have a key.
    async fn protect(
        &self,
        route: &Arc<Route>,
        head: &mut request::Parts,
        found: Found,
        body: Incoming,
        peer: Peer,
        notes: &Notes,
    ) -> Result<Answer, Problem> {
        if let Found::Key(key) = &found
            && let Some(answer) = self.replay_without_body(route, head, key, notes).await
        {
            body::discard(head, body);
            return Ok(answer);
        }
        let max = route.config.max_request_body;
        let patience = Patience { within: self.body_timeout, stopping: &self.shared.stopping, alarms: &self.bodies };
        let body = body::read(head, body, max, patience, &self.shared.buffered).await?;
        let fingerprint = self.policies[route.index]
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
            return self.pass(route, head, Plain::Read(body.bytes), peer, notes).await;
        };
        if tunnel::asked_for(head).is_some() {
            return Err(key_with_upgrade());
        }
        let identity = key::identify(&route.config, head, &key);
        notes.about(&identity.id);
        let preferred_wait = headers::preferred_wait(&head.headers).filter(|wait| *wait < route.config.wait_timeout);
        let keyed = Keyed { route, head, peer, preferred_wait, body: Some(body), fingerprint, key, identity, notes };
        self.keyed(keyed).await
    }

    /// The replay for a client that asks whether to send its body (RFC 9110 section 10.1.1), where that does not count.
    /// Only such requests are looked up ahead of their body: it is one more look for those that are no repeats.
    async fn replay_without_body(
        &self,
        route: &Route,
        head: &request::Parts,
        key: &Key,
        notes: &Notes,
    ) -> Option<Answer> {
        let policy = &self.policies[route.index];
        if !head.headers.contains_key(EXPECT) || !policy.ignores_body() || tunnel::asked_for(head).is_some() {
            return None;
        }
        let fingerprint = policy.fingerprint(head, &[]).ok()?;
        let id = key::identify(&route.config, head, key).id;
        match claim::look(route, &self.store, &id, &fingerprint, notes).await {
            Looked::Concluded(Conclusion::Replay(replay, waited)) => {
                notes.about(&id);
                notes.answered_by(&replay.response);
                Some(respond::first(Arc::new(Conclusion::Replay(replay, waited))))
            }
            _ => None,
        }
    }

    /// Leads a flight for the key, or joins the one that is on.
    async fn keyed(&self, mut keyed: Keyed<'_>) -> Result<Answer, Problem> {
        loop {
            let seat = match self.shared.flights.enter(&keyed.identity.id, &keyed.fingerprint) {
                Turn::Lead(lead) => return self.lead(keyed, lead).await,
                Turn::Join(seat) => seat,
            };
            if !seat.fingerprint().conflicts_with(&keyed.fingerprint) {
                keyed.let_go();
            }
            match self.join(&keyed, seat).await {
                Joined::AskStore(false) => {}
                Joined::AskStore(true) => {
                    let Keyed { route, identity, fingerprint, .. } = &keyed;
                    let conclusion = claim::ask(route, &self.store, &identity.id, fingerprint, keyed.notes).await;
                    return Ok(keyed.first(Arc::new(conclusion)));
                }
                joined => return Ok(keyed.joined(joined)),
            }
        }
    }

    /// Runs the attempt as a counted task, and listens to it.
    async fn lead(&self, mut keyed: Keyed<'_>, lead: Lead) -> Result<Answer, Problem> {
        let (in_flight, body) = match (self.in_flight(keyed.route), keyed.body.take()) {
            (Ok(in_flight), Some(body)) => (in_flight, body),
            (Err(problem), _) => return Ok(self.without_room(&keyed, lead, problem).await),
            // It could only join when it let go of its body, and has been asked to lead after all.
            (Ok(_), None) => {
                let problem = Problem::in_progress(&keyed.identity.id);
                return Ok(self.without_room(&keyed, lead, problem).await);
            }
        };
        let (sender, receiver) = oneshot::channel();
        let witness = lead.witness();
        // Boxed, as is the work itself: starting and ending a task moves it several times.
        let attempt = Box::new(Attempt {
            _counted: self.shared.tasks.enter(),
            route: keyed.route.clone(),
            store: self.store.clone(),
            shared: self.shared.clone(),
            claim: claim::attempt(&keyed.route.config, &keyed.identity.id, &keyed.fingerprint, keyed.key.is_quoted()),
            outgoing: keyed.outgoing(body),
            identity: keyed.identity.clone(),
            key: keyed.key.clone(),
            in_flight,
            notes: keyed.notes.clone(),
        });
        tokio::spawn(Box::pin(attempt.run(lead, Caller::new(sender))));
        let listening = keyed.route.alarms.bound(Instant::now() + keyed.route.config.timeout, pin!(receiver)).await;
        match listening {
            Some(Ok(Delivery::Concluded(conclusion))) => Ok(keyed.first(conclusion)),
            Some(Ok(Delivery::Flowing(response, result))) => Ok(Answer::new(*response, result)),
            Some(Ok(Delivery::Elsewhere(seat))) => {
                keyed.let_go();
                let joined = self.join(&keyed, seat).await;
                Ok(keyed.joined(joined))
            }
            Some(Err(_)) => Err(Problem::doubted(&keyed.identity.id, Reason::Panic, false)),
            // The store has not even answered. If it grants the claim now, the attempt hands it back.
            None if witness.call_off() => Err(claim::unavailable(&keyed.identity.id)),
            None => {
                witness.tell_unknown();
                Err(Problem::still_listening(&keyed.identity.id))
            }
        }
    }

    /// Answers a request that may not be forwarded now. Over the limit nothing is claimed; what is done already is
    /// replayed all the same.
    async fn without_room(&self, keyed: &Keyed<'_>, mut lead: Lead, problem: Problem) -> Answer {
        let found = claim::look(keyed.route, &self.store, &keyed.identity.id, &keyed.fingerprint, keyed.notes).await;
        let conclusion = Arc::new(match found {
            Looked::Absent => problem.into(),
            Looked::Running => Problem::in_progress(&keyed.identity.id).into(),
            Looked::Concluded(conclusion) => conclusion,
        });
        lead.leave();
        lead.conclude(&conclusion);
        keyed.first(conclusion)
    }

    async fn join(&self, keyed: &Keyed<'_>, seat: Seat) -> Joined {
        let route = keyed.route;
        let room = || {
            let share = self.shared.waiting.take(1)?;
            Some((share, Counted::new(&route.metrics.waiting)))
        };
        let patience = keyed.preferred_wait.unwrap_or(route.config.wait_timeout);
        join::join(route, &keyed.identity.id, &keyed.fingerprint, seat, patience, room).await
    }

    /// Passes a request through without protection.
    async fn pass(
        &self,
        route: &Route,
        head: &mut request::Parts,
        body: Plain,
        peer: Peer,
        notes: &Notes,
    ) -> Result<Answer, Problem> {
        let in_flight = match self.in_flight(route) {
            Ok(in_flight) => in_flight,
            Err(problem) => {
                if let Plain::Coming(body) = body {
                    body::discard(head, body);
                }
                return Err(problem);
            }
        };
        // Boxed: a keyed request, and each that waits, should not have room for this.
        let passage = Passage { peer, held: in_flight, idle: self.idle_timeout, shared: &self.shared, notes };
        Box::pin(pass::pass(route, head, body, passage)).await
    }

    fn in_flight(&self, route: &Route) -> Result<InFlight, Problem> {
        let total = self.shared.in_flight.take(1).ok_or_else(|| overloaded("requests in flight"))?;
        // Without a limit nothing is counted: the cores would pass one number back and forth for nothing.
        let own = match route.config.max_in_flight {
            Some(_) => Some(route.in_flight.take(1).ok_or_else(|| overloaded("requests in flight on this route"))?),
            None => None,
        };
        Ok(InFlight { _total: total, _own: own, _counted: Counted::new(&route.metrics.in_flight) })
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("routes", &self.0.load().routes).finish_non_exhaustive()
    }
}

/// A keyed request, read whole.
struct Keyed<'a> {
    route: &'a Arc<Route>,
    head: &'a mut request::Parts,
    peer: Peer,
    /// How long the client wants to wait as a duplicate, if that is less than the route would let it.
    preferred_wait: Option<Duration>,
    /// Gone once the request can only join.
    body: Option<body::Whole>,
    fingerprint: Fingerprint,
    key: Key,
    identity: Identity,
    notes: &'a Notes,
}

impl Keyed<'_> {
    /// Lets go of the request itself, which can only join now. Its parts share the connection's first read buffer; ten
    /// thousand waiting ones should not hold theirs.
    fn let_go(&mut self) {
        self.body = None;
        self.head.headers = http::HeaderMap::new();
        self.head.uri = http::Uri::default();
    }

    /// The request as it goes out. Its fields are taken out of its head.
    fn outgoing(&mut self, body: body::Whole) -> Outgoing {
        let route = &self.route.config;
        let key = Some((&self.key, self.key.is_quoted()));
        // A client that gave a length sees it reach the upstream, be it 0.
        let says_length = self.head.headers.contains_key(CONTENT_LENGTH) || !body.bytes.is_empty();
        let mut fields = headers::to_upstream(route, self.head, self.peer, key);
        if says_length {
            fields.insert(CONTENT_LENGTH, body.bytes.len().into());
        }
        Outgoing {
            method: self.head.method.clone(),
            target: route::target(route, self.head),
            fields,
            body: body.bytes,
            share: body.share,
        }
    }

    fn first(&self, conclusion: Arc<Conclusion>) -> Answer {
        if let Conclusion::Replay(replay, _) = &*conclusion {
            self.notes.answered_by(&replay.response);
        }
        let answer = respond::first(conclusion);
        let duplicate = matches!(answer.result, RequestResult::Replayed | RequestResult::InProgress);
        let waits = self.route.config.on_duplicate == OnDuplicate::Wait;
        if duplicate && waits { answer.with_preference(self.preferred_wait) } else { answer }
    }

    fn joined(&self, joined: Joined) -> Answer {
        let answer = match joined {
            Joined::Concluded(conclusion) => {
                if let Some(response) = conclusion.recorded() {
                    self.notes.answered_by(response);
                }
                respond::joined(&conclusion)
            }
            Joined::Refused(problem) => Answer::problem(problem),
            // A seat of its own flight: the store has just said that another process is at it.
            Joined::AskStore(_) => Answer::problem(Problem::in_progress(&self.identity.id)),
        };
        let waits = self.route.config.on_duplicate == OnDuplicate::Wait;
        if waits { answer.with_preference(self.preferred_wait) } else { answer }
    }
}

/// A request in flight, counted against the limits and in the gauge.
#[derive(Debug)]
struct InFlight {
    _total: Share,
    _own: Option<Share>,
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

/// The key as far as the head gives it. Absent: the request is none that this route protects.
fn key_from_head(route: &Route, head: &request::Parts) -> Result<Found, Problem> {
    key::check_connection(&route.config, head).map_err(|fault| key_problem(&fault))?;
    if !route.config.methods.contains(&head.method) {
        let meant =
            route.config.methods.iter().find(|method| method.as_str().eq_ignore_ascii_case(head.method.as_str()));
        return meant.map_or(Ok(Found::Absent), |meant| Err(method_in_other_case(meant)));
    }
    match key::from_head(&route.config, head).map_err(|fault| key_problem(&fault))? {
        Found::Absent if route.config.key_required => Err(key_missing()),
        found => Ok(found),
    }
}

fn key_problem(fault: &KeyFault) -> Problem {
    let kind = match fault {
        KeyFault::Invalid(_) => Kind::KeyInvalid,
        KeyFault::Body { .. } => Kind::BodyInvalid,
    };
    Problem::new(kind, fault.to_string())
}

/// It is another method (RFC 9110 section 9.1), but there are servers that take it for the protected one.
fn method_in_other_case(meant: &Method) -> Problem {
    Problem::new(
        Kind::MethodInvalid,
        format!("Methods are case-sensitive: write {meant}. Spelled otherwise the request would pass unprotected."),
    )
}

/// The key's fault, and not the upgrade's: without a key the same request is passed on.
fn key_with_upgrade() -> Problem {
    Problem::new(
        Kind::KeyInvalid,
        "A request that asks for another protocol (Upgrade) cannot have a key: a switched connection has no response that \
         could be recorded. Leave out one of the two; nothing was forwarded.",
    )
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
