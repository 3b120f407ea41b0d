//! Storms: everything at once, and the promise still holds.
//!
//! Hot keys and a long tail, duplicates at random, callers that hang up and repeat, an operator, an upstream that fails
//! in every way it can, proxies and stores that are killed, paused and cut off. Then all is healed, every key is asked
//! for until it is at rest, and the history is judged. The inputs follow from one seed, which is printed;
//! `ONCEPROXY_STORM_SEED` repeats them, `ONCEPROXY_STORM_ROUNDS` runs more storms. What the machine's scheduler does
//! with them differs from run to run.

use std::time::Duration;

use crate::history::{self, Answered, Fault, History, Seen, mutations};
use crate::support::World;
use crate::support::dice::Dice;

mod blows;
mod callers;
mod failovers;
mod log;
mod matrix;
mod readiness;
mod rest;
mod storms;
mod upstream;

use blows::Unasked;
use log::Log;
use storms::Storm;

/// How often all keys are asked for on a machine that does not come to rest.
const ASKED_AT_MOST: usize = 5;
const ABANDON_AFTER: Duration = Duration::from_secs(4);
const ROUTE: &str =
    "lease = \"1500ms\"\n timeout = \"1s\"\n abandon_after = \"4s\"\n wait_timeout = \"2s\"\n retention = \"1h\"";

#[allow(clippy::disallowed_methods, reason = "the environment of the test, not of the product")]
pub(crate) fn given_number(name: &str) -> Option<u64> {
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
    let builder =
        World::build(storm.store).proxies(storm.proxies).relayed_each().route(ROUTE).store("timeout = \"1s\"");
    let mut world = (storm.world)(builder).start().await;
    let clients = callers::plan(&mut dice, storm.proxies, storm.length);
    let plan = (storm.blows)(&mut dice, storm);
    let log = Log::new();
    log.note_proxies(&world);
    let of_upstream = log.clone();
    world.upstream.always(move |request| upstream::behave(seed, &of_upstream, request));

    let callers = callers::send(clients, &log, storm.proxies);
    let readiness = tokio::spawn(readiness::watch(log.clone(), storm.proxies));
    let operator = tokio::spawn(callers::operate(dice, log.clone(), storm.proxies));
    let mut unasked = Unasked::new(&world, &log);
    let mut terms = blows::strike(&mut world, &log, &plan, storm.kept, &mut unasked).await;
    terms.abandon_after = ABANDON_AFTER;
    terms.resend = storm.resend_after;
    callers.join_all().await;
    log.note_calm();
    operator.await.unwrap();
    rest::wait_for(&world, ABANDON_AFTER).await;
    for _ in 0..ASKED_AT_MOST {
        let is_calm = rest::ask(&log, callers::keys(), storm).await;
        rest::wait_for(&world, if is_calm { Duration::ZERO } else { ABANDON_AFTER }).await;
        if is_calm {
            break;
        }
    }
    unasked.look(&world, &log, storm.kept, &mut terms);
    let left = rest::left(&world).await;
    readiness.abort();
    terms.outages.extend(log.without_store());
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
        let hardly = tally.executions < 50 || tally.replays < 15 || tally.unknown + tally.acts < 5;
        assert!(!hardly, "hardly a storm: {tally:?}");
        let mutations = mutations::assert_all_are_found(&history, seed);
        println!("{mutations} mutations, all found");
    }
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

/// One test for each storm, and all of them for the matrix.
macro_rules! storms {
    ($($test:ident: $how:ident($storm:expr);)*) => {
        $(#[tokio::test]
        async fn $test() {
            Box::pin($how(&$storm)).await;
        })*

        const ALL: &[(&str, Storm)] = &[$((stringify!($how), $storm)),*];
    };
}

storms! {
    the_promise_holds_on_memory_while_the_proxy_lives: judged(storms::MEMORY);
    a_memory_store_forgets_with_its_process_and_nothing_else: forgets_exactly_what_is_documented(storms::MEMORY_KILLED);
    the_promise_holds_on_disk: judged(storms::DISK);
    the_promise_holds_on_two_proxies_that_live_and_a_redis_that_is_struck: judged(storms::REDIS);
    a_redis_without_persistence_forgets_at_a_restart_what_was_before_it_and_nothing_else:
        forgets_exactly_what_is_documented(storms::REDIS_EMPTIED);
    a_redis_with_snapshots_forgets_what_came_after_the_last_and_nothing_else:
        forgets_exactly_what_is_documented(storms::REDIS_SNAPSHOT);
    the_promise_holds_on_a_redis_with_tls_and_the_least_rights: judged(storms::REDIS_SECURED);
    the_promise_holds_on_two_proxies_and_a_postgres: judged(storms::POSTGRES);
    the_promise_holds_on_a_postgres_behind_a_pooler: judged(storms::POSTGRES_POOLED);
    the_promise_holds_on_a_redis_that_forgets_with_a_second_line: judged(storms::SECOND_LINE);
    the_promise_holds_at_failovers_that_forget_with_a_second_line: judged(storms::SECOND_LINE_SENTINEL);
    the_promise_holds_behind_sentinels_when_all_replicas_have_each_claim: judged(storms::SENTINEL_WAITING);
    behind_sentinels_a_failover_forgets_what_was_not_replicated_and_nothing_else:
        forgets_exactly_what_is_documented(storms::SENTINEL);
    behind_sentinels_a_restart_of_all_servers_forgets_everything_and_nothing_else:
        forgets_exactly_what_is_documented(storms::SENTINEL_EMPTIED);
    the_promise_holds_on_a_cluster_when_the_replica_has_each_claim: judged(storms::CLUSTER_WAITING);
    a_cluster_whose_nodes_all_restart_forgets_everything_and_nothing_else:
        forgets_exactly_what_is_documented(storms::CLUSTER_EMPTIED);
    where_unknowns_are_sent_again_nothing_else_is_executed_twice: judged(storms::RESEND_REDIS);
    where_unknowns_are_sent_again_postgres_keeps_count: judged(storms::RESEND_POSTGRES);
}
