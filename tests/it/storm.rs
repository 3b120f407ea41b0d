//! Storms: everything at once, and the promise still holds.
//!
//! Hot keys and a long tail, duplicates at random, callers that hang up and repeat, an operator, an upstream that fails
//! in every way it can, proxies and stores that are killed, paused and cut off. Then all is healed, every key is asked
//! for until it is at rest, and the history is judged. The inputs follow from one seed, which is printed;
//! `ONCEPROXY_STORM_SEED` repeats them, `ONCEPROXY_STORM_ROUNDS` runs more storms. What the machine's scheduler does
//! with them differs from run to run.

use std::time::Duration;

use crate::history::{self, Answered, Fault, History, Seen, mutations};
use crate::support::dice::Dice;
use crate::support::world::Builder;
use crate::support::{Store, World, ms};

mod blows;
mod callers;
mod failovers;
mod log;
mod rest;
mod upstream;

use blows::{Blow, Kept, Planned, Unasked};
use failovers::Strike;
use log::Log;

const LENGTH: Duration = Duration::from_secs(5);
const ABANDON_AFTER: Duration = Duration::from_secs(4);
const ROUTE: &str = "lease = \"1s\"\n timeout = \"1s\"\n abandon_after = \"4s\"\n wait_timeout = \"2s\"";

/// One kind of storm.
struct Storm {
    name: &'static str,
    store: Store,
    proxies: usize,
    /// What is special about its world.
    world: fn(Builder) -> Builder,
    length: Duration,
    /// What a restart leaves of the store.
    kept: Kept,
    blows: fn(&mut Dice, &Storm) -> Vec<Planned>,
}

impl Storm {
    fn any_blows(dice: &mut Dice, storm: &Storm) -> Vec<Planned> {
        blows::plan(dice, &blows::kinds(storm.store, storm.proxies), LENGTH, Vec::new())
    }
}

#[allow(clippy::disallowed_methods, reason = "the environment of the test, not of the product")]
fn given_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn seeds() -> Vec<u64> {
    let first = given_number("ONCEPROXY_STORM_SEED")
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    (0..given_number("ONCEPROXY_STORM_ROUNDS").unwrap_or(1)).map(|round| first.wrapping_add(round)).collect()
}

/// Runs it and returns its history, and its world: what is wrong is shown with the proxies' logs.
async fn run(storm: &Storm, seed: u64) -> (History, World) {
    println!("{}: ONCEPROXY_STORM_SEED={seed}", storm.name);
    let mut dice = Dice::new(seed);
    let builder = (storm.world)(World::build(storm.store).proxies(storm.proxies).relayed());
    let mut world = builder.route(ROUTE).store("timeout = \"500ms\"").start().await;
    let clients = callers::plan(&mut dice, storm.proxies, storm.length);
    let plan = (storm.blows)(&mut dice, storm);
    let log = Log::new();
    log.note_proxies(&world);
    let of_upstream = log.clone();
    world.upstream.always(move |request| upstream::behave(seed, &of_upstream, request));

    let callers = callers::send(clients, &log, storm.proxies);
    let operator = tokio::spawn(callers::operate(dice, log.clone(), storm.proxies));
    let mut unasked = Unasked::new(&world, &log);
    let mut terms = blows::strike(&mut world, &log, &plan, storm.kept, &mut unasked).await;
    terms.abandon_after = ABANDON_AFTER;
    callers.join_all().await;
    log.note_calm();
    operator.await.unwrap();
    rest::wait_for(&world, ABANDON_AFTER).await;
    rest::ask(&log, callers::keys(), storm.proxies).await;
    rest::wait_for(&world, Duration::ZERO).await;
    unasked.look(&world, &log, storm.kept, &mut terms);
    let left = rest::left(&world).await;
    let (executions, calls, acts) = log.all();
    println!("{plan:?}");
    (History { executions, calls, acts, left, terms }, world)
}

/// What a storm came to, to see that it was one.
#[derive(Debug, Default)]
struct Tally {
    executions: usize,
    first: usize,
    replays: usize,
    unknown: usize,
    in_progress: usize,
    refused: usize,
    reused: usize,
    nothing: usize,
    acts: usize,
}

fn tally(history: &History) -> Tally {
    let done = history.acts.iter().filter(|act| act.done).count();
    let mut tally = Tally { executions: history.executions.len(), acts: done, ..Tally::default() };
    for call in &history.calls {
        let count = match &call.seen {
            Seen::Nothing => &mut tally.nothing,
            Seen::Answer(Answered { replayed: true, .. }) => &mut tally.replays,
            Seen::Answer(_) => &mut tally.first,
            Seen::Problem(problem) => match problem.kind.as_str() {
                "outcome-unknown" => &mut tally.unknown,
                "request-in-progress" => &mut tally.in_progress,
                "key-reused" => &mut tally.reused,
                _ => &mut tally.refused,
            },
        };
        *count += 1;
    }
    tally
}

/// Runs it, judges it, and makes its history wrong to see that the judge would have seen it.
async fn judged(storm: &Storm) {
    for seed in seeds() {
        let (history, _world) = run(storm, seed).await;
        let tally = tally(&history);
        println!("{tally:?}");
        history::assert_right(&format!("{}, seed {seed}", storm.name), &history);
        let hardly = tally.executions < 50 || tally.replays < 50 || tally.unknown + tally.acts < 5;
        assert!(!hardly, "hardly a storm: {tally:?}");
        let mutations = mutations::assert_all_are_found(&history, seed);
        println!("{mutations} mutations, all found");
    }
}

#[tokio::test]
async fn the_promise_holds_on_memory_while_the_proxy_lives() {
    let blows = |dice: &mut Dice, _: &Storm| blows::plan(dice, &[Blow::PauseProxy(0)], LENGTH, Vec::new());
    let (store, kept) = (Store::Memory, Kept::InProcess);
    judged(&Storm { name: "memory", store, proxies: 1, world: plain, length: LENGTH, kept, blows }).await;
}

#[tokio::test]
async fn the_promise_holds_on_disk() {
    let (store, kept, blows) = (Store::Disk, Kept::Everything, Storm::any_blows);
    judged(&Storm { name: "disk", store, proxies: 1, world: plain, length: LENGTH, kept, blows }).await;
}

/// A world without anything special.
fn plain(world: Builder) -> Builder {
    world
}

/// With a Redis that keeps a log, synced before anybody is answered.
fn logged(world: Builder) -> Builder {
    world.redis(&["--appendonly", "yes", "--appendfsync", "always"])
}

#[tokio::test]
async fn the_promise_holds_on_two_proxies_and_a_redis_that_keeps_a_log() {
    let (store, kept, blows) = (Store::Redis, Kept::Everything, Storm::any_blows);
    judged(&Storm { name: "redis", store, proxies: 2, world: logged, length: LENGTH, kept, blows }).await;
}

#[tokio::test]
async fn the_promise_holds_on_two_proxies_and_a_postgres() {
    let (store, kept, blows) = (Store::Postgres, Kept::Everything, Storm::any_blows);
    judged(&Storm { name: "postgres", store, proxies: 2, world: plain, length: LENGTH, kept, blows }).await;
}

#[tokio::test]
async fn the_promise_holds_on_a_redis_that_forgets_with_a_second_line() {
    let blows = |dice: &mut Dice, storm: &Storm| {
        let mut kinds = blows::kinds(storm.store, storm.proxies);
        kinds.extend([Blow::RestartRedis, Blow::PausePostgres, Blow::RestartPostgres]);
        let from = ms(2000) + dice.time(ms(1000));
        let certain = vec![Planned { blow: Blow::RestartRedis, from, until: from + ms(100) }];
        blows::plan(dice, &kinds, LENGTH, certain)
    };
    // Redis itself keeps nothing at a restart; the two together keep everything.
    let (store, kept) = (Store::Redis, Kept::Everything);
    let name = "redis without persistence, and a second line";
    judged(&Storm { name, store, proxies: 2, world: Builder::second_line, length: LENGTH, kept, blows }).await;
}

/// With proxies that live, what is not recorded, or not handed back, has no excuse.
#[tokio::test]
async fn the_promise_holds_on_two_proxies_that_live_and_a_redis_that_is_struck() {
    let blows = |dice: &mut Dice, _: &Storm| blows::plan(dice, &blows::kinds(Store::Redis, 0), LENGTH, Vec::new());
    let (store, kept) = (Store::Redis, Kept::Everything);
    judged(&Storm { name: "redis alone", store, proxies: 2, world: logged, length: LENGTH, kept, blows }).await;
}

/// The blows of a storm with one restart of Redis that forgets.
fn one_restart(dice: &mut Dice, snapshot: bool) -> Vec<Planned> {
    let from = ms(2000) + dice.time(ms(1000));
    let mut certain = vec![Planned { blow: Blow::RestartRedis, from, until: from + ms(100) }];
    if snapshot {
        let from = from - ms(900);
        certain.push(Planned { blow: Blow::Snapshot, from, until: from });
    }
    // Between a snapshot and the restart something must be written, or there is nothing to forget.
    let kinds: &[Blow] = match snapshot {
        true => &[Blow::PauseProxy(1), Blow::FlushScripts],
        false => &[Blow::KillProxy(0), Blow::PauseProxy(1), Blow::CutRelay, Blow::FlushScripts],
    };
    blows::plan(dice, kinds, LENGTH, certain)
}

/// A restart that forgets leads to second executions, and to nothing else; and with the terms that the documents state,
/// even those are explained one by one.
async fn forgets_exactly_what_is_documented(storm: &Storm) {
    for seed in seeds() {
        let (history, _world) = run(storm, seed).await;
        println!("{:?}", tally(&history));
        history::assert_right(&format!("{}, seed {seed}", storm.name), &history);
        let mut untold = history.clone();
        untold.terms.losses.clear();
        let verdicts = history::judge(&untold);
        let seconds = verdicts.iter().filter(|verdict| verdict.fault == Fault::SecondExecution).count();
        assert!(seconds > 0, "nothing was forgotten");
        let of_loss = [
            Fault::SecondExecution,
            Fault::UnknownNotHeld,
            Fault::TwoAnswers,
            Fault::RecordLost,
            Fault::AnswerNotRecorded,
        ];
        let others: Vec<_> = verdicts.iter().filter(|verdict| !of_loss.contains(&verdict.fault)).collect();
        assert!(others.is_empty(), "{others:#?}");
    }
}

#[tokio::test]
async fn a_redis_without_persistence_forgets_at_a_restart_what_was_before_it_and_nothing_else() {
    let blows = |dice: &mut Dice, _: &Storm| one_restart(dice, false);
    let (store, kept) = (Store::Redis, Kept::Nothing);
    let storm = Storm { name: "redis, restarted empty", store, proxies: 2, world: plain, length: LENGTH, kept, blows };
    forgets_exactly_what_is_documented(&storm).await;
}

#[tokio::test]
async fn a_redis_with_snapshots_forgets_what_came_after_the_last_and_nothing_else() {
    let blows = |dice: &mut Dice, _: &Storm| one_restart(dice, true);
    let (store, kept) = (Store::Redis, Kept::Nothing);
    let storm = Storm {
        name: "redis, restarted from a snapshot",
        store,
        proxies: 2,
        world: plain,
        length: LENGTH,
        kept,
        blows,
    };
    forgets_exactly_what_is_documented(&storm).await;
}

#[tokio::test]
async fn a_memory_store_forgets_with_its_process_and_nothing_else() {
    let blows = |dice: &mut Dice, _: &Storm| {
        let from = ms(2000) + dice.time(ms(1000));
        vec![Planned { blow: Blow::KillProxy(0), from, until: from + ms(100) }]
    };
    let (store, kept) = (Store::Memory, Kept::InProcess);
    let storm = Storm { name: "memory, killed", store, proxies: 1, world: plain, length: LENGTH, kept, blows };
    forgets_exactly_what_is_documented(&storm).await;
}

const WITH_FAILOVERS: Duration = Duration::from_secs(9);

/// Two blows at masters, and others at the proxies.
fn failovers(dice: &mut Dice, first: &[Strike], second: &[Strike]) -> Vec<Planned> {
    let mut certain = Vec::new();
    for (at, strikes) in [(ms(1000), first), (ms(6000), second)] {
        let strike = *dice.one_of(strikes).expect("strikes");
        let from = at + dice.time(ms(500));
        certain.push(Planned { blow: Blow::Master(strike, dice.roll(256) as u8), from, until: from + ms(1000) });
    }
    blows::plan(dice, &[Blow::KillProxy(0), Blow::PauseProxy(1)], WITH_FAILOVERS, certain)
}

fn of_sentinels(dice: &mut Dice, _: &Storm) -> Vec<Planned> {
    failovers(dice, &[Strike::CutOffAndKill], &[Strike::Kill, Strike::Pause, Strike::ByHand])
}

#[tokio::test]
async fn the_promise_holds_behind_sentinels_when_all_replicas_have_each_claim() {
    let world = |world: Builder| world.store("wait_replicas = 2");
    let (store, kept, length, blows) = (Store::Sentinel, Kept::Claims, WITH_FAILOVERS, of_sentinels);
    judged(&Storm { name: "sentinel", store, proxies: 2, world, length, kept, blows }).await;
}

/// The same storm without waiting for replicas.
#[tokio::test]
async fn behind_sentinels_a_failover_forgets_what_was_not_replicated_and_nothing_else() {
    let (store, kept, length, blows) = (Store::Sentinel, Kept::Replicated, WITH_FAILOVERS, of_sentinels);
    let storm = Storm { name: "sentinel, not waiting", store, proxies: 2, world: plain, length, kept, blows };
    forgets_exactly_what_is_documented(&storm).await;
}

#[tokio::test]
async fn the_promise_holds_on_a_cluster_when_the_replica_has_each_claim() {
    let blows = |dice: &mut Dice, _: &Storm| {
        failovers(dice, &[Strike::Kill, Strike::Pause], &[Strike::MoveSlot, Strike::ByHand, Strike::Kill])
    };
    let world = |world: Builder| world.store("wait_replicas = 1");
    let (store, kept, length) = (Store::Cluster, Kept::Claims, WITH_FAILOVERS);
    judged(&Storm { name: "cluster", store, proxies: 2, world, length, kept, blows }).await;
}
