//! Step 7, record: the outcome decides between completing, releasing and doubting.
//!
//! The first write is made before the caller is answered. A write that fails is repeated afterwards, by the same task;
//! a record whose write never lands ends as unknown, never as absent.

use std::sync::Arc;

use tokio::time::Instant;

use super::error::{Kind, Problem};
use super::flights::{Answered, Conclusion, Settled};
use super::forward::{Outcome, Whole};
use super::headers;
use super::lease::{Lease, Retries};
use super::route::Route;
use crate::chain::Chain;
use crate::config::Verdict;
use crate::record::{CompleteReply, Reason, Response};
use crate::store::StoreError;

mod grpc;

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
        Outcome::Unknown(reason, response) => {
            let problem = Problem::doubted(&lease.claim().id, reason, route.config.on_unknown)
                .with_original_status(response.as_ref().map(Response::status));
            if !lease.is_protected() {
                return ending(problem.unprotected().into(), Some(Unfinished::Doubt(reason, response)));
            }
            ending(problem.into(), Box::pin(doubt(lease, reason, response)).await)
        }
        Outcome::Answered(whole) => answered(route, lease, whole).await,
        Outcome::Flowed(kept) => Box::pin(flowed(route, lease, kept)).await,
    }
}

fn ending(conclusion: Conclusion, unfinished: Option<Unfinished>) -> Ending {
    Ending { conclusion: Arc::new(conclusion), unfinished, hold: false }
}

async fn answered(route: &Route, lease: &Lease, whole: Box<Whole>) -> Ending {
    let status = whole.status.as_u16();
    let body = Some(whole.uncounted.clone());
    let origin = lease.notes().origin();
    let recorded = headers::recorded(&route.config, status, &whole.fields, whole.trailers.as_ref(), body, origin);
    let (settled, unfinished) = if !lease.is_protected() {
        (Settled::Unprotected, unclaimed(route, &recorded))
    } else {
        match route.config.statuses.verdict(grpc::judged_status(&recorded)) {
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
    let Whole { fields, trailers, body, .. } = *whole;
    let answered = Answered { fields, trailers, body, recorded, settled };
    Ending { conclusion: Arc::new(Conclusion::Answered(Box::new(answered))), unfinished, hold }
}

/// The caller has had its answer while it flowed; this is what those who joined get.
async fn flowed(route: &Route, lease: &Lease, kept: Response) -> Ending {
    let id = &lease.claim().id;
    let status = kept.status();
    if !lease.is_protected() {
        return ending(Problem::not_retained(id, status).into(), unclaimed(route, &kept));
    }
    match route.config.statuses.verdict(status) {
        Verdict::Record => {
            let conclusion = Problem::not_retained(id, status).into();
            match complete(route, lease, &kept).await {
                Completed::Stored | Completed::WithoutBody | Completed::Lost => ending(conclusion, None),
                Completed::Instead(conclusion) => ending(conclusion, None),
                Completed::Failed => Ending {
                    conclusion: Arc::new(conclusion),
                    unfinished: Some(Unfinished::Complete(kept)),
                    hold: true,
                },
            }
        }
        Verdict::Release => ending(Problem::ended_without_record(id).into(), release(lease).await),
        Verdict::Unknown => {
            let on_unknown = route.config.on_unknown;
            let problem = Problem::doubted(id, Reason::Status, on_unknown).with_original_status(Some(status));
            ending(problem.into(), doubt(lease, Reason::Status, Some(kept)).await)
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
fn unclaimed(route: &Route, response: &Response) -> Option<Unfinished> {
    Some(match route.config.statuses.verdict(grpc::judged_status(response)) {
        Verdict::Record => Unfinished::Complete(response.clone()),
        Verdict::Release => Unfinished::Release,
        Verdict::Unknown => Unfinished::Doubt(Reason::Status, Some(response.clone())),
    })
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
