//! The store's contract as one suite, run by every back-end.
//!
//! [`suite`] takes any store and holds it to each rule of the record's life, through two handles at once, so that a
//! shared store is met by two proxies. Every rule uses record ids of its own: stores may be used by others meanwhile.
//! Time passes for real: short leases are let run out and the store is asked until it says so, never slept for.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use onceproxy::config::store::{Backend, StoreConfig};
use onceproxy::metrics::Metrics;
use onceproxy::record::{
    Claim, ClaimReply, CompleteReply, Details, Doubtful, Fingerprint, Imprint, OnUnknown, Parts, Reason, Record,
    RecordId, Replay, RequestPart, Response, State, Taken, Token,
};
use onceproxy::store::{Opened, Store};

mod attempts;
mod bodies;
mod claims;
mod expiry;
mod imprints;
mod lists;
mod operators;
mod watches;

/// Runs every rule on a store. `open` gives a new handle each time, as separate as two proxies have them where the store
/// can be shared; what the handles need in the background runs.
pub(crate) async fn suite(open: impl Fn() -> Arc<dyn Store>) {
    let pair = Pair { one: open(), two: open() };
    ready(&pair).await;
    claims::rules(&pair).await;
    imprints::rules(&pair).await;
    attempts::rules(&pair).await;
    operators::rules(&pair).await;
    expiry::rules(&pair).await;
    lists::rules(&pair).await;
    watches::rules(&pair).await;
    bodies::rules(&pair).await;
}

/// Checks that a claim that nobody asks for becomes unknown in the background, is counted, and shows in the gauge.
/// `metrics` are those with which the store was opened.
pub(crate) async fn sweep(store: &dyn Store, metrics: &Metrics) {
    let claim = Claim { lease: MOMENT, ..claim_of(fresh_id_on("swept")) };
    assert!(matches!(store.claim(&claim).await.unwrap(), ClaimReply::Granted { .. }));
    until("the sweep counts the lapsed claim", async || {
        metrics.expose().0.contains(r#"onceproxy_stale_claims_total{route="swept"} 1"#).then_some(())
    })
    .await;
    until("the gauge shows an unknown record", async || {
        let (text, _) = metrics.expose();
        let line = text.lines().find(|l| l.starts_with(r#"onceproxy_records_open{state="unknown"}"#))?;
        (!line.ends_with(" 0")).then_some(())
    })
    .await;
    let record = store.get(&claim.id).await.unwrap().unwrap();
    assert!(matches!(record.state, State::Unknown { reason: Reason::Lapsed, .. }), "{record:?}");
}

/// Two handles on one store.
pub(crate) struct Pair {
    pub(crate) one: Arc<dyn Store>,
    pub(crate) two: Arc<dyn Store>,
}

/// A lease or retention that is over at once.
const MOMENT: Duration = Duration::from_millis(1);
/// A lease or retention that no test outlives.
const LONG: Duration = Duration::from_secs(3600);

async fn ready(pair: &Pair) {
    for store in [&pair.one, &pair.two] {
        until("the store is ready", async || store.ready().ok()).await;
    }
}

/// Asks until there is an answer. The deadline is for a store that never gives one; nothing is concluded from it.
pub(crate) async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(answer) = ask().await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never happened: {what}");
}

fn fresh_id_on(route: &str) -> RecordId {
    RecordId::new(route.into(), *Token::new().as_bytes())
}

fn fresh_id() -> RecordId {
    fresh_id_on("contract")
}

/// The imprint of this request: all parts of another one are others.
fn imprint(request: u8) -> Imprint {
    imprint_under([1, 0, 0, 255], [request; 32], request)
}

/// The imprint of the first request under other settings.
fn other_policy() -> Imprint {
    imprint_under([1, 0, 0, 254], [77; 32], 1)
}

fn imprint_under(policy: [u8; 4], digest: [u8; 32], parts: u8) -> Imprint {
    let parts = Parts::new([[parts; 16]; RequestPart::ALL.len()]);
    let details = Some(Arc::new(Details { parts, credentials: None }));
    Imprint { fingerprint: Fingerprint { policy, digest }, details }
}

/// The same claim by a process with other settings, of a request that says all it can.
pub(crate) fn under_other_settings(claim: &Claim) -> Claim {
    Claim { imprint: other_policy(), ..claim.clone() }
}

/// A new attempt at this record: same request, hold, nothing runs out.
fn claim_of(id: RecordId) -> Claim {
    Claim {
        id,
        token: Token::new(),
        imprint: imprint(1),
        quoted: false,
        lease: LONG,
        abandon_after: LONG,
        on_unknown: OnUnknown::Hold,
        unknown_retention: None,
    }
}

/// The same request by another attempt, whose lease does not run out.
fn again(claim: &Claim) -> Claim {
    Claim { token: Token::new(), lease: LONG, ..claim.clone() }
}

fn response(text: &'static str) -> Response {
    Response::new(201, [(&b"content-type"[..], &b"text/plain"[..])], [], Some(Bytes::from_static(text.as_bytes())))
}

impl Pair {
    /// A record that a new attempt has claimed.
    async fn claimed(&self) -> Claim {
        self.granted(claim_of(fresh_id())).await
    }

    async fn granted(&self, claim: Claim) -> Claim {
        let reply = self.one.claim(&claim).await.unwrap();
        assert_eq!(reply, ClaimReply::Granted { attempts: 1, taken_over: None });
        claim
    }

    /// A record that is completed with this text.
    async fn completed(&self, text: &'static str) -> Claim {
        let claim = self.claimed().await;
        let reply = self.one.complete(&claim, &response(text), LONG).await.unwrap();
        assert_eq!(reply, CompleteReply::Stored);
        claim
    }

    /// A record whose owner's lease is over.
    async fn lapsed(&self) -> Claim {
        let claim = self.granted(Claim { lease: MOMENT, ..claim_of(fresh_id()) }).await;
        self.until_unknown(&claim.id).await;
        claim
    }

    /// A record that its owner doubts, with what the gateway said.
    async fn doubted(&self) -> Claim {
        let claim = self.claimed().await;
        self.one.doubt(&claim, Reason::Status, Some(&response("gateway"))).await.unwrap();
        claim
    }

    async fn record(&self, id: &RecordId) -> Option<Record> {
        self.two.get(id).await.unwrap()
    }

    async fn existing(&self, id: &RecordId) -> Record {
        self.record(id).await.expect("the record is there")
    }

    async fn until_unknown(&self, id: &RecordId) -> Record {
        until("the lease is over", async || {
            self.record(id).await.filter(|record| matches!(record.state, State::Unknown { .. }))
        })
        .await
    }

    async fn until_absent(&self, id: &RecordId) {
        until("the record has expired", async || self.record(id).await.is_none().then_some(())).await;
    }

    /// What a new attempt of the same request is told, on the other handle.
    async fn duplicate(&self, claim: &Claim) -> ClaimReply {
        self.two.claim(&again(claim)).await.unwrap()
    }
}

fn replayed(reply: ClaimReply) -> Replay {
    match reply {
        ClaimReply::Taken(Taken::Completed(replay)) => replay,
        other => panic!("not a replay: {other:?}"),
    }
}

fn held(reply: ClaimReply) -> Doubtful {
    match reply {
        ClaimReply::Taken(Taken::Unknown(doubtful)) => doubtful,
        other => panic!("not unknown: {other:?}"),
    }
}

/// Settings of a store with everything but the back-end as by default.
pub(crate) fn config(backend: Backend) -> StoreConfig {
    StoreConfig {
        backend,
        timeout: Duration::from_secs(10),
        prefix: "once".to_owned(),
        allow_eviction: false,
        second_line: None,
    }
}

/// Opens a store and runs its background work on this runtime.
pub(crate) fn open(backend: Backend) -> (Arc<dyn Store>, Arc<Metrics>) {
    let metrics = Metrics::new();
    let Opened { store, background, .. } = onceproxy::store::open(&config(backend), &metrics).unwrap();
    tokio::spawn(background);
    (store, metrics)
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    let (store, metrics) = open(Backend::Memory);
    suite(|| store.for_core()).await;
    sweep(&*store, &metrics).await;
    let (text, _) = metrics.expose();
    for operation in ["claim", "look", "renew", "complete", "release", "doubt", "resolve", "forget", "get", "list"] {
        let timed = format!(r#"onceproxy_store_seconds_count{{operation="{operation}"}} "#);
        let count = text.lines().find_map(|line| line.strip_prefix(&timed)).expect("every operation is timed");
        assert_ne!(count, "0", "{operation} was never timed");
    }
}
