//! Lost replies, cut connections, and servers that hang or are gone.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};

use onceproxy::store::StoreErrorKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const PASS: u8 = 0;
const SWALLOW: u8 = 1;
const CUT: u8 = 2;

/// A relay before the server that can lose the next reply: swallow it, or cut the connection instead of passing it on.
struct Relay {
    port: u16,
    next: Arc<AtomicU8>,
}

impl Relay {
    async fn before(server: u16) -> Relay {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay { port: listener.local_addr().unwrap().port(), next: Arc::new(AtomicU8::new(PASS)) };
        let next = Arc::clone(&relay.next);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let upstream = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await.unwrap();
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
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
        match next.swap(PASS, Ordering::SeqCst) {
            SWALLOW => {}
            CUT => break,
            _ => to_client.write_all(&buffer[..read]).await.unwrap(),
        }
    }
    questions.abort();
}

#[tokio::test]
async fn a_claim_whose_reply_was_lost_is_granted_all_the_same() {
    let server = RedisServer::start(&[]);
    for how in [SWALLOW, CUT] {
        let relay = Relay::before(server.port()).await;
        let store = quiet(&StoreConfig { timeout: Duration::from_secs(2), ..config(relay.port) });
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
    let server = RedisServer::start(&[]);
    let timeout = Duration::from_secs(1);
    let store = quiet(&StoreConfig { timeout, ..config(server.port()) });
    let running = completed(&*store, &response(1)).await;
    server.signal("STOP");
    tokio::time::pause();
    for _ in 0..2 {
        let begun = tokio::time::Instant::now();
        let error = store.claim(&claim()).await.unwrap_err();
        assert!(begun.elapsed() <= timeout + timeout / 10, "{:?}", begun.elapsed());
        assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::TimedOut, true), "{error}");
        let begun = tokio::time::Instant::now();
        assert_eq!(store.get(&running.id).await.unwrap_err().kind, StoreErrorKind::TimedOut);
        assert!(begun.elapsed() <= timeout + timeout / 10, "{:?}", begun.elapsed());
    }
    assert!(store.ready().is_err());
    server.signal("CONT");
    tokio::time::resume();
    replay(&*store, &running).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_was_certainly_not_asked() {
    let port = redis_server::free_port();
    let store = quiet(&StoreConfig { timeout: Duration::from_millis(200), ..config(port) });
    let error = store.claim(&claim()).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Unreachable, false), "{error}");
}

#[tokio::test]
async fn a_server_that_comes_later_or_comes_back_is_used() {
    let mut server = RedisServer::start(&[]);
    server.stop();
    let process = Process::open(&StoreConfig { timeout: Duration::from_millis(500), ..config(server.port()) });
    let reason = process.becomes_unready().await;
    assert!(reason.contains("reach"), "{reason}");
    server.restart();
    process.becomes_ready().await;
    completed(&*process.store, &response(1)).await;
    server.stop();
    process.becomes_unready().await;
    assert_eq!(process.store.claim(&claim()).await.unwrap_err().kind, StoreErrorKind::Unreachable);
    server.restart();
    process.becomes_ready().await;
    completed(&*process.store, &response(1)).await;
}
