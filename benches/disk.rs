//! The disk store's claims per second, each on the medium before it is granted, against the database alone.
//!
//! `cargo bench --bench disk -- [SECONDS [ROUNDS]]`, on the file system of the target directory. Alone means: one thread
//! that commits, with fsync, as many claims at once as there are callers (at most 256, which is what the store puts into
//! one transaction), the same bytes into the same tables, and answers nobody. Rounds are interleaved; compare ratios.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onceproxy::config::{self, Sources};
use onceproxy::metrics::Metrics;
use onceproxy::record::{self, Claim, ClaimReply, Fingerprint, OnUnknown, RecordId, Slot, Timestamp, Token};
use onceproxy::store::{self, Store, codec};
use redb::{Builder, Durability, ReadableDatabase, ReadableTable, TableDefinition};

const CALLERS: [usize; 4] = [1, 8, 64, 512];
const CORES: usize = 2;
/// As in the store.
const BATCH: usize = 256;
const CACHE: usize = 32 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    // Without it, this is `cargo test`: enough to see that both sides work.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let number = |at: usize, default: u64| arguments.get(at).map_or(default, |text| text.parse().unwrap());
    let (seconds, rounds) = (number(0, 2), number(1, 5));
    let span = if is_bench { Duration::from_secs(seconds) } else { Duration::from_millis(50) };
    let rounds = if is_bench { rounds } else { 1 };

    println!(
        "| callers | store: claims/s | database alone | ratio, median | least | most | processor µs a claim | alone |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for callers in CALLERS {
        let both = || (measured(|| of_store(callers, span)), measured(|| of_database(callers.min(BATCH), span)));
        let mut pairs: Vec<(Side, Side)> = (0..rounds).map(|_| both()).collect();
        let ratio = |(store, database): &(Side, Side)| store.rate / database.rate;
        pairs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let (store, database) = &pairs[pairs.len() / 2];
        let [least, middle, most] = [0, pairs.len() / 2, pairs.len() - 1].map(|at| ratio(&pairs[at]));
        println!(
            "| {callers} | {:.0} | {:.0} | {middle:.2} | {least:.2} | {most:.2} | {:.0} | {:.0} |",
            store.rate, database.rate, store.processor, database.processor
        );
    }
}

/// What one side did in one round.
struct Side {
    /// Claims per second.
    rate: f64,
    /// Microseconds of processor time for each, of all threads.
    processor: f64,
}

fn measured(run: impl FnOnce() -> (u64, Duration)) -> Side {
    let before = processor_time();
    let (claims, span) = run();
    let processor = (processor_time() - before).as_micros() as f64 / claims.max(1) as f64;
    Side { rate: claims as f64 / span.as_secs_f64(), processor }
}

/// What this process has used so far (Linux counts in hundredths of a second).
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Behind the name, which stands in brackets and may hold anything.
    let ticks = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    Duration::from_millis(10 * ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn claim() -> Claim {
    let token = Token::new();
    Claim {
        id: RecordId::new("payments".into(), *Token::new().as_bytes()),
        token,
        imprint: Fingerprint { policy: [1; 4], digest: [9; 32] }.into(),
        quoted: false,
        lease: Duration::from_secs(60),
        abandon_after: Duration::from_secs(300),
        on_unknown: OnUnknown::Hold,
        unknown_retention: None,
    }
}

/// Claims through the store: callers that each claim one key after the other, on two cores as in a proxy.
fn of_store(callers: usize, span: Duration) -> (u64, Duration) {
    let folder = folder();
    let text = format!(
        "[store]\nurl = \"disk:{}\"\ntimeout = \"10s\"\n[[route]]\nname = \"r\"\nupstream = \"http://u.example\"\n",
        folder.path().display()
    );
    let config = config::load(&Sources::text(text)).unwrap().config.store;
    let opened = store::open(&config, &Metrics::new()).unwrap();
    let (granted, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + span);
    let mut background = Some(opened.background);
    let cores: Vec<_> = (0..CORES.min(callers))
        .map(|core| {
            let (store, granted, background) = (opened.store.for_core(), granted.clone(), background.take());
            let share = callers / CORES.min(callers);
            std::thread::Builder::new().name(format!("core-{core}")).spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(call(store, background, share, end, &granted));
            })
        })
        .collect();
    let start = Instant::now();
    cores.into_iter().for_each(|core| core.unwrap().join().unwrap());
    (granted.load(Ordering::Relaxed), start.elapsed())
}

type Background = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

async fn call(
    store: Arc<dyn Store>,
    background: Option<Background>,
    callers: usize,
    end: Instant,
    granted: &Arc<AtomicU64>,
) {
    let sweep = background.map(tokio::spawn);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (store, granted) = (store.clone(), granted.clone());
        tasks.spawn(async move {
            while Instant::now() < end {
                let reply = store.claim(&claim()).await.unwrap();
                assert!(matches!(reply, ClaimReply::Granted { .. }));
                granted.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tasks.join_all().await;
    if let Some(sweep) = sweep {
        sweep.abort();
    }
}

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
const OPEN: TableDefinition<'_, (u64, &[u8]), u8> = TableDefinition::new("open");
const DUE: TableDefinition<'_, (u64, &[u8]), ()> = TableDefinition::new("due");
const TOMBSTONES: TableDefinition<'_, &[u8], u64> = TableDefinition::new("tombstones");
const TOMBSTONES_DUE: TableDefinition<'_, (u64, &[u8]), ()> = TableDefinition::new("tombstones_due");

/// Claims by the database alone, so many in each commit.
fn of_database(group: usize, span: Duration) -> (u64, Duration) {
    let folder = folder();
    let database = open(&folder.path().join("records.redb"));
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < span {
        let mut write = database.begin_write().unwrap();
        write.set_durability(Durability::Immediate).unwrap();
        write.set_quick_repair(true);
        {
            let (mut records, mut open) = (write.open_table(RECORDS).unwrap(), write.open_table(OPEN).unwrap());
            let (mut due, tombstones) = (write.open_table(DUE).unwrap(), write.open_table(TOMBSTONES).unwrap());
            write.open_table(TOMBSTONES_DUE).unwrap();
            for _ in 0..group {
                let (claim, now) = (claim(), Timestamp(1_700_000_000_000 + start.elapsed().as_millis() as u64));
                let mut slot = Slot::new(None, false);
                record::claim(&mut slot, &claim, now);
                let key = [claim.id.hash().as_slice(), claim.id.route().as_bytes()].concat();
                assert!(records.get(key.as_slice()).unwrap().is_none());
                assert!(
                    tombstones.get([&key, claim.token.as_bytes().as_slice()].concat().as_slice()).unwrap().is_none()
                );
                records.insert(key.as_slice(), codec::encode(&slot.record.unwrap()).as_slice()).unwrap();
                open.insert((now.0, key.as_slice()), 1).unwrap();
                due.insert(((now + claim.lease).0, key.as_slice()), ()).unwrap();
            }
        }
        write.commit().unwrap();
        done += group;
    }
    let span = start.elapsed();
    // What was counted is there.
    let read = database.begin_read().unwrap().open_table(RECORDS).unwrap();
    assert_eq!(redb::ReadableTableMetadata::len(&read).unwrap(), done as u64);
    (done as u64, span)
}

fn open(path: &Path) -> redb::Database {
    Builder::new().set_cache_size(CACHE).create(path).unwrap()
}
