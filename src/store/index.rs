//! Where a record stands in a store's indexes, and how a list of open records goes on from page to page.
//!
//! Memory and disk keep the same two indexes beside the records: the open ones by age, for operators and the gauge,
//! and all by the moment at which the sweep has something to do. How an entry is kept is the back-end's.

use std::str::FromStr;

use super::{OpenState, Query, StoreError, StoreErrorKind};
use crate::record::{Reason, Record, RecordId, State, Timestamp, lapse};

/// The entries of one record in both indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Marks {
    /// Its age and state, when it is open.
    pub(super) open: Option<(Timestamp, OpenState)>,
    /// When the sweep must look at it: its lease is over, or it has expired.
    pub(super) due: Option<Timestamp>,
}

impl Marks {
    /// The entries of this record; none for an absent one.
    pub(super) fn of(record: Option<&Record>) -> Marks {
        let Some(record) = record else { return Marks::default() };
        let due = match record.state {
            State::Claimed { lease_until } => Some(lease_until),
            _ => record.expires_at(),
        };
        Marks { open: open_state(record).map(|state| (record.claimed_at, state)), due }
    }
}

fn open_state(record: &Record) -> Option<OpenState> {
    match record.state {
        State::Claimed { .. } => Some(OpenState::Claimed),
        State::Unknown { .. } => Some(OpenState::Unknown),
        State::Completed { .. } => None,
    }
}

/// Whether a rule left the record as it was.
pub(super) fn unchanged(before: Option<&Record>, after: Option<&Record>) -> bool {
    if let (Some(before), Some(after)) = (before, after)
        && let State::Completed { completed_at: one, .. } = before.state
        && let State::Completed { completed_at: other, .. } = after.state
    {
        // A completed record never changes, so its body, up to a megabyte, need not be compared.
        return before.token == after.token && one == other;
    }
    before == after
}

/// Whether a rule found that the claim's lease had run out.
pub(super) fn has_lapsed(before: Option<&Record>, after: Option<&Record>) -> bool {
    let is_lapsed = |record: &Record| matches!(record.state, State::Unknown { reason: Reason::Lapsed, .. });
    let (Some(before), Some(after)) = (before, after) else { return false };
    let taken_over = after.prior.as_deref().filter(|prior| prior.token == before.token);
    matches!(before.state, State::Claimed { .. }) && is_lapsed(taken_over.unwrap_or(after))
}

/// The record as it is shown at `now`: none when expired, unknown when its lease is over.
pub(super) fn as_shown(mut record: Record, now: Timestamp) -> Option<Record> {
    if record.expires_at().is_some_and(|at| at <= now) {
        return None;
    }
    lapse(&mut record, now);
    Some(record)
}

/// Whether the operator asked for such a record.
pub(super) fn matches(query: &Query, id: &RecordId, shown: &Record) -> bool {
    let state = open_state(shown);
    state.is_some()
        && query.state.is_none_or(|wanted| Some(wanted) == state)
        && query.route.as_deref().is_none_or(|wanted| wanted == id.route())
}

/// An entry of the index of open records: where a page ended, and the next one goes on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// When its last attempt was granted.
    pub(super) claimed_at: Timestamp,
    /// Whose it is.
    pub(super) id: RecordId,
}

impl Position {
    /// Where the page before this query ended, if there was one.
    pub(super) fn of(query: &Query) -> Result<Option<Position>, StoreError> {
        query.cursor.as_deref().map(str::parse).transpose()
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.claimed_at.0, self.id)
    }
}

impl FromStr for Position {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Position, StoreError> {
        text.split_once('.')
            .and_then(|(at, id)| Some(Position { claimed_at: Timestamp(at.parse().ok()?), id: id.parse().ok()? }))
            .ok_or_else(|| {
                StoreError::without_effect(StoreErrorKind::BadQuery, "this is not the cursor of an earlier page")
            })
    }
}
