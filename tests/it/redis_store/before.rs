//! Records of format version 1, which say nothing of their request but the fingerprint.

use onceproxy::record::{Reason, ReleaseReply, RenewReply, ResolveReply, State};

use super::*;

/// Makes of a record without details what version 1 wrote.
fn make_old(server: &RedisServer, claim: &Claim) {
    assert_eq!(claim.imprint.details, None);
    server.command(&["SETRANGE", &key_of(&claim.id), "0", "\u{1}"]);
}

/// A request of which all is known, under other settings.
fn changed(claim: &Claim) -> Claim {
    contract::under_other_settings(&again(claim))
}

async fn assert_not_compared(store: &dyn Store, claim: &Claim) {
    for claim in [changed(claim), Claim { on_unknown: OnUnknown::Resend, ..changed(claim) }] {
        match store.claim(&claim).await.unwrap() {
            ClaimReply::Taken(Taken::Reused(reused)) => assert_eq!(reused.differences.parts, None),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn are_read_and_never_compared_with_requests_under_other_settings() {
    let server = RedisServer::start(&[]);
    let process = Process::ready(&config(server.port())).await;
    let store = &*process.store;
    let done = completed(store, &response(9)).await;
    let large = completed(store, &response(100_000)).await;
    for (known, size) in [(&done, 9), (&large, 100_000)] {
        make_old(&server, known);
        assert_not_compared(store, known).await;
        match store.claim(&again(known)).await.unwrap() {
            ClaimReply::Taken(Taken::Completed(replay)) => assert_eq!(replay.response, response(size)),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn go_on_with_their_attempts_and_their_operators() {
    let server = RedisServer::start(&[]);
    let process = Process::ready(&config(server.port())).await;
    let store = &*process.store;
    let claimed = async || {
        let claim = claim();
        assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
        make_old(&server, &claim);
        claim
    };
    let renewed = claimed().await;
    // The short way is for records of this version; this one says that the lease must be asked for again.
    assert!(matches!(store.renew(&renewed).await.unwrap(), RenewReply::Extended | RenewReply::Lapsed));
    let answered = claimed().await;
    assert_eq!(store.complete(&answered, &response(1), DAY).await.unwrap(), CompleteReply::Stored);
    let released = claimed().await;
    assert_eq!(store.release(&released).await.unwrap(), ReleaseReply::Absent);
    let doubted = claimed().await;
    store.doubt(&doubted, Reason::Reset, Some(&response(5))).await.unwrap();
    assert_not_compared(store, &doubted).await;
    // Taken over by the same request, and handed back: what it was is what it is again.
    let before = store.get(&doubted.id).await.unwrap();
    let resend = Claim { on_unknown: OnUnknown::Resend, ..again(&doubted) };
    let granted = ClaimReply::Granted { attempts: 2, taken_over: Some(false) };
    assert_eq!(store.claim(&resend).await.unwrap(), granted);
    assert_eq!(store.release(&resend).await.unwrap(), ReleaseReply::UnknownAgain);
    assert_eq!(store.get(&doubted.id).await.unwrap(), before);
    let finding = onceproxy::record::Finding::Executed { response: response(3), retention: DAY };
    assert_eq!(store.resolve(&doubted.id, doubted.token, &finding, false).await.unwrap(), ResolveReply::Resolved);
    let record = store.get(&doubted.id).await.unwrap().unwrap();
    assert!(matches!(record.state, State::Completed { .. }) && record.imprint == doubted.imprint, "{record:?}");
}

#[tokio::test]
async fn with_a_block_are_damaged() {
    let server = RedisServer::start(&[]);
    let process = Process::ready(&config(server.port())).await;
    let claim = Claim { imprint: changed(&claim()).imprint, ..claim() };
    assert_eq!(process.store.claim(&claim).await.unwrap(), GRANTED);
    server.command(&["SETRANGE", &key_of(&claim.id), "0", "\u{1}"]);
    let error = process.store.claim(&again(&claim)).await.unwrap_err();
    assert_eq!(error.kind, onceproxy::store::StoreErrorKind::Unreadable);
}
