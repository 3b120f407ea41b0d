//! The record: what is known of one key, and the pure rules by which it changes.
//!
//! Every function below that takes a [`Slot`] is a rule of the form *(record, operation, now) → (record, reply)*: no
//! input or output, no clock of its own. The memory and disk stores apply them under their own lock or transaction;
//! the Redis scripts say the same in Lua, and a property test holds the two against each other.
//!
//! Vocabulary: a *claim* is the right to execute one key, held by one attempt and named by its *token*; the *lease*
//! says until when the claim is believed to be alive. See `docs/guarantees.md`.

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use uuid::fmt::Simple;

mod imprint;
mod response;
#[cfg(test)]
pub(crate) mod tests;

pub use imprint::{Credentials, Details, Differences, Fingerprint, Imprint, Likeness, Parts, RequestPart};
pub use response::{MalformedFields, Response};

/// How long a tombstone stops its token from being granted again, at the least: far longer than any message can be under way.
/// It stands until the attempt's `abandon_at` too, up to which an attempt repeats its end.
pub const TOMBSTONE_TTL: Duration = Duration::from_secs(300);

/// A moment on the *store's* clock, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time from `earlier` to `self`, zero when `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The same moment as a [`std::time::SystemTime`], for printing.
    pub fn to_system_time(self) -> std::time::SystemTime {
        std::time::UNIX_EPOCH + Duration::from_millis(self.0)
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// The name of one attempt, made by the claimant and never used again. Every write after the claim presents it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(Uuid);

impl Token {
    /// Makes a token that no other attempt has.
    pub fn new() -> Token {
        Token(uuid::Builder::from_random_bytes(random()).into_uuid())
    }

    /// The sixteen bytes of the token.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The token as 32 lower-case hex characters, to be displayed or written into a buffer.
    pub fn hex(&self) -> Simple {
        self.0.simple()
    }

    /// The token with these sixteen bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Token {
        Token(Uuid::from_bytes(bytes))
    }
}

/// Sixteen random bytes. The system is asked for those of many tokens at once: its answer costs as much as the rest of a
/// token many times over.
fn random() -> [u8; 16] {
    const STOCK: usize = 32;
    thread_local! {
        static UNUSED: RefCell<Vec<[u8; 16]>> = const { RefCell::new(Vec::new()) };
    }
    UNUSED.with_borrow_mut(|unused| {
        unused.pop().unwrap_or_else(|| {
            let mut fresh = [[0; 16]; STOCK];
            getrandom::fill(fresh.as_flattened_mut()).expect("the system has random bytes once it is up");
            unused.extend_from_slice(&fresh[1..]);
            fresh[0]
        })
    })
}

impl Default for Token {
    fn default() -> Token {
        Token::new()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Token {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Token, uuid::Error> {
        text.parse().map(Token)
    }
}

/// The name of a record: `route-name:` and 32 hex characters. It is a hash, so it is safe to print.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId {
    route: Arc<str>,
    hash: [u8; 16],
}

impl RecordId {
    /// The record of a route under this hash of scope and key.
    pub fn new(route: Arc<str>, hash: [u8; 16]) -> RecordId {
        RecordId { route, hash }
    }

    /// The name of the route.
    pub fn route(&self) -> &str {
        &self.route
    }

    /// The first sixteen bytes of the SHA-256 over scope and key. They include the route's name.
    pub fn hash(&self) -> &[u8; 16] {
        &self.hash
    }

    /// The hash as 32 lower-case hex characters, to be displayed or written into a buffer. It is no UUID, but that is what
    /// writes sixteen bytes so without an allocation.
    pub fn hex(&self) -> Simple {
        Uuid::from_bytes(self.hash).simple()
    }
}

impl std::hash::Hash for RecordId {
    /// The hash says it all, the route's name included.
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        hasher.write(&self.hash);
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.route)?;
        f.write_str(":")?;
        self.hex().fmt(f)
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a record id.
#[derive(Debug, thiserror::Error)]
#[error("not a record id: expected ROUTE:HASH with 32 lower-case hex characters after the last colon")]
pub struct NotARecordId;

impl FromStr for RecordId {
    type Err = NotARecordId;

    fn from_str(text: &str) -> Result<RecordId, NotARecordId> {
        let (route, hex) = text.rsplit_once(':').ok_or(NotARecordId)?;
        if route.is_empty() || hex.len() != 32 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(NotARecordId);
        }
        let number = u128::from_str_radix(hex, 16).map_err(|_| NotARecordId)?;
        Ok(RecordId { route: route.into(), hash: number.to_be_bytes() })
    }
}

/// Why an outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The lease ran out: the owner died or lost the store.
    Lapsed,
    /// The upstream did not answer until `abandon_after`.
    Timeout,
    /// The connection broke after a byte may have been sent.
    Reset,
    /// The answer ended before its end.
    Truncated,
    /// The upstream answered with a status that the route lists under `unknown`.
    Status,
    /// The proxy stopped while the attempt was running.
    Drained,
    /// A fault in the proxy itself.
    Panic,
    /// The head of the answer was longer than the proxy reads.
    HeadTooLarge,
}

impl Reason {
    /// Every reason, in the order of their codes in stored records (the first has code 1).
    pub const ALL: [Reason; 8] = [
        Reason::Lapsed,
        Reason::Timeout,
        Reason::Reset,
        Reason::Truncated,
        Reason::Status,
        Reason::Drained,
        Reason::Panic,
        Reason::HeadTooLarge,
    ];

    /// The word used in records, logs and problems.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Lapsed => "lapsed",
            Reason::Timeout => "timeout",
            Reason::Reset => "reset",
            Reason::Truncated => "truncated",
            Reason::Status => "status",
            Reason::Drained => "drained",
            Reason::Panic => "panic",
            Reason::HeadTooLarge => "head-too-large",
        }
    }
}

/// What a claim does when it meets an unknown record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnUnknown {
    /// Nothing: a person decides.
    Hold,
    /// Takes it over, because the upstream itself honours the key.
    Resend,
}

/// One attempt's claim: all that a store needs to grant it, and to write it again should the store have forgotten it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Whose record.
    pub id: RecordId,
    /// This attempt.
    pub token: Token,
    /// What the request was, and who sent it.
    pub imprint: Imprint,
    /// Whether the key came as a quoted structured-field string; a resend keeps the form of the first time.
    pub quoted: bool,
    /// How long the claim is believed alive without a renewal.
    pub lease: Duration,
    /// How long the attempt listens for an answer.
    pub abandon_after: Duration,
    /// What to do about an unknown record.
    pub on_unknown: OnUnknown,
    /// The age at which an unknown record lapses into absence; `None` is never.
    pub unknown_retention: Option<Duration>,
}

/// What the store holds for a record id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The attempt that owns the record, or owned it last.
    pub token: Token,
    /// What the first request was, and who sent it. After a resend, the last one, which was the same.
    pub imprint: Imprint,
    /// Whether the first key came quoted.
    pub quoted: bool,
    /// How many attempts were granted since the record was absent.
    pub attempts: u32,
    /// When the last attempt was granted.
    pub claimed_at: Timestamp,
    /// When the last attempt stops listening: before this it may still be running.
    pub abandon_at: Timestamp,
    /// See [`Claim::unknown_retention`].
    pub unknown_retention: Option<Duration>,
    /// The unknown record that this attempt took over. Present only while the attempt may still say that it sent
    /// nothing (claimed, or lapsed), and never nested: the inner record has none.
    pub prior: Option<Box<Record>>,
    /// Claimed, unknown or completed.
    pub state: State,
}

/// The three states of a record. Absent is the fourth, and is not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// An attempt owns the key.
    Claimed {
        /// Until when the claim is believed alive. At this moment it is over.
        lease_until: Timestamp,
    },
    /// Nobody can tell whether the upstream ran it.
    Unknown {
        /// Since when.
        since: Timestamp,
        /// Why.
        reason: Reason,
        /// When the record lapses into absence, if ever.
        expires_at: Option<Timestamp>,
        /// What the upstream's side said, if anything (a gateway's 504, say). For the operator; never replayed.
        response: Option<Response>,
    },
    /// The answer is known, and does not change any more.
    Completed {
        /// Since when.
        completed_at: Timestamp,
        /// When the record becomes absent.
        expires_at: Timestamp,
        /// What duplicates are answered with.
        response: Response,
    },
}

impl State {
    /// The word for the state in records, logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            State::Claimed { .. } => "claimed",
            State::Unknown { .. } => "unknown",
            State::Completed { .. } => "completed",
        }
    }
}

impl Record {
    fn granted(claim: &Claim, now: Timestamp) -> Record {
        Record {
            token: claim.token,
            imprint: claim.imprint.clone(),
            quoted: claim.quoted,
            attempts: 1,
            claimed_at: now,
            abandon_at: now + claim.abandon_after,
            unknown_retention: claim.unknown_retention,
            prior: None,
            state: State::Claimed { lease_until: now + claim.lease },
        }
    }

    /// When the record becomes absent by itself.
    pub fn expires_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Claimed { .. } => None,
            State::Unknown { expires_at, .. } => expires_at,
            State::Completed { expires_at, .. } => Some(expires_at),
        }
    }

    /// Whether the record is open: claimed or unknown.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Completed { .. })
    }

    /// The status of the upstream's answer, where there was one.
    pub fn original_status(&self) -> Option<u16> {
        match &self.state {
            State::Claimed { .. } => None,
            State::Unknown { response, .. } => response.as_ref().map(Response::status),
            State::Completed { response, .. } => Some(response.status()),
        }
    }

    /// Whether the attempt may still hand its grant back: claimed, or unknown for no other reason than its lease.
    fn is_undecided(&self) -> bool {
        matches!(self.state, State::Claimed { .. } | State::Unknown { reason: Reason::Lapsed, .. })
    }

    fn become_unknown(&mut self, since: Timestamp, reason: Reason, response: Option<Response>) {
        // An attempt that may still be running is never forgotten, whatever its age. All but a lapse are said by the
        // attempt itself, at its end.
        let running_until = if reason == Reason::Lapsed { self.abandon_at } else { since };
        let expires_at = self.unknown_retention.map(|age| (since + age).max(running_until));
        self.state = State::Unknown { since, reason, expires_at, response };
    }

    fn become_completed(&mut self, response: Response, retention: Duration, now: Timestamp) {
        self.prior = None;
        self.state = State::Completed { completed_at: now, expires_at: now + retention, response };
    }
}

/// Everything a rule looks at and changes: the record of an id, and whether the operation's token has a tombstone.
///
/// A rule may set `tombstone`; the store then keeps it until `buried_until`. No rule takes one away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The record, `None` when absent.
    pub record: Option<Record>,
    /// Whether the token of the operation must never be granted (again).
    pub tombstone: bool,
    /// Until when a tombstone that a rule has set must stand.
    pub buried_until: Timestamp,
}

impl Slot {
    /// What a store has: the record, and whether the operation's token has a tombstone.
    pub fn new(record: Option<Record>, tombstone: bool) -> Slot {
        Slot { record, tombstone, buried_until: Timestamp(0) }
    }

    /// Has the operation's token refused from now on, at least until this moment.
    fn bury(&mut self, now: Timestamp, at_least_until: Timestamp) {
        self.tombstone = true;
        self.buried_until = at_least_until.max(now + TOMBSTONE_TTL);
    }

    /// Makes an expired record absent. Every rule begins with this, so a store may free memory when it likes.
    fn expire(&mut self, now: Timestamp) {
        self.record.take_if(|record| record.expires_at().is_some_and(|at| at <= now));
    }
}

/// Answers [`claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimReply {
    /// The key is this attempt's to execute.
    Granted {
        /// The number of this attempt since the record was absent.
        attempts: u32,
        /// When the record was unknown and is taken over: whether the first key came quoted.
        taken_over: Option<bool>,
    },
    /// The key has a record that is not this attempt's to change.
    Taken(Taken),
    /// This token must not execute any more.
    Lost,
}

/// What a record says to a request that is not its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Already done.
    Completed(Replay),
    /// An attempt is at it.
    InProgress {
        /// What is left of its lease.
        lease_left: Duration,
        /// The two were read under different settings, and are equal as they came.
        other_policy: bool,
    },
    /// Nobody can tell.
    Unknown(Doubtful),
    /// The key was used for another request.
    Reused(Reused),
    /// The key was used by somebody else, who is told nothing of it.
    OtherCaller,
}

/// The record of another request under the same key, as far as the sender of this one may know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reused {
    /// What became of that request.
    pub fate: Fate,
    /// The status of its answer, where there was one.
    pub original_status: Option<u16>,
    /// In what this one differs from it.
    pub differences: Differences,
}

/// What became of a request that has a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// An attempt is at it.
    Running,
    /// Nobody can tell.
    Unknown,
    /// It was answered.
    Answered,
}

/// A completed record, as a duplicate needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// What was recorded.
    pub response: Response,
    /// How long ago it was recorded.
    pub age: Duration,
    /// How long it is still kept.
    pub ttl: Duration,
    /// The two were read under different settings, and are equal as they came.
    pub other_policy: bool,
}

/// An unknown record, as a duplicate needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubtful {
    /// Since when.
    pub since: Timestamp,
    /// Why.
    pub reason: Reason,
    /// The status of an answer that did not settle it.
    pub original_status: Option<u16>,
    /// The two were read under different settings, and are equal as they came.
    pub other_policy: bool,
}

/// Claims the right to execute a key. A claim repeated with the same token is recognised.
pub fn claim(slot: &mut Slot, claim: &Claim, now: Timestamp) -> ClaimReply {
    slot.expire(now);
    let Some(record) = &mut slot.record else {
        if slot.tombstone {
            return ClaimReply::Lost;
        }
        slot.record = Some(Record::granted(claim, now));
        return ClaimReply::Granted { attempts: 1, taken_over: None };
    };
    let likeness = record.imprint.compare(&claim.imprint);
    let is_own = record.token == claim.token;
    if is_own && matches!(likeness, Likeness::Same { .. }) && record.is_undecided() && !slot.tombstone {
        record.abandon_at = record.abandon_at.max(now + claim.abandon_after);
        record.state = State::Claimed { lease_until: now + claim.lease };
        let taken_over = record.prior.as_ref().map(|_| record.quoted);
        return ClaimReply::Granted { attempts: record.attempts, taken_over };
    }
    let may_resend = claim.on_unknown == OnUnknown::Resend && !is_own && !slot.tombstone;
    match taken(record, likeness, now) {
        Taken::Unknown(_) if may_resend => {
            let attempts = record.attempts.saturating_add(1);
            let quoted = record.quoted;
            let abandon_at = record.abandon_at.max(now + claim.abandon_after);
            let mut prior = record.clone();
            prior.prior = None;
            *record =
                Record { quoted, attempts, abandon_at, prior: Some(Box::new(prior)), ..Record::granted(claim, now) };
            ClaimReply::Granted { attempts, taken_over: Some(quoted) }
        }
        taken => ClaimReply::Taken(taken),
    }
}

/// What a record says to a request that is like this to its own. To the same one a lapsed claim is unknown from here on.
fn taken(record: &mut Record, likeness: Likeness, now: Timestamp) -> Taken {
    let other_policy = match likeness {
        Likeness::OtherCaller => return Taken::OtherCaller,
        Likeness::Differs(differences) => return Taken::Reused(reused(record, differences, now)),
        Likeness::Same { other_policy } => other_policy,
    };
    lapse(record, now);
    let original_status = record.original_status();
    match &record.state {
        State::Claimed { lease_until } => Taken::InProgress { lease_left: lease_until.since(now), other_policy },
        State::Completed { completed_at, expires_at, response } => {
            let (age, ttl) = (now.since(*completed_at), expires_at.since(now));
            Taken::Completed(Replay { response: response.clone(), age, ttl, other_policy })
        }
        State::Unknown { since, reason, .. } => {
            Taken::Unknown(Doubtful { since: *since, reason: *reason, original_status, other_policy })
        }
    }
}

fn reused(record: &Record, differences: Differences, now: Timestamp) -> Reused {
    let fate = match record.state {
        State::Claimed { lease_until } if now < lease_until => Fate::Running,
        State::Claimed { .. } | State::Unknown { .. } => Fate::Unknown,
        State::Completed { .. } => Fate::Answered,
    };
    Reused { fate, original_status: record.original_status(), differences }
}

/// Answers [`look`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookReply {
    /// There is no record (any more).
    Absent,
    /// There is one.
    Taken(Taken),
}

impl From<Taken> for ClaimReply {
    fn from(taken: Taken) -> ClaimReply {
        ClaimReply::Taken(taken)
    }
}

impl From<Taken> for LookReply {
    fn from(taken: Taken) -> LookReply {
        LookReply::Taken(taken)
    }
}

/// Looks at a record for a duplicate that waits. Unlike [`claim`] it never grants: a joiner never becomes an owner.
pub fn look(slot: &mut Slot, asking: &Imprint, now: Timestamp) -> LookReply {
    slot.expire(now);
    match &mut slot.record {
        None => LookReply::Absent,
        Some(record) => {
            let likeness = record.imprint.compare(asking);
            LookReply::Taken(taken(record, likeness, now))
        }
    }
}

/// Answers [`renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewReply {
    /// The lease is fresh.
    Extended,
    /// The store had forgotten the claim; it is written anew. Not a licence to begin a send.
    Rewritten,
    /// The record is unknown. The attempt may listen and complete, but must not begin a send.
    Lapsed,
    /// The record is another's, or decided.
    Lost,
}

/// Extends the lease of a claim that is still alive. An unknown record is never revived by this.
pub fn renew(slot: &mut Slot, claim: &Claim, now: Timestamp) -> RenewReply {
    slot.expire(now);
    if let Some(record) = &mut slot.record {
        // Whether a sweep came by in between must not decide what a late renewal is told.
        lapse(record, now);
    }
    match &mut slot.record {
        None if slot.tombstone => RenewReply::Lost,
        None => {
            slot.record = Some(Record::granted(claim, now));
            RenewReply::Rewritten
        }
        Some(record) if record.token == claim.token => match &mut record.state {
            State::Claimed { lease_until } => {
                *lease_until = now + claim.lease;
                RenewReply::Extended
            }
            State::Unknown { .. } => RenewReply::Lapsed,
            State::Completed { .. } => RenewReply::Lost,
        },
        Some(_) => RenewReply::Lost,
    }
}

/// Answers [`complete`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompleteReply {
    /// Recorded.
    Stored,
    /// Recorded, although the store had forgotten the claim.
    Rewritten,
    /// Recorded without its body, for which the store had no room. Back-ends say this; the rule never does.
    WithoutBody {
        /// The store had forgotten the claim as well.
        rewritten: bool,
    },
    /// There already is a completed record; this is what it holds, and what the caller gets.
    Already(Replay),
    /// The record is another attempt's, or holds the answer to another request. Nothing was written.
    Lost,
}

/// Records the response. A completed record never changes.
///
/// A store that forgot the claim may have granted the key to another request meanwhile: that one's answer is not for
/// this attempt's caller.
pub fn complete(
    slot: &mut Slot,
    claim: &Claim,
    response: Response,
    retention: Duration,
    now: Timestamp,
) -> CompleteReply {
    slot.expire(now);
    match &mut slot.record {
        None if slot.tombstone => CompleteReply::Lost,
        None => {
            // An answer proves an execution, whatever the store remembers.
            let mut record = Record::granted(claim, now);
            record.become_completed(response, retention, now);
            slot.record = Some(record);
            CompleteReply::Rewritten
        }
        Some(record) if !record.is_open() => {
            let likeness = record.imprint.compare(&claim.imprint);
            match taken(record, likeness, now) {
                Taken::Completed(replay) => CompleteReply::Already(replay),
                _ => CompleteReply::Lost,
            }
        }
        Some(record) if record.token == claim.token => {
            record.become_completed(response, retention, now);
            CompleteReply::Stored
        }
        Some(_) => CompleteReply::Lost,
    }
}

/// Answers [`release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseReply {
    /// The key is free again.
    Absent,
    /// The record is unknown, as it was before this attempt took it over.
    UnknownAgain,
    /// There was nothing of this attempt to hand back.
    Lost,
}

/// Hands the grant back because nothing was sent. Its token is never granted again, even if its claim arrives later.
pub fn release(slot: &mut Slot, claim: &Claim, now: Timestamp) -> ReleaseReply {
    slot.expire(now);
    let own = slot.record.as_ref().filter(|record| record.token == claim.token);
    let abandon_at = own.map_or(Timestamp(0), |record| record.abandon_at);
    slot.bury(now, abandon_at.max(now + claim.abandon_after));
    let Some(record) = slot.record.as_mut().filter(|r| r.token == claim.token && r.is_undecided()) else {
        return ReleaseReply::Lost;
    };
    if let Some(prior) = record.prior.take() {
        *record = *prior;
        return ReleaseReply::UnknownAgain;
    }
    if record.attempts > 1 {
        // An earlier attempt's fate is not known, and what was known of it is no longer here.
        if matches!(record.state, State::Claimed { .. }) {
            record.become_unknown(now, Reason::Lapsed, None);
        }
        return ReleaseReply::UnknownAgain;
    }
    slot.record = None;
    ReleaseReply::Absent
}

/// Answers [`doubt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoubtReply {
    /// The record is unknown and held.
    Held,
    /// As [`DoubtReply::Held`], although the store had forgotten the claim.
    Rewritten,
    /// The record is another attempt's, or decided. Nothing was written.
    Lost,
}

/// Says that this attempt may have run and nobody can tell.
pub fn doubt(slot: &mut Slot, claim: &Claim, reason: Reason, response: Option<Response>, now: Timestamp) -> DoubtReply {
    slot.expire(now);
    match &mut slot.record {
        None if slot.tombstone => DoubtReply::Lost,
        None => {
            // As with complete: the store forgot, the attempt did not. Absent would be run again.
            let mut record = Record::granted(claim, now);
            record.become_unknown(now, reason, response);
            slot.record = Some(record);
            DoubtReply::Rewritten
        }
        Some(record) if record.token == claim.token && record.is_open() => {
            let since = match record.state {
                State::Unknown { since, .. } => since,
                _ => now,
            };
            record.prior = None;
            record.become_unknown(since, reason, response);
            DoubtReply::Held
        }
        Some(_) => DoubtReply::Lost,
    }
}

/// What an operator found out about an unknown record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The upstream ran it, and duplicates are to be answered with this.
    Executed {
        /// The answer to replay.
        response: Response,
        /// How long to keep it.
        retention: Duration,
    },
    /// No attempt since the record was absent ran.
    NotExecuted,
}

/// Answers [`resolve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveReply {
    /// Done.
    Resolved,
    /// No such record.
    Absent,
    /// The record is not unknown, or belongs to another token. It is unchanged.
    Conflict,
    /// Not-executed cannot be said yet: the last attempt may still be running until its `abandon_at`.
    MayBeRunning,
}

/// Ends an unknown record by what an operator found.
pub fn resolve(slot: &mut Slot, token: Token, finding: Finding, force: bool, now: Timestamp) -> ResolveReply {
    slot.expire(now);
    let Some(record) = &mut slot.record else { return ResolveReply::Absent };
    lapse(record, now);
    if record.token != token || !matches!(record.state, State::Unknown { .. }) {
        return ResolveReply::Conflict;
    }
    match finding {
        Finding::Executed { response, retention } => record.become_completed(response, retention, now),
        Finding::NotExecuted if now < record.abandon_at && !force => return ResolveReply::MayBeRunning,
        Finding::NotExecuted => {
            let abandon_at = record.abandon_at;
            slot.record = None;
            slot.bury(now, abandon_at);
        }
    }
    ResolveReply::Resolved
}

/// Answers [`forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetReply {
    /// The record is gone.
    Forgotten,
    /// No such record.
    Absent,
    /// The record belongs to another token, or is open and `force` was not given. It is unchanged.
    Conflict,
}

/// Removes a completed record, or with `force` an open one, so that the key may run again.
pub fn forget(slot: &mut Slot, token: Token, force: bool, now: Timestamp) -> ForgetReply {
    slot.expire(now);
    let Some(record) = &mut slot.record else { return ForgetReply::Absent };
    lapse(record, now);
    if record.token != token || (record.is_open() && !force) {
        return ForgetReply::Conflict;
    }
    let abandon_at = record.abandon_at;
    slot.record = None;
    slot.bury(now, abandon_at);
    ForgetReply::Forgotten
}

/// Turns a claim whose lease is over into unknown, and says whether it did. The sweep and every look begin with this.
pub fn lapse(record: &mut Record, now: Timestamp) -> bool {
    match record.state {
        State::Claimed { lease_until } if lease_until <= now => {
            record.become_unknown(lease_until, Reason::Lapsed, None);
            true
        }
        _ => false,
    }
}

/// Turns every claim unknown that a process which is certainly gone left behind: for a store with one process.
pub fn orphan(record: &mut Record, now: Timestamp) -> bool {
    match record.state {
        State::Claimed { lease_until } => {
            record.become_unknown(lease_until.min(now), Reason::Lapsed, None);
            true
        }
        _ => false,
    }
}
