//! Problems: the one place where a situation becomes a status code and a problem body (RFC 9457).
//!
//! Every step returns a [`Problem`] for what it refuses. A problem says what the client should do next (`retry`),
//! because client libraries act on statuses alone; detail that is not the client's business goes to the log instead.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Response, StatusCode};

use super::body::Body;
use super::fingerprint::BodyFault;
use super::headers::{self, CacheStatus};
use super::key::{KeyFault, ScopeFault};
use crate::config::OnUnknown;
use crate::metrics::{Forgery, RequestResult};
use crate::record::{Doubtful, Fate, Reason, RecordId};

/// How long a caller waits at least before it repeats what may be sent again after a doubt.
const AFTER_DOUBT: Duration = Duration::from_secs(1);

/// What happened, by the last word of the problem type `urn:onceproxy:problem:…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The method is a protected one but for its letter case.
    MethodInvalid,
    /// A key is required and missing.
    KeyMissing,
    /// The key is malformed, repeated, too long or empty.
    KeyInvalid,
    /// A field that applications read as another one.
    FieldInvalid,
    /// A part of the scope stands there twice, with different values.
    ScopeInvalid,
    /// The key was used for another request.
    KeyReused,
    /// The key was used by somebody else.
    OtherCaller,
    /// The first request with this key is still running.
    RequestInProgress,
    /// Nobody can tell whether it ran; the answer to a duplicate.
    OutcomeUnknown,
    /// Nobody can tell, and the proxy stopped listening or the connection broke; the answer to the attempt's caller.
    OutcomeUnknownBroken,
    /// Nobody can tell yet or any more, for lack of time; the answer to the attempt's caller.
    OutcomeUnknownTimeout,
    /// The signature of a webhook is missing, or not the sender's.
    SignatureInvalid,
    /// The body cannot be used.
    BodyInvalid,
    /// Nothing was sent to the upstream.
    UpstreamUnreachable,
    /// Completed, but the body was not kept.
    ResponseNotRetained,
    /// The service that is asked before a replay did not say.
    AuthorizerUnavailable,
    /// The store cannot answer.
    StoreUnavailable,
    /// The request body is too large.
    BodyTooLarge,
    /// The request body did not arrive in time.
    BodyTimeout,
    /// The client expects something that cannot be met: what nobody knows, or to be told to send the body over HTTP/2.
    ExpectationFailed,
    /// No route takes the request.
    NoRoute,
    /// The request names a host that may not be reached.
    EgressRefused,
    /// Too many requests at a time.
    Overloaded,
}

impl Kind {
    fn status(self) -> StatusCode {
        match self {
            Kind::MethodInvalid
            | Kind::KeyMissing
            | Kind::KeyInvalid
            | Kind::FieldInvalid
            | Kind::ScopeInvalid
            | Kind::BodyInvalid => StatusCode::BAD_REQUEST,
            Kind::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Kind::RequestInProgress | Kind::OutcomeUnknown | Kind::ResponseNotRetained => StatusCode::CONFLICT,
            Kind::OutcomeUnknownBroken | Kind::UpstreamUnreachable => StatusCode::BAD_GATEWAY,
            Kind::OutcomeUnknownTimeout => StatusCode::GATEWAY_TIMEOUT,
            Kind::AuthorizerUnavailable | Kind::StoreUnavailable | Kind::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Kind::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Kind::ExpectationFailed => StatusCode::EXPECTATION_FAILED,
            Kind::SignatureInvalid => StatusCode::UNAUTHORIZED,
            Kind::NoRoute => StatusCode::NOT_FOUND,
            Kind::OtherCaller | Kind::EgressRefused => StatusCode::FORBIDDEN,
        }
    }

    /// The word in the problem type, in `Cache-Status` and in logs.
    pub fn word(self) -> &'static str {
        match self {
            Kind::MethodInvalid => "method-invalid",
            Kind::KeyMissing => "key-missing",
            Kind::KeyInvalid => "key-invalid",
            Kind::FieldInvalid => "field-invalid",
            Kind::ScopeInvalid => "scope-invalid",
            Kind::KeyReused => "key-reused",
            Kind::OtherCaller => "other-caller",
            Kind::RequestInProgress => "request-in-progress",
            Kind::OutcomeUnknown | Kind::OutcomeUnknownBroken | Kind::OutcomeUnknownTimeout => "outcome-unknown",
            Kind::SignatureInvalid => "signature-invalid",
            Kind::BodyInvalid => "body-invalid",
            Kind::UpstreamUnreachable => "upstream-unreachable",
            Kind::ResponseNotRetained => "response-not-retained",
            Kind::AuthorizerUnavailable => "authorizer-unavailable",
            Kind::StoreUnavailable => "store-unavailable",
            Kind::BodyTooLarge => "body-too-large",
            Kind::BodyTimeout => "body-timeout",
            Kind::ExpectationFailed => "expectation-failed",
            Kind::NoRoute => "no-route",
            Kind::EgressRefused => "egress-refused",
            Kind::Overloaded => "overloaded",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Kind::MethodInvalid => "The method is spelled in another letter case",
            Kind::KeyMissing => "An idempotency key is required",
            Kind::KeyInvalid => "The idempotency key is not usable",
            Kind::FieldInvalid => "A field can be read as another one",
            Kind::ScopeInvalid => "It is not clear whose request it is",
            Kind::KeyReused => "The idempotency key was used for another request",
            Kind::OtherCaller => "The idempotency key was used by another caller",
            Kind::RequestInProgress => "The first request with this key is still running",
            Kind::OutcomeUnknown | Kind::OutcomeUnknownBroken | Kind::OutcomeUnknownTimeout => {
                "It is not known whether the request was executed"
            }
            Kind::SignatureInvalid => "The signature does not show that the sender sent this",
            Kind::BodyInvalid => "The request body is not usable",
            Kind::UpstreamUnreachable => "The upstream could not be reached, and nothing was sent",
            Kind::ResponseNotRetained => "The request was executed, but its response is not kept",
            Kind::AuthorizerUnavailable => "It cannot be told whether this caller may have the answer",
            Kind::StoreUnavailable => "The idempotency store cannot answer",
            Kind::BodyTooLarge => "The request body is too large",
            Kind::BodyTimeout => "The request body did not arrive in time",
            Kind::ExpectationFailed => "What the request expects cannot be met",
            Kind::NoRoute => "No route takes this request",
            Kind::EgressRefused => "The host may not be reached through this proxy",
            Kind::Overloaded => "Too many requests at a time",
        }
    }

    /// The `type` in the member `error`. Stripe's SDK for Node takes every JSON object without such a member for a
    /// success, whatever its status: a charge in doubt would pass for one that was made.
    fn stripe_type(self) -> &'static str {
        match self {
            Kind::KeyReused | Kind::RequestInProgress => "idempotency_error",
            Kind::OutcomeUnknown | Kind::ResponseNotRetained => "api_error",
            _ if self.status().is_client_error() => "invalid_request_error",
            _ => "api_error",
        }
    }

    fn retry(self) -> Option<Retry> {
        match self {
            Kind::MethodInvalid
            | Kind::KeyMissing
            | Kind::KeyInvalid
            | Kind::SignatureInvalid
            | Kind::KeyReused
            | Kind::OtherCaller
            | Kind::FieldInvalid
            | Kind::ScopeInvalid
            | Kind::BodyInvalid
            | Kind::BodyTooLarge
            | Kind::ExpectationFailed => Some(Retry::AfterCorrection),
            Kind::OutcomeUnknown | Kind::OutcomeUnknownBroken | Kind::OutcomeUnknownTimeout => Some(Retry::Operator),
            Kind::ResponseNotRetained => Some(Retry::Never),
            Kind::RequestInProgress
            | Kind::UpstreamUnreachable
            | Kind::AuthorizerUnavailable
            | Kind::StoreUnavailable
            | Kind::BodyTimeout
            | Kind::Overloaded => Some(Retry::SameKey),
            Kind::NoRoute | Kind::EgressRefused => None,
        }
    }

    fn result(self) -> RequestResult {
        match self {
            Kind::SignatureInvalid => RequestResult::SignatureRejected,
            Kind::MethodInvalid | Kind::KeyMissing | Kind::KeyInvalid | Kind::FieldInvalid | Kind::ScopeInvalid => {
                RequestResult::KeyRejected
            }
            Kind::KeyReused => RequestResult::KeyReused,
            Kind::OtherCaller => RequestResult::OtherCaller,
            Kind::RequestInProgress => RequestResult::InProgress,
            Kind::OutcomeUnknown | Kind::OutcomeUnknownBroken | Kind::OutcomeUnknownTimeout => RequestResult::Unknown,
            Kind::BodyInvalid | Kind::BodyTooLarge | Kind::BodyTimeout | Kind::ExpectationFailed => {
                RequestResult::BodyRejected
            }
            Kind::UpstreamUnreachable => RequestResult::NotSent,
            Kind::ResponseNotRetained => RequestResult::NotRetained,
            Kind::AuthorizerUnavailable => RequestResult::AuthorizerError,
            Kind::StoreUnavailable => RequestResult::StoreError,
            Kind::NoRoute => RequestResult::NoRoute,
            Kind::EgressRefused => RequestResult::EgressRefused,
            Kind::Overloaded => RequestResult::Overloaded,
        }
    }

    fn retry_after(self) -> Option<Duration> {
        match self {
            Kind::RequestInProgress | Kind::AuthorizerUnavailable | Kind::StoreUnavailable | Kind::Overloaded => {
                Some(Duration::from_secs(1))
            }
            _ => None,
        }
    }
}

/// What the client should do next: the member `retry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Mend the request first.
    AfterCorrection,
    /// Send the same request with the same key again.
    SameKey,
    /// Nothing: a person has to find out what happened.
    Operator,
    /// Nothing: it was executed.
    Never,
}

impl Retry {
    fn word(self) -> &'static str {
        match self {
            Retry::AfterCorrection => "after-correction",
            Retry::SameKey => "same-key",
            Retry::Operator => "operator",
            Retry::Never => "never",
        }
    }

    /// The Stripe SDKs repeat every 409 and 5xx by themselves unless this header says otherwise.
    fn stripe_should_retry(self) -> HeaderValue {
        HeaderValue::from_static(if self == Retry::SameKey { "true" } else { "false" })
    }
}

/// A refusal, before it is written out.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: Kind,
    detail: String,
    retry: Option<Retry>,
    retry_after: Option<Duration>,
    record: Option<RecordId>,
    original_status: Option<u16>,
    reason: Option<Reason>,
    differs: Vec<&'static str>,
}

impl Problem {
    /// A problem with this sentence for the client.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Problem {
        Problem {
            kind,
            detail: detail.into(),
            retry: kind.retry(),
            retry_after: kind.retry_after(),
            record: None,
            original_status: None,
            reason: None,
            differs: Vec::new(),
        }
    }

    /// Names the record, so that an operator can be asked about it.
    pub fn about(mut self, record: &RecordId) -> Problem {
        self.record = Some(record.clone());
        self
    }

    /// Says that the same request may come again, after this time.
    pub fn same_key_after(mut self, pause: Duration) -> Problem {
        self.retry = Some(Retry::SameKey);
        self.retry_after = Some(pause);
        self
    }

    /// Names the status of the upstream's own answer.
    pub fn with_original_status(mut self, status: Option<u16>) -> Problem {
        self.original_status = status;
        self
    }

    /// The request needs a key and has none.
    pub fn key_missing() -> Problem {
        Problem::new(
            Kind::KeyMissing,
            "This route protects the request against running twice and needs a key for it. Send one that stays the same \
             over all retries of this operation.",
        )
    }

    /// A delivery is not shown to be the sender's. It says nothing of any record: whoever sent it may be anyone.
    pub fn forged(why: Forgery) -> Problem {
        let what = match why {
            Forgery::Missing => "The signature, or a field that is signed with it, is missing",
            Forgery::Malformed => "The signature, or a field that is signed with it, is malformed or there twice",
            Forgery::Expired => "The signature's time is too far from now",
            Forgery::Wrong => "The signature is not one of the sender's for this request",
        };
        Problem::new(Kind::SignatureInvalid, format!("{what}. Nothing was claimed or forwarded."))
    }

    /// Nobody could say whether this caller may have the answer. The record stays as it is.
    pub fn authorizer_unavailable(id: &RecordId) -> Problem {
        let detail = "The first request with this key was answered. Whether this caller may have its answer is for another \
                      service to say, which did not; the same request may be sent again.";
        Problem::new(Kind::AuthorizerUnavailable, detail).about(id)
    }

    /// The key's fault, and not the upgrade's: without a key the same request is passed on.
    pub fn key_with_upgrade() -> Problem {
        Problem::new(
            Kind::KeyInvalid,
            "A request that asks for another protocol (Upgrade) cannot have a key: a switched connection has no response \
             that could be recorded. Leave out one of the two; nothing was forwarded.",
        )
    }

    /// It is another method (RFC 9110 section 9.1), but there are servers that take it for the protected one.
    pub fn method_in_other_case(meant: &Method) -> Problem {
        Problem::new(
            Kind::MethodInvalid,
            format!("Methods are case-sensitive: write {meant}. Spelled otherwise the request would pass unprotected."),
        )
    }

    /// Applications would read this field as the one with dashes.
    pub fn ambiguous_field(name: &HeaderName, meant: &str) -> Problem {
        Problem::new(
            Kind::FieldInvalid,
            format!(
                "Many applications read the field {name} as {meant}. Write {meant}, or leave it out; nothing was forwarded."
            ),
        )
    }

    /// There is no room for one more of these.
    pub fn overloaded(of_what: &str) -> Problem {
        Problem::new(Kind::Overloaded, format!("Too many {of_what}; nothing was claimed or forwarded."))
    }

    /// A duplicate met an unknown record. Where such are sent again it had waited for that attempt, and its next repeat is sent.
    pub fn unknown(id: &RecordId, doubtful: &Doubtful, on_unknown: OnUnknown) -> Problem {
        let resend = on_unknown == OnUnknown::Resend;
        let next = if resend {
            "The same request may be sent again.".to_owned()
        } else {
            format!("It is not sent again; an operator has to find out and resolve record {id}.")
        };
        let reason = doubtful.reason.as_str();
        let mut problem = Problem::new(
            Kind::OutcomeUnknown,
            format!("The first request with this key may or may not have been executed ({reason}). {next}"),
        );
        problem.reason = Some(doubtful.reason);
        let problem = problem.about(id).with_original_status(doubtful.original_status);
        if resend { problem.same_key_after(AFTER_DOUBT) } else { problem }
    }

    /// The attempt's own caller, and whoever joined it, is told that the outcome is unknown.
    pub fn doubted(id: &RecordId, reason: Reason, on_unknown: OnUnknown) -> Problem {
        let (kind, what) = match reason {
            Reason::Timeout => (Kind::OutcomeUnknownTimeout, "The upstream did not answer in time"),
            Reason::Truncated => (Kind::OutcomeUnknownBroken, "The upstream's answer ended before its end"),
            Reason::HeadTooLarge => {
                (Kind::OutcomeUnknownBroken, "The upstream's answer has a longer head than the proxy reads")
            }
            Reason::Drained => (Kind::OutcomeUnknownBroken, "The proxy stopped while the request was running"),
            Reason::Panic => (Kind::OutcomeUnknownBroken, "The proxy failed while the request was running"),
            Reason::Status => {
                (Kind::OutcomeUnknownBroken, "The upstream's answer does not say whether it executed the request")
            }
            Reason::Reset | Reason::Lapsed => {
                (Kind::OutcomeUnknownBroken, "The connection to the upstream broke after the request was sent")
            }
        };
        let resend = on_unknown == OnUnknown::Resend;
        let next = if resend { "the same request may be sent again" } else { "it is not sent again by itself" };
        let mut problem =
            Problem::new(kind, format!("{what}. Whether the request was executed is not known; {next}.")).about(id);
        problem.reason = Some(reason);
        if resend { problem.same_key_after(AFTER_DOUBT) } else { problem }
    }

    /// The request went out without a claim: no record holds it, and a repeat may run it again.
    pub fn unprotected(mut self) -> Problem {
        self.detail =
            "The store could not be asked, so the request was forwarded without protection, and then its outcome was \
             lost. It may have been executed; no record keeps a repeat from executing it again."
                .to_owned();
        self.record = None;
        self
    }

    /// The caller's patience ended while the proxy still listens for the answer.
    pub fn still_listening(id: &RecordId) -> Problem {
        Problem::new(
            Kind::OutcomeUnknownTimeout,
            "The upstream has not answered yet. The proxy still listens: the same request with the same key is \
             answered with the late response, and is not executed again.",
        )
        .about(id)
        .same_key_after(Duration::from_secs(5))
    }

    /// A duplicate met a running attempt, or its wait ended.
    pub fn in_progress(id: &RecordId) -> Problem {
        Problem::new(
            Kind::RequestInProgress,
            "The first request with this key is still running. The same request with the same key gets its response \
             later.",
        )
        .about(id)
    }

    /// The attempt that this duplicate met, or waited for, is over and has left no record: whatever comes next may run.
    pub fn ended_without_record(id: &RecordId) -> Problem {
        Problem::new(
            Kind::RequestInProgress,
            "The first request with this key has ended without an answer that is kept. The same request with the same \
             key may be sent again.",
        )
        .about(id)
    }

    /// Another request came under a used key. `differs` names what does, as far as that is known.
    ///
    /// Never advises another key: a client that only wrote the same body another way would execute its request twice.
    pub fn reused(id: &RecordId, fate: Fate, status: Option<u16>, differs: Vec<&'static str>) -> Problem {
        let is_compared = !differs.is_empty();
        let difference = if !is_compared {
            "The first request with this key was recorded by an earlier version, and cannot be compared with this one."
                .to_owned()
        } else {
            format!("This key was used for a different request: its {}.", what_differs(&differs))
        };
        let first = match (fate, status) {
            (Fate::Running, _) => "The first request is still running.".to_owned(),
            (Fate::Unknown, _) => {
                format!(
                    "The outcome of the first request is not known; an operator has to find out and resolve record {id}."
                )
            }
            (Fate::Answered, Some(status)) => format!("The first request ended with {status}."),
            (Fate::Answered, None) => "The first request has ended.".to_owned(),
        };
        let next = match fate {
            Fate::Unknown => "Nothing was forwarded.",
            _ if !is_compared => "Nothing was forwarded; an operator can see the record.",
            Fate::Running | Fate::Answered => {
                "Nothing was forwarded; the first request, sent again as it was, gets the answer to it."
            }
        };
        let mut problem = Problem::new(Kind::KeyReused, format!("{difference} {first} {next}"));
        problem.differs = differs;
        if fate == Fate::Unknown || !is_compared {
            problem.retry = Some(Retry::Operator);
        }
        problem.about(id).with_original_status(status)
    }

    /// The key was used with other credentials. The record is named, whose id whoever knows scope and key can compute;
    /// nothing else of it is said.
    pub fn other_caller(id: &RecordId) -> Problem {
        Problem::new(
            Kind::OtherCaller,
            "The first request with this key came with other credentials, or its record does not say with which. Its \
             answer is for that caller alone; nothing was forwarded.",
        )
        .about(id)
    }

    /// What it says of a request that has a record; `None` where it has none.
    pub fn fate(&self) -> Option<(Fate, Option<u16>)> {
        match self.kind {
            Kind::OutcomeUnknown | Kind::OutcomeUnknownBroken | Kind::OutcomeUnknownTimeout => {
                self.record.as_ref().map(|_| (Fate::Unknown, self.original_status))
            }
            Kind::ResponseNotRetained => Some((Fate::Answered, self.original_status)),
            _ => None,
        }
    }

    /// The record is complete, but its body was not kept.
    pub fn not_retained(id: &RecordId, status: u16) -> Problem {
        Problem::new(
            Kind::ResponseNotRetained,
            format!(
                "The request was executed and answered with status {status}; its body was not kept (it was too large, \
                 or the store was full)."
            ),
        )
        .about(id)
        .with_original_status(Some(status))
    }

    /// What kind of problem it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How a request that ends like this is counted.
    pub fn result(&self) -> RequestResult {
        self.kind.result()
    }

    /// Writes the problem out as a response.
    pub fn into_response(self) -> Response<Body> {
        let status = self.kind.status();
        let mut body = serde_json::Map::new();
        body.insert("type".into(), format!("urn:onceproxy:problem:{}", self.kind.word()).into());
        body.insert("title".into(), self.kind.title().into());
        body.insert("status".into(), status.as_u16().into());
        let (kind, code) = (self.kind.stripe_type(), self.kind.word());
        body.insert("error".into(), serde_json::json!({"type": kind, "code": code, "message": self.detail}));
        body.insert("detail".into(), self.detail.into());
        if let Some(retry) = self.retry {
            body.insert("retry".into(), retry.word().into());
        }
        if let Some(record) = &self.record {
            body.insert("record".into(), record.to_string().into());
        }
        if let Some(reason) = self.reason {
            body.insert("reason".into(), reason.as_str().into());
        }
        if !self.differs.is_empty() {
            body.insert("differs".into(), self.differs.into());
        }
        if let Some(original) = self.original_status {
            body.insert("original_status".into(), original.into());
        }
        let text = serde_json::Value::Object(body).to_string();
        let mut response = Response::new(Body::full(text.into()));
        *response.status_mut() = status;
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(pause) = self.retry_after {
            fields.insert(RETRY_AFTER, HeaderValue::from(pause.as_secs().max(1)));
        }
        if let Some(value) = self.retry.map(Retry::stripe_should_retry) {
            fields.insert("stripe-should-retry", value);
        }
        headers::add_cache_status(fields, &CacheStatus::Problem(self.kind.word()));
        response
    }
}

/// `body differs`, `target, headers and body differ`.
fn what_differs(words: &[&str]) -> String {
    match words {
        ["headers"] | [] => "headers differ".to_owned(),
        [only] => format!("{only} differs"),
        [others @ .., last] => format!("{} and {last} differ", others.join(", ")),
    }
}

impl From<KeyFault> for Problem {
    fn from(fault: KeyFault) -> Problem {
        let kind = match fault {
            KeyFault::Invalid(_) => Kind::KeyInvalid,
            KeyFault::Body { .. } => Kind::BodyInvalid,
        };
        Problem::new(kind, fault.to_string())
    }
}

impl From<ScopeFault> for Problem {
    fn from(fault: ScopeFault) -> Problem {
        Problem::new(Kind::ScopeInvalid, format!("Callers are told apart by {fault}. Nothing was forwarded."))
    }
}

impl From<BodyFault> for Problem {
    fn from(fault: BodyFault) -> Problem {
        Problem::new(Kind::BodyInvalid, fault.to_string())
    }
}

/// The status of a replay. What was recorded was a status once; a damaged one must not look like success.
pub(super) fn recorded_status(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY)
}
