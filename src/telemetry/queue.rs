//! The way of a line to standard error: a bounded queue, and a thread that writes.
//!
//! Whoever logs never waits for whoever reads the log. While nobody reads, lines that do not fit are dropped and counted;
//! those of errors have room of their own and go last.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Bytes of lines that may wait: some thousand of them.
const ROOM: usize = 1 << 20;
/// Bytes that only errors may have on top.
const ROOM_FOR_ERRORS: usize = 256 << 10;
/// How long the end of the process waits for a reader.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Takes lines for the thread that writes them. Clones are the same queue.
#[derive(Clone, Debug)]
pub(super) struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Told of each line that comes, and of each time that all are written.
    changed: Condvar,
    dropped: Counter,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Whether the thread is writing one.
    is_writing: bool,
    /// Lines dropped since the log said so last.
    dropped: u64,
}

impl Queue {
    /// A queue whose lines a thread of its own writes. `dropped` counts those that did not fit.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn to(mut writer: impl Write + Send + 'static, dropped: Counter) -> io::Result<Queue> {
        let queue = Queue::new(dropped);
        let lines = queue.clone();
        let write = move || {
            loop {
                let line = lines.next();
                // Nobody is left to be told.
                let _ = writer.write_all(&line).and_then(|()| writer.flush());
                lines.written();
            }
        };
        std::thread::Builder::new().name("log".to_owned()).spawn(write)?;
        Ok(queue)
    }

    fn new(dropped: Counter) -> Queue {
        Queue(Arc::new(Shared { waiting: Mutex::default(), changed: Condvar::new(), dropped }))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it is held.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: Vec<u8>, is_error: bool) {
        let room = if is_error { ROOM + ROOM_FOR_ERRORS } else { ROOM };
        let mut waiting = self.lock();
        if waiting.bytes + line.len() > room {
            waiting.dropped += 1;
            self.0.dropped.inc();
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
        self.0.changed.notify_all();
    }

    /// Waits for the next line.
    fn next(&self) -> Vec<u8> {
        let mut waiting = self.lock();
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                waiting.bytes -= line.len();
                waiting.is_writing = true;
                return line;
            }
            waiting = self.0.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that a line is written. When there is room again, the log says what is missing in it.
    fn written(&self) {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        let dropped = if waiting.lines.is_empty() { std::mem::take(&mut waiting.dropped) } else { 0 };
        self.0.changed.notify_all();
        drop(waiting);
        if dropped > 0 {
            tracing::warn!(dropped, "log lines were dropped: nobody read them in time");
        }
    }

    /// Waits until all lines are written, but not for long: nobody may be reading.
    pub(super) fn flush(&self) {
        let busy = |waiting: &mut Waiting| waiting.is_writing || !waiting.lines.is_empty();
        // It is the end of the process either way.
        drop(self.0.changed.wait_timeout_while(self.lock(), LAST_WAIT, busy));
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { queue: self, is_error: false, text: Vec::new() }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Line<'a> {
        Line { queue: self, is_error: *event.level() == Level::ERROR, text: Vec::new() }
    }
}

/// A line that is being written. It is put into the queue as a whole, when it is dropped.
#[derive(Debug)]
pub(super) struct Line<'a> {
    queue: &'a Queue,
    is_error: bool,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.queue.put(std::mem::take(&mut self.text), self.is_error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(fill: u8) -> Vec<u8> {
        vec![fill; 1024]
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted_errors_last() {
        let dropped = Counter::default();
        let queue = Queue::new(dropped.clone());
        let fits = ROOM / 1024;
        (0..fits + 10).for_each(|_| queue.put(line(b'i'), false));
        assert_eq!(dropped.get(), 10);
        let more = ROOM_FOR_ERRORS / 1024;
        (0..more + 1).for_each(|_| queue.put(line(b'e'), true));
        assert_eq!(dropped.get(), 11);
        for _ in 0..fits {
            assert_eq!(queue.next(), line(b'i'), "the order stays");
        }
        queue.put(line(b'i'), false);
        for _ in 0..more {
            assert_eq!(queue.next(), line(b'e'));
        }
        assert_eq!(queue.next(), line(b'i'), "there is room again");
        assert_eq!((dropped.get(), queue.lock().bytes), (11, 0));
    }

    #[test]
    fn all_lines_are_written_in_their_order_before_the_end() {
        let (reader, writer) = io::pipe().unwrap();
        let queue = Queue::to(writer, Counter::default()).unwrap();
        for number in 0..1000 {
            queue.put(format!("{number}\n").into_bytes(), number % 2 == 0);
        }
        queue.flush();
        let lines = io::BufRead::lines(io::BufReader::new(reader)).take(1000);
        assert!(lines.enumerate().all(|(number, line)| line.unwrap() == number.to_string()));
    }
}
