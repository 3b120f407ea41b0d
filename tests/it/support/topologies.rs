//! Redis as it is run in production: a cluster of six nodes, a master with replicas and sentinels. Real servers on free
//! ports, ended with the test or with the process that runs it.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Child;

use crate::redis_server::{self, ask, free_port};

use super::eventually;
use super::proxy::signal;
use super::relay::Relay;

/// One server of a topology.
pub(crate) struct Node {
    /// Where it listens in clear, for the test's own questions.
    pub(crate) port: u16,
    /// Where it listens with TLS, if it does.
    pub(crate) tls_port: u16,
    /// The port under which the others and the proxies know it: one of the two, or that of its relay.
    pub(crate) known: u16,
    /// What everybody but the test reaches it by, if they do.
    pub(crate) relay: Option<Relay>,
    child: Child,
    dir: tempfile::TempDir,
    settings: Vec<String>,
}

impl Node {
    fn begin(dir: tempfile::TempDir, place: Place, settings: Vec<String>) -> Node {
        let Place { port, tls_port, known, relay, .. } = place;
        let words: Vec<&str> = settings.iter().map(String::as_str).collect();
        let child = redis_server::begin(dir.path(), port, &words);
        Node { port, tls_port, known, relay, child, dir, settings }
    }

    /// The answer to one command, as text: of a list the elements, one a line.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        ask(self.port, words).unwrap_or_else(|| panic!("the server on {} is gone: {words:?}", self.port))
    }

    /// One field of INFO.
    pub(crate) fn info(&self, field: &str) -> String {
        let words = ["INFO", "everything"];
        // A sentinel that makes a server a replica closes all its connections, this one too: asked once more.
        let info = ask(self.port, &words).unwrap_or_else(|| self.command(&words));
        let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.unwrap_or_default().trim().to_owned()
    }

    /// How often it answered with this error.
    pub(crate) fn errors(&self, code: &str) -> u64 {
        let counted = self.info(&format!("errorstat_{code}"));
        counted.strip_prefix("count=").map_or(0, |count| count.parse().unwrap())
    }

    /// Whether it answers.
    pub(crate) fn answers(&self) -> bool {
        ask(self.port, &["PING"]).is_some()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same port, with what its folder holds.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        let words: Vec<&str> = self.settings.iter().map(String::as_str).collect();
        self.child = redis_server::begin(self.dir.path(), self.port, &words);
        eventually("a server to be back", async || self.answers().then_some(())).await;
    }

    /// SIGSTOP: it keeps its connections, and answers nothing.
    pub(crate) fn pause(&self) {
        signal("STOP", self.child.id());
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        signal("CONT", self.child.id());
    }

    /// Nothing reaches its replicas from here on, while it goes on itself.
    pub(crate) fn cut_off_replicas(&self) {
        assert_eq!(self.command(&["ACL", "SETUSER", "default", "-psync", "-sync"]), "OK");
        self.command(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Lets the replicas in again. Not by SYNC, which one may try just now: a replica that came by it acknowledges nothing.
    pub(crate) fn let_replicas_in(&self) {
        assert_eq!(self.command(&["ACL", "SETUSER", "default", "+psync"]), "OK");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where a server is to be: free ports, and a relay before it if there is to be one.
struct Place {
    port: u16,
    bus: u16,
    tls_port: u16,
    known: u16,
    relay: Option<Relay>,
}

/// What is asked of those who connect, and by which way they come.
#[derive(Clone, Default)]
pub(crate) struct Entry {
    /// Settings of a server that listens with TLS.
    tls: Vec<String>,
    /// Rights of the user `onceproxy` at the servers, and at the sentinels.
    rights: Option<(String, String)>,
    relayed: bool,
}

impl Entry {
    /// With TLS, by these files.
    pub(crate) fn tls(cert: &str, key: &str, ca: &str) -> Entry {
        let words =
            ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca, "--tls-auth-clients", "no"];
        Entry { tls: words.map(str::to_owned).to_vec(), ..Entry::default() }
    }

    /// With a user of these rights.
    pub(crate) fn user(mut self, rights: &str, rights_at_sentinels: &str) -> Entry {
        self.rights = Some((rights.to_owned(), rights_at_sentinels.to_owned()));
        self
    }

    /// By a relay before each server that has data.
    pub(crate) fn relayed(mut self) -> Entry {
        self.relayed = true;
        self
    }

    fn place(&self, relayed: bool) -> Place {
        let (port, bus, tls_port) = (free_port(), free_port(), free_port());
        let own = if self.tls.is_empty() { port } else { tls_port };
        let relay = relayed.then(|| Relay::before(SocketAddr::from((Ipv4Addr::LOCALHOST, own))));
        let known = relay.as_ref().map_or(own, |relay| relay.address.port());
        Place { port, bus, tls_port, known, relay }
    }

    /// What a server with TLS is told, its links to other servers included.
    pub(crate) fn tls_settings(&self, of_kind: &[&str], tls_port: u16) -> Vec<String> {
        if self.tls.is_empty() {
            return Vec::new();
        }
        let kind = of_kind.iter().map(|word| (*word).to_owned());
        ["--tls-port".to_owned(), tls_port.to_string()]
            .into_iter()
            .chain(self.tls.iter().cloned())
            .chain(kind)
            .collect()
    }

    /// What a server with data is told about the user of the proxies.
    pub(crate) fn user_settings(&self) -> Vec<String> {
        self.rights.as_ref().map(|(rights, _)| user(rights)).unwrap_or_default()
    }

    fn user_settings_of_sentinels(&self) -> Vec<String> {
        self.rights.as_ref().map(|(_, rights)| user(rights)).unwrap_or_default()
    }
}

fn user(rights: &str) -> Vec<String> {
    ["--user", "onceproxy"].into_iter().chain(rights.split_whitespace()).map(str::to_owned).collect()
}

/// `--name port`, as a server is to tell others where it is.
fn announced(name: &str, place: &Place) -> Vec<String> {
    let told = [name.to_owned(), place.known.to_string()];
    if place.relay.is_some() { told.to_vec() } else { Vec::new() }
}

/// Three masters with a replica each. Node `n + 3` is the replica of node `n` to begin with.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    tls: bool,
}

const SLOTS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

impl Cluster {
    /// Six nodes in clear, without passwords, in which a failover takes about two seconds.
    pub(crate) async fn start() -> Cluster {
        Cluster::start_with(&Entry::default()).await
    }

    /// The same, with these demands on whoever enters.
    pub(crate) async fn start_with(entry: &Entry) -> Cluster {
        for _ in 0..5 {
            if let Some(cluster) = Cluster::try_start(entry).await {
                return cluster;
            }
        }
        panic!("no free ports for a cluster");
    }

    /// The cluster is written into the files of its nodes, so that they need not meet each other first.
    async fn try_start(entry: &Entry) -> Option<Cluster> {
        let places: Vec<Place> = (0..6).map(|_| entry.place(entry.relayed)).collect();
        let known: Vec<(u16, u16)> = places.iter().map(|place| (place.known, place.bus)).collect();
        let id = |n: usize| format!("{:040x}", n + 1);
        let mut nodes = Vec::new();
        for (me, place) in places.into_iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let mut file = String::new();
            for (n, (port, bus)) in known.iter().enumerate() {
                let myself = if n == me { "myself," } else { "" };
                let role = if n < 3 { format!("{myself}master -") } else { format!("{myself}slave {}", id(n - 3)) };
                let slots = SLOTS.get(n).map(|(from, to)| format!(" {from}-{to}")).unwrap_or_default();
                let epoch = n % 3 + 1;
                file.push_str(&format!("{} 127.0.0.1:{port}@{bus} {role} 0 0 {epoch} connected{slots}\n", id(n)));
            }
            file.push_str("vars currentEpoch 3 lastVoteEpoch 0\n");
            std::fs::write(dir.path().join("nodes.conf"), file).unwrap();
            let bus = place.bus.to_string();
            let usual = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", &bus];
            let more = ["--repl-diskless-sync-delay", "0", "--cluster-allow-replica-migration", "no"];
            let rest = ["--cluster-require-full-coverage", "no"];
            let mut settings: Vec<String> =
                usual.iter().chain(&more).chain(&rest).map(|word| (*word).to_owned()).collect();
            let tls = ["--tls-cluster", "yes", "--tls-replication", "yes"];
            settings.extend(entry.tls_settings(&tls, place.tls_port));
            let tls = if entry.tls.is_empty() { "" } else { "tls-" };
            settings.extend(announced(&format!("--cluster-announce-{tls}port"), &place));
            settings.extend(entry.user_settings());
            nodes.push(Node::begin(dir, place, settings));
        }
        let mut cluster = Cluster { nodes, tls: !entry.tls.is_empty() };
        let came_up = eventually("the cluster to be whole", async || {
            if cluster.nodes.iter_mut().any(|node| node.child.try_wait().unwrap().is_some()) {
                return Some(false);
            }
            cluster.is_whole().then_some(true)
        })
        .await;
        came_up.then_some(cluster)
    }

    /// Whether every node sees every slot served, and every replica has its master's data.
    pub(crate) fn is_whole(&self) -> bool {
        self.nodes.iter().all(|node| {
            ask(node.port, &["CLUSTER", "INFO"]).is_some_and(|info| info.contains("cluster_state:ok"))
                && (node.info("role") == "master" || node.info("master_link_status") == "up")
        })
    }

    /// The URL of the store.
    pub(crate) fn url(&self) -> String {
        format!("redis+cluster://{}", self.places())
    }

    /// The places of its nodes, as in a URL.
    pub(crate) fn places(&self) -> String {
        list(&self.nodes)
    }

    /// The node that is master of this slot, by what `node` says.
    pub(crate) fn master_of(&self, slot: u16, node: usize) -> usize {
        self.owner(slot, node).unwrap_or_else(|| panic!("nobody has slot {slot}"))
    }

    fn owner(&self, slot: u16, node: usize) -> Option<usize> {
        let nodes = self.nodes[node].command(&["CLUSTER", "NODES"]);
        let is_of = |range: &str| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            matches!((from.parse::<u16>(), to.parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
        };
        let line = nodes.lines().find(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            words[2].contains("master") && !words[2].contains("fail") && words[8..].iter().any(|range| is_of(range))
        })?;
        Some(self.nodes.iter().position(|node| line.contains(&format!(":{}@", node.known))).expect("one of ours"))
    }

    /// How often all nodes together answered with this error.
    pub(crate) fn errors(&self, code: &str) -> u64 {
        self.nodes.iter().map(|node| node.errors(code)).sum()
    }

    /// Begins to move a slot; keys move when [`Cluster::move_keys`] is called.
    pub(crate) fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, [from_id, to_id]) = (slot.to_string(), [from, to].map(|n| self.id(n)));
        assert_eq!(self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]), "OK");
        assert_eq!(self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]), "OK");
    }

    /// Moves the keys of a slot that are there now and match.
    pub(crate) fn move_keys(&self, slot: u16, from: usize, to: usize, matching: impl Fn(&str) -> bool) {
        let keys = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100000"]);
        let port = if self.tls { self.nodes[to].tls_port } else { self.nodes[to].port }.to_string();
        for key in keys.lines().filter(|key| matching(key)) {
            let moved = self.nodes[from].command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
            assert!(moved == "OK" || moved == "NOKEY", "{key}: {moved}");
        }
    }

    /// Ends the move: all keys that are left, then the slot itself.
    pub(crate) fn end_move(&self, slot: u16, from: usize, to: usize) {
        let number = slot.to_string();
        while self.nodes[from].command(&["CLUSTER", "COUNTKEYSINSLOT", &number]) != "0" {
            self.move_keys(slot, from, to, |_| true);
        }
        for node in [to, from].into_iter().chain((0..self.nodes.len()).filter(|n| *n != to && *n != from)) {
            self.assign(slot, to, node);
        }
    }

    /// Tells masters once more whose these slots are, where one has another opinion: a node that takes a slot in quick
    /// succession to another's may not have heard of that one's epoch yet, and then gives the slot back to an older word.
    /// `redis-cli --cluster fix` is for the same.
    pub(crate) fn settle(&self, owned: impl Iterator<Item = (u16, usize)>) {
        for (slot, to) in owned {
            for node in [to, (to + 1) % 3, (to + 2) % 3] {
                if self.owner(slot, node) != Some(to) {
                    self.assign(slot, to, node);
                }
            }
        }
    }

    fn assign(&self, slot: u16, to: usize, node: usize) {
        // Replicas learn it from their masters.
        let _ = self.nodes[node].command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.id(to)]);
    }

    fn id(&self, node: usize) -> String {
        self.nodes[node].command(&["CLUSTER", "MYID"])
    }
}

/// A master, two replicas and three sentinels, which call it `main`. A failover takes about two seconds.
pub(crate) struct Watched {
    /// The first is the master to begin with.
    pub(crate) servers: Vec<Node>,
    pub(crate) sentinels: Vec<Node>,
}

impl Watched {
    /// In clear, without passwords.
    pub(crate) async fn start() -> Watched {
        Watched::start_with(&Entry::default()).await
    }

    /// The same, with these demands on whoever enters.
    pub(crate) async fn start_with(entry: &Entry) -> Watched {
        for _ in 0..5 {
            if let Some(watched) = Watched::try_start(entry).await {
                return watched;
            }
        }
        panic!("no free ports for a master, its replicas and sentinels");
    }

    async fn try_start(entry: &Entry) -> Option<Watched> {
        let places: Vec<Place> = (0..3).map(|_| entry.place(entry.relayed)).collect();
        let master = places[0].known.to_string();
        let mut servers = Vec::new();
        for (n, place) in places.into_iter().enumerate() {
            let mut settings = vec!["--repl-diskless-sync-delay".to_owned(), "0".to_owned()];
            settings.extend(entry.tls_settings(&["--tls-replication", "yes"], place.tls_port));
            settings.extend(announced("--replica-announce-port", &place));
            settings.extend(entry.user_settings());
            if n > 0 {
                settings.extend(["--replicaof", "127.0.0.1", &master].map(str::to_owned));
            }
            servers.push(Node::begin(tempfile::tempdir().unwrap(), place, settings));
        }
        let mut watched = Watched { servers, sentinels: Vec::new() };
        if !watched.came_up().await {
            return None;
        }
        for _ in 0..3 {
            let place = entry.place(false);
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("sentinel.conf");
            let watch = format!(
                "sentinel monitor main 127.0.0.1 {master} 2\nsentinel down-after-milliseconds main 1000\n\
                 sentinel failover-timeout main 4000\n"
            );
            std::fs::write(&file, watch).unwrap();
            let mut settings = vec![file.to_str().unwrap().to_owned(), "--sentinel".to_owned()];
            settings.extend(entry.tls_settings(&["--tls-replication", "yes"], place.tls_port));
            settings.extend(entry.user_settings_of_sentinels());
            watched.sentinels.push(Node::begin(dir, place, settings));
        }
        watched.came_up().await.then_some(watched)
    }

    async fn came_up(&mut self) -> bool {
        eventually("the servers and sentinels to know each other", async || {
            let mut all = self.servers.iter_mut().chain(&mut self.sentinels);
            if all.any(|node| node.child.try_wait().unwrap().is_some()) {
                return Some(false);
            }
            self.is_whole().then_some(true)
        })
        .await
    }

    /// Whether the replicas have their master's data, and each sentinel knows the others and both replicas.
    fn is_whole(&self) -> bool {
        let knows = |sentinel: &Node| {
            sentinel.answers() && {
                let line = sentinel.info("master0");
                line.contains("status=ok") && line.contains("slaves=2") && line.contains("sentinels=3")
            }
        };
        self.servers.iter().all(Node::answers)
            && self.servers[1..].iter().all(|replica| replica.info("master_link_status") == "up")
            && self.sentinels.iter().all(knows)
    }

    /// The URL of the store.
    pub(crate) fn url(&self) -> String {
        format!("redis+sentinel://{}/main", self.places())
    }

    /// The places of the sentinels, as in a URL.
    pub(crate) fn places(&self) -> String {
        list(&self.sentinels)
    }

    /// Waits until the sentinels have made another server the master, and returns which.
    pub(crate) async fn failed_over(&self, before: usize) -> usize {
        eventually("the sentinels to name another master", async || {
            let new = self.named()?;
            (new != before && self.servers[new].info("role") == "master").then_some(new)
        })
        .await
    }

    /// The server that the sentinels name, `None` while they name none of ours.
    fn named(&self) -> Option<usize> {
        let named = self.sentinels[0].command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        let port: u16 = named.lines().nth(1)?.parse().ok()?;
        self.servers.iter().position(|node| port == node.known)
    }

    /// Makes all other servers replicas of the one that the sentinels name, which they would do themselves after some
    /// seconds, and waits until they have its data.
    pub(crate) async fn settle(&self) {
        eventually("all servers to follow the one that the sentinels name", async || {
            let master = &self.servers[self.named()?];
            let known = master.known.to_string();
            if !master.answers() {
                return None;
            }
            if master.info("role") != "master" {
                // It was started with the settings of its first day.
                master.command(&["REPLICAOF", "NO", "ONE"]);
            }
            let others = || self.servers.iter().filter(|node| node.known != master.known);
            for node in others().filter(|node| node.answers() && node.info("master_port") != known) {
                node.command(&["REPLICAOF", "127.0.0.1", &known]);
            }
            others().all(|node| node.info("master_link_status") == "up").then_some(())
        })
        .await;
    }
}

fn list(nodes: &[Node]) -> String {
    nodes.iter().map(|node| format!("127.0.0.1:{}", node.known)).collect::<Vec<_>>().join(",")
}
