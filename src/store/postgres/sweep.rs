//! The sweep: claims whose lease is over become unknown although nobody asks, and what has expired is freed.
//!
//! Of all processes that share the database one sweeps, by a row with a lease; it also writes down how many records are
//! open, which the others read. Both walk indexes, in batches that hold no lock for long.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tracing::{debug, info, warn};

use super::ask::{Limits, ask};
use super::link::Link;
use super::row::{Sixteen, odd_answer};
use super::statements::Param;
use super::{Shared, millis};
use crate::record::{RecordId, Token};
use crate::store::StoreError;

const SWEEP_EVERY: Duration = Duration::from_secs(1);
// Longer than a round takes, so that a slow sweeper is not joined by a second.
const SWEEPER_LEASE: Duration = Duration::from_secs(5);
/// Rows that one statement changes.
const BATCH: i64 = 500;
/// Statements of one kind in one round; what is left comes with the next.
const BATCHES_A_ROUND: usize = 20;

/// Sweeps for as long as it is polled.
pub(super) async fn sweep_for_ever(shared: &Shared, link: &Link) {
    let sweep = Sweep { shared, link, name: Sixteen::token(&Token::new()) };
    let mut rounds = interval(SWEEP_EVERY);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_sweeper = false;
    loop {
        rounds.tick().await;
        // Without a schema, or on a standby, there is nothing to sweep and nobody to tell.
        if shared.health.ready().is_err() {
            continue;
        }
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
    name: Sixteen,
}

impl Sweep<'_> {
    /// One round. Says whether this process is the sweeper.
    async fn round(&self) -> Result<bool, StoreError> {
        let statements = &self.shared.statements;
        let lease = millis(SWEEPER_LEASE);
        let asked: [Param<'_>; 2] = [(&self.name, Type::UUID), (&lease, Type::INT8)];
        let taken = self.ask(&statements.sweeper, &asked).await?;
        let Some(taken) = taken.first() else {
            self.show(&self.ask(&statements.counts, &[]).await?)?;
            return Ok(false);
        };
        if taken.try_get("put_back").map_err(|e| odd_answer(Some(e)))? {
            warn!("the row by which one process sweeps was missing and was put back");
        }
        for _ in 0..BATCHES_A_ROUND {
            if self.lapse().await? < BATCH {
                break;
            }
        }
        for _ in 0..BATCHES_A_ROUND {
            let gone = self.ask(&statements.expire, &[(&BATCH, Type::INT8)]).await?;
            let gone: i64 = gone.first().and_then(|row| row.try_get(0).ok()).unwrap_or(0);
            if gone < BATCH {
                break;
            }
        }
        self.show(&self.ask(&statements.count, &[]).await?)?;
        Ok(true)
    }

    async fn lapse(&self) -> Result<i64, StoreError> {
        let rows = self.ask(&self.shared.statements.lapse, &[(&BATCH, Type::INT8)]).await?;
        for row in &rows {
            let read = || -> Result<_, tokio_postgres::Error> { Ok((row.try_get("route")?, row.try_get("hash")?)) };
            let (route, Sixteen(hash)): (&str, Sixteen) = read().map_err(|e| odd_answer(Some(e)))?;
            let id = RecordId::new(route.into(), hash);
            self.shared.metrics.stale_claim(id.route());
            warn!(record = %id, "a claim's lease ran out: its outcome is unknown");
        }
        Ok(i64::try_from(rows.len()).unwrap_or(i64::MAX))
    }

    fn show(&self, rows: &[Row]) -> Result<(), StoreError> {
        let [row] = rows else { return Err(odd_answer(None)) };
        for state in ["claimed", "unknown"] {
            let count: i64 = row.try_get(state).map_err(|e| odd_answer(Some(e)))?;
            self.shared.metrics.set_records_open(state, u64::try_from(count).unwrap_or(0));
        }
        Ok(())
    }

    async fn ask(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        ask(self.link, statement, params, &Limits::new(self.shared.timeout).impatient()).await
    }
}
