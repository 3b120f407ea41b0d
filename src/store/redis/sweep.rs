//! The sweep: claims whose lease is over become unknown although nobody asks, so that a crash shows within seconds.
//!
//! Of all processes that share a server one sweeps, by a key with a lease; it also writes down how many records are
//! open, which the others read. It walks the indexes only, on a connection of its own, and never the records; and of the
//! indexes those that have something in them: an idle server is asked for all at once, and has nothing. Each server of a
//! cluster is swept by itself, so that one that hangs does not stop the sweep of the others.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use redis::Value;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use super::ask::{Limits, Question, ask};
use super::keys::{Names, SHARDS};
use super::lane::Lane;
use super::replies::Visited;
use super::scripts::Call;
use super::{CLAIMS_FROM, Shared, together};
use crate::record::{RecordId, Token};
use crate::store::{StoreError, StoreErrorKind};

const SWEEP_EVERY: Duration = Duration::from_secs(1);
// Longer than a round takes, so that a slow sweeper is not joined by a second.
const SWEEPER_LEASE: Duration = Duration::from_secs(5);
/// So many shards are looked at in one trip: whoever else is on that server waits for it.
const SHARDS_A_TRIP: usize = 16;
/// The counts are written anew after so many rounds at the latest, should the server have lost them.
const COUNTS_ANEW: u32 = 10;
/// Lapsed claims of one shard in one round; what is left comes with the next.
const LAPSED_A_ROUND: usize = 1000;
/// Held records of one shard that are looked up in one round, to drop those that expired or were removed by hand.
const CHECKED_A_ROUND: usize = 16;

/// Sweeps for as long as it is polled.
pub(super) async fn sweep_for_ever(shared: &Shared, lane: &Lane) {
    let name = Token::new();
    let mut sweeps: HashMap<u8, Sweep<'_>> = HashMap::new();
    let mut rounds = interval(SWEEP_EVERY);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let groups = shared.topology.groups().await;
        sweeps.retain(|first, _| groups.iter().any(|group| group[0] == *first));
        for group in groups {
            let first = group[0];
            sweeps.entry(first).or_insert_with(|| Sweep::new(shared, lane, name, first)).shards = group;
        }
        together::all(sweeps.values_mut().map(Sweep::round_of_its_own)).await;
        // Of a server that is away what was last counted.
        let (claimed, unknown) = sweeps
            .values()
            .fold((0, 0), |(claimed, unknown), sweep| (claimed + sweep.counted.0, unknown + sweep.counted.1));
        if sweeps.values().any(|sweep| sweep.has_counted) {
            shared.metrics.set_records_open("claimed", claimed);
            shared.metrics.set_records_open("unknown", unknown);
        }
    }
}

/// The sweep of the shards that one server has.
struct Sweep<'a> {
    shared: &'a Shared,
    lane: &'a Lane,
    name: Token,
    shards: Vec<u8>,
    /// The key of whoever sweeps, and that of the counts.
    sweeper: String,
    counts: String,
    was_sweeper: bool,
    /// Claimed and unknown records.
    counted: (u64, u64),
    has_counted: bool,
    /// The shards that had open records in the last round.
    occupied: BTreeSet<u8>,
    /// On a cluster: how many of the others were looked at by now.
    looked: usize,
    /// For how many rounds the counts have stayed the same.
    same_counts: u32,
    /// Up to which place the held records of each shard were looked up.
    next_held: Vec<usize>,
    /// Members that were already complained about.
    odd: HashSet<String>,
}

/// What the indexes of some shards say.
struct Glance {
    shard: u8,
    lapsed: Vec<String>,
    held: Vec<String>,
    unknown: u64,
    claimed: u64,
}

impl<'a> Sweep<'a> {
    fn new(shared: &'a Shared, lane: &'a Lane, name: Token, first: u8) -> Sweep<'a> {
        // Keys of its own for each server of a cluster, in a slot that the server has.
        let first = shared.topology.is_cluster().then_some(first);
        Sweep {
            shared,
            lane,
            name,
            shards: Vec::new(),
            sweeper: shared.keys.sweeper(first),
            counts: shared.keys.counts(first),
            was_sweeper: false,
            counted: (0, 0),
            has_counted: false,
            occupied: BTreeSet::new(),
            looked: 0,
            same_counts: COUNTS_ANEW,
            next_held: vec![0; usize::from(SHARDS)],
            odd: HashSet::new(),
        }
    }

    async fn round_of_its_own(&mut self) {
        match self.round().await {
            Ok(is_sweeper) => {
                if is_sweeper != self.was_sweeper {
                    info!(is_sweeper, key = self.sweeper, "the sweep of the shared store changed hands");
                }
                self.was_sweeper = is_sweeper;
            }
            // The server's health is watched, and said, elsewhere.
            Err(error) => debug!(%error, "the sweep could not finish its round"),
        }
    }

    /// One round. Says whether this process is the sweeper.
    async fn round(&mut self) -> Result<bool, StoreError> {
        let call = Call::new(&self.shared.scripts.sweeper, &Names::of_key(self.sweeper.clone()))
            .token(self.name)
            .number(super::millis(SWEEPER_LEASE));
        let answer = self.ask(self.shards[0], Question::Script(call)).await?;
        let [is_sweeper, now] = numbers(answer)?;
        if is_sweeper != 1 {
            self.read_counts().await?;
            return Ok(false);
        }
        let (mut claimed, mut unknown) = (0, 0);
        self.find_occupied().await?;
        let occupied: Vec<u8> = self.occupied.iter().copied().collect();
        for shards in occupied.chunks(SHARDS_A_TRIP) {
            for glance in self.glance(shards, now).await? {
                let lapsed = self.visit_all(&glance).await?;
                claimed += glance.claimed.saturating_sub(lapsed);
                unknown += glance.unknown + lapsed;
                if glance.claimed + glance.unknown == 0 {
                    self.occupied.remove(&glance.shard);
                }
            }
        }
        self.same_counts = if self.counted == (claimed, unknown) { self.same_counts + 1 } else { COUNTS_ANEW };
        if self.same_counts >= COUNTS_ANEW {
            let mut commands = redis::pipe();
            commands.cmd("SET").arg(&self.counts).arg(format!("{claimed} {unknown}"));
            self.ask(self.shards[0], Question::Commands(commands)).await?;
            self.same_counts = 0;
        }
        self.count(claimed, unknown);
        Ok(true)
    }

    /// Finds the shards that have open records, besides those that had some.
    ///
    /// One server says of all at once how many there are, and is asked for fewer and fewer where there are any. The nodes of
    /// a cluster are asked for one shard at a time, so for some in each round.
    async fn find_occupied(&mut self) -> Result<(), StoreError> {
        self.occupied.retain(|shard| self.shards.contains(shard));
        let others: Vec<u8> = self.shards.iter().copied().filter(|shard| !self.occupied.contains(shard)).collect();
        if self.shared.topology.is_cluster() {
            let from = self.looked.checked_rem(others.len()).unwrap_or(0);
            let next: Vec<_> =
                others.iter().cycle().skip(from).take(SHARDS_A_TRIP.min(others.len())).copied().collect();
            self.looked = from + next.len();
            return self.keep_occupied(&next).await;
        }
        if others.is_empty() || self.occupied_among(&[&others]).await? == [0] {
            return Ok(());
        }
        let groups: Vec<&[u8]> = others.chunks(SHARDS_A_TRIP).collect();
        let counts = self.occupied_among(&groups).await?;
        for (group, _) in groups.iter().zip(counts).filter(|(_, count)| *count > 0) {
            self.keep_occupied(group).await?;
        }
        Ok(())
    }

    async fn keep_occupied(&mut self, shards: &[u8]) -> Result<(), StoreError> {
        if shards.is_empty() {
            return Ok(());
        }
        let each: Vec<&[u8]> = shards.chunks(1).collect();
        let counts = self.occupied_among(&each).await?;
        self.occupied.extend(shards.iter().zip(counts).filter(|(_, count)| *count > 0).map(|(shard, _)| *shard));
        Ok(())
    }

    /// How many shards of each group have open records.
    async fn occupied_among(&self, groups: &[&[u8]]) -> Result<Vec<u64>, StoreError> {
        let mut commands = redis::pipe();
        for group in groups {
            let command = commands.cmd("EXISTS");
            for shard in *group {
                command.arg(self.shared.keys.open_of(*shard));
            }
        }
        match self.ask(groups[0][0], Question::Commands(commands)).await? {
            Value::Array(answers) if answers.len() == groups.len() => answers.iter().map(count).collect(),
            _ => Err(odd_answer()),
        }
    }

    async fn glance(&self, shards: &[u8], now: i64) -> Result<Vec<Glance>, StoreError> {
        let overdue = CLAIMS_FROM + u64::try_from(now).unwrap_or(0);
        let mut commands = redis::pipe();
        for &shard in shards {
            let open = self.shared.keys.open_of(shard);
            let held_from = self.next_held[usize::from(shard)];
            commands.cmd("ZCOUNT").arg(&open).arg("-inf").arg(format!("({CLAIMS_FROM}"));
            commands.cmd("ZCOUNT").arg(&open).arg(CLAIMS_FROM).arg("+inf");
            commands.cmd("ZRANGEBYSCORE").arg(&open).arg(CLAIMS_FROM).arg(overdue);
            commands.arg("LIMIT").arg(0).arg(LAPSED_A_ROUND);
            commands.cmd("ZRANGEBYSCORE").arg(&open).arg("-inf").arg(format!("({CLAIMS_FROM}"));
            commands.arg("LIMIT").arg(held_from).arg(CHECKED_A_ROUND);
        }
        let Value::Array(answers) = self.ask(shards[0], Question::Commands(commands)).await? else {
            return Err(odd_answer());
        };
        let mut answers = answers.into_iter();
        let mut glances = Vec::new();
        for &shard in shards {
            let (Some(unknown), Some(claimed)) = (answers.next(), answers.next()) else { return Err(odd_answer()) };
            let (Some(lapsed), Some(held)) = (answers.next(), answers.next()) else { return Err(odd_answer()) };
            glances.push(Glance {
                shard,
                lapsed: members(lapsed)?,
                held: members(held)?,
                unknown: count(&unknown)?,
                claimed: count(&claimed)?,
            });
        }
        Ok(glances)
    }

    /// Visits what a glance found. Returns how many claims became unknown.
    async fn visit_all(&mut self, glance: &Glance) -> Result<u64, StoreError> {
        let mut lapsed = 0;
        for member in &glance.lapsed {
            if self.visit(member).await? == Some(Visited::Lapsed) {
                lapsed += 1;
            }
        }
        let next = &mut self.next_held[usize::from(glance.shard)];
        *next = if glance.held.len() < CHECKED_A_ROUND { 0 } else { *next + CHECKED_A_ROUND };
        if glance.held.is_empty() {
            return Ok(lapsed);
        }
        let mut commands = redis::pipe();
        for member in &glance.held {
            let key = member.parse::<RecordId>().map(|id| self.shared.keys.record(&id)).unwrap_or_default();
            commands.cmd("EXISTS").arg(key);
        }
        let Value::Array(there) = self.ask(glance.shard, Question::Commands(commands)).await? else {
            return Err(odd_answer());
        };
        for (member, _) in glance.held.iter().zip(&there).filter(|(_, there)| **there == Value::Int(0)) {
            self.visit(member).await?;
        }
        Ok(lapsed)
    }

    async fn visit(&mut self, member: &str) -> Result<Option<Visited>, StoreError> {
        let Ok(id) = member.parse::<RecordId>() else {
            self.complain(member, "it is not the name of a record");
            return Ok(None);
        };
        let call = Call::new(&self.shared.scripts.lapse, &self.shared.keys.names(&id, None)).arg(b"");
        match self.ask(id.hash()[0], Question::Script(call)).await.and_then(Visited::read) {
            Ok(visited) => {
                if visited == Visited::Lapsed {
                    self.shared.metrics.stale_claim(id.route());
                    warn!(record = %id, "a claim's lease ran out: its outcome is unknown");
                }
                Ok(Some(visited))
            }
            // Left where it is: whoever can read it may still come.
            Err(error) if error.kind == StoreErrorKind::Unreadable => {
                self.complain(member, &error.message);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn complain(&mut self, member: &str, reason: &str) {
        if self.odd.insert(member.to_owned()) {
            warn!(record = member, reason, "the sweep cannot read an open record");
        }
    }

    async fn read_counts(&mut self) -> Result<(), StoreError> {
        let mut commands = redis::pipe();
        commands.cmd("GET").arg(&self.counts);
        if let Value::Array(answers) = self.ask(self.shards[0], Question::Commands(commands)).await?
            && let Some(Value::BulkString(text)) = answers.first()
            && let Some((claimed, unknown)) = String::from_utf8_lossy(text).split_once(' ')
            && let (Ok(claimed), Ok(unknown)) = (claimed.parse(), unknown.parse())
        {
            self.count(claimed, unknown);
        }
        Ok(())
    }

    fn count(&mut self, claimed: u64, unknown: u64) {
        self.counted = (claimed, unknown);
        self.has_counted = true;
    }

    async fn ask(&self, shard: u8, question: Question<'_>) -> Result<Value, StoreError> {
        Ok(ask(self.lane.to_shard(shard), &question, Limits::new(self.shared.timeout).impatient()).await?)
    }
}

fn odd_answer() -> StoreError {
    StoreError::without_effect(StoreErrorKind::Broken, "Redis answered the sweep with something that is not understood")
}

fn refused(value: Value) -> StoreError {
    match value.extract_error() {
        Err(error) => StoreError::without_effect(StoreErrorKind::Refused, format!("Redis refuses the sweep: {error}")),
        Ok(_) => odd_answer(),
    }
}

fn numbers(value: Value) -> Result<[i64; 2], StoreError> {
    match value {
        Value::Array(parts) => match parts[..] {
            [Value::Int(a), Value::Int(b)] => Ok([a, b]),
            _ => Err(odd_answer()),
        },
        other => Err(refused(other)),
    }
}

fn count(value: &Value) -> Result<u64, StoreError> {
    match value {
        Value::Int(count) => Ok(u64::try_from(*count).unwrap_or(0)),
        other => Err(refused(other.clone())),
    }
}

fn members(value: Value) -> Result<Vec<String>, StoreError> {
    let Value::Array(parts) = value else { return Err(refused(value)) };
    parts
        .into_iter()
        .map(|part| match part {
            Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            other => Err(refused(other)),
        })
        .collect()
}
