//! Waking those who wait here for a record that another process changes: one connection that listens, one subscription
//! and one slow poll per record, however many wait.
//!
//! The table says what should be subscribed to; the listener makes it so. When the listener is down nobody is refused
//! for it: the poll goes on, and everyone is woken when it is back.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval, sleep, timeout};
use tracing::debug;

use super::ask::{Limits, Question, ask};
use super::directory::Directory;
use super::lane::Lane;
use super::link::Connection;
use super::server::Server;
use super::topology::Topology;
use super::{Shared, together};
use crate::record::RecordId;
use crate::store::Watch;
use crate::store::watchers::{Watcher, Watchers};

const POLL_EVERY: Duration = Duration::from_secs(1);
const RECONNECT_AFTER: Duration = Duration::from_millis(250);
const PING_EVERY: Duration = Duration::from_secs(5);
const POLL_SLICE: usize = 256;
// Of a record's head: version to token. A renewal changes none of it.
const POLLED_HEAD: i64 = 23;

/// What this process waits for.
pub(super) struct Subscriptions {
    watchers: Watchers,
    table: Mutex<Table>,
    // Says that a record's entry came or went. Taken by the listener when it runs.
    changes: mpsc::UnboundedSender<RecordId>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<RecordId>>>,
}

#[derive(Default)]
struct Table {
    is_listening: bool,
    // The servers, among several, whose listeners are down.
    deaf: Vec<String>,
    wanted: HashMap<RecordId, Entry>,
}

struct Entry {
    watchers: usize,
    // The server has confirmed it, or the listener is down and nobody should wait for that.
    is_settled: watch::Sender<bool>,
}

impl Subscriptions {
    /// An empty table.
    pub(super) fn new() -> Subscriptions {
        let (changes, inbox) = mpsc::unbounded_channel();
        let (watchers, table) = (Watchers::default(), Mutex::default());
        Subscriptions { watchers, table, changes, inbox: Mutex::new(Some(inbox)) }
    }

    /// Begins to watch, and returns when the server has confirmed it or will not in time.
    pub(super) async fn watch(shared: &Arc<Shared>, id: &RecordId, patience: Duration) -> Box<dyn Watch> {
        let subscriptions = &shared.subscriptions;
        let watcher = subscriptions.watchers.register(id);
        let (is_listening, mut is_settled) = subscriptions.want(&shared.topology, id);
        let subscribed = Subscribed { watcher, _share: Share { shared: Arc::clone(shared), id: id.clone() } };
        if is_listening {
            // Late or never, the poll is there.
            let _ = timeout(patience, is_settled.wait_for(|settled| *settled)).await;
        }
        Box::new(subscribed)
    }

    fn want(&self, topology: &Topology, id: &RecordId) -> (bool, watch::Receiver<bool>) {
        let server = match topology {
            Topology::One(_) => None,
            Topology::Changing(directory) => directory.known_server_of(id.hash()[0]).map(|server| server.address()),
        };
        let mut table = self.lock();
        let is_listening = table.is_listening && !server.is_some_and(|server| table.deaf.contains(&server));
        let entry = table.wanted.entry(id.clone()).or_insert_with(|| {
            let _ = self.changes.send(id.clone());
            Entry { watchers: 0, is_settled: watch::Sender::new(false) }
        });
        entry.watchers += 1;
        (is_listening, entry.is_settled.subscribe())
    }

    fn want_no_more(&self, id: &RecordId) {
        let mut table = self.lock();
        if let Some(entry) = table.wanted.get_mut(id) {
            entry.watchers -= 1;
            if entry.watchers == 0 {
                table.wanted.remove(id);
                let _ = self.changes.send(id.clone());
            }
        }
    }

    /// The listener of this server is down: nobody should wait for it.
    fn stop_listening(&self, shared: &Shared, server: &Server) {
        let mut table = self.lock();
        if let Topology::One(_) = shared.topology {
            table.is_listening = false;
        } else if !table.deaf.contains(&server.address()) {
            table.deaf.push(server.address());
        }
        for entry in table.wanted.values() {
            entry.is_settled.send_replace(true);
        }
    }

    fn settle(&self, id: &RecordId) {
        if let Some(entry) = self.lock().wanted.get(id) {
            entry.is_settled.send_replace(true);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Subscribed {
    watcher: Watcher,
    _share: Share,
}

impl Watch for Subscribed {
    fn changed(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.watcher.changed()
    }
}

/// One share in a subscription.
struct Share {
    shared: Arc<Shared>,
    id: RecordId,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shared.subscriptions.want_no_more(&self.id);
    }
}

/// Listens for published changes for as long as it is polled, through as many connections as it takes: one to each
/// server that has records.
pub(super) async fn listen(shared: &Arc<Shared>) {
    let taken = shared.subscriptions.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut inbox) = taken else { return };
    match &shared.topology {
        Topology::One(server) => listen_to(shared, server, &mut inbox).await,
        Topology::Changing(directory) => listen_to_all(shared, directory, &mut inbox).await,
    }
}

/// Gives each record to the listener of the server that has it, anew whenever that changes.
async fn listen_to_all(shared: &Arc<Shared>, directory: &Directory, inbox: &mut mpsc::UnboundedReceiver<RecordId>) {
    let mut changes = directory.changes();
    let mut listeners: Vec<Listening> = Vec::new();
    let mut ids = Vec::new();
    loop {
        let servers = directory.servers();
        listeners.retain(|listening| servers.iter().any(|server| Arc::ptr_eq(server, &listening.server)));
        for server in servers {
            if !listeners.iter().any(|listening| Arc::ptr_eq(&server, &listening.server)) {
                listeners.push(Listening::begin(shared, server));
            }
        }
        {
            let mut table = shared.subscriptions.lock();
            table.is_listening = !listeners.is_empty();
            table.deaf.retain(|deaf| listeners.iter().any(|listening| listening.server.address() == *deaf));
        }
        // Those that have moved are subscribed to where they are now; for the others this changes nothing.
        ids.extend(shared.subscriptions.lock().wanted.keys().cloned());
        loop {
            for id in ids.drain(..) {
                let server = directory.known_server_of(id.hash()[0]);
                let listening =
                    listeners.iter().find(|l| server.as_ref().is_some_and(|server| Arc::ptr_eq(server, &l.server)));
                match listening {
                    Some(listening) => {
                        let _ = listening.ids.send(id);
                    }
                    None => shared.subscriptions.settle(&id),
                }
            }
            tokio::select! {
                _ = changes.changed() => break,
                _ = inbox.recv_many(&mut ids, POLL_SLICE) => {}
            }
        }
    }
}

/// The listener of one server. It ends when this is dropped.
struct Listening {
    server: Arc<Server>,
    ids: mpsc::UnboundedSender<RecordId>,
    task: tokio::task::JoinHandle<()>,
}

impl Listening {
    fn begin(shared: &Arc<Shared>, server: Arc<Server>) -> Listening {
        let (ids, mut inbox) = mpsc::unbounded_channel();
        let (its_shared, its_server) = (Arc::clone(shared), Arc::clone(&server));
        let task = tokio::spawn(async move { listen_to(&its_shared, &its_server, &mut inbox).await });
        Listening { server, ids, task }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen_to(shared: &Shared, server: &Server, inbox: &mut mpsc::UnboundedReceiver<RecordId>) {
    loop {
        let (pushes, mut heard) = mpsc::unbounded_channel();
        match timeout(shared.timeout, server.connect_listener(pushes)).await {
            Ok(Ok(connection)) => {
                let subscribed = HashMap::new();
                let mut listener = Listener { shared, server, connection, subscribed };
                let ended = listener.run(inbox, &mut heard).await;
                debug!(reason = ended, address = server.address(), "the connection that listens for changes ended");
            }
            Ok(Err(error)) => debug!(%error, address = server.address(), "cannot listen for changes"),
            Err(_) => debug!(address = server.address(), "cannot listen for changes: no answer in time"),
        }
        shared.subscriptions.stop_listening(shared, server);
        sleep(RECONNECT_AFTER).await;
    }
}

struct Listener<'a> {
    shared: &'a Shared,
    server: &'a Server,
    connection: Connection,
    subscribed: HashMap<String, RecordId>,
}

/// Why a listener must begin anew.
type Ended = &'static str;

impl Listener<'_> {
    async fn run(
        &mut self,
        inbox: &mut mpsc::UnboundedReceiver<RecordId>,
        heard: &mut mpsc::UnboundedReceiver<PushInfo>,
    ) -> Ended {
        let subscriptions = &self.shared.subscriptions;
        let mut ids: Vec<RecordId> = {
            let mut table = subscriptions.lock();
            table.is_listening = true;
            table.deaf.retain(|deaf| *deaf != self.server.address());
            table.wanted.keys().filter(|id| self.is_here(id)).cloned().collect()
        };
        if let Err(ended) = self.follow(&mut ids).await {
            return ended;
        }
        // What was published while nobody listened is lost.
        subscriptions.watchers.wake_all();
        let mut ping = interval(PING_EVERY);
        loop {
            tokio::select! {
                push = heard.recv() => match push {
                    Some(push) if matches!(push.kind, PushKind::Message | PushKind::SMessage) => self.hear(&push),
                    // Unasked, when the slot has moved away.
                    Some(push) if push.kind == PushKind::SUnsubscribe => self.lose(&push),
                    Some(push) if push.kind != PushKind::Disconnection => {}
                    _ => return "it broke",
                },
                taken = inbox.recv_many(&mut ids, POLL_SLICE) => {
                    if taken > 0 && let Err(ended) = self.follow(&mut ids).await {
                        return ended;
                    }
                }
                _ = ping.tick() => if !self.ping().await {
                    return "it does not answer";
                },
            }
        }
    }

    fn is_here(&self, id: &RecordId) -> bool {
        match &self.shared.topology {
            Topology::One(_) => true,
            Topology::Changing(directory) => {
                directory.known_server_of(id.hash()[0]).is_some_and(|server| std::ptr::eq(&*server, self.server))
            }
        }
    }

    fn hear(&self, push: &PushInfo) {
        if let Some(Value::BulkString(channel)) = push.data.first()
            && let Some(id) = std::str::from_utf8(channel).ok().and_then(|name| self.subscribed.get(name))
        {
            self.shared.subscriptions.watchers.wake(id);
        }
    }

    /// The server has taken a subscription away. Whoever has the record now is found, and what was missed looked for.
    fn lose(&mut self, push: &PushInfo) {
        if let Some(Value::BulkString(channel)) = push.data.first()
            && let Ok(name) = std::str::from_utf8(channel)
            && let Some(id) = self.subscribed.remove(name)
        {
            self.give_back(id);
        }
    }

    fn give_back(&self, id: RecordId) {
        if let Topology::Changing(directory) = &self.shared.topology {
            directory.doubt();
        }
        self.shared.subscriptions.watchers.wake(&id);
        let _ = self.shared.subscriptions.changes.send(id);
    }

    /// Subscribes or unsubscribes as the table says of these records.
    async fn follow(&mut self, ids: &mut Vec<RecordId>) -> Result<(), Ended> {
        let (mut wanted, mut unwanted) = (HashSet::new(), HashSet::new());
        {
            let table = self.shared.subscriptions.lock();
            for id in ids.iter() {
                let channel = self.shared.keys.record(id);
                match table.wanted.get(id) {
                    Some(entry) if self.subscribed.contains_key(&channel) => {
                        entry.is_settled.send_replace(true);
                    }
                    Some(_) => {
                        wanted.insert((channel, id.clone()));
                    }
                    None if self.subscribed.remove(&channel).is_some() => {
                        unwanted.insert(channel);
                    }
                    None => {}
                }
            }
        }
        ids.clear();
        if self.shared.topology.is_cluster() {
            return self.follow_each(wanted, unwanted).await;
        }
        const FAILED: Ended = "subscribing failed";
        if !unwanted.is_empty() {
            let channels: Vec<String> = unwanted.into_iter().collect();
            if !matches!(timeout(self.shared.timeout, self.connection.commands.unsubscribe(channels)).await, Ok(Ok(())))
            {
                return Err(FAILED);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let channels: Vec<&str> = wanted.iter().map(|(channel, _)| channel.as_str()).collect();
        if !matches!(timeout(self.shared.timeout, self.connection.commands.subscribe(channels)).await, Ok(Ok(()))) {
            return Err(FAILED);
        }
        for (channel, id) in wanted {
            self.settle(channel, id);
        }
        Ok(())
    }

    fn settle(&mut self, channel: String, id: RecordId) {
        self.shared.subscriptions.settle(&id);
        self.subscribed.insert(channel, id);
    }

    /// As `follow`, by sharded channels: each belongs to a slot, and the server may not have it any more.
    async fn follow_each(
        &mut self,
        wanted: HashSet<(String, RecordId)>,
        unwanted: HashSet<String>,
    ) -> Result<(), Ended> {
        let wanted: Vec<_> = wanted.into_iter().collect();
        let command = |word: &str, channel: &str| {
            let mut command = redis::cmd(word);
            command.arg(channel);
            command
        };
        let left = unwanted.iter().map(|channel| command("SUNSUBSCRIBE", channel));
        let commands: Vec<_> = left.chain(wanted.iter().map(|(channel, _)| command("SSUBSCRIBE", channel))).collect();
        let sent = commands.iter().map(|command| {
            let mut connection = self.connection.commands.clone();
            async move { connection.send_packed_command(command).await }
        });
        let Ok(answers) = timeout(self.shared.timeout, together::all(sent)).await else {
            return Err("subscribing took too long");
        };
        for ((channel, id), answer) in wanted.into_iter().zip(answers.into_iter().skip(unwanted.len())) {
            match answer.and_then(Value::extract_error) {
                Ok(_) => self.settle(channel, id),
                Err(error) if error.code() == Some("MOVED") => {
                    // Nobody waits for it meanwhile; the poll is there.
                    self.shared.subscriptions.settle(&id);
                    self.give_back(id);
                }
                Err(_) => return Err("subscribing failed"),
            }
        }
        Ok(())
    }

    async fn ping(&mut self) -> bool {
        let ping = redis::cmd("PING");
        matches!(timeout(self.shared.timeout, self.connection.commands.send_packed_command(&ping)).await, Ok(Ok(_)))
    }
}

/// Looks slowly at every record that is waited for, and wakes its watchers if it is not what it was. One look per
/// record, however many wait.
pub(super) async fn poll(shared: &Shared, lane: &Lane) {
    let mut last: HashMap<RecordId, Vec<u8>> = HashMap::new();
    loop {
        sleep(POLL_EVERY).await;
        let ids: Vec<RecordId> = shared.subscriptions.lock().wanted.keys().cloned().collect();
        let (count, begun) = (ids.len(), Instant::now());
        let groups = shared.topology.grouped(ids, |id| id.hash()[0]);
        let seen = together::all(groups.iter().map(|ids| poll_server(shared, lane, ids, &last))).await;
        last = seen.into_iter().flatten().collect();
        debug!(records = count, took = ?begun.elapsed(), "polled the records that are waited for");
    }
}

/// Looks at records of one server. Returns what it saw.
async fn poll_server(
    shared: &Shared,
    lane: &Lane,
    ids: &[RecordId],
    last: &HashMap<RecordId, Vec<u8>>,
) -> Vec<(RecordId, Vec<u8>)> {
    let mut seen = Vec::with_capacity(ids.len());
    for slice in ids.chunks(POLL_SLICE) {
        let mut commands = redis::pipe();
        for id in slice {
            commands.cmd("GETRANGE").arg(shared.keys.record(id)).arg(0).arg(POLLED_HEAD);
        }
        let limits = Limits::new(shared.timeout).impatient();
        let route = lane.to_shard(slice[0].hash()[0]);
        let Ok(Value::Array(heads)) = ask(route, &Question::Commands(commands), limits).await else { continue };
        for (id, head) in slice.iter().zip(heads) {
            let Value::BulkString(head) = head else { continue };
            // The first look has nothing to compare with, and something may have been missed before it.
            if last.get(id) != Some(&head) {
                shared.subscriptions.watchers.wake(id);
            }
            seen.push((id.clone(), head));
        }
    }
    seen
}
