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

/// How many buckets a [`Histogram`] has at most, besides the one for what is over all bounds.
const BUCKETS: usize = 16;

/// A histogram of durations, or of parts of a whole. Clones observe together.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// The buckets' upper bounds, in seconds or as parts.
    bounds: &'static [f64],
    seen: Arc<Spread<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The sum, in billionths.
    billionths: AtomicU64,
    /// The last has what is over all bounds.
    buckets: [AtomicU64; BUCKETS + 1],
}

impl Histogram {
    /// One with these buckets, whose upper bounds grow.
    pub fn new<const N: usize>(bounds: &'static [f64; N]) -> Histogram {
        const { assert!(N <= BUCKETS) };
        Histogram { bounds, seen: Arc::default() }
    }

    /// Observes a duration.
    pub fn took(&self, time: Duration) {
        self.observe(time.as_secs_f64(), u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Observes a part of a whole; more than the whole is possible.
    pub fn used(&self, part: f64) {
        self.observe(part, (part * 1e9) as u64);
    }

    fn observe(&self, value: f64, billionths: u64) {
        let seen = self.seen.mine();
        let bucket = self.bounds.iter().position(|bound| *bound >= value).unwrap_or(self.bounds.len());
        seen.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        seen.billionths.fetch_add(billionths, Ordering::Relaxed);
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let billionths = self.seen.sum(|seen| seen.billionths.load(Ordering::Relaxed));
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds
            .enumerate()
            .map(|(at, bound)| (bound, self.seen.sum(|seen| seen.buckets[at].load(Ordering::Relaxed))))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = Duration::from_nanos(billionths).as_secs_f64();
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
    const PARTS: [f64; 2] = [0.5, 1.0];

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
        let (count, times, parts) = (Count::default(), Histogram::new(&BOUNDS), Histogram::new(&PARTS));
        everywhere(|| {
            count.inc();
            for milliseconds in [1, 25, 1000, 1001] {
                times.took(Duration::from_millis(milliseconds));
            }
            for part in [0.25, 0.5, 0.75, 1.5] {
                parts.used(part);
            }
        });
        assert_eq!(count.get(), 9);
        let mut registry = Registry::default();
        registry.register("count", "c", count);
        registry.register("times", "t", times);
        registry.register("parts", "p", parts);
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
            "parts_count 36",
            "parts_sum 27.0",
            "parts_bucket{le=\"0.5\"} 18",
            "parts_bucket{le=\"1.0\"} 27",
            "parts_bucket{le=\"+Inf\"} 36",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
