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

use super::Shared;
use super::ask::{Limits, Question, ask};
use super::link::{Connection, Link};
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
        let (is_listening, mut is_settled) = subscriptions.want(id);
        let subscribed = Subscribed { watcher, _share: Share { shared: Arc::clone(shared), id: id.clone() } };
        if is_listening {
            // Late or never, the poll is there.
            let _ = timeout(patience, is_settled.wait_for(|settled| *settled)).await;
        }
        Box::new(subscribed)
    }

    fn want(&self, id: &RecordId) -> (bool, watch::Receiver<bool>) {
        let mut table = self.lock();
        let is_listening = table.is_listening;
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

    fn stop_listening(&self) {
        let mut table = self.lock();
        table.is_listening = false;
        for entry in table.wanted.values() {
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

/// Listens for published changes for as long as it is polled, through as many connections as it takes.
pub(super) async fn listen(shared: &Shared, link: &Link) {
    let taken = shared.subscriptions.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut inbox) = taken else { return };
    loop {
        let (pushes, mut heard) = mpsc::unbounded_channel();
        match timeout(shared.timeout, link.endpoint().connect_listener(pushes)).await {
            Ok(Ok(connection)) => {
                let mut listener = Listener { shared, connection, subscribed: HashMap::new() };
                let ended = listener.run(&mut inbox, &mut heard).await;
                debug!(reason = ended, "the connection that listens for changes ended");
            }
            Ok(Err(error)) => debug!(%error, "cannot listen for changes"),
            Err(_) => debug!("cannot listen for changes: no answer in time"),
        }
        shared.subscriptions.stop_listening();
        sleep(RECONNECT_AFTER).await;
    }
}

struct Listener<'a> {
    shared: &'a Shared,
    connection: Connection,
    subscribed: HashMap<String, RecordId>,
}

impl Listener<'_> {
    async fn run(
        &mut self,
        inbox: &mut mpsc::UnboundedReceiver<RecordId>,
        heard: &mut mpsc::UnboundedReceiver<PushInfo>,
    ) -> &'static str {
        let subscriptions = &self.shared.subscriptions;
        let mut ids: Vec<RecordId> = {
            let mut table = subscriptions.lock();
            table.is_listening = true;
            table.wanted.keys().cloned().collect()
        };
        if !self.follow(&mut ids).await {
            return "subscribing failed";
        }
        // What was published while nobody listened is lost.
        subscriptions.watchers.wake_all();
        let mut ping = interval(PING_EVERY);
        loop {
            tokio::select! {
                push = heard.recv() => match push {
                    Some(push) if push.kind == PushKind::Message => self.hear(&push),
                    Some(push) if push.kind != PushKind::Disconnection => {}
                    _ => return "it broke",
                },
                taken = inbox.recv_many(&mut ids, POLL_SLICE) => {
                    if taken > 0 && !self.follow(&mut ids).await {
                        return "subscribing failed";
                    }
                }
                _ = ping.tick() => if !self.ping().await {
                    return "it does not answer";
                },
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

    /// Subscribes or unsubscribes as the table says of these records.
    async fn follow(&mut self, ids: &mut Vec<RecordId>) -> bool {
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
        if !unwanted.is_empty() {
            let channels: Vec<String> = unwanted.into_iter().collect();
            if !matches!(timeout(self.shared.timeout, self.connection.commands.unsubscribe(channels)).await, Ok(Ok(())))
            {
                return false;
            }
        }
        if wanted.is_empty() {
            return true;
        }
        let channels: Vec<&str> = wanted.iter().map(|(channel, _)| channel.as_str()).collect();
        if !matches!(timeout(self.shared.timeout, self.connection.commands.subscribe(channels)).await, Ok(Ok(()))) {
            return false;
        }
        let table = self.shared.subscriptions.lock();
        for (channel, id) in wanted {
            if let Some(entry) = table.wanted.get(&id) {
                entry.is_settled.send_replace(true);
            }
            self.subscribed.insert(channel, id);
        }
        true
    }

    async fn ping(&mut self) -> bool {
        let ping = redis::cmd("PING");
        matches!(timeout(self.shared.timeout, self.connection.commands.send_packed_command(&ping)).await, Ok(Ok(_)))
    }
}

/// Looks slowly at every record that is waited for, and wakes its watchers if it is not what it was. One look per
/// record, however many wait.
pub(super) async fn poll(shared: &Shared, link: &Link) {
    let mut last: HashMap<RecordId, Vec<u8>> = HashMap::new();
    loop {
        sleep(POLL_EVERY).await;
        let ids: Vec<RecordId> = shared.subscriptions.lock().wanted.keys().cloned().collect();
        let mut seen = HashMap::with_capacity(ids.len());
        let begun = Instant::now();
        for slice in ids.chunks(POLL_SLICE) {
            let mut commands = redis::pipe();
            for id in slice {
                commands.cmd("GETRANGE").arg(shared.keys.record(id)).arg(0).arg(POLLED_HEAD);
            }
            let limits = Limits::new(shared.timeout, false);
            let Ok(Value::Array(heads)) = ask(link, &Question::Commands(commands), limits).await else { continue };
            for (id, head) in slice.iter().zip(heads) {
                let Value::BulkString(head) = head else { continue };
                // The first look has nothing to compare with, and something may have been missed before it.
                if last.get(id) != Some(&head) {
                    shared.subscriptions.watchers.wake(id);
                }
                seen.insert(id.clone(), head);
            }
        }
        last = seen;
        debug!(records = ids.len(), took = ?begun.elapsed(), "polled the records that are waited for");
    }
}
