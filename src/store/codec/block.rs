//! The block of an imprint's details, which follows the head of a stored record and is what scripts compare.
//!
//! ```text
//!   0  target    16 bytes  ┐
//!  16  host      16 bytes  │
//!  32  operation 16 bytes  ├ short digests of the parts as they came
//!  48  content   16 bytes  │
//!  64  body      16 bytes  ┘
//!  80  header fields with credentials, 8 bytes each of three, 0 for one that is absent   ┐ only where callers are
//! 104  cookies, 8 bytes each, smallest first                                             ┘ compared
//! ```

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::BufMut;

use super::Unreadable;
use crate::record::{Credentials, Details, Parts};

/// Lengths of blocks are counted in these, so that one byte holds them.
pub const UNIT: usize = 8;

const HEADERS: usize = UNIT * Credentials::HEADERS;
const DAMAGED: Unreadable = Unreadable::Damaged("its imprint does not fit");

/// How many bytes the block of these details has; none where there are none.
pub fn len(details: Option<&Details>) -> usize {
    let credentials = |of: &Details| of.credentials.as_ref().map_or(0, |known| HEADERS + UNIT * known.cookies().len());
    details.map_or(0, |details| Parts::SIZE + credentials(details))
}

/// The same in units.
pub fn units(details: Option<&Details>) -> u8 {
    u8::try_from(len(details) / UNIT).expect("the number of cookies is bounded")
}

/// Writes the block.
pub fn put(out: &mut impl BufMut, details: Option<&Details>) {
    each(details, &mut |piece| out.put_slice(piece));
}

/// Gives out the block piece by piece.
pub fn each(details: Option<&Details>, write: &mut impl FnMut(&[u8])) {
    let Some(Details { parts, credentials }) = details else { return };
    write(parts.as_bytes());
    let Some(credentials) = credentials else { return };
    credentials.headers.iter().for_each(|hash| write(&hash.map_or(0, NonZeroU64::get).to_be_bytes()));
    credentials.cookies().iter().for_each(|hash| write(&hash.to_be_bytes()));
}

/// The details that a block holds.
pub fn read(block: &[u8]) -> Result<Option<Arc<Details>>, Unreadable> {
    if block.is_empty() {
        return Ok(None);
    }
    let (parts, rest) = block.split_first_chunk().ok_or(DAMAGED)?;
    let parts = Parts::from_bytes(parts);
    if rest.is_empty() {
        return Ok(Some(Arc::new(Details { parts, credentials: None })));
    }
    let (hashes, odd) = rest.as_chunks::<UNIT>();
    let mut hashes = hashes.iter().map(|hash| u64::from_be_bytes(*hash));
    let mut headers = [None; Credentials::HEADERS];
    for header in &mut headers {
        *header = NonZeroU64::new(hashes.next().ok_or(DAMAGED)?);
    }
    let cookies: Vec<u64> = hashes.collect();
    if !odd.is_empty() || cookies.len() > Credentials::MOST_COOKIES || !cookies.is_sorted_by(|one, next| one < next) {
        return Err(DAMAGED);
    }
    let credentials = Some(Credentials::new(headers, cookies));
    Ok(Some(Arc::new(Details { parts, credentials })))
}
