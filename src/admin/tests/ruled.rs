//! A store that applies the real rules to a map, under a clock that the test sets, and fails or hangs when told to.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::record::{
    self, Claim, ClaimReply, CompleteReply, DoubtReply, Finding, ForgetReply, Imprint, LookReply, Reason, Record,
    RecordId, ReleaseReply, RenewReply, ResolveReply, Response, Slot, Timestamp, Token,
};
use crate::store::report::Report;
use crate::store::{Answer, NotReady, OpenState, Page, Query, Store, StoreError, StoreErrorKind, Watch};

const START: u64 = 1_700_000_000_000;

/// What a store may do instead of its work.
#[derive(Clone, Copy)]
pub(super) enum Fault {
    Fails,
    Hangs,
}

impl Fault {
    fn happens<T: Send + 'static>(self) -> Answer<'static, T> {
        match self {
            Fault::Fails => {
                let error = StoreError::may_have_run(StoreErrorKind::TimedOut, "no answer within 1s");
                Box::pin(async { Err(error) })
            }
            Fault::Hangs => Box::pin(std::future::pending()),
        }
    }
}

/// A store in a map. It fails, or is not ready, when the test says so.
#[derive(Default)]
pub(super) struct Ruled {
    slots: Mutex<BTreeMap<String, (RecordId, Slot)>>,
    now: Mutex<u64>,
    pub(super) fault: Mutex<Option<Fault>>,
    pub(super) not_ready: Mutex<Option<NotReady>>,
}

impl Ruled {
    pub(super) fn now(&self) -> Timestamp {
        Timestamp(START + *self.now.lock().unwrap())
    }

    pub(super) fn advance(&self, span: Duration) {
        *self.now.lock().unwrap() += span.as_millis() as u64;
    }

    fn apply<T: Send + 'static>(&self, id: &RecordId, rule: impl FnOnce(&mut Slot, Timestamp) -> T) -> Answer<'_, T> {
        if let Some(fault) = *self.fault.lock().unwrap() {
            return fault.happens();
        }
        let mut slots = self.slots.lock().unwrap();
        let (_, slot) = slots.entry(id.to_string()).or_insert_with(|| (id.clone(), Slot::new(None, false)));
        let reply = rule(slot, self.now());
        Box::pin(async { Ok(reply) })
    }
}

impl Store for Ruled {
    fn for_core(&self) -> Arc<dyn Store> {
        unimplemented!("the admin listener has one core")
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply> {
        self.apply(&claim.id, |slot, now| record::claim(slot, claim, now))
    }

    fn look<'a>(&'a self, _: &'a RecordId, _: &'a Imprint) -> Answer<'a, LookReply> {
        unimplemented!("no admin call looks")
    }

    fn renew<'a>(&'a self, _: &'a Claim) -> Answer<'a, RenewReply> {
        unimplemented!("no admin call renews")
    }

    fn complete<'a>(&'a self, claim: &'a Claim, response: &'a Response, kept: Duration) -> Answer<'a, CompleteReply> {
        self.apply(&claim.id, |slot, now| record::complete(slot, claim, response.clone(), kept, now))
    }

    fn release<'a>(&'a self, _: &'a Claim) -> Answer<'a, ReleaseReply> {
        unimplemented!("no admin call releases")
    }

    fn doubt<'a>(&'a self, claim: &'a Claim, why: Reason, response: Option<&'a Response>) -> Answer<'a, DoubtReply> {
        self.apply(&claim.id, |slot, now| record::doubt(slot, claim, why, response.cloned(), now))
    }

    fn resolve<'a>(
        &'a self,
        id: &'a RecordId,
        token: Token,
        finding: &'a Finding,
        force: bool,
    ) -> Answer<'a, ResolveReply> {
        self.apply(id, |slot, now| record::resolve(slot, token, finding.clone(), force, now))
    }

    fn forget<'a>(&'a self, id: &'a RecordId, token: Token, force: bool) -> Answer<'a, ForgetReply> {
        self.apply(id, |slot, now| record::forget(slot, token, force, now))
    }

    fn get<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Option<Record>> {
        self.apply(id, |slot, now| {
            slot.record.as_mut().map(|record| {
                record::lapse(record, now);
                record.clone()
            })
        })
    }

    fn list<'a>(&'a self, query: &'a Query) -> Answer<'a, Page> {
        if let Some(fault) = *self.fault.lock().unwrap() {
            return fault.happens();
        }
        let wanted = |id: &RecordId, record: &Record| {
            let state = match query.state {
                Some(OpenState::Claimed) => record.state.as_str() == "claimed",
                Some(OpenState::Unknown) => record.state.as_str() == "unknown",
                None => record.is_open(),
            };
            state && query.route.as_deref().is_none_or(|route| route == id.route())
        };
        let slots = self.slots.lock().unwrap();
        let mut records: Vec<_> = slots
            .range((query.cursor.clone().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
            .filter_map(|(_, (id, slot))| Some((id.clone(), slot.record.clone()?)))
            .filter(|(id, record)| wanted(id, record))
            .collect();
        let more = records.len() > query.limit;
        records.truncate(query.limit);
        let cursor = records.last().filter(|_| more).map(|(id, _)| id.to_string());
        Box::pin(async { Ok(Page { records, cursor }) })
    }

    fn watch<'a>(&'a self, _: &'a RecordId) -> Answer<'a, Box<dyn Watch>> {
        unimplemented!("no admin call watches")
    }

    fn inspect(&self) -> Answer<'_, Report> {
        unimplemented!("no admin call inspects")
    }

    fn ready(&self) -> Result<(), NotReady> {
        self.not_ready.lock().unwrap().clone().map_or(Ok(()), Err)
    }
}
