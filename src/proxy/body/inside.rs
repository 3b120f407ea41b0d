//! What a request's body says once its `Content-Encoding` is taken off: what keys and formats are looked for in. The
//! upstream gets the body as it came.
//!
//! Bounded in every way: by the size that the route takes, by the budget of held bytes, and in how long it keeps a core
//! to itself. What cannot be decoded is no fault here; who needs it says so.

use http::HeaderMap;

use super::decoded::coding::{Coding, Malformed, Step};
use super::decoded::codings;
use crate::proxy::budget::{Budget, Share};
use crate::proxy::error::{Kind, Problem};

/// The room that a body gets at first.
const FIRST_ROOM: usize = 16 << 10;
/// After so many bytes in and out, other requests of this core have their turn.
const TURN: usize = 128 << 10;

/// A body as its reader wants it.
#[derive(Debug)]
pub enum Decoded {
    /// Nothing had to be taken off.
    AsItCame,
    /// What was inside, and its share of the budget.
    Inside(Vec<u8>, Share),
    /// A coding that is not known, or a body that is not what it says.
    Undecodable,
}

impl Decoded {
    /// The bytes to read, `None` if they could not be decoded. `body` is the body as it came.
    pub fn of<'a>(&'a self, body: &'a [u8]) -> Option<&'a [u8]> {
        match self {
            Decoded::AsItCame => Some(body),
            Decoded::Inside(bytes, _) => Some(bytes),
            Decoded::Undecodable => None,
        }
    }
}

/// Takes the codings off a body, the last one first.
///
/// # Errors
///
/// What is inside is larger than `max`, or than the budget has room for.
pub async fn decode(headers: &HeaderMap, body: &[u8], max: usize, budget: &Budget) -> Result<Decoded, Problem> {
    let Some(codings) = codings(headers) else { return Ok(Decoded::Undecodable) };
    let mut decoded = Decoded::AsItCame;
    // A body without a byte has no coding either, whatever its head says.
    for coding in codings.into_iter().filter(|_| !body.is_empty()) {
        let outer = decoded.of(body).unwrap_or_default();
        decoded = match take_off(coding, outer, max, budget).await? {
            Ok((bytes, share)) => Decoded::Inside(bytes, share),
            Err(Malformed) => return Ok(Decoded::Undecodable),
        };
    }
    Ok(decoded)
}

async fn take_off(
    coding: Coding,
    outer: &[u8],
    max: usize,
    budget: &Budget,
) -> Result<Result<(Vec<u8>, Share), Malformed>, Problem> {
    let mut stream = coding.open(outer);
    let mut room = Room { bytes: Vec::new(), filled: 0, most: max.saturating_add(1), share: budget.nothing() };
    let mut worked = 0;
    loop {
        let step = match stream.next(room.free()?) {
            Ok(step) => step,
            Err(Malformed) => return Ok(Err(Malformed)),
        };
        match step {
            Step::Read { taken, given } => {
                room.filled += given;
                worked += taken + given;
            }
            Step::Ended => break,
        }
        if room.filled > max {
            return Err(too_large(max));
        }
        if worked >= TURN {
            worked = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok(Ok(room.into_bytes()))
}

/// Where decoded bytes go. All of its room counts, used or not.
struct Room {
    bytes: Vec<u8>,
    filled: usize,
    most: usize,
    share: Share,
}

impl Room {
    /// What is free of it, at least a byte.
    fn free(&mut self) -> Result<&mut [u8], Problem> {
        if self.filled == self.bytes.len() {
            let next = self.bytes.len().saturating_mul(2).max(FIRST_ROOM).min(self.most);
            let more = next - self.bytes.len();
            if !self.share.grow(more) {
                return Err(overloaded());
            }
            self.bytes.reserve_exact(more);
            self.bytes.resize(next, 0);
        }
        Ok(&mut self.bytes[self.filled..])
    }

    fn into_bytes(mut self) -> (Vec<u8>, Share) {
        self.bytes.truncate(self.filled);
        (self.bytes, self.share)
    }
}

fn too_large(max: usize) -> Problem {
    Problem::new(
        Kind::BodyTooLarge,
        format!(
            "Decoded as its Content-Encoding says, the request body is larger than the {max} bytes that this route takes \
             (max_request_body); nothing was forwarded."
        ),
    )
}

fn overloaded() -> Problem {
    Problem::new(Kind::Overloaded, "Too many bytes of bodies are being held; nothing was forwarded.")
}

#[cfg(test)]
mod tests;
