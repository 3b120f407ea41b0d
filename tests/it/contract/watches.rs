//! Waiting: a watcher learns of every change, whoever makes it.

use super::*;
use onceproxy::record::Finding;
use onceproxy::store::Watch;

pub(super) async fn rules(pair: &Pair) {
    every_change_wakes_watchers_on_both_handles(pair).await;
    a_change_before_the_wait_is_not_missed(pair).await;
}

/// Bounded only so that a watcher that is never woken fails instead of hanging.
async fn woken(watch: &mut Box<dyn Watch>, by: &str) {
    let changed = tokio::time::timeout(Duration::from_secs(30), watch.changed()).await;
    assert!(changed.is_ok(), "no watcher was woken by {by}");
}

async fn every_change_wakes_watchers_on_both_handles(pair: &Pair) {
    for change in ["complete", "release", "doubt", "executed", "not-executed", "forget"] {
        let claim = match change {
            "executed" | "not-executed" => pair.doubted().await,
            _ => pair.claimed().await,
        };
        let mut near = pair.one.watch(&claim.id).await.unwrap();
        let mut far = pair.two.watch(&claim.id).await.unwrap();
        let store = &pair.one;
        let executed = Finding::Executed { response: response("x"), retention: LONG };
        let (id, token) = (&claim.id, claim.token);
        let done = match change {
            "complete" => store.complete(&claim, &response("x"), LONG).await.map(|_| ()),
            "release" => store.release(&claim).await.map(|_| ()),
            "doubt" => store.doubt(&claim, Reason::Reset, None).await.map(|_| ()),
            "forget" => store.forget(id, token, true).await.map(|_| ()),
            "not-executed" => store.resolve(id, token, &Finding::NotExecuted, true).await.map(|_| ()),
            _ => store.resolve(id, token, &executed, true).await.map(|_| ()),
        };
        done.unwrap();
        woken(&mut near, change).await;
        woken(&mut far, change).await;
    }
}

async fn a_change_before_the_wait_is_not_missed(pair: &Pair) {
    let claim = pair.claimed().await;
    let mut watch = pair.two.watch(&claim.id).await.unwrap();
    pair.one.complete(&claim, &response("x"), LONG).await.unwrap();
    replayed(pair.duplicate(&claim).await);
    woken(&mut watch, "a change before the wait").await;
}
