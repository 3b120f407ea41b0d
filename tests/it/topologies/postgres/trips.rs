//! How many round trips operations take, counted on the wire; and what a claim asks of the server.

use std::sync::atomic::AtomicU64;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A relay that counts the questions: the messages `Sync` (S) and `Query` (Q), each of which is one round trip.
pub(in crate::topologies) async fn counting(server: u16) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (port, trips) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
    let counter = Arc::clone(&trips);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let upstream = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = upstream.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
                // The first message has no kind.
                let mut length = [0; 4];
                from_client.read_exact(&mut length).await.unwrap();
                let mut message = vec![0; u32::from_be_bytes(length) as usize - 4];
                from_client.read_exact(&mut message).await.unwrap();
                to_server.write_all(&[&length[..], &message].concat()).await.unwrap();
                let mut head = [0; 5];
                while from_client.read_exact(&mut head).await.is_ok() {
                    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4;
                    let mut message = vec![0; length];
                    from_client.read_exact(&mut message).await.unwrap();
                    if matches!(head[0], b'S' | b'Q') {
                        counter.fetch_add(1, Ordering::SeqCst);
                    }
                    to_server.write_all(&[&head[..], &message].concat()).await.unwrap();
                }
            });
        }
    });
    (port, trips)
}

#[tokio::test]
async fn a_first_execution_takes_two_trips_and_a_replay_one() {
    let server = PostgresServer::shared();
    let config = prepared(backend(server.port())).await;
    let (port, trips) = counting(server.port()).await;
    let store = quiet(&through(&config, port));
    // Connects and looks at the server.
    completed(&*store, &response(1)).await;
    let since = |before: u64| trips.load(Ordering::SeqCst) - before;
    let before = trips.load(Ordering::SeqCst);
    let first = completed(&*store, &response(10)).await;
    assert_eq!(since(before), 2);
    replay(&*store, &first).await;
    assert_eq!(since(before), 3);
    let large = completed(&*store, &response(64 * 1024 + 1)).await;
    assert_eq!(since(before), 5);
    assert_eq!(replay(&*store, &large).await, response(64 * 1024 + 1));
    assert_eq!(since(before), 7, "a large body is fetched by a trip of its own");
    let claim = claim();
    store.claim(&claim).await.unwrap();
    let before = trips.load(Ordering::SeqCst);
    store.renew(&claim).await.unwrap();
    assert_eq!(since(before), 1);
    store.claim(&again(&claim)).await.unwrap();
    assert_eq!(since(before), 2);
}

#[tokio::test]
async fn what_is_written_is_safe_before_it_is_answered_whatever_the_default_is() {
    let server = PostgresServer::start(&[
        "synchronous_commit=off",
        "wal_writer_delay=10s",
        "wal_writer_flush_after=1GB",
        // Nothing else writes to the log meanwhile.
        "wal_level=minimal",
        "max_wal_senders=0",
    ]);
    let config = prepared(backend(server.port())).await;
    let store = quiet(&config);
    completed(&*store, &response(1)).await;
    let report = store.inspect().await.unwrap();
    assert!(report.broken().is_none() && report.to_string().contains("asks for `on` by itself"), "{report}");
    for _ in 0..20 {
        let claim = claim();
        // How much of the log is written but not flushed, just after the claim was answered.
        assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
        let behind = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()) = 0";
        assert_eq!(server.sql(behind), "t");
    }
    server.sql("CREATE TABLE lazy(n int)");
    let behind = "BEGIN; INSERT INTO lazy VALUES (1); COMMIT; \
                  SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()) > 0";
    assert_eq!(server.sql(behind), "t", "synchronous_commit = off is not in force");
}
