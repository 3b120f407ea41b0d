//! The way to the collector: spans gathered into batches, each sent until the collector takes it or patience ends.
//!
//! It runs beside the requests and is never waited for by one. A collector that is away fills the queue; what then
//! finds no room is dropped, and counted, where it was made.

use std::time::Duration;

use bytes::Bytes;
use http::{StatusCode, Uri};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Span, otlp};
use crate::metrics::SpanMetrics;
use crate::shutdown::Signal;

mod post;

pub use self::post::StartError;
use self::post::{Collector, Failure};

/// Spans in one message.
const BATCH: usize = 512;
/// How long a span waits for others to go with.
const GATHER: Duration = Duration::from_secs(1);
/// How long one message may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the same message is tried again.
const GIVE_UP: Duration = Duration::from_secs(60);
/// The pauses between tries: they grow from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long sending may take after the stop.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Sends spans. To be run until it ends, after the stop.
pub struct Export {
    collector: Collector,
    resource: Resource,
    spans: mpsc::Receiver<Span>,
    metrics: SpanMetrics,
    stop: Signal,
    /// Whether the last message failed, so that the log says it once.
    failing: bool,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("waiting", &self.spans.len()).finish_non_exhaustive()
    }
}

impl Export {
    pub(super) fn new(
        endpoint: &Uri,
        service_name: &str,
        spans: mpsc::Receiver<Span>,
        metrics: SpanMetrics,
        stop: Signal,
    ) -> Result<Export, StartError> {
        let collector = Collector::new(endpoint)?;
        Ok(Export { collector, resource: otlp::resource(service_name), spans, metrics, stop, failing: false })
    }

    /// Sends spans until the stop, and then what is left, for two seconds at the most.
    pub async fn run(mut self) {
        let stop = self.stop.clone();
        let mut end = std::pin::pin!(async {
            stop.given().await;
            sleep(LAST_WORDS).await;
        });
        loop {
            let batch = self.gather().await;
            if batch.is_empty() {
                return;
            }
            let count = batch.len() as u64;
            tokio::select! {
                () = self.deliver(batch) => {}
                () = &mut end => {
                    let left = count + self.spans.len() as u64;
                    self.metrics.lost.inc_by(left);
                    tracing::warn!(spans = left, "stopped before the collector took all spans");
                    return;
                }
            }
        }
    }

    /// The next batch; after the stop what is there at once, and in the end none.
    async fn gather(&mut self) -> Vec<Span> {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            _ = self.spans.recv_many(&mut batch, BATCH) => {}
            () = self.stop.given() => return batch,
        }
        let until = Instant::now() + GATHER;
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            let more = async {
                tokio::select! {
                    biased;
                    more = self.spans.recv_many(&mut batch, room) => more,
                    () = self.stop.given() => 0,
                }
            };
            if timeout_at(until, more).await.unwrap_or(0) == 0 {
                break;
            }
        }
        batch
    }

    /// Sends a batch until the collector takes it, refuses it for good, or has been away for too long.
    async fn deliver(&mut self, batch: Vec<Span>) {
        let count = batch.len() as u64;
        let message = Bytes::from(otlp::request(&self.resource, batch));
        let until = Instant::now() + GIVE_UP;
        let mut pause = PAUSES.0;
        loop {
            let failure = match timeout(PATIENCE, self.collector.post(message.clone())).await {
                Ok(Ok(answer)) => return self.taken(count, &answer),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Silent,
            };
            self.failed(&failure);
            if !may_be_sent_again(&failure) || Instant::now() + pause >= until {
                self.metrics.lost.inc_by(count);
                return;
            }
            sleep(pause).await;
            pause = if self.stop.is_given() { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
        }
    }

    fn taken(&mut self, count: u64, answer: &[u8]) {
        let (refused, why) = otlp::refused(answer);
        let refused = refused.min(count);
        self.metrics.exported.inc_by(count - refused);
        self.metrics.lost.inc_by(refused);
        if refused > 0 {
            tracing::warn!(spans = refused, why, "the collector refused spans");
        }
        if std::mem::take(&mut self.failing) {
            tracing::info!("the collector takes spans again");
        }
    }

    fn failed(&mut self, failure: &Failure) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(error = %failure, "the collector does not take spans");
        }
    }
}

/// Which failures are worth another try (OTLP specification, "Retryable Response Codes").
fn may_be_sent_again(failure: &Failure) -> bool {
    match failure {
        Failure::Status(status) => matches!(
            *status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        ),
        _ => true,
    }
}
