//! One shard of the memory store: a part of the records with their indexes, under one lock.
//!
//! It keeps the indexes true to the records, whatever a rule does, and a record in no more memory than it needs: there may
//! be a million. Locks, clock and watchers are the store's.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Bound;

use super::super::index::{Marks, Position, as_shown, has_lapsed, matches, unchanged};
use super::super::{OpenState, Query};
use crate::record::{Record, RecordId, Slot, State, Timestamp, Token};

/// What became of a record when a rule was applied.
pub(super) struct Applied<R> {
    pub(super) reply: R,
    pub(super) changed: bool,
    pub(super) lapsed: bool,
}

/// What a slice of the sweep did.
#[derive(Default)]
pub(super) struct Swept {
    /// Claims that are unknown now.
    pub(super) lapsed: Vec<RecordId>,
    /// Whether there may be more to do at this moment.
    pub(super) more: bool,
}

#[derive(Default)]
pub(super) struct Shard {
    // Boxed: a map has room for up to twice its entries, and moves them all under the lock when it grows.
    records: HashMap<RecordId, Box<Record>>,
    open: BTreeSet<Position>,
    due: BTreeSet<(Timestamp, RecordId)>,
    tombstones: HashMap<(RecordId, Token), Timestamp>,
    // All live equally long, so the oldest is the first to go.
    tombstones_by_age: VecDeque<(Timestamp, RecordId, Token)>,
    claimed: u64,
    unknown: u64,
}

impl Shard {
    /// Applies a rule for the holder of `token` to the record.
    pub(super) fn apply<R>(
        &mut self,
        id: &RecordId,
        token: Option<Token>,
        now: Timestamp,
        rule: impl FnOnce(&mut Slot) -> R,
    ) -> Applied<R> {
        let before = self.record(id).cloned();
        let buried = token.is_some_and(|token| self.is_buried(id, token, now));
        let mut slot = Slot::new(before.clone(), buried);
        let reply = rule(&mut slot);
        let changed = !unchanged(before.as_ref(), slot.record.as_ref());
        let lapsed = changed && has_lapsed(before.as_ref(), slot.record.as_ref());
        if let Some(token) = token.filter(|_| slot.tombstone && !buried) {
            self.bury(id, token, slot.buried_until);
        }
        if changed {
            self.replace(id, before.as_ref(), slot.record);
        }
        Applied { reply, changed, lapsed }
    }

    /// The record as it is shown at `now`.
    pub(super) fn get(&self, id: &RecordId, now: Timestamp) -> Option<Record> {
        as_shown(self.record(id)?.clone(), now)
    }

    fn record(&self, id: &RecordId) -> Option<&Record> {
        self.records.get(id).map(Box::as_ref)
    }

    /// Adds the open records after this position that the query wants, oldest first, one more than fit on its page.
    pub(super) fn open_after(
        &self,
        after: Option<&Position>,
        query: &Query,
        now: Timestamp,
        found: &mut Vec<(Position, Record)>,
    ) {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let shown = self.open.range((start, Bound::Unbounded)).filter_map(|position| {
            let record = self.get(&position.id, now)?;
            matches(query, &position.id, &record).then(|| (position.clone(), record))
        });
        found.extend(shown.take(query.limit.saturating_add(1)));
    }

    /// Frees what has expired and turns lapsed claims into unknown, at most `limit` of them.
    pub(super) fn sweep(&mut self, now: Timestamp, limit: usize) -> Swept {
        let mut swept = Swept::default();
        for _ in 0..limit {
            let Some((_, id)) = self.due.first().filter(|(due, _)| *due <= now).cloned() else {
                swept.more = self.sweep_tombstones(now, limit);
                return swept;
            };
            let before = self.record(&id).cloned();
            let after = before.clone().and_then(|record| as_shown(record, now));
            if has_lapsed(before.as_ref(), after.as_ref()) {
                swept.lapsed.push(id.clone());
            }
            self.replace(&id, before.as_ref(), after);
        }
        swept.more = true;
        swept
    }

    /// How many records are claimed, and how many unknown.
    pub(super) fn open_counts(&self) -> (u64, u64) {
        (self.claimed, self.unknown)
    }

    fn sweep_tombstones(&mut self, now: Timestamp, limit: usize) -> bool {
        for _ in 0..limit {
            match self.tombstones_by_age.pop_front_if(|(until, ..)| *until <= now) {
                Some((_, id, token)) => self.tombstones.remove(&(id, token)),
                None => return false,
            };
        }
        true
    }

    fn is_buried(&self, id: &RecordId, token: Token, now: Timestamp) -> bool {
        // Most stores hold no tombstone at most times; then no key needs to be built.
        !self.tombstones.is_empty() && self.tombstones.get(&(id.clone(), token)).is_some_and(|until| now < *until)
    }

    fn bury(&mut self, id: &RecordId, token: Token, until: Timestamp) {
        if self.tombstones.insert((id.clone(), token), until).is_none() {
            self.tombstones_by_age.push_back((until, id.clone(), token));
        }
    }

    fn replace(&mut self, id: &RecordId, before: Option<&Record>, after: Option<Record>) {
        let (old, new) = (Marks::of(before), Marks::of(after.as_ref()));
        if let Some((claimed_at, state)) = old.open {
            self.open.remove(&Position { claimed_at, id: id.clone() });
            *self.count(state) -= 1;
        }
        if let Some((claimed_at, state)) = new.open {
            self.open.insert(Position { claimed_at, id: id.clone() });
            *self.count(state) += 1;
        }
        if let Some(due) = old.due.filter(|_| old.due != new.due) {
            self.due.remove(&(due, id.clone()));
        }
        if let Some(due) = new.due.filter(|_| old.due != new.due) {
            self.due.insert((due, id.clone()));
        }
        let kept = before.and_then(|_| self.records.get_mut(id));
        match (after.map(compact), kept) {
            (Some(record), Some(kept)) => **kept = record,
            (Some(record), None) => drop(self.records.insert(id.clone(), Box::new(record))),
            (None, _) => drop(self.records.remove(id)),
        }
    }

    fn count(&mut self, state: OpenState) -> &mut u64 {
        match state {
            OpenState::Claimed => &mut self.claimed,
            OpenState::Unknown => &mut self.unknown,
        }
    }
}

fn compact(mut record: Record) -> Record {
    if let State::Completed { response, .. } | State::Unknown { response: Some(response), .. } = &mut record.state {
        *response = response.compact();
    }
    record
}
