//! A store that times and counts its operations, and claims nothing on a core on which answers cannot be recorded.
//!
//! One wrapper around every back-end, so that none of them has to think of it and all are measured alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::report::Report;
use super::ways::Way;
use super::{Answer, NotReady, Page, Query, Store, StoreError, StoreErrorKind, Watch};
use crate::metrics::{Metrics, StoreOperationMetrics};
use crate::record::{
    Claim, ClaimReply, CompleteReply, DoubtReply, Finding, ForgetReply, Imprint, LookReply, OnUnknown, Reason, Record,
    RecordId, ReleaseReply, RenewReply, ResolveReply, Response, Taken, Token,
};

/// A store, measured; and of a core's handle, guarded by what is known of the core's way.
pub(super) struct Measured {
    inner: Arc<dyn Store>,
    operations: Arc<Operations>,
    way: Option<Arc<Way>>,
}

impl Measured {
    /// The same store, measured.
    pub(super) fn new(inner: Arc<dyn Store>, metrics: &Metrics) -> Measured {
        Measured { inner, operations: Arc::new(Operations::new(metrics)), way: None }
    }

    /// A handle for another core that claims nothing while completions fail, and the same without measure and guard.
    pub(super) fn guarded_by(&self, way: &Arc<Way>) -> (Arc<dyn Store>, Arc<dyn Store>) {
        let inner = self.inner.for_core();
        let (operations, way) = (Arc::clone(&self.operations), Some(Arc::clone(way)));
        (Arc::new(Measured { inner: Arc::clone(&inner), operations, way }), inner)
    }

    /// In place of a claim that is not to be granted: what the record says, if there is one.
    async fn look_only(&self, claim: &Claim, refusal: StoreError) -> Result<ClaimReply, StoreError> {
        match self.inner.look(&claim.id, &claim.imprint).await? {
            // Under `resend` a claim would take it over.
            LookReply::Taken(Taken::Unknown(_)) if claim.on_unknown == OnUnknown::Resend => Err(refusal),
            LookReply::Taken(taken) => Ok(taken.into()),
            LookReply::Absent => {
                // The way may be better than it was.
                self.way.iter().for_each(|way| way.doubt());
                Err(refusal)
            }
        }
    }
}

struct Operations {
    claim: StoreOperationMetrics,
    look: StoreOperationMetrics,
    renew: StoreOperationMetrics,
    complete: StoreOperationMetrics,
    release: StoreOperationMetrics,
    doubt: StoreOperationMetrics,
    resolve: StoreOperationMetrics,
    forget: StoreOperationMetrics,
    get: StoreOperationMetrics,
    list: StoreOperationMetrics,
    /// How often the store was there and would not.
    refusals: AtomicU64,
}

impl Operations {
    fn new(metrics: &Metrics) -> Operations {
        Operations {
            claim: operation(metrics, "claim"),
            look: operation(metrics, "look"),
            renew: operation(metrics, "renew"),
            complete: operation(metrics, "complete"),
            release: operation(metrics, "release"),
            doubt: operation(metrics, "doubt"),
            resolve: operation(metrics, "resolve"),
            forget: operation(metrics, "forget"),
            get: operation(metrics, "get"),
            list: operation(metrics, "list"),
            refusals: AtomicU64::new(0),
        }
    }

    fn measure<'a, T: 'a>(
        &'a self,
        operation: fn(&Operations) -> &StoreOperationMetrics,
        answer: Answer<'a, T>,
    ) -> Answer<'a, T> {
        self.measure_on(None, operation, answer)
    }

    /// The same for an operation that shows whether answers can be recorded.
    fn measure_on<'a, T: 'a>(
        &'a self,
        way: Option<&'a Way>,
        operation: fn(&Operations) -> &StoreOperationMetrics,
        answer: Answer<'a, T>,
    ) -> Answer<'a, T> {
        Box::pin(async move {
            let operation = operation(self);
            let start = Instant::now();
            let result = answer.await;
            operation.took(start);
            if let Some(way) = way {
                way.saw(result.as_ref().err());
            }
            if let Err(StoreError { kind, .. }) = &result
                && kind.is_failure()
            {
                operation.failed(kind.as_str());
                if kind.is_refusal() {
                    self.refusals.fetch_add(1, Ordering::Relaxed);
                }
            }
            result
        })
    }
}

fn operation(metrics: &Metrics, name: &'static str) -> StoreOperationMetrics {
    let operation = metrics.store_operation(name);
    operation.show(StoreErrorKind::FAILURES.map(StoreErrorKind::as_str));
    operation
}

impl Store for Measured {
    fn for_core(&self) -> Arc<dyn Store> {
        Arc::new(Measured { inner: self.inner.for_core(), operations: Arc::clone(&self.operations), way: None })
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply> {
        let answer = match self.way.as_ref().and_then(|way| way.refusal()) {
            None => self.inner.claim(claim),
            Some(refusal) => Box::pin(self.look_only(claim, refusal)),
        };
        self.operations.measure(|of| &of.claim, answer)
    }

    fn look<'a>(&'a self, id: &'a RecordId, asking: &'a Imprint) -> Answer<'a, LookReply> {
        self.operations.measure(|of| &of.look, self.inner.look(id, asking))
    }

    fn renew<'a>(&'a self, claim: &'a Claim) -> Answer<'a, RenewReply> {
        self.operations.measure(|of| &of.renew, self.inner.renew(claim))
    }

    fn complete<'a>(
        &'a self,
        claim: &'a Claim,
        response: &'a Response,
        retention: Duration,
    ) -> Answer<'a, CompleteReply> {
        let answer = self.inner.complete(claim, response, retention);
        self.operations.measure_on(self.way.as_deref(), |of| &of.complete, answer)
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ReleaseReply> {
        self.operations.measure(|of| &of.release, self.inner.release(claim))
    }

    fn doubt<'a>(&'a self, claim: &'a Claim, reason: Reason, response: Option<&'a Response>) -> Answer<'a, DoubtReply> {
        self.operations.measure(|of| &of.doubt, self.inner.doubt(claim, reason, response))
    }

    fn resolve<'a>(
        &'a self,
        id: &'a RecordId,
        token: Token,
        finding: &'a Finding,
        force: bool,
    ) -> Answer<'a, ResolveReply> {
        self.operations.measure(|of| &of.resolve, self.inner.resolve(id, token, finding, force))
    }

    fn forget<'a>(&'a self, id: &'a RecordId, token: Token, force: bool) -> Answer<'a, ForgetReply> {
        self.operations.measure(|of| &of.forget, self.inner.forget(id, token, force))
    }

    fn get<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Option<Record>> {
        self.operations.measure(|of| &of.get, self.inner.get(id))
    }

    fn list<'a>(&'a self, query: &'a Query) -> Answer<'a, Page> {
        self.operations.measure(|of| &of.list, self.inner.list(query))
    }

    fn watch<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Box<dyn Watch>> {
        self.inner.watch(id)
    }

    fn inspect(&self) -> Answer<'_, Report> {
        self.inner.inspect()
    }

    fn ready(&self) -> Result<(), NotReady> {
        self.inner.ready()
    }

    fn refusals(&self) -> u64 {
        self.operations.refusals.load(Ordering::Relaxed)
    }
}
