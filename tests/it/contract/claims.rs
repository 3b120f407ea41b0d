//! Claiming: who is granted the key, and what everyone else is told.

use super::*;
use onceproxy::record::{Differences, Fate, LookReply, Reused};

pub(super) async fn rules(pair: &Pair) {
    the_first_is_granted_and_its_claim_is_kept(pair).await;
    a_second_is_told_that_it_is_in_progress(pair).await;
    another_request_under_the_key_is_told_so_in_every_state(pair).await;
    the_same_request_under_other_settings_is_the_same(pair).await;
    a_repeated_claim_recognises_itself(pair).await;
    a_completed_record_is_replayed_with_its_age(pair).await;
    an_unknown_record_is_held(pair).await;
    a_takeover_is_granted_where_the_upstream_honours_keys(pair).await;
    a_takeover_does_not_adopt_another_request(pair).await;
    a_look_never_grants(pair).await;
    one_of_many_at_once_is_granted(pair).await;
    one_of_many_takeovers_at_once_is_granted(pair).await;
}

async fn the_first_is_granted_and_its_claim_is_kept(pair: &Pair) {
    let lease = Duration::from_secs(77);
    let unknown_retention = Some(Duration::from_secs(99));
    let claim = Claim { quoted: true, lease, unknown_retention, ..claim_of(fresh_id()) };
    pair.granted(claim.clone()).await;
    let record = pair.existing(&claim.id).await;
    let State::Claimed { lease_until } = record.state else { panic!("{record:?}") };
    assert_eq!(lease_until.since(record.claimed_at), lease);
    assert_eq!(record.abandon_at.since(record.claimed_at), claim.abandon_after);
    assert_eq!((record.token, record.imprint), (claim.token, claim.imprint));
    assert_eq!((record.attempts, record.quoted, record.prior), (1, true, None));
    assert_eq!(record.unknown_retention, unknown_retention);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let hour = 3_600_000;
    let at = u128::from(record.claimed_at.0);
    assert!(at > now - hour && at < now + hour, "claimed_at is {at}, not milliseconds since the epoch");
}

async fn a_second_is_told_that_it_is_in_progress(pair: &Pair) {
    let claim = pair.claimed().await;
    for _ in 0..2 {
        let ClaimReply::Taken(Taken::InProgress { lease_left, other_policy }) = pair.duplicate(&claim).await else {
            panic!()
        };
        assert!(lease_left > Duration::ZERO && lease_left <= claim.lease && !other_policy, "{lease_left:?}");
    }
    assert_eq!(pair.existing(&claim.id).await.token, claim.token);
}

async fn another_request_under_the_key_is_told_so_in_every_state(pair: &Pair) {
    let differences = Differences { same_policy: true, parts: Some([true; RequestPart::ALL.len()]) };
    for (first, fate, original_status) in [
        (pair.claimed().await, Fate::Running, None),
        (pair.lapsed().await, Fate::Unknown, None),
        (pair.doubted().await, Fate::Unknown, Some(201)),
        (pair.completed("x").await, Fate::Answered, Some(201)),
    ] {
        let reused = Taken::Reused(Reused { fate, original_status, differences });
        for on_unknown in [OnUnknown::Hold, OnUnknown::Resend] {
            let other = Claim { imprint: imprint(2), on_unknown, ..again(&first) };
            assert_eq!(pair.two.claim(&other).await.unwrap(), reused.clone().into());
            assert_eq!(pair.two.look(&other.id, &other.imprint).await.unwrap(), reused.clone().into());
        }
        let own = Claim { imprint: imprint(2), ..first };
        assert_eq!(pair.two.claim(&own).await.unwrap(), reused.into());
    }
}

async fn the_same_request_under_other_settings_is_the_same(pair: &Pair) {
    let changed = |claim: &Claim| Claim { imprint: other_policy(), ..again(claim) };
    let running = pair.two.claim(&changed(&pair.claimed().await)).await.unwrap();
    assert!(matches!(running, ClaimReply::Taken(Taken::InProgress { other_policy: true, .. })), "{running:?}");
    let done = pair.two.claim(&changed(&pair.completed("x").await)).await.unwrap();
    assert!(replayed(done).other_policy);
    let doubted = pair.doubted().await;
    assert!(held(pair.two.claim(&changed(&doubted)).await.unwrap()).other_policy);
    assert!(!held(pair.duplicate(&doubted).await).other_policy);
    let resend = Claim { on_unknown: OnUnknown::Resend, ..changed(&doubted) };
    let granted = ClaimReply::Granted { attempts: 2, taken_over: Some(false) };
    assert_eq!(pair.two.claim(&resend).await.unwrap(), granted);
    assert_eq!(pair.existing(&doubted.id).await.imprint, other_policy());
}

async fn a_repeated_claim_recognises_itself(pair: &Pair) {
    let claim = pair.claimed().await;
    let granted = ClaimReply::Granted { attempts: 1, taken_over: None };
    assert_eq!(pair.two.claim(&claim).await.unwrap(), granted);
    // Also after its lease, unless someone else took the key over: it gets a fresh lease.
    let lapsed = pair.lapsed().await;
    let abandon_at = pair.existing(&lapsed.id).await.abandon_at;
    let repeated = Claim { lease: LONG, ..lapsed };
    assert_eq!(pair.two.claim(&repeated).await.unwrap(), granted);
    let record = pair.existing(&repeated.id).await;
    assert!(matches!(record.state, State::Claimed { .. }), "{record:?}");
    assert!(record.abandon_at >= abandon_at);
    // Not after it doubted its own outcome, and not after it completed.
    let doubted = pair.doubted().await;
    let resend = Claim { on_unknown: OnUnknown::Resend, ..doubted };
    held(pair.two.claim(&resend).await.unwrap());
    let completed = pair.completed("mine").await;
    assert_eq!(replayed(pair.two.claim(&completed).await.unwrap()).response, response("mine"));
}

async fn a_completed_record_is_replayed_with_its_age(pair: &Pair) {
    let claim = pair.completed("done").await;
    let replay = replayed(pair.duplicate(&claim).await);
    assert_eq!(replay.response, response("done"));
    assert!(replay.age + replay.ttl == LONG && !replay.other_policy, "{replay:?}");
    let LookReply::Taken(Taken::Completed(looked)) = pair.two.look(&claim.id, &claim.imprint).await.unwrap() else {
        panic!()
    };
    assert_eq!(looked.response, replay.response);
    let resend = Claim { on_unknown: OnUnknown::Resend, ..again(&claim) };
    assert_eq!(replayed(pair.two.claim(&resend).await.unwrap()).response, replay.response);
}

async fn an_unknown_record_is_held(pair: &Pair) {
    let lapsed = pair.lapsed().await;
    let record = pair.existing(&lapsed.id).await;
    let doubtful = held(pair.duplicate(&lapsed).await);
    assert_eq!((doubtful.reason, doubtful.original_status), (Reason::Lapsed, None));
    assert_eq!(doubtful.since.since(record.claimed_at), lapsed.lease, "it is unknown since its lease was over");
    let doubted = pair.doubted().await;
    let doubtful = held(pair.duplicate(&doubted).await);
    assert_eq!((doubtful.reason, doubtful.original_status), (Reason::Status, Some(201)));
}

async fn a_takeover_is_granted_where_the_upstream_honours_keys(pair: &Pair) {
    let first = pair.granted(Claim { quoted: true, ..claim_of(fresh_id()) }).await;
    pair.one.doubt(&first, Reason::Timeout, None).await.unwrap();
    let unknown = pair.existing(&first.id).await;
    let resend = Claim { on_unknown: OnUnknown::Resend, quoted: false, abandon_after: MOMENT, ..again(&first) };
    let granted = ClaimReply::Granted { attempts: 2, taken_over: Some(true) };
    assert_eq!(pair.two.claim(&resend).await.unwrap(), granted);
    assert_eq!(pair.one.claim(&resend).await.unwrap(), granted, "a lost reply repeated");
    let record = pair.existing(&first.id).await;
    assert_eq!((record.token, record.attempts, record.quoted), (resend.token, 2, true));
    assert_eq!(record.prior.as_deref(), Some(&unknown));
    assert_eq!(record.abandon_at, unknown.abandon_at, "the first attempt may still be running");
    let third = Claim { on_unknown: OnUnknown::Resend, ..again(&first) };
    assert!(matches!(pair.two.claim(&third).await.unwrap(), ClaimReply::Taken(Taken::InProgress { .. })));
    assert!(
        matches!(pair.one.claim(&first).await.unwrap(), ClaimReply::Taken(Taken::InProgress { .. })),
        "the first owner is a stranger now"
    );
    pair.two.doubt(&resend, Reason::Reset, None).await.unwrap();
    let granted = ClaimReply::Granted { attempts: 3, taken_over: Some(true) };
    assert_eq!(pair.two.claim(&third).await.unwrap(), granted);
    let prior = pair.existing(&first.id).await.prior.expect("a takeover remembers what it took over");
    assert_eq!((prior.token, prior.attempts, prior.prior), (resend.token, 2, None));
}

async fn a_takeover_does_not_adopt_another_request(pair: &Pair) {
    let lapsed = pair.lapsed().await;
    let resend = Claim { on_unknown: OnUnknown::Resend, ..again(&lapsed) };
    let granted = ClaimReply::Granted { attempts: 2, taken_over: Some(false) };
    assert_eq!(pair.two.claim(&resend).await.unwrap(), granted);
    let other = Claim { imprint: imprint(2), ..again(&resend) };
    let reply = pair.one.claim(&other).await.unwrap();
    assert!(matches!(reply, ClaimReply::Taken(Taken::Reused(_))), "{reply:?}");
}

async fn a_look_never_grants(pair: &Pair) {
    let id = fresh_id();
    for _ in 0..2 {
        assert_eq!(pair.one.look(&id, &imprint(1)).await.unwrap(), LookReply::Absent);
    }
    assert_eq!(pair.record(&id).await, None);
    let claim = pair.claimed().await;
    let running = pair.two.look(&claim.id, &other_policy()).await.unwrap();
    let LookReply::Taken(Taken::InProgress { lease_left, other_policy: true }) = running else { panic!("{running:?}") };
    assert!(lease_left <= claim.lease);
    let doubted = pair.doubted().await;
    let LookReply::Taken(Taken::Unknown(doubtful)) = pair.two.look(&doubted.id, &doubted.imprint).await.unwrap() else {
        panic!()
    };
    assert_eq!((doubtful.reason, doubtful.original_status), (Reason::Status, Some(201)));
    let short = pair.granted(Claim { lease: MOMENT, ..claim_of(fresh_id()) }).await;
    until("a look finds the lease over", async || {
        matches!(pair.two.look(&short.id, &short.imprint).await.unwrap(), LookReply::Taken(Taken::Unknown(_)))
            .then_some(())
    })
    .await;
}

async fn one_of_many_at_once_is_granted(pair: &Pair) {
    for _ in 0..5 {
        let first = claim_of(fresh_id());
        assert_eq!(granted_at_once(pair, &first).await, 1);
    }
}

async fn one_of_many_takeovers_at_once_is_granted(pair: &Pair) {
    let unknown = pair.doubted().await;
    assert_eq!(granted_at_once(pair, &Claim { on_unknown: OnUnknown::Resend, ..unknown }).await, 1);
}

async fn granted_at_once(pair: &Pair, claim: &Claim) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..40 {
        let store = Arc::clone(if n % 2 == 0 { &pair.one } else { &pair.two });
        let claim = again(claim);
        tasks.spawn(async move { matches!(store.claim(&claim).await.unwrap(), ClaimReply::Granted { .. }) });
    }
    tasks.join_all().await.into_iter().filter(|granted| *granted).count()
}
