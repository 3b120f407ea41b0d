//! The metrics as those who count have them: resolved once at start, so that counting on the path of a request takes no
//! look-up.
//!
//! Separate from the families ([`super`]), which say what there is.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::labels::{Authorized, Forgery, OperationKindLabels, RequestResult, RouteHeaderLabels, RouteResultLabels};
use super::{Count, Histogram, HistogramFamily};

/// What became of the spans of traces. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct SpanMetrics {
    /// Taken by the collector.
    pub exported: Counter,
    /// Dropped where they were made: the queue was full.
    pub dropped: Counter,
    /// Given up: the collector refused them, or was away for too long.
    pub lost: Counter,
}

/// What is counted where clients connect. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct ListenerMetrics {
    /// Connections that are open.
    pub connections: Gauge,
    /// TLS handshakes that failed or took too long.
    pub handshake_failures: Counter,
    /// Connections closed because of what their clients did with HTTP/2.
    pub abused: Counter,
    /// Times that changed certificate files were taken.
    pub certificate_reloads: Counter,
    /// Times that changed certificate files could not be used.
    pub certificate_reload_failures: Counter,
}

/// What is counted of the questions to the authorizer of one route.
#[derive(Clone, Debug)]
pub struct AuthorizeMetrics {
    pub(super) answers: [Count; Authorized::ALL.len()],
    pub(super) seconds: Histogram,
}

impl AuthorizeMetrics {
    /// Counts one, and observes how long it took.
    pub fn asked(&self, answer: Authorized, took: Duration) {
        self.answers[answer as usize].inc();
        self.seconds.took(took);
    }
}

/// What is counted of the deliveries to one route whose signature does not hold.
#[derive(Clone, Debug, Default)]
pub struct SignatureMetrics(pub(super) [Counter; Forgery::ALL.len()]);

impl SignatureMetrics {
    /// Counts one, by what is wrong with it.
    pub fn count(&self, why: Forgery) {
        self.0[why as usize].inc();
    }
}

/// The metrics of one kind of store operation.
#[derive(Clone, Debug)]
pub struct StoreOperationMetrics {
    pub(super) operation: &'static str,
    pub(super) seconds: Histogram,
    pub(super) errors: Family<OperationKindLabels, Counter>,
}

impl StoreOperationMetrics {
    /// Shows these kinds of failures before the first of them, so that an alert on their rate sees it.
    pub fn show(&self, kinds: impl IntoIterator<Item = &'static str>) {
        for kind in kinds {
            drop(self.errors.get_or_create(&OperationKindLabels { operation: self.operation, kind }));
        }
    }

    /// Observes how long an operation took that began at `start`.
    pub fn took(&self, start: Instant) {
        self.seconds.took(start.elapsed());
    }

    /// Counts a failure of this kind.
    pub fn failed(&self, kind: &'static str) {
        self.errors.get_or_create(&OperationKindLabels { operation: self.operation, kind }).inc();
    }
}

/// The metrics of one route, resolved.
#[derive(Clone, Debug)]
pub struct RouteMetrics {
    pub(super) requests: [Count; RequestResult::ALL.len()],
    pub(super) name: String,
    /// Made when first needed: each is a series for every bucket, and most results are rare.
    pub(super) request_seconds: Arc<[OnceLock<Histogram>; RequestResult::ALL.len()]>,
    pub(super) all_request_seconds: HistogramFamily<RouteResultLabels>,
    /// Requests handed to an upstream connection.
    pub upstream_sends: Count,
    /// Second sends after a first that certainly was none.
    pub upstream_resends: Counter,
    /// Time of the upstream's whole answer.
    pub upstream_seconds: Histogram,
    /// Attempts and plain requests that are being forwarded now.
    pub in_flight: Gauge,
    /// Duplicates that wait now.
    pub waiting: Gauge,
    /// Part of lease and `abandon_after` used.
    pub lease_used: Histogram,
    /// Answers after the caller's timeout.
    pub late_answers: Counter,
    /// Claims whose lease ran out.
    pub stale_claims: Counter,
    /// Claims written anew.
    pub rewritten_claims: Counter,
    /// Writes that found another's record.
    pub lost_writes: Counter,
    /// Duplicates under another fingerprint policy.
    pub policy_changed: Counter,
    /// Same request under a new key.
    pub new_key_same_request: Counter,
    /// Same request and key under another scope.
    pub same_request_new_scope: Counter,
    /// Fields dropped because applications read them as one with dashes.
    pub underscore_fields: Counter,
    pub(super) unprotected_keys: Family<RouteHeaderLabels, Counter>,
}

impl RouteMetrics {
    /// Counts a key that protects nothing, by the header that carried it: a name from a fixed list.
    pub fn unprotected_key(&self, header: &'static str) {
        let labels = RouteHeaderLabels { route: self.name.clone(), header };
        self.unprotected_keys.get_or_create(&labels).inc();
    }

    /// Counts a request that ended like this, and observes how long it took.
    pub fn answered(&self, result: RequestResult, took: Duration) {
        self.requests[result as usize].inc();
        let seconds = self.request_seconds[result as usize].get_or_init(|| {
            let labels = RouteResultLabels { route: self.name.clone(), result };
            self.all_request_seconds.get_or_create(&labels).clone()
        });
        seconds.took(took);
    }
}
