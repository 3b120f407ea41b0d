//! A store that times and counts its operations.
//!
//! One wrapper around every back-end, so that none of them has to think of it and all are measured alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::report::Report;
use super::{Answer, NotReady, Page, Query, Store, StoreError, StoreErrorKind, Watch};
use crate::metrics::{Metrics, StoreOperationMetrics};
use crate::record::{
    Claim, ClaimReply, CompleteReply, DoubtReply, Finding, ForgetReply, Imprint, LookReply, Reason, Record, RecordId,
    ReleaseReply, RenewReply, ResolveReply, Response, Token,
};

/// The same store, measured.
pub(super) fn measured(inner: Arc<dyn Store>, metrics: &Metrics) -> Arc<dyn Store> {
    Arc::new(Measured { inner, operations: Arc::new(Operations::new(metrics)) })
}

struct Measured {
    inner: Arc<dyn Store>,
    operations: Arc<Operations>,
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
        Box::pin(async move {
            let operation = operation(self);
            let start = Instant::now();
            let result = answer.await;
            operation.took(start);
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
        Arc::new(Measured { inner: self.inner.for_core(), operations: Arc::clone(&self.operations) })
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply> {
        self.operations.measure(|of| &of.claim, self.inner.claim(claim))
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
        self.operations.measure(|of| &of.complete, self.inner.complete(claim, response, retention))
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
