//! Stored bytes: a record as one value, the same for every back-end that keeps bytes.
//!
//! The head has a fixed length, so that a script can look at a record's state, owner and fingerprint without touching
//! the body. All numbers are big-endian; a moment is milliseconds since the epoch, and 0 stands for "never".
//!
//! ```text
//!   0  version          1 byte, now 2; version 1 had no block; anything else is refused, never guessed at
//!   1  encryption key   1 byte, now 0 (none)
//!   2  state            1 claimed, 2 unknown, 3 completed
//!   3  flags            1 key was quoted, 2 a prior record follows, 4 a response follows, 8 the response has its body
//!   4  reason           unknown: position in Reason::ALL counted from 1; else 0
//!   5  block length     in units of 8 bytes; 0 where nothing is known but the fingerprint
//!   6  status           2 bytes; of the response, 0 without one
//!   8  token           16 bytes
//!  24  policy           4 bytes   ┐ fingerprint
//!  28  digest          32 bytes   ┘
//!  60  attempts         4 bytes
//!  64  claimed_at       8 bytes
//!  72  abandon_at       8 bytes
//!  80  moment           8 bytes; claimed: lease_until, unknown: since, completed: completed_at
//!  88  expires_at       8 bytes; claimed: 0
//!  96  unknown_retention 8 bytes, in milliseconds
//! 104  prior length     4 bytes
//! 108  fields length    4 bytes
//! 112  body length      4 bytes
//! 116  the block of the imprint's details (see `block`), the prior record (a whole record of this format, itself without
//!      prior), the response's fields, the body
//! ```

use bytes::{Buf, BufMut, Bytes};

use crate::record::{Fingerprint, Imprint, Reason, Record, Response, State, Timestamp, Token};

pub mod block;

/// The version that is written.
pub const VERSION: u8 = 2;
/// The version before, which is read: its records say nothing of their request but the fingerprint.
pub const VERSION_WITHOUT_BLOCK: u8 = 1;
/// Bytes of the head.
pub const HEAD: usize = 116;
/// Where the head says how long the block is.
pub(crate) const BLOCK_UNITS: usize = 5;

const CLAIMED: u8 = 1;
const UNKNOWN: u8 = 2;
const COMPLETED: u8 = 3;

const QUOTED: u8 = 1;
const PRIOR: u8 = 2;
const RESPONSE: u8 = 4;
const BODY: u8 = 8;

/// Why stored bytes are not a record that this version can read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Written by another version.
    #[error("the record has format version {0}, this program reads versions up to {VERSION}")]
    Version(u8),
    /// Encrypted with a key that this program does not have.
    #[error("the record is encrypted with key {0}, which is not known here")]
    Encrypted(u8),
    /// Not what any version writes.
    #[error("the record is damaged: {0}")]
    Damaged(&'static str),
}

/// The record as bytes.
pub fn encode(record: &Record) -> Vec<u8> {
    let response = response_of(record);
    let prior = record.prior.as_deref().map(encode).unwrap_or_default();
    let fields = response.map(|r| r.fields().as_ref()).unwrap_or_default();
    let body = response.and_then(Response::body).map(Bytes::as_ref).unwrap_or_default();
    let details = record.imprint.details.as_deref();
    let mut out = Vec::with_capacity(HEAD + block::len(details) + prior.len() + fields.len() + body.len());
    put_head(&mut out, record, prior.len());
    block::put(&mut out, details);
    for part in [&prior, fields, body] {
        out.put_slice(part);
    }
    out
}

/// The head of a record that has no prior one, for a store that puts its parts together itself: the block of its imprint,
/// the response's fields and its body come behind it.
pub fn encode_head(record: &Record) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    put_head(&mut &mut head[..], record, 0);
    head
}

/// The record that these bytes hold. Response bytes are shared with `bytes`, not copied.
pub fn decode(bytes: Bytes) -> Result<Record, Unreadable> {
    decode_nested(bytes, true)
}

fn response_of(record: &Record) -> Option<&Response> {
    match &record.state {
        State::Claimed { .. } => None,
        State::Unknown { response, .. } => response.as_ref(),
        State::Completed { response, .. } => Some(response),
    }
}

fn put_head(out: &mut impl BufMut, record: &Record, prior: usize) {
    let response = response_of(record);
    let (state, reason, moment) = match &record.state {
        State::Claimed { lease_until } => (CLAIMED, 0, *lease_until),
        State::Unknown { since, reason, .. } => (UNKNOWN, reason_code(*reason), *since),
        State::Completed { completed_at, .. } => (COMPLETED, 0, *completed_at),
    };
    let mut flags = 0;
    for (set, flag) in [
        (record.quoted, QUOTED),
        (record.prior.is_some(), PRIOR),
        (response.is_some(), RESPONSE),
        (response.is_some_and(|r| r.body().is_some()), BODY),
    ] {
        flags |= if set { flag } else { 0 };
    }
    out.put_slice(&[VERSION, 0, state, flags, reason, block::units(record.imprint.details.as_deref())]);
    out.put_u16(response.map_or(0, Response::status));
    out.put_slice(record.token.as_bytes());
    out.put_slice(&record.imprint.fingerprint.policy);
    out.put_slice(&record.imprint.fingerprint.digest);
    out.put_u32(record.attempts);
    out.put_u64(record.claimed_at.0);
    out.put_u64(record.abandon_at.0);
    out.put_u64(moment.0);
    out.put_u64(record.expires_at().map_or(0, |at| at.0));
    out.put_u64(record.unknown_retention.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)));
    let fields = response.map_or(0, |r| r.fields().len());
    let body = response.and_then(Response::body).map_or(0, Bytes::len);
    for length in [prior, fields, body] {
        out.put_u32(len32(length));
    }
}

fn decode_nested(mut bytes: Bytes, may_have_prior: bool) -> Result<Record, Unreadable> {
    let version = match bytes.first() {
        Some(&version @ (VERSION | VERSION_WITHOUT_BLOCK)) => version,
        Some(&other) => return Err(Unreadable::Version(other)),
        None => return Err(Unreadable::Damaged("it is empty")),
    };
    if bytes.len() < HEAD {
        return Err(Unreadable::Damaged("its head is cut off"));
    }
    if bytes[1] != 0 {
        return Err(Unreadable::Encrypted(bytes[1]));
    }
    let mut head = bytes.split_to(HEAD);
    head.advance(2);
    let (state, flags, reason) = (head.get_u8(), head.get_u8(), head.get_u8());
    let units = usize::from(head.get_u8());
    let status = head.get_u16();
    let token = Token::from_bytes(array(&mut head));
    let fingerprint = Fingerprint { policy: array(&mut head), digest: array(&mut head) };
    let attempts = head.get_u32();
    let claimed_at = Timestamp(head.get_u64());
    let abandon_at = Timestamp(head.get_u64());
    let moment = Timestamp(head.get_u64());
    let expires_at = Some(Timestamp(head.get_u64())).filter(|at| at.0 != 0);
    let unknown_retention = Some(head.get_u64()).filter(|&ms| ms != 0).map(std::time::Duration::from_millis);
    let lengths = [head.get_u32() as usize, head.get_u32() as usize, head.get_u32() as usize];
    let block = block::UNIT * units;
    if block + lengths.iter().sum::<usize>() != bytes.len() || (version == VERSION_WITHOUT_BLOCK && block > 0) {
        return Err(Unreadable::Damaged("its parts do not add up to its length"));
    }
    let imprint = Imprint { fingerprint, details: block::read(&bytes.split_to(block))? };
    let [prior, fields, body] = lengths.map(|length| bytes.split_to(length));
    let prior = match (flags & PRIOR != 0, prior.is_empty()) {
        (false, true) => None,
        (true, false) if may_have_prior => Some(Box::new(decode_nested(prior, false)?)),
        _ => return Err(Unreadable::Damaged("its prior record does not fit")),
    };
    let response = decode_response(status, flags, fields, body)?;
    let state = match (state, response) {
        (CLAIMED, None) => State::Claimed { lease_until: moment },
        (UNKNOWN, response) => State::Unknown { since: moment, reason: reason_of(reason)?, expires_at, response },
        (COMPLETED, Some(response)) => State::Completed {
            completed_at: moment,
            expires_at: expires_at.ok_or(Unreadable::Damaged("a completed record does not say when it expires"))?,
            response,
        },
        _ => return Err(Unreadable::Damaged("its state does not fit what it holds")),
    };
    let quoted = flags & QUOTED != 0;
    Ok(Record { token, imprint, quoted, attempts, claimed_at, abandon_at, unknown_retention, prior, state })
}

fn decode_response(status: u16, flags: u8, fields: Bytes, body: Bytes) -> Result<Option<Response>, Unreadable> {
    const DAMAGED: Unreadable = Unreadable::Damaged("its response does not fit");
    if flags & BODY == 0 && !body.is_empty() {
        return Err(DAMAGED);
    }
    if flags & RESPONSE == 0 {
        return if fields.is_empty() && flags & BODY == 0 { Ok(None) } else { Err(DAMAGED) };
    }
    let body = (flags & BODY != 0).then_some(body);
    Response::from_parts(status, fields, body).map(Some).map_err(|_| DAMAGED)
}

pub(crate) fn reason_code(reason: Reason) -> u8 {
    let position = Reason::ALL.iter().position(|r| *r == reason).unwrap_or(0);
    u8::try_from(position + 1).unwrap_or(1)
}

pub(crate) fn reason_of(code: u8) -> Result<Reason, Unreadable> {
    let position = usize::from(code).checked_sub(1);
    position
        .and_then(|at| Reason::ALL.get(at).copied())
        .ok_or(Unreadable::Damaged("its reason is not one that this version knows"))
}

fn array<const N: usize>(bytes: &mut Bytes) -> [u8; N] {
    let mut array = [0; N];
    bytes.copy_to_slice(&mut array);
    array
}

fn len32(length: usize) -> u32 {
    u32::try_from(length).expect("bodies are bounded by settings far below 4 GiB")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::record::{Credentials, Details, Parts};

    fn response(body: Option<&'static [u8]>) -> Response {
        Response::new(201, [(&b"location"[..], &b"/1"[..])], [], body.map(Bytes::from_static))
    }

    fn record(state: State) -> Record {
        Record {
            token: Token::from_bytes([7; 16]),
            imprint: Fingerprint { policy: [1, 2, 3, 4], digest: [9; 32] }.into(),
            quoted: true,
            attempts: 3,
            claimed_at: Timestamp(1_700_000_000_000),
            abandon_at: Timestamp(1_700_000_300_000),
            unknown_retention: Some(Duration::from_secs(60)),
            prior: None,
            state,
        }
    }

    /// One record of each kind, without details.
    fn bare() -> Vec<Record> {
        let unknown = |response| {
            record(State::Unknown { since: Timestamp(5), reason: Reason::Panic, expires_at: None, response })
        };
        let completed =
            |response| record(State::Completed { completed_at: Timestamp(5), expires_at: Timestamp(9), response });
        let mut taken_over = record(State::Claimed { lease_until: Timestamp(8) });
        taken_over.prior = Some(Box::new(unknown(Some(response(Some(b"gateway timeout"))))));
        vec![
            record(State::Claimed { lease_until: Timestamp(8) }),
            unknown(None),
            unknown(Some(response(None))),
            completed(response(Some(b""))),
            completed(response(Some(b"\x00\xffbody"))),
            completed(response(None)),
            taken_over,
        ]
    }

    /// Each without details, with parts, with credentials, and with as many cookies as there may be.
    fn samples() -> Vec<Record> {
        let parts = Parts::new([[1; 16], [2; 16], [0; 16], [4; 16], [5; 16]]);
        let headers = [NonZeroU64::new(1), None, NonZeroU64::new(u64::MAX)];
        let credentials =
            |cookies: std::ops::Range<u64>| Some(Credentials::new(headers, cookies.map(|n| n << 48).collect()));
        let details = [None, credentials(0..0), credentials(1..3), credentials(0..1000)]
            .map(|c| Some(std::sync::Arc::new(Details { parts, credentials: c })));
        let with = |details: &Option<std::sync::Arc<Details>>| {
            let details = details.clone();
            bare().into_iter().map(move |mut record| {
                record.imprint.details.clone_from(&details);
                record
            })
        };
        bare().into_iter().chain(details.iter().flat_map(with)).collect()
    }

    /// What the program wrote before records said more of their request than its fingerprint. Kept, not made here.
    #[test]
    fn reads_what_version_1_wrote() {
        let kept = include_str!("../../tests/fixtures/records-of-format-1.hex");
        let from_hex = |line: &str| -> Bytes {
            line.as_bytes()
                .chunks(2)
                .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
                .collect()
        };
        let kept: Vec<Bytes> = kept.lines().map(from_hex).collect();
        assert_eq!(kept.len(), bare().len());
        for (bytes, record) in kept.into_iter().zip(bare()) {
            assert_eq!(bytes[0], VERSION_WITHOUT_BLOCK);
            assert_eq!(decode(bytes.clone()), Ok(record));
            let mut with_block = bytes.to_vec();
            with_block[BLOCK_UNITS] = 10;
            assert!(decode(with_block.into()).is_err());
        }
    }

    #[test]
    fn refuses_a_block_that_is_none() {
        let record = samples().pop().unwrap();
        let bytes = encode(&record);
        let block = &bytes[HEAD..HEAD + block::len(record.imprint.details.as_deref())];
        assert_eq!(block::read(block), Ok(record.imprint.details));
        for cut in (1..80).chain(81..104).chain([105, block.len() - 1]) {
            assert!(block::read(&block[..cut]).is_err(), "{cut}");
        }
        let too_many = [block, &[0xff; 8]].concat();
        assert!(block::read(&too_many).is_err());
    }

    #[test]
    fn reads_back_what_it_wrote() {
        for record in samples() {
            assert_eq!(decode(encode(&record).into()), Ok(record));
        }
    }

    #[test]
    fn refuses_what_is_cut_off_newer_or_encrypted() {
        for record in samples() {
            let bytes = encode(&record);
            for cut in 0..bytes.len() {
                assert!(decode(Bytes::copy_from_slice(&bytes[..cut])).is_err(), "{record:?} cut at {cut}");
            }
            let mut newer = bytes.clone();
            newer[0] = 3;
            assert_eq!(decode(newer.into()), Err(Unreadable::Version(3)));
            let mut encrypted = bytes;
            encrypted[1] = 5;
            assert_eq!(decode(encrypted.into()), Err(Unreadable::Encrypted(5)));
        }
    }
}
