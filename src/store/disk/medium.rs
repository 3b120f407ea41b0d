//! A medium for tests that remembers what was synced: it can hold a sync back, fail it, and lose power.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Memory that behaves like a disk with a volatile cache. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Medium(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    now: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<Unsynced>,
    syncs: usize,
    is_failing: bool,
    is_held: bool,
    waits: bool,
    observer: Option<Observer>,
}

#[derive(Clone)]
enum Unsynced {
    Length(usize),
    Bytes(usize, Vec<u8>),
}

/// Is shown the medium before each write.
type Observer = Box<dyn FnMut(&dyn Fn(&mut dyn FnMut() -> u64) -> Vec<u8>) + Send>;

impl Medium {
    /// A medium that holds these bytes, all of them synced.
    pub(super) fn with(bytes: Vec<u8>) -> Medium {
        let medium = Medium::default();
        medium.state().now.clone_from(&bytes);
        medium.state().synced = bytes;
        medium
    }

    /// How often it was synced.
    pub(super) fn syncs(&self) -> usize {
        self.state().syncs
    }

    /// Makes every sync from now on fail.
    pub(super) fn fail(&self, is_failing: bool) {
        self.state().is_failing = is_failing;
    }

    /// Holds the next syncs back, or lets them go.
    pub(super) fn hold(&self, is_held: bool) {
        self.state().is_held = is_held;
        self.0.1.notify_all();
    }

    /// Returns when a sync is being held back. Bounded only so that a sync that never comes fails instead of hanging.
    pub(super) fn held(&self) {
        let bound = std::time::Duration::from_secs(30);
        let (state, _) = self.0.1.wait_timeout_while(self.state(), bound, |state| !state.waits).unwrap();
        assert!(state.waits, "nothing was synced");
    }

    /// Calls this before each write, with a function that says what a power loss at this moment would leave, given
    /// random numbers.
    pub(super) fn observe(&self, observer: impl FnMut(&dyn Fn(&mut dyn FnMut() -> u64) -> Vec<u8>) + Send + 'static) {
        self.state().observer = Some(Box::new(observer));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap()
    }

    fn change(&self, change: Unsynced) {
        let mut state = self.state();
        if let Some(mut observer) = state.observer.take() {
            observer(&|random| state.after_power_loss(random));
            state.observer = Some(observer);
        }
        apply(&mut state.now, &change);
        state.unsynced.push(change);
    }
}

impl State {
    /// All that was synced, and any part of what was not: whole writes, halves, none.
    fn after_power_loss(&self, random: &mut dyn FnMut() -> u64) -> Vec<u8> {
        let mut left = self.synced.clone();
        for change in &self.unsynced {
            match (change, random() % 3) {
                (_, 0) => {}
                (Unsynced::Bytes(at, bytes), 1) => {
                    apply(&mut left, &Unsynced::Bytes(*at, bytes[..bytes.len() / 2].to_vec()));
                }
                (change, _) => apply(&mut left, change),
            }
        }
        left
    }
}

fn apply(bytes: &mut Vec<u8>, change: &Unsynced) {
    match change {
        Unsynced::Length(length) => bytes.resize(*length, 0),
        Unsynced::Bytes(at, written) => {
            let end = at + written.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[*at..end].copy_from_slice(written);
        }
    }
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

impl std::fmt::Debug for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Medium")
    }
}

impl redb::StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = size(offset);
        out.copy_from_slice(&self.state().now[start..start + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Unsynced::Length(size(len)));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.waits = true;
        self.0.1.notify_all();
        let mut state = self.0.1.wait_while(state, |state| state.is_held).unwrap();
        state.waits = false;
        if state.is_failing {
            return Err(io::Error::other("the medium failed, as the test wished"));
        }
        state.syncs += 1;
        state.synced = state.now.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Unsynced::Bytes(size(offset), data.to_vec()));
        Ok(())
    }
}
