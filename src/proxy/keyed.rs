//! The keyed request: it leads the flight of its key, as the caller of an attempt, or joins the one that is on.
//!
//! The second half of [`super`]'s one screen. The attempt itself is [`super::attempt`]'s; this is only who listens to it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::request;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::body;
use super::budget::Counted;
use super::claim::{self, Looked};
use super::core::Core;
use super::error::Problem;
use super::flights::{Conclusion, Lead, Seat, Turn};
use super::forward::{Caller, Delivery, Original};
use super::headers::Peer;
use super::in_flight::InFlight;
use super::join::{self, Joined};
use super::key::{Identity, Key};
use super::notes::Notes;
use super::respond::{self, Answer};
use super::route::Route;
use crate::config::{OnDuplicate, OnUnknown};
use crate::interim::Interim;
use crate::metrics::RequestResult;
use crate::record::{Imprint, Reason};

/// A keyed request, read whole.
pub(super) struct Keyed<'a> {
    pub(super) core: &'a Core,
    pub(super) route: &'a Arc<Route>,
    pub(super) head: &'a mut request::Parts,
    pub(super) peer: Peer,
    /// How long the client wants to wait as a duplicate, if that is less than the route would let it.
    pub(super) preferred_wait: Option<Duration>,
    /// Where interim answers to its attempt go.
    pub(super) interim: Option<Interim>,
    /// Gone once the request can only join.
    pub(super) body: Option<body::Whole>,
    pub(super) imprint: Imprint,
    pub(super) key: Key,
    pub(super) identity: Identity,
    pub(super) notes: &'a Notes,
}

impl Keyed<'_> {
    /// Leads a flight for the key, or joins the one that is on.
    ///
    /// Rare ways are boxed, here and on: the future of each keyed request would be larger by them.
    pub(super) async fn answer(&mut self) -> Result<Answer, Problem> {
        loop {
            let seat = match self.core.shared.flights.enter(&self.identity.id, &self.imprint) {
                Turn::Lead(lead) => return self.lead(lead).await,
                Turn::Join(seat) => seat,
            };
            // One that differs in anything may have to go its own way after all.
            if *seat.imprint() == self.imprint {
                self.let_go();
            }
            match Box::pin(self.join(seat)).await {
                Joined::ByItself => {}
                Joined::AskStore => {
                    let Keyed { route, identity, imprint, .. } = self;
                    let asking = claim::ask(route, &self.core.store, &identity.id, imprint, self.notes);
                    let conclusion = Box::pin(asking).await;
                    return Ok(self.first(Arc::new(conclusion)));
                }
                joined => return Ok(self.joined(joined)),
            }
        }
    }

    /// Runs the attempt as a counted task, and listens to it.
    async fn lead(&mut self, lead: Lead) -> Result<Answer, Problem> {
        let in_flight = match InFlight::enter(&self.core.shared, self.route) {
            Ok(in_flight) => in_flight,
            Err(problem) => return Ok(Box::pin(self.without_room(lead, problem)).await),
        };
        // It could only join when it let go of its body, and has been asked to lead after all.
        let Some(body) = self.body.take() else {
            let problem = Problem::in_progress(&self.identity.id);
            return Ok(Box::pin(self.without_room(lead, problem)).await);
        };
        let (sender, receiver) = oneshot::channel();
        let witness = lead.witness();
        // Boxed, as is the work itself: starting and ending a task moves it several times.
        let attempt = Box::new(Attempt {
            _counted: self.core.shared.tasks.enter(),
            route: self.route.clone(),
            store: self.core.store.clone(),
            shared: self.core.shared.clone(),
            claim: claim::attempt(&self.route.config, &self.identity.id, &self.imprint, self.key.is_quoted()),
            original: Original {
                head: std::mem::replace(self.head, nothing()),
                peer: self.peer,
                body,
                interim: self.interim.take(),
            },
            identity: self.identity.clone(),
            key: self.key.clone(),
            in_flight: Some(in_flight),
            notes: self.notes.clone(),
        });
        tokio::spawn(Box::pin(attempt.run(lead, Caller::new(sender))));
        let Route { config, alarms, .. } = &**self.route;
        match alarms.bound(Instant::now() + config.timeout, pin!(receiver)).await {
            Some(Ok(Delivery::Concluded(conclusion))) => Ok(self.first(conclusion)),
            Some(Ok(Delivery::Flowing(flowing))) => Ok(respond::flowing(*flowing)),
            Some(Ok(Delivery::Elsewhere(seat))) => {
                self.let_go();
                let joined = Box::pin(self.join(seat)).await;
                Ok(self.joined(joined))
            }
            Some(Err(_)) => Err(Problem::doubted(&self.identity.id, Reason::Panic, OnUnknown::Hold)),
            // The store has not even answered. If it grants the claim now, the attempt hands it back.
            None if witness.call_off() => Err(claim::unavailable(&self.identity.id)),
            None => {
                witness.tell_unknown();
                Err(Problem::still_listening(&self.identity.id))
            }
        }
    }

    /// Answers a request that may not be forwarded now. Over the limit nothing is claimed; what is done already is
    /// replayed all the same.
    async fn without_room(&self, mut lead: Lead, problem: Problem) -> Answer {
        let found = claim::look(self.route, &self.core.store, &self.identity.id, &self.imprint, self.notes).await;
        let conclusion = Arc::new(match found {
            Looked::Absent => problem.into(),
            Looked::Running => Problem::in_progress(&self.identity.id).into(),
            Looked::Concluded(conclusion) => conclusion,
        });
        lead.leave();
        lead.conclude(&conclusion);
        self.first(conclusion)
    }

    async fn join(&self, seat: Seat) -> Joined {
        let route = self.route;
        let room = || {
            let share = self.core.shared.waiting.take(1)?;
            Some((share, Counted::new(&route.metrics.waiting)))
        };
        let patience = self.preferred_wait.unwrap_or(route.config.wait_timeout);
        join::join(route, &self.identity.id, &self.imprint, seat, patience, room).await
    }

    /// Lets go of the request itself, which can only join now. Its parts share the connection's first read buffer; ten
    /// thousand waiting ones should not hold theirs.
    fn let_go(&mut self) {
        self.body = None;
        *self.head = nothing();
    }

    fn first(&self, conclusion: Arc<Conclusion>) -> Answer {
        if let Conclusion::Replay { replay, .. } = &*conclusion {
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
            Joined::ByItself | Joined::AskStore => Answer::problem(Problem::in_progress(&self.identity.id)),
        };
        let waits = self.route.config.on_duplicate == OnDuplicate::Wait;
        if waits { answer.with_preference(self.preferred_wait) } else { answer }
    }
}

/// The head of a request whose own is gone.
fn nothing() -> request::Parts {
    http::Request::new(()).into_parts().0
}
