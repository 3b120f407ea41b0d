//! Every metric family in one place, with its name and its help text.
//!
//! Labels are types with few values: route names from the settings, and the words of the enums in `labels`. Keys,
//! credentials and bodies never get here. `handles` are resolved once at start, so that counting on the path of a
//! request takes no look-up.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};

mod handles;
mod labels;
mod spread;

pub use handles::{
    AuthorizeMetrics, ListenerMetrics, RouteMetrics, SignatureMetrics, SpanMetrics, StoreOperationMetrics,
};
pub use labels::{Authorized, Forgery, KEY_HEADERS, OTHER_KEY_HEADER, Reload, RequestResult};
use labels::{
    AuthorizedLabels, ForgeryLabels, OperationKindLabels, OperationLabel, ReloadLabel, RouteHeaderLabels, RouteLabel,
    RouteResultLabels, SpanResultLabel, StateLabel, VersionLabel,
};
pub use spread::{Count, Histogram};

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

/// Registers each metric as it is made, so that what one is stands in one place.
struct Families(Registry);

impl Families {
    fn of<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.made(name, help, M::default())
    }

    fn made<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    /// One whose name ends in its unit.
    fn seconds<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }
}

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
    underscore_fields: Family<RouteLabel, Counter>,
    unprotected_keys: Family<RouteHeaderLabels, Counter>,
    authorize: Family<AuthorizedLabels, Count>,
    authorize_seconds: HistogramFamily<RouteLabel>,
    signatures_rejected: Family<ForgeryLabels, Counter>,
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
    log_lines_dropped: Counter,
}

impl Metrics {
    /// Every family, registered.
    pub fn new() -> Arc<Metrics> {
        let mut r = Families(Registry::with_prefix("onceproxy"));
        let metrics = Metrics {
            requests: r.of("requests", "Requests answered, by how they ended"),
            request_seconds: r.seconds(
                "request",
                "Time from a request's head to its answer's head, by how it ended",
                Family::new_with_constructor(seconds),
            ),
            upstream_sends: r.of("upstream_sends", "Requests handed to an upstream connection"),
            upstream_resends: r
                .of("upstream_resends", "Requests sent a second time because the first was certainly not sent"),
            upstream_seconds: r.seconds(
                "upstream",
                "Time from handing a request to the upstream to the end of its answer",
                Family::new_with_constructor(seconds),
            ),
            in_flight: r.of("in_flight", "Attempts and plain requests that are being forwarded now"),
            waiting: r.of("waiting", "Duplicates that wait for a running attempt"),
            lease_used: r.made(
                "lease_used_ratio",
                "The largest part of its lease and of abandon_after that an attempt used",
                Family::new_with_constructor(ratios),
            ),
            late_answers: r
                .of("late_answers", "Answers that came after the caller had been told that the outcome is unknown"),
            stale_claims: r.of("stale_claims", "Claims whose owner let the lease run out"),
            rewritten_claims: r
                .of("rewritten_claims", "Claims that the store had forgotten and that were written anew"),
            lost_writes: r
                .of("lost_writes", "Completions and doubts that came too late, because the record was another's"),
            policy_changed: r.of(
                "fingerprint_policy_changed",
                "Duplicates compared with the first request by their parts as they came, because the \
                 fingerprint settings changed between them, and equal",
            ),
            new_key_same_request: r.of(
                "new_key_same_request",
                "Requests equal to one of the last minutes but for their key: a client that makes \
                 a key for every attempt",
            ),
            underscore_fields: r.of(
                "underscore_fields",
                "Fields dropped because applications read an underscore in their name as the dash of one that means \
                 something",
            ),
            unprotected_keys: r
                .of("unprotected_keys", "Keys of requests that passed unprotected, by the header that carried them"),
            same_request_new_scope: r.of(
                "same_request_new_scope",
                "Requests equal to one of the last minutes, key included, under another scope",
            ),
            authorize: r.of("authorize", "Questions whether a caller may have a replay or a join, by their answer"),
            authorize_seconds: r.seconds("authorize", "Time of such a question", Family::new_with_constructor(seconds)),
            signatures_rejected: r
                .of("signatures_rejected", "Webhook deliveries refused because their signature does not hold, by why"),
            records_open: r.of("records_open", "Open records in the store, by state"),
            store_seconds: r.seconds("store", "Time of a store operation", Family::new_with_constructor(seconds)),
            store_errors: r.of("store_errors", "Store operations that failed, by kind"),
            listeners: ListenerMetrics {
                connections: r.of("connections", "Client connections that are open now"),
                handshake_failures: r.of(
                    "tls_handshake_failures",
                    "Client connections on which the TLS handshake failed or took too long",
                ),
                abused: r.of(
                    "http2_abused_connections",
                    "Client connections closed because of what their clients did with HTTP/2",
                ),
                certificate_reloads: r.of("certificate_reloads", "Times that changed certificate files were taken"),
                certificate_reload_failures: r.of(
                    "certificate_reload_failures",
                    "Times that changed certificate files could not be used, and the old ones stayed",
                ),
            },
            log_lines_dropped: r
                .of("log_lines_dropped", "Lines of the log that were dropped because nobody read them in time"),
            tunnels: r.of("tunnels", "Tunnels (CONNECT) that are open now; nothing in them is protected"),
            buffered_bytes: r.of("buffered_bytes", "Bytes of request and response bodies held now"),
            ready: r.of("ready", "Whether the process wants traffic and its store keeps the promise"),
            build: r.of("build_info", "Always 1; which version this is"),
            config_reloads: r.of("config_reloads", "Reloads of the settings, by how they ended"),
            config_last_reload_successful: r.of(
                "config_last_reload_successful",
                "1 while the settings in force are those that were read last, 0 after a reload that failed",
            ),
            trace_spans: r.of("trace_spans", "Spans of traces, by what became of them"),
            registry: r.0,
        };
        metrics.build.get_or_create(&VersionLabel { version: env!("CARGO_PKG_VERSION") }).set(1);
        // The settings of the start are good ones, and an alert on the rate of failures needs a beginning.
        metrics.config_last_reload_successful.set(1);
        for result in Reload::ALL {
            drop(metrics.config_reloads.get_or_create(&ReloadLabel { result }));
        }
        drop(metrics.spans());
        Arc::new(metrics)
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
        // Shown before the first of them, so that an alert on their rate sees it.
        let key = RouteHeaderLabels { route: name.to_owned(), header: "idempotency-key" };
        drop(self.unprotected_keys.get_or_create(&key));
        let with_result = |result| RouteResultLabels { route: name.to_owned(), result };
        RouteMetrics {
            requests: RequestResult::ALL.map(|r| self.requests.get_or_create_owned(&with_result(r))),
            name: name.to_owned(),
            request_seconds: Default::default(),
            all_request_seconds: self.request_seconds.clone(),
            upstream_sends: self.upstream_sends.get_or_create_owned(&label),
            upstream_resends: self.upstream_resends.get_or_create_owned(&label),
            upstream_seconds: self.upstream_seconds.get_or_create_owned(&label),
            in_flight: self.in_flight.get_or_create_owned(&label),
            waiting: self.waiting.get_or_create_owned(&label),
            lease_used: self.lease_used.get_or_create_owned(&label),
            late_answers: self.late_answers.get_or_create_owned(&label),
            stale_claims: self.stale_claims.get_or_create_owned(&label),
            rewritten_claims: self.rewritten_claims.get_or_create_owned(&label),
            lost_writes: self.lost_writes.get_or_create_owned(&label),
            policy_changed: self.policy_changed.get_or_create_owned(&label),
            new_key_same_request: self.new_key_same_request.get_or_create_owned(&label),
            same_request_new_scope: self.same_request_new_scope.get_or_create_owned(&label),
            underscore_fields: self.underscore_fields.get_or_create_owned(&label),
            unprotected_keys: self.unprotected_keys.clone(),
        }
    }

    /// Takes the series of a route that is gone out of the exposition. Handles that are left go on counting, and are not
    /// shown.
    pub fn forget_route(&self, name: &str) {
        let label = RouteLabel { route: name.to_owned() };
        for result in RequestResult::ALL {
            let labels = RouteResultLabels { route: name.to_owned(), result };
            self.requests.remove(&labels);
            self.request_seconds.remove(&labels);
        }
        self.upstream_sends.remove(&label);
        for counters in [
            &self.upstream_resends,
            &self.late_answers,
            &self.stale_claims,
            &self.rewritten_claims,
            &self.lost_writes,
            &self.policy_changed,
            &self.new_key_same_request,
            &self.same_request_new_scope,
            &self.underscore_fields,
        ] {
            counters.remove(&label);
        }
        for histograms in [&self.upstream_seconds, &self.lease_used, &self.authorize_seconds] {
            histograms.remove(&label);
        }
        for gauges in [&self.in_flight, &self.waiting] {
            gauges.remove(&label);
        }
        for header in KEY_HEADERS.into_iter().chain([OTHER_KEY_HEADER]) {
            self.unprotected_keys.remove(&RouteHeaderLabels { route: name.to_owned(), header });
        }
        for answer in Authorized::ALL {
            self.authorize.remove(&AuthorizedLabels { route: name.to_owned(), answer });
        }
        for why in Forgery::ALL {
            self.signatures_rejected.remove(&ForgeryLabels { route: name.to_owned(), why });
        }
    }

    /// What is counted of the questions to the authorizer of one route.
    pub fn authorizer(&self, route: &str) -> AuthorizeMetrics {
        let of = |answer| AuthorizedLabels { route: route.to_owned(), answer };
        AuthorizeMetrics {
            answers: Authorized::ALL.map(|answer| self.authorize.get_or_create_owned(&of(answer))),
            seconds: self.authorize_seconds.get_or_create_owned(&RouteLabel { route: route.to_owned() }),
        }
    }

    /// What is counted of the signatures of one route. Each reason shows before the first of its kind.
    pub fn signatures(&self, route: &str) -> SignatureMetrics {
        let of = |why| ForgeryLabels { route: route.to_owned(), why };
        SignatureMetrics(Forgery::ALL.map(|why| self.signatures_rejected.get_or_create_owned(&of(why))))
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
            seconds: self.store_seconds.get_or_create_owned(&OperationLabel { operation }),
            errors: self.store_errors.clone(),
        }
    }

    /// Counts a reload of the settings, and shows how it ended.
    pub fn reloaded(&self, result: Reload) {
        self.config_reloads.get_or_create(&ReloadLabel { result }).inc();
        self.config_last_reload_successful.set(i64::from(result == Reload::Success));
    }

    /// What became of the spans of traces.
    pub fn spans(&self) -> SpanMetrics {
        let spans = |result| self.trace_spans.get_or_create_owned(&SpanResultLabel { result });
        SpanMetrics { exported: spans("exported"), dropped: spans("dropped"), lost: spans("lost") }
    }

    /// Lines of the log that were dropped because nobody read them in time.
    pub fn log_lines_dropped(&self) -> &Counter {
        &self.log_lines_dropped
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_route_that_is_gone_leaves_nothing_behind() {
        let metrics = Metrics::new();
        for name in ["gone", "gone-too", "stays"] {
            let route = metrics.route(name);
            RequestResult::ALL.into_iter().for_each(|result| route.answered(result, Duration::from_millis(3)));
            route.unprotected_key(KEY_HEADERS[1]);
            route.unprotected_key(OTHER_KEY_HEADER);
            metrics.authorizer(name);
            metrics.signatures(name);
        }
        let of = |name: &str| {
            let (exposition, _) = metrics.expose();
            exposition.matches(&format!("route=\"{name}\"")).count()
        };
        let all = of("stays");
        assert_eq!(of("gone"), all);
        metrics.forget_route("gone");
        assert_eq!((of("gone"), of("gone-too"), of("stays")), (0, all, all));
        metrics.forget_route("never there");
        assert!(metrics.route("gone").requests[0].get() == 0 && of("gone") > 0, "it may come back");
    }

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
}
