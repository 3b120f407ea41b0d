//! The storm: everything at once, and the promise still holds.
//!
//! Two hundred keys, duplicates at random, callers that hang up, an upstream that fails in every way it can, proxies
//! that are killed and restarted, a Redis that stands still. The inputs follow from one seed, which is printed;
//! `ONCEPROXY_STORM_SEED` repeats them. What the machine's scheduler does with them differs from run to run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::support::relay::Loss;
use crate::support::upstream::Received;
use crate::support::{Answer, Connection, Request, Script, Step, Store, World, eventually, ms, reply};

const KEYS: u64 = 200;
const STORM: Duration = Duration::from_secs(10);
const ROUTE: &str = "lease = \"1s\"\n timeout = \"1s\"\n abandon_after = \"3s\"\n wait_timeout = \"3s\"";

/// SplitMix64: small, and the same on every machine.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn time(&mut self, below: Duration) -> Duration {
        Duration::from_millis(self.roll(below.as_millis() as u64))
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }
}

/// One call of one caller.
struct Call {
    key: u64,
    at: Duration,
    proxy: usize,
    hangs_up_after: Option<Duration>,
}

/// One blow from outside.
enum Blow {
    KillProxy(usize),
    /// It stands still, at times for longer than its leases.
    PauseProxy(usize, Duration),
    PauseRedis(Duration),
    /// The reply to the next operation on a record is swallowed and its connection broken off.
    LoseReply,
}

fn seed() -> u64 {
    // Read here and not in the settings: it is the test's own.
    #[allow(clippy::disallowed_methods, reason = "the environment of the test, not of the product")]
    let given = std::env::var("ONCEPROXY_STORM_SEED").ok();
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    given.map_or_else(now, |seed| seed.parse().expect("ONCEPROXY_STORM_SEED is a number"))
}

fn calls(dice: &mut Dice, proxies: usize) -> Vec<Call> {
    let mut calls = Vec::new();
    for key in 0..KEYS {
        let first = dice.time(STORM - ms(2000));
        for n in 0..=dice.roll(5) {
            let at = first + if n == 0 { Duration::ZERO } else { dice.time(ms(2000)) };
            let hangs_up_after = dice.one_in(6).then(|| dice.time(ms(600)));
            calls.push(Call { key, at, proxy: dice.roll(proxies as u64) as usize, hangs_up_after });
        }
    }
    calls
}

fn blows(dice: &mut Dice, proxies: usize, redis: bool) -> Vec<(Duration, Blow)> {
    let mut blows = Vec::new();
    let mut at = ms(800) + dice.time(ms(800));
    while at < STORM {
        let proxy = dice.roll(proxies as u64) as usize;
        let blow = match dice.roll(if redis { 7 } else { 3 }) {
            0 | 1 => Blow::KillProxy(proxy),
            2 => Blow::PauseProxy(proxy, ms(200) + dice.time(ms(1300))),
            3 => Blow::PauseRedis(ms(200) + dice.time(ms(700))),
            _ => Blow::LoseReply,
        };
        blows.push((at, blow));
        at += ms(300) + dice.time(ms(900));
    }
    blows
}

/// The number in `key-17`.
fn key_number(request: &Received) -> u64 {
    let key = request.field("Idempotency-Key").expect("a key");
    key.strip_prefix("key-").expect("one of ours").parse().unwrap()
}

/// How many executions of a key came before this one, by its place in the dice of its key.
type Played = Arc<Mutex<BTreeMap<u64, Vec<bool>>>>;

/// What the upstream does with a request: follows from the seed, the key, and how often it saw the key. Remembers for
/// each execution whether its answer said "not executed".
fn behave(seed: u64, played: &Played, request: &Received) -> Script {
    let key = key_number(request);
    let mut played = played.lock().unwrap();
    let executions = played.entry(key).or_default();
    let mut dice = Dice(seed ^ (key << 20) ^ executions.len() as u64);
    let body = format!(r#"{{"key":{key},"execution":{}}}"#, request.number);
    let done = reply(201).field("Content-Type", "application/json").body(&body);
    let roll = dice.roll(20);
    executions.push(roll == 10 || roll == 11);
    match roll {
        0..=4 => done.into(),
        5..=8 => done.delayed(dice.time(ms(900))),
        9 => done.delayed(ms(1000) + dice.time(ms(1500))),
        10 => reply(503).into(),
        11 => reply(429).delayed(dice.time(ms(300))),
        12 => reply(504).into(),
        13 => Script::close().delayed(dice.time(ms(200))),
        14 => Script::reset(),
        15 => Script::bytes_then_close("HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf"),
        16 => Script::never(),
        17 => Script(vec![Step::Reply(done), Step::Close]),
        _ => {
            let chunked = format!(
                "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            );
            Script(vec![Step::Pause(dice.time(ms(100))), Step::Bytes(chunked.into_bytes())])
        }
    }
}

fn request(key: u64) -> Request {
    Request::new("POST", "/pay").key(&format!("key-{key}")).json(&format!(r#"{{"amount":{key}}}"#))
}

/// Sends without minding that the proxy may be down or die: `None` is no answer.
async fn try_send(key: u64, to: std::net::SocketAddr) -> Option<Answer> {
    let mut connection = Connection::try_open(to).await?;
    connection.send(&request(key)).await;
    connection.try_answer().await.filter(|answer| answer.complete)
}

/// The storm on one store, and the counting afterwards.
async fn storm(store: Store, proxies: usize) {
    let seed = seed();
    println!("ONCEPROXY_STORM_SEED={seed}");
    let mut dice = Dice(seed);
    let builder = World::build(store).proxies(proxies).relayed().route(ROUTE).store("timeout = \"500ms\"");
    let mut world = builder.start().await;
    let played = Played::default();
    let history = played.clone();
    world.upstream.always(move |request| behave(seed, &history, request));

    let calls = calls(&mut dice, proxies);
    let blows = blows(&mut dice, proxies, store == Store::Redis);
    let addresses = Arc::new(Mutex::new(world.proxies.iter().map(|p| p.address).collect::<Vec<_>>()));
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for call in calls {
        let addresses = addresses.clone();
        callers.spawn(async move {
            sleep_until(start + call.at).await;
            let address = addresses.lock().unwrap()[call.proxy];
            let answer = match call.hangs_up_after {
                Some(patience) => timeout(patience, try_send(call.key, address)).await.ok().flatten(),
                None => try_send(call.key, address).await,
            };
            (call.key, answer)
        });
    }
    for (at, blow) in blows {
        sleep_until(start + at).await;
        match blow {
            Blow::KillProxy(n) => {
                world.proxies[n].start_again().await;
                addresses.lock().unwrap()[n] = world.proxies[n].address;
            }
            Blow::PauseProxy(n, time) => {
                world.proxies[n].pause();
                tokio::time::sleep(time).await;
                world.proxies[n].resume();
            }
            Blow::LoseReply => world.relay().lose_reply_to(":r:", Loss::Cut),
            Blow::PauseRedis(time) => {
                world.redis().pause();
                tokio::time::sleep(time).await;
                world.redis().resume();
            }
        }
    }
    let mut answers = callers.join_all().await;
    answers.extend(afterwards(&world).await);
    let tally = check(seed, &answers, &played.lock().unwrap());
    println!("{tally:?}");
    assert!(tally.keys_with_success > KEYS as usize / 3, "hardly anything succeeded: {tally:?}");
    assert!(tally.unknown > 0 && tally.replays > 0, "hardly a storm: {tally:?}");
}

/// Waits until nothing runs any more, then asks every proxy about every key once more.
async fn afterwards(world: &World) -> Vec<(u64, Option<Answer>)> {
    for proxy in &world.proxies {
        proxy.ready().await;
        eventually("all attempts to end", async || proxy.open_records("claimed").await.is_empty().then_some(())).await;
    }
    let mut answers = Vec::new();
    for key in 0..KEYS {
        for proxy in &world.proxies {
            answers.push((key, Some(request(key).send(proxy.address).await)));
        }
    }
    for proxy in &world.proxies {
        let all_settled = "all attempts of the last round to end";
        eventually(all_settled, async || proxy.open_records("claimed").await.is_empty().then_some(())).await;
        assert!(proxy.open_records("").await.iter().all(|record| record["state"] == "unknown"));
    }
    answers
}

/// What a storm came to.
#[derive(Debug, Default)]
struct Tally {
    keys_with_success: usize,
    replays: usize,
    unknown: usize,
    in_progress: usize,
    unanswered: usize,
}

fn check(seed: u64, answers: &[(u64, Option<Answer>)], played: &BTreeMap<u64, Vec<bool>>) -> Tally {
    let mut tally = Tally::default();
    for (key, released) in played {
        let counted = released.iter().filter(|released| !**released).count();
        assert!(counted <= 1, "seed {seed}: key {key} ran {counted} times");
    }
    let mut bodies: BTreeMap<u64, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for (key, answer) in answers {
        let Some(answer) = answer else {
            tally.unanswered += 1;
            continue;
        };
        if answer.status == 201 {
            let body: Value = answer.json();
            assert_eq!(body["key"], *key, "seed {seed}: the answer of another key: {}", answer.shown());
            bodies.entry(*key).or_default().insert(answer.body.clone());
            tally.replays += usize::from(answer.is_replay());
            continue;
        }
        match answer.problem().as_str() {
            "outcome-unknown" => tally.unknown += 1,
            "request-in-progress" => tally.in_progress += 1,
            "store-unavailable" | "upstream-unreachable" => {}
            "" => assert!(matches!(answer.status, 429 | 503 | 504), "seed {seed}: {}", answer.shown()),
            _ => panic!("seed {seed}: {}", answer.shown()),
        }
    }
    for (key, bodies) in &bodies {
        assert_eq!(bodies.len(), 1, "seed {seed}: different answers of key {key}: {bodies:?}");
    }
    tally.keys_with_success = bodies.len();
    tally
}

on_lasting_stores! {
    async fn the_promise_holds_in_a_storm(store) {
        storm(store, if store == Store::Redis { 2 } else { 1 }).await;
    }
}
