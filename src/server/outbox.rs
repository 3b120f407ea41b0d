//! Interim answers on their way to a client of HTTP/1.1, past hyper, whose server has none (hyperium/hyper#4114).
//!
//! They are taken from the moment in which the service has the request until it gives the head of its answer, and are
//! written before that, when hyper has written all that it had.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use http::{HeaderMap, StatusCode};

/// More bytes than this do not wait; what does not fit is left out. A client need not be told any of it.
const MOST: usize = 64 * 1024;

/// What is to be written before the answer to the request that is being answered.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Whether something may come.
    open: AtomicBool,
    /// Whether something is there.
    full: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The request that waits for the head of its answer.
    request: Option<u64>,
    bytes: Vec<u8>,
    /// The connection, when it has nothing more to write.
    waker: Option<Waker>,
}

impl Outbox {
    /// Takes interim answers to this request from now on.
    pub(super) fn open(&self, request: u64) {
        let mut inner = self.lock();
        inner.request = Some(request);
        inner.bytes.clear();
        self.full.store(false, Ordering::Relaxed);
        self.open.store(true, Ordering::Relaxed);
    }

    /// Takes none any more: the answer itself is next, behind what is there.
    pub(super) fn close(&self) {
        if self.open.swap(false, Ordering::Relaxed) {
            self.lock().request = None;
        }
    }

    /// Puts an interim answer in, if it is to this request.
    pub(super) fn put(&self, request: u64, status: StatusCode, fields: &HeaderMap) {
        let mut inner = self.lock();
        if inner.request != Some(request) {
            return;
        }
        let head = head(status, fields);
        if inner.bytes.len() + head.len() > MOST {
            return;
        }
        inner.bytes.extend(head);
        self.full.store(true, Ordering::Relaxed);
        if let Some(waker) = inner.waker.take() {
            waker.wake();
        }
    }

    /// Whether something is to be written before anything else.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// What is to be written now. If that is nothing, the connection is woken when there is something.
    pub(super) fn take(&self, cx: &Context<'_>) -> Vec<u8> {
        if !self.open.load(Ordering::Relaxed) && !self.is_full() {
            return Vec::new();
        }
        let mut inner = self.lock();
        if inner.bytes.is_empty() && !inner.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            inner.waker = Some(cx.waker().clone());
        }
        self.full.store(false, Ordering::Relaxed);
        std::mem::take(&mut inner.bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code that holds it can leave it half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of an interim answer, which has no body (RFC 9112 section 6.3).
fn head(status: StatusCode, fields: &HeaderMap) -> Vec<u8> {
    let reason = status.canonical_reason().unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
    for (name, value) in fields {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::LINK;

    use super::*;

    const HINTS: StatusCode = StatusCode::EARLY_HINTS;

    #[test]
    fn takes_what_is_for_the_request_that_waits_and_no_more_than_fits() {
        let (outbox, cx) = (Outbox::default(), Context::from_waker(Waker::noop()));
        let fields = HeaderMap::from_iter([(LINK, HeaderValue::from_static("</a>"))]);
        outbox.put(0, HINTS, &fields);
        assert!(outbox.take(&cx).is_empty(), "nobody waits");
        outbox.open(1);
        outbox.put(0, HINTS, &fields);
        outbox.put(1, HINTS, &fields);
        assert_eq!(outbox.take(&cx), b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
        assert!(outbox.take(&cx).is_empty());
        for _ in 0..10_000 {
            outbox.put(1, HINTS, &fields);
        }
        assert!(outbox.take(&cx).len() <= MOST);
        outbox.put(1, HINTS, &fields);
        outbox.close();
        outbox.put(1, HINTS, &fields);
        assert!(outbox.is_full());
        assert_eq!(outbox.take(&cx).len(), head(HINTS, &fields).len(), "what came before the answer");
        assert!(!outbox.is_full() && outbox.take(&cx).is_empty());
    }
}
