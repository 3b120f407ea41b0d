//! Counters and histograms that each core counts in a place of its own; their sum is made when somebody asks.
//!
//! Every request counts in a few of them. In one place for all, the cores would pass that memory back and forth, and wait
//! for the lock of the usual histogram.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// More threads than this share places.
const PLACES: usize = 4;

thread_local! {
    static PLACE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PLACES
    };
}

/// One for each place, none of which shares a line of the processors' caches with another.
#[derive(Debug, Default)]
struct Spread<T>([Line<T>; PLACES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

impl<T> Spread<T> {
    fn mine(&self) -> &T {
        &self.0[PLACE.with(|place| *place)].0
    }

    fn sum(&self, part: impl Fn(&T) -> u64) -> u64 {
        self.0.iter().fold(0, |sum, line| sum.wrapping_add(part(&line.0)))
    }
}

/// A counter. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Count(Arc<Spread<AtomicU64>>);

impl Count {
    /// Counts one more.
    pub fn inc(&self) {
        self.0.mine().fetch_add(1, Ordering::Relaxed);
    }

    /// The sum.
    pub fn get(&self) -> u64 {
        self.0.sum(|count| count.load(Ordering::Relaxed))
    }
}

impl TypedMetric for Count {
    const TYPE: MetricType = MetricType::Counter;
}

impl EncodeMetric for Count {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.encode_counter::<NoLabelSet, _, u64>(&self.get(), None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// How many buckets [`Times`] has.
const BUCKETS: usize = 16;

/// A histogram of durations. Clones observe together.
#[derive(Clone, Debug)]
pub struct Times {
    /// The buckets' upper bounds in seconds.
    bounds: &'static [f64; BUCKETS],
    seen: Arc<Spread<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    nanoseconds: AtomicU64,
    /// The last has what is over all bounds.
    buckets: [AtomicU64; BUCKETS + 1],
}

impl Times {
    /// One with these buckets, whose upper bounds are in seconds and grow.
    pub fn new(bounds: &'static [f64; BUCKETS]) -> Times {
        Times { bounds, seen: Arc::default() }
    }

    /// Observes a duration.
    pub fn observe(&self, took: Duration) {
        let seen = self.seen.mine();
        let seconds = took.as_secs_f64();
        let bucket = self.bounds.iter().position(|bound| *bound >= seconds).unwrap_or(BUCKETS);
        seen.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        seen.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl TypedMetric for Times {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Times {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let nanoseconds = self.seen.sum(|seen| seen.nanoseconds.load(Ordering::Relaxed));
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds
            .enumerate()
            .map(|(at, bound)| (bound, self.seen.sum(|seen| seen.buckets[at].load(Ordering::Relaxed))))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = Duration::from_nanos(nanoseconds).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    const BOUNDS: [f64; BUCKETS] =
        [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 1.0];

    /// Does it on more threads than there are places.
    fn everywhere(act: impl Fn() + Sync) {
        std::thread::scope(|scope| {
            for _ in 0..2 * PLACES + 1 {
                scope.spawn(&act);
            }
        });
    }

    #[test]
    fn shows_the_sum_of_what_all_threads_counted() {
        let (count, times) = (Count::default(), Times::new(&BOUNDS));
        everywhere(|| {
            count.inc();
            for milliseconds in [1, 25, 1000, 1001] {
                times.observe(Duration::from_millis(milliseconds));
            }
        });
        assert_eq!(count.get(), 9);
        let mut registry = Registry::default();
        registry.register("count", "c", count);
        registry.register("times", "t", times.clone());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "count_total 9",
            "times_count 36",
            "times_sum 18.243",
            "times_bucket{le=\"0.001\"} 9",
            "times_bucket{le=\"0.02\"} 9",
            "times_bucket{le=\"0.03\"} 18",
            "times_bucket{le=\"1.0\"} 27",
            "times_bucket{le=\"+Inf\"} 36",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
