//! What an attempt asks the scripts for: the record that it wishes to be there.
//!
//! The wish is in the stored form and written as if all had begun at the first moment of the clock, so its moments are
//! spans: the server's time is known on the server alone, where the scripts add it. One argument instead of ten is what
//! a script costs least with, and a response is neither taken apart nor put together on the way.

use std::io::Write;
use std::time::Duration;

use redis::{RedisWrite, ToRedisArgs, ToSingleRedisArg};

use super::millis;
use crate::record::{Claim, Details, Fingerprint, Reason, Record, Response, State, Timestamp, Token};
use crate::store::codec::{self, block};

/// A record in its stored form, in pieces. The response's bytes are borrowed.
pub(super) struct Wish<'a> {
    head: [u8; codec::HEAD],
    details: Option<&'a Details>,
    fields: &'a [u8],
    body: &'a [u8],
}

impl<'a> Wish<'a> {
    /// Claimed by this attempt.
    pub(super) fn claimed(claim: &'a Claim) -> Wish<'a> {
        let lease_until = Timestamp(millis(claim.lease));
        Wish::with_response(claim, State::Claimed { lease_until }, None, false)
    }

    /// Completed by this attempt, with the response's body or without.
    pub(super) fn completed(claim: &'a Claim, response: &'a Response, retention: Duration, whole: bool) -> Wish<'a> {
        Wish::with_response(claim, completed(response, retention, whole), Some(response), whole)
    }

    /// Unknown by this attempt's word, with the body of what the upstream's side said or without.
    pub(super) fn unknown(claim: &'a Claim, reason: Reason, response: Option<&'a Response>, whole: bool) -> Wish<'a> {
        let said = response.map(|response| kept(response, whole));
        let state = State::Unknown { since: Timestamp(0), reason, expires_at: None, response: said };
        Wish::with_response(claim, state, response, whole)
    }

    /// Completed by somebody's word. Whose record it is stays as it is.
    pub(super) fn found(response: &'a Response, retention: Duration, whole: bool) -> Wish<'a> {
        let nobody = Fingerprint { policy: [0; 4], digest: [0; 32] };
        let record = Record {
            token: Token::from_bytes([0; 16]),
            imprint: nobody.into(),
            quoted: false,
            attempts: 1,
            claimed_at: Timestamp(0),
            abandon_at: Timestamp(0),
            unknown_retention: None,
            prior: None,
            state: completed(response, retention, whole),
        };
        Wish::new(&record, None, Some(response), whole)
    }

    fn with_response(claim: &'a Claim, state: State, response: Option<&'a Response>, whole: bool) -> Wish<'a> {
        Wish::new(&record(claim, state), claim.imprint.details.as_deref(), response, whole)
    }

    /// The details are lent, and not taken from the record.
    fn new(record: &Record, details: Option<&'a Details>, response: Option<&'a Response>, whole: bool) -> Wish<'a> {
        let fields = response.map(|response| response.fields().as_ref()).unwrap_or_default();
        let body = response.filter(|_| whole).and_then(Response::body).map(AsRef::as_ref).unwrap_or_default();
        let mut head = codec::encode_head(record);
        head[codec::BLOCK_UNITS] = block::units(details);
        Wish { head, details, fields, body }
    }

    /// How many bytes it has.
    pub(super) fn len(&self) -> usize {
        self.head.len() + block::len(self.details) + self.fields.len() + self.body.len()
    }
}

impl ToRedisArgs for Wish<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut argument = out.writer_for_next_arg();
        let mut write = |part: &[u8]| argument.write_all(part).expect("writing to memory does not fail");
        write(&self.head);
        block::each(self.details, &mut write);
        write(self.fields);
        write(self.body);
    }
}

impl ToSingleRedisArg for Wish<'_> {}

fn record(claim: &Claim, state: State) -> Record {
    Record {
        token: claim.token,
        imprint: claim.imprint.fingerprint.into(),
        quoted: claim.quoted,
        attempts: 1,
        claimed_at: Timestamp(0),
        abandon_at: Timestamp(millis(claim.abandon_after)),
        unknown_retention: claim.unknown_retention.map(|age| Duration::from_millis(millis(age))),
        prior: None,
        state,
    }
}

fn completed(response: &Response, retention: Duration, whole: bool) -> State {
    let expires_at = Timestamp(millis(retention));
    State::Completed { completed_at: Timestamp(0), expires_at, response: kept(response, whole) }
}

fn kept(response: &Response, whole: bool) -> Response {
    if whole { response.clone() } else { response.without_body() }
}
