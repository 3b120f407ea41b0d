//! Step 5, claim: one store operation decides what becomes of a keyed request.
//!
//! Duplicates on this process never get here: they join a flight (see [`super::join`]).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::body;
use super::error::{Kind, Problem};
use super::fingerprint::differs::differs;
use super::flights::{Conclusion, Lead};
use super::lease::{Lease, Retries};
use super::notes::Notes;
use super::outage::{Outage, Turns};
use super::route::Route;
use crate::config::{self, OnStoreError};
use crate::record::{Claim, ClaimReply, Doubtful, Imprint, LookReply, OnUnknown, RecordId, Replay, Taken, Token};
use crate::store::{Store, StoreError, StoreErrorKind};

/// What the store said.
#[derive(Debug)]
pub enum Claimed {
    /// This attempt may send. The first key came quoted (`true`) or bare, if the record was taken over from unknown.
    Granted(Box<Lease>, Option<bool>),
    /// There is nothing to do but to answer.
    Concluded(Conclusion),
    /// The store did not say. The claim may be granted all the same, and must be handed back ([`give_up`]).
    GivenUp(Box<Lease>, Problem),
    /// Another process's attempt is running.
    Elsewhere,
}

/// The claim of a new attempt.
pub fn attempt(route: &config::Route, id: &RecordId, imprint: &Imprint, quoted: bool) -> Claim {
    Claim {
        id: id.clone(),
        token: Token::new(),
        imprint: imprint.clone(),
        quoted,
        lease: route.lease,
        abandon_after: route.abandon_after,
        on_unknown: match route.on_unknown {
            config::OnUnknown::Hold => OnUnknown::Hold,
            config::OnUnknown::Resend => OnUnknown::Resend,
        },
        unknown_retention: route.unknown_retention,
    }
}

/// Asks the store.
pub async fn claim(route: &Arc<Route>, store: &Arc<dyn Store>, claim: &Claim, notes: &Notes) -> Claimed {
    // The clock starts before the message does: the lease cannot have begun earlier.
    let begun = Instant::now();
    let reply = store.claim(claim).await;
    notes.stored("store claim", Some(begun), reply.as_ref().err().map(|error| error.kind.as_str()));
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => return failed(route, store, claim, begun, &error),
    };
    let id = &claim.id;
    match reply {
        ClaimReply::Granted { attempts, taken_over } => {
            if taken_over.is_some() {
                tracing::warn!(record = %id, attempts, "unknown outcome taken over, sending again");
            }
            let lease = Lease::granted(store.clone(), claim.clone(), route.clone(), begun);
            Claimed::Granted(Box::new(lease), taken_over)
        }
        ClaimReply::Taken(taken) => {
            // Once here, not at each look of those that wait.
            if let Taken::InProgress { other_policy, .. } = taken {
                count_policy(route, other_policy);
            }
            concluded(route, id, taken).map_or(Claimed::Elsewhere, Claimed::Concluded)
        }
        ClaimReply::Lost => Claimed::Concluded(unavailable(id).into()),
    }
}

fn failed(route: &Arc<Route>, store: &Arc<dyn Store>, claim: &Claim, begun: Instant, error: &StoreError) -> Claimed {
    let outage = matches!(error.kind, StoreErrorKind::Unreachable | StoreErrorKind::TimedOut);
    route.outage.warn(&claim.id, error, "claim failed");
    if outage && route.config.on_store_error == OnStoreError::Forward {
        let lease = Lease::unprotected(store.clone(), claim.clone(), route.clone(), begun);
        return Claimed::Granted(Box::new(lease), None);
    }
    let problem = unavailable(&claim.id);
    if error.may_have_run {
        let lease = Lease::granted(store.clone(), claim.clone(), route.clone(), begun);
        return Claimed::GivenUp(Box::new(lease), problem);
    }
    Claimed::Concluded(problem.into())
}

/// Hands back a grant that may still come: nothing was sent, and an unknown record would say otherwise.
///
/// A claim that waits in the buffers of a store which hangs gets its lease only when the store wakes, so this goes on
/// until the store answers. The first release that lands also keeps a claim away that comes after it.
pub async fn give_up(lease: &Lease, outage: &Outage) {
    let retries = tries_to_hand_back(lease.claim());
    if let Some(error) = hand_back(retries, &outage.turns, || lease.release()).await {
        outage.warn(&lease.claim().id, &error, "a claim that was given up could not be released");
    }
}

/// Tries to release until the store answers, and returns the last failure if it never does.
///
/// The first try waits for nobody: a store that is slow rather than gone carries out what it has no time to answer, and
/// the release must follow the claim before its lease is over. The repeats of thousands would only be more of the load that
/// made it slow, so they take turns.
async fn hand_back<T, F>(mut retries: Retries, turns: &Turns, release: impl Fn() -> F) -> Option<StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut last: Option<StoreError> = None;
    while retries.again().await {
        let turn = if last.is_some() { Some(turns.take().await) } else { None };
        let released = release().await;
        if let Some(turn) = turn {
            turn.end(released.as_ref().err().is_none_or(|error| !error.is_away()));
        }
        last = Some(released.err()?);
    }
    last
}

/// Seldom in the end: there is one of these for each request that was refused. But of the lease that begins when the store
/// wakes most must be left, or the next try comes to a record that has lapsed.
fn tries_to_hand_back(claim: &Claim) -> Retries {
    let patience = claim.lease.max(claim.abandon_after);
    let longest = (claim.lease / 3).clamp(Duration::from_millis(100), Duration::from_secs(5));
    Retries::until(Instant::now() + patience).with_pauses_up_to(longest)
}

/// The store did not answer, and so nothing was forwarded.
pub fn unavailable(id: &RecordId) -> Problem {
    let detail = "The store that guards this key did not answer, or refused. Nothing was forwarded, because a guess could \
                  execute the request twice.";
    Problem::new(Kind::StoreUnavailable, detail).about(id)
}

/// How a record answers a request that is not its owner; `None` while an attempt is running.
fn concluded(route: &Route, id: &RecordId, taken: Taken) -> Option<Conclusion> {
    match taken {
        Taken::Completed(replay) => Some(replayed(route, id, replay)),
        Taken::InProgress { .. } => None,
        Taken::Unknown(doubtful) => Some(unknown(route, id, &doubtful)),
        Taken::Reused(reused) => {
            let differs = differs(&route.config, &reused.differences);
            Some(Problem::reused(id, reused.fate, reused.original_status, differs).into())
        }
        Taken::OtherCaller => Some(Problem::other_caller(id).into()),
    }
}

fn replayed(route: &Route, id: &RecordId, mut replay: Replay) -> Conclusion {
    count_policy(route, replay.other_policy);
    let Some(body) = replay.response.body() else {
        return Problem::not_retained(id, replay.response.status()).into();
    };
    match body::to_replay(body.clone(), &route.buffered) {
        Ok(body) => replay.response = replay.response.with_body(body),
        Err(problem) => return problem.about(id).into(),
    }
    Conclusion::Replay { replay: Box::new(replay), waited: false }
}

fn unknown(route: &Route, id: &RecordId, doubtful: &Doubtful) -> Conclusion {
    count_policy(route, doubtful.other_policy);
    Problem::unknown(id, doubtful, route.config.on_unknown).into()
}

fn count_policy(route: &Route, other_policy: bool) {
    if other_policy {
        route.metrics.policy_changed.inc();
    }
}

/// What a look at a record says to a request that must not become its owner.
#[derive(Debug)]
pub enum Looked {
    /// There is no record: never claimed, released, or forgotten.
    Absent,
    /// An attempt is running.
    Running,
    /// There is nothing to do but to answer.
    Concluded(Conclusion),
}

/// Looks at a record, without claiming it.
pub async fn look(route: &Route, store: &Arc<dyn Store>, id: &RecordId, imprint: &Imprint, notes: &Notes) -> Looked {
    let began = notes.clock();
    let reply = store.look(id, imprint).await;
    notes.stored("store look", began, reply.as_ref().err().map(|error| error.kind.as_str()));
    match reply {
        Ok(LookReply::Absent) => Looked::Absent,
        Ok(LookReply::Taken(taken)) => concluded(route, id, taken).map_or(Looked::Running, Looked::Concluded),
        Err(error) => {
            route.outage.warn(id, &error, "look failed");
            Looked::Concluded(unavailable(id).into())
        }
    }
}

/// What the store says to a request that met a flight of another process with another imprint.
pub async fn ask(route: &Route, store: &Arc<dyn Store>, id: &RecordId, imprint: &Imprint, notes: &Notes) -> Conclusion {
    match look(route, store, id, imprint, notes).await {
        Looked::Concluded(conclusion) => conclusion,
        Looked::Absent => Problem::ended_without_record(id).into(),
        Looked::Running => Problem::in_progress(id).into(),
    }
}

/// Waits for another process's attempt, for as long as anyone here waits for it.
pub async fn elsewhere(route: &Route, store: &Arc<dyn Store>, lead: &mut Lead, imprint: &Imprint) -> Conclusion {
    let id = &lead.id().clone();
    lead.elsewhere();
    // Watched before the look that decides to wait, so that no change falls in between.
    let mut watch = match store.watch(id).await {
        Ok(watch) => watch,
        Err(error) => {
            route.outage.warn(id, &error, "watch failed");
            return unavailable(id).into();
        }
    };
    loop {
        // One of a row that has no end in sight, and nobody's own.
        match look(route, store, id, imprint, &Notes::none()).await {
            Looked::Running => {}
            Looked::Concluded(Conclusion::Replay { replay, .. }) => return Conclusion::Replay { replay, waited: true },
            Looked::Concluded(conclusion) => return conclusion,
            // A joiner never becomes an owner, but its client may come again at once.
            Looked::Absent => return Problem::ended_without_record(id).into(),
        }
        tokio::select! {
            () = watch.changed() => {}
            () = lead.deserted() => {
                // Somebody may have come in the meantime, and is owed the wait.
                if lead.leave_if_deserted() {
                    return Problem::in_progress(id).into();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::JoinSet;

    use super::*;

    /// The store answers nobody for so long; then each answer takes nearly as long as is waited for one.
    const HUNG: Duration = Duration::from_secs(45);
    const TIMEOUT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn thousands_hand_back_at_once_and_then_in_turns() {
        let (outage, asked) = (Arc::new(Outage::default()), Arc::new(AtomicUsize::new(0)));
        let start = Instant::now();
        let mut all = JoinSet::new();
        for _ in 0..4000 {
            let (outage, asked) = (outage.clone(), asked.clone());
            all.spawn(async move {
                let release = || async {
                    asked.fetch_add(1, Ordering::Relaxed);
                    let is_awake = start.elapsed() >= HUNG;
                    tokio::time::sleep(if is_awake { TIMEOUT - Duration::from_millis(100) } else { TIMEOUT }).await;
                    let away = || StoreError::new(StoreErrorKind::TimedOut, true, "no answer");
                    if is_awake { Ok(()) } else { Err(away()) }
                };
                let retries = Retries::until(start + 10 * HUNG).with_pauses_up_to(Duration::from_secs(3));
                hand_back(retries, &outage.turns, release).await
            });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(asked.load(Ordering::Relaxed), 4000, "nobody waits with the first try");
        tokio::time::sleep(HUNG - Duration::from_millis(100)).await;
        let repeats = asked.load(Ordering::Relaxed) - 4000;
        assert!(repeats <= 32 * 45, "{repeats} repeats");
        while let Some(failure) = all.join_next().await {
            assert!(failure.unwrap().is_none(), "one was never handed back");
        }
        assert!(start.elapsed() < HUNG + Duration::from_secs(10), "a lease would be over: {:?}", start.elapsed());
    }

    /// However long the store hung: the lease begins when it wakes.
    #[tokio::test(start_paused = true)]
    async fn a_grant_is_handed_back_before_most_of_its_lease_is_over() {
        for lease in [300, 2000, 10_000, 60_000].map(Duration::from_millis) {
            let claim = Claim {
                id: RecordId::new("r".into(), [7; 16]),
                token: Token::new(),
                imprint: crate::record::Fingerprint { policy: [0; 4], digest: [1; 32] }.into(),
                quoted: false,
                lease,
                abandon_after: Duration::from_secs(300),
                on_unknown: OnUnknown::Hold,
                unknown_retention: None,
            };
            let start = Instant::now();
            let mut retries = tries_to_hand_back(&claim);
            let mut last = start;
            while retries.again().await {
                // The clock of the tests goes in whole milliseconds.
                let longest = lease.div_f64(3.0).min(Duration::from_secs(5)) + Duration::from_millis(1);
                assert!(last.elapsed() <= longest, "{lease:?}");
                last = Instant::now();
            }
            assert!(start.elapsed() >= Duration::from_secs(300), "{lease:?}");
        }
    }
}
