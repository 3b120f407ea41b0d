//! The attempt: the counted task that claims, forwards and records, whether or not its caller is still there.
//!
//! It is the middle of [`super`]'s one screen: a disconnecting client cannot cancel it, a stop waits for it or cuts it
//! off, and a panic in it is a doubt.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use super::claim::{self, Claimed};
use super::error::Problem;
use super::flights::{Conclusion, Lead};
use super::forward::{self, Caller, Delivery, Original, Outgoing};
use super::headers;
use super::in_flight::InFlight;
use super::key::{Identity, Key};
use super::lease::Lease;
use super::notes::Notes;
use super::outcome::Outcome;
use super::record::{self, Ending, Unfinished};
use super::route::Route;
use super::shared::Shared;
use crate::config::BodyMode;
use crate::record::{Claim, Reason};
use crate::shutdown::{Signal, TaskGuard};
use crate::store::Store;

/// One attempt at one key: what runs from the claim to the record, whether or not its caller is still there.
pub(super) struct Attempt {
    /// Counts the task until it ends; a stop waits for it.
    pub(super) _counted: TaskGuard,
    pub(super) route: Arc<Route>,
    pub(super) store: Arc<dyn Store>,
    pub(super) shared: Arc<Shared>,
    pub(super) claim: Claim,
    /// Made ready for the upstream once the claim is granted: most duplicates never need that.
    pub(super) original: Original,
    pub(super) identity: Identity,
    pub(super) key: Key,
    /// Given back before the caller has its answer.
    pub(super) in_flight: Option<InFlight>,
    pub(super) notes: Notes,
}

impl Attempt {
    /// Claims, forwards and records; nothing that the caller does cancels it.
    pub(super) async fn run(self: Box<Self>, mut lead: Lead, mut caller: Caller) {
        match claim::claim(&self.route, &self.store, &self.claim, &self.notes).await {
            Claimed::Granted(lease, first_form) if lead.granted() => {
                self.execute(lease, first_form, &mut lead, &mut caller).await;
            }
            // Boxed, as all that is rare: the future of each attempt would be larger by it.
            Claimed::Granted(lease, _) => {
                let problem = claim::unavailable(&lease.claim().id);
                Box::pin(self.give_up(lease, problem, lead, caller)).await;
            }
            Claimed::Concluded(conclusion) => conclude(&mut lead, &mut caller, Arc::new(conclusion)),
            Claimed::GivenUp(lease, problem) => Box::pin(self.give_up(lease, problem, lead, caller)).await,
            Claimed::Elsewhere => {
                let Attempt { _counted, route, store, shared, claim, original, in_flight, .. } = *self;
                // From here on it only waits; it should not hold what an attempt needs.
                drop((original, in_flight));
                caller.deliver(Delivery::Elsewhere(lead.seat()));
                let waiting = claim::elsewhere(&route, &store, &mut lead, &claim.imprint);
                let conclusion = tokio::select! {
                    conclusion = Box::pin(waiting) => conclusion,
                    // It is another process's attempt: the stop of this one ends nothing but the wait.
                    () = shared.cut_off.given() => Problem::in_progress(&claim.id).into(),
                };
                conclude(&mut lead, &mut caller, Arc::new(conclusion));
            }
        }
    }

    /// Tells everyone that nothing was sent, and hands the grant back that there is or may still be.
    async fn give_up(self: Box<Self>, lease: Box<Lease>, problem: Problem, mut lead: Lead, mut caller: Caller) {
        let Attempt { _counted, route, shared, original, in_flight: _in_flight, .. } = *self;
        // It keeps its place: that bounds how many of these there are. The body nobody will send.
        drop(original);
        conclude(&mut lead, &mut caller, Arc::new(problem.into()));
        tokio::select! {
            () = claim::give_up(&lease, &route.outage) => {}
            () = shared.cut_off.given() => {}
        }
    }

    async fn execute(
        mut self: Box<Self>,
        mut lease: Box<Lease>,
        first_form: Option<bool>,
        lead: &mut Lead,
        caller: &mut Caller,
    ) {
        // In the box: moved out of it, it would have room in the future as well.
        let Attempt { route, shared, original, identity, key, in_flight, notes, .. } = &mut *self;
        lease.write_notes(std::mem::take(notes));
        // Where the body does not count, any two deliveries to one address are the same request.
        if route.config.fingerprint.body != BodyMode::Ignore {
            shared.recent.note(identity, &lease.claim().imprint.fingerprint, &route.metrics);
        }
        let mut outgoing = Box::new(original.outgoing(&route.config, key));
        if let Some(quoted) = first_form {
            headers::keep_key_form(&route.config, &mut outgoing.fields, key, quoted);
        }
        let ending = hold(route, &lease, &mut outgoing, caller, &shared.cut_off).await;
        let Ending { conclusion, unfinished, hold } = ending;
        if (lead.told_unknown() || caller.left()) && matches!(*conclusion, Conclusion::Answered(_)) {
            route.metrics.late_answers.inc();
        }
        *in_flight = None;
        if hold {
            lead.conclude(&conclusion);
            caller.deliver(Delivery::Concluded(conclusion));
        } else {
            conclude(lead, caller, conclusion);
        }
        if let Some(unfinished) = unfinished {
            Box::pin(finish(route, &lease, unfinished, &shared.cut_off)).await;
        }
    }
}

/// Repeats the write that has not landed, until it does or the stop cuts it off.
async fn finish(route: &Route, lease: &Lease, unfinished: Unfinished, cut_off: &Signal) {
    tokio::select! {
        () = record::finish(route, lease, unfinished) => {}
        never = lease.keep_alive() => match never {},
        () = cut_off.given() => {
            tracing::error!(record = %lease.claim().id, "stopped before the outcome could be recorded");
        }
    }
}

/// Forwards and records, while the lease is kept alive; until the stop cuts it off, and even if it panics.
async fn hold(route: &Route, lease: &Lease, outgoing: &mut Outgoing, caller: &mut Caller, cut_off: &Signal) -> Ending {
    let work = std::pin::pin!(async {
        // Boxed one by one: in pieces of this size memory is had at once.
        let outcome = Box::pin(forward::forward(route, lease, outgoing, caller)).await;
        Box::pin(record::record(route, lease, outcome)).await
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
