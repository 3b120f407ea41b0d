//! What only shows at the medium: when callers are answered, what they share, and what a failure or power loss leaves.

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::Poll;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::medium::Medium;
use super::*;
use crate::record::Fingerprint;
use crate::record::{OnUnknown, State, Taken};

const LONG: Duration = Duration::from_secs(3600);

/// A disk store on a medium of its own.
struct World {
    disk: Disk,
    medium: Medium,
    dir: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        // The writer is joined when the store is dropped: a test that failed must not leave it waiting.
        self.medium.hold(false);
    }
}

impl World {
    fn new() -> World {
        World::with_timeout(LONG)
    }

    fn with_timeout(timeout: Duration) -> World {
        let (medium, dir) = (Medium::default(), tempfile::tempdir().unwrap());
        let disk = disk_on(&medium, dir.path(), timeout);
        World { disk, medium, dir }
    }

    /// A world whose file has room: to grow costs syncs of its own, and holds readers up.
    async fn with_room() -> World {
        let world = World::new();
        let mut filling = JoinSet::new();
        for _ in 0..500 {
            let disk = world.disk.clone();
            filling.spawn(async move {
                let claim = claim();
                disk.renew(&claim).await.unwrap();
                disk.complete(&claim, &response(), Duration::ZERO).await.unwrap();
            });
        }
        filling.join_all().await;
        while world.running().writer.sweep(100).await.unwrap().0 {}
        world
    }

    fn running(&self) -> Arc<Running> {
        self.disk.0.running().unwrap()
    }

    async fn granted(&self, claim: Claim) -> Claim {
        assert!(matches!(self.disk.claim(&claim).await.unwrap(), ClaimReply::Granted { .. }));
        claim
    }

    /// Lets the writer begin a commit, and returns while its sync is held back.
    async fn hold_a_commit(&self) -> tokio::task::JoinHandle<()> {
        self.medium.hold(true);
        let disk = self.disk.clone();
        let first = tokio::spawn(async move { drop(disk.renew(&claim()).await) });
        let medium = self.medium.clone();
        tokio::task::spawn_blocking(move || medium.held()).await.unwrap();
        first
    }
}

fn disk_on(medium: &Medium, dir: &Path, timeout: Duration) -> Disk {
    let tell = Tell { watchers: Watchers::default(), metrics: Metrics::new() };
    let folder = Folder::hold(dir).unwrap();
    let running = Running::with(Tables::on(medium.clone()).unwrap(), folder, &tell).unwrap();
    Disk(Arc::new(Shared { dir: dir.to_owned(), timeout, tell, phase: RwLock::new(Phase::Running(Arc::new(running))) }))
}

fn claim() -> Claim {
    let token = Token::new();
    Claim {
        id: RecordId::new("r".into(), *token.as_bytes()),
        token,
        imprint: Fingerprint { policy: [1; 4], digest: [2; 32] }.into(),
        quoted: false,
        lease: LONG,
        abandon_after: LONG,
        on_unknown: OnUnknown::Hold,
        unknown_retention: None,
    }
}

fn response() -> Response {
    Response::new(201, [], [], Some(Bytes::from_static(b"done")))
}

/// Whether the future has an answer when it is asked once.
async fn has_answer<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_ready())).await
}

#[tokio::test]
async fn nobody_is_answered_before_the_medium_has_it() {
    let world = World::with_room().await;
    let claim = world.granted(claim()).await;
    world.medium.hold(true);
    let response = response();
    let mut complete = world.disk.complete(&claim, &response, LONG);
    assert!(!has_answer(&mut complete).await);
    let medium = world.medium.clone();
    tokio::task::spawn_blocking(move || medium.held()).await.unwrap();
    assert!(!has_answer(&mut complete).await);
    let seen = world.disk.get(&claim.id).await.unwrap().unwrap();
    assert!(matches!(seen.state, State::Claimed { .. }), "a reader saw what the medium does not have: {seen:?}");
    world.medium.hold(false);
    assert_eq!(complete.await.unwrap(), CompleteReply::Stored);
}

#[tokio::test]
async fn operations_that_wait_share_one_commit() {
    let world = World::with_room().await;
    let before = world.medium.syncs();
    assert_eq!(world.disk.renew(&claim()).await.unwrap(), RenewReply::Rewritten);
    let of_one_commit = world.medium.syncs() - before;
    let before = world.medium.syncs();
    let first = world.hold_a_commit().await;
    let mut waiting = JoinSet::new();
    for _ in 0..100 {
        let disk = world.disk.clone();
        waiting.spawn(async move { disk.renew(&claim()).await.unwrap() });
    }
    // One turn of this single thread: every task has put its operation into the queue.
    tokio::task::yield_now().await;
    world.medium.hold(false);
    first.await.unwrap();
    assert!(waiting.join_all().await.into_iter().all(|reply| reply == RenewReply::Rewritten));
    assert_eq!(world.medium.syncs() - before, 2 * of_one_commit, "101 operations in other than two commits");
}

#[tokio::test]
async fn what_changes_nothing_costs_no_sync() {
    let world = World::new();
    let done = world.granted(claim()).await;
    world.disk.complete(&done, &response(), LONG).await.unwrap();
    let running = world.granted(claim()).await;
    let unknown = world.granted(claim()).await;
    world.disk.doubt(&unknown, Reason::Reset, None).await.unwrap();
    let before = world.medium.syncs();
    for first in [&done, &running, &unknown] {
        let duplicate = Claim { token: Token::new(), ..first.clone() };
        let reply = world.disk.claim(&duplicate).await.unwrap();
        assert!(!matches!(reply, ClaimReply::Granted { .. }));
        let reused = Claim { imprint: Fingerprint { policy: [1; 4], digest: [9; 32] }.into(), ..duplicate.clone() };
        assert!(matches!(world.disk.claim(&reused).await.unwrap(), ClaimReply::Taken(Taken::Reused(_))));
        world.disk.look(&first.id, &first.imprint).await.unwrap();
        world.disk.get(&first.id).await.unwrap();
        world.disk.renew(&duplicate).await.unwrap();
    }
    world.disk.list(&Query { limit: 10, ..Query::default() }).await.unwrap();
    assert!(matches!(world.disk.complete(&done, &response(), LONG).await.unwrap(), CompleteReply::Already(_)));
    let (more, _) = world.running().writer.sweep(10).await.unwrap();
    assert!(!more);
    assert_eq!(world.medium.syncs(), before);
}

#[tokio::test]
async fn after_a_failed_commit_nothing_is_done_any_more() {
    let world = World::new();
    let known = world.granted(claim()).await;
    world.medium.fail(true);
    let error = world.disk.claim(&claim()).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Broken, true), "{error}");
    // The medium recovers; what it holds is not known all the same.
    world.medium.fail(false);
    let error = world.disk.claim(&claim()).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Broken, false), "{error}");
    let error = world.disk.complete(&known, &response(), LONG).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Broken, false), "{error}");
    assert_eq!(world.disk.get(&known.id).await.unwrap_err().kind, StoreErrorKind::Broken);
    let NotReady::UntilRestart(why) = world.disk.ready().unwrap_err() else { panic!("it would not pass by itself") };
    assert!(why.contains("as the test wished"), "{why}");
}

#[tokio::test]
async fn everyone_in_a_failed_batch_and_behind_it_is_told() {
    let world = World::new();
    let first = world.hold_a_commit().await;
    let mut waiting = JoinSet::new();
    for _ in 0..1000 {
        let disk = world.disk.clone();
        waiting.spawn(async move { disk.renew(&claim()).await.unwrap_err().kind });
    }
    tokio::task::yield_now().await;
    world.medium.fail(true);
    world.medium.hold(false);
    first.await.unwrap();
    assert!(waiting.join_all().await.into_iter().all(|kind| kind == StoreErrorKind::Broken));
}

#[tokio::test]
async fn a_slow_medium_is_a_timeout_and_the_repeated_claim_recognises_itself() {
    let world = World::with_timeout(Duration::from_secs(2));
    world.medium.hold(true);
    let claim = claim();
    let error = world.disk.claim(&claim).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::TimedOut, true), "{error}");
    world.medium.hold(false);
    let patient = Disk(Arc::new(Shared {
        dir: world.dir.path().to_owned(),
        timeout: LONG,
        tell: world.disk.0.tell.clone(),
        phase: RwLock::new(Phase::Running(world.running())),
    }));
    assert_eq!(patient.claim(&claim).await.unwrap(), ClaimReply::Granted { attempts: 1, taken_over: None });
}

#[tokio::test]
async fn an_operation_whose_caller_gave_up_before_it_began_does_not_begin() {
    let world = World::new();
    let first = world.hold_a_commit().await;
    let abandoned = claim();
    let mut renew = world.disk.renew(&abandoned);
    assert!(!has_answer(&mut renew).await);
    drop(renew);
    world.medium.hold(false);
    first.await.unwrap();
    world.granted(claim()).await;
    assert_eq!(world.disk.get(&abandoned.id).await.unwrap(), None);
}

#[tokio::test]
async fn a_sweep_goes_in_slices_and_claims_go_in_between() {
    let world = World::new();
    for _ in 0..25 {
        world.granted(Claim { lease: Duration::ZERO, ..claim() }).await;
    }
    let running = world.running();
    for left in [15, 5] {
        let (more, counts) = running.writer.sweep(10).await.unwrap();
        assert!(more);
        assert_eq!(counts.claimed, left);
        let between = world.granted(claim()).await;
        world.disk.release(&between).await.unwrap();
    }
    let (more, counts) = running.writer.sweep(10).await.unwrap();
    assert!(!more);
    assert_eq!(counts, Counts { claimed: 0, unknown: 25 });
}

#[tokio::test]
async fn a_sweep_frees_what_has_expired_and_nothing_else() {
    let world = World::new();
    let kept = world.granted(claim()).await;
    world.disk.complete(&kept, &response(), LONG).await.unwrap();
    let expired = world.granted(claim()).await;
    world.disk.complete(&expired, &response(), Duration::ZERO).await.unwrap();
    let (more, counts) = world.running().writer.sweep(10).await.unwrap();
    assert!(!more);
    assert_eq!(counts, Counts::default());
    let view = world.running().tables.view().unwrap();
    assert_eq!(view.get(&expired.id).unwrap(), Ok(None));
    assert!(view.get(&kept.id).unwrap().unwrap().is_some());
}

/// Numbers that look random and are the same in every run.
fn noise(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    }
}

#[tokio::test]
async fn a_power_loss_at_any_write_loses_nothing_that_was_acknowledged() {
    type Acknowledged = Vec<(Claim, &'static str)>;
    type Images = Vec<(Acknowledged, Vec<u8>)>;
    let world = World::new();
    let acknowledged: Arc<Mutex<Acknowledged>> = Arc::default();
    let images: Arc<Mutex<Images>> = Arc::default();
    let (told, taken, mut random) = (Arc::clone(&acknowledged), Arc::clone(&images), noise(7));
    world.medium.observe(move |after_power_loss| {
        if random().is_multiple_of(40) {
            let told = told.lock().unwrap().clone();
            taken.lock().unwrap().push((told, after_power_loss(&mut random)));
        }
    });
    let mut workers = JoinSet::new();
    for worker in 0..4 {
        let (disk, acknowledged) = (world.disk.clone(), Arc::clone(&acknowledged));
        workers.spawn(async move {
            let mut random = noise(worker);
            for _ in 0..25 {
                let claim = claim();
                disk.claim(&claim).await.unwrap();
                acknowledged.lock().unwrap().push((claim.clone(), "unknown"));
                if !random().is_multiple_of(3) {
                    disk.complete(&claim, &response(), LONG).await.unwrap();
                    acknowledged.lock().unwrap().push((claim, "completed"));
                }
            }
        });
    }
    workers.join_all().await;
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 10, "only {} moments were looked at", images.len());
    for (acknowledged, image) in images {
        let dir = tempfile::tempdir().unwrap();
        let disk = disk_on(&Medium::with(image), dir.path(), LONG);
        for (claim, state) in acknowledged {
            let record = disk.get(&claim.id).await.unwrap();
            let found = record.map(|record| record.state.as_str());
            // What was claimed may have been completed without its caller having been told yet.
            assert!(found == Some(state) || found == Some("completed"), "{state} became {found:?}");
        }
    }
}

#[tokio::test]
async fn an_unreadable_record_is_refused_and_harms_no_other() {
    let world = World::new();
    let (bad, good) = (world.granted(Claim { lease: Duration::ZERO, ..claim() }).await, world.granted(claim()).await);
    let running = world.running();
    running.tables.spoil(&bad.id);
    for result in
        [world.disk.get(&bad.id).await.err(), world.disk.claim(&bad).await.err(), world.disk.renew(&bad).await.err()]
    {
        assert_eq!(result.unwrap().kind, StoreErrorKind::Unreadable);
    }
    let (more, _) = running.writer.sweep(10).await.unwrap();
    assert!(!more, "the sweep comes back to it for ever");
    let page = world.disk.list(&Query { limit: 10, ..Query::default() }).await.unwrap();
    assert_eq!(page.records.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [good.id]);
    assert_eq!(world.disk.ready(), Ok(()));
}
