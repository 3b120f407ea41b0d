//! A row: what the table holds for one record id, taken apart and put together. The rules see records only.

use bytes::Bytes;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::statements::Param;
use crate::record::{Details, Fingerprint, Imprint, Record, RecordId, Response, State, Timestamp, Token};
use crate::store::codec::{self, Unreadable, block};
use crate::store::{StoreError, StoreErrorKind};

const ABSENT: i16 = 0;
const CLAIMED: i16 = 1;
const UNKNOWN: i16 = 2;
const COMPLETED: i16 = 3;
const VERSION: i16 = 2;
/// The version before, which knew no details.
const VERSION_WITHOUT_DETAILS: i16 = 1;
const TOMBSTONE: usize = 24;
const DAMAGED: Unreadable = Unreadable::Damaged("its columns do not fit each other");

type BoxError = Box<dyn std::error::Error + Sync + Send>;

/// Sixteen bytes, kept as a `uuid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sixteen(pub(super) [u8; 16]);

impl Sixteen {
    pub(super) fn of(id: &RecordId) -> Sixteen {
        Sixteen(*id.hash())
    }

    pub(super) fn token(token: &Token) -> Sixteen {
        Sixteen(*token.as_bytes())
    }
}

impl ToSql for Sixteen {
    fn to_sql(&self, _: &Type, out: &mut bytes::BytesMut) -> Result<IsNull, BoxError> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Sixteen {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Sixteen, BoxError> {
        Ok(Sixteen(raw.try_into()?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

/// Bytes that are shared with the record, not copied.
#[derive(Debug)]
struct Shared(Bytes);

impl ToSql for Shared {
    fn to_sql(&self, _: &Type, out: &mut bytes::BytesMut) -> Result<IsNull, BoxError> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::BYTEA
    }

    to_sql_checked!();
}

/// What a row holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    pub(super) revision: i64,
    /// Perhaps expired; the rules see to that.
    pub(super) record: Option<Record>,
    /// Perhaps over.
    pub(super) tombstones: Vec<(Token, Timestamp)>,
    /// The record's response has a body, which is not here.
    pub(super) left_out: bool,
}

/// The answer to a statement that may have found its record in another state than it hoped for.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) now: Timestamp,
    /// The statement did what it was for; then there is no row here.
    pub(super) done: bool,
    pub(super) row: Option<Stored>,
}

impl Found {
    /// Reads the one row of an answer.
    pub(super) fn read(rows: &[Row]) -> Result<Found, StoreError> {
        let [row] = rows else { return Err(odd_answer(None)) };
        let found = || -> Result<_, tokio_postgres::Error> {
            Ok((moment(row.try_get("now")?), row.try_get("done")?, row.try_get::<_, Option<i64>>("revision")?))
        };
        let (now, done, revision) = found().map_err(|e| odd_answer(Some(e)))?;
        let row = revision.map(|revision| stored(row, revision)).transpose()?;
        Ok(Found { now, done, row })
    }
}

/// One open record of a list.
pub(super) fn listed(row: &Row) -> Result<(RecordId, Record, Timestamp), StoreError> {
    let read = || -> Result<_, tokio_postgres::Error> {
        let (route, Sixteen(hash)): (&str, Sixteen) = (row.try_get("route")?, row.try_get("hash")?);
        Ok((RecordId::new(route.into(), hash), row.try_get("revision")?, moment(row.try_get("now")?)))
    };
    let (id, revision, now) = read().map_err(|e| odd_answer(Some(e)))?;
    let record = stored(row, revision)?.record.ok_or_else(|| unreadable(DAMAGED))?;
    Ok((id, record, now))
}

pub(super) fn odd_answer(source: Option<tokio_postgres::Error>) -> StoreError {
    let error =
        StoreError::without_effect(StoreErrorKind::Broken, "Postgres answered with something that is not understood");
    match source {
        Some(source) => error.because(source),
        None => error,
    }
}

fn unreadable(why: Unreadable) -> StoreError {
    StoreError::without_effect(StoreErrorKind::Unreadable, "the stored row is not a readable record").because(why)
}

fn stored(row: &Row, revision: i64) -> Result<Stored, StoreError> {
    let get = || -> Result<_, tokio_postgres::Error> {
        let versions: (i16, i16) = (row.try_get("version")?, row.try_get("encryption")?);
        let tombstones: &[u8] = row.try_get("tombstones")?;
        Ok((versions, row.try_get::<_, i16>("state")?, tombstones, row.try_get("left_out")?))
    };
    let (versions, state, tombstones, left_out) = get().map_err(|e| odd_answer(Some(e)))?;
    match versions {
        (VERSION | VERSION_WITHOUT_DETAILS, 0) => {}
        (VERSION | VERSION_WITHOUT_DETAILS, key) => {
            return Err(unreadable(Unreadable::Encrypted(key.try_into().unwrap_or(u8::MAX))));
        }
        (version, _) => return Err(unreadable(Unreadable::Version(version.try_into().unwrap_or(u8::MAX)))),
    }
    let record = match state {
        ABSENT => None,
        state => Some(record(row, state).map_err(|e| odd_answer(Some(e)))?.map_err(unreadable)?),
    };
    Ok(Stored { revision, record, tombstones: read_tombstones(tombstones).map_err(unreadable)?, left_out })
}

type Taken<T> = Result<Result<T, Unreadable>, tokio_postgres::Error>;

fn record(row: &Row, state: i16) -> Taken<Record> {
    let token: Option<Sixteen> = row.try_get("token")?;
    let (print, details): (Option<&[u8]>, Option<&[u8]>) = (row.try_get("fingerprint")?, row.try_get("details")?);
    let number = |name| row.try_get::<_, Option<i64>>(name);
    let [attempts, claimed_at, abandon_at, at, expires_at, keep] =
        ["attempts", "claimed_at", "abandon_at", "moment", "expires_at", "unknown_retention"].map(number);
    let (reason, prior): (Option<i16>, Option<&[u8]>) = (row.try_get("reason")?, row.try_get("prior")?);
    let quoted: Option<bool> = row.try_get("quoted")?;
    let fingerprint = print.and_then(Fingerprint::from_bytes);
    let (Some(Sixteen(token)), Some(fingerprint), Some(quoted)) = (token, fingerprint, quoted) else {
        return Ok(Err(DAMAGED));
    };
    let imprint = match block::read(details.unwrap_or_default()) {
        Ok(details) => Imprint { fingerprint, details },
        Err(damage) => return Ok(Err(damage)),
    };
    let (Some(attempts), Some(claimed_at), Some(abandon_at), Some(at)) = (attempts?, claimed_at?, abandon_at?, at?)
    else {
        return Ok(Err(DAMAGED));
    };
    let (moment_, expires_at) = (moment(at), expires_at?.map(moment));
    let response = match response(row)? {
        Ok(response) => response,
        Err(damage) => return Ok(Err(damage)),
    };
    let state = match (state, response) {
        (CLAIMED, None) => State::Claimed { lease_until: moment_ },
        (UNKNOWN, response) => match codec::reason_of(reason.and_then(|code| code.try_into().ok()).unwrap_or(0)) {
            Ok(reason) => State::Unknown { since: moment_, reason, expires_at, response },
            Err(damage) => return Ok(Err(damage)),
        },
        (COMPLETED, Some(response)) => match expires_at {
            Some(expires_at) => State::Completed { completed_at: moment_, expires_at, response },
            None => return Ok(Err(DAMAGED)),
        },
        _ => return Ok(Err(DAMAGED)),
    };
    let prior = match prior.map(|bytes| codec::decode(Bytes::copy_from_slice(bytes))).transpose() {
        Ok(prior) => prior.map(Box::new),
        Err(damage) => return Ok(Err(damage)),
    };
    Ok(Ok(Record {
        token: Token::from_bytes(token),
        imprint,
        quoted,
        attempts: attempts.try_into().unwrap_or(u32::MAX),
        claimed_at: moment(claimed_at),
        abandon_at: moment(abandon_at),
        unknown_retention: keep?.map(|ms| std::time::Duration::from_millis(ms.unsigned_abs())),
        prior,
        state,
    }))
}

fn response(row: &Row) -> Taken<Option<Response>> {
    let (status, fields): (Option<i32>, Option<&[u8]>) = (row.try_get("status")?, row.try_get("fields")?);
    let body: Option<&[u8]> = row.try_get("body")?;
    Ok(match (status, fields) {
        (None, None) => Ok(None),
        (Some(status), Some(fields)) => {
            let status = status.try_into().unwrap_or(u16::MAX);
            let fields = Bytes::copy_from_slice(fields);
            Response::from_parts(status, fields, body.map(Bytes::copy_from_slice)).map(Some).map_err(|_| DAMAGED)
        }
        _ => Err(DAMAGED),
    })
}

/// The block of these details, if there are any.
pub(super) fn block_of(details: Option<&Details>) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(block::len(details));
    block::put(&mut bytes, details);
    details.map(|_| bytes)
}

fn moment(ms: i64) -> Timestamp {
    Timestamp(u64::try_from(ms).unwrap_or(0))
}

fn number(moment: Timestamp) -> i64 {
    i64::try_from(moment.0).unwrap_or(i64::MAX)
}

fn read_tombstones(bytes: &[u8]) -> Result<Vec<(Token, Timestamp)>, Unreadable> {
    let mut found = Vec::new();
    let chunks = bytes.chunks_exact(TOMBSTONE);
    if !chunks.remainder().is_empty() {
        return Err(DAMAGED);
    }
    for chunk in chunks {
        let (Some(token), Some(until)) = (chunk.first_chunk::<16>(), chunk.last_chunk::<8>()) else {
            return Err(DAMAGED);
        };
        found.push((Token::from_bytes(*token), Timestamp(u64::from_be_bytes(*until))));
    }
    Ok(found)
}

/// The columns of one row, owned, so that they can be lent to a statement.
pub(super) struct Columns {
    hash: Sixteen,
    route: String,
    state: i16,
    token: Option<Sixteen>,
    fingerprint: Option<Vec<u8>>,
    details: Option<Vec<u8>>,
    quoted: Option<bool>,
    numbers: [Option<i64>; 6],
    reason: Option<i16>,
    status: Option<i32>,
    fields: Option<Shared>,
    body: Option<Shared>,
    prior: Option<Vec<u8>>,
    tombstones: Buried,
}

/// The tombstones of a row as columns.
pub(super) struct Buried {
    pub(super) bytes: Vec<u8>,
    pub(super) until: Option<i64>,
}

impl Buried {
    /// Those of these tombstones that are not over.
    pub(super) fn of(tombstones: &[(Token, Timestamp)]) -> Buried {
        let mut bytes = Vec::with_capacity(tombstones.len() * TOMBSTONE);
        for (token, until) in tombstones {
            bytes.extend(token.as_bytes());
            bytes.extend(until.0.to_be_bytes());
        }
        Buried { bytes, until: tombstones.iter().map(|(_, until)| number(*until)).max() }
    }
}

impl Columns {
    /// The row of a record, or of tombstones alone.
    pub(super) fn of(id: &RecordId, record: Option<Record>, tombstones: &[(Token, Timestamp)]) -> Columns {
        let tombstones = Buried::of(tombstones);
        let (hash, route) = (Sixteen::of(id), id.route().to_owned());
        let Some(record) = record else {
            let (state, numbers) = (ABSENT, [None; 6]);
            let (token, fingerprint, details, quoted, reason, status) = (None, None, None, None, None, None);
            let (fields, body, prior) = (None, None, None);
            return Columns {
                hash,
                route,
                state,
                token,
                fingerprint,
                details,
                quoted,
                numbers,
                reason,
                status,
                fields,
                body,
                prior,
                tombstones,
            };
        };
        let expires_at = record.expires_at();
        let keep = record.unknown_retention.map(super::millis);
        let (state, at, reason, response) = match record.state {
            State::Claimed { lease_until } => (CLAIMED, lease_until, None, None),
            State::Unknown { since, reason, response, .. } => {
                (UNKNOWN, since, Some(i16::from(codec::reason_code(reason))), response)
            }
            State::Completed { completed_at, response, .. } => (COMPLETED, completed_at, None, Some(response)),
        };
        Columns {
            hash,
            route,
            state,
            token: Some(Sixteen::token(&record.token)),
            fingerprint: Some(record.imprint.fingerprint.to_bytes().to_vec()),
            details: block_of(record.imprint.details.as_deref()),
            quoted: Some(record.quoted),
            numbers: [
                Some(record.attempts.into()),
                Some(number(record.claimed_at)),
                Some(number(record.abandon_at)),
                Some(number(at)),
                expires_at.map(number),
                keep,
            ],
            reason,
            status: response.as_ref().map(|response| response.status().into()),
            fields: response.as_ref().map(|response| Shared(response.fields().clone())),
            body: response.as_ref().and_then(Response::body).cloned().map(Shared),
            prior: record.prior.as_deref().map(codec::encode),
            tombstones,
        }
    }

    /// The parameters of `insert.sql` and `replace.sql`.
    pub(super) fn params<'a>(&'a self, revision: &'a i64) -> [Param<'a>; 21] {
        let [attempts, claimed_at, abandon_at, at, expires_at, keep] = &self.numbers;
        [
            (&self.hash, Type::UUID),
            (&self.route, Type::TEXT),
            (revision, Type::INT8),
            (&self.state, Type::INT2),
            (&self.token, Type::UUID),
            (&self.fingerprint, Type::BYTEA),
            (&self.quoted, Type::BOOL),
            (attempts, Type::INT8),
            (claimed_at, Type::INT8),
            (abandon_at, Type::INT8),
            (at, Type::INT8),
            (expires_at, Type::INT8),
            (keep, Type::INT8),
            (&self.reason, Type::INT2),
            (&self.status, Type::INT4),
            (&self.fields, Type::BYTEA),
            (&self.body, Type::BYTEA),
            (&self.prior, Type::BYTEA),
            (&self.tombstones.bytes, Type::BYTEA),
            (&self.tombstones.until, Type::INT8),
            (&self.details, Type::BYTEA),
        ]
    }
}
