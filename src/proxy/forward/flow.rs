//! Passes an answer on while it arrives, and keeps it as far as there is room, so that it can be replayed.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::caller::{Caller, End};
use super::gather::Begun;
use super::truncated;
use crate::proxy::body::Pieces;
use crate::proxy::budget::Share;
use crate::proxy::headers;
use crate::proxy::lease::Lease;
use crate::proxy::outcome::{Arrived, Foreseen, Head, Kept, Outcome, foresee};
use crate::proxy::route::Route;
use crate::record::Reason;
use crate::upstream::ResponseBody;

/// An answer that flows.
pub(super) struct Streamed {
    pub(super) head: Head,
    pub(super) begun: Begun,
    pub(super) body: ResponseBody,
    /// Whether it is of a kind that flows, and not only too long to be held.
    pub(super) is_stream: bool,
}

/// Passes the answer on to its end. The patience counts between bytes.
pub(super) async fn flow(
    route: &Route,
    lease: &Lease,
    stream: Streamed,
    share: &mut Share,
    caller: &mut Caller,
) -> Outcome {
    let Streamed { mut head, begun: Begun { bytes: begun, is_kept }, mut body, is_stream } = stream;
    let patience = lease.claim().abandon_after;
    let foreseen = if lease.is_protected() { foresee(&route.config, &head, is_kept) } else { Foreseen::Unprotected };
    let mut relay = caller.flow(head.clone(), foreseen);
    headers::take_length(&mut head.fields);
    let mut keeping = Keeping::begin(begun.clone(), is_kept, route.config.max_response_body);
    if !begun.is_empty() {
        relay.pass(begun, patience).await;
    }
    let mut trailers = None;
    let broken = loop {
        match timeout(patience, body.frame()).await {
            Ok(None) => break None,
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(piece) => {
                    keeping.keep(&piece, share);
                    relay.pass(piece, patience).await;
                }
                Err(frame) => trailers = headers::frame_to_pass(frame).into_trailers().ok(),
            },
            Ok(Some(Err(error))) => break Some(truncated(route, lease, &error)),
            Err(_) => break Some(Reason::Timeout),
        }
    };
    if let Some(reason) = broken {
        caller.ends(relay, End::Broken);
        return Outcome::Unknown(reason, Some(Box::new(head)));
    }
    caller.ends(relay, End::Whole(trailers.clone()));
    Outcome::Answered(Box::new(Arrived { head, trailers, body: keeping.end(share), is_stream }))
}

/// What is kept of a flowing body: all of it, or nothing.
struct Keeping {
    pieces: Option<Pieces>,
    limit: usize,
}

impl Keeping {
    /// Begins with what was gathered, which the share has room for.
    fn begin(begun: Bytes, is_kept: bool, limit: usize) -> Keeping {
        let pieces = is_kept.then(|| {
            let mut pieces = Pieces::default();
            pieces.push(begun);
            pieces
        });
        Keeping { pieces, limit }
    }

    fn keep(&mut self, piece: &Bytes, share: &mut Share) {
        let Some(pieces) = &mut self.pieces else { return };
        if pieces.len() + piece.len() <= self.limit && share.grow(piece.len()) {
            pieces.push(piece.clone());
        } else {
            // The room goes to others at once: it may flow for long.
            drop(share.split(pieces.len()));
            self.pieces = None;
        }
    }

    fn end(self, share: &mut Share) -> Option<Kept> {
        let pieces = self.pieces?;
        let share = share.split(pieces.len());
        Some(Kept::new(pieces.into_bytes(), share))
    }
}
