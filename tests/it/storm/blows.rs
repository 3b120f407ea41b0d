//! The blows of a storm: what is done to proxies and to the store, when it begins and when it is healed.
//!
//! A blow says of itself what it may show ([`Terms`]), so that the judge knows the terms of the run.

use std::time::Duration;

use super::failovers::{self, Strike, Struck};
use super::log::Log;
use crate::history::{Loss, Moment, Span, Terms};
use crate::support::dice::Dice;
use crate::support::relay::{Loss as LostReply, Relay};
use crate::support::{World, eventually, ms};

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
    /// All connections to the store are cut, and new ones at once.
    CutRelay,
    /// The store is a black hole.
    HangRelay,
    /// The same of the node of a cluster that has this shard; its replica does not reach it either.
    CutNode(u8),
    HangNode(u8),
    /// The reply to the next operation on a record is lost in this way.
    LoseReply(LostReply),
    /// `SCRIPT FLUSH`.
    FlushScripts,
    /// No memory is left.
    FillRedis,
    /// `kill -9` of Redis, and started again with what its persistence kept.
    RestartRedis,
    /// The same where it kept nothing, or an old snapshot.
    EmptyRedis,
    /// `kill -9` of all servers of a cluster, or of all that sentinels watch, and started again without what they held.
    EmptyAll,
    /// Postgres stands still.
    PausePostgres,
    /// `kill -9` of Postgres, and started again.
    RestartPostgres,
    /// The pooler stands still.
    PausePooler,
    /// `kill -9` of the pooler, and started again.
    RestartPooler,
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
    Pooler,
    Relay,
}

impl Blow {
    fn target(self) -> Target {
        match self {
            Blow::KillProxy(n) | Blow::PauseProxy(n) => Target::Proxy(n),
            Blow::CutRelay | Blow::HangRelay | Blow::LoseReply(_) => Target::Relay,
            Blow::PausePostgres | Blow::RestartPostgres => Target::Postgres,
            Blow::PausePooler | Blow::RestartPooler => Target::Pooler,
            Blow::PauseRedis
            | Blow::FlushScripts
            | Blow::FillRedis
            | Blow::RestartRedis
            | Blow::EmptyRedis
            | Blow::EmptyAll
            | Blow::CutNode(_)
            | Blow::HangNode(_)
            | Blow::Snapshot
            | Blow::Master(..) => Target::Redis,
        }
    }

    fn length(self, dice: &mut Dice) -> Duration {
        match self {
            Blow::KillProxy(_) => dice.time(ms(400)),
            Blow::PauseProxy(_) => ms(200) + dice.time(ms(1300)),
            Blow::FlushScripts | Blow::Snapshot => Duration::ZERO,
            Blow::RestartRedis | Blow::EmptyRedis | Blow::EmptyAll => dice.time(ms(300)),
            Blow::RestartPostgres | Blow::RestartPooler => dice.time(ms(300)),
            Blow::Master(..) => ms(300),
            _ => ms(100) + dice.time(ms(1300)),
        }
    }

    /// How much of the time it needs, beside others.
    fn share(self) -> u32 {
        match self {
            Blow::FlushScripts | Blow::Snapshot => 1,
            Blow::RestartRedis | Blow::EmptyRedis | Blow::RestartPostgres | Blow::RestartPooler => 2,
            _ => 4,
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
            Blow::CutNode(shard) | Blow::HangNode(shard) => {
                let (old, _) = failovers::master_of(world.cluster(), shard);
                let relay = world.nodes()[old].relay.as_ref().expect("a relay");
                if matches!(self, Blow::CutNode(_)) {
                    relay.cut();
                } else {
                    relay.hang();
                }
                return Struck::of(old);
            }
            Blow::LoseReply(how) => {
                let (marker, how) = marked_reply(world, how);
                world.relays().for_each(|relay| relay.lose_reply_to(marker, how));
            }
            Blow::PausePostgres => world.postgres.as_ref().expect("a Postgres").pause(),
            Blow::RestartPostgres => world.postgres.as_mut().expect("a Postgres").kill(),
            Blow::PausePooler => world.pooler.as_ref().expect("a pooler").pause(),
            Blow::RestartPooler => world.pooler.as_mut().expect("a pooler").kill(),
            Blow::FlushScripts => world.tell_every_redis(&["SCRIPT", "FLUSH"]).await,
            Blow::FillRedis => world.tell_every_redis(&["CONFIG", "SET", "maxmemory", "1"]).await,
            Blow::RestartRedis | Blow::EmptyRedis => world.redis.as_mut().expect("a Redis").kill(),
            Blow::EmptyAll => failovers::kill_all(world),
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
            Blow::CutNode(_) | Blow::HangNode(_) => {
                world.nodes()[struck.old].relay.as_ref().expect("a relay").mend();
                let cluster = world.cluster();
                eventually("the replica to be back", async || cluster.is_whole().then_some(())).await;
            }
            Blow::LoseReply(_) => world.relays().for_each(Relay::lose_nothing),
            Blow::FillRedis => world.tell_every_redis(&["CONFIG", "SET", "maxmemory", "0"]).await,
            Blow::RestartRedis | Blow::EmptyRedis => world.redis.as_mut().expect("a Redis").restart().await,
            Blow::EmptyAll => failovers::restart_all(world).await,
            Blow::PausePooler => world.pooler.as_ref().expect("a pooler").resume(),
            Blow::RestartPooler => world.pooler.as_mut().expect("a pooler").restart(),
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
                    terms.first_line.iter_mut().for_each(|emptied| emptied.push(lasted));
                }
                if kept != Kept::Everything && strike.can_lose(world) {
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
            Blow::EmptyRedis | Blow::EmptyAll => {
                terms.outages.push(lasted);
                let since = if let Kept::UntilSnapshot(since) = kept { since } else { Duration::ZERO };
                terms.first_line.iter_mut().for_each(|emptied| emptied.push(lasted));
                // A second line keeps what Redis forgets.
                if kept != Kept::Everything {
                    terms.losses.push(Loss { since, when: lasted, claims: true });
                }
            }
            // What was answered is in its log.
            Blow::RestartRedis => terms.outages.push(lasted),
            // A crash of Postgres keeps all that was answered, and a pooler has nothing to lose.
            Blow::PausePostgres | Blow::RestartPostgres => terms.outages.push(lasted),
            Blow::PausePooler | Blow::RestartPooler => terms.outages.push(lasted),
            Blow::PauseRedis | Blow::CutRelay | Blow::HangRelay | Blow::LoseReply(_) => terms.outages.push(lasted),
            Blow::CutNode(_) | Blow::HangNode(_) => terms.outages.push(lasted),
        }
    }

    /// Whether it may make another server the master.
    fn changes_masters(self) -> bool {
        matches!(self, Blow::Master(..) | Blow::EmptyAll)
    }
}

/// What to look for in a message to lose its reply, and how. In TLS every record of data looks alike; what a replica is
/// sent must not be swallowed in silence then, or it would wait for a minute.
fn marked_reply(world: &World, how: LostReply) -> (&'static str, LostReply) {
    let is_of_many = world.relay.is_none();
    match (world.is_secured(), how) {
        (true, LostReply::Silence) if is_of_many => ("\u{17}\u{3}\u{3}", LostReply::Cut),
        (true, how) => ("\u{17}\u{3}\u{3}", how),
        (false, how) if world.redis.is_none() && is_of_many => (":r:", how),
        (false, how) if world.redis.is_none() => (".records", how),
        (false, how) => (":r:", how),
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

/// Each of these once between two moments, in a rolled order, one after the other on each target.
pub(super) fn each(dice: &mut Dice, blows: &[Blow], from: Moment, until: Moment) -> Vec<Planned> {
    let mut left = blows.to_vec();
    let mut planned = Vec::new();
    while let Some(target) = left.first().map(|blow| blow.target()) {
        let (mut same, others) = left.into_iter().partition::<Vec<_>, _>(|blow| blow.target() == target);
        left = others;
        let whole: u32 = same.iter().map(|blow| blow.share()).sum();
        let mut begin = from;
        while !same.is_empty() {
            let blow = same.swap_remove(dice.roll(same.len() as u64) as usize);
            let slot = (until - from) * blow.share() / whole;
            let at = begin + dice.time(slot / 4);
            begin += slot;
            planned.push(Planned { blow, from: at, until: (at + blow.length(dice)).min(begin - ms(10)) });
        }
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
            let claims = kept != Kept::Claims;
            let lost = (kept != Kept::Everything).then(|| Loss { since: when.from.saturating_sub(LAG), when, claims });
            terms.losses.extend(lost);
            terms.first_line.iter_mut().for_each(|emptied| emptied.push(when));
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
    let first_line = world.has_second_line().then(Vec::new);
    let mut terms = Terms { first_line, ..Terms::default() };
    let mut begun: Vec<(Moment, Struck)> = vec![Default::default(); plan.len()];
    let mut events: Vec<(Moment, bool, usize)> = Vec::new();
    for (n, planned) in plan.iter().enumerate() {
        events.push((planned.from, false, n));
        events.push((planned.until, true, n));
    }
    events.sort();
    // What takes longer than planned puts off the rest, which is to last as long as planned.
    let mut late = Duration::ZERO;
    for (at, heals, n) in events {
        tokio::time::sleep_until(log.at(at + late)).await;
        let blow = plan[n].blow;
        if !heals {
            if blow.changes_masters() {
                unasked.look(world, log, kept, &mut terms);
            }
            let now = log.now();
            if blow == Blow::Snapshot {
                kept = Kept::UntilSnapshot(now);
            }
            begun[n] = (now, blow.begin(world).await);
            late = late.max(log.now().saturating_sub(at));
            continue;
        }
        let (from, struck) = begun[n];
        blow.heal(world, struck).await;
        late = late.max(log.now().saturating_sub(at));
        log.note_proxies(world);
        blow.add_to(&mut terms, Span { from, until: log.now() }, kept, world);
        if blow.changes_masters() {
            *unasked = Unasked::new(world, log);
        }
    }
    terms
}
