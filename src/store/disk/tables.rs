//! The tables on disk, and the one file that names the database library.
//!
//! A [`Batch`] applies pure rules inside one write transaction and keeps the indexes true to the records; a [`View`]
//! reads one committed state. When a batch is committed, and what its callers are told, is the writer's.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `records` | record | the record, by [`codec`] |
//! | `open` | claimed_at, record | its state: 1 claimed, 2 unknown |
//! | `due` | moment, record | nothing; when the sweep must look at it |
//! | `tombstones` | record, token | until when the token is refused |
//! | `tombstones_due` | that moment, record, token | nothing |
//!
//! A record's key is its hash and then its route's name.

use std::fs::OpenOptions;
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bytes::Bytes;
use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageError, Table, TableDefinition,
};

use super::super::index::{Marks, Position, as_shown, has_lapsed, matches, unchanged};
use super::super::{OpenState, Page, Query, StoreError, StoreErrorKind, codec};
use super::folder;
use crate::record::{Record, RecordId, Slot, Timestamp, Token, orphan};

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
const OPEN: TableDefinition<'_, (u64, &[u8]), u8> = TableDefinition::new("open");
const DUE: TableDefinition<'_, (u64, &[u8]), ()> = TableDefinition::new("due");
const TOMBSTONES: TableDefinition<'_, &[u8], u64> = TableDefinition::new("tombstones");
const TOMBSTONES_DUE: TableDefinition<'_, (u64, &[u8]), ()> = TableDefinition::new("tombstones_due");

const CLAIMED: u8 = 1;
const UNKNOWN: u8 = 2;

// The database keeps pages that were read or are about to be written, up to this. It starts empty.
const CACHE: usize = 32 << 20;
// Index entries that one page of a list looks at: a filter that matches little must not read the whole index.
const PAGE_SCAN: usize = 1000;

/// The database failed. After this nothing in it is to be trusted until it is opened again.
#[derive(Debug, thiserror::Error)]
#[error("the database on disk failed: {0}")]
pub(super) struct Fault(#[source] Box<redb::Error>);

impl<E: Into<redb::Error>> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault(Box::new(error.into()))
    }
}

/// A result, or why the record cannot be read: that record's trouble alone.
pub(super) type Found<T> = Result<T, codec::Unreadable>;

impl Fault {
    /// What it says of records that were to be opened: that there is no room or right to write, or that they are damaged.
    pub(super) fn on_opening(self, path: &Path) -> StoreError {
        let (kind, remedy) = match &*self.0 {
            redb::Error::Io(error) => (StoreErrorKind::Refused, folder::remedy(error)),
            _ => (StoreErrorKind::Unreadable, folder::RESTORE),
        };
        let message = format!("the records in {} cannot be opened: {}{remedy}", path.display(), self.0);
        StoreError::without_effect(kind, message).because(self)
    }
}

/// A record that a batch changed.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) id: RecordId,
    /// Its lease was found to have run out.
    pub(super) lapsed: bool,
}

/// How many records are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) claimed: u64,
    pub(super) unknown: u64,
}

impl Counts {
    fn of(&mut self, state: OpenState) -> &mut u64 {
        match state {
            OpenState::Claimed => &mut self.claimed,
            OpenState::Unknown => &mut self.unknown,
        }
    }
}

/// An open database.
#[derive(Debug)]
pub(super) struct Tables(Database);

impl Tables {
    /// Opens the file, or makes it if it is missing or empty.
    pub(super) fn open(path: &Path) -> Result<Tables, StoreError> {
        // The file holds whole answers: it is its owner's alone, also in a folder that others may read.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| cannot_open(path, DatabaseError::Storage(StorageError::Io(error))))?;
        let database = FileBackend::new(file).and_then(|backend| builder().create_with_backend(backend));
        let database = database.map_err(|error| cannot_open(path, error))?;
        Tables::ready(database).map_err(|fault| fault.on_opening(path))
    }

    /// Opens a database that is kept in something else than a file.
    #[cfg(test)]
    pub(super) fn on(backend: impl redb::StorageBackend) -> Result<Tables, Fault> {
        Tables::ready(builder().create_with_backend(backend)?)
    }

    /// Writes what no version writes in place of a record.
    #[cfg(test)]
    pub(super) fn spoil(&self, id: &RecordId) {
        let write = self.0.begin_write().unwrap();
        write.open_table(RECORDS).unwrap().insert(key_of(id).as_slice(), b"spoilt".as_slice()).unwrap();
        write.commit().unwrap();
    }

    fn ready(database: Database) -> Result<Tables, Fault> {
        let tables = Tables(database);
        // Readers expect every table to be there.
        let write = tables.0.begin_write()?;
        drop(Batch::on(&write, Counts::default())?);
        write.commit()?;
        Ok(tables)
    }

    /// Does some work in one transaction. If the work changed anything, the change is on the medium when this returns;
    /// if it changed nothing, nothing is written and nobody waits for the medium.
    pub(super) fn batch<R>(
        &self,
        counts: &mut Counts,
        work: impl FnOnce(&mut Batch<'_>) -> Result<R, Fault>,
    ) -> Result<(R, Vec<Change>), Fault> {
        let mut write = self.0.begin_write()?;
        write.set_durability(Durability::Immediate)?;
        // A kill -9 then costs no walk over all records at the next start.
        write.set_quick_repair(true);
        let mut batch = Batch::on(&write, *counts)?;
        let result = work(&mut batch)?;
        let (new_counts, changes, is_dirty) = (batch.counts, std::mem::take(&mut batch.changes), batch.is_dirty);
        // The tables must be closed before the transaction can end.
        drop(batch);
        if is_dirty {
            write.commit()?;
        } else {
            write.abort()?;
        }
        *counts = new_counts;
        Ok((result, changes))
    }

    /// The committed state at this moment.
    pub(super) fn view(&self) -> Result<View, Fault> {
        let read = self.0.begin_read()?;
        Ok(View { records: read.open_table(RECORDS)?, read })
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

/// A file that is not a database, or not one of ours, does not become one by waiting; anything else may.
fn cannot_open(path: &Path, error: DatabaseError) -> StoreError {
    let (kind, remedy) = match &error {
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() != std::io::ErrorKind::InvalidData => {
            let message = format!("{} cannot be used: {error}{}", path.display(), folder::remedy(error));
            return StoreError::without_effect(StoreErrorKind::Refused, message);
        }
        DatabaseError::DatabaseAlreadyOpen => (StoreErrorKind::Unreachable, ""),
        _ => (StoreErrorKind::Unreadable, folder::RESTORE),
    };
    StoreError::without_effect(kind, format!("{} cannot be opened: {error}{remedy}", path.display())).because(error)
}

/// One write transaction.
pub(super) struct Batch<'txn> {
    records: Table<'txn, &'static [u8], &'static [u8]>,
    open: Table<'txn, (u64, &'static [u8]), u8>,
    due: Table<'txn, (u64, &'static [u8]), ()>,
    tombstones: Table<'txn, &'static [u8], u64>,
    tombstones_due: Table<'txn, (u64, &'static [u8]), ()>,
    counts: Counts,
    changes: Vec<Change>,
    is_dirty: bool,
}

impl<'txn> Batch<'txn> {
    fn on(write: &'txn redb::WriteTransaction, counts: Counts) -> Result<Batch<'txn>, Fault> {
        Ok(Batch {
            records: write.open_table(RECORDS)?,
            open: write.open_table(OPEN)?,
            due: write.open_table(DUE)?,
            tombstones: write.open_table(TOMBSTONES)?,
            tombstones_due: write.open_table(TOMBSTONES_DUE)?,
            counts,
            changes: Vec::new(),
            is_dirty: false,
        })
    }

    /// Applies a rule for the holder of `token` to a record.
    pub(super) fn apply<R>(
        &mut self,
        id: &RecordId,
        token: Token,
        now: Timestamp,
        rule: impl FnOnce(&mut Slot, Timestamp) -> R,
    ) -> Result<Found<R>, Fault> {
        let key = key_of(id);
        let before = match load(&self.records, &key)? {
            Ok(record) => record,
            Err(unreadable) => return Ok(Err(unreadable)),
        };
        let tombstone = [&key, token.as_bytes().as_slice()].concat();
        let buried = self.tombstones.get(tombstone.as_slice())?.is_some_and(|until| now < Timestamp(until.value()));
        let mut slot = Slot::new(before.clone(), buried);
        let reply = rule(&mut slot, now);
        if slot.tombstone && !buried {
            self.bury(&tombstone, slot.buried_until)?;
        }
        self.replace(id, &key, before.as_ref(), slot.record.as_ref())?;
        Ok(Ok(reply))
    }

    /// Turns what the last process left claimed into unknown, and counts the open records. At most `limit` of them
    /// after `from`; says where to go on.
    pub(super) fn orphan(
        &mut self,
        from: Option<&OpenKey>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Option<OpenKey>, Fault> {
        let slice = open_after(&self.open, from, limit)?;
        let next = if slice.len() == limit { slice.last().map(|(key, _)| key.clone()) } else { None };
        for ((_, key), state) in slice {
            *self.counts.of(state) += 1;
            let (OpenState::Claimed, Some(id)) = (state, id_of(&key)) else { continue };
            match load(&self.records, &key)? {
                Ok(before) => {
                    let mut after = before.clone();
                    if let Some(record) = &mut after {
                        orphan(record, now);
                    }
                    self.replace(&id, &key, before.as_ref(), after.as_ref())?;
                }
                Err(unreadable) => say_unreadable(&id, &unreadable),
            }
        }
        Ok(next)
    }

    /// Frees what has expired and turns lapsed claims into unknown, at most `limit` records and as many tombstones.
    /// Says whether there may be more to do now.
    pub(super) fn sweep(&mut self, now: Timestamp, limit: usize) -> Result<bool, Fault> {
        let due = due_until(&self.due, now, limit)?;
        for (at, key) in &due {
            let Some(id) = id_of(key) else { continue };
            match load(&self.records, key)? {
                Ok(before) => {
                    let after = before.clone().and_then(|record| as_shown(record, now));
                    self.replace(&id, key, before.as_ref(), after.as_ref())?;
                }
                // It stays and is refused when it is asked for, but the sweep need not come back to it.
                Err(unreadable) => {
                    say_unreadable(&id, &unreadable);
                    self.is_dirty |= self.due.remove((*at, key.as_slice()))?.is_some();
                }
            }
        }
        let buried = due_until(&self.tombstones_due, now, limit)?;
        for (at, key) in &buried {
            self.tombstones_due.remove((*at, key.as_slice()))?;
            self.tombstones.remove(key.as_slice())?;
            self.is_dirty = true;
        }
        Ok(due.len() == limit || buried.len() == limit)
    }

    /// How many records are open after what this batch did so far.
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    fn bury(&mut self, tombstone: &[u8], until: Timestamp) -> Result<(), Fault> {
        self.is_dirty = true;
        if let Some(earlier) = self.tombstones.insert(tombstone, until.0)? {
            self.tombstones_due.remove((earlier.value(), tombstone))?;
        }
        self.tombstones_due.insert((until.0, tombstone), ())?;
        Ok(())
    }

    fn replace(
        &mut self,
        id: &RecordId,
        key: &[u8],
        before: Option<&Record>,
        after: Option<&Record>,
    ) -> Result<(), Fault> {
        if unchanged(before, after) {
            return Ok(());
        }
        self.is_dirty = true;
        self.changes.push(Change { id: id.clone(), lapsed: has_lapsed(before, after) });
        match after {
            Some(record) => self.records.insert(key, codec::encode(record).as_slice())?,
            None => self.records.remove(key)?,
        };
        let (old, new) = (Marks::of(before), Marks::of(after));
        if old.open != new.open {
            if let Some((at, state)) = old.open {
                self.open.remove((at.0, key))?;
                *self.counts.of(state) -= 1;
            }
            if let Some((at, state)) = new.open {
                self.open.insert((at.0, key), code_of(state))?;
                *self.counts.of(state) += 1;
            }
        }
        if old.due != new.due {
            if let Some(at) = old.due {
                self.due.remove((at.0, key))?;
            }
            if let Some(at) = new.due {
                self.due.insert((at.0, key), ())?;
            }
        }
        Ok(())
    }
}

/// One committed state of the tables.
pub(super) struct View {
    records: ReadOnlyTable<&'static [u8], &'static [u8]>,
    // For what only lists read.
    read: ReadTransaction,
}

impl View {
    /// The record as it is stored: it may have expired or lapsed since.
    pub(super) fn get(&self, id: &RecordId) -> Result<Found<Option<Record>>, Fault> {
        load(&self.records, &key_of(id))
    }

    /// One page of open records as they are shown at `now`.
    pub(super) fn page(&self, query: &Query, after: Option<Position>, now: Timestamp) -> Result<Page, Fault> {
        let mut page = Page::default();
        if query.limit == 0 {
            return Ok(page);
        }
        let after = after.map(|position| (position.claimed_at.0, key_of(&position.id)));
        let slice = open_after(&self.read.open_table(OPEN)?, after.as_ref(), PAGE_SCAN)?;
        let may_go_on = slice.len() == PAGE_SCAN;
        let mut last = None;
        for ((at, key), state) in slice {
            if page.records.len() == query.limit {
                page.cursor = last;
                return Ok(page);
            }
            let Some(id) = id_of(&key) else { continue };
            last = Some(Position { claimed_at: Timestamp(at), id: id.clone() }.to_string());
            // A claim may turn out to be unknown by now, but not the other way round.
            if state == OpenState::Unknown && query.state == Some(OpenState::Claimed) {
                continue;
            }
            match load(&self.records, &key)? {
                Ok(record) => {
                    let shown = record.and_then(|record| as_shown(record, now));
                    page.records.extend(shown.filter(|r| matches(query, &id, r)).map(|r| (id, r)));
                }
                Err(unreadable) => say_unreadable(&id, &unreadable),
            }
        }
        page.cursor = last.filter(|_| may_go_on);
        Ok(page)
    }
}

/// A key of the index of open records.
pub(super) type OpenKey = (u64, Vec<u8>);

fn open_after(
    open: &impl ReadableTable<(u64, &'static [u8]), u8>,
    after: Option<&OpenKey>,
    limit: usize,
) -> Result<Vec<(OpenKey, OpenState)>, Fault> {
    let start = after.map_or(Bound::Unbounded, |(at, key)| Bound::Excluded((*at, key.as_slice())));
    let mut slice = Vec::new();
    for entry in open.range::<(u64, &[u8])>((start, Bound::Unbounded))?.take(limit) {
        let (key, state) = entry?;
        let (at, key) = key.value();
        let state = if state.value() == CLAIMED { OpenState::Claimed } else { OpenState::Unknown };
        slice.push(((at, key.to_vec()), state));
    }
    Ok(slice)
}

fn due_until(
    due: &impl ReadableTable<(u64, &'static [u8]), ()>,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
    let end: (u64, &[u8]) = (now.0.saturating_add(1), &[]);
    let mut slice = Vec::new();
    for entry in due.range(..end)?.take(limit) {
        let (key, _) = entry?;
        let (at, key) = key.value();
        slice.push((at, key.to_vec()));
    }
    Ok(slice)
}

fn load(
    records: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Found<Option<Record>>, Fault> {
    // The one copy out of the database's page; head, fields and body of the record share it.
    let bytes = records.get(key)?.map(|value| Bytes::copy_from_slice(value.value()));
    Ok(bytes.map(codec::decode).transpose())
}

fn code_of(state: OpenState) -> u8 {
    match state {
        OpenState::Claimed => CLAIMED,
        OpenState::Unknown => UNKNOWN,
    }
}

fn key_of(id: &RecordId) -> Vec<u8> {
    [id.hash().as_slice(), id.route().as_bytes()].concat()
}

fn id_of(key: &[u8]) -> Option<RecordId> {
    let (hash, route) = key.split_first_chunk::<16>()?;
    Some(RecordId::new(std::str::from_utf8(route).ok()?.into(), *hash))
}

fn say_unreadable(id: &RecordId, unreadable: &codec::Unreadable) {
    tracing::error!(record = %id, error = %unreadable, "a stored record cannot be read; requests for it are refused");
}
