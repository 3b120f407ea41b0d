//! The blows of a storm: what is done to proxies and to the store, when it begins and when it is healed.
//!
//! A blow says of itself what it may show ([`Terms`]), so that the judge knows the terms of the run.

use std::time::Duration;

use super::log::Log;
use crate::history::{Loss, Moment, Span, Terms};
use crate::support::dice::Dice;
use crate::support::relay::Loss as LostReply;
use crate::support::{Store, World, ms};

/// One kind of blow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
    /// `kill -9`, and started again.
    KillProxy(usize),
    /// It stands still, at times for longer than its leases.
    PauseProxy(usize),
    /// Redis stands still.
    PauseRedis,
    /// All connections to Redis are cut, and new ones at once.
    CutRelay,
    /// Redis is a black hole.
    HangRelay,
    /// The reply to the next operation on a record is lost in this way.
    LoseReply(LostReply),
    /// `SCRIPT FLUSH`.
    FlushScripts,
    /// No memory is left.
    FillRedis,
    /// `kill -9` of Redis, and started again with what its persistence kept.
    RestartRedis,
    /// Postgres stands still.
    PausePostgres,
    /// `kill -9` of Postgres, and started again.
    RestartPostgres,
    /// A snapshot is written: the last thing that a restart without a log remembers.
    Snapshot,
}

/// What at most one blow can hit at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Proxy(usize),
    Redis,
    Postgres,
    Relay,
}

impl Blow {
    fn target(self) -> Target {
        match self {
            Blow::KillProxy(n) | Blow::PauseProxy(n) => Target::Proxy(n),
            Blow::CutRelay | Blow::HangRelay | Blow::LoseReply(_) => Target::Relay,
            Blow::PausePostgres | Blow::RestartPostgres => Target::Postgres,
            Blow::PauseRedis | Blow::FlushScripts | Blow::FillRedis | Blow::RestartRedis | Blow::Snapshot => {
                Target::Redis
            }
        }
    }

    fn length(self, dice: &mut Dice) -> Duration {
        match self {
            Blow::KillProxy(_) => dice.time(ms(400)),
            Blow::PauseProxy(_) => ms(200) + dice.time(ms(1300)),
            Blow::FlushScripts | Blow::Snapshot => Duration::ZERO,
            Blow::RestartRedis | Blow::RestartPostgres => dice.time(ms(300)),
            _ => ms(100) + dice.time(ms(1300)),
        }
    }

    async fn begin(self, world: &mut World) {
        match self {
            Blow::KillProxy(n) => world.proxies[n].kill(),
            Blow::PauseProxy(n) => world.proxies[n].pause(),
            Blow::PauseRedis => world.redis().pause(),
            Blow::CutRelay => world.relay().cut(),
            Blow::HangRelay => world.relay().hang(),
            Blow::LoseReply(how) => {
                let of_a_record = if world.redis.is_some() { ":r:" } else { ".records" };
                world.relay().lose_reply_to(of_a_record, how);
            }
            Blow::PausePostgres => world.postgres.as_ref().expect("a Postgres").pause(),
            Blow::RestartPostgres => world.postgres.as_mut().expect("a Postgres").kill(),
            Blow::FlushScripts => drop(world.redis().command(&["SCRIPT", "FLUSH"]).await),
            Blow::FillRedis => drop(world.redis().command(&["CONFIG", "SET", "maxmemory", "1"]).await),
            Blow::RestartRedis => world.redis.as_mut().expect("a Redis").kill(),
            Blow::Snapshot => drop(world.redis().command(&["SAVE"]).await),
        }
    }

    async fn heal(self, world: &mut World) {
        match self {
            Blow::KillProxy(n) => world.proxies[n].start_again().await,
            Blow::PauseProxy(n) => world.proxies[n].resume(),
            Blow::PauseRedis => world.redis().resume(),
            Blow::CutRelay | Blow::HangRelay => world.relay().mend(),
            Blow::LoseReply(_) => world.relay().lose_nothing(),
            Blow::FillRedis => drop(world.redis().command(&["CONFIG", "SET", "maxmemory", "0"]).await),
            Blow::RestartRedis => world.redis.as_mut().expect("a Redis").restart().await,
            Blow::PausePostgres => world.postgres.as_ref().expect("a Postgres").resume(),
            Blow::RestartPostgres => world.postgres.as_mut().expect("a Postgres").restart(),
            Blow::FlushScripts | Blow::Snapshot => {}
        }
    }

    /// Takes down what the blow, which lasted this long, may show.
    fn add_to(self, terms: &mut Terms, lasted: Span, kept: Kept) {
        match self {
            Blow::KillProxy(n) => {
                terms.away.push((n, lasted));
                if kept == Kept::InProcess {
                    terms.losses.push(Loss { since: Duration::ZERO, when: lasted, claims: true });
                }
            }
            Blow::PauseProxy(n) => terms.away.push((n, lasted)),
            Blow::FlushScripts => {}
            // Until it is restarted, nothing is lost.
            Blow::Snapshot => {}
            Blow::FillRedis => {
                terms.full.push(lasted);
                terms.outages.push(lasted);
            }
            Blow::RestartRedis => {
                terms.outages.push(lasted);
                match kept {
                    Kept::InProcess | Kept::Nothing => {
                        terms.losses.push(Loss { since: Duration::ZERO, when: lasted, claims: true });
                    }
                    Kept::UntilSnapshot(since) => terms.losses.push(Loss { since, when: lasted, claims: true }),
                    Kept::Everything => {}
                }
            }
            // A crash of Postgres keeps all that was answered.
            Blow::PausePostgres | Blow::RestartPostgres => terms.outages.push(lasted),
            Blow::PauseRedis | Blow::CutRelay | Blow::HangRelay | Blow::LoseReply(_) => terms.outages.push(lasted),
        }
    }
}

/// What the documents say a restart leaves of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The store is the process.
    InProcess,
    /// All of it: a log that is synced before anybody is answered.
    Everything,
    /// Nothing: no persistence.
    Nothing,
    /// What there was when the last snapshot began to be written.
    UntilSnapshot(Moment),
}

/// A blow of the plan: from when, until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) blow: Blow,
    pub(super) from: Moment,
    pub(super) until: Moment,
}

/// Rolls blows of these kinds within `length`, besides those that are certain; none is hit twice at the same time.
pub(super) fn plan(dice: &mut Dice, kinds: &[Blow], length: Duration, certain: Vec<Planned>) -> Vec<Planned> {
    let mut planned = certain;
    let mut from = ms(600) + dice.time(ms(400));
    while from + ms(1500) < length {
        let blow = *dice.one_of(kinds).expect("kinds of blows");
        let until = from + blow.length(dice);
        let busy = planned
            .iter()
            .any(|other| other.blow.target() == blow.target() && from <= other.until && other.from <= until);
        if !busy {
            planned.push(Planned { blow, from, until });
        }
        from += ms(100) + dice.time(ms(500));
    }
    planned
}

/// Strikes and heals in the order of time, and returns what the run may show.
pub(super) async fn strike(world: &mut World, log: &Log, plan: &[Planned], mut kept: Kept) -> Terms {
    let mut terms = Terms::default();
    let mut begun: Vec<Moment> = vec![Duration::ZERO; plan.len()];
    let mut events: Vec<(Moment, bool, usize)> = Vec::new();
    for (n, planned) in plan.iter().enumerate() {
        events.push((planned.from, false, n));
        events.push((planned.until, true, n));
    }
    events.sort();
    for (at, heals, n) in events {
        tokio::time::sleep_until(log.at(at)).await;
        let blow = plan[n].blow;
        if !heals {
            begun[n] = log.now();
            if blow == Blow::Snapshot {
                kept = Kept::UntilSnapshot(begun[n]);
            }
            blow.begin(world).await;
            continue;
        }
        blow.heal(world).await;
        log.note_proxies(world);
        blow.add_to(&mut terms, Span { from: begun[n], until: log.now() }, kept);
    }
    terms
}

/// The blows that a store of this kind and its proxies can get.
pub(super) fn kinds(store: Store, proxies: usize) -> Vec<Blow> {
    let mut kinds = Vec::new();
    for n in 0..proxies {
        kinds.extend([Blow::KillProxy(n), Blow::KillProxy(n), Blow::PauseProxy(n)]);
    }
    let losses = [LostReply::Cut, LostReply::Silence, LostReply::Half].map(Blow::LoseReply);
    if store == Store::Postgres {
        kinds.extend(losses);
        kinds.extend([Blow::CutRelay, Blow::HangRelay, Blow::PausePostgres, Blow::RestartPostgres]);
    }
    if store == Store::Redis {
        let troubles = [Blow::PauseRedis, Blow::CutRelay, Blow::HangRelay, Blow::FlushScripts, Blow::FillRedis];
        kinds.extend(losses.into_iter().chain(troubles).chain([Blow::RestartRedis, Blow::RestartRedis]));
    }
    kinds
}
