//! Lost replies, cut connections, and servers that hang, crash or are gone.

use std::sync::atomic::AtomicU8;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const PASS: u8 = 0;
const SWALLOW: u8 = 1;
const CUT: u8 = 2;
const AGAIN: u8 = 3;

/// A relay before the server that can lose the next reply: swallow it, cut the connection instead of passing it on, or pass it on
/// and give it once more in front of the one behind it.
struct Relay {
    port: u16,
    next: Arc<AtomicU8>,
}

impl Relay {
    async fn before(server: u16) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let relay = Relay { port: listener.local_addr().unwrap().port(), next: Arc::new(AtomicU8::new(PASS)) };
        let next = Arc::clone(&relay.next);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let upstream = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                tokio::spawn(pass_on(client, upstream, Arc::clone(&next)));
            }
        });
        relay
    }

    fn lose_next(&self, how: u8) {
        self.next.store(how, Ordering::SeqCst);
    }

    fn has_lost(&self) -> bool {
        self.next.load(Ordering::SeqCst) == PASS
    }
}

async fn pass_on(client: TcpStream, upstream: TcpStream, next: Arc<AtomicU8>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = upstream.into_split();
    let questions = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let (mut buffer, mut again) = (vec![0; 64 * 1024], Vec::new());
    while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
        match next.swap(PASS, Ordering::SeqCst) {
            SWALLOW => {}
            CUT => break,
            how => {
                let mut passed = std::mem::take(&mut again);
                passed.extend_from_slice(&buffer[..read]);
                if how == AGAIN {
                    again.clone_from(&passed);
                }
                if to_client.write_all(&passed).await.is_err() {
                    break;
                }
            }
        }
    }
    questions.abort();
}

/// As poolers do it that lose their server in the middle of several statements.
#[tokio::test]
async fn the_answer_to_another_question_is_not_believed() {
    let server = PostgresServer::shared();
    let config = prepared(backend(server.port())).await;
    let relay = Relay::before(server.port()).await;
    let store = quiet(&StoreConfig { timeout: Duration::from_secs(3), ..through(&config, relay.port) });
    let done = completed(&*store, &response(1)).await;
    relay.lose_next(AGAIN);
    assert_eq!(store.claim(&claim()).await.unwrap(), GRANTED);
    assert!(relay.has_lost());
    // Whose connection now has that grant for an answer.
    replay(&*store, &done).await;
    replay(&*store, &done).await;
}

#[tokio::test]
async fn a_commit_whose_reply_was_lost_is_recognised() {
    let server = PostgresServer::shared();
    let config = prepared(backend(server.port())).await;
    for how in [SWALLOW, CUT] {
        let relay = Relay::before(server.port()).await;
        let store = quiet(&StoreConfig { timeout: Duration::from_secs(3), ..through(&config, relay.port) });
        completed(&*store, &response(1)).await;
        let claim = claim();
        relay.lose_next(how);
        assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
        assert!(relay.has_lost());
        assert!(matches!(store.claim(&again(&claim)).await.unwrap(), ClaimReply::Taken(Taken::InProgress { .. })));
        relay.lose_next(how);
        let Ok(CompleteReply::Already(replay)) = store.complete(&claim, &response(7), DAY).await else {
            panic!("the completion is not recognised")
        };
        assert_eq!(replay.response, response(7));
    }
}

// The clock stands still but for waits, so that the bound is exact however slow the machine is.
#[tokio::test]
async fn a_server_that_hangs_is_an_error_in_time() {
    let server = PostgresServer::start(&[]);
    let timeout = Duration::from_secs(2);
    let config = prepared(backend(server.port())).await;
    let store = quiet(&StoreConfig { timeout, ..config });
    let running = completed(&*store, &response(1)).await;
    server.pause();
    tokio::time::pause();
    for _ in 0..2 {
        let begun = tokio::time::Instant::now();
        let error = store.claim(&claim()).await.unwrap_err();
        assert!(begun.elapsed() <= timeout + timeout / 10, "{:?}", begun.elapsed());
        assert_eq!(error.kind, StoreErrorKind::TimedOut, "{error}");
    }
    assert!(store.ready().is_err());
    server.resume();
    tokio::time::resume();
    replay(&*store, &running).await;
}

#[tokio::test]
async fn a_lock_that_is_not_given_is_an_error_in_time_and_leaves_nothing_behind() {
    let server = PostgresServer::shared();
    let pooler = PgBouncer::before(server, "");
    let config = prepared(backend(server.port())).await;
    let config = StoreConfig { timeout: Duration::from_secs(1), ..config };
    for port in [server.port(), pooler.port()] {
        let store = quiet(&through(&config, port));
        let owner = completed(&*store, &response(1)).await;
        let held = claim();
        store.claim(&held).await.unwrap();
        // Somebody at a prompt holds the row for longer than any operation takes.
        let lock = format!("BEGIN; SELECT FROM \"{0}\".records FOR UPDATE; SELECT pg_sleep(4); COMMIT", config.prefix);
        let locking = std::thread::spawn(move || PostgresServer::shared().sql(&lock));
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        let locked = format!(
            "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n \
             ON n.oid = c.relnamespace WHERE n.nspname = '{}' AND l.mode = 'RowShareLock'",
            config.prefix
        );
        until("the rows are locked", async || (server.sql(&locked) != "0").then_some(())).await;
        let error = store.complete(&held, &response(1), DAY).await.unwrap_err();
        assert!(matches!(error.kind, StoreErrorKind::TimedOut | StoreErrorKind::Unreachable), "{error}");
        // Reading waits for no lock.
        replay(&*store, &owner).await;
        until("nothing waits any more", async || (server.sql(waiting) == "0").then_some(())).await;
        locking.join().unwrap();
        assert_eq!(store.complete(&held, &response(1), DAY).await.unwrap(), CompleteReply::Stored);
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_was_certainly_not_asked() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let store = quiet(&StoreConfig { timeout: Duration::from_millis(200), ..config_of(backend(port)) });
    let error = store.claim(&claim()).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Unreachable, false), "{error}");
}

#[tokio::test]
async fn a_crash_forgets_nothing_that_was_answered_and_the_server_is_used_again() {
    let mut server = PostgresServer::start(&["fsync=on"]);
    let config = prepared(backend(server.port())).await;
    let process = Process::open(&StoreConfig { timeout: Duration::from_millis(800), ..config });
    process.becomes_ready().await;
    let store = Arc::clone(&process.store);
    let (done, running) = (completed(&*store, &response(9)).await, claim());
    assert_eq!(store.claim(&running).await.unwrap(), GRANTED);
    server.kill();
    process.becomes_unready("").await;
    assert_eq!(store.claim(&claim()).await.unwrap_err().kind, StoreErrorKind::Unreachable);
    server.restart();
    process.becomes_ready().await;
    assert_eq!(replay(&*store, &done).await, response(9));
    assert!(matches!(store.claim(&again(&running)).await.unwrap(), ClaimReply::Taken(Taken::InProgress { .. })));
    assert_eq!(store.complete(&running, &response(2), DAY).await.unwrap(), CompleteReply::Stored);
}

#[tokio::test]
async fn a_serialization_failure_is_repeated() {
    let server = PostgresServer::start(&["default_transaction_isolation=serializable"]);
    let config = prepared(backend(server.port())).await;
    let stores: Vec<_> = (0..4).map(|_| quiet(&config)).collect();
    for _ in 0..10 {
        let first = claim();
        let running: Vec<_> = stores
            .iter()
            .map(|store| {
                let (store, claim) = (Arc::clone(store), again(&first));
                tokio::spawn(async move {
                    let reply = store.claim(&claim).await.unwrap();
                    if reply == GRANTED {
                        store.complete(&claim, &response(1), DAY).await.unwrap();
                    }
                    reply == GRANTED
                })
            })
            .collect();
        let mut granted = 0;
        for reply in running {
            granted += u32::from(reply.await.unwrap());
        }
        assert_eq!(granted, 1);
    }
}
