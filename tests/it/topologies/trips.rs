//! How many round trips operations take, counted by the servers.

use onceproxy::record::CompleteReply;

use super::*;
use crate::support::topologies::Node;

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
    assert!(matches!(store.claim(&again(&claim)).await.unwrap(), ClaimReply::Completed(_)));
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
