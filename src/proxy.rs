//! The life of a request: route, key, fingerprint, claim, forward, record, respond.
//!
//! `Core::steps` is that life on one screen; each step is a file of its name. What it needs stands in `core`. From the
//! claim on, the work runs in a counted task that a disconnecting client cannot cancel (`Attempt::run`); the client only
//! listens to it (`keyed`).

use std::sync::Arc;

use http::header::{CONTENT_ENCODING, EXPECT};
use http::{Method, Request, Response, request};
use hyper::body::Incoming;
use tokio::time::Instant;

pub mod route;

pub mod host;
pub mod key;

pub mod fingerprint;

mod attempt;
pub mod claim;
pub mod flights;
pub mod join;
mod keyed;
pub mod lease;
pub mod recent;

pub mod connect;
pub mod forward;
pub mod hops;
pub mod outcome;
pub mod pass;
pub mod tunnel;
pub mod underscores;
pub mod unread;

pub mod record;

pub mod respond;

pub mod cors;

pub mod body;
pub mod budget;
mod core;
pub mod error;
mod guard;
pub mod headers;
pub mod in_flight;
pub mod notes;
pub mod outage;
mod shared;

use self::body::inside::{self, Decoded};
use self::body::{Body, Patience};
use self::budget::Counted;
use self::claim::Looked;
use self::core::Core;
pub use self::core::{Proxy, RouteFault, UnusableRoute, reload};
use self::cors::Cors;
use self::error::Problem;
use self::fingerprint::BodyAsRead;
use self::flights::Conclusion;
pub use self::guard::{GuardFault, SecretFault, check_guard};
pub use self::headers::{Client, Peer};
use self::in_flight::InFlight;
pub use self::key::ClientName;
use self::key::{Found, Key};
use self::keyed::Keyed;
use self::notes::{Diary, Notes};
use self::pass::{Passage, Plain};
use self::respond::Answer;
use self::route::{ASTERISK, Route, egress};
pub use self::shared::Shared;
use crate::config;
use crate::metrics::RequestResult;

impl Core {
    /// Answers one request. Taken apart before the future begins, which would keep room for it twice.
    fn handle(
        self: Arc<Core>,
        request: Request<Incoming>,
        client: Client,
    ) -> impl Future<Output = Response<Body>> + use<> {
        let started = Instant::now();
        let (mut head, body) = request.into_parts();
        let notes = Notes::begin(&self.shared.tracer, self.log_requests, &head, client.peer);
        let mut diary = Diary::open(notes, self.log_requests, started);
        async move {
            if head.method == Method::CONNECT {
                let answer = Box::pin(self.connect(&mut head, client.peer, diary.notes())).await;
                diary.answered(&answer.response, answer.result);
                return answer.response;
            }
            let route = match self.routes.find(&head) {
                Ok(route) => route.clone(),
                Err(problem) => {
                    body::discard(&head, body);
                    self.shared.metrics.answered_without_route(RequestResult::NoRoute);
                    // Behind which host no server is, this one can be asked for itself.
                    let response = match head.uri.path() {
                        ASTERISK => hops::last_hop(&head.method),
                        _ => problem.into_response(),
                    };
                    diary.taken_by_none(route::requested_host(&head));
                    diary.answered(&response, RequestResult::NoRoute);
                    return response;
                }
            };
            diary.taken_by(&route.config.name);
            let cors = Cors::of(&route.config, &head);
            let answer = match egress::destination(&route, &head) {
                Ok(route) => self.steps(&route, &mut head, body, client, diary.notes()).await,
                Err(problem) => {
                    body::discard(&head, body);
                    Err(problem)
                }
            };
            let mut answer = answer.unwrap_or_else(Answer::problem);
            if let Some(cors) = cors {
                cors.mark(&mut answer);
            }
            route.metrics.answered(answer.result, started.elapsed());
            diary.answered(&answer.response, answer.result);
            answer.response
        }
    }

    /// Answers a `CONNECT`, which no route takes.
    async fn connect(&self, head: &mut request::Parts, peer: Peer, notes: &Notes) -> Answer {
        let connecting = async {
            body::check_expectation(head)?;
            let total = self.shared.in_flight.take(1).ok_or_else(|| Problem::overloaded("requests in flight"))?;
            let held: body::Held = Box::new((total, Counted::new(self.shared.metrics.tunnels())));
            let (shared, idle) = (&self.shared, self.idle_timeout);
            let passage = Passage { peer, interim: None, held, idle, shared, notes };
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
        client: Client,
        notes: &Notes,
    ) -> Result<Answer, Problem> {
        let checked = underscores::check(route, head, &self.shared).and_then(|()| body::check_expectation(head));
        let found = match checked.and_then(|()| key_from_head(&route.config, head)) {
            Ok(Found::Absent) if !route.guard.verifies_method(&route.config, &head.method) => {
                return self.pass(route, head, Plain::Coming(body), client, notes).await;
            }
            Ok(found) => found,
            Err(problem) => {
                body::discard(head, body);
                return Err(problem);
            }
        };
        // Boxed: a plain request, whose way ends here, should not have room for this.
        Box::pin(self.protect(route, head, found, body, client, notes)).await
    }

    /// The life of a request that may have a key, or must show who sent it.
    async fn protect(
        &self,
        route: &Arc<Route>,
        head: &mut request::Parts,
        found: Found,
        body: Incoming,
        client: Client,
        notes: &Notes,
    ) -> Result<Answer, Problem> {
        let peer = client.peer;
        if let Found::Key(key) = &found
            && head.headers.contains_key(EXPECT)
            && let Some(answer) = Box::pin(self.replay_without_body(route, head, key, peer, notes)).await
        {
            body::discard(head, body);
            return Ok(answer);
        }
        let max = route.config.max_request_body;
        let patience = Patience { within: self.body_timeout, stopping: &self.shared.stopping, alarms: &self.bodies };
        let body = body::read(head, body, max, patience, &self.shared.buffered).await?;
        route.guard.verify(head, peer, &body.bytes)?;
        let imprinter = &self.imprinters[route.index];
        let decoded = if self.looks_inside(route, head, &found) {
            Box::pin(inside::decode(&head.headers, &body.bytes, max, &self.shared.buffered)).await?
        } else {
            Decoded::AsItCame
        };
        let inside = decoded.of(&body.bytes);
        let print = imprinter.policy.print(head, BodyAsRead::Whole(&body.bytes, inside), peer.tls)?;
        let key = match found {
            Found::Key(key) => Some(key),
            _ => key::from_body(&route.config, head, inside, &print.fingerprint)?,
        };
        drop(decoded);
        let Some(key) = key else {
            if route.config.key_required {
                return Err(Problem::key_missing());
            }
            return Box::pin(self.pass(route, head, Plain::Read(body.bytes), client, notes)).await;
        };
        if tunnel::asked_for(head).is_some() {
            return Err(Problem::key_with_upgrade());
        }
        let identity = key::identify(&route.config, head, peer.tls, &key)?;
        notes.about(&identity.id);
        let imprint = imprinter.imprint(head, print, &identity.id);
        let preferred_wait = headers::preferred_wait(&head.headers).filter(|wait| *wait < route.config.wait_timeout);
        // Made before the head goes its way: a waiting duplicate lets go of it, and an owner sends it.
        let inquiry = route.guard.inquiry(&route.config, head, peer, &identity.id);
        let body = Some(body);
        // Lent to the rest of the way: a future keeps room twice for what it is given.
        let interim = client.interim;
        let mut keyed =
            Keyed { core: self, route, head, peer, interim, preferred_wait, body, imprint, key, identity, notes };
        let answer = keyed.answer().await?;
        Ok(route.guard.allowed(inquiry, answer, notes).await)
    }

    /// Whether what is under a `Content-Encoding` counts: for the key, or for what the request is.
    fn looks_inside(&self, route: &Route, head: &request::Parts, found: &Found) -> bool {
        let counts = self.imprinters[route.index].policy.reads_formats()
            || (*found == Found::NeedsBody && key::reads_body(&route.config));
        counts && head.headers.contains_key(CONTENT_ENCODING)
    }

    /// The replay for a client that asks whether to send its body (RFC 9110 section 10.1.1), where that does not count.
    /// Only such requests are looked up ahead of their body: it is one more look for those that are no repeats.
    async fn replay_without_body(
        &self,
        route: &Route,
        head: &request::Parts,
        key: &Key,
        peer: Peer,
        notes: &Notes,
    ) -> Option<Answer> {
        let imprinter = &self.imprinters[route.index];
        // A signature is one over the body.
        if !imprinter.policy.ignores_body() || route.guard.verifies() || tunnel::asked_for(head).is_some() {
            return None;
        }
        let print = imprinter.policy.print(head, BodyAsRead::Unread, peer.tls).ok()?;
        let id = key::identify(&route.config, head, peer.tls, key).ok()?.id;
        let imprint = imprinter.imprint(head, print, &id);
        // Any other answer may be a wrong one as long as the body is not there to be compared.
        match claim::look(route, &self.store, &id, &imprint, notes).await {
            Looked::Concluded(Conclusion::Replay { replay, waited }) => {
                notes.about(&id);
                notes.answered_by(&replay.response);
                let inquiry = route.guard.inquiry(&route.config, head, peer, &id);
                let answer = respond::first(Arc::new(Conclusion::Replay { replay, waited }));
                Some(route.guard.allowed(inquiry, answer, notes).await)
            }
            _ => None,
        }
    }

    /// Passes a request through without protection.
    async fn pass(
        &self,
        route: &Route,
        head: &mut request::Parts,
        body: Plain,
        client: Client,
        notes: &Notes,
    ) -> Result<Answer, Problem> {
        unread::note(&self.shared.unread, &route.config.name, head.headers.keys(), &route.metrics);
        if let Some(response) = hops::count(head) {
            if let Plain::Coming(body) = body {
                body::discard(head, body);
            }
            return Ok(Answer::new(response, RequestResult::Unprotected));
        }
        let in_flight = match InFlight::enter(&self.shared, route) {
            Ok(in_flight) => in_flight,
            Err(problem) => {
                if let Plain::Coming(body) = body {
                    body::discard(head, body);
                }
                return Err(problem);
            }
        };
        // Boxed: a keyed request, and each that waits, should not have room for this.
        let Client { peer, interim } = client;
        let (shared, idle) = (&self.shared, self.idle_timeout);
        let passage = Passage { peer, interim, held: in_flight, idle, shared, notes };
        Box::pin(pass::pass(route, head, body, passage)).await
    }
}

/// The key as far as the head gives it. Absent: the request is none that this route protects.
fn key_from_head(route: &config::Route, head: &request::Parts) -> Result<Found, Problem> {
    key::check_connection(route, head)?;
    if !route.methods.contains(&head.method) {
        let other_case = |method: &&Method| method.as_str().eq_ignore_ascii_case(head.method.as_str());
        let meant = route.methods.iter().find(other_case);
        return meant.map_or(Ok(Found::Absent), |meant| Err(Problem::method_in_other_case(meant)));
    }
    match key::from_head(route, head)? {
        Found::Absent if route.key_required => Err(Problem::key_missing()),
        found => Ok(found),
    }
}
