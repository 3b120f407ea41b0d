//! The storms: each topology with the blows that it certainly gets, and those that are rolled besides.
//!
//! Which blows a topology must get is said by [`super::matrix`], and a test compares the two.

use std::time::Duration;

use super::blows::{self, Blow, Kept, Planned};
use super::failovers::Strike;
use crate::history::Moment;
use crate::support::dice::Dice;
use crate::support::relay::Loss as LostReply;
use crate::support::world::Builder;
use crate::support::{Store, ms};

/// One kind of storm.
#[derive(Clone, Copy)]
pub(super) struct Storm {
    pub(super) name: &'static str,
    /// Which row of the matrix it is a storm of.
    pub(super) row: &'static str,
    pub(super) store: Store,
    pub(super) proxies: usize,
    /// What is special about its world.
    pub(super) world: fn(Builder) -> Builder,
    pub(super) length: Duration,
    /// What a restart leaves of the store.
    pub(super) kept: Kept,
    pub(super) blows: fn(&mut Dice, &Storm) -> Vec<Planned>,
    /// The lease, where an unknown outcome is sent again.
    pub(super) resend_after: Option<Duration>,
}

impl Storm {
    const fn new(row: &'static str, store: Store, kept: Kept, blows: fn(&mut Dice, &Storm) -> Vec<Planned>) -> Storm {
        let (proxies, length) = (2, LENGTH);
        Storm { name: row, row, store, proxies, world: plain, length, kept, blows, resend_after: None }
    }

    const fn named(self, name: &'static str) -> Storm {
        Storm { name, ..self }
    }

    const fn on_one_proxy(self) -> Storm {
        Storm { proxies: 1, ..self }
    }

    const fn in_world(self, world: fn(Builder) -> Builder) -> Storm {
        Storm { world, ..self }
    }

    const fn lasting(self, length: Duration) -> Storm {
        Storm { length, ..self }
    }

    const fn sending_again(self, lease: Duration) -> Storm {
        Storm { resend_after: Some(lease), ..self }
    }
}

const LENGTH: Duration = Duration::from_secs(5);
/// When the first blows fall, and how long before the end the last are over.
const BEGIN: Moment = ms(600);
const QUIET: Duration = ms(900);

const LOST_REPLIES: [LostReply; 3] = [LostReply::Cut, LostReply::Silence, LostReply::Half];

/// Each of these for certain, and some of them again.
fn all_of(dice: &mut Dice, storm: &Storm, blows: &[Blow]) -> Vec<Planned> {
    let certain = blows::each(dice, blows, BEGIN, storm.length - QUIET);
    blows::plan(dice, blows, storm.length, certain)
}

/// These for certain besides.
fn with(mut certain: Vec<Planned>, dice: &mut Dice, storm: &Storm, blows: &[Blow]) -> Vec<Planned> {
    certain.extend(blows::each(dice, blows, BEGIN, storm.length - QUIET));
    blows::plan(dice, blows, storm.length, certain)
}

/// Both proxies are struck.
const PROXIES: [Blow; 2] = [Blow::KillProxy(0), Blow::PauseProxy(1)];

/// What happens on the way to the store.
fn on_the_way(dice: &mut Dice) -> [Blow; 3] {
    let how = *dice.one_of(&LOST_REPLIES).expect("three ways");
    [Blow::CutRelay, Blow::HangRelay, Blow::LoseReply(how)]
}

/// What one Redis can get without forgetting.
fn at_redis(dice: &mut Dice) -> Vec<Blow> {
    let at_server = [Blow::PauseRedis, Blow::FlushScripts, Blow::FillRedis];
    [&at_server[..], &on_the_way(dice)].concat()
}

/// A world without anything special.
fn plain(world: Builder) -> Builder {
    world
}

/// With a Redis that keeps a log, synced before anybody is answered.
fn logged(world: Builder) -> Builder {
    world.redis(&["--appendonly", "yes", "--appendfsync", "always"])
}

pub(super) const MEMORY: Storm =
    Storm::new("`memory:`", Store::Memory, Kept::InProcess, |dice, storm| all_of(dice, storm, &[Blow::PauseProxy(0)]))
        .on_one_proxy();

pub(super) const MEMORY_KILLED: Storm = Storm::new("`memory:`", Store::Memory, Kept::InProcess, |dice, _| {
    vec![at(ms(2000) + dice.time(ms(1000)), Blow::KillProxy(0))]
})
.on_one_proxy()
.named("memory, killed");

pub(super) const DISK: Storm = Storm::new("`disk:`", Store::Disk, Kept::Everything, |dice, storm| {
    all_of(dice, storm, &[Blow::KillProxy(0), Blow::PauseProxy(0)])
})
.on_one_proxy();

/// With proxies that live, what is not recorded, or not handed back, has no excuse.
pub(super) const REDIS: Storm = Storm::new("one Redis", Store::Redis, Kept::Everything, |dice, storm| {
    let blows = [&at_redis(dice)[..], &[Blow::RestartRedis]].concat();
    all_of(dice, storm, &blows)
})
.in_world(logged);

pub(super) const REDIS_EMPTIED: Storm = Storm::new("one Redis", Store::Redis, Kept::Nothing, |dice, storm| {
    let certain = vec![at(ms(2000) + dice.time(ms(1000)), Blow::EmptyRedis)];
    let besides = [Blow::KillProxy(0), Blow::PauseProxy(1), Blow::CutRelay, Blow::FlushScripts];
    blows::plan(dice, &besides, storm.length, certain)
})
.named("redis, restarted empty");

pub(super) const REDIS_SNAPSHOT: Storm = Storm::new("one Redis", Store::Redis, Kept::Nothing, |dice, storm| {
    let from = ms(2000) + dice.time(ms(1000));
    let snapshot = from - ms(900);
    let snapshot = Planned { blow: Blow::Snapshot, from: snapshot, until: snapshot };
    // Between a snapshot and the restart something must be written, or there is nothing to forget.
    let besides = [Blow::PauseProxy(1), Blow::FlushScripts];
    blows::plan(dice, &besides, storm.length, vec![snapshot, at(from, Blow::EmptyRedis)])
})
.named("redis, restarted from a snapshot");

pub(super) const REDIS_SECURED: Storm =
    Storm::new("one Redis, TLS and the least rights", Store::Redis, Kept::Everything, |dice, storm| {
        let blows = [&at_redis(dice)[..], &[Blow::RestartRedis], &PROXIES].concat();
        all_of(dice, storm, &blows)
    })
    .in_world(|world| logged(world).secured());

pub(super) const POSTGRES: Storm = Storm::new("Postgres", Store::Postgres, Kept::Everything, |dice, storm| {
    let blows = [&on_the_way(dice)[..], &[Blow::PausePostgres, Blow::RestartPostgres], &PROXIES].concat();
    all_of(dice, storm, &blows)
});

pub(super) const POSTGRES_POOLED: Storm =
    Storm::new("Postgres through PgBouncer", Store::Postgres, Kept::Everything, |dice, storm| {
        let servers = [Blow::PausePostgres, Blow::RestartPostgres, Blow::PausePooler, Blow::RestartPooler];
        let blows = [&on_the_way(dice)[..], &servers, &PROXIES].concat();
        all_of(dice, storm, &blows)
    })
    .in_world(Builder::pooled);

/// Redis itself keeps nothing at a restart; the two together keep everything.
pub(super) const SECOND_LINE: Storm =
    Storm::new("one Redis, second line", Store::Redis, Kept::Everything, |dice, storm| {
        let servers = [Blow::EmptyRedis, Blow::PausePostgres, Blow::RestartPostgres];
        let blows = [&at_redis(dice)[..], &servers, &PROXIES].concat();
        all_of(dice, storm, &blows)
    })
    .in_world(Builder::second_line);

/// No claim waits for a replica: what the failover and the restart forget, the second line has.
pub(super) const SECOND_LINE_SENTINEL: Storm =
    Storm::new("sentinels, second line", Store::Sentinel, Kept::Everything, |dice, storm| {
        let certain =
            vec![master(dice, ms(1000), Strike::CutOffAndKill), at(ms(5500) + dice.time(ms(500)), Blow::EmptyAll)];
        with(certain, dice, storm, &PROXIES)
    })
    .in_world(Builder::second_line)
    .lasting(ms(8000));

pub(super) const SENTINEL_WAITING: Storm =
    Storm::new("sentinels, `wait_replicas`, TLS and the least rights", Store::Sentinel, Kept::Claims, |dice, storm| {
        let how = *dice.one_of(&LOST_REPLIES).expect("three ways");
        let mut certain =
            blows::each(dice, &[Blow::FlushScripts, Blow::FillRedis, Blow::LoseReply(how)], BEGIN, ms(2500));
        for (from, strike) in [(3000, Strike::CutOffAndKill), (6500, Strike::Pause), (10_000, Strike::CutOff)] {
            certain.push(master(dice, ms(from), strike));
        }
        with(certain, dice, storm, &PROXIES)
    })
    .in_world(|world| world.store("wait_replicas = 2").secured())
    .lasting(ms(13_000));

/// The same without waiting for replicas.
pub(super) const SENTINEL: Storm = Storm::new("sentinels", Store::Sentinel, Kept::Replicated, |dice, storm| {
    let certain = vec![master(dice, ms(1000), Strike::CutOffAndKill), master(dice, ms(6000), Strike::ByHand)];
    with(certain, dice, storm, &PROXIES)
})
.lasting(ms(9000));

pub(super) const SENTINEL_EMPTIED: Storm = Storm::new("sentinels", Store::Sentinel, Kept::Nothing, |dice, storm| {
    let certain = vec![at(ms(2000) + dice.time(ms(1000)), Blow::EmptyAll)];
    blows::plan(dice, &PROXIES, storm.length, certain)
})
.named("sentinels, all servers restarted empty");

pub(super) const CLUSTER_WAITING: Storm =
    Storm::new("cluster, `wait_replicas`, TLS and the least rights", Store::Cluster, Kept::Claims, |dice, storm| {
        let how = *dice.one_of(&LOST_REPLIES).expect("three ways");
        let [cut, hung] = [(); 2].map(|()| dice.roll(256) as u8);
        let first = [Blow::FlushScripts, Blow::FillRedis, Blow::HangNode(hung), Blow::LoseReply(how)];
        let mut certain = blows::each(dice, &first, BEGIN, ms(3000));
        certain.push(Planned { blow: Blow::CutNode(cut), from: ms(3000), until: ms(3100) + dice.time(ms(500)) });
        for (from, strike) in
            [(4000, Strike::Kill), (6500, Strike::MoveSlot), (8000, Strike::Pause), (11_000, Strike::ByHand)]
        {
            certain.push(master(dice, ms(from), strike));
        }
        with(certain, dice, storm, &PROXIES)
    })
    .in_world(|world| world.store("wait_replicas = 1").secured())
    .lasting(ms(13_000));

pub(super) const CLUSTER_EMPTIED: Storm = Storm::new("cluster", Store::Cluster, Kept::Nothing, |dice, storm| {
    let certain = vec![at(ms(2000) + dice.time(ms(1000)), Blow::EmptyAll)];
    blows::plan(dice, &PROXIES, storm.length, certain)
});

const RESEND: &str = "on_unknown = \"resend\"\n lease = \"2500ms\"";

/// Longer leases than in other storms: one that nobody cut off, paused or killed must not run out on a busy machine, or
/// the judge would take what follows for a second execution.
const RESEND_AFTER: Duration = ms(2500);

pub(super) const RESEND_REDIS: Storm =
    Storm::new("one Redis, unknowns sent again", Store::Redis, Kept::Everything, |dice, storm| {
        let blows = [&at_redis(dice)[..], &[Blow::RestartRedis], &PROXIES].concat();
        all_of(dice, storm, &blows)
    })
    .in_world(|world| logged(world).route(RESEND))
    .sending_again(RESEND_AFTER);

pub(super) const RESEND_POSTGRES: Storm =
    Storm::new("Postgres, unknowns sent again", Store::Postgres, Kept::Everything, |dice, storm| {
        let blows = [&on_the_way(dice)[..], &[Blow::PausePostgres, Blow::RestartPostgres], &PROXIES].concat();
        all_of(dice, storm, &blows)
    })
    .in_world(|world| world.route(RESEND))
    .sending_again(RESEND_AFTER);

/// A blow that is healed at once.
fn at(from: Moment, blow: Blow) -> Planned {
    Planned { blow, from, until: from + ms(100) }
}

/// A blow at the master of some shard; it is healed when another has taken over.
fn master(dice: &mut Dice, from: Moment, strike: Strike) -> Planned {
    let from = from + dice.time(ms(500));
    Planned { blow: Blow::Master(strike, dice.roll(256) as u8), from, until: from + ms(1000) }
}
