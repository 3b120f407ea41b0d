//! Waking those who wait here for a record that another process changes: one connection that listens, and one slow poll
//! for all records, however many wait.
//!
//! A pooler cannot pass notifications on. Behind one nobody listens, and the poll comes more often.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::{ToSql, Type};
use tracing::debug;

use super::Shared;
use super::ask::{Limits, ask};
use super::link::{Connection, Link};
use super::row::Sixteen;
use crate::record::RecordId;
use crate::store::Watch;
use crate::store::watchers::{Watcher, Watchers};

const POLL_EVERY: Duration = Duration::from_secs(1);
const POLL_EVERY_BEHIND_A_POOLER: Duration = Duration::from_millis(200);
const RECONNECT_AFTER: Duration = Duration::from_millis(250);
const PING_EVERY: Duration = Duration::from_secs(5);
const POLL_SLICE: usize = 256;

/// What this process waits for.
#[derive(Default)]
pub(super) struct Waiting {
    watchers: Watchers,
    // How many wait for each.
    wanted: Mutex<HashMap<RecordId, usize>>,
}

impl Waiting {
    /// Begins to watch.
    pub(super) fn watch(shared: &Arc<Shared>, id: &RecordId) -> Box<dyn Watch> {
        let watcher = shared.waiting.watchers.register(id);
        *shared.waiting.lock().entry(id.clone()).or_default() += 1;
        Box::new(Watched { watcher, _share: Share { shared: Arc::clone(shared), id: id.clone() } })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, usize>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Watched {
    watcher: Watcher,
    _share: Share,
}

impl Watch for Watched {
    fn changed(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.watcher.changed()
    }
}

/// One share in the poll.
struct Share {
    shared: Arc<Shared>,
    id: RecordId,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut wanted = self.shared.waiting.lock();
        if let Some(count) = wanted.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                wanted.remove(&self.id);
            }
        }
    }
}

/// Listens for as long as it is polled, through as many connections as it takes.
pub(super) async fn listen(shared: &Shared) {
    loop {
        if shared.health.is_direct() {
            let (heard, mut inbox) = mpsc::unbounded_channel();
            match timeout(shared.timeout, begin(shared, heard)).await {
                Ok(Ok(connection)) => {
                    // What changed while nobody listened was not heard.
                    shared.waiting.watchers.wake_all();
                    hear(shared, &connection, &mut inbox).await;
                    debug!("the connection that listens for changes ended");
                }
                Ok(Err(reason)) => debug!(reason, "cannot listen for changes"),
                Err(_) => debug!("cannot listen for changes in time"),
            }
        }
        sleep(RECONNECT_AFTER).await;
    }
}

async fn begin(shared: &Shared, heard: mpsc::UnboundedSender<String>) -> Result<Connection, String> {
    let connection = shared.endpoint.connect(Some(heard)).await.map_err(|why| why.to_string())?;
    connection.client.batch_execute(&shared.statements.listen).await.map_err(|e| super::ask::text(&e))?;
    Ok(connection)
}

/// Passes on what is heard until the connection ends, or does not answer.
async fn hear(shared: &Shared, connection: &Connection, inbox: &mut mpsc::UnboundedReceiver<String>) {
    loop {
        match timeout(PING_EVERY, inbox.recv()).await {
            Ok(Some(payload)) => {
                if let Ok(id) = payload.parse() {
                    shared.waiting.watchers.wake(&id);
                }
            }
            Ok(None) => return,
            Err(_) => {
                let ping = connection.client.batch_execute("");
                if !matches!(timeout(shared.timeout, ping).await, Ok(Ok(()))) {
                    return;
                }
            }
        }
    }
}

/// Asks from time to time after every record that somebody waits for: a notification may have been lost.
pub(super) async fn poll(shared: &Shared, link: &Link) {
    let mut known: HashMap<RecordId, Sixteen> = HashMap::new();
    loop {
        sleep(if shared.health.is_direct() { POLL_EVERY } else { POLL_EVERY_BEHIND_A_POOLER }).await;
        let wanted: Vec<RecordId> = shared.waiting.lock().keys().cloned().collect();
        known.retain(|id, _| wanted.contains(id));
        for slice in wanted.chunks(POLL_SLICE) {
            let hashes: Vec<Sixteen> = slice.iter().map(Sixteen::of).collect();
            let params: [(&(dyn ToSql + Sync), Type); 1] = [(&hashes, Type::UUID_ARRAY)];
            let limits = Limits::new(shared.timeout).impatient();
            let Ok(rows) = ask(link, &shared.statements.poll, &params, &limits).await else { break };
            let claimed: HashMap<Sixteen, Sixteen> =
                rows.iter().filter_map(|row| Some((row.try_get("hash").ok()?, row.try_get("token").ok()?))).collect();
            for id in slice {
                // Only that the same attempt still has its claim is no news.
                match claimed.get(&Sixteen::of(id)) {
                    Some(owner) if known.get(id) == Some(owner) => {}
                    Some(owner) => {
                        known.insert(id.clone(), *owner);
                        shared.waiting.watchers.wake(id);
                    }
                    None => shared.waiting.watchers.wake(id),
                }
            }
        }
    }
}
