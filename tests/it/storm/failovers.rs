//! Blows at servers that have replicas: their master is lost, stands still, or is replaced by hand; slots move.
//!
//! Each is healed only when a replica has taken over and the old master is one of its replicas: then the next can come.

use std::time::Duration;

use crate::support::topologies::{Cluster, Node, Watched};
use crate::support::{World, eventually};

/// What is done to a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strike {
    /// `kill -9`, and started again, without its data, once a replica has taken over.
    Kill,
    /// Nothing reaches its replicas any more, while it goes on; then `kill -9` as above.
    CutOffAndKill,
    /// It stands still until a replica has taken over, and then believes for a while that it is the master.
    Pause,
    /// Nothing reaches it, neither from callers nor from replicas and sentinels, until a replica has taken over; then it
    /// believes for a while that it is the master.
    CutOff,
    /// `SENTINEL FAILOVER` or `CLUSTER FAILOVER`.
    ByHand,
    /// A slot with all its keys moves to another master.
    MoveSlot,
}

impl Strike {
    /// Whether the documents say that writes can be lost.
    pub(super) fn can_lose(self, world: &World) -> bool {
        match self {
            Strike::Kill | Strike::CutOffAndKill | Strike::Pause | Strike::CutOff => true,
            // In a cluster the master waits for its replica.
            Strike::ByHand => world.watched_ref().is_some(),
            Strike::MoveSlot => false,
        }
    }
}

/// How long a master that wakes up goes on believing that it is one.
const SPLIT: Duration = Duration::from_secs(1);

/// Who was struck, and who is to take over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Struck {
    pub(super) old: usize,
    new: usize,
    slot: u16,
}

impl Struck {
    /// Of this server, with whom nobody changes places.
    pub(super) fn of(old: usize) -> Struck {
        Struck { old, ..Struck::default() }
    }
}

/// Strikes the master of this shard.
pub(super) async fn begin(world: &mut World, strike: Strike, shard: u8) -> Struck {
    if world.watched_ref().is_some() {
        strike_watched(world.watched(), strike)
    } else {
        strike_cluster(world.cluster(), strike, shard)
    }
}

/// Waits until it is followed, and brings it back as a replica.
pub(super) async fn heal(world: &mut World, strike: Strike, struck: Struck) {
    if strike == Strike::MoveSlot {
        world.cluster().end_move(struck.slot, struck.old, struck.new);
        return;
    }
    if strike == Strike::CutOffAndKill {
        world.watched().servers[struck.old].kill();
    }
    let new = match world.watched_ref() {
        Some(watched) => watched.failed_over(struck.old).await,
        None => {
            let replica = &world.cluster().nodes[struck.new];
            eventually("the replica to take over", async || (replica.info("role") == "master").then_some(())).await;
            struck.new
        }
    };
    let is_cluster = world.watched_ref().is_none();
    let nodes = if is_cluster { &mut world.cluster().nodes } else { &mut world.watched().servers };
    match strike {
        Strike::Kill | Strike::CutOffAndKill => nodes[struck.old].restart().await,
        Strike::Pause => {
            nodes[struck.old].resume();
            tokio::time::sleep(SPLIT).await;
        }
        Strike::CutOff => {
            nodes[struck.old].relay.as_ref().expect("a relay").mend();
            tokio::time::sleep(SPLIT).await;
        }
        Strike::ByHand | Strike::MoveSlot => {}
    }
    if !is_cluster {
        // The sentinels would do it after some seconds.
        let port = nodes[new].known.to_string();
        nodes[struck.old].command(&["REPLICAOF", "127.0.0.1", &port]);
    }
    let old = &nodes[struck.old];
    let follows = async || (old.info("role") == "slave" && old.info("master_link_status") == "up").then_some(());
    eventually("the old master to follow the new one", follows).await;
}

/// Counts the failovers there were; `None` where there are no replicas. On a machine that is busy enough a master can be
/// taken for gone that nobody has struck.
pub(super) fn count(world: &World) -> Option<u64> {
    if let Some(watched) = world.watched_ref() {
        let told = watched.sentinels[0].command(&["SENTINEL", "MASTER", "main"]);
        let mut lines = told.lines().skip_while(|line| *line != "config-epoch");
        return Some(lines.nth(1).expect("an epoch").parse().expect("a number"));
    }
    let nodes = &world.cluster_ref()?.nodes;
    let epoch = |node: &Node| -> u64 {
        let info = node.command(&["CLUSTER", "INFO"]);
        let line = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        line.expect("an epoch").trim().parse().expect("a number")
    };
    nodes.iter().filter(|node| node.answers()).map(epoch).max()
}

fn strike_watched(watched: &mut Watched, strike: Strike) -> Struck {
    let old = watched.servers.iter().position(|node| node.info("role") == "master").expect("a master");
    // Twice this must pass between two failovers.
    let soon = ["SENTINEL", "SET", "main", "failover-timeout", "1000"];
    watched.sentinels.iter().for_each(|sentinel| drop(sentinel.command(&soon)));
    match strike {
        Strike::Kill => watched.servers[old].kill(),
        Strike::CutOffAndKill => watched.servers[old].cut_off_replicas(),
        Strike::Pause => watched.servers[old].pause(),
        Strike::CutOff => watched.servers[old].relay.as_ref().expect("a relay").cut(),
        Strike::ByHand | Strike::MoveSlot => {
            assert_eq!(watched.sentinels[0].command(&["SENTINEL", "FAILOVER", "main"]), "OK");
        }
    }
    Struck::of(old)
}

/// The master of this shard and its slot.
pub(super) fn master_of(cluster: &Cluster, shard: u8) -> (usize, u16) {
    let key = format!("once:{{{shard:02x}}}:open");
    let slot: u16 = cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", &key]).parse().expect("a slot");
    (cluster.master_of(slot, 0), slot)
}

/// Ends every server at once, as a power failure does.
pub(super) fn kill_all(world: &mut World) {
    let is_cluster = world.watched_ref().is_none();
    let nodes = if is_cluster { &mut world.cluster().nodes } else { &mut world.watched().servers };
    nodes.iter_mut().for_each(Node::kill);
}

/// Starts them again, without what they held, and waits until each knows its place.
pub(super) async fn restart_all(world: &mut World) {
    let is_cluster = world.watched_ref().is_none();
    let nodes = if is_cluster { &mut world.cluster().nodes } else { &mut world.watched().servers };
    for node in nodes {
        node.restart().await;
    }
    if is_cluster {
        let cluster = world.cluster();
        eventually("the cluster to be whole again", async || cluster.is_whole().then_some(())).await;
    } else {
        world.watched().settle().await;
    }
}

fn strike_cluster(cluster: &mut Cluster, strike: Strike, shard: u8) -> Struck {
    let (old, slot) = master_of(cluster, shard);
    let port = cluster.nodes[old].known.to_string();
    let replica = |node: &Node| node.info("role") == "slave" && node.info("master_port") == port;
    let other = |n: &usize| *n != old && cluster.nodes[*n].info("role") == "master";
    let new = match strike {
        Strike::MoveSlot => (0..cluster.nodes.len()).find(other),
        _ => cluster.nodes.iter().position(replica),
    };
    let new = new.expect("a node that can take over");
    match strike {
        Strike::Kill | Strike::CutOffAndKill => cluster.nodes[old].kill(),
        Strike::Pause => cluster.nodes[old].pause(),
        // The nodes of a cluster talk to each other by other ports than those of their clients.
        Strike::CutOff => panic!("a node that is cut off is still there for the others"),
        Strike::ByHand => assert_eq!(cluster.nodes[new].command(&["CLUSTER", "FAILOVER"]), "OK"),
        Strike::MoveSlot => {
            cluster.begin_move(slot, old, new);
            // Half of them now, the rest when the move ends: meanwhile a record and its index may be apart.
            cluster.move_keys(slot, old, new, |key| key.contains(":r:"));
        }
    }
    Struck { old, new, slot }
}
