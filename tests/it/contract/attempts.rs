//! What the owner of a claim does: renew, complete, release, doubt; and what it finds when it comes too late.

use super::*;
use onceproxy::record::{DoubtReply, ReleaseReply, RenewReply};

pub(super) async fn rules(pair: &Pair) {
    a_renewal_extends_a_living_claim(pair).await;
    a_renewal_never_revives(pair).await;
    a_renewal_writes_a_forgotten_claim_anew(pair).await;
    the_owner_completes_and_a_completed_record_never_changes(pair).await;
    a_late_completion_settles_an_unknown_record(pair).await;
    a_completion_of_a_forgotten_claim_is_written(pair).await;
    a_stranger_changes_nothing(pair).await;
    a_completion_never_brings_the_answer_to_another_request(pair).await;
    a_release_frees_the_key_but_not_for_its_token(pair).await;
    a_release_may_come_before_its_claim(pair).await;
    a_release_after_a_send_is_refused(pair).await;
    a_released_takeover_is_unknown_again(pair).await;
    a_takeover_that_lapsed_may_still_be_released(pair).await;
    a_doubt_is_held_with_its_reason_and_answer(pair).await;
    a_doubt_of_a_forgotten_claim_is_written(pair).await;
}

async fn a_renewal_extends_a_living_claim(pair: &Pair) {
    let claim = pair.claimed().await;
    let longer = Claim { lease: 2 * LONG, ..claim.clone() };
    assert_eq!(pair.two.renew(&longer).await.unwrap(), RenewReply::Extended);
    let record = pair.existing(&claim.id).await;
    let State::Claimed { lease_until } = record.state else { panic!("{record:?}") };
    assert!(lease_until.since(record.claimed_at) >= 2 * LONG);
    assert_eq!(record.abandon_at.since(record.claimed_at), claim.abandon_after, "a renewal does not listen for longer");
}

async fn a_renewal_never_revives(pair: &Pair) {
    for unknown in [pair.lapsed().await, pair.doubted().await] {
        let renewal = Claim { lease: LONG, ..unknown };
        assert_eq!(pair.one.renew(&renewal).await.unwrap(), RenewReply::Lapsed);
        assert!(matches!(pair.existing(&renewal.id).await.state, State::Unknown { .. }));
    }
    let completed = pair.completed("x").await;
    assert_eq!(pair.one.renew(&completed).await.unwrap(), RenewReply::Lost);
    replayed(pair.duplicate(&completed).await);
}

async fn a_renewal_writes_a_forgotten_claim_anew(pair: &Pair) {
    let claim = claim_of(fresh_id());
    assert_eq!(pair.one.renew(&claim).await.unwrap(), RenewReply::Rewritten);
    assert!(matches!(pair.duplicate(&claim).await, ClaimReply::Taken(Taken::InProgress { .. })));
    assert_eq!(pair.one.renew(&claim).await.unwrap(), RenewReply::Extended);
    assert_eq!(pair.one.complete(&claim, &response("x"), LONG).await.unwrap(), CompleteReply::Stored);
}

async fn the_owner_completes_and_a_completed_record_never_changes(pair: &Pair) {
    let claim = pair.completed("first").await;
    for late in [claim.clone(), again(&claim)] {
        let reply = pair.two.complete(&late, &response("second"), 2 * LONG).await.unwrap();
        let CompleteReply::Already(replay) = reply else { panic!("{reply:?}") };
        assert_eq!(replay.response, response("first"));
        assert!(replay.age + replay.ttl == LONG);
        assert_eq!(pair.two.doubt(&late, Reason::Reset, None).await.unwrap(), DoubtReply::Lost);
        assert_eq!(pair.two.release(&late).await.unwrap(), ReleaseReply::Lost);
        assert_eq!(pair.two.renew(&late).await.unwrap(), RenewReply::Lost);
    }
    let record = pair.existing(&claim.id).await;
    let State::Completed { completed_at, expires_at, .. } = record.state else { panic!("{record:?}") };
    assert_eq!(expires_at.since(completed_at), LONG);
    assert_eq!(replayed(pair.duplicate(&claim).await).response, response("first"));
}

async fn a_late_completion_settles_an_unknown_record(pair: &Pair) {
    for unknown in [pair.lapsed().await, pair.doubted().await] {
        assert_eq!(pair.two.complete(&unknown, &response("late"), LONG).await.unwrap(), CompleteReply::Stored);
        assert_eq!(replayed(pair.duplicate(&unknown).await).response, response("late"));
    }
}

async fn a_completion_of_a_forgotten_claim_is_written(pair: &Pair) {
    let claim = Claim { quoted: true, ..claim_of(fresh_id()) };
    assert_eq!(pair.one.complete(&claim, &response("proof"), LONG).await.unwrap(), CompleteReply::Rewritten);
    assert_eq!(replayed(pair.duplicate(&claim).await).response, response("proof"));
    let record = pair.existing(&claim.id).await;
    assert_eq!((record.token, record.attempts, record.quoted), (claim.token, 1, true));
    let again = pair.one.complete(&claim, &response("proof"), LONG).await.unwrap();
    assert!(matches!(again, CompleteReply::Already(_)), "{again:?}");
}

async fn a_stranger_changes_nothing(pair: &Pair) {
    for owned in [pair.claimed().await, pair.lapsed().await, pair.doubted().await] {
        let before = pair.existing(&owned.id).await;
        let stranger = again(&owned);
        assert_eq!(pair.two.renew(&stranger).await.unwrap(), RenewReply::Lost);
        assert_eq!(pair.two.complete(&stranger, &response("x"), LONG).await.unwrap(), CompleteReply::Lost);
        assert_eq!(pair.two.doubt(&stranger, Reason::Reset, None).await.unwrap(), DoubtReply::Lost);
        assert_eq!(pair.two.release(&stranger).await.unwrap(), ReleaseReply::Lost);
        assert_eq!(pair.existing(&owned.id).await, before);
    }
}

async fn a_completion_never_brings_the_answer_to_another_request(pair: &Pair) {
    let done = pair.completed("one").await;
    let late = Claim { imprint: imprint(2), ..again(&done) };
    // The store had forgotten its claim, and another request got the key.
    assert_eq!(pair.two.complete(&late, &response("other"), LONG).await.unwrap(), CompleteReply::Lost);
    assert_eq!(replayed(pair.duplicate(&done).await).response, response("one"));
}

async fn a_release_frees_the_key_but_not_for_its_token(pair: &Pair) {
    for owned in [pair.claimed().await, pair.lapsed().await] {
        assert_eq!(pair.two.release(&owned).await.unwrap(), ReleaseReply::Absent);
        assert_eq!(pair.record(&owned.id).await, None);
        assert_eq!(pair.one.release(&owned).await.unwrap(), ReleaseReply::Lost);
        assert_eq!(pair.one.claim(&owned).await.unwrap(), ClaimReply::Lost);
        assert_eq!(pair.one.renew(&owned).await.unwrap(), RenewReply::Lost);
        assert_eq!(pair.one.complete(&owned, &response("x"), LONG).await.unwrap(), CompleteReply::Lost);
        assert_eq!(pair.one.doubt(&owned, Reason::Reset, None).await.unwrap(), DoubtReply::Lost);
        assert_eq!(pair.record(&owned.id).await, None);
        // Another attempt, even of another request, finds the key as if it had never been used.
        let next = Claim { imprint: imprint(2), ..again(&owned) };
        pair.granted(next.clone()).await;
        assert!(matches!(
            pair.two.claim(&Claim { token: owned.token, ..next.clone() }).await.unwrap(),
            ClaimReply::Taken(Taken::InProgress { .. })
        ));
        assert_eq!(pair.existing(&owned.id).await.token, next.token);
    }
}

async fn a_release_may_come_before_its_claim(pair: &Pair) {
    let claim = claim_of(fresh_id());
    assert_eq!(pair.one.release(&claim).await.unwrap(), ReleaseReply::Lost);
    assert_eq!(pair.two.claim(&claim).await.unwrap(), ClaimReply::Lost);
    assert_eq!(pair.record(&claim.id).await, None);
}

async fn a_release_after_a_send_is_refused(pair: &Pair) {
    let doubted = pair.doubted().await;
    let before = pair.existing(&doubted.id).await;
    assert_eq!(pair.two.release(&doubted).await.unwrap(), ReleaseReply::Lost);
    assert_eq!(pair.existing(&doubted.id).await, before);
}

async fn a_released_takeover_is_unknown_again(pair: &Pair) {
    let first = pair.doubted().await;
    let before = pair.existing(&first.id).await;
    for _ in 0..2 {
        let resend = Claim { on_unknown: OnUnknown::Resend, imprint: other_policy(), ..again(&first) };
        let granted = ClaimReply::Granted { attempts: 2, taken_over: Some(false) };
        assert_eq!(pair.two.claim(&resend).await.unwrap(), granted);
        assert_eq!(pair.one.release(&resend).await.unwrap(), ReleaseReply::UnknownAgain);
        assert_eq!(
            pair.existing(&first.id).await,
            before,
            "reason, answer, fingerprint and token are those of the first"
        );
        held(pair.one.claim(&resend).await.unwrap());
        assert_eq!(pair.one.release(&resend).await.unwrap(), ReleaseReply::Lost);
    }
    assert_eq!(pair.one.complete(&first, &response("late"), LONG).await.unwrap(), CompleteReply::Stored);
}

async fn a_takeover_that_lapsed_may_still_be_released(pair: &Pair) {
    let first = pair.doubted().await;
    let before = pair.existing(&first.id).await;
    let resend = Claim { on_unknown: OnUnknown::Resend, lease: MOMENT, ..again(&first) };
    assert!(matches!(pair.two.claim(&resend).await.unwrap(), ClaimReply::Granted { attempts: 2, .. }));
    pair.until_unknown(&first.id).await;
    assert_eq!(pair.one.release(&resend).await.unwrap(), ReleaseReply::UnknownAgain);
    assert_eq!(pair.existing(&first.id).await, before);
}

async fn a_doubt_is_held_with_its_reason_and_answer(pair: &Pair) {
    for reason in Reason::ALL {
        let claim = pair.claimed().await;
        assert_eq!(pair.two.doubt(&claim, reason, Some(&response("odd"))).await.unwrap(), DoubtReply::Held);
        let record = pair.existing(&claim.id).await;
        let State::Unknown { since, reason: kept, expires_at, response: answer } = &record.state else { panic!() };
        assert_eq!((*kept, *expires_at, answer), (reason, None, &Some(response("odd"))));
        assert!(*since >= record.claimed_at);
        assert_eq!(held(pair.duplicate(&claim).await).reason, reason);
        assert_eq!(pair.one.doubt(&claim, Reason::Drained, None).await.unwrap(), DoubtReply::Held);
        assert_eq!(held(pair.duplicate(&claim).await).since, *since, "a second doubt does not make it younger");
    }
    let lapsed = pair.lapsed().await;
    assert_eq!(pair.two.doubt(&lapsed, Reason::Reset, None).await.unwrap(), DoubtReply::Held);
    assert_eq!(held(pair.duplicate(&lapsed).await).reason, Reason::Reset);
    assert_eq!(pair.one.release(&lapsed).await.unwrap(), ReleaseReply::Lost);
}

async fn a_doubt_of_a_forgotten_claim_is_written(pair: &Pair) {
    let claim = claim_of(fresh_id());
    assert_eq!(pair.one.doubt(&claim, Reason::Panic, None).await.unwrap(), DoubtReply::Rewritten);
    assert_eq!(held(pair.duplicate(&claim).await).reason, Reason::Panic);
}
