//! Spans as the bytes of OTLP: the protobuf messages of the OpenTelemetry project, filled in.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{self as wire, ResourceSpans, ScopeSpans, Status};
use prost::Message;

use super::{Kind, Span, Value};

/// In a span's flags: it is said whether the parent is another process's, and it is one (`SpanFlags`).
const KNOWS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// What stands in front of every batch: who sends it.
pub(super) fn resource(service_name: &str) -> Resource {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the system has random bytes once it is up");
    let instance = uuid::Builder::from_random_bytes(random).into_uuid();
    let attributes = [
        ("service.name", service_name.to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", instance.to_string()),
    ];
    let attributes = attributes.map(|(name, text)| attribute(name, Value::from(text)));
    Resource { attributes: attributes.into(), ..Resource::default() }
}

/// The request that hands these spans to a collector.
pub(super) fn request(resource: &Resource, spans: Vec<Span>) -> Vec<u8> {
    let scope = InstrumentationScope {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let spans = spans.into_iter().map(span).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let resource_spans =
        vec![ResourceSpans { resource: Some(resource.clone()), scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

/// How many spans a collector refused that took the rest, and why. An answer that is not one refused nothing.
pub(super) fn refused(answer: &[u8]) -> (u64, String) {
    let partial = ExportTraceServiceResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
    let partial = partial.unwrap_or_default();
    (u64::try_from(partial.rejected_spans).unwrap_or(0), partial.error_message)
}

fn span(span: Span) -> wire::Span {
    let remote = match span.parent {
        Some((_, true)) => KNOWS_REMOTE | IS_REMOTE,
        _ => KNOWS_REMOTE,
    };
    let link = span.link.map(|link| wire::span::Link {
        trace_id: link.trace_id().to_vec(),
        span_id: link.span_id().to_vec(),
        flags: KNOWS_REMOTE | IS_REMOTE | u32::from(link.flags()),
        ..wire::span::Link::default()
    });
    let failed = Status { code: wire::status::StatusCode::Error.into(), ..Status::default() };
    wire::Span {
        trace_id: span.context.trace_id().to_vec(),
        span_id: span.context.span_id().to_vec(),
        parent_span_id: span.parent.map(|(parent, _)| parent.span_id().to_vec()).unwrap_or_default(),
        flags: remote | u32::from(span.context.flags()),
        name: span.name.into_owned(),
        kind: kind(span.kind).into(),
        start_time_unix_nano: nanoseconds(span.began),
        end_time_unix_nano: nanoseconds(span.ended.max(span.began)),
        attributes: span.attributes.into_iter().map(|(name, value)| attribute(name, value)).collect(),
        links: link.into_iter().collect(),
        status: span.failed.then_some(failed),
        ..wire::Span::default()
    }
}

fn kind(kind: Kind) -> wire::span::SpanKind {
    match kind {
        Kind::Server => wire::span::SpanKind::Server,
        Kind::Client => wire::span::SpanKind::Client,
        Kind::Internal => wire::span::SpanKind::Internal,
    }
}

fn nanoseconds(moment: SystemTime) -> u64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn attribute(name: &'static str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::StringValue(text.into_owned()),
        Value::Number(number) => any_value::Value::IntValue(number),
    };
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
