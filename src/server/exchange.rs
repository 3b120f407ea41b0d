//! What the two sides of a connection tell each other past hyper: the bytes' side whether a head is at fault, the
//! service's side whether it is answering.
//!
//! Both live in one task; the atomics are there only because tasks must be `Send`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use http::{HeaderMap, StatusCode};

use super::core::Seat;
use super::drain::Drain;
use super::fault::HeadFault;
use super::outbox::Outbox;
use super::room::Presence;
use crate::interim::{Client, Interim};

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Exchange {
    drain: Arc<Drain>,
    /// The connection's place under the limit, and its counts. The socket's side holds the exchange, so it is kept until
    /// the socket is closed, whoever has it then.
    seat: Seat,
    /// Whether the connection has left HTTP, and its bytes mean nothing here any more.
    switched: AtomicBool,
    /// Requests given to the service. hyper gives them in the order of their heads.
    requests: AtomicU64,
    /// Whether the client is not taking what is written.
    stalled: AtomicBool,
    /// Whether a body has begun to arrive and has not ended.
    receiving: AtomicBool,
    /// Requests that ask a server as a whole and have not been given to the service. Looked at by those of `OPTIONS`.
    asterisks: Mutex<Vec<u64>>,
    /// The first request whose head is at fault. Nothing behind it is trusted.
    fault: OnceLock<(u64, HeadFault)>,
    /// What comes before the answer.
    outbox: Outbox,
}

impl Client for Exchange {
    fn tell(&self, request: u64, status: StatusCode, fields: &HeaderMap) {
        self.outbox.put(request, status, fields);
    }
}

impl Exchange {
    pub(super) fn new(drain: Arc<Drain>, seat: Seat) -> Exchange {
        Exchange {
            drain,
            seat,
            switched: AtomicBool::default(),
            stalled: AtomicBool::default(),
            receiving: AtomicBool::default(),
            requests: AtomicU64::default(),
            asterisks: Mutex::default(),
            fault: OnceLock::new(),
            outbox: Outbox::default(),
        }
    }

    /// The stop of this core.
    pub(super) fn drain(&self) -> &Arc<Drain> {
        &self.drain
    }

    /// Whether the connection has left HTTP.
    pub(super) fn has_switched(&self) -> bool {
        self.switched.load(Ordering::Relaxed)
    }

    /// Notes that the connection leaves HTTP with the answer that is being given.
    pub(super) fn switch(&self) {
        self.switched.store(true, Ordering::Relaxed);
    }

    /// Whether a request is being answered.
    pub(super) fn is_answering(&self) -> bool {
        self.seat.place.is_busy()
    }

    /// What the connection says of itself to who needs room.
    pub(super) fn presence(&self) -> &Presence {
        &self.seat.place
    }

    /// Whether part of an answer waits for the client to take it. The service may be done with it already.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Notes whether writing waits for the client.
    pub(super) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Whether there is more to come of a request's body.
    pub(super) fn is_receiving(&self) -> bool {
        self.receiving.load(Ordering::Relaxed)
    }

    /// Notes whether there is more to come of a request's body.
    pub(super) fn set_receiving(&self, receiving: bool) {
        self.receiving.store(receiving, Ordering::Relaxed);
    }

    /// Notes that the requests with these numbers, counted from 0, ask a server as a whole.
    pub(super) fn ask_server(&self, numbers: Vec<u64>) {
        if !numbers.is_empty() {
            self.asterisks.lock().unwrap_or_else(PoisonError::into_inner).extend(numbers);
        }
    }

    /// Whether the request begun last asks a server as a whole.
    pub(super) fn asks_server(&self) -> bool {
        let last = self.requests.load(Ordering::Relaxed).checked_sub(1);
        let mut asterisks = self.asterisks.lock().unwrap_or_else(PoisonError::into_inner);
        let asks = asterisks.iter().any(|number| Some(*number) == last);
        asterisks.retain(|number| Some(*number) > last);
        asks
    }

    /// Notes that the head of the request with this number, counted from 0, is at fault.
    pub(super) fn refuse(&self, number: u64, fault: HeadFault) {
        // Only the first counts, and the reader reports none behind it.
        let _ = self.fault.set((number, fault));
    }

    /// Counts the next request. It is being answered until the turn is dropped.
    pub(super) fn begin(self: &Arc<Exchange>) -> Turn {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.seat.place.set_busy(true);
        Turn(self.clone())
    }

    /// Where interim answers to the request begun last may go from now on, until the outbox is closed.
    pub(super) fn interim(self: &Arc<Exchange>) -> Interim {
        let request = self.requests.load(Ordering::Relaxed);
        self.outbox.open(request);
        let this: Weak<Exchange> = Arc::downgrade(self);
        Interim::new(this, request)
    }

    /// What comes before the answer.
    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
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

impl Turn {
    /// The connection's state.
    pub(super) fn exchange(&self) -> &Exchange {
        &self.0
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.seat.place.set_busy(false);
    }
}
