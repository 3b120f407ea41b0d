//! What time does to records: completed ones become absent, unknown ones only where a setting says so.

use super::*;
use onceproxy::record::LookReply;

pub(super) async fn rules(pair: &Pair) {
    a_completed_record_is_kept_for_its_retention(pair).await;
    an_expired_record_is_absent_for_every_operation(pair).await;
    an_unknown_record_expires_only_by_setting(pair).await;
    an_attempt_that_may_be_running_is_never_forgotten(pair).await;
}

async fn expired(pair: &Pair) -> Claim {
    let claim = pair.claimed().await;
    assert_eq!(pair.one.complete(&claim, &response("x"), MOMENT).await.unwrap(), CompleteReply::Stored);
    pair.until_absent(&claim.id).await;
    claim
}

async fn a_completed_record_is_kept_for_its_retention(pair: &Pair) {
    let claim = pair.claimed().await;
    let retention = Duration::from_secs(100);
    assert_eq!(pair.one.complete(&claim, &response("x"), retention).await.unwrap(), CompleteReply::Stored);
    let replay = replayed(pair.duplicate(&claim).await);
    assert!(replay.age + replay.ttl == retention, "{replay:?}");
    let record = pair.existing(&claim.id).await;
    let State::Completed { completed_at, expires_at, .. } = record.state else { panic!("{record:?}") };
    assert_eq!(expires_at.since(completed_at), retention);
}

async fn an_expired_record_is_absent_for_every_operation(pair: &Pair) {
    let claim = expired(pair).await;
    assert_eq!(pair.two.look(&claim.id, &claim.imprint).await.unwrap(), LookReply::Absent);
    // Even for another request: what was, is gone.
    pair.granted(Claim { imprint: imprint(2), ..again(&claim) }).await;
    let claim = expired(pair).await;
    let forgotten = pair.two.forget(&claim.id, claim.token, true).await.unwrap();
    assert_eq!(forgotten, onceproxy::record::ForgetReply::Absent);
    let claim = expired(pair).await;
    assert_eq!(pair.one.complete(&claim, &response("late"), LONG).await.unwrap(), CompleteReply::Rewritten);
    assert_eq!(replayed(pair.duplicate(&claim).await).response, response("late"));
}

async fn an_unknown_record_expires_only_by_setting(pair: &Pair) {
    let short = Claim { lease: MOMENT, abandon_after: MOMENT, ..claim_of(fresh_id()) };
    let kept = pair.granted(short.clone()).await;
    let freed = Claim { unknown_retention: Some(MOMENT), ..claim_of(fresh_id()) };
    let freed = pair.granted(Claim { lease: MOMENT, abandon_after: MOMENT, ..freed }).await;
    pair.until_absent(&freed.id).await;
    pair.granted(again(&freed)).await;
    let record = pair.until_unknown(&kept.id).await;
    assert_eq!(record.expires_at(), None);
}

async fn an_attempt_that_may_be_running_is_never_forgotten(pair: &Pair) {
    let claim = Claim { unknown_retention: Some(MOMENT), lease: MOMENT, ..claim_of(fresh_id()) };
    pair.granted(claim.clone()).await;
    let record = pair.until_unknown(&claim.id).await;
    assert_eq!(record.expires_at(), Some(record.abandon_at));
    // Once the attempt itself has said how it ended, the age alone counts.
    pair.one.doubt(&claim, Reason::Reset, None).await.unwrap();
    pair.until_absent(&claim.id).await;
}
