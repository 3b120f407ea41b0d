//! Traces: what one request did, as spans, and their way to a collector.
//!
//! What a span is and where it belongs is decided here, in every build; only the feature `otel` has what sends them.
//! Whoever makes a span hands it over and goes on: the queue is bounded, and what finds it full is counted and gone.
//! Which spans a request has is the proxy's business.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::config;
use crate::metrics::SpanMetrics;
#[cfg(feature = "otel")]
use crate::shutdown::Signal;

mod context;
mod span;

#[cfg(feature = "otel")]
mod export;
#[cfg(feature = "otel")]
mod otlp;

pub use context::{Context, TEXT};
#[cfg(feature = "otel")]
pub use export::{Export, StartError};
pub use span::{Attribute, Kind, Span, Value};

/// Spans that wait to be sent. At about a kilobyte each they are a few megabytes at the most.
const QUEUE: usize = 4096;

/// Takes spans. Clones take them for the same collector.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    sample: f64,
    queue: mpsc::Sender<Span>,
    metrics: SpanMetrics,
}

impl Tracer {
    /// One that takes none: no collector is set, or this build has nothing to send spans with.
    pub fn off() -> Tracer {
        Tracer(None)
    }

    /// One that takes the spans of this part of requests, and the other end of its queue.
    pub fn new(sample: f64, metrics: SpanMetrics) -> (Tracer, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(QUEUE);
        (Tracer(Some(Arc::new(Inner { sample, queue, metrics }))), spans)
    }

    /// Whether there is anything to trace for.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Where a request stands: under its caller's span, as its caller decided; or at the beginning of a trace, which is
    /// sampled or not. `None` when tracing is off.
    pub fn place(&self, parent: Option<&Context>) -> Option<Context> {
        let inner = self.0.as_ref()?;
        Some(parent.map_or_else(|| Context::root(inner.sample), Context::child))
    }

    /// Takes a span that has ended. Never waits: a span for which there is no room is counted and dropped.
    pub fn take(&self, span: Span) {
        if let Some(inner) = &self.0
            && inner.queue.try_send(span).is_err()
        {
            inner.metrics.dropped.inc();
        }
    }
}

/// Starts what these settings ask for: a tracer, and what sends its spans until `stop` is given, to be run beside the
/// rest. A build without the feature takes no endpoint in its settings.
///
/// # Errors
/// If the system has no certificates to trust, for an `https` collector.
#[cfg(feature = "otel")]
pub fn start(
    settings: &config::Trace,
    metrics: &SpanMetrics,
    stop: &Signal,
) -> Result<(Tracer, Option<Export>), StartError> {
    let Some(endpoint) = &settings.otlp_endpoint else { return Ok((Tracer::off(), None)) };
    let (tracer, spans) = Tracer::new(settings.sample, metrics.clone());
    let export = Export::new(endpoint, &settings.service_name, spans, metrics.clone(), stop.clone())?;
    Ok((tracer, Some(export)))
}

/// What sends spans. There is none in this build.
#[cfg(not(feature = "otel"))]
#[derive(Debug)]
pub enum Export {}

/// Why spans cannot be sent. Nothing can go wrong in this build.
#[cfg(not(feature = "otel"))]
#[derive(Debug, thiserror::Error)]
pub enum StartError {}

#[cfg(not(feature = "otel"))]
impl Export {
    /// Sends spans until the stop.
    pub async fn run(self) {
        match self {}
    }
}

/// Starts nothing: this build has nothing to send spans with, and takes no endpoint in its settings.
///
/// # Errors
/// None in this build.
#[cfg(not(feature = "otel"))]
pub fn start(
    _: &config::Trace,
    _: &SpanMetrics,
    _: &crate::shutdown::Signal,
) -> Result<(Tracer, Option<Export>), StartError> {
    Ok((Tracer::off(), None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn spans_beyond_the_queue_are_counted_and_gone() {
        let metrics = Metrics::new();
        let (tracer, spans) = Tracer::new(1.0, metrics.spans());
        let context = tracer.place(None).unwrap();
        for _ in 0..QUEUE + 3 {
            tracer.take(Span::new("s", context, Kind::Internal, std::time::SystemTime::now()));
        }
        assert_eq!((spans.len(), metrics.spans().dropped.get()), (QUEUE, 3));
        drop(spans);
        tracer.take(Span::new("s", context, Kind::Internal, std::time::SystemTime::now()));
        assert_eq!(metrics.spans().dropped.get(), 4, "nobody sends any more");
    }

    #[test]
    fn the_caller_decides_for_its_own_trace() {
        let (all, _all) = Tracer::new(1.0, Metrics::new().spans());
        let (none, _none) = Tracer::new(0.0, Metrics::new().spans());
        for sampled in [true, false] {
            let parent = Context::root(if sampled { 1.0 } else { 0.0 });
            for tracer in [&all, &none] {
                let own = tracer.place(Some(&parent)).unwrap();
                assert_eq!((own.trace_id(), own.is_sampled()), (parent.trace_id(), sampled));
                assert_ne!(own.span_id(), parent.span_id());
            }
        }
        assert!(all.place(None).unwrap().is_sampled() && !none.place(None).unwrap().is_sampled());
        assert_eq!(Tracer::off().place(None), None);
    }
}
