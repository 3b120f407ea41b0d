//! The attempt's caller: the channel by which it is answered, and the one on which an answer flows to it.
//!
//! The end of a flowing answer, or that it has none, is held back until the attempt is over. So whoever has seen an answer
//! end, whole or flowing, finds it recorded, its key free, or held.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderMap;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::proxy::body::Body;
use crate::proxy::flights::{Conclusion, Seat};
use crate::proxy::outcome::{Flowing, Foreseen, Head};

/// The attempt's caller, as long as it is owed an answer or the end of one.
#[derive(Debug)]
pub struct Caller {
    answer: Option<oneshot::Sender<Delivery>>,
    /// The end of an answer that has flowed.
    end: Option<Box<HeldBack>>,
}

#[derive(Debug)]
struct HeldBack {
    sender: oneshot::Sender<Option<HeaderMap>>,
    end: End,
}

/// How an answer ended that flowed.
#[derive(Debug)]
pub(super) enum End {
    /// It is whole, with these trailers.
    Whole(Option<HeaderMap>),
    /// It broke off, and breaks off for the caller.
    Broken,
}

/// What the attempt's caller gets.
#[derive(Debug)]
pub enum Delivery {
    /// The end of the attempt.
    Concluded(Arc<Conclusion>),
    /// An answer that flows while the attempt goes on.
    Flowing(Box<Flowing>),
    /// Another process's attempt is running: the caller is a duplicate after all, and waits like one.
    Elsewhere(Seat),
}

impl Caller {
    /// The caller behind this channel.
    pub fn new(sender: oneshot::Sender<Delivery>) -> Caller {
        Caller { answer: Some(sender), end: None }
    }

    /// Gives the caller its answer, or the end of the one that flowed, and says whether it was still there.
    pub fn deliver(&mut self, delivery: Delivery) -> bool {
        if let Some(held) = self.end.take() {
            let HeldBack { sender, end } = *held;
            return match end {
                End::Whole(trailers) => sender.send(trailers).is_ok(),
                End::Broken => !sender.is_closed(),
            };
        }
        self.answer.take().is_some_and(|sender| sender.send(delivery).is_ok())
    }

    /// Whether the caller went away, or its time ended, before it was answered.
    pub fn left(&self) -> bool {
        self.answer.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Lets an answer flow to the caller.
    pub(super) fn flow(&mut self, head: Head, foreseen: Foreseen) -> Relay {
        // A few pieces: enough to keep both sides busy, few enough to hold a fast upstream back.
        let (pieces, coming) = mpsc::channel(4);
        let (end, ending) = oneshot::channel();
        let flowing = Flowing { head, body: Body::relayed(coming, ending), foreseen };
        let there = self.deliver(Delivery::Flowing(Box::new(flowing)));
        Relay { pieces: there.then_some(pieces), end }
    }

    /// Keeps the end of an answer that has flowed until the attempt is over.
    pub(super) fn ends(&mut self, relay: Relay, end: End) {
        self.end = Some(Box::new(HeldBack { sender: relay.end, end }));
    }
}

/// Hands a flowing answer to its caller, for as long as there is one. Dropped before it was given to [`Caller::ends`] (the
/// attempt was cut off), it breaks the caller's answer off.
#[derive(Debug)]
pub(super) struct Relay {
    pieces: Option<mpsc::Sender<Bytes>>,
    end: oneshot::Sender<Option<HeaderMap>>,
}

impl Relay {
    /// Passes a piece on. A caller that has not read for this long is given up like one that left; the upstream is still
    /// listened to.
    pub(super) async fn pass(&mut self, piece: Bytes, patience: Duration) {
        if let Some(pieces) = &self.pieces
            && !matches!(timeout(patience, pieces.send(piece)).await, Ok(Ok(())))
        {
            self.pieces = None;
        }
    }
}
