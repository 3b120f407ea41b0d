//! The disk store: the contract, and what it adds to it: a folder that one process holds, and what a kill -9 leaves.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceproxy::config::store::Backend;
use onceproxy::metrics::Metrics;
use onceproxy::record::{
    Claim, ClaimReply, CompleteReply, Fingerprint, OnUnknown, Reason, RecordId, Response, State, Taken, Token,
};
use onceproxy::store::{NotReady, Opened, Store, StoreErrorKind};

use super::contract::{self, until};

/// A store, its metrics and its background work; closing it lets the folder go.
struct Disk {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    background: tokio::task::JoinHandle<()>,
}

impl Disk {
    fn open(dir: &Path) -> Disk {
        let metrics = Metrics::new();
        let config = contract::config(Backend::Disk { dir: dir.to_owned() });
        let Opened { store, background, .. } = onceproxy::store::open(&config, &metrics).unwrap();
        Disk { store, metrics, background: tokio::spawn(background) }
    }

    async fn close(self) {
        self.background.abort();
        let _ = self.background.await;
    }
}

fn claim_of(hash: [u8; 16]) -> Claim {
    Claim {
        id: RecordId::new("disk".into(), hash),
        token: Token::from_bytes(hash),
        imprint: Fingerprint { policy: [1; 4], digest: [2; 32] }.into(),
        quoted: false,
        lease: Duration::from_secs(3600),
        abandon_after: Duration::from_secs(3600),
        on_unknown: OnUnknown::Hold,
        unknown_retention: None,
    }
}

fn fresh_claim() -> Claim {
    claim_of(*Token::new().as_bytes())
}

/// A response whose body tells which record it belongs to.
fn response_of(claim: &Claim) -> Response {
    Response::new(201, [], [], Some(Bytes::from(claim.id.to_string())))
}

#[tokio::test]
async fn disk_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path());
    contract::suite(|| disk.store.for_core()).await;
    contract::sweep(&*disk.store, &disk.metrics).await;
    disk.close().await;
}

#[tokio::test]
async fn records_survive_a_restart_and_claims_become_unknown_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (claimed, completed, released) = (fresh_claim(), fresh_claim(), fresh_claim());
    let disk = Disk::open(dir.path());
    for claim in [&claimed, &completed, &released] {
        assert!(matches!(disk.store.claim(claim).await.unwrap(), ClaimReply::Granted { .. }));
    }
    disk.store.complete(&completed, &response_of(&completed), Duration::from_secs(3600)).await.unwrap();
    disk.store.release(&released).await.unwrap();
    disk.close().await;

    let disk = Disk::open(dir.path());
    assert_eq!(disk.store.ready(), Ok(()), "a folder that was let go is open again at once");
    let record = disk.store.get(&claimed.id).await.unwrap().unwrap();
    assert!(matches!(record.state, State::Unknown { reason: Reason::Lapsed, .. }), "{record:?}");
    assert!(matches!(disk.store.claim(&completed).await.unwrap(), ClaimReply::Taken(Taken::Completed(_))));
    assert_eq!(disk.store.claim(&released).await.unwrap(), ClaimReply::Lost, "its tombstone survived");
    until("the gauge counts what was found", async || {
        disk.metrics.expose().0.contains(r#"onceproxy_records_open{state="unknown"} 1"#).then_some(())
    })
    .await;
    disk.close().await;
}

/// What a killed process had been told, by the name that it printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Acknowledged {
    Claimed,
    Completed,
}

#[tokio::test]
async fn kill_minus_nine_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged: HashMap<[u8; 16], Acknowledged> = HashMap::new();
    for _ in 0..6 {
        // Another number of lines each time, so that the kill falls into every part of a batch.
        let lines = 40 + usize::from(Token::new().as_bytes()[0]);
        let path = dir.path().to_owned();
        for (hash, what) in tokio::task::spawn_blocking(move || work_until_killed(&path, lines)).await.unwrap() {
            let known = acknowledged.entry(hash).or_insert(what);
            *known = what.max(*known);
        }
        all_are_there(dir.path(), &acknowledged).await;
    }
}

async fn all_are_there(dir: &Path, acknowledged: &HashMap<[u8; 16], Acknowledged>) {
    let disk = Disk::open(dir);
    assert_eq!(disk.store.ready(), Ok(()), "the kernel has let go of a dead process's folder");
    for (hash, what) in acknowledged {
        let claim = claim_of(*hash);
        let record = disk.store.get(&claim.id).await.unwrap();
        let record = record.unwrap_or_else(|| panic!("{} was {what:?}, and is gone", claim.id));
        match record.state {
            State::Completed { response, .. } => assert_eq!(response, response_of(&claim)),
            State::Unknown { reason: Reason::Lapsed, .. } => assert_eq!(*what, Acknowledged::Claimed, "{}", claim.id),
            other => panic!("{} was {what:?}, and is {other:?}", claim.id),
        }
    }
    disk.close().await;
}

/// Runs this test binary as a process of its own on the folder, reads so many acknowledgements, kills it in the middle
/// of its work, and returns all that it had been told.
fn work_until_killed(dir: &Path, lines: usize) -> Vec<([u8; 16], Acknowledged)> {
    let mut child = child_on(dir, "disk::child_that_works_until_it_is_killed");
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told: Vec<_> = output.by_ref().filter_map(|line| parse(&line.ok()?)).take(lines).collect();
    assert_eq!(told.len(), lines, "the child ended by itself");
    child.kill().unwrap();
    child.wait().unwrap();
    // What it had printed before it died counts as well; its last line may be cut off.
    told.extend(output.filter_map(|line| parse(&line.ok()?)));
    told
}

fn child_on(dir: &Path, test: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(child.stdin.as_mut().unwrap(), "{}", dir.display()).unwrap();
    child
}

/// The folder that a parent process wrote to standard input. None when a person runs the ignored tests.
fn folder_from_parent() -> Option<PathBuf> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    Some(line.trim_end()).filter(|line| !line.is_empty()).map(PathBuf::from)
}

fn parse(line: &str) -> Option<([u8; 16], Acknowledged)> {
    let (_, said) = line.split_once("told ")?;
    let (what, token) = said.split_once(' ')?;
    let what = match what {
        "claimed" => Acknowledged::Claimed,
        "completed" => Acknowledged::Completed,
        _ => return None,
    };
    Some((*token.strip_suffix('.')?.parse::<Token>().ok()?.as_bytes(), what))
}

#[tokio::test]
#[ignore = "started by the test above as a process of its own"]
async fn child_that_works_until_it_is_killed() {
    let Some(dir) = folder_from_parent() else { return };
    let disk = Disk::open(&dir);
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = disk.store.for_core();
        workers.spawn(async move {
            loop {
                let claim = fresh_claim();
                assert!(matches!(store.claim(&claim).await.unwrap(), ClaimReply::Granted { .. }));
                println!("told claimed {}.", claim.token);
                let kept = Duration::from_secs(3600);
                assert_eq!(store.complete(&claim, &response_of(&claim), kept).await.unwrap(), CompleteReply::Stored);
                println!("told completed {}.", claim.token);
            }
        });
    }
    workers.join_all().await;
}

#[tokio::test]
#[ignore = "started by the test below as a process of its own"]
async fn child_that_holds_a_folder() {
    let Some(dir) = folder_from_parent() else { return };
    let disk = Disk::open(&dir);
    assert_eq!(disk.store.ready(), Ok(()));
    println!("told held");
    // Until the parent closes our input.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
    disk.close().await;
}

#[tokio::test]
async fn a_folder_held_by_another_process_is_out_of_reach_until_that_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = child_on(dir.path(), "disk::child_that_holds_a_folder");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("told held")));

    let disk = Disk::open(dir.path());
    let claim = fresh_claim();
    let error = disk.store.claim(&claim).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Unreachable, false));
    let not_ready = disk.store.ready().unwrap_err().to_string();
    assert!(not_ready.contains(&format!("held by process {}", child.id())), "{not_ready}");
    assert!(not_ready.contains("stop that process, or name another folder by --store"), "{not_ready}");
    assert_eq!(disk.store.get(&claim.id).await.unwrap_err().kind, StoreErrorKind::Unreachable);

    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    until("the folder is taken over", async || disk.store.ready().ok()).await;
    assert!(matches!(disk.store.claim(&claim).await.unwrap(), ClaimReply::Granted { .. }));
    disk.close().await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_not_opened() {
    let parent = tempfile::tempdir().unwrap();
    std::fs::write(parent.path().join("file"), "a file where a folder should be").unwrap();
    let lock = parent.path().join("lock-is-a-folder");
    std::fs::create_dir_all(lock.join("lock")).unwrap();
    let records = parent.path().join("records-are-a-folder");
    std::fs::create_dir_all(records.join("records.redb")).unwrap();
    for dir in [parent.path().join("file"), parent.path().join("file/below"), "/proc/onceproxy".into(), lock, records] {
        let config = contract::config(Backend::Disk { dir: dir.clone() });
        let Err(error) = onceproxy::store::open(&config, &Metrics::new()) else { panic!("{dir:?} was opened") };
        assert!(!error.is_wrong_settings(), "the settings may be right, and the place is not");
        let said = error.to_string();
        assert!(said.contains("cannot be used") && said.contains("--store disk:DIR"), "{said}");
        assert!(said.contains(dir.to_str().unwrap()), "{said}");
    }
    // Where nothing is in the way it is made, for its owner alone.
    let dir = parent.path().join("a/b");
    let disk = Disk::open(&dir);
    assert_eq!(disk.store.ready(), Ok(()));
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    disk.close().await;
}

/// What an operator may do to the folder behind the back of the process that uses it.
type TakeAway = fn(&Path);

const TAKEN_AWAY: [(&str, TakeAway); 4] = [
    ("the folder is deleted", |dir| std::fs::remove_dir_all(dir).unwrap()),
    ("the folder is moved away", |dir| std::fs::rename(dir, dir.with_extension("old")).unwrap()),
    ("the records are replaced by a copy", |dir| {
        std::fs::copy(dir.join("records.redb"), dir.join("copy")).unwrap();
        std::fs::rename(dir.join("copy"), dir.join("records.redb")).unwrap();
    }),
    ("the lock is deleted", |dir| std::fs::remove_file(dir.join("lock")).unwrap()),
];

#[tokio::test]
async fn a_folder_that_is_taken_away_grants_nothing_more() {
    for (what, take_away) in TAKEN_AWAY {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("records");
        let first = Disk::open(&dir);
        let (held, late) = (fresh_claim(), fresh_claim());
        assert!(matches!(first.store.claim(&held).await.unwrap(), ClaimReply::Granted { .. }));
        take_away(&dir);
        // At once, and not only when the background comes by: another process may have opened the place.
        let error = first.store.claim(&late).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Broken, "{what}: {error}");
        let error = first.store.complete(&held, &response_of(&held), Duration::from_secs(60)).await.unwrap_err();
        assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Broken, false), "{what}: {error}");
        let Err(NotReady::UntilRestart(why)) = first.store.ready() else { panic!("{what}: a restart is needed") };
        assert!(why.contains("deleted, moved or replaced") && why.contains(&*dir.to_string_lossy()), "{what}: {why}");
        first.close().await;
    }
}

#[tokio::test]
async fn an_idle_store_notices_that_its_folder_is_another_one() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("records");
    let first = Disk::open(&dir);
    std::fs::rename(&dir, parent.path().join("old")).unwrap();
    let second = Disk::open(&dir);
    assert_eq!(second.store.ready(), Ok(()), "nobody holds the new folder");
    until("the first one is not ready", async || first.store.ready().err()).await;
    assert!(matches!(second.store.claim(&fresh_claim()).await.unwrap(), ClaimReply::Granted { .. }));
    second.close().await;
    first.close().await;
}

#[tokio::test]
async fn a_damaged_or_missing_file_fails_closed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path());
    let claim = fresh_claim();
    disk.store.claim(&claim).await.unwrap();
    disk.close().await;
    let records = dir.path().join("records.redb");
    let format = dir.path().join("format");
    let contents: [(_, Option<&[u8]>, _); 5] = [
        (&records, Some(b"not a database at all"), "records.redb cannot be opened"),
        (&records, Some(b""), "its file records.redb is missing or empty"),
        (&records, None, "its file records.redb is missing or empty"),
        (&format, Some(b"onceproxy records, format 2\n"), "its file format says \"onceproxy records, format 2"),
        (&format, Some(b"\xff\xfe"), "its file format says"),
    ];
    for (file, content, expected) in contents {
        let good = std::fs::read(file).unwrap();
        match content {
            Some(content) => std::fs::write(file, content).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
        let config = contract::config(Backend::Disk { dir: dir.path().to_owned() });
        // A process that another test starts just now holds the lock's file until it runs its own program.
        let refused = async || onceproxy::store::open(&config, &Metrics::new()).err();
        let error = until(expected, refused).await;
        assert!(!error.is_wrong_settings(), "the settings may be right, and the place is not");
        let said = error.to_string();
        assert!(said.contains(expected) && said.contains("may run again"), "{said:?} does not say {expected:?}");
        assert!(said.contains(dir.path().to_str().unwrap()) && !said.contains("--store"), "{said}");
        std::fs::write(file, good).unwrap();
    }
    let disk = Disk::open(dir.path());
    until("the folder is open", async || disk.store.ready().ok()).await;
    assert!(matches!(disk.store.get(&claim.id).await.unwrap().unwrap().state, State::Unknown { .. }));
    disk.close().await;
}
