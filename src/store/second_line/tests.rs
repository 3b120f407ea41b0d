//! Two memory stores as the two lines: every operation may fail, happen without an answer, or be the last that a process
//! does, and the first line may be emptied at any moment. Whatever happens, a key is executed once.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::metrics::Metrics;
use crate::record::Fingerprint;
use crate::record::{OnUnknown, Taken};
use crate::store::{StoreErrorKind, memory};

/// What happens to one operation of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    Refused,
    /// It happens, and the answer is lost.
    Unheard,
    /// It does not happen, and whoever asked is no more.
    Crashed,
    /// It happens, and whoever asked is no more.
    CrashedAfter,
    /// The line forgets everything, then answers.
    Emptied,
}

/// A memory store with a plan.
struct Shaky {
    inner: Mutex<Arc<dyn Store>>,
    plan: Mutex<VecDeque<Fate>>,
    forgets: bool,
}

impl Shaky {
    fn new(plan: &[Fate], forgets: bool) -> Arc<Shaky> {
        Arc::new(Shaky { inner: Mutex::new(fresh()), plan: Mutex::new(plan.iter().copied().collect()), forgets })
    }

    /// What is planned for the next operation, and the store that it goes to.
    async fn turn(&self) -> Result<(Arc<dyn Store>, Fate), StoreError> {
        // Here the other attempts have their turn.
        tokio::task::yield_now().await;
        let fate = self.plan.lock().unwrap().pop_front().unwrap_or(Fate::Answered);
        match fate {
            Fate::Refused => return Err(failure(false)),
            Fate::Crashed => std::future::pending().await,
            Fate::Emptied if self.forgets => *self.inner.lock().unwrap() = fresh(),
            _ => {}
        }
        Ok((Arc::clone(&self.inner.lock().unwrap()), fate))
    }
}

fn failure(may_have_run: bool) -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, may_have_run, "as planned")
}

/// What becomes of the answer.
async fn heard<T>(fate: Fate, answer: Result<T, StoreError>) -> Result<T, StoreError> {
    match fate {
        Fate::Unheard => Err(failure(true)),
        Fate::CrashedAfter => std::future::pending().await,
        _ => answer,
    }
}

fn fresh() -> Arc<dyn Store> {
    memory::open(&Metrics::new()).store
}

impl Store for Shaky {
    fn for_core(&self) -> Arc<dyn Store> {
        unreachable!("one core is enough")
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply> {
        Box::pin(async move {
            let (inner, fate) = self.turn().await?;
            heard(fate, inner.claim(claim).await).await
        })
    }

    fn look<'a>(&'a self, id: &'a RecordId, asking: &'a Imprint) -> Answer<'a, LookReply> {
        Box::pin(async move {
            let (inner, fate) = self.turn().await?;
            heard(fate, inner.look(id, asking).await).await
        })
    }

    fn renew<'a>(&'a self, claim: &'a Claim) -> Answer<'a, RenewReply> {
        Box::pin(async move {
            let (inner, fate) = self.turn().await?;
            heard(fate, inner.renew(claim).await).await
        })
    }

    fn complete<'a>(
        &'a self,
        claim: &'a Claim,
        response: &'a Response,
        retention: Duration,
    ) -> Answer<'a, CompleteReply> {
        Box::pin(async move {
            let (inner, fate) = self.turn().await?;
            heard(fate, inner.complete(claim, response, retention).await).await
        })
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ReleaseReply> {
        Box::pin(async move {
            let (inner, fate) = self.turn().await?;
            heard(fate, inner.release(claim).await).await
        })
    }

    fn doubt<'a>(&'a self, claim: &'a Claim, reason: Reason, response: Option<&'a Response>) -> Answer<'a, DoubtReply> {
        Box::pin(async move {
            let (inner, fate) = self.turn().await?;
            heard(fate, inner.doubt(claim, reason, response).await).await
        })
    }

    fn resolve<'a>(
        &'a self,
        id: &'a RecordId,
        token: Token,
        finding: &'a Finding,
        force: bool,
    ) -> Answer<'a, ResolveReply> {
        Box::pin(async move {
            let (inner, fate) = self.turn().await?;
            heard(fate, inner.resolve(id, token, finding, force).await).await
        })
    }

    fn forget<'a>(&'a self, id: &'a RecordId, token: Token, force: bool) -> Answer<'a, ForgetReply> {
        Box::pin(async move {
            let (inner, fate) = self.turn().await?;
            heard(fate, inner.forget(id, token, force).await).await
        })
    }

    fn get<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Option<Record>> {
        Box::pin(async move {
            let (inner, fate) = self.turn().await?;
            heard(fate, inner.get(id).await).await
        })
    }

    fn list<'a>(&'a self, query: &'a Query) -> Answer<'a, Page> {
        Box::pin(async move {
            let (inner, fate) = self.turn().await?;
            heard(fate, inner.list(query).await).await
        })
    }

    fn watch<'a>(&'a self, _: &'a RecordId) -> Answer<'a, Box<dyn Watch>> {
        unreachable!("nobody waits here")
    }

    fn inspect(&self) -> Answer<'_, Report> {
        unreachable!("nobody looks here")
    }

    fn ready(&self) -> Result<(), NotReady> {
        Ok(())
    }
}

/// What an attempt does with its grant.
#[derive(Clone, Copy, Debug)]
enum End {
    Completes,
    Doubts,
    Releases,
}

#[derive(Clone, Debug)]
struct Scene {
    first: Vec<Fate>,
    second: Vec<Fate>,
    attempts: Vec<End>,
    together: usize,
}

fn scene() -> impl Strategy<Value = Scene> {
    let fate = || {
        prop_oneof![
            8 => Just(Fate::Answered),
            1 => Just(Fate::Refused),
            1 => Just(Fate::Unheard),
            1 => Just(Fate::Crashed),
            1 => Just(Fate::CrashedAfter),
            3 => Just(Fate::Emptied),
        ]
    };
    let fates = || proptest::collection::vec(fate(), 0..24);
    let end = prop_oneof![4 => Just(End::Completes), 1 => Just(End::Doubts), 2 => Just(End::Releases)];
    (fates(), fates(), proptest::collection::vec(end, 1..8), 1..4_usize)
        .prop_map(|(first, second, attempts, together)| Scene { first, second, attempts, together })
}

fn claim(id: &RecordId) -> Claim {
    Claim {
        id: id.clone(),
        token: Token::new(),
        imprint: Fingerprint { policy: [1; 4], digest: [2; 32] }.into(),
        quoted: false,
        lease: Duration::from_secs(10),
        abandon_after: Duration::from_secs(60),
        on_unknown: OnUnknown::Hold,
        unknown_retention: None,
    }
}

fn response() -> Response {
    Response::new(201, [], [], Some(Bytes::from_static(b"done")))
}

/// One attempt of a proxy, as far as the store sees it. It ends where a crash is planned.
async fn attempt(store: Arc<dyn Store>, claim: Claim, end: End, executions: Arc<AtomicUsize>) {
    match store.claim(&claim).await {
        Ok(ClaimReply::Granted { .. }) => {}
        Ok(ClaimReply::Taken(Taken::Completed(replay))) => {
            assert_eq!(replay.response, response());
            assert!(executions.load(Ordering::SeqCst) > 0, "a replay of what nobody executed");
            return;
        }
        Ok(_) => return,
        Err(error) => {
            if error.may_have_run {
                for _ in 0..3 {
                    if store.release(&claim).await.is_ok() {
                        return;
                    }
                }
            }
            return;
        }
    }
    // A look just before the send, as with a slow connect.
    if !matches!(store.renew(&claim).await, Ok(RenewReply::Extended)) {
        return;
    }
    if let End::Releases = end {
        let _ = store.release(&claim).await;
        return;
    }
    executions.fetch_add(1, Ordering::SeqCst);
    for _ in 0..3 {
        let written = match end {
            End::Completes => store.complete(&claim, &response(), Duration::from_secs(3600)).await.map(drop),
            _ => store.doubt(&claim, Reason::Reset, None).await.map(drop),
        };
        if written.is_ok() {
            return;
        }
    }
}

fn play(scene: &Scene, behind_a_second: bool) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let first: Arc<dyn Store> = Shaky::new(&scene.first, true);
        let store = match behind_a_second {
            true => Arc::new(SecondLine { first, second: Shaky::new(&scene.second, false) }),
            false => first,
        };
        let executions = Arc::new(AtomicUsize::new(0));
        let id = RecordId::new("r".into(), [7; 16]);
        for group in scene.attempts.chunks(scene.together) {
            let running: Vec<_> = group
                .iter()
                .map(|end| tokio::spawn(attempt(Arc::clone(&store), claim(&id), *end, Arc::clone(&executions))))
                .collect();
            for task in running {
                // A crash leaves its future where it is; the lease of a claim passes meanwhile, or not.
                if let Ok(ended) = tokio::time::timeout(Duration::from_secs(4), task).await {
                    ended.unwrap();
                }
            }
        }
        executions.load(Ordering::SeqCst)
    })
}

#[test]
fn a_key_is_executed_once_whatever_the_first_line_forgets() {
    let config = Config { cases: 1500, failure_persistence: None, ..Config::default() };
    let replays = AtomicUsize::new(0);
    TestRunner::new(config)
        .run(&scene(), |scene| {
            let count = play(&scene, true);
            prop_assert!(count <= 1, "{} executions", count);
            replays.fetch_add(usize::from(play(&scene, false) > 1), Ordering::SeqCst);
            Ok(())
        })
        .unwrap();
    // The same scenes without the second line show that they are worth something.
    assert!(replays.load(Ordering::SeqCst) > 20, "the scenes are too tame");
}

#[tokio::test(start_paused = true)]
async fn what_the_first_line_forgot_is_brought_back() {
    for completes in [true, false] {
        let first = Shaky::new(&[], true);
        let second = Shaky::new(&[], false);
        let lines: [Arc<dyn Store>; 2] = [first.clone(), second];
        let [one, two] = lines;
        let store = SecondLine { first: one, second: two };
        let id = RecordId::new("r".into(), [7; 16]);
        let owner = claim(&id);
        Store::claim(&store, &owner).await.unwrap();
        match completes {
            true => drop(Store::complete(&store, &owner, &response(), Duration::from_secs(60)).await.unwrap()),
            false => drop(Store::doubt(&store, &owner, Reason::Status, Some(&response())).await.unwrap()),
        }
        *first.inner.lock().unwrap() = fresh();
        let reply = Store::claim(&store, &claim(&id)).await.unwrap();
        assert!(
            matches!(reply, ClaimReply::Taken(Taken::Completed(_)) | ClaimReply::Taken(Taken::Unknown(_))),
            "{reply:?}"
        );
        // The first line knows by itself again.
        let brought_back = Store::get(&*first, &id).await.unwrap().unwrap();
        assert_eq!(brought_back.original_status(), Some(201));
        assert_eq!(brought_back.is_open(), !completes);
        // An operator is shown the owner's token, and with it ends both.
        let shown = Store::get(&store, &id).await.unwrap().unwrap();
        assert_eq!(shown.token, owner.token);
        let forgotten = Store::forget(&store, &id, owner.token, true).await.unwrap();
        assert_eq!(forgotten, ForgetReply::Forgotten);
        assert!(matches!(Store::claim(&store, &claim(&id)).await.unwrap(), ClaimReply::Granted { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_only_the_second_line_has_ends_the_doubt() {
    let (first, second) = (Shaky::new(&[], true), Shaky::new(&[], false));
    let store = SecondLine { first: first.clone(), second: second.clone() };
    let id = RecordId::new("r".into(), [7; 16]);
    let owner = claim(&id);
    Store::claim(&store, &owner).await.unwrap();
    Store::complete(&*second, &owner, &response(), Duration::from_secs(600)).await.unwrap();
    tokio::time::advance(Duration::from_secs(11)).await;
    let reply = Store::claim(&store, &claim(&id)).await.unwrap();
    assert!(matches!(reply, ClaimReply::Taken(Taken::Completed(_))), "{reply:?}");
    assert!(!Store::get(&*first, &id).await.unwrap().unwrap().is_open());
}

#[tokio::test(start_paused = true)]
async fn without_the_second_line_nothing_is_granted_and_nothing_is_held() {
    let (first, second) = (Shaky::new(&[], true), Shaky::new(&[Fate::Refused], false));
    let store = SecondLine { first: first.clone(), second };
    let id = RecordId::new("r".into(), [7; 16]);
    assert!(Store::claim(&store, &claim(&id)).await.is_err());
    assert_eq!(Store::get(&*first, &id).await.unwrap(), None);
    assert!(matches!(Store::claim(&store, &claim(&id)).await.unwrap(), ClaimReply::Granted { .. }));
}

#[tokio::test(start_paused = true)]
async fn the_list_shows_the_records_of_both_lines_once() {
    let (first, second) = (Shaky::new(&[], true), Shaky::new(&[], false));
    let store = SecondLine { first: first.clone(), second: second.clone() };
    let ids: Vec<RecordId> = (0..5).map(|n| RecordId::new("r".into(), [n; 16])).collect();
    for id in &ids[..2] {
        Store::claim(&store, &claim(id)).await.unwrap();
    }
    Store::claim(&*first, &claim(&ids[2])).await.unwrap();
    Store::claim(&*first, &claim(&ids[3])).await.unwrap();
    Store::claim(&*second, &claim(&ids[4])).await.unwrap();
    for limit in 1..7 {
        let mut query = Query { limit, ..Query::default() };
        let mut found = Vec::new();
        loop {
            let page = Store::list(&store, &query).await.unwrap();
            assert!(page.records.len() <= limit);
            found.extend(page.records.into_iter().map(|(id, _)| id));
            let Some(cursor) = page.cursor else { break };
            query.cursor = Some(cursor);
        }
        found.sort();
        assert_eq!(found, ids, "{limit} a page");
    }
}
