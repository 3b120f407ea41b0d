//! Reads beside the writer: callers that ask at the same moment share one thread and one look at the committed state.
//!
//! A read may wait for the medium, so it has no place on a core's own thread; a thread of its own for each costs more than
//! the read. What a read does, and what a failure means, is left to the store.

use std::sync::{Arc, Mutex, PoisonError};

// Threads that read at a time: one that waits for the medium must not hold up what others find in memory.
const THREADS: usize = 4;
// Reads that share a look, at most: bounds how long the last of them waits for the first.
const SHARED: usize = 32;

type Read<T> = Box<dyn FnOnce(&T) -> Settle + Send>;
/// Answers the caller of a read, when what was looked at is let go.
pub(super) type Settle = Box<dyn FnOnce() + Send>;

/// Reads that no thread has taken yet. `T` is what is looked at.
pub(super) struct Reads<T>(Mutex<Waiting<T>>);

struct Waiting<T> {
    reads: Vec<Read<T>>,
    threads: usize,
}

impl<T> Default for Reads<T> {
    fn default() -> Reads<T> {
        Reads(Mutex::new(Waiting { reads: Vec::new(), threads: 0 }))
    }
}

impl<T> Reads<T> {
    /// Adds a read. If there are few threads, the caller must start another one that [serves](Turn::serve) until none
    /// is left.
    pub(super) fn add(self: &Arc<Reads<T>>, read: impl FnOnce(&T) -> Settle + Send + 'static) -> Option<Turn<T>> {
        self.with(|waiting| {
            waiting.reads.push(Box::new(read));
            let is_wanted = waiting.threads < THREADS;
            waiting.threads += usize::from(is_wanted);
            is_wanted.then(|| Turn(Some(Arc::clone(self))))
        })
    }

    /// What is to be read next; none ends the thread that asks.
    fn take(&self) -> Vec<Read<T>> {
        self.with(|waiting| {
            let count = waiting.reads.len().min(SHARED);
            waiting.threads -= usize::from(count == 0);
            waiting.reads.drain(..count).collect()
        })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Waiting<T>) -> R) -> R {
        // Nothing in here can panic half-way.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The duty of one thread. Dropping it, also by a panic, lets another one take its place; if it was the last one, the
/// reads that wait are dropped.
pub(super) struct Turn<T>(Option<Arc<Reads<T>>>);

impl<T> Turn<T> {
    /// Reads until nothing is left. `look` is called after the reads that share it were asked for, so that none of them
    /// misses what had been committed by then; without a look they are dropped. Nobody is answered before the look is
    /// over, so that a store whose last caller has its answer can be closed.
    pub(super) fn serve(mut self, look: impl Fn() -> Option<T>) {
        while let Some(reads) = &self.0 {
            let taken = reads.take();
            if taken.is_empty() {
                // Counted as gone already, under the lock that found nothing to do.
                self.0 = None;
            } else if let Some(view) = look() {
                let settles: Vec<Settle> = taken.into_iter().map(|read| read(&view)).collect();
                drop(view);
                settles.into_iter().for_each(|settle| settle());
            }
        }
    }
}

impl<T> Drop for Turn<T> {
    fn drop(&mut self) {
        let Some(reads) = &self.0 else { return };
        // Without a thread nobody would take them; their callers are told by the end of their channels.
        let abandoned = reads.with(|waiting| {
            waiting.threads -= 1;
            if waiting.threads == 0 { std::mem::take(&mut waiting.reads) } else { Vec::new() }
        });
        drop(abandoned);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn reads_that_wait_together_share_a_look_and_each_comes_before_its_look() {
        let (reads, looks) = (Arc::new(Reads::default()), AtomicUsize::new(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let add = |reads: &Arc<Reads<usize>>| {
            let seen = Arc::clone(&seen);
            reads.add(move |look| {
                let look = *look;
                Box::new(move || seen.lock().unwrap().push(look))
            })
        };
        let turn = add(&reads).expect("the first read needs a thread");
        let mut others: Vec<_> = (1..40).map(|_| add(&reads)).collect();
        assert_eq!(others.iter().filter(|turn| turn.is_some()).count(), THREADS - 1);
        others.clear();
        turn.serve(|| {
            assert!(seen.lock().unwrap().len() <= SHARED, "a read was served before its look");
            Some(looks.fetch_add(1, Ordering::SeqCst))
        });
        assert_eq!(*seen.lock().unwrap(), [vec![0; SHARED], vec![1; 40 - SHARED]].concat());
        assert!(add(&reads).is_some(), "no thread is left, so the next read needs one");
    }

    #[test]
    fn the_look_is_over_before_anyone_is_answered() {
        let (reads, state) = (Arc::new(Reads::default()), Arc::new(()));
        let looked_at = Arc::clone(&state);
        let answer = Arc::new(Mutex::new(None));
        let told = Arc::clone(&answer);
        let turn =
            reads.add(move |_: &Arc<()>| Box::new(move || *told.lock().unwrap() = Some(Arc::strong_count(&looked_at))));
        turn.unwrap().serve(|| Some(Arc::clone(&state)));
        assert_eq!(*answer.lock().unwrap(), Some(2), "the test's two, and no look");
    }

    #[test]
    fn a_turn_that_is_lost_or_panics_makes_room_for_another() {
        let reads = Arc::new(Reads::<()>::default());
        for _ in 0..2 * THREADS {
            drop(reads.add(|()| Box::new(|| {})).expect("the last one was dropped"));
            assert!(reads.with(|waiting| waiting.reads.is_empty()), "a read without a thread would wait for ever");
            let turn = reads.add(|()| panic!("as the test wishes")).expect("the last one was dropped");
            let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| turn.serve(|| Some(()))));
            assert!(served.is_err());
        }
    }
}
