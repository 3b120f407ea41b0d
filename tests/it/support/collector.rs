//! A collector of traces: the scripted upstream in another role, and what arrived there, decoded.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1 as wire;
use prost::Message;

use super::{Script, Upstream, eventually, reply};

/// One that takes everything. It is an upstream, and can be closed, slow or rude like one.
pub(crate) struct Collector(pub(crate) Upstream);

/// A span that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) kind: wire::span::SpanKind,
    pub(crate) flags: u32,
    pub(crate) attributes: BTreeMap<String, String>,
    /// Trace and span of each link.
    pub(crate) links: Vec<(String, String)>,
    pub(crate) failed: bool,
    /// Nanoseconds since the epoch.
    pub(crate) times: (u64, u64),
    /// What its sender said of itself.
    pub(crate) resource: BTreeMap<String, String>,
}

impl Span {
    pub(crate) fn says(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

impl Collector {
    /// One that listens.
    pub(crate) fn start() -> Collector {
        let mut collector = Collector::away();
        collector.0.open();
        collector
    }

    /// One that refuses connections until it is opened.
    pub(crate) fn away() -> Collector {
        let collector = Collector(Upstream::closed());
        collector.0.always(|_| taken());
        collector
    }

    /// The section of the settings that names it.
    pub(crate) fn settings(&self, more: &str) -> String {
        format!("[trace]\notlp_endpoint = \"http://{}\"\n{more}\n", self.0.address)
    }

    /// Everything that was sent to it and taken.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let received = self.0.received();
        received
            .iter()
            .flat_map(|request| {
                assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/v1/traces"));
                assert_eq!(request.field("content-type").as_deref(), Some("application/x-protobuf"));
                spans(&request.body)
            })
            .collect()
    }

    /// Every byte that was sent to it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.received().into_iter().flat_map(|request| [request.head, request.body].concat()).collect()
    }

    /// Waits for so many spans of this kind, and returns all of them in order.
    pub(crate) async fn wait_for(&self, kind: wire::span::SpanKind, count: usize) -> Vec<Span> {
        let mut found = eventually(&format!("{count} spans"), async || {
            let found: Vec<_> = self.spans().into_iter().filter(|span| span.kind == kind).collect();
            (found.len() >= count).then_some(found)
        })
        .await;
        assert_eq!(found.len(), count, "{found:#?}");
        found.sort_by_key(|span| span.times);
        found
    }

    /// Waits for so many requests' own spans.
    pub(crate) async fn requests(&self, count: usize) -> Vec<Span> {
        self.wait_for(wire::span::SpanKind::Server, count).await
    }
}

/// The answer of a collector that took everything.
pub(crate) fn taken() -> Script {
    reply(200).field("Content-Type", "application/x-protobuf").into()
}

/// The answer of one that refused some.
pub(crate) fn refused(count: i64, why: &str) -> Script {
    let partial = opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess {
        rejected_spans: count,
        error_message: why.to_owned(),
    };
    let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    reply(200).field("Content-Type", "application/x-protobuf").body(body).into()
}

fn spans(body: &[u8]) -> Vec<Span> {
    let message = ExportTraceServiceRequest::decode(body).expect("a message of OTLP");
    let mut found = Vec::new();
    for of_resource in message.resource_spans {
        let resource = texts(of_resource.resource.unwrap_or_default().attributes);
        for of_scope in of_resource.scope_spans {
            assert_eq!(of_scope.scope.as_ref().map(|scope| scope.name.as_str()), Some("onceproxy"));
            found.extend(of_scope.spans.into_iter().map(|span| decoded(span, &resource)));
        }
    }
    found
}

fn decoded(span: wire::Span, resource: &BTreeMap<String, String>) -> Span {
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    Span {
        kind: span.kind(),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        flags: span.flags,
        attributes: texts(span.attributes),
        links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
        failed: span.status.is_some_and(|status| status.code() == wire::status::StatusCode::Error),
        times: (span.start_time_unix_nano, span.end_time_unix_nano),
        name: span.name,
        resource: resource.clone(),
    }
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |attribute: KeyValue| {
        let value = match attribute.value.and_then(|value| value.value) {
            Some(Value::StringValue(text)) => text,
            Some(Value::IntValue(number)) => number.to_string(),
            other => panic!("{}: {other:?}", attribute.key),
        };
        (attribute.key, value)
    };
    attributes.into_iter().map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
