//! Bodies: how a request's body is read (`request`), what is under its codings (`decoded`, `inside`), what a response to the client is made of (`response`), and here
//! how bytes are held in between.
//!
//! Everything that is held in memory is accounted for in one [`Budget`] of the process, so that many large bodies are
//! refused rather than swapped.

mod decoded;
pub mod inside;
mod request;
mod response;

use bytes::{Bytes, BytesMut};

pub use self::decoded::{NotDecoded, decode};
pub use self::request::{Arriving, Patience, Whole, begun, check_expectation, discard, read, settle};
pub use self::response::{Body, BodyError, CutShort, Held, Stalled};
use super::budget::{Budget, Share};
use super::error::{Kind, Problem};

/// The pieces of a body that is gathered to be held for a while. Most bodies come in one piece; a large one is not copied.
#[derive(Debug, Default)]
pub struct Pieces {
    first: Bytes,
    rest: BytesMut,
}

impl Pieces {
    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: Bytes) {
        if self.is_empty() {
            self.first = own(piece);
            return;
        }
        if self.rest.is_empty() {
            self.rest.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.rest.extend_from_slice(&piece);
    }

    /// All of them, in order.
    pub fn into_bytes(self) -> Bytes {
        if self.rest.is_empty() { self.first } else { self.rest.freeze() }
    }
}

/// A small piece is copied out of the buffer it was read into: it would keep all of that alive, and make its connection
/// take another one.
fn own(piece: Bytes) -> Bytes {
    /// About what the buffer of a connection holds.
    const SMALL: usize = 8 * 1024;
    if piece.len() <= SMALL { Bytes::copy_from_slice(&piece) } else { piece }
}

/// Bodies below this size are not counted once they are on their way: the buffers of their connection cost as much.
const COUNTED_FROM: usize = 16 << 10;

/// A body that goes on counting until its last byte was written, or it was thrown away. Clones count once.
pub fn counted(body: Bytes, share: Share) -> Bytes {
    struct Counted {
        body: Bytes,
        _share: Share,
    }
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.body
        }
    }
    if body.len() < COUNTED_FROM { body } else { Bytes::from_owner(Counted { body, _share: share }) }
}

/// A recorded body that is about to be sent, or the news that too many are on their way.
pub fn to_replay(body: Bytes, budget: &Budget) -> Result<Bytes, Problem> {
    if body.len() < COUNTED_FROM {
        return Ok(body);
    }
    let share = budget.take(body.len()).ok_or_else(|| {
        Problem::new(
            Kind::Overloaded,
            "Too many bytes of bodies are being held. The request was executed; its response can be had in a while.",
        )
    })?;
    Ok(counted(body, share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_out_in_order_and_whole() {
        let large = Bytes::from(vec![7; 20_000]);
        for parts in
            [vec![], vec![large.clone()], vec![Bytes::new(), large.clone()], vec![large.clone(), "b".into(), large]]
        {
            let mut pieces = Pieces::default();
            parts.iter().for_each(|part| pieces.push(part.clone()));
            assert_eq!(pieces.len(), parts.iter().map(Bytes::len).sum::<usize>());
            assert_eq!(pieces.into_bytes(), parts.concat());
        }
    }
}
