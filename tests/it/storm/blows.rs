//! The blows of a storm: what is done to proxies and to the store, when it begins and when it is healed.
//!
//! A blow says of itself what it may show ([`Terms`]), so that the judge knows the terms of the run.

use std::time::Duration;

use super::failovers::{self, Strike, Struck};
use super::log::Log;
use crate::history::{Loss, Moment, Span, Terms};
use crate::support::dice::Dice;
use crate::support::relay::Loss as LostReply;
use crate::support::{Store, World, ms};

/// How far replicas are behind at most when nothing holds them up.
const LAG: Duration = Duration::from_secs(1);

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
    /// Something is done to the master of this shard, which has replicas.
    Master(Strike, u8),
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
            Blow::PauseRedis
            | Blow::FlushScripts
            | Blow::FillRedis
            | Blow::RestartRedis
            | Blow::Snapshot
            | Blow::Master(..) => Target::Redis,
        }
    }

    fn length(self, dice: &mut Dice) -> Duration {
        match self {
            Blow::KillProxy(_) => dice.time(ms(400)),
            Blow::PauseProxy(_) => ms(200) + dice.time(ms(1300)),
            Blow::FlushScripts | Blow::Snapshot => Duration::ZERO,
            Blow::RestartRedis | Blow::RestartPostgres => dice.time(ms(300)),
            Blow::Master(..) => ms(300),
            _ => ms(100) + dice.time(ms(1300)),
        }
    }

    async fn begin(self, world: &mut World) -> Struck {
        match self {
            Blow::Master(strike, shard) => return failovers::begin(world, strike, shard).await,
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
        Struck::default()
    }

    async fn heal(self, world: &mut World, struck: Struck) {
        match self {
            Blow::Master(strike, _) => failovers::heal(world, strike, struck).await,
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
    fn add_to(self, terms: &mut Terms, lasted: Span, kept: Kept, world: &World) {
        match self {
            Blow::Master(strike, _) => {
                terms.outages.push(lasted);
                if strike.can_lose(world) {
                    let since = lasted.from.saturating_sub(LAG);
                    terms.losses.push(Loss { since, when: lasted, claims: kept != Kept::Claims });
                }
            }
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
                    Kept::Everything | Kept::Claims | Kept::Replicated => {}
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
    /// All that replicas have, and every claim, since none counts before they have it.
    Claims,
    /// All that replicas have: most of it, most of the time.
    Replicated,
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

/// Takes down the failovers that nobody asked for.
pub(super) struct Unasked {
    seen: Option<u64>,
    at: Moment,
}

impl Unasked {
    pub(super) fn new(world: &World, log: &Log) -> Unasked {
        Unasked { seen: failovers::count(world), at: log.now() }
    }

    /// If there was one since the last look, the run may show what a failover can lose.
    pub(super) fn look(&mut self, world: &World, log: &Log, kept: Kept, terms: &mut Terms) {
        let when = Span { from: self.at, until: log.now() };
        if failovers::count(world) != self.seen {
            println!("a failover that nobody asked for: {when:?}");
            terms.outages.push(when);
            terms.losses.push(Loss { since: when.from.saturating_sub(LAG), when, claims: kept != Kept::Claims });
        }
        *self = Unasked::new(world, log);
    }
}

/// Strikes and heals in the order of time, and takes down what the run may show.
pub(super) async fn strike(
    world: &mut World,
    log: &Log,
    plan: &[Planned],
    mut kept: Kept,
    unasked: &mut Unasked,
) -> Terms {
    let mut terms = Terms::default();
    let mut begun: Vec<(Moment, Struck)> = vec![Default::default(); plan.len()];
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
            if matches!(blow, Blow::Master(..)) {
                unasked.look(world, log, kept, &mut terms);
            }
            let now = log.now();
            if blow == Blow::Snapshot {
                kept = Kept::UntilSnapshot(now);
            }
            begun[n] = (now, blow.begin(world).await);
            continue;
        }
        let (from, struck) = begun[n];
        blow.heal(world, struck).await;
        log.note_proxies(world);
        blow.add_to(&mut terms, Span { from, until: log.now() }, kept, world);
        if matches!(blow, Blow::Master(..)) {
            *unasked = Unasked::new(world, log);
        }
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
