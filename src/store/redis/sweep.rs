//! The sweep: claims whose lease is over become unknown although nobody asks, so that a crash shows within seconds.
//!
//! Of all processes that share the server one sweeps, by a key with a lease; it also writes down how many records are
//! open, which the others read. It walks the indexes only, on a connection of its own, and never the records.

use std::collections::HashSet;
use std::time::Duration;

use redis::Value;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use super::ask::{Limits, Question, ask};
use super::keys::{Names, SHARDS};
use super::link::Link;
use super::replies::Visited;
use super::scripts::Call;
use super::{CLAIMS_FROM, Shared};
use crate::record::{RecordId, Token};
use crate::store::{StoreError, StoreErrorKind};

const SWEEP_EVERY: Duration = Duration::from_secs(1);
// Longer than a round takes, so that a slow sweeper is not joined by a second.
const SWEEPER_LEASE: Duration = Duration::from_secs(5);
const SHARDS_A_TRIP: u16 = 64;
/// Lapsed claims of one shard in one round; what is left comes with the next.
const LAPSED_A_ROUND: usize = 1000;
/// Held records of one shard that are looked up in one round, to drop those that expired or were removed by hand.
const CHECKED_A_ROUND: usize = 16;

/// Sweeps for as long as it is polled.
pub(super) async fn sweep_for_ever(shared: &Shared, link: &Link) {
    let mut sweep =
        Sweep { shared, link, name: Token::new(), next_held: vec![0; usize::from(SHARDS)], odd: HashSet::new() };
    let mut rounds = interval(SWEEP_EVERY);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_sweeper = false;
    loop {
        rounds.tick().await;
        match sweep.round().await {
            Ok(is_sweeper) => {
                if is_sweeper != was_sweeper {
                    info!(is_sweeper, "the sweep of the shared store changed hands");
                }
                was_sweeper = is_sweeper;
            }
            // The server's health is watched, and said, elsewhere.
            Err(error) => debug!(%error, "the sweep could not finish its round"),
        }
    }
}

struct Sweep<'a> {
    shared: &'a Shared,
    link: &'a Link,
    name: Token,
    /// Up to which place the held records of each shard were looked up.
    next_held: Vec<usize>,
    /// Members that were already complained about.
    odd: HashSet<String>,
}

/// What the indexes of some shards say.
struct Glance {
    shard: u16,
    lapsed: Vec<String>,
    held: Vec<String>,
    unknown: u64,
    claimed: u64,
}

impl Sweep<'_> {
    /// One round. Says whether this process is the sweeper.
    async fn round(&mut self) -> Result<bool, StoreError> {
        let keys = &self.shared.keys;
        let call = Call::new(&self.shared.scripts.sweeper, Names::of_key(keys.sweeper()))
            .token(self.name)
            .number(super::millis(SWEEPER_LEASE));
        let answer = self.ask(Question::Script(call)).await?;
        let [is_sweeper, now] = numbers(answer)?;
        if is_sweeper != 1 {
            self.read_counts().await?;
            return Ok(false);
        }
        let (mut claimed, mut unknown) = (0, 0);
        for first in (0..SHARDS).step_by(usize::from(SHARDS_A_TRIP)) {
            for glance in self.glance(first, now).await? {
                let lapsed = self.visit_all(&glance).await?;
                claimed += glance.claimed.saturating_sub(lapsed);
                unknown += glance.unknown + lapsed;
            }
        }
        let mut commands = redis::pipe();
        commands.cmd("SET").arg(keys.counts()).arg(format!("{claimed} {unknown}"));
        self.ask(Question::Commands(commands)).await?;
        self.show_counts(claimed, unknown);
        Ok(true)
    }

    async fn glance(&self, first: u16, now: i64) -> Result<Vec<Glance>, StoreError> {
        let shards = first..first + SHARDS_A_TRIP;
        let overdue = CLAIMS_FROM + u64::try_from(now).unwrap_or(0);
        let mut commands = redis::pipe();
        for shard in shards.clone() {
            let open = self.shared.keys.open_of(shard);
            let held_from = self.next_held[usize::from(shard)];
            commands.cmd("ZCOUNT").arg(&open).arg("-inf").arg(format!("({CLAIMS_FROM}"));
            commands.cmd("ZCOUNT").arg(&open).arg(CLAIMS_FROM).arg("+inf");
            commands.cmd("ZRANGEBYSCORE").arg(&open).arg(CLAIMS_FROM).arg(overdue);
            commands.arg("LIMIT").arg(0).arg(LAPSED_A_ROUND);
            commands.cmd("ZRANGEBYSCORE").arg(&open).arg("-inf").arg(format!("({CLAIMS_FROM}"));
            commands.arg("LIMIT").arg(held_from).arg(CHECKED_A_ROUND);
        }
        let Value::Array(answers) = self.ask(Question::Commands(commands)).await? else { return Err(odd_answer()) };
        let mut answers = answers.into_iter();
        let mut glances = Vec::new();
        for shard in shards {
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
        let Value::Array(there) = self.ask(Question::Commands(commands)).await? else { return Err(odd_answer()) };
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
        let call = Call::new(&self.shared.scripts.lapse, self.shared.keys.names(&id, None)).arg(b"");
        match self.ask(Question::Script(call)).await.and_then(Visited::read) {
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

    async fn read_counts(&self) -> Result<(), StoreError> {
        let mut commands = redis::pipe();
        commands.cmd("GET").arg(self.shared.keys.counts());
        if let Value::Array(answers) = self.ask(Question::Commands(commands)).await?
            && let Some(Value::BulkString(text)) = answers.first()
            && let Some((claimed, unknown)) = String::from_utf8_lossy(text).split_once(' ')
            && let (Ok(claimed), Ok(unknown)) = (claimed.parse(), unknown.parse())
        {
            self.show_counts(claimed, unknown);
        }
        Ok(())
    }

    fn show_counts(&self, claimed: u64, unknown: u64) {
        self.shared.metrics.set_records_open("claimed", claimed);
        self.shared.metrics.set_records_open("unknown", unknown);
    }

    async fn ask(&self, question: Question<'_>) -> Result<Value, StoreError> {
        Ok(ask(self.link, &question, Limits::new(self.shared.timeout, false)).await?)
    }
}

fn odd_answer() -> StoreError {
    StoreError::new(StoreErrorKind::Broken, false, "Redis answered the sweep with something that is not understood")
}

fn refused(value: Value) -> StoreError {
    match value.extract_error() {
        Err(error) => StoreError::new(StoreErrorKind::Refused, false, format!("Redis refuses the sweep: {error}")),
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
