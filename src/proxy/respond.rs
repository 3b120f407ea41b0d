//! Step 8, respond: the upstream's response, the replay, or a problem.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};

use super::body::Body;
use super::error::{Problem, recorded_status};
use super::flights::{Answered, Conclusion, Settled};
use super::headers::{self, CacheStatus};
use super::outcome::{Flowing, Foreseen};
use crate::metrics::RequestResult;
use crate::record::Replay;

/// A response, and how the request is counted.
#[derive(Debug)]
pub struct Answer {
    /// What the client gets.
    pub response: Response<Body>,
    /// The metric's label.
    pub result: RequestResult,
    /// Whether it was made here: a problem, or the answer of another request.
    pub is_own: bool,
}

impl Answer {
    /// A response that is counted like this.
    pub fn new(response: Response<Body>, result: RequestResult) -> Answer {
        Answer { response, result, is_own: false }
    }

    /// A response that was made here, or for another request before.
    fn own(response: Response<Body>, result: RequestResult) -> Answer {
        Answer { response, result, is_own: true }
    }

    /// A refusal.
    pub fn problem(problem: Problem) -> Answer {
        let result = problem.result();
        Answer::own(problem.into_response(), result)
    }

    /// What an authorizer told the caller in place of a replay.
    pub fn refusal(response: Response<Body>) -> Answer {
        Answer::own(response, RequestResult::NotAllowed)
    }

    /// Says that `Prefer: wait` was honoured.
    pub fn with_preference(mut self, wait: Option<Duration>) -> Answer {
        if let Some(wait) = wait {
            headers::add_preference_applied(self.response.headers_mut(), wait);
        }
        self
    }
}

/// Answers the attempt's own caller.
pub fn first(conclusion: Arc<Conclusion>) -> Answer {
    match Arc::unwrap_or_clone(conclusion) {
        Conclusion::Answered(answered) => {
            let Answered { head, trailers, body, settled, .. } = *answered;
            let mut answer = whole(head.status, head.fields, trailers.unwrap_or_default(), body);
            let (status, result) = match settled {
                Settled::Stored => (CacheStatus::Stored, RequestResult::Executed),
                Settled::NotRetained => (CacheStatus::Missed("response-not-retained"), RequestResult::Executed),
                Settled::NotRecorded => (CacheStatus::Missed("not-recorded"), RequestResult::Executed),
                Settled::Released => (CacheStatus::Missed("released"), RequestResult::Released),
                Settled::Doubted => (CacheStatus::Missed("outcome-unknown"), RequestResult::Unknown),
                Settled::Unprotected => (CacheStatus::Bypass("store-error"), RequestResult::Unprotected),
            };
            headers::add_cache_status(answer.headers_mut(), &status);
            Answer::new(answer, result)
        }
        Conclusion::Replay { replay, waited } => replayed(&replay, waited),
        Conclusion::Problem(problem) => Answer::problem(*problem),
    }
}

/// Answers the attempt's own caller while the answer still arrives. Of its end only what is known can be said.
pub fn flowing(flowing: Flowing) -> Answer {
    let Flowing { head, body, foreseen } = flowing;
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.fields;
    let (status, result) = match foreseen {
        Foreseen::Unprotected => (CacheStatus::Bypass("store-error"), RequestResult::Unprotected),
        Foreseen::NotRetained => (CacheStatus::Missed("response-not-retained"), RequestResult::Executed),
        Foreseen::Unknown => (CacheStatus::Missed("outcome-unknown"), RequestResult::Unknown),
        Foreseen::Open => (CacheStatus::Missed("flowing"), RequestResult::Executed),
    };
    headers::add_cache_status(response.headers_mut(), &status);
    Answer::new(response, result)
}

/// Answers a request that joined: like the attempt's caller, less the fields that are never replayed.
pub fn joined(conclusion: &Conclusion) -> Answer {
    match conclusion {
        Conclusion::Answered(answered) => {
            let recorded = &answered.recorded;
            let fields = headers::replayed(recorded.headers());
            let trailers = headers::replayed(recorded.trailers());
            let mut answer = whole(recorded_status(recorded.status()), fields, trailers, answered.body.clone());
            let status = match answered.settled {
                // An answer whose write is still being repeated is replayed from memory; it is final all the same.
                Settled::Stored | Settled::NotRetained | Settled::NotRecorded => {
                    headers::mark_replayed(answer.headers_mut());
                    headers::add_age(answer.headers_mut(), Duration::ZERO);
                    CacheStatus::Joined
                }
                Settled::Released | Settled::Doubted => CacheStatus::Collapsed,
                Settled::Unprotected => CacheStatus::Bypass("store-error"),
            };
            headers::add_cache_status(answer.headers_mut(), &status);
            Answer::own(answer, RequestResult::Joined)
        }
        Conclusion::Replay { replay, waited } => replayed(replay, *waited),
        Conclusion::Problem(problem) => Answer::problem((**problem).clone()),
    }
}

/// Replays a completed record that has its body.
fn replayed(replay: &Replay, waited: bool) -> Answer {
    let (status, result) = match waited {
        true => (CacheStatus::Joined, RequestResult::Joined),
        false => (CacheStatus::Hit(replay.ttl), RequestResult::Replayed),
    };
    let recorded = &replay.response;
    let fields = headers::replayed(recorded.headers());
    let trailers = headers::replayed(recorded.trailers());
    let mut answer =
        whole(recorded_status(recorded.status()), fields, trailers, recorded.body().cloned().unwrap_or_default());
    headers::mark_replayed(answer.headers_mut());
    headers::add_age(answer.headers_mut(), replay.age);
    headers::add_cache_status(answer.headers_mut(), &status);
    Answer::own(answer, result)
}

fn whole(status: StatusCode, fields: HeaderMap, trailers: HeaderMap, body: bytes::Bytes) -> Response<Body> {
    let mut fields = fields;
    headers::announce_trailers(&mut fields, &trailers);
    let mut response = Response::new(Body::with_trailers(body, trailers));
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    response
}
