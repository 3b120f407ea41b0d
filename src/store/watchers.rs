//! Who in this process waits for a record to change.
//!
//! Every back-end needs the same table: record id → waiters, woken on a change, gone when nobody waits. How a change
//! becomes known (a write of this process, a published message, a slow poll) is the back-end's.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::Watch;
use crate::record::RecordId;

// Waking is on the path of every write, so writes to different records should rarely meet on a lock.
const SHARDS: usize = 16;

type Shard = Mutex<HashMap<RecordId, watch::Sender<()>>>;

/// The table. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Watchers(Arc<[Shard; SHARDS]>);

impl Watchers {
    /// Begins to watch a record: every wake from now on counts, also those before [`Watch::changed`] is called.
    pub(super) fn register(&self, id: &RecordId) -> Watcher {
        let receiver = self.shard(id).entry(id.clone()).or_default().subscribe();
        Watcher { watchers: self.clone(), id: id.clone(), receiver }
    }

    /// Wakes whoever watches this record.
    pub(super) fn wake(&self, id: &RecordId) {
        if let Some(sender) = self.shard(id).get(id) {
            sender.send_replace(());
        }
    }

    /// Wakes every watcher, for when changes may have been missed.
    pub(super) fn wake_all(&self) {
        for shard in self.0.iter() {
            for sender in lock(shard).values() {
                sender.send_replace(());
            }
        }
    }

    fn shard(&self, id: &RecordId) -> MutexGuard<'_, HashMap<RecordId, watch::Sender<()>>> {
        lock(&self.0[usize::from(id.hash()[0]) % SHARDS])
    }
}

// Nothing under these locks leaves the table half changed, so a panic elsewhere does not spoil it.
fn lock(shard: &Shard) -> MutexGuard<'_, HashMap<RecordId, watch::Sender<()>>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One watcher of one record. Dropping it ends the watch; the last one takes the table's entry along.
#[derive(Debug)]
pub(super) struct Watcher {
    watchers: Watchers,
    id: RecordId,
    receiver: watch::Receiver<()>,
}

impl Watch for Watcher {
    fn changed(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            // The sender stays in the table as long as a watcher is registered, so this ends by a wake alone.
            let _ = self.receiver.changed().await;
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut shard = self.watchers.shard(&self.id);
        // This one is still counted. Registering takes the same lock, so nobody slips in between.
        if shard.get(&self.id).is_some_and(|sender| sender.receiver_count() == 1) {
            shard.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    fn id(first: u8) -> RecordId {
        RecordId::new("r".into(), [first; 16])
    }

    fn is_woken(watcher: &mut Watcher) -> bool {
        watcher.changed().as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn wakes_those_of_one_record_once_for_each_wake() {
        let watchers = Watchers::default();
        let (mut a, mut b, mut other) =
            (watchers.register(&id(1)), watchers.register(&id(1)), watchers.register(&id(2)));
        assert!(!is_woken(&mut a));
        watchers.wake(&id(1));
        assert!(is_woken(&mut a) && is_woken(&mut b) && !is_woken(&mut other));
        assert!(!is_woken(&mut a), "one wake was told twice");
        watchers.wake_all();
        assert!(is_woken(&mut a) && is_woken(&mut b) && is_woken(&mut other));
    }

    #[test]
    fn a_wake_before_the_registration_does_not_count() {
        let watchers = Watchers::default();
        let _first = watchers.register(&id(1));
        watchers.wake(&id(1));
        assert!(!is_woken(&mut watchers.register(&id(1))));
    }

    #[test]
    fn keeps_no_entry_that_nobody_watches() {
        let watchers = Watchers::default();
        let (a, b) = (watchers.register(&id(1)), watchers.register(&id(1)));
        drop(a);
        assert_eq!(watchers.shard(&id(1)).len(), 1);
        drop(b);
        assert_eq!(watchers.shard(&id(1)).len(), 0);
    }
}
