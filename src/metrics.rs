//! Every metric family in one place, with its help text and its labels.
//!
//! Labels are types with few values: route names from the settings, and the words of the enums below. Keys,
//! credentials and bodies never get here. Handles are resolved once at start, so that counting on the path of a
//! request takes no look-up.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

mod spread;

pub use spread::{Count, Histogram};

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
}

impl RequestResult {
    /// Every result, in the order of the enum.
    pub const ALL: [RequestResult; 16] = [
        RequestResult::Executed,
        RequestResult::Replayed,
        RequestResult::Joined,
        RequestResult::InProgress,
        RequestResult::KeyReused,
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
    ];

    /// The word in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            RequestResult::Executed => "executed",
            RequestResult::Replayed => "replayed",
            RequestResult::Joined => "joined",
            RequestResult::InProgress => "in_progress",
            RequestResult::KeyReused => "key_reused",
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
        }
    }
}

impl EncodeLabelValue for RequestResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.as_str().encode(encoder)
    }
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
struct ReloadLabel {
    result: Reload,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SpanResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteResultLabels {
    route: String,
    result: RequestResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionLabel {
    version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationKindLabels {
    operation: &'static str,
    kind: &'static str,
}

// From half a millisecond, what a local store takes, to the ten minutes a payment may be listened for.
const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0];
const RATIOS: [f64; 9] = [0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0];

fn seconds() -> Histogram {
    Histogram::new(&SECONDS)
}

fn ratios() -> Histogram {
    Histogram::new(&RATIOS)
}

type HistogramFamily<L> = Family<L, Histogram, fn() -> Histogram>;

/// All metric families of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<RouteResultLabels, Count>,
    request_seconds: HistogramFamily<RouteResultLabels>,
    upstream_sends: Family<RouteLabel, Count>,
    upstream_resends: Family<RouteLabel, Counter>,
    upstream_seconds: HistogramFamily<RouteLabel>,
    in_flight: Family<RouteLabel, Gauge>,
    waiting: Family<RouteLabel, Gauge>,
    lease_used: HistogramFamily<RouteLabel>,
    late_answers: Family<RouteLabel, Counter>,
    stale_claims: Family<RouteLabel, Counter>,
    rewritten_claims: Family<RouteLabel, Counter>,
    lost_writes: Family<RouteLabel, Counter>,
    policy_changed: Family<RouteLabel, Counter>,
    new_key_same_request: Family<RouteLabel, Counter>,
    same_request_new_scope: Family<RouteLabel, Counter>,
    records_open: Family<StateLabel, Gauge>,
    store_seconds: HistogramFamily<OperationLabel>,
    store_errors: Family<OperationKindLabels, Counter>,
    listeners: ListenerMetrics,
    tunnels: Gauge,
    buffered_bytes: Gauge,
    ready: Gauge,
    build: Family<VersionLabel, Gauge>,
    config_reloads: Family<ReloadLabel, Counter>,
    config_last_reload_successful: Gauge,
    trace_spans: Family<SpanResultLabel, Counter>,
    spans: SpanMetrics,
}

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

impl Metrics {
    /// Registers every family.
    pub fn new() -> Arc<Metrics> {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("onceproxy"),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds),
            upstream_sends: Family::default(),
            upstream_resends: Family::default(),
            upstream_seconds: Family::new_with_constructor(seconds),
            in_flight: Family::default(),
            waiting: Family::default(),
            lease_used: Family::new_with_constructor(ratios),
            late_answers: Family::default(),
            stale_claims: Family::default(),
            rewritten_claims: Family::default(),
            lost_writes: Family::default(),
            policy_changed: Family::default(),
            new_key_same_request: Family::default(),
            same_request_new_scope: Family::default(),
            records_open: Family::default(),
            store_seconds: Family::new_with_constructor(seconds),
            store_errors: Family::default(),
            listeners: ListenerMetrics::default(),
            tunnels: Gauge::default(),
            buffered_bytes: Gauge::default(),
            ready: Gauge::default(),
            build: Family::default(),
            config_reloads: Family::default(),
            config_last_reload_successful: Gauge::default(),
            trace_spans: Family::default(),
            spans: SpanMetrics::default(),
        };
        let spans = |result| metrics.trace_spans.get_or_create(&SpanResultLabel { result }).clone();
        metrics.spans = SpanMetrics { exported: spans("exported"), dropped: spans("dropped"), lost: spans("lost") };
        metrics.build.get_or_create(&VersionLabel { version: env!("CARGO_PKG_VERSION") }).set(1);
        // The settings of the start are good ones, and an alert on the rate of failures needs a beginning.
        metrics.config_last_reload_successful.set(1);
        for result in Reload::ALL {
            drop(metrics.config_reloads.get_or_create(&ReloadLabel { result }));
        }
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("requests", "Requests answered, by how they ended", self.requests.clone());
        r.register_with_unit(
            "request",
            "Time from a request's head to its answer's head, by how it ended",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        r.register("upstream_sends", "Requests handed to an upstream connection", self.upstream_sends.clone());
        r.register(
            "upstream_resends",
            "Requests sent a second time because the first was certainly not sent",
            self.upstream_resends.clone(),
        );
        r.register_with_unit(
            "upstream",
            "Time from handing a request to the upstream to the end of its answer",
            Unit::Seconds,
            self.upstream_seconds.clone(),
        );
        r.register("in_flight", "Attempts and plain requests that are being forwarded now", self.in_flight.clone());
        r.register("waiting", "Duplicates that wait for a running attempt", self.waiting.clone());
        r.register(
            "lease_used_ratio",
            "The largest part of its lease and of abandon_after that an attempt used",
            self.lease_used.clone(),
        );
        r.register(
            "late_answers",
            "Answers that came after the caller had been told that the outcome is unknown",
            self.late_answers.clone(),
        );
        r.register("stale_claims", "Claims whose owner let the lease run out", self.stale_claims.clone());
        r.register(
            "rewritten_claims",
            "Claims that the store had forgotten and that were written anew",
            self.rewritten_claims.clone(),
        );
        r.register(
            "lost_writes",
            "Completions and doubts that came too late, because the record was another's",
            self.lost_writes.clone(),
        );
        r.register(
            "fingerprint_policy_changed",
            "Duplicates not compared with the first request, because the fingerprint settings changed between them",
            self.policy_changed.clone(),
        );
        r.register(
            "new_key_same_request",
            "Requests equal to one of the last minutes but for their key: a client that makes a key for every attempt",
            self.new_key_same_request.clone(),
        );
        r.register(
            "same_request_new_scope",
            "Requests equal to one of the last minutes, key included, under another scope",
            self.same_request_new_scope.clone(),
        );
        r.register("records_open", "Open records in the store, by state", self.records_open.clone());
        r.register_with_unit("store", "Time of a store operation", Unit::Seconds, self.store_seconds.clone());
        r.register("store_errors", "Store operations that failed, by kind", self.store_errors.clone());
        let listeners = &self.listeners;
        r.register("connections", "Client connections that are open now", listeners.connections.clone());
        r.register(
            "tls_handshake_failures",
            "Client connections on which the TLS handshake failed or took too long",
            listeners.handshake_failures.clone(),
        );
        r.register(
            "http2_abused_connections",
            "Client connections closed because of what their clients did with HTTP/2",
            listeners.abused.clone(),
        );
        r.register(
            "certificate_reloads",
            "Times that changed certificate files were taken",
            listeners.certificate_reloads.clone(),
        );
        r.register(
            "certificate_reload_failures",
            "Times that changed certificate files could not be used, and the old ones stayed",
            listeners.certificate_reload_failures.clone(),
        );
        r.register(
            "tunnels",
            "Tunnels (CONNECT) that are open now; nothing in them is protected",
            self.tunnels.clone(),
        );
        r.register("buffered_bytes", "Bytes of request and response bodies held now", self.buffered_bytes.clone());
        r.register("ready", "Whether the process wants traffic and its store keeps the promise", self.ready.clone());
        r.register("build_info", "Always 1; which version this is", self.build.clone());
        r.register("config_reloads", "Reloads of the settings, by how they ended", self.config_reloads.clone());
        r.register(
            "config_last_reload_successful",
            "1 while the settings in force are those that were read last, 0 after a reload that failed",
            self.config_last_reload_successful.clone(),
        );
        r.register("trace_spans", "Spans of traces, by what became of them", self.trace_spans.clone());
    }

    /// The exposition in OpenMetrics text format, and its content type.
    pub fn expose(&self) -> (String, &'static str) {
        let mut text = String::new();
        // Writing to a String does not fail, and our label values do not either.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        (text, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    }

    /// The handles of one route.
    pub fn route(&self, name: &str) -> RouteMetrics {
        let label = RouteLabel { route: name.to_owned() };
        let with_result = |result| RouteResultLabels { route: name.to_owned(), result };
        RouteMetrics {
            requests: RequestResult::ALL.map(|r| self.requests.get_or_create(&with_result(r)).clone()),
            name: name.to_owned(),
            request_seconds: Default::default(),
            all_request_seconds: self.request_seconds.clone(),
            upstream_sends: self.upstream_sends.get_or_create(&label).clone(),
            upstream_resends: self.upstream_resends.get_or_create(&label).clone(),
            upstream_seconds: self.upstream_seconds.get_or_create(&label).clone(),
            in_flight: self.in_flight.get_or_create(&label).clone(),
            waiting: self.waiting.get_or_create(&label).clone(),
            lease_used: self.lease_used.get_or_create(&label).clone(),
            late_answers: self.late_answers.get_or_create(&label).clone(),
            stale_claims: self.stale_claims.get_or_create(&label).clone(),
            rewritten_claims: self.rewritten_claims.get_or_create(&label).clone(),
            lost_writes: self.lost_writes.get_or_create(&label).clone(),
            policy_changed: self.policy_changed.get_or_create(&label).clone(),
            new_key_same_request: self.new_key_same_request.get_or_create(&label).clone(),
            same_request_new_scope: self.same_request_new_scope.get_or_create(&label).clone(),
        }
    }

    /// Tunnels (`CONNECT`) that are open now, or being opened.
    pub fn tunnels(&self) -> &Gauge {
        &self.tunnels
    }

    /// Counts a request that no route takes.
    pub fn answered_without_route(&self, result: RequestResult) {
        let labels = RouteResultLabels { route: String::new(), result };
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a claim that a sweep found lapsed. The route's name comes from the record.
    pub fn stale_claim(&self, route: &str) {
        self.stale_claims.get_or_create(&RouteLabel { route: route.to_owned() }).inc();
    }

    /// Sets the number of open records of a state (`claimed`, `unknown`), as the last sweep counted it.
    pub fn set_records_open(&self, state: &'static str, count: u64) {
        self.records_open.get_or_create(&StateLabel { state }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Shows what `/readyz` says now.
    pub fn set_ready(&self, ready: bool) {
        self.ready.set(ready.into());
    }

    /// The handles of one kind of store operation (`claim`, `renew`, `complete`, …).
    pub fn store_operation(&self, operation: &'static str) -> StoreOperationMetrics {
        StoreOperationMetrics {
            operation,
            seconds: self.store_seconds.get_or_create(&OperationLabel { operation }).clone(),
            errors: self.store_errors.clone(),
        }
    }

    /// Counts a reload of the settings, and shows how it ended.
    pub fn reloaded(&self, result: Reload) {
        self.config_reloads.get_or_create(&ReloadLabel { result }).inc();
        self.config_last_reload_successful.set(i64::from(result == Reload::Success));
    }

    /// What became of the spans of traces.
    pub fn spans(&self) -> &SpanMetrics {
        &self.spans
    }

    /// What is counted where clients connect.
    pub fn listeners(&self) -> &ListenerMetrics {
        &self.listeners
    }

    /// Bytes of bodies that are held now.
    pub fn buffered_bytes(&self) -> &Gauge {
        &self.buffered_bytes
    }
}

/// The metrics of one kind of store operation.
#[derive(Clone, Debug)]
pub struct StoreOperationMetrics {
    operation: &'static str,
    seconds: Histogram,
    errors: Family<OperationKindLabels, Counter>,
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
    requests: [Count; 16],
    name: String,
    /// Made when first needed: each is a series for every bucket, and most results are rare.
    request_seconds: Arc<[OnceLock<Histogram>; 16]>,
    all_request_seconds: HistogramFamily<RouteResultLabels>,
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
}

impl RouteMetrics {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposes_the_documented_names() {
        let metrics = Metrics::new();
        let route = metrics.route("payments");
        route.answered(RequestResult::Executed, Duration::from_millis(3));
        route.upstream_sends.inc();
        metrics.set_records_open("unknown", 2);
        metrics.store_operation("claim").failed("timed-out");
        let (text, _) = metrics.expose();
        for line in [
            r#"onceproxy_requests_total{route="payments",result="executed"} 1"#,
            r#"onceproxy_upstream_sends_total{route="payments"} 1"#,
            r#"onceproxy_records_open{state="unknown"} 2"#,
            r#"onceproxy_store_errors_total{operation="claim",kind="timed-out"} 1"#,
            r#"onceproxy_request_seconds_count{route="payments",result="executed"} 1"#,
            r#"onceproxy_in_flight{route="payments"} 0"#,
            r#"onceproxy_lease_used_ratio_count{route="payments"} 0"#,
            concat!(r#"onceproxy_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#),
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn results_are_listed_in_the_order_of_the_enum() {
        for (index, result) in RequestResult::ALL.iter().enumerate() {
            assert_eq!(*result as usize, index);
        }
    }
}
