//! What a storm writes down while it lasts: the upstream's executions, the callers' answers, the operator's acts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::history::{Act, Answered, Call, Execution, Given, Key, Moment, Problem, Seen, Span};
use crate::support::{Answer, Connection, Request, World, ms};

/// Where one proxy can be reached.
#[derive(Clone, Copy)]
pub(super) struct Reached {
    pub(super) clients: SocketAddr,
    pub(super) admin: SocketAddr,
}

/// The notes of one storm. Everyone in it has a clone.
#[derive(Clone)]
pub(super) struct Log(Arc<Inner>);

struct Inner {
    start: Instant,
    next_call: AtomicUsize,
    executions: Mutex<Vec<Execution>>,
    calls: Mutex<Vec<Call>>,
    acts: Mutex<Vec<Act>>,
    /// Which key a record is of, as callers were told.
    records: Mutex<BTreeMap<String, Key>>,
    proxies: Mutex<Vec<Reached>>,
    without_store: Mutex<Vec<Span>>,
    over: AtomicBool,
}

/// What a client asks for, and how long it listens.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) key: Key,
    pub(super) request: u64,
    pub(super) proxy: usize,
    pub(super) patience: Option<Duration>,
}

impl Log {
    /// Empty notes, from now on.
    pub(super) fn new() -> Log {
        Log(Arc::new(Inner {
            start: Instant::now(),
            next_call: AtomicUsize::new(1),
            executions: Mutex::default(),
            calls: Mutex::default(),
            acts: Mutex::default(),
            records: Mutex::default(),
            proxies: Mutex::default(),
            without_store: Mutex::default(),
            over: AtomicBool::new(false),
        }))
    }

    /// The time since it began.
    pub(super) fn now(&self) -> Moment {
        self.0.start.elapsed()
    }

    /// That moment on the runtime's clock.
    pub(super) fn at(&self, moment: Moment) -> Instant {
        self.0.start + moment
    }

    /// Takes down where the proxies are now.
    pub(super) fn note_proxies(&self, world: &World) {
        let reached = world.proxies.iter().map(|p| Reached { clients: p.address, admin: p.admin_address() });
        *self.0.proxies.lock().unwrap() = reached.collect();
    }

    /// Where this proxy is.
    pub(super) fn proxy(&self, n: usize) -> Reached {
        self.0.proxies.lock().unwrap()[n]
    }

    /// Says that nothing is done to anyone any more.
    pub(super) fn note_calm(&self) {
        self.0.over.store(true, Ordering::SeqCst);
    }

    /// Whether nothing is done to anyone any more.
    pub(super) fn is_calm(&self) -> bool {
        self.0.over.load(Ordering::SeqCst)
    }

    /// Takes down that the upstream has read a request; `make` is told the number of the execution, and how often the
    /// key was executed before.
    pub(super) fn note_execution(&self, key: Key, make: impl FnOnce(usize, usize) -> Execution) -> Execution {
        let mut executions = self.0.executions.lock().unwrap();
        let before = executions.iter().filter(|execution| execution.key == key).count();
        let execution = make(executions.len() + 1, before);
        executions.push(execution.clone());
        execution
    }

    /// Takes down that the upstream is about to write the last byte of its answer.
    pub(super) fn note_end(&self, number: usize) {
        self.0.executions.lock().unwrap()[number - 1].ended = Some(self.now());
    }

    /// Takes down that the upstream is about to break off.
    pub(super) fn note_break(&self, number: usize) {
        self.0.executions.lock().unwrap()[number - 1].broken = Some(self.now());
    }

    /// Takes down that a proxy was without its store.
    pub(super) fn note_without_store(&self, span: Span) {
        let mut spans = self.0.without_store.lock().unwrap();
        match spans.last_mut() {
            Some(last) if span.from <= last.until + ms(1) => last.until = span.until,
            _ => spans.push(span),
        }
    }

    /// When a proxy was without its store.
    pub(super) fn without_store(&self) -> Vec<Span> {
        self.0.without_store.lock().unwrap().clone()
    }

    /// Takes down what the operator did.
    pub(super) fn note_act(&self, act: Act) {
        self.0.acts.lock().unwrap().push(act);
    }

    /// The key of a record that callers were told of.
    pub(super) fn key_of(&self, record: &str) -> Option<Key> {
        self.0.records.lock().unwrap().get(record).copied()
    }

    /// Marks a call as the last one with its key to its proxy.
    pub(super) fn mark_last(&self, call: usize) {
        self.0.calls.lock().unwrap().iter_mut().filter(|c| c.number == call).for_each(|c| c.last = true);
    }

    /// Takes every such mark away.
    pub(super) fn mark_none_as_last(&self) {
        self.0.calls.lock().unwrap().iter_mut().for_each(|call| call.last = false);
    }

    /// How many calls there were.
    pub(super) fn calls(&self) -> usize {
        self.0.calls.lock().unwrap().len()
    }

    /// Everything that was taken down.
    pub(super) fn all(&self) -> (Vec<Execution>, Vec<Call>, Vec<Act>) {
        let inner = &self.0;
        let (executions, calls) = (inner.executions.lock().unwrap().clone(), inner.calls.lock().unwrap().clone());
        (executions, calls, inner.acts.lock().unwrap().clone())
    }

    /// Sends one request and takes down what comes of it. Nothing that a proxy does is an error here.
    pub(super) async fn call(&self, wish: Wish) -> Call {
        let Wish { key, request, proxy, patience } = wish;
        let number = self.0.next_call.fetch_add(1, Ordering::SeqCst);
        let bytes = request_of(key, request, number);
        let sent = self.now();
        let exchange = async {
            let mut connection = Connection::try_open(self.proxy(proxy).clients).await?;
            connection.send(&bytes).await;
            connection.try_answer().await.filter(|answer| answer.complete)
        };
        let answer = match patience {
            Some(patience) => timeout(patience, exchange).await.ok().flatten(),
            None => exchange.await,
        };
        let seen = answer.as_ref().map_or(Seen::Nothing, seen);
        if let Seen::Problem(problem) = &seen {
            self.0.records.lock().unwrap().insert(problem.record.clone(), key);
        }
        let call = Call { number, key, request, proxy, sent, ended: self.now(), seen, last: false };
        self.0.calls.lock().unwrap().push(call.clone());
        call
    }
}

/// The scope is in a header, the key in another, and the number of the call in a third, which makes no difference.
fn request_of(key: Key, request: u64, call: usize) -> Request {
    Request::new("POST", "/pay")
        .key(&format!("key-{}", key.number))
        .field("Authorization", format!("Bearer {}", key.scope))
        .field("X-Request", request.to_string())
        .field("X-Call", call.to_string())
        .json(&format!(r#"{{"amount":{},"request":{request}}}"#, key.number))
}

fn seen(answer: &Answer) -> Seen {
    let kind = answer.problem();
    if !kind.is_empty() {
        let json = answer.json();
        let member = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        let (retry, reason, record) = (member("retry"), member("reason"), member("record"));
        return Seen::Problem(Problem { status: answer.status, kind, retry, reason, record });
    }
    let receipt = answer.field("X-Receipt").unwrap_or_default().to_owned();
    let given = Given { status: answer.status, receipt, body: answer.body.clone().into() };
    let cache_status = answer.field("Cache-Status").unwrap_or_default();
    let kept = cache_status.ends_with("; stored") || cache_status.contains("; hit; ttl=");
    Seen::Answer(Answered { given, replayed: answer.is_replay(), kept })
}
