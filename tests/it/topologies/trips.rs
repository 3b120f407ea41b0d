//! How many round trips operations take, counted by the servers.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::support::topologies::Node;
use onceproxy::record::CompleteReply;

/// How often these servers ran this command.
fn calls<'a>(nodes: impl IntoIterator<Item = &'a Node>, command: &str) -> u64 {
    let calls = |node: &Node| {
        let counted = node.info(&format!("cmdstat_{command}"));
        counted.strip_prefix("calls=").map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    nodes.into_iter().map(calls).sum()
}

/// Executes once and replays once with a store that knows its way; returns how often scripts ran in each.
async fn execute_and_replay(store: &dyn Store, nodes: &[Node]) -> [u64; 2] {
    let execute = async || {
        let claim = claim_in(7);
        assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
        assert_eq!(store.complete(&claim, &response(10), HOUR).await.unwrap(), CompleteReply::Stored);
        claim
    };
    // Finds the server, looks at it and teaches it the scripts.
    execute().await;
    let scripts = || calls(nodes, "evalsha") + calls(nodes, "eval");
    let before = scripts();
    let claim = execute().await;
    let first = scripts() - before;
    assert!(matches!(store.claim(&again(&claim)).await.unwrap(), ClaimReply::Taken(Taken::Completed(_))));
    [first, scripts() - before - first]
}

#[tokio::test]
async fn a_first_execution_takes_two_trips_and_a_replay_one_everywhere() {
    let cluster = Cluster::start().await;
    assert_eq!(execute_and_replay(&*quiet(&cluster_config(&cluster)), &cluster.nodes).await, [2, 1]);
    assert_eq!(calls(&cluster.nodes, "script|load"), 0);
    assert_eq!(cluster.errors("MOVED"), 0, "each key is asked for where it is");
    let watched = Watched::start().await;
    assert_eq!(execute_and_replay(&*quiet(&sentinel_config(&watched)), &watched.servers).await, [2, 1]);
    // The same with replicas: each claim that was granted has its WAIT behind it, and nothing else has.
    let config = with_replicas(sentinel_config(&watched), 2);
    let store = quiet(&config);
    assert_eq!(execute_and_replay(&*store, &watched.servers).await, [2, 1]);
    let waits = calls(&watched.servers, "wait");
    assert_eq!(waits, 3, "two executions and a replay, whose claim may have been a grant");
}

/// A relay that counts round trips: how often something was sent after an answer, or first.
async fn counting(server: u16) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (port, trips) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
    let counter = Arc::clone(&trips);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut upstream = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                let (mut sent, mut answered) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
                let mut is_answered = true;
                loop {
                    // One after the other, so that what was sent before an answer is seen before it.
                    tokio::select! {
                        biased;
                        Ok(n @ 1..) = client.read(&mut sent) => {
                            counter.fetch_add(u64::from(is_answered), Ordering::SeqCst);
                            is_answered = false;
                            upstream.write_all(&sent[..n]).await.unwrap();
                        }
                        Ok(n @ 1..) = upstream.read(&mut answered) => {
                            is_answered = true;
                            client.write_all(&answered[..n]).await.unwrap();
                        }
                        else => return,
                    }
                }
            });
        }
    });
    (port, trips)
}

#[tokio::test]
async fn a_claim_and_the_wait_for_replicas_are_one_trip() {
    let watched = Watched::start().await;
    let master = &watched.servers[0];
    let (port, trips) = counting(master.port).await;
    let one = Redis::new(Topology::One(Place { host: "127.0.0.1".into(), port }));
    let store = quiet(&with_replicas(contract::config(Backend::Redis(one)), 2));
    let execute = async || {
        let claim = claim_in(7);
        assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
        assert_eq!(store.complete(&claim, &response(10), HOUR).await.unwrap(), CompleteReply::Stored);
        claim
    };
    execute().await;
    let (before, waits) = (trips.load(Ordering::SeqCst), calls([master], "wait"));
    let claim = execute().await;
    assert_eq!((trips.load(Ordering::SeqCst) - before, calls([master], "wait") - waits), (2, 1));
    assert!(matches!(store.claim(&again(&claim)).await.unwrap(), ClaimReply::Taken(Taken::Completed(_))));
    assert_eq!(trips.load(Ordering::SeqCst) - before, 3);
}
