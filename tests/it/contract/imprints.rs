//! Imprints: which request is the same, and who may know what became of it.

use std::num::NonZeroU64;

use super::*;
use onceproxy::record::{Credentials, Differences, LookReply};

pub(super) async fn rules(pair: &Pair) {
    what_differs_or_cannot_be_compared_under_other_settings_is_another_request(pair).await;
    another_caller_is_told_nothing_and_takes_nothing_over(pair).await;
    the_same_caller_may_come_with_some_cookies_changed(pair).await;
    a_record_that_does_not_say_who_made_it_is_nobodys_who_must_show_it(pair).await;
}

async fn what_differs_or_cannot_be_compared_under_other_settings_is_another_request(pair: &Pair) {
    let policy = [1, 0, 0, 254];
    let first = imprint(1);
    let mut parts = [[1; 16]; RequestPart::ALL.len()];
    parts[RequestPart::Body as usize] = [2; 16];
    let other_body = Some(Arc::new(Details { parts: Parts::new(parts), credentials: None }));
    let of_body = RequestPart::ALL.map(|part| part == RequestPart::Body);
    let digest = first.fingerprint.digest;
    for (details, parts) in [(other_body, Some(of_body)), (None, None)] {
        let asking = Imprint { fingerprint: Fingerprint { policy, digest }, details };
        for first in [pair.claimed().await, pair.doubted().await, pair.completed("x").await] {
            let other = Claim { imprint: asking.clone(), on_unknown: OnUnknown::Resend, ..again(&first) };
            let ClaimReply::Taken(Taken::Reused(reused)) = pair.two.claim(&other).await.unwrap() else { panic!() };
            assert_eq!(reused.differences, Differences { same_policy: false, parts });
            let LookReply::Taken(Taken::Reused(looked)) = pair.two.look(&first.id, &asking).await.unwrap() else {
                panic!()
            };
            assert_eq!(looked, reused);
            assert_eq!(pair.existing(&first.id).await.imprint, first.imprint);
        }
    }
}

/// The imprint of the first request, with these credentials: hashes of two header fields, and of cookies.
fn from_caller(headers: [u64; 2], cookies: &[u64]) -> Imprint {
    let [one, two] = headers.map(NonZeroU64::new);
    let mut imprint = imprint(1);
    if let Some(details) = &mut imprint.details {
        Arc::make_mut(details).credentials = Some(Credentials::new([one, None, two], cookies.to_vec()));
    }
    imprint
}

async fn another_caller_is_told_nothing_and_takes_nothing_over(pair: &Pair) {
    let first = || Claim { imprint: from_caller([5, 0], &[11, 12]), ..claim_of(fresh_id()) };
    let strangers = [
        from_caller([6, 0], &[11, 12]),
        from_caller([0, 0], &[11, 12]),
        from_caller([5, 5], &[11, 12]),
        from_caller([5, 0], &[13]),
        from_caller([5, 0], &[]),
        // Nor is one told that its request is another.
        Imprint { fingerprint: imprint(2).fingerprint, ..from_caller([6, 0], &[11, 12]) },
    ];
    let done = pair.granted(first()).await;
    pair.one.complete(&done, &response("x"), LONG).await.unwrap();
    let doubted = pair.granted(first()).await;
    pair.one.doubt(&doubted, Reason::Reset, None).await.unwrap();
    for known in [pair.granted(first()).await, doubted, done] {
        let before = pair.existing(&known.id).await;
        assert_eq!(before.imprint, known.imprint);
        for stranger in &strangers {
            let claim = Claim { imprint: stranger.clone(), on_unknown: OnUnknown::Resend, ..again(&known) };
            assert_eq!(pair.two.claim(&claim).await.unwrap(), Taken::OtherCaller.into());
            assert_eq!(pair.two.look(&claim.id, stranger).await.unwrap(), Taken::OtherCaller.into());
            assert_eq!(pair.two.complete(&claim, &response("y"), LONG).await.unwrap(), CompleteReply::Lost);
        }
        assert_eq!(pair.existing(&known.id).await, before);
    }
}

async fn the_same_caller_may_come_with_some_cookies_changed(pair: &Pair) {
    let claim = Claim { imprint: from_caller([5, 0], &[11, 12, 13]), ..claim_of(fresh_id()) };
    let claim = pair.granted(claim).await;
    pair.one.complete(&claim, &response("x"), LONG).await.unwrap();
    let many: Vec<u64> = (13..13 + Credentials::MOST_COOKIES as u64).collect();
    for cookies in [&[11, 12, 13][..], &[12], &[1, 13, 99], &many] {
        let again = Claim { imprint: from_caller([5, 0], cookies), ..again(&claim) };
        assert_eq!(replayed(pair.two.claim(&again).await.unwrap()).response, response("x"));
    }
    // A route that does not compare callers does not ask.
    assert_eq!(
        replayed(pair.two.claim(&Claim { imprint: imprint(1), ..again(&claim) }).await.unwrap()).response,
        response("x")
    );
    // Cookies that only the second has do not count.
    let bare = pair.granted(Claim { imprint: from_caller([5, 0], &[]), ..claim_of(fresh_id()) }).await;
    pair.one.complete(&bare, &response("x"), LONG).await.unwrap();
    replayed(pair.two.claim(&Claim { imprint: from_caller([5, 0], &[1, 2]), ..again(&bare) }).await.unwrap());
}

async fn a_record_that_does_not_say_who_made_it_is_nobodys_who_must_show_it(pair: &Pair) {
    let claim = pair.completed("x").await;
    let asking = Claim { imprint: from_caller([0, 0], &[]), ..again(&claim) };
    assert_eq!(pair.two.claim(&asking).await.unwrap(), Taken::OtherCaller.into());
    assert_eq!(pair.two.look(&claim.id, &asking.imprint).await.unwrap(), Taken::OtherCaller.into());
}
