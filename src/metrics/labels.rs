//! The labels of the metrics: types with few values, so that no key, credential or body can become one.
//!
//! Separate because their words are used beyond the metrics: in the log, and by whoever decides how a request ended.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

/// The names under which keys come, as far as they have a label of their own. Those of single requests, such as
/// `X-Request-Id`, are none: they change with every retry.
pub const KEY_HEADERS: [&str; 14] = [
    "idempotency-key",
    "x-idempotency-key",
    "idempotency-token",
    "x-idempotency-token",
    "idempotent-key",
    "x-idempotent-key",
    "idempotence-key",
    "x-idempotence-key",
    "idempotency_key",
    "idempotency-id",
    "paypal-request-id",
    "repeatability-request-id",
    "cko-idempotency-key",
    "klarna-idempotency-key",
];
/// The label of every other spelling.
pub const OTHER_KEY_HEADER: &str = "other";

/// How a request ended: the label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestResult {
    /// Forwarded under a claim, and recorded.
    Executed,
    /// Answered from a record.
    Replayed,
    /// Waited for a running attempt and got its answer.
    Joined,
    /// Told that an attempt is running.
    InProgress,
    /// The key belongs to another request.
    KeyReused,
    /// The key belongs to another caller.
    OtherCaller,
    /// Missing or malformed key.
    KeyRejected,
    /// Body too large, too slow or unusable.
    BodyRejected,
    /// Nobody can tell whether it ran.
    Unknown,
    /// Answered with a status that means "not executed"; the key is free again.
    Released,
    /// Completed, but the body was not kept.
    NotRetained,
    /// Nothing was sent to the upstream.
    NotSent,
    /// Passed through without protection.
    Unprotected,
    /// The store could not answer.
    StoreError,
    /// Too many in flight.
    Overloaded,
    /// No route matches.
    NoRoute,
    /// Named a host that may not be reached.
    EgressRefused,
    /// Not signed by the sender of the webhook.
    SignatureRejected,
    /// Refused a replay or a join by the service that is asked.
    NotAllowed,
    /// That service did not say.
    AuthorizerError,
}

impl RequestResult {
    /// Every result, in the order of the enum.
    pub const ALL: [RequestResult; 20] = [
        RequestResult::Executed,
        RequestResult::Replayed,
        RequestResult::Joined,
        RequestResult::InProgress,
        RequestResult::KeyReused,
        RequestResult::OtherCaller,
        RequestResult::KeyRejected,
        RequestResult::BodyRejected,
        RequestResult::Unknown,
        RequestResult::Released,
        RequestResult::NotRetained,
        RequestResult::NotSent,
        RequestResult::Unprotected,
        RequestResult::StoreError,
        RequestResult::Overloaded,
        RequestResult::NoRoute,
        RequestResult::EgressRefused,
        RequestResult::SignatureRejected,
        RequestResult::NotAllowed,
        RequestResult::AuthorizerError,
    ];

    /// The word in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            RequestResult::Executed => "executed",
            RequestResult::Replayed => "replayed",
            RequestResult::Joined => "joined",
            RequestResult::InProgress => "in_progress",
            RequestResult::KeyReused => "key_reused",
            RequestResult::OtherCaller => "other_caller",
            RequestResult::KeyRejected => "key_rejected",
            RequestResult::BodyRejected => "body_rejected",
            RequestResult::Unknown => "unknown",
            RequestResult::Released => "released",
            RequestResult::NotRetained => "not_retained",
            RequestResult::NotSent => "not_sent",
            RequestResult::Unprotected => "unprotected",
            RequestResult::StoreError => "store_error",
            RequestResult::Overloaded => "overloaded",
            RequestResult::NoRoute => "no_route",
            RequestResult::EgressRefused => "egress_refused",
            RequestResult::SignatureRejected => "signature_rejected",
            RequestResult::NotAllowed => "not_allowed",
            RequestResult::AuthorizerError => "authorizer_error",
        }
    }
}

impl EncodeLabelValue for RequestResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.as_str().encode(encoder)
    }
}

/// Why a delivery is not shown to be the sender's: the label `why` of `onceproxy_signatures_rejected_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forgery {
    /// The signature is not there, or a field that is signed with it.
    Missing,
    /// It cannot be read, or is there twice.
    Malformed,
    /// Its time is too far from now.
    Expired,
    /// It is another one.
    Wrong,
}

impl Forgery {
    /// Each of them.
    pub const ALL: [Forgery; 4] = [Forgery::Missing, Forgery::Malformed, Forgery::Expired, Forgery::Wrong];

    /// The word in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Forgery::Missing => "missing",
            Forgery::Malformed => "malformed",
            Forgery::Expired => "expired",
            Forgery::Wrong => "wrong",
        }
    }
}

impl EncodeLabelValue for Forgery {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.as_str().encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ForgeryLabels {
    pub(super) route: String,
    pub(super) why: Forgery,
}

/// What became of a question to an authorizer: the label `answer` of `onceproxy_authorize_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Authorized {
    /// The caller may have the answer.
    Allowed,
    /// It may not.
    Refused,
    /// There was no answer that says.
    Unavailable,
}

impl Authorized {
    /// Each of them.
    pub const ALL: [Authorized; 3] = [Authorized::Allowed, Authorized::Refused, Authorized::Unavailable];
}

impl EncodeLabelValue for Authorized {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let word = match self {
            Authorized::Allowed => "allowed",
            Authorized::Refused => "refused",
            Authorized::Unavailable => "unavailable",
        };
        word.encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AuthorizedLabels {
    pub(super) route: String,
    pub(super) answer: Authorized,
}

/// How a reload of the settings ended: the label `result` of `onceproxy_config_reloads_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reload {
    /// The new settings are in force.
    Success,
    /// They had mistakes, and the old ones stay.
    Failure,
}

impl Reload {
    /// Both.
    pub const ALL: [Reload; 2] = [Reload::Success, Reload::Failure];

    /// The word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Reload::Success => "success",
            Reload::Failure => "failure",
        }
    }
}

impl EncodeLabelValue for Reload {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.as_str().encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReloadLabel {
    pub(super) result: Reload,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SpanResultLabel {
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RouteLabel {
    pub(super) route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RouteHeaderLabels {
    pub(super) route: String,
    /// From a fixed list.
    pub(super) header: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RouteResultLabels {
    pub(super) route: String,
    pub(super) result: RequestResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StateLabel {
    pub(super) state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VersionLabel {
    pub(super) version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OperationLabel {
    pub(super) operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OperationKindLabels {
    pub(super) operation: &'static str,
    pub(super) kind: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_listed_in_the_order_of_the_enum() {
        for (index, result) in RequestResult::ALL.iter().enumerate() {
            assert_eq!(*result as usize, index);
        }
    }
}
