//! What the scripts answer, as the replies of the contract.
//!
//! A script answers with a list: a word, then numbers and sometimes a stored value. The answers of nearly every first
//! execution are a word without a list, which costs both sides least. Anything else is a fault of this program, never
//! a guess.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use crate::record::{
    ClaimReply, CompleteReply, DoubtReply, Doubtful, Fate, Fingerprint, ForgetReply, Imprint, Likeness, LookReply,
    Record, ReleaseReply, RenewReply, Replay, ResolveReply, Reused, State, Taken, Timestamp,
};
use crate::store::{StoreError, StoreErrorKind, codec};

/// Whether a claim's answer is a grant.
pub(super) fn is_grant(answer: &Value) -> bool {
    match answer {
        Value::BulkString(word) => word == b"fresh",
        Value::Array(parts) => matches!(parts.first(), Some(Value::BulkString(word)) if word == b"granted"),
        _ => false,
    }
}

/// A script's answer, taken apart from the left.
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// The answer's word and the rest of it.
    pub(super) fn open(value: Value) -> Result<(String, Reply), StoreError> {
        let parts = match value {
            Value::Array(parts) => parts,
            word => vec![word],
        };
        let mut reply = Reply(parts.into_iter());
        let word = reply.bytes()?;
        String::from_utf8(word).map(|word| (word, reply)).map_err(|e| not_understood("a word").because(e))
    }

    fn bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            other => Err(not_understood(&other)),
        }
    }

    fn number(&mut self) -> Result<i64, StoreError> {
        match self.0.next() {
            Some(Value::Int(number)) => Ok(number),
            other => Err(not_understood(&other)),
        }
    }

    fn flag(&mut self) -> Result<bool, StoreError> {
        Ok(self.number()? == 1)
    }

    fn moment(&mut self) -> Result<Timestamp, StoreError> {
        self.number().map(|ms| Timestamp(u64::try_from(ms).unwrap_or(0)))
    }

    fn span(&mut self) -> Result<Duration, StoreError> {
        self.number().map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
    }
}

fn not_understood(what: impl std::fmt::Debug) -> StoreError {
    StoreError::may_have_run(StoreErrorKind::Broken, format!("a script answered what is not understood: {what:?}"))
}

/// A stored value that this version cannot read.
pub(super) fn unreadable(cause: codec::Unreadable) -> StoreError {
    StoreError::without_effect(StoreErrorKind::Unreadable, "the stored value is not a readable record").because(cause)
}

/// A completed record: its replay, or its head alone.
pub(super) enum Completed {
    Whole(Replay),
    Head { head: Vec<u8>, now: Timestamp },
}

impl Completed {
    fn read(reply: &mut Reply, asking: &Imprint) -> Result<Completed, StoreError> {
        let now = reply.moment()?;
        let value = reply.bytes()?;
        if !reply.flag()? {
            return Ok(Completed::Head { head: value, now });
        }
        let record = codec::decode(Bytes::from(value)).map_err(unreadable)?;
        replay(record, asking, now).map(Completed::Whole)
    }
}

/// The replay of a completed record for the duplicate that asks. A script has compared the two; what is given out is
/// compared here as well.
pub(super) fn replay(record: Record, asking: &Imprint, now: Timestamp) -> Result<Replay, StoreError> {
    let Likeness::Same { other_policy } = record.imprint.compare(asking) else {
        return Err(not_understood("the record of another request"));
    };
    match record.state {
        State::Completed { completed_at, expires_at, response } => {
            Ok(Replay { response, age: now.since(completed_at), ttl: expires_at.since(now), other_policy })
        }
        other => Err(not_understood(other.as_str())),
    }
}

/// The answer of `claim.lua` or `look.lua`, before the body of a large record is fetched.
pub(super) enum Answered<R> {
    Decided { reply: R, lapsed: bool },
    Completed(Completed),
}

impl<R: From<Taken>> Answered<R> {
    fn at_once(reply: R) -> Answered<R> {
        Answered::Decided { reply, lapsed: false }
    }

    /// What both scripts say of a record that is there.
    fn taken(word: &str, reply: &mut Reply, asking: &Imprint) -> Result<Answered<R>, StoreError> {
        let (taken, lapsed) = match word {
            "stranger" => (Taken::OtherCaller, false),
            "reused" => (Taken::Reused(reused(reply, asking)?), false),
            "completed" => return Completed::read(reply, asking).map(Answered::Completed),
            "claimed" => (Taken::InProgress { lease_left: reply.span()?, other_policy: reply.flag()? }, false),
            "unknown" => {
                let since = reply.moment()?;
                let reason = u8::try_from(reply.number()?).unwrap_or(0);
                let reason = codec::reason_of(reason).map_err(unreadable)?;
                let original_status = u16::try_from(reply.number()?).ok();
                let doubtful = Doubtful { since, reason, original_status, other_policy: reply.flag()? };
                (Taken::Unknown(doubtful), reply.flag()?)
            }
            other => return Err(not_understood(other)),
        };
        Ok(Answered::Decided { reply: taken.into(), lapsed })
    }
}

/// What a script says of the record of another request. In what the two differ is found out here.
fn reused(reply: &mut Reply, asking: &Imprint) -> Result<Reused, StoreError> {
    let fate = match reply.number()? {
        1 => Fate::Running,
        2 => Fate::Unknown,
        3 => Fate::Answered,
        other => return Err(not_understood(other)),
    };
    let original_status = u16::try_from(reply.number()?).ok();
    let (print, details) = (reply.bytes()?, reply.bytes()?);
    let fingerprint = Fingerprint::from_bytes(&print).ok_or_else(|| not_understood("a fingerprint"))?;
    let first = Imprint { fingerprint, details: codec::block::read(&details).map_err(unreadable)? };
    match first.compare(asking) {
        Likeness::Differs(differences) => Ok(Reused { fate, original_status, differences }),
        other => Err(not_understood(other)),
    }
}

/// Reads the answer of `claim.lua` to a request with this imprint.
pub(super) fn claimed(value: Value, asking: &Imprint) -> Result<Answered<ClaimReply>, StoreError> {
    let (word, mut reply) = Reply::open(value)?;
    match word.as_str() {
        "granted" => {
            let attempts = u32::try_from(reply.number()?).unwrap_or(u32::MAX);
            let taken_over = match reply.number()? {
                -1 => None,
                quoted => Some(quoted == 1),
            };
            Ok(Answered::Decided { reply: ClaimReply::Granted { attempts, taken_over }, lapsed: reply.flag()? })
        }
        "fresh" => Ok(Answered::at_once(ClaimReply::Granted { attempts: 1, taken_over: None })),
        "lost" => Ok(Answered::at_once(ClaimReply::Lost)),
        taken => Answered::taken(taken, &mut reply, asking),
    }
}

/// Reads the answer of `look.lua` to a request with this imprint.
pub(super) fn looked(value: Value, asking: &Imprint) -> Result<Answered<LookReply>, StoreError> {
    let (word, mut reply) = Reply::open(value)?;
    match word.as_str() {
        "absent" => Ok(Answered::at_once(LookReply::Absent)),
        taken => Answered::taken(taken, &mut reply, asking),
    }
}

/// The answer of `complete.lua` to an attempt with this imprint.
pub(super) enum Recorded {
    Decided(CompleteReply),
    Already(Completed),
}

impl Recorded {
    pub(super) fn read(value: Value, asking: &Imprint) -> Result<Recorded, StoreError> {
        let (word, mut reply) = Reply::open(value)?;
        Ok(Recorded::Decided(match word.as_str() {
            "stored" => CompleteReply::Stored,
            "rewritten" => CompleteReply::Rewritten,
            "lost" => CompleteReply::Lost,
            "completed" => return Completed::read(&mut reply, asking).map(Recorded::Already),
            other => return Err(not_understood(other)),
        }))
    }
}

fn word<T: Clone>(value: Value, words: &[(&str, T)]) -> Result<T, StoreError> {
    let (word, _) = Reply::open(value)?;
    words.iter().find(|(known, _)| *known == word).map(|(_, reply)| reply.clone()).ok_or_else(|| not_understood(word))
}

/// The answer of `renew.lua`.
pub(super) fn renewed(value: Value) -> Result<RenewReply, StoreError> {
    use RenewReply::{Extended, Lapsed, Lost, Rewritten};
    word(value, &[("extended", Extended), ("rewritten", Rewritten), ("lapsed", Lapsed), ("lost", Lost)])
}

/// The answer of `release.lua`.
pub(super) fn released(value: Value) -> Result<ReleaseReply, StoreError> {
    use ReleaseReply::{Absent, Lost, UnknownAgain};
    word(value, &[("absent", Absent), ("unknown", UnknownAgain), ("lost", Lost)])
}

/// The answer of `doubt.lua`.
pub(super) fn doubted(value: Value) -> Result<DoubtReply, StoreError> {
    use DoubtReply::{Held, Lost, Rewritten};
    word(value, &[("held", Held), ("rewritten", Rewritten), ("lost", Lost)])
}

/// The answer of `forget.lua`.
pub(super) fn forgotten(value: Value) -> Result<ForgetReply, StoreError> {
    use ForgetReply::{Absent, Conflict, Forgotten};
    word(value, &[("forgotten", Forgotten), ("absent", Absent), ("conflict", Conflict)])
}

/// The answer of `resolve.lua`.
pub(super) fn resolved(value: Value) -> Result<ResolveReply, StoreError> {
    use ResolveReply::{Absent, Conflict, MayBeRunning, Resolved};
    let words = [("resolved", Resolved), ("absent", Absent), ("conflict", Conflict), ("may-be-running", MayBeRunning)];
    word(value, &words)
}

/// The answer of `lapse.lua`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visited {
    Lapsed,
    Gone,
    Kept,
}

impl Visited {
    pub(super) fn read(value: Value) -> Result<Visited, StoreError> {
        use Visited::{Gone, Kept, Lapsed};
        word(value, &[("lapsed", Lapsed), ("gone", Gone), ("kept", Kept)])
    }
}
