//! The log: one line an event, on standard error, as text for people or as flat JSON.
//!
//! It takes events from everywhere through `tracing` and knows none of them. Whoever logs never waits for whoever reads the
//! log. The level can be changed while the process runs; the rest is fixed at start.

mod queue;

use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use thiserror::Error;
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use self::queue::Queue;
use crate::config::{self, Log, LogFormat, LogLevel};

/// Why the log could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// A process has one log.
    #[error("the log was started twice")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
    /// The thread that writes it.
    #[error("the thread that writes the log cannot be started")]
    Thread(#[from] io::Error),
}

/// The running log. Dropping it waits for a moment until what was logged is written.
#[derive(Debug)]
pub struct RunningLog {
    /// Changes its level.
    pub level: LevelHandle,
    queue: Queue,
}

impl Drop for RunningLog {
    fn drop(&mut self) {
        self.queue.flush();
    }
}

/// Starts the log of the process, and has panics written to it. `dropped` counts the lines that were dropped because nobody
/// read them in time.
///
/// # Errors
/// The process has a log already, or the thread that writes it cannot be started.
pub fn start(log: &Log, dropped: Counter) -> Result<RunningLog, StartError> {
    let colours = io::stderr().is_terminal() && config::takes_colours();
    let queue = Queue::to(io::stderr(), dropped)?;
    let (subscriber, level) = subscriber(log, colours, queue.clone());
    subscriber.try_init()?;
    std::panic::set_hook(Box::new(|panic| {
        let what = panic.payload_as_str().unwrap_or("of an unknown kind");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, what, "a panic");
    }));
    Ok(RunningLog { level, queue })
}

/// Changes the level of a running log. Clones change the same log.
#[derive(Clone, Debug)]
pub struct LevelHandle {
    filter: reload::Handle<Targets, Registry>,
    /// The level that was set last; held while the filter is changed, so that both say the same.
    level: Arc<Mutex<LogLevel>>,
}

impl LevelHandle {
    /// The present level.
    pub fn level(&self) -> LogLevel {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets another level, for events from now on.
    pub fn set_level(&self, level: LogLevel) {
        let mut current = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        // It fails when the log is gone, and then there is nothing to set.
        if self.filter.reload(targets(level)).is_ok() {
            *current = level;
        }
    }
}

fn subscriber<W>(log: &Log, colours: bool, writer: W) -> (impl Subscriber + Send + Sync, LevelHandle)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(targets(log.level));
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match log.format {
        LogFormat::Text => lines.with_ansi(colours).boxed(),
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).with_ansi(false).boxed()
        }
    };
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter));
    (subscriber, LevelHandle { filter: handle, level: Arc::new(Mutex::new(log.level)) })
}

/// What is written at a level. Below `trace`, libraries are heard only when they warn: what they do is not what an
/// operator asks for with `info` or `debug`.
fn targets(level: LogLevel) -> Targets {
    let ours = severity(level);
    let others = if level == LogLevel::Trace { ours } else { ours.min(Level::WARN) };
    Targets::new().with_target(env!("CARGO_CRATE_NAME"), ours).with_default(others)
}

fn severity(level: LogLevel) -> Level {
    match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What the log holds after `speak`.
    fn logged(level: LogLevel, format: LogFormat, speak: impl FnOnce(&LevelHandle)) -> String {
        let page = Page::default();
        let writer = page.clone();
        let log = Log { level, format, requests: false };
        let (subscriber, handle) = subscriber(&log, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || speak(&handle));
        let bytes = page.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_json_line_is_one_flat_object() {
        let text = logged(LogLevel::Info, LogFormat::Json, |_| tracing::info!(route = "payments", "served \"it\""));
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["route"], "payments");
        assert_eq!(line["message"], "served \"it\"");
        assert!(line["timestamp"].is_string());
        assert!(line.as_object().unwrap().values().all(|value| !value.is_object()), "{line}");
    }

    #[test]
    fn a_text_line_reads_alone() {
        let text = logged(LogLevel::Info, LogFormat::Text, |_| tracing::info!(route = "payments", "served"));
        assert!(text.ends_with("served route=\"payments\"\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn the_level_can_be_changed_while_it_runs() {
        let text = logged(LogLevel::Warn, LogFormat::Text, |handle| {
            tracing::info!("first");
            handle.set_level(LogLevel::Debug);
            tracing::debug!("second");
            assert_eq!(handle.level(), LogLevel::Debug);
            handle.set_level(LogLevel::Error);
            tracing::warn!("third");
        });
        assert!(text.contains("second") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn libraries_are_heard_when_they_warn() {
        let speak = |_: &LevelHandle| {
            tracing::info!(target: "redis", "chatter");
            tracing::warn!(target: "redis", "trouble");
        };
        let debug = logged(LogLevel::Debug, LogFormat::Text, speak);
        assert!(debug.contains("trouble") && !debug.contains("chatter"), "{debug}");
        assert!(!logged(LogLevel::Error, LogFormat::Text, speak).contains("trouble"));
        assert!(logged(LogLevel::Trace, LogFormat::Text, speak).contains("chatter"));
    }
}
