//! The connections that wait for a request, last in first out.
//!
//! The last used is the likeliest to be alive, and the others may grow old and go. Nothing is locked across an await;
//! within one core the lock is never contended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use super::connection::Link;
use super::moves::Moves;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// More connections than this are not kept; a further one is closed after its answer.
///
/// As many as requests may be under way by default (`limits.in_flight`). Were it fewer, a load of more callers than that
/// would open connections as fast as it is answered, and each that is closed holds a port of this host for a minute: soon
/// none is left. What a burst leaves behind is closed at the idle timeout, the oldest first. Tests open as many, and there
/// may be few open files.
pub(super) const MOST: usize = if cfg!(test) { 256 } else { 4096 };

/// The idle connections of one pool.
#[derive(Debug)]
pub(super) struct IdleList {
    /// In milliseconds. Only ever made shorter.
    timeout: AtomicU64,
    stack: Mutex<Stack>,
    moves: Arc<Moves>,
}

#[derive(Debug)]
struct Idle {
    link: Link,
    since: Instant,
}

#[derive(Debug, Default)]
struct Stack {
    /// In the order of their return: the oldest in front.
    waiting: VecDeque<Idle>,
    /// Whether a task is there that closes what has expired. There is one exactly while something waits.
    reaping: bool,
}

impl IdleList {
    pub(super) fn new(timeout: Duration, moves: Arc<Moves>) -> Arc<IdleList> {
        let timeout = AtomicU64::new(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        Arc::new(IdleList { timeout, stack: Mutex::default(), moves })
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout.load(Ordering::Relaxed))
    }

    /// Keeps connections no longer than the upstream says that it keeps them: `Keep-Alive: timeout=SECONDS` (RFC 2068 section
    /// 19.7.1.1). A request that crosses its close would be in doubt, so there is a second between the two.
    pub(super) fn heed(&self, headers: &HeaderMap) {
        let Some(seconds) = headers.get_all(KEEP_ALIVE).iter().find_map(seconds) else { return };
        let usable = seconds.saturating_mul(1000).saturating_sub(1000).max(seconds.min(1) * 500);
        self.timeout.fetch_min(usable, Ordering::Relaxed);
    }

    /// The most recently used connection that is neither expired nor known to be closed, and leads where the
    /// upstream is. Others met on the way are
    /// closed.
    pub(super) fn take(&self) -> Option<Link> {
        self.moves.look();
        loop {
            let idle = self.lock().waiting.pop_back()?;
            if idle.since.elapsed() >= self.timeout() {
                // So have all the others, which are older.
                drop(std::mem::take(&mut self.lock().waiting));
                return None;
            }
            if idle.link.is_ready() && !self.moves.left(idle.link.peer()) {
                return Some(idle.link);
            }
        }
    }

    /// Keeps a connection for the next request. It must be ready.
    pub(super) fn put(self: &Arc<Self>, link: Link) {
        let since = Instant::now();
        let mut stack = self.lock();
        if stack.waiting.len() >= MOST {
            drop(stack);
            drop(link);
            return;
        }
        stack.waiting.push_back(Idle { link, since });
        if !stack.reaping
            && let Ok(runtime) = Handle::try_current()
        {
            stack.reaping = true;
            runtime.spawn(reap(Arc::downgrade(self), since + self.timeout()));
        }
    }

    /// Closes what has expired. Returns when there will be more to close, if anything waits.
    fn close_expired(&self) -> Option<Instant> {
        let (now, timeout) = (Instant::now(), self.timeout());
        let mut stack = self.lock();
        let expired = stack.waiting.partition_point(|idle| now - idle.since >= timeout);
        let closed: Vec<Idle> = stack.waiting.drain(..expired).collect();
        let next = stack.waiting.front().map(|idle| idle.since + timeout);
        stack.reaping = next.is_some();
        drop(stack);
        drop(closed);
        next
    }

    /// Whether one waits that is not known to be closed.
    #[cfg(test)]
    pub(super) fn has_ready(&self) -> bool {
        self.lock().waiting.iter().any(|idle| idle.link.is_ready())
    }

    fn lock(&self) -> MutexGuard<'_, Stack> {
        // No code that holds it can leave it half changed.
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The seconds after `timeout` in a list of parameters.
fn seconds(line: &HeaderValue) -> Option<u64> {
    let parameters = line.to_str().ok()?.split(',');
    parameters.filter_map(|parameter| parameter.split_once('=')).find_map(|(name, value)| {
        name.trim().eq_ignore_ascii_case("timeout").then(|| value.trim().trim_matches('"').parse().ok())?
    })
}

async fn reap(list: Weak<IdleList>, mut next: Instant) {
    loop {
        sleep_until(next).await;
        // Held for this moment only: a list that nobody else has goes, with all its connections.
        match list.upgrade().and_then(|list| list.close_expired()) {
            Some(later) => next = later,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long connections are kept, of 4 s, after an answer with these lines.
    fn kept(lines: &[&'static str]) -> Duration {
        let list = IdleList::new(Duration::from_secs(4), Moves::new(&crate::config::Upstream::default()));
        let lines = lines.iter().map(|line| (KEEP_ALIVE, HeaderValue::from_static(line)));
        list.heed(&HeaderMap::from_iter(lines));
        list.timeout()
    }

    #[test]
    fn connections_are_kept_no_longer_than_the_upstream_says() {
        for (lines, milliseconds) in [
            (&[][..], 4000),
            (&["timeout=60"], 4000),
            (&["timeout=5, max=100"], 4000),
            (&["timeout=3"], 2000),
            (&["max=100, Timeout = \"2\""], 1000),
            (&["timeout=1"], 500),
            (&["timeout=0"], 0),
            (&["timeout=soon", "timeout=2"], 1000),
            (&["timeouts=1"], 4000),
            (&["timeout=99999999999999999999"], 4000),
        ] {
            assert_eq!(kept(lines), Duration::from_millis(milliseconds), "{lines:?}");
        }
        let list = IdleList::new(Duration::from_secs(4), Moves::new(&crate::config::Upstream::default()));
        for line in ["timeout=2", "timeout=60"] {
            list.heed(&HeaderMap::from_iter([(KEEP_ALIVE, HeaderValue::from_static(line))]));
        }
        assert_eq!(list.timeout(), Duration::from_secs(1), "servers behind one name may differ");
    }
}
