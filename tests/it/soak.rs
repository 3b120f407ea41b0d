//! What production does in two days, in ten minutes: faults in turn under load, and what is left of them. `make soak` runs it.
//!
//! At the end no key ran twice, none is held that had not run but those whose bytes may have left, and memory and open
//! files are as they were. How soon each fault was over for the callers is printed.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::storm::given_number;
use crate::support::relay::{Loss, Relay};
use crate::support::{Connection, Request, Store, World, eventually, ms, pass};

const CLIENTS: usize = 8;
/// How long a fault lasts, and how long there is none after it.
const FAULT: Duration = Duration::from_secs(4);
const REST: Duration = Duration::from_secs(2);
/// As long as connections are kept idle, and a little more.
const IDLE: Duration = Duration::from_secs(6);
/// So many new keys in a row that are executed mean that a fault is over.
const IN_A_ROW: usize = 8;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    StoreCut,
    StoreHangs,
    StoreIsSlow,
    StoreLosesReplies,
    StoreTakesFewConnections,
    StoreStandsStill,
    StoreForbidsAnswers,
    StoreEndsSessions,
    UpstreamCut,
    UpstreamHangs,
    UpstreamIsSlow,
    SettingsReloaded,
    ProxyStandsStill,
    LogUnread,
    IdleClients,
}

const FAULTS: [Fault; 15] = [
    Fault::StoreCut,
    Fault::StoreHangs,
    Fault::StoreIsSlow,
    Fault::StoreLosesReplies,
    Fault::StoreTakesFewConnections,
    Fault::StoreStandsStill,
    Fault::StoreForbidsAnswers,
    Fault::StoreEndsSessions,
    Fault::UpstreamCut,
    Fault::UpstreamHangs,
    Fault::UpstreamIsSlow,
    Fault::SettingsReloaded,
    Fault::ProxyStandsStill,
    Fault::LogUnread,
    Fault::IdleClients,
];

impl Fault {
    /// Whether bytes may leave for the upstream and never come there.
    fn is_on_the_way_to_the_upstream(self) -> bool {
        matches!(self, Fault::UpstreamCut | Fault::UpstreamHangs)
    }

    /// Lets it last, and ends it.
    async fn strike(self, world: &World, front: &Relay) {
        let store = world.relay();
        match self {
            Fault::StoreCut => {
                store.cut();
                pass(FAULT).await;
                store.mend();
            }
            Fault::StoreHangs => {
                store.hang();
                pass(FAULT).await;
                store.mend();
            }
            Fault::StoreIsSlow => {
                store.delay(ms(80));
                pass(FAULT).await;
                store.delay(Duration::ZERO);
            }
            Fault::StoreLosesReplies => {
                let marker = if world.redis.is_some() { "EVALSHA" } else { "INSERT" };
                for loss in [Loss::Cut, Loss::Half, Loss::Cut, Loss::Silence] {
                    store.lose_reply_to(marker, loss);
                    pass(FAULT / 4).await;
                }
                store.lose_nothing();
            }
            Fault::StoreTakesFewConnections => {
                store.admit(3).await;
                pass(FAULT).await;
                store.mend();
            }
            Fault::StoreStandsStill => {
                world.pause_store();
                pass(FAULT).await;
                world.resume_store();
            }
            Fault::StoreForbidsAnswers => match (&world.redis, &world.postgres) {
                (Some(redis), _) => {
                    redis.command(&["ACL", "SETUSER", "default", "-publish"]).await;
                    pass(FAULT).await;
                    redis.command(&["ACL", "SETUSER", "default", "+publish"]).await;
                }
                (None, Some(postgres)) => {
                    let read_only = |on| {
                        format!("ALTER DATABASE postgres SET default_transaction_read_only = {on}; {END_SESSIONS}")
                    };
                    postgres.sql(&read_only("on"));
                    pass(FAULT).await;
                    let session = "SET TRANSACTION READ WRITE; ";
                    postgres.sql(&format!("{session}{}", read_only("off")));
                }
                (None, None) => {}
            },
            Fault::StoreEndsSessions => {
                for _ in 0..4 {
                    match (&world.redis, &world.postgres) {
                        (Some(redis), _) => drop(redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).await),
                        (None, Some(postgres)) => drop(postgres.sql(END_SESSIONS)),
                        (None, None) => {}
                    }
                    pass(FAULT / 4).await;
                }
            }
            Fault::UpstreamCut => {
                front.cut();
                pass(FAULT).await;
                front.mend();
            }
            Fault::UpstreamHangs => {
                front.hang();
                pass(FAULT).await;
                front.cut();
                front.mend();
            }
            Fault::UpstreamIsSlow => {
                front.delay(ms(300));
                pass(FAULT).await;
                front.delay(Duration::ZERO);
            }
            Fault::SettingsReloaded => {
                for _ in 0..20 {
                    world.proxy().hang_up();
                    pass(FAULT / 20).await;
                }
            }
            Fault::ProxyStandsStill => {
                world.proxy().pause();
                pass(FAULT / 2).await;
                world.proxy().resume();
            }
            Fault::LogUnread => {
                let unread = world.proxy().stop_reading().await;
                pass(FAULT).await;
                drop(unread);
            }
            Fault::IdleClients => {
                let mut idle = Vec::new();
                for _ in 0..200 {
                    idle.extend(Connection::try_open(world.address()).await);
                }
                pass(FAULT).await;
                drop(idle);
            }
        }
    }
}

const END_SESSIONS: &str =
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onceproxy'";

/// One key, as a client saw it.
struct Attempt {
    key: String,
    record: Option<String>,
    from: Instant,
    to: Instant,
}

#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    keys: AtomicUsize,
    executed: AtomicUsize,
    replayed: AtomicUsize,
    refused: AtomicUsize,
    attempts: Mutex<Vec<Attempt>>,
}

impl Load {
    /// A client: new keys, each sent twice.
    async fn run(&self, to: SocketAddr) {
        while !self.is_over.load(Ordering::Relaxed) {
            self.pay(to).await;
            pass(ms(10)).await;
        }
    }

    async fn pay(&self, to: SocketAddr) {
        let key = format!("k-{}", self.keys.fetch_add(1, Ordering::Relaxed));
        let request = Request::pay().key(&key);
        let (from, mut record) = (Instant::now(), None);
        for _ in 0..2 {
            let Some(mut connection) = Connection::try_open(to).await else { continue };
            connection.send(&request).await;
            match connection.try_answer().await {
                Some(answer) if answer.status == 201 => {
                    let count = if answer.is_replay() { &self.replayed } else { &self.executed };
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Some(answer) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    record = record.or_else(|| answer.json()["record"].as_str().map(str::to_owned));
                }
                None => {}
            }
        }
        self.attempts.lock().unwrap().push(Attempt { key, record, from, to: Instant::now() });
    }
}

/// Waits until callers see nothing of the fault any more. Says when that began.
async fn over(world: &World, load: &Load) -> Duration {
    let end = Instant::now();
    let (mut since, mut row) = (end, 0);
    while row < IN_A_ROW {
        assert!(end.elapsed() < Duration::from_secs(60), "it is not over after a minute");
        let key = format!("over-{}", load.keys.fetch_add(1, Ordering::Relaxed));
        let executed = match Connection::try_open(world.address()).await {
            Some(mut connection) => {
                connection.send(&Request::pay().key(&key)).await;
                connection.try_answer().await.is_some_and(|answer| answer.status == 201)
            }
            None => false,
        };
        if executed && world.proxy().readyz().await == Some(200) {
            row += 1;
        } else {
            (since, row) = (Instant::now(), 0);
        }
        pass(ms(10)).await;
    }
    since - end
}

async fn soak(store: Store) {
    let seconds = given_number("ONCEPROXY_SOAK_SECONDS").unwrap_or(300);
    let builder = World::build(store).relayed().alone().top("threads = 2").store("timeout = \"500ms\"");
    let limits = "[limits]\nconnections = 100\n";
    let builder = builder.more(limits).route("timeout = \"2s\"\n abandon_after = \"5s\"\n retention = \"1h\"");
    let mut world = builder.start().await;
    let front = Relay::before(world.upstream.address);
    world.change_route(&format!("upstream = \"http://{}\"", front.address));
    world.proxies[0].restart().await;
    let load = Arc::new(Load::default());
    let run = || {
        load.is_over.store(false, Ordering::Relaxed);
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (load, address) = (load.clone(), world.address());
            clients.spawn(async move { load.run(address).await });
        }
        clients
    };
    let end = async |mut clients: JoinSet<()>| {
        load.is_over.store(true, Ordering::Relaxed);
        while clients.join_next().await.is_some() {}
        pass(IDLE).await;
        (world.proxy().resident_memory() >> 20, world.proxy().open_files())
    };
    let clients = run();
    pass(IDLE).await;
    let (memory, files) = end(clients).await;
    println!("before: {memory} MiB, {files} open files");

    let (start, mut windows, mut slowest) = (Instant::now(), Vec::new(), (Duration::ZERO, None));
    let clients = run();
    for fault in FAULTS.into_iter().cycle() {
        if start.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
        let from = Instant::now();
        fault.strike(&world, &front).await;
        let took = over(&world, &load).await;
        if fault.is_on_the_way_to_the_upstream() {
            windows.push((from, Instant::now()));
        }
        println!("{fault:?}: over for callers {} ms after its end", took.as_millis());
        if took > slowest.0 {
            slowest = (took, Some(fault));
        }
        pass(REST).await;
    }
    let (memory_after, files_after) = end(clients).await;
    let settled = async || world.proxy().open_records("claimed").await.is_empty().then_some(());
    eventually("no attempt to be running", settled).await;

    let mut executions: HashMap<String, usize> = HashMap::new();
    for received in world.upstream.received() {
        *executions.entry(received.field("Idempotency-Key").unwrap_or_default()).or_default() += 1;
    }
    let twice: Vec<_> = executions.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "ran twice: {twice:?}");
    let held: HashSet<String> =
        world.proxy().open_records("unknown").await.iter().map(|r| r["id"].as_str().unwrap().to_owned()).collect();
    let attempts = std::mem::take(&mut *load.attempts.lock().unwrap());
    let never_ran = |attempt: &&Attempt| {
        attempt.record.as_ref().is_some_and(|id| held.contains(id)) && !executions.contains_key(&attempt.key)
    };
    let burnt: Vec<_> = attempts
        .iter()
        .filter(never_ran)
        .filter(|attempt| !windows.iter().any(|(from, to)| attempt.from <= *to && attempt.to >= *from))
        .map(|attempt| &attempt.key)
        .collect();
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    println!(
        "{} keys: {} executed, {} replayed, {} refused, {} held; slowest to be over: {} ms ({:?})\n\
         after: {memory_after} MiB, {files_after} open files",
        count(&load.keys),
        count(&load.executed),
        count(&load.replayed),
        count(&load.refused),
        held.len(),
        slowest.0.as_millis(),
        slowest.1,
    );
    assert!(burnt.is_empty(), "held although nothing of them had left: {burnt:?}");
    assert!(files_after <= files + 8, "{files_after} open files, {files} before");
    assert!(memory_after <= memory * 3 / 2 + 16, "{memory_after} MiB, {memory} before");
    assert!(slowest.0 <= Duration::from_secs(1), "{:?} was over after {} ms", slowest.1, slowest.0.as_millis());
}

#[tokio::test]
#[ignore = "make soak"]
async fn on_redis() {
    soak(Store::redis()).await;
}

#[tokio::test]
#[ignore = "make soak"]
async fn on_postgres() {
    soak(Store::postgres()).await;
}
