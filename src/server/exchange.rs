//! What the two sides of a connection tell each other past hyper: the bytes' side whether a head is at fault, the
//! service's side whether it is answering.
//!
//! Both live in one task; the atomics are there only because tasks must be `Send`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::fault::HeadFault;

/// The state of one connection.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// From the service's call until its body was handed over or dropped.
    answering: AtomicBool,
    /// Requests given to the service. hyper gives them in the order of their heads.
    requests: AtomicU64,
    /// The first request whose head is at fault. Nothing behind it is trusted.
    fault: OnceLock<(u64, HeadFault)>,
}

impl Exchange {
    /// Whether a request is being answered.
    pub(super) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed)
    }

    /// Notes that the head of the request with this number, counted from 0, is at fault.
    pub(super) fn refuse(&self, number: u64, fault: HeadFault) {
        // Only the first counts, and the reader reports none behind it.
        let _ = self.fault.set((number, fault));
    }

    /// Counts the next request. It is being answered until the turn is dropped.
    pub(super) fn begin(self: &Arc<Exchange>) -> Turn {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.answering.store(true, Ordering::Relaxed);
        Turn(self.clone())
    }

    /// Whether the bytes of the request begun last were sound.
    pub(super) fn verdict(&self) -> Result<(), HeadFault> {
        match self.fault.get() {
            Some((number, fault)) if self.requests.load(Ordering::Relaxed) > *number => Err(*fault),
            _ => Ok(()),
        }
    }
}

/// The time in which one request is being answered.
#[derive(Debug)]
pub(super) struct Turn(Arc<Exchange>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.answering.store(false, Ordering::Relaxed);
    }
}
