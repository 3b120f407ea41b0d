//! Records in one Postgres database, shared by many proxies.
//!
//! The claim of an absent key is one INSERT, and the primary key decides who wins; the completion of one's own claim is
//! one UPDATE. Everything else reads the row, applies the pure rule of `record.rs`, and writes the outcome if the row is
//! still the same. Statements are unnamed and each a transaction of its own, so it all works behind PgBouncer too.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::types::Type;

use self::ask::{Limits, ask};
use self::health::Health;
use self::link::{Endpoint, Link};
use self::row::{Buried, Columns, Found, Sixteen, Stored};
use self::statements::{Param, Statements};
use self::wake::Waiting;
use super::index::{Position, as_shown, has_lapsed, unchanged};
use super::kept::Renewals;
use super::report::Report;
use super::{Answer, BackEnd, NotReady, OpenError, OpenState, Page, Query, Store, StoreError, Watch};
use crate::config::store::Postgres;
use crate::metrics::Metrics;
use crate::record::{
    self, Claim, ClaimReply, CompleteReply, DoubtReply, Finding, ForgetReply, Imprint, LookReply, Reason, Record,
    RecordId, ReleaseReply, RenewReply, ResolveReply, Response, Slot, State, Taken, Timestamp, Token,
};

mod ask;
#[cfg(test)]
mod differential;
mod facts;
mod health;
mod init;
mod link;
mod row;
mod statements;
mod sweep;
mod tls;
mod wake;

pub(super) use init::init;

/// Bodies up to this size come along with their row.
const INLINE_BODY: usize = 64 * 1024;
/// Spans are cut to what can be added to a clock without an overflow.
const LONGEST_SPAN: i64 = 1 << 51;

/// Opens the store. Connections are opened when they are first used. `section` is where the settings stand.
pub(super) fn open(
    config: &Postgres,
    prefix: &str,
    timeout: Duration,
    metrics: &Arc<Metrics>,
    section: &str,
    renewals: &Renewals,
) -> Result<BackEnd, OpenError> {
    let shared = Arc::new(Shared {
        statements: Statements::new(prefix, timeout.as_millis().max(1)),
        endpoint: Arc::new(Endpoint::new(config, timeout, section, renewals)?),
        timeout,
        health: Health::new(timeout),
        waiting: Waiting::default(),
        metrics: Arc::clone(metrics),
    });
    let store = Arc::new(PostgresStore::new(Arc::clone(&shared)));
    Ok(BackEnd { store, background: Box::pin(background(shared)) })
}

/// What all handles of the process share.
struct Shared {
    statements: Statements,
    endpoint: Arc<Endpoint>,
    timeout: Duration,
    health: Health,
    waiting: Waiting,
    metrics: Arc<Metrics>,
}

async fn background(shared: Arc<Shared>) {
    let link = Link::new(Arc::clone(&shared.endpoint));
    tokio::join!(
        health::watch_server(&shared, &link),
        sweep::sweep_for_ever(&shared, &link),
        wake::listen(&shared),
        wake::poll(&shared, &link),
    );
}

struct PostgresStore {
    shared: Arc<Shared>,
    claims: Link,
    bodies: Link,
}

/// A reply that may be a replay, for which a body is needed.
trait Reply {
    fn is_replay(&self) -> bool {
        false
    }
}

impl Reply for ClaimReply {
    fn is_replay(&self) -> bool {
        matches!(self, ClaimReply::Taken(Taken::Completed(_)))
    }
}

impl Reply for LookReply {
    fn is_replay(&self) -> bool {
        matches!(self, LookReply::Taken(Taken::Completed(_)))
    }
}

impl Reply for CompleteReply {
    fn is_replay(&self) -> bool {
        matches!(self, CompleteReply::Already(_))
    }
}

impl Reply for RenewReply {}
impl Reply for ReleaseReply {}
impl Reply for DoubtReply {}
impl Reply for ResolveReply {}
impl Reply for ForgetReply {}

impl PostgresStore {
    fn new(shared: Arc<Shared>) -> PostgresStore {
        let link = || Link::new(Arc::clone(&shared.endpoint));
        PostgresStore { claims: link(), bodies: link(), shared }
    }

    fn limits(&self) -> Limits {
        let limits = Limits::new(self.shared.timeout);
        if self.shared.health.is_reachable() { limits } else { limits.impatient() }
    }

    async fn ask(
        &self,
        link: &Link,
        statement: &str,
        params: &[Param<'_>],
        limits: &Limits,
    ) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        ask(link, statement, params, limits).await.inspect_err(|error| self.shared.health.failed(error))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let limits = self.limits();
        health::admit_claim(&self.shared, &self.claims, &limits).await?;
        let (hash, route, revision) = (Sixteen::of(&claim.id), claim.id.route(), fresh_revision());
        let (token, print) = (Sixteen::token(&claim.token), claim.imprint.fingerprint.to_bytes());
        let (print, details) = (&print[..], row::block_of(claim.imprint.details.as_deref()));
        let (lease, abandon_after) = (millis(claim.lease), millis(claim.abandon_after));
        let keep = claim.unknown_retention.map(millis);
        let params: [Param<'_>; 10] = [
            (&hash, Type::UUID),
            (&route, Type::TEXT),
            (&revision, Type::INT8),
            (&token, Type::UUID),
            (&print, Type::BYTEA),
            (&claim.quoted, Type::BOOL),
            (&lease, Type::INT8),
            (&abandon_after, Type::INT8),
            (&keep, Type::INT8),
            (&details, Type::BYTEA),
        ];
        let found = Found::read(&self.ask(&self.claims, &self.shared.statements.claim, &params, &limits).await?)?;
        if found.done {
            return Ok(ClaimReply::Granted { attempts: 1, taken_over: None });
        }
        // Without a row the two crossed: it came after this statement began, or went before it ended.
        let found = found.row.is_some().then_some(found);
        let rule = |slot: &mut Slot, now| record::claim(slot, claim, now);
        Box::pin(self.apply(&claim.id, Some(claim.token), found, &limits, rule)).await
    }

    async fn renew(&self, claim: &Claim) -> Result<RenewReply, StoreError> {
        let limits = self.limits();
        let (hash, token, lease) = (Sixteen::of(&claim.id), Sixteen::token(&claim.token), millis(claim.lease));
        let params: [Param<'_>; 3] = [(&hash, Type::UUID), (&token, Type::UUID), (&lease, Type::INT8)];
        let found = Found::read(&self.ask(&self.claims, &self.shared.statements.renew, &params, &limits).await?)?;
        if found.done {
            return Ok(RenewReply::Extended);
        }
        let rule = |slot: &mut Slot, now| record::renew(slot, claim, now);
        Box::pin(self.apply(&claim.id, Some(claim.token), Some(found), &limits, rule)).await
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &Response,
        retention: Duration,
    ) -> Result<CompleteReply, StoreError> {
        let limits = self.limits();
        let (hash, token, keep) = (Sixteen::of(&claim.id), Sixteen::token(&claim.token), millis(retention));
        let status = i32::from(response.status());
        let (fields, body) = (response.fields().as_ref(), response.body().map(Bytes::as_ref));
        let params: [Param<'_>; 6] = [
            (&hash, Type::UUID),
            (&token, Type::UUID),
            (&keep, Type::INT8),
            (&status, Type::INT4),
            (&fields, Type::BYTEA),
            (&body, Type::BYTEA),
        ];
        let found = Found::read(&self.ask(&self.bodies, &self.shared.statements.complete, &params, &limits).await?)?;
        if found.done {
            return Ok(CompleteReply::Stored);
        }
        let retention = Duration::from_millis(keep.unsigned_abs());
        let rule = |slot: &mut Slot, now| record::complete(slot, claim, response.clone(), retention, now);
        Box::pin(self.apply(&claim.id, Some(claim.token), Some(found), &limits, rule)).await
    }

    /// Reads the row, unless `found` is it, applies the rule, and writes the outcome if the row is still the same; and
    /// again for as long as it is not.
    async fn apply<R: Reply>(
        &self,
        id: &RecordId,
        token: Option<Token>,
        mut found: Option<Found>,
        limits: &Limits,
        rule: impl Fn(&mut Slot, Timestamp) -> R,
    ) -> Result<R, StoreError> {
        loop {
            let Found { now, row, .. } = match found.take() {
                Some(found) => found,
                None => self.read(id, false, limits).await?,
            };
            let before = row.as_ref().and_then(|row| row.record.as_ref());
            let is_alive = |(_, until): &(Token, Timestamp)| now < *until;
            let mut tombstones = row.as_ref().map(|row| row.tombstones.clone()).unwrap_or_default();
            tombstones.retain(is_alive);
            let buried = token.is_some_and(|token| tombstones.iter().any(|(known, _)| *known == token));
            let mut slot = Slot::new(before.cloned(), buried);
            let reply = rule(&mut slot, now);
            let changed = !unchanged(before, slot.record.as_ref());
            if row.as_ref().is_some_and(|row| row.left_out) && (changed || reply.is_replay()) {
                found = Some(self.read(id, true, limits).await?);
                continue;
            }
            let buries = slot.tombstone && !buried;
            if let Some(token) = token.filter(|_| buries) {
                tombstones.push((token, slot.buried_until));
            }
            if !changed && !buries {
                return Ok(reply);
            }
            let lapsed = changed && has_lapsed(before, slot.record.as_ref());
            if self.put(id, row.as_ref(), changed.then_some(slot.record), &tombstones, limits).await? {
                if lapsed {
                    self.shared.metrics.stale_claim(id.route());
                }
                return Ok(reply);
            }
        }
    }

    async fn read(&self, id: &RecordId, whole: bool, limits: &Limits) -> Result<Found, StoreError> {
        let statements = &self.shared.statements;
        let hash = Sixteen::of(id);
        let params: [Param<'_>; 1] = [(&hash, Type::UUID)];
        let rows = match whole {
            true => self.ask(&self.bodies, &statements.read_whole, &params, limits).await?,
            false => self.ask(&self.claims, &statements.read, &params, limits).await?,
        };
        Found::read(&rows)
    }

    /// Writes what a rule made of a row, if the row is still the same; says whether it was. `record` is `None` where only
    /// a tombstone was added.
    async fn put(
        &self,
        id: &RecordId,
        before: Option<&Stored>,
        record: Option<Option<Record>>,
        tombstones: &[(Token, Timestamp)],
        limits: &Limits,
    ) -> Result<bool, StoreError> {
        let statements = &self.shared.statements;
        let hash = Sixteen::of(id);
        let link =
            if record.as_ref().is_some_and(|r| r.as_ref().is_some_and(has_body)) { &self.bodies } else { &self.claims };
        let rows = match (before, record) {
            (Some(before), None) if before.record.is_some() => {
                let buried = Buried::of(tombstones);
                let params: [Param<'_>; 4] = [
                    (&hash, Type::UUID),
                    (&before.revision, Type::INT8),
                    (&buried.bytes, Type::BYTEA),
                    (&buried.until, Type::INT8),
                ];
                self.ask(link, &statements.bury, &params, limits).await?
            }
            (Some(before), Some(None)) if tombstones.is_empty() => {
                let params: [Param<'_>; 2] = [(&hash, Type::UUID), (&before.revision, Type::INT8)];
                self.ask(link, &statements.delete, &params, limits).await?
            }
            (before, record) => {
                let columns = Columns::of(id, record.flatten(), tombstones);
                let (statement, revision) = match before {
                    Some(before) => (&statements.replace, before.revision),
                    None => (&statements.insert, fresh_revision()),
                };
                self.ask(link, statement, &columns.params(&revision), limits).await?
            }
        };
        let [row] = rows.as_slice() else { return Err(row::odd_answer(None)) };
        row.try_get("done").map_err(|e| row::odd_answer(Some(e)))
    }
}

impl PostgresStore {
    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        let Found { now, row, .. } = self.read(id, true, &self.limits()).await?;
        Ok(row.and_then(|row| row.record).and_then(|record| as_shown(record, now)))
    }

    async fn list(&self, query: &Query) -> Result<Page, StoreError> {
        let after = Position::of(query)?;
        let (at, route, hash) = match &after {
            Some(Position { claimed_at, id }) => {
                (i64::try_from(claimed_at.0).unwrap_or(i64::MAX), id.route(), Sixteen::of(id))
            }
            None => (-1, "", Sixteen([0; 16])),
        };
        let wanted = query.route.as_deref();
        let state = query.state.map(|state| match state {
            OpenState::Claimed => 1_i16,
            OpenState::Unknown => 2,
        });
        let most = i64::try_from(query.limit.saturating_add(1)).unwrap_or(i64::MAX);
        let params: [Param<'_>; 6] = [
            (&at, Type::INT8),
            (&route, Type::TEXT),
            (&hash, Type::UUID),
            (&wanted, Type::TEXT),
            (&state, Type::INT2),
            (&most, Type::INT8),
        ];
        let rows = self.ask(&self.bodies, &self.shared.statements.list, &params, &self.limits()).await?;
        let is_last = rows.len() <= query.limit;
        let mut page = Page::default();
        for row in rows.iter().take(query.limit) {
            let (id, mut record, now) = row::listed(row)?;
            record::lapse(&mut record, now);
            page.records.push((id, record));
        }
        let last = page.records.last().filter(|_| !is_last);
        page.cursor = last.map(|(id, record)| Position { claimed_at: record.claimed_at, id: id.clone() }.to_string());
        Ok(page)
    }
}

fn has_body(record: &Record) -> bool {
    matches!(&record.state, State::Unknown { response: Some(_), .. } | State::Completed { .. })
}

/// A number that no earlier row of this record is likely to have had: one that was deleted must not be taken for the next.
fn fresh_revision() -> i64 {
    let token = Token::new();
    let low = token.as_bytes().last_chunk::<8>().expect("a token has sixteen bytes");
    // Half the range is left for the changes that follow.
    i64::from_be_bytes(*low) / 2
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX).min(LONGEST_SPAN)
}

impl Store for PostgresStore {
    fn for_core(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::new(Arc::clone(&self.shared)))
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply> {
        Box::pin(PostgresStore::claim(self, claim))
    }

    fn look<'a>(&'a self, id: &'a RecordId, asking: &'a Imprint) -> Answer<'a, LookReply> {
        let rule = |slot: &mut Slot, now| record::look(slot, asking, now);
        Box::pin(async move { self.apply(id, None, None, &self.limits(), rule).await })
    }

    fn renew<'a>(&'a self, claim: &'a Claim) -> Answer<'a, RenewReply> {
        Box::pin(PostgresStore::renew(self, claim))
    }

    fn complete<'a>(
        &'a self,
        claim: &'a Claim,
        response: &'a Response,
        retention: Duration,
    ) -> Answer<'a, CompleteReply> {
        Box::pin(PostgresStore::complete(self, claim, response, retention))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ReleaseReply> {
        let rule = |slot: &mut Slot, now| record::release(slot, claim, now);
        Box::pin(async move { self.apply(&claim.id, Some(claim.token), None, &self.limits(), rule).await })
    }

    fn doubt<'a>(&'a self, claim: &'a Claim, reason: Reason, response: Option<&'a Response>) -> Answer<'a, DoubtReply> {
        let rule = move |slot: &mut Slot, now| record::doubt(slot, claim, reason, response.cloned(), now);
        Box::pin(async move { self.apply(&claim.id, Some(claim.token), None, &self.limits(), rule).await })
    }

    fn resolve<'a>(
        &'a self,
        id: &'a RecordId,
        token: Token,
        finding: &'a Finding,
        force: bool,
    ) -> Answer<'a, ResolveReply> {
        let rule = move |slot: &mut Slot, now| record::resolve(slot, token, finding.clone(), force, now);
        Box::pin(async move { self.apply(id, Some(token), None, &self.limits(), rule).await })
    }

    fn forget<'a>(&'a self, id: &'a RecordId, token: Token, force: bool) -> Answer<'a, ForgetReply> {
        let rule = move |slot: &mut Slot, now| record::forget(slot, token, force, now);
        Box::pin(async move { self.apply(id, Some(token), None, &self.limits(), rule).await })
    }

    fn get<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Option<Record>> {
        Box::pin(PostgresStore::get(self, id))
    }

    fn list<'a>(&'a self, query: &'a Query) -> Answer<'a, Page> {
        Box::pin(PostgresStore::list(self, query))
    }

    fn watch<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Box<dyn Watch>> {
        Box::pin(async move {
            let watch = Waiting::watch(&self.shared, id);
            let hash = Sixteen::of(id);
            self.ask(&self.claims, &self.shared.statements.watch, &[(&hash, Type::UUID)], &self.limits()).await?;
            Ok(watch)
        })
    }

    fn inspect(&self) -> Answer<'_, Report> {
        Box::pin(async { Box::pin(health::inspect(&self.shared, &self.claims, &self.limits())).await })
    }

    fn ready(&self) -> Result<(), NotReady> {
        self.shared.health.ready()
    }
}
