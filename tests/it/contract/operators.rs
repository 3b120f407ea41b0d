//! What an operator does: resolve and forget, and the tombstones that both leave.

use super::*;
use onceproxy::record::{Finding, ForgetReply, ResolveReply};

pub(super) async fn rules(pair: &Pair) {
    executed_is_replayed(pair).await;
    not_executed_frees_the_key_but_not_for_its_token(pair).await;
    not_executed_waits_for_an_attempt_that_may_be_running(pair).await;
    only_the_unknown_record_with_this_token_is_resolved(pair).await;
    a_completed_record_is_forgotten(pair).await;
    an_open_record_is_forgotten_only_by_force(pair).await;
}

fn executed(text: &'static str) -> Finding {
    Finding::Executed { response: response(text), retention: LONG }
}

async fn executed_is_replayed(pair: &Pair) {
    for unknown in [pair.lapsed().await, pair.doubted().await] {
        let resolved = pair.two.resolve(&unknown.id, unknown.token, &executed("found"), false).await.unwrap();
        assert_eq!(resolved, ResolveReply::Resolved);
        let replay = replayed(pair.duplicate(&unknown).await);
        assert_eq!(replay.response, response("found"));
        assert!(replay.age + replay.ttl == LONG);
        let late = pair.one.complete(&unknown, &response("late"), LONG).await.unwrap();
        let CompleteReply::Already(stored) = late else { panic!("{late:?}") };
        assert_eq!(stored.response, response("found"));
    }
}

async fn not_executed_frees_the_key_but_not_for_its_token(pair: &Pair) {
    let gone = pair.granted(Claim { lease: MOMENT, abandon_after: MOMENT, ..claim_of(fresh_id()) }).await;
    until("nobody listens any more, so it can be resolved", async || {
        let reply = pair.two.resolve(&gone.id, gone.token, &Finding::NotExecuted, false).await.unwrap();
        (reply == ResolveReply::Resolved).then_some(())
    })
    .await;
    assert_eq!(pair.record(&gone.id).await, None);
    assert_eq!(pair.one.claim(&gone).await.unwrap(), ClaimReply::Lost);
    assert_eq!(pair.one.complete(&gone, &response("x"), LONG).await.unwrap(), CompleteReply::Lost);
    let again_resolved = pair.two.resolve(&gone.id, gone.token, &Finding::NotExecuted, false).await.unwrap();
    assert_eq!(again_resolved, ResolveReply::Absent);
    pair.granted(again(&gone)).await;
}

async fn not_executed_waits_for_an_attempt_that_may_be_running(pair: &Pair) {
    let first = pair.doubted().await;
    let refused = pair.two.resolve(&first.id, first.token, &Finding::NotExecuted, false).await.unwrap();
    assert_eq!(refused, ResolveReply::MayBeRunning);
    // Neither does a short second attempt vouch for a first that may still be running.
    let resend = Claim { on_unknown: OnUnknown::Resend, abandon_after: MOMENT, ..again(&first) };
    assert!(matches!(pair.one.claim(&resend).await.unwrap(), ClaimReply::Granted { attempts: 2, .. }));
    pair.one.doubt(&resend, Reason::Reset, None).await.unwrap();
    let refused = pair.two.resolve(&first.id, resend.token, &Finding::NotExecuted, false).await.unwrap();
    assert_eq!(refused, ResolveReply::MayBeRunning);
    held(pair.duplicate(&first).await);
    let forced = pair.two.resolve(&first.id, resend.token, &Finding::NotExecuted, true).await.unwrap();
    assert_eq!(forced, ResolveReply::Resolved);
    assert_eq!(pair.record(&first.id).await, None);
}

async fn only_the_unknown_record_with_this_token_is_resolved(pair: &Pair) {
    let id = fresh_id();
    for finding in [executed("x"), Finding::NotExecuted] {
        let absent = pair.one.resolve(&id, Token::new(), &finding, true).await.unwrap();
        assert_eq!(absent, ResolveReply::Absent);
        for other in [pair.claimed().await, pair.completed("x").await] {
            let before = pair.existing(&other.id).await;
            let reply = pair.two.resolve(&other.id, other.token, &finding, true).await.unwrap();
            assert_eq!(reply, ResolveReply::Conflict);
            assert_eq!(pair.existing(&other.id).await, before);
        }
        let unknown = pair.doubted().await;
        let before = pair.existing(&unknown.id).await;
        let reply = pair.two.resolve(&unknown.id, Token::new(), &finding, true).await.unwrap();
        assert_eq!(reply, ResolveReply::Conflict);
        assert_eq!(pair.existing(&unknown.id).await, before);
    }
    assert_eq!(pair.record(&id).await, None);
}

async fn a_completed_record_is_forgotten(pair: &Pair) {
    let claim = pair.completed("x").await;
    assert_eq!(pair.two.forget(&claim.id, Token::new(), false).await.unwrap(), ForgetReply::Conflict);
    replayed(pair.duplicate(&claim).await);
    assert_eq!(pair.two.forget(&claim.id, claim.token, false).await.unwrap(), ForgetReply::Forgotten);
    assert_eq!(pair.record(&claim.id).await, None);
    assert_eq!(pair.two.forget(&claim.id, claim.token, false).await.unwrap(), ForgetReply::Absent);
    assert_eq!(pair.one.claim(&claim).await.unwrap(), ClaimReply::Lost);
    assert_eq!(pair.one.complete(&claim, &response("x"), LONG).await.unwrap(), CompleteReply::Lost);
    pair.granted(Claim { imprint: imprint(2), ..again(&claim) }).await;
}

async fn an_open_record_is_forgotten_only_by_force(pair: &Pair) {
    for open in [pair.claimed().await, pair.lapsed().await, pair.doubted().await] {
        let before = pair.existing(&open.id).await;
        assert_eq!(pair.two.forget(&open.id, open.token, false).await.unwrap(), ForgetReply::Conflict);
        assert_eq!(pair.two.forget(&open.id, Token::new(), true).await.unwrap(), ForgetReply::Conflict);
        assert_eq!(pair.existing(&open.id).await, before);
        assert_eq!(pair.two.forget(&open.id, open.token, true).await.unwrap(), ForgetReply::Forgotten);
        assert_eq!(pair.one.claim(&open).await.unwrap(), ClaimReply::Lost);
        pair.granted(again(&open)).await;
    }
}
