//! Step 7, record: the outcome decides between completing, releasing and doubting.
//!
//! The first write is made before the caller is answered. A write that fails is repeated afterwards, by the same task;
//! a record whose write never lands ends as unknown, never as absent.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use super::error::{Kind, Problem};
use super::flights::{Answered, Conclusion, Settled};
use super::headers;
use super::lease::{Lease, Retries};
use super::outcome::{self, Arrived, Head, Kept, Outcome};
use super::route::Route;
use crate::chain::Chain;
use crate::config::Verdict;
use crate::record::{CompleteReply, Reason, Response};
use crate::store::StoreError;

/// How the attempt ended, and the write that has not landed yet.
#[derive(Debug)]
pub struct Ending {
    /// For the caller and for all who joined.
    pub conclusion: Arc<Conclusion>,
    /// To be repeated.
    pub unfinished: Option<Unfinished>,
    /// Whether the flight stays on the table until then, and answers duplicates from memory.
    pub hold: bool,
}

/// A write that failed.
#[derive(Debug)]
pub enum Unfinished {
    /// The response is not recorded.
    Complete(Response),
    /// The key is not free again.
    Release,
    /// The record is not held as unknown yet.
    Doubt(Reason, Option<Response>),
}

/// Makes the write that the outcome asks for. All but a completion is rare, and boxed: the future of each attempt would be
/// larger by it.
pub async fn record(route: &Route, lease: &Lease, outcome: Outcome) -> Ending {
    match outcome {
        Outcome::NotSent(problem) => {
            let problem = problem.about(&lease.claim().id);
            ending(problem.into(), Box::pin(release(lease)).await)
        }
        Outcome::Unknown(reason, head) => {
            let response = head.map(|head| stored(route, lease, &head, None, None));
            let problem = Problem::doubted(&lease.claim().id, reason, route.config.on_unknown)
                .with_original_status(response.as_ref().map(Response::status));
            if !lease.is_protected() {
                return ending(problem.unprotected().into(), Some(Unfinished::Doubt(reason, response)));
            }
            ending(problem.into(), Box::pin(doubt(lease, reason, response)).await)
        }
        Outcome::Answered(arrived) => answered(route, lease, arrived).await,
    }
}

fn ending(conclusion: Conclusion, unfinished: Option<Unfinished>) -> Ending {
    Ending { conclusion: Arc::new(conclusion), unfinished, hold: false }
}

/// The response as it is recorded.
fn stored(route: &Route, lease: &Lease, head: &Head, trailers: Option<&HeaderMap>, body: Option<Bytes>) -> Response {
    let status = head.status.as_u16();
    headers::recorded(&route.config, status, &head.fields, trailers, body, lease.notes().origin())
}

async fn answered(route: &Route, lease: &Lease, arrived: Box<Arrived>) -> Ending {
    let verdict = outcome::verdict(&route.config, &arrived);
    let uncounted = arrived.body.as_ref().map(|body| body.uncounted.clone());
    let recorded = stored(route, lease, &arrived.head, arrived.trailers.as_ref(), uncounted);
    let (settled, unfinished) = if !lease.is_protected() {
        (Settled::Unprotected, Some(unclaimed(verdict, &recorded)))
    } else {
        match verdict {
            Verdict::Record => match complete(route, lease, &recorded).await {
                Completed::Stored => (Settled::Stored, None),
                Completed::WithoutBody => (Settled::NotRetained, None),
                Completed::Lost => (Settled::NotRecorded, None),
                Completed::Instead(conclusion) => return ending(conclusion, None),
                Completed::Failed => (Settled::NotRecorded, Some(Unfinished::Complete(recorded.clone()))),
            },
            Verdict::Release => (Settled::Released, Box::pin(release(lease)).await),
            Verdict::Unknown => {
                (Settled::Doubted, Box::pin(doubt(lease, Reason::Status, Some(recorded.clone()))).await)
            }
        }
    };
    let hold = lease.is_protected() && matches!(unfinished, Some(Unfinished::Complete(_)));
    let Arrived { head, trailers, body, .. } = *arrived;
    let conclusion = match body {
        Some(Kept { counted: body, .. }) => {
            Conclusion::Answered(Box::new(Answered { head, trailers, body, recorded, settled }))
        }
        None => without_body(route, lease, settled, recorded.status()).into(),
    };
    Ending { conclusion: Arc::new(conclusion), unfinished, hold }
}

/// What those get who joined an attempt whose answer was too long to be kept; its own caller has had it while it flowed.
fn without_body(route: &Route, lease: &Lease, settled: Settled, status: u16) -> Problem {
    let id = &lease.claim().id;
    match settled {
        Settled::Released => Problem::ended_without_record(id),
        Settled::Doubted => {
            Problem::doubted(id, Reason::Status, route.config.on_unknown).with_original_status(Some(status))
        }
        Settled::Stored | Settled::NotRetained | Settled::NotRecorded | Settled::Unprotected => {
            Problem::not_retained(id, status)
        }
    }
}

enum Completed {
    Stored,
    /// The store had no room for the body.
    WithoutBody,
    Lost,
    /// The record was completed otherwise (an operator resolved it): the caller gets that.
    Instead(Conclusion),
    Failed,
}

async fn complete(route: &Route, lease: &Lease, response: &Response) -> Completed {
    match lease.complete(response, route.config.retention).await {
        Ok(CompleteReply::Stored | CompleteReply::Rewritten) => Completed::Stored,
        Ok(CompleteReply::WithoutBody { .. }) => Completed::WithoutBody,
        // A repeated completion finds its own response, as it was recorded.
        Ok(CompleteReply::Already(replay)) if replay.response == *response => Completed::Stored,
        Ok(CompleteReply::Already(replay)) if replay.response == response.without_body() => Completed::WithoutBody,
        Ok(CompleteReply::Already(replay)) => Completed::Instead(match replay.response.body() {
            Some(_) => Conclusion::Replay { replay: Box::new(replay), waited: false },
            None => Problem::not_retained(&lease.claim().id, replay.response.status()).into(),
        }),
        Ok(CompleteReply::Lost) => Completed::Lost,
        Err(error) => {
            log(lease, "response not recorded yet", &error);
            Completed::Failed
        }
    }
}

async fn release(lease: &Lease) -> Option<Unfinished> {
    if !lease.is_protected() {
        return None;
    }
    let error = lease.release().await.err()?;
    log(lease, "claim not released yet", &error);
    Some(Unfinished::Release)
}

async fn doubt(lease: &Lease, reason: Reason, response: Option<Response>) -> Option<Unfinished> {
    if !lease.is_protected() {
        return None;
    }
    let error = lease.doubt(reason, response.as_ref()).await.err()?;
    log(lease, "unknown outcome not recorded yet", &error);
    Some(Unfinished::Doubt(reason, response))
}

/// Without a claim there is nothing to settle, unless the claim was made after all and only its reply was lost. It is
/// written once the caller has its answer: what does not land lapses into unknown.
fn unclaimed(verdict: Verdict, response: &Response) -> Unfinished {
    match verdict {
        Verdict::Record => Unfinished::Complete(response.clone()),
        Verdict::Release => Unfinished::Release,
        Verdict::Unknown => Unfinished::Doubt(Reason::Status, Some(response.clone())),
    }
}

fn log(lease: &Lease, what: &'static str, error: &StoreError) {
    tracing::warn!(record = %lease.claim().id, kind = error.kind.as_str(), error = %Chain(error), "{what}");
}

/// Repeats a write until it lands, or there is no more sense in it.
pub async fn finish(route: &Route, lease: &Lease, unfinished: Unfinished) {
    let until = match &unfinished {
        _ if !lease.is_protected() => Instant::now(),
        Unfinished::Complete(_) => lease.abandon_at(),
        // Beyond the lease: the store frees a claim that has only lapsed, as nobody has said anything else of it.
        Unfinished::Release | Unfinished::Doubt(..) => lease.abandon_at().max(Instant::now() + route.config.lease),
    };
    let mut retries = Retries::until(until);
    while retries.again().await {
        let written = match &unfinished {
            Unfinished::Complete(response) => lease.complete(response, route.config.retention).await.map(drop),
            Unfinished::Release => lease.release().await.map(drop),
            Unfinished::Doubt(reason, response) => lease.doubt(*reason, response.as_ref()).await.map(drop),
        };
        if written.is_ok() {
            return;
        }
    }
    if lease.is_protected() {
        tracing::error!(record = %lease.claim().id, "the store never took the outcome, the record ends as unknown");
    } else {
        tracing::warn!(record = %lease.claim().id, "forwarded without protection, nothing is recorded");
    }
}

/// What becomes of an attempt that the proxy's own stop interrupts.
pub async fn drained(route: &Route, lease: &Lease) -> Ending {
    tracing::warn!(record = %lease.claim().id, sent = lease.was_sent(), "attempt cut off by the stop");
    let outcome = if lease.was_sent() {
        Outcome::Unknown(Reason::Drained, None)
    } else {
        let detail = "The proxy is stopping; nothing was sent. The same request with the same key may be sent again.";
        Outcome::NotSent(Problem::new(Kind::UpstreamUnreachable, detail))
    };
    record(route, lease, outcome).await
}
