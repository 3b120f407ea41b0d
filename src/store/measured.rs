//! A store that times and counts its operations.
//!
//! One wrapper around every back-end, so that none of them has to think of it and all are measured alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::report::Report;
use super::{Answer, NotReady, Page, Query, Store, StoreError, StoreErrorKind, Watch};
use crate::metrics::{Metrics, StoreOperationMetrics};
use crate::record::{
    Claim, ClaimReply, CompleteReply, DoubtReply, Finding, Fingerprint, ForgetReply, LookReply, Reason, Record,
    RecordId, ReleaseReply, RenewReply, ResolveReply, Response, Token,
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
        }
    }
}

fn operation(metrics: &Metrics, name: &'static str) -> StoreOperationMetrics {
    let operation = metrics.store_operation(name);
    operation.show(StoreErrorKind::FAILURES.map(StoreErrorKind::as_str));
    operation
}

fn measure<'a, T: 'a>(operation: &'a StoreOperationMetrics, answer: Answer<'a, T>) -> Answer<'a, T> {
    Box::pin(async move {
        let start = Instant::now();
        let result = answer.await;
        operation.took(start);
        if let Err(StoreError { kind, .. }) = &result
            && kind.is_failure()
        {
            operation.failed(kind.as_str());
        }
        result
    })
}

impl Store for Measured {
    fn for_core(&self) -> Arc<dyn Store> {
        Arc::new(Measured { inner: self.inner.for_core(), operations: Arc::clone(&self.operations) })
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply> {
        measure(&self.operations.claim, self.inner.claim(claim))
    }

    fn look<'a>(&'a self, id: &'a RecordId, fingerprint: &'a Fingerprint) -> Answer<'a, LookReply> {
        measure(&self.operations.look, self.inner.look(id, fingerprint))
    }

    fn renew<'a>(&'a self, claim: &'a Claim) -> Answer<'a, RenewReply> {
        measure(&self.operations.renew, self.inner.renew(claim))
    }

    fn complete<'a>(
        &'a self,
        claim: &'a Claim,
        response: &'a Response,
        retention: Duration,
    ) -> Answer<'a, CompleteReply> {
        measure(&self.operations.complete, self.inner.complete(claim, response, retention))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ReleaseReply> {
        measure(&self.operations.release, self.inner.release(claim))
    }

    fn doubt<'a>(&'a self, claim: &'a Claim, reason: Reason, response: Option<&'a Response>) -> Answer<'a, DoubtReply> {
        measure(&self.operations.doubt, self.inner.doubt(claim, reason, response))
    }

    fn resolve<'a>(
        &'a self,
        id: &'a RecordId,
        token: Token,
        finding: &'a Finding,
        force: bool,
    ) -> Answer<'a, ResolveReply> {
        measure(&self.operations.resolve, self.inner.resolve(id, token, finding, force))
    }

    fn forget<'a>(&'a self, id: &'a RecordId, token: Token, force: bool) -> Answer<'a, ForgetReply> {
        measure(&self.operations.forget, self.inner.forget(id, token, force))
    }

    fn get<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Option<Record>> {
        measure(&self.operations.get, self.inner.get(id))
    }

    fn list<'a>(&'a self, query: &'a Query) -> Answer<'a, Page> {
        measure(&self.operations.list, self.inner.list(query))
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
}
