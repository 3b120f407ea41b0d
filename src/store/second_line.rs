//! A second line of defence: a store behind the store, in which every granted claim is entered as well before it counts.
//!
//! The first line is fast and may forget; the second never does. Nothing is sent but under a grant of both, so the second
//! line alone keeps the promise, whatever the first has forgotten, and the first answers duplicates without asking it.
//! What the second knows and the first does not is brought back to the first when a claim comes upon it.
//!
//! The two are written one after the other, and a crash may come in between: see the table in `docs/guarantees.md`. Both
//! are seen through [`Store`] alone; a quorum of several stores would stand in the same place.

use std::sync::Arc;
use std::time::Duration;

use super::report::{Report, SECOND, Weight};
use super::{Answer, BackEnd, NotReady, Page, Query, Store, StoreError, Watch};
use crate::record::{
    Claim, ClaimReply, CompleteReply, DoubtReply, Finding, ForgetReply, Imprint, Likeness, LookReply, Reason, Record,
    RecordId, ReleaseReply, RenewReply, ResolveReply, Response, State, Taken, Token,
};

#[cfg(test)]
mod tests;

/// In a cursor: the page continues among the records that only the first line holds.
const FIRST_ALONE: &str = "first:";

/// The two as one store.
pub(super) fn behind(first: BackEnd, second: BackEnd) -> BackEnd {
    let store = Arc::new(SecondLine { first: first.store, second: second.store });
    let (one, two) = (first.background, second.background);
    let background = Box::pin(async move {
        tokio::join!(one, two);
    });
    BackEnd { store, background }
}

struct SecondLine {
    first: Arc<dyn Store>,
    second: Arc<dyn Store>,
}

impl SecondLine {
    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let first = match self.first.claim(claim).await? {
            ClaimReply::Granted { attempts, taken_over } => (attempts, taken_over),
            ClaimReply::Taken(taken) => return self.told(taken, &claim.id, &claim.imprint).await.map(Into::into),
            ClaimReply::Lost => return Ok(ClaimReply::Lost),
        };
        let second = match self.second.claim(claim).await {
            Ok(reply) => reply,
            Err(error) => {
                // Nothing was sent, so nothing may be held. The second line may hold it all the same: the caller goes on
                // handing it back.
                self.hand_back(claim).await;
                return Err(StoreError { may_have_run: true, ..error });
            }
        };
        match second {
            ClaimReply::Granted { attempts, taken_over } => {
                Ok(ClaimReply::Granted { attempts: attempts.max(first.0), taken_over: taken_over.or(first.1) })
            }
            // From here on: the first line had forgotten what the second tells.
            ClaimReply::Taken(Taken::Completed(replay)) => {
                tracing::warn!(record = %claim.id, "the store had forgotten a completed record; it is brought back");
                let complete = self.first.complete(claim, &replay.response, replay.ttl).await;
                self.repair(complete.map(drop), claim);
                Ok(Taken::Completed(replay).into())
            }
            ClaimReply::Taken(Taken::Unknown(doubtful)) => {
                tracing::warn!(record = %claim.id, "the store had forgotten an unknown record; it is brought back");
                let response = match self.second.get(&claim.id).await {
                    Ok(Some(Record { state: State::Unknown { response, .. }, .. })) => response,
                    _ => None,
                };
                let doubt = self.first.doubt(claim, doubtful.reason, response.as_ref()).await;
                self.repair(doubt.map(drop), claim);
                Ok(Taken::Unknown(doubtful).into())
            }
            // Its owner's next renewal brings it back.
            reply @ (ClaimReply::Taken(Taken::InProgress { .. } | Taken::Reused(_) | Taken::OtherCaller)
            | ClaimReply::Lost) => {
                self.hand_back(claim).await;
                Ok(reply)
            }
        }
    }

    /// Frees the first line of a claim that the second did not grant. If that fails the claim lapses, and is held.
    async fn hand_back(&self, claim: &Claim) {
        if let Err(error) = self.first.release(claim).await {
            tracing::warn!(record = %claim.id, %error, "a claim that the second line refused could not be handed back");
        }
    }

    fn repair(&self, repaired: Result<(), StoreError>, claim: &Claim) {
        if let Err(error) = repaired {
            tracing::warn!(record = %claim.id, %error, "the store could not be repaired; the next duplicate tries again");
        }
    }

    /// What both lines say, where the first has a record.
    async fn told(&self, first: Taken, id: &RecordId, asking: &Imprint) -> Result<Taken, StoreError> {
        match first {
            // A completion may have reached the second line alone.
            Taken::Unknown(_) => Ok(self.second_opinion(id, asking).await.unwrap_or(first)),
            // A first line that had forgotten the record grants its key to any request, until the second refuses that
            // one: its word alone would refuse the true owner. So without the second line there is no answer.
            Taken::Reused(_) | Taken::OtherCaller => Ok(match self.second.look(id, asking).await? {
                LookReply::Taken(second) => second,
                LookReply::Absent => first,
            }),
            Taken::Completed(_) | Taken::InProgress { .. } => Ok(first),
        }
    }

    /// What the second line knows of a record that is unknown to the first. If it is completed, the first is told.
    async fn second_opinion(&self, id: &RecordId, asking: &Imprint) -> Option<Taken> {
        // Without the second line the record is as unknown as before.
        let LookReply::Taken(second) = self.second.look(id, asking).await.ok()? else { return None };
        if let Taken::Completed(replay) = &second
            && let Ok(Some(record)) = self.first.get(id).await
        {
            let finding = Finding::Executed { response: replay.response.clone(), retention: replay.ttl };
            if let Err(error) = self.first.resolve(id, record.token, &finding, true).await {
                tracing::warn!(record = %id, %error, "the store could not be repaired; the next duplicate tries again");
            }
        }
        (!matches!(second, Taken::InProgress { .. })).then_some(second)
    }

    async fn look(&self, id: &RecordId, asking: &Imprint) -> Result<LookReply, StoreError> {
        match self.first.look(id, asking).await? {
            LookReply::Taken(taken) => self.told(taken, id, asking).await.map(Into::into),
            // A waiter never becomes an owner. What the first line forgot is found when the key is claimed again.
            LookReply::Absent => Ok(LookReply::Absent),
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<RenewReply, StoreError> {
        let (first, second) = tokio::join!(self.first.renew(claim), self.second.renew(claim));
        let (first, second) = (first?, second?);
        // The worse of the two: a licence to send needs both.
        let worst = |reply: &RenewReply| match reply {
            RenewReply::Extended => 0,
            RenewReply::Rewritten => 1,
            RenewReply::Lapsed => 2,
            RenewReply::Lost => 3,
        };
        Ok(if worst(&first) > worst(&second) { first } else { second })
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &Response,
        retention: Duration,
    ) -> Result<CompleteReply, StoreError> {
        let second = match self.second.complete(claim, response, retention).await {
            Ok(reply) => reply,
            Err(error) => {
                // Duplicates get their replay at least for as long as the first line remembers; the caller repeats this.
                let _ = self.first.complete(claim, response, retention).await;
                return Err(error);
            }
        };
        let (response, retention) = match &second {
            CompleteReply::Lost => return Ok(second),
            CompleteReply::Already(replay) => (&replay.response, replay.ttl),
            _ => (response, retention),
        };
        let first = self.first.complete(claim, response, retention).await?;
        Ok(match (second, first) {
            (already @ CompleteReply::Already(_), _) => already,
            (CompleteReply::Rewritten, CompleteReply::WithoutBody { .. }) => {
                CompleteReply::WithoutBody { rewritten: true }
            }
            (second, CompleteReply::Already(_) | CompleteReply::Lost | CompleteReply::Stored) => second,
            (_, first) => first,
        })
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseReply, StoreError> {
        // The second line first: while it holds the claim, nobody gets past the first line in vain. Both are tried,
        // since nothing was sent and each may be free.
        let second = self.second.release(claim).await;
        let first = self.first.release(claim).await;
        Ok(match (first?, second?) {
            (ReleaseReply::UnknownAgain, _) | (_, ReleaseReply::UnknownAgain) => ReleaseReply::UnknownAgain,
            (ReleaseReply::Absent, _) | (_, ReleaseReply::Absent) => ReleaseReply::Absent,
            (ReleaseReply::Lost, ReleaseReply::Lost) => ReleaseReply::Lost,
        })
    }

    async fn doubt(
        &self,
        claim: &Claim,
        reason: Reason,
        response: Option<&Response>,
    ) -> Result<DoubtReply, StoreError> {
        let second = self.second.doubt(claim, reason, response).await;
        let first = self.first.doubt(claim, reason, response).await;
        Ok(match (first?, second?) {
            (DoubtReply::Rewritten, _) | (_, DoubtReply::Rewritten) => DoubtReply::Rewritten,
            (DoubtReply::Held, _) | (_, DoubtReply::Held) => DoubtReply::Held,
            (DoubtReply::Lost, DoubtReply::Lost) => DoubtReply::Lost,
        })
    }

    async fn resolve(
        &self,
        id: &RecordId,
        token: Token,
        finding: &Finding,
        force: bool,
    ) -> Result<ResolveReply, StoreError> {
        // Every attempt that may have sent anything was granted by the second line, so its record decides.
        match self.second.resolve(id, token, finding, force).await? {
            ResolveReply::Resolved => {}
            ResolveReply::Absent => return self.first.resolve(id, token, finding, force).await,
            reply => return Ok(reply),
        }
        // The first line's record may bear the token of an attempt that came upon what it had forgotten, and even be that
        // of another request, which the second refused.
        if let Some(Record { token, imprint, .. }) = self.first.get(id).await? {
            let is_like = |record: Record| matches!(record.imprint.compare(&imprint), Likeness::Same { .. });
            let same = self.second.get(id).await?.is_some_and(is_like);
            match finding {
                Finding::Executed { .. } if same => self.first.resolve(id, token, finding, true).await.map(drop)?,
                _ => self.first.forget(id, token, true).await.map(drop)?,
            }
        }
        Ok(ResolveReply::Resolved)
    }

    async fn forget(&self, id: &RecordId, token: Token, force: bool) -> Result<ForgetReply, StoreError> {
        match self.second.forget(id, token, force).await? {
            ForgetReply::Forgotten => {}
            ForgetReply::Absent => return self.first.forget(id, token, force).await,
            ForgetReply::Conflict => return Ok(ForgetReply::Conflict),
        }
        if let Some(Record { token, .. }) = self.first.get(id).await? {
            self.first.forget(id, token, true).await?;
        }
        Ok(ForgetReply::Forgotten)
    }

    /// The second line's record, which knows of every attempt; the first's if that is decided, or the only one.
    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        match self.second.get(id).await? {
            Some(record) if !record.is_open() => Ok(Some(record)),
            Some(open) => {
                let first = self.first.get(id).await?;
                Ok(Some(first.filter(|record| matches!(record.state, State::Completed { .. })).unwrap_or(open)))
            }
            None => self.first.get(id).await,
        }
    }

    /// The open records of the second line, then those that only the first holds: of an attempt that ended in between.
    async fn list(&self, query: &Query) -> Result<Page, StoreError> {
        let within = |cursor: Option<String>| Query { cursor, ..query.clone() };
        let cursor = match query.cursor.as_deref().map(|cursor| (cursor, cursor.strip_prefix(FIRST_ALONE))) {
            Some((_, Some("start"))) => None,
            Some((_, Some(rest))) => Some(rest.to_owned()),
            given => {
                let page = self.second.list(&within(given.map(|(cursor, _)| cursor.to_owned()))).await?;
                let cursor = page.cursor.or(Some(format!("{FIRST_ALONE}start")));
                let is_full = page.records.len() >= query.limit;
                if is_full || cursor.as_deref() != Some("first:start") {
                    return Ok(Page { records: page.records, cursor });
                }
                let mut rest =
                    self.first_alone(&Query { limit: query.limit - page.records.len(), ..within(None) }).await?;
                rest.records.splice(0..0, page.records);
                return Ok(rest);
            }
        };
        self.first_alone(&within(cursor)).await
    }

    async fn first_alone(&self, query: &Query) -> Result<Page, StoreError> {
        let page = self.first.list(query).await?;
        let mut records = Vec::new();
        for (id, record) in page.records {
            if self.second.get(&id).await?.is_none() {
                records.push((id, record));
            }
        }
        Ok(Page { records, cursor: page.cursor.map(|cursor| format!("{FIRST_ALONE}{cursor}")) })
    }

    async fn inspect(&self) -> Result<Report, StoreError> {
        let mut report = self.first.inspect().await?;
        // What the first line may forget, the second knows.
        report.remarks.retain(|remark| remark.weight == Weight::Breaks);
        report.fact(SECOND, "what follows is about the second line; the trial goes through both");
        report.append(self.second.inspect().await?);
        Ok(report)
    }
}

impl Store for SecondLine {
    fn for_core(&self) -> Arc<dyn Store> {
        Arc::new(SecondLine { first: self.first.for_core(), second: self.second.for_core() })
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply> {
        Box::pin(SecondLine::claim(self, claim))
    }

    fn look<'a>(&'a self, id: &'a RecordId, asking: &'a Imprint) -> Answer<'a, LookReply> {
        Box::pin(SecondLine::look(self, id, asking))
    }

    fn renew<'a>(&'a self, claim: &'a Claim) -> Answer<'a, RenewReply> {
        Box::pin(SecondLine::renew(self, claim))
    }

    fn complete<'a>(
        &'a self,
        claim: &'a Claim,
        response: &'a Response,
        retention: Duration,
    ) -> Answer<'a, CompleteReply> {
        Box::pin(SecondLine::complete(self, claim, response, retention))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ReleaseReply> {
        Box::pin(SecondLine::release(self, claim))
    }

    fn doubt<'a>(&'a self, claim: &'a Claim, reason: Reason, response: Option<&'a Response>) -> Answer<'a, DoubtReply> {
        Box::pin(SecondLine::doubt(self, claim, reason, response))
    }

    fn resolve<'a>(
        &'a self,
        id: &'a RecordId,
        token: Token,
        finding: &'a Finding,
        force: bool,
    ) -> Answer<'a, ResolveReply> {
        Box::pin(SecondLine::resolve(self, id, token, finding, force))
    }

    fn forget<'a>(&'a self, id: &'a RecordId, token: Token, force: bool) -> Answer<'a, ForgetReply> {
        Box::pin(SecondLine::forget(self, id, token, force))
    }

    fn get<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Option<Record>> {
        Box::pin(SecondLine::get(self, id))
    }

    fn list<'a>(&'a self, query: &'a Query) -> Answer<'a, Page> {
        Box::pin(SecondLine::list(self, query))
    }

    fn watch<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Box<dyn Watch>> {
        self.first.watch(id)
    }

    fn inspect(&self) -> Answer<'_, Report> {
        Box::pin(SecondLine::inspect(self))
    }

    fn ready(&self) -> Result<(), NotReady> {
        self.first.ready()?;
        self.second.ready()
    }
}
