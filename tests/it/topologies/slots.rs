//! A cluster whose slots move, and one of whose nodes stands still.

use std::collections::BTreeSet;

use onceproxy::record::LookReply;

use super::*;
use crate::support::{Request, Store as On, World, eventually, ms, pass, within_deadline};

/// The slots in which there can be records, with a shard of each.
fn slots(cluster: &Cluster) -> Vec<u16> {
    (0..=255).map(|shard| slot_of(cluster, shard)).collect()
}

#[tokio::test]
async fn g3_the_whole_flow_in_all_slots_while_they_move() {
    within_deadline("g3", Box::pin(g3())).await;
}

async fn g3() {
    let mut world =
        World::build(On::Cluster).proxies(2).store("timeout = \"10s\"").route("lease = \"30s\"").start().await;
    let slots = slots(world.cluster());
    // Half of each master's shards go to the next one, one slot after the other, while requests come in.
    let moves: Vec<(u16, usize, usize)> = slots
        .iter()
        .step_by(4)
        .map(|slot| (*slot, world.cluster().master_of(*slot, 0)))
        .map(|(slot, from)| (slot, from, (from + 1) % 3))
        .collect();
    let addresses = [world.proxies[0].address, world.proxies[1].address];
    let senders: Vec<_> = (0..4)
        .map(|sender| {
            tokio::spawn(async move {
                for n in (sender..1600).step_by(4) {
                    let request = Request::pay().key(&format!("k-{n}"));
                    let [first, second] = [addresses[n % 2], addresses[(n + 1) % 2]];
                    request.send(first).await.assert_executed(201);
                    request.send(second).await.assert_replay(201);
                }
            })
        })
        .collect();
    for (done, (slot, from, to)) in moves.iter().copied().enumerate() {
        let cluster = world.cluster();
        cluster.begin_move(slot, from, to);
        cluster.move_keys(slot, from, to, |_| true);
        if cluster.errors("ASK") == 0 {
            // This one stays so, its keys there and the slot still here, until somebody asks for it.
            eventually("a client to be sent on", async || (cluster.errors("ASK") > 0).then_some(())).await;
        }
        cluster.end_move(slot, from, to);
        if done % 8 == 7 {
            cluster.settle(moves[..=done].iter().map(|(slot, _, to)| (*slot, *to)));
        }
    }
    while senders.iter().any(|sender| !sender.is_finished()) {
        world.cluster().settle(moves.iter().map(|(slot, _, to)| (*slot, *to)));
        pass(ms(200)).await;
    }
    for sender in senders {
        sender.await.unwrap();
    }
    assert_eq!(world.executions(), 1600);
    let keys: Vec<String> =
        world.cluster().nodes[..3].iter().map(|node| node.command(&["KEYS", "once:*:r:*"])).collect();
    let shards: BTreeSet<&str> = keys.iter().flat_map(|keys| keys.lines()).map(|key| &key[6..8]).collect();
    assert!(shards.len() > 250, "{} shards had keys", shards.len());
    let cluster = world.cluster();
    assert_eq!(cluster.errors("CROSSSLOT"), 0);
    for code in ["MOVED", "ASK", "TRYAGAIN"] {
        assert!(cluster.errors(code) > 0, "{code} was not seen");
    }
    assert_eq!(world.proxy().metric("onceproxy_store_errors_total", &[]).await, 0.0);
    assert!(world.proxy().open_records("").await.is_empty());
}

#[tokio::test]
async fn a_claim_waits_for_a_slot_that_is_half_moved() {
    let cluster = Cluster::start().await;
    let store = quiet(&cluster_config(&cluster));
    let shard = 0x3f;
    let (slot, first) = (slot_of(&cluster, shard), claim_in(shard));
    assert_eq!(store.claim(&first).await.unwrap(), GRANTED);
    store.complete(&first, &response(70_000), HOUR).await.unwrap();
    let open = claim_in(shard);
    store.claim(&open).await.unwrap();
    let from = cluster.master_of(slot, 0);
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to);
    cluster.move_keys(slot, from, to, |key| key.contains(":r:"));
    // A record that is alone is asked for where it is by now.
    assert!(store.get(&first.id).await.unwrap().is_some());
    assert!(cluster.errors("ASK") > 0, "it went by a redirection");
    assert_eq!(cluster.errors("MOVED"), 0);
    // What needs the index too, which has not moved, waits until it has.
    let late = claim_in(shard);
    let before = cluster.errors("TRYAGAIN");
    let claiming = tokio::spawn({
        let (store, late) = (Arc::clone(&store), late.clone());
        async move { store.claim(&late).await }
    });
    eventually("the claim to be told to try again", async || (cluster.errors("TRYAGAIN") > before).then_some(())).await;
    cluster.end_move(slot, from, to);
    assert_eq!(claiming.await.unwrap().unwrap(), GRANTED);
    // All is there, and new claims go straight to where it is.
    assert!(matches!(store.claim(&again(&first)).await.unwrap(), ClaimReply::Taken(Taken::Completed(_))));
    assert!(matches!(store.claim(&again(&open)).await.unwrap(), ClaimReply::Taken(Taken::InProgress { .. })));
    let moved = cluster.errors("MOVED");
    store.claim(&claim_in(shard)).await.unwrap();
    assert_eq!((cluster.errors("MOVED"), cluster.errors("CROSSSLOT")), (moved, 0));
}

#[tokio::test]
async fn a_node_that_stands_still_holds_up_nobody_elsewhere() {
    let cluster = Cluster::start().await;
    let config = StoreConfig { timeout: Duration::from_secs(2), ..cluster_config(&cluster) };
    let process = Process::ready(&config).await;
    let shard_of =
        |node: usize| (0..=255).find(|shard| cluster.master_of(slot_of(&cluster, *shard), 0) == node).unwrap();
    let [still, other] = [shard_of(0), shard_of(1)];
    for shard in [still, other] {
        process.store.claim(&claim_in(shard)).await.unwrap();
    }
    // Its replica too, so that nobody takes over.
    let nodes = [&cluster.nodes[0], &cluster.nodes[3]];
    nodes.iter().for_each(|node| node.pause());
    let hanging = tokio::spawn({
        let store = Arc::clone(&process.store);
        async move { store.claim(&claim_in(still)).await }
    });
    let mut claimed = 0;
    while !hanging.is_finished() {
        assert_eq!(process.store.claim(&claim_in(other)).await.unwrap(), GRANTED);
        claimed += 1;
    }
    assert!(hanging.await.unwrap().is_err());
    assert!(claimed > 20, "only {claimed} claims went on meanwhile");
    assert_eq!(process.store.ready(), Ok(()), "most keys can be claimed");
    // The sweep of the other nodes goes on: a crash shows although one node is away.
    let lapsing = Claim { lease: ms(1), ..claim_in(other) };
    process.store.claim(&lapsing).await.unwrap();
    until("the claim that lapsed is swept", async || {
        process.metrics.expose().0.contains("onceproxy_stale_claims_total{route=\"redis\"} 1").then_some(())
    })
    .await;
    nodes.iter().for_each(|node| node.resume());
    until("the node serves again", async || process.store.claim(&claim_in(still)).await.ok()).await;
}

#[tokio::test]
async fn a_duplicate_that_waits_is_woken_where_its_slot_has_moved() {
    let cluster = Cluster::start().await;
    let (owner, waiter) = (quiet(&cluster_config(&cluster)), Process::ready(&cluster_config(&cluster)).await);
    let shard = 0x3f;
    let slot = slot_of(&cluster, shard);
    let from = cluster.master_of(slot, 0);
    let to = (from + 1) % 3;
    let claim = claim_in(shard);
    owner.claim(&claim).await.unwrap();
    let mut watch = waiter.store.watch(&claim.id).await.unwrap();
    let listens =
        |node: usize| cluster.nodes[node].command(&["PUBSUB", "SHARDCHANNELS"]).contains(&claim.id.hex().to_string());
    eventually("it to listen where the record is", async || listens(from).then_some(())).await;
    cluster.begin_move(slot, from, to);
    cluster.end_move(slot, from, to);
    eventually("it to listen where the record is now", async || (listens(to) && !listens(from)).then_some(())).await;
    owner.complete(&claim, &response(1), HOUR).await.unwrap();
    until("the completion is seen", async || {
        watch.changed().await;
        matches!(waiter.store.look(&claim.id, &claim.imprint).await, Ok(LookReply::Taken(Taken::Completed(_))))
            .then_some(())
    })
    .await;
}
