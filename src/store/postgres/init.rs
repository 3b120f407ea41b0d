//! The schema: made by `onceproxy store init`, and looked for by everyone else.

use std::time::Duration;

use super::ask::{Limits, ask};
use super::facts::{self, Facts};
use super::link::{Endpoint, Link, Unconnected};
use super::statements::Statements;
use crate::config::store::Postgres;
use crate::store::kept::Renewals;
use crate::store::{InitError, OpenError};

/// The version of the schema that this program makes and uses.
const VERSION: i32 = 1;
/// An operator waits for this, and a large table may need an index.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of all `init` at one time one goes on: CREATE … IF NOT EXISTS is not safe against another of its kind.
const LOCK: i64 = 0x6f6e_6365_7072_6f78;

/// Whether the schema is there, and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It is.
    Right,
    /// There is none, or it is not complete.
    Missing,
    /// It has no table of records, although the rest, or some of it, is there.
    WithoutRecords,
    /// The table by which one process sweeps is missing, and nothing else.
    WithoutSweep,
    /// It was made by a program whose records did not say what their requests were as they came.
    WithoutDetails,
    /// It was made by a program of a later version.
    Newer(i32),
    /// It was made by a program of an earlier version.
    Older(i32),
}

impl Fit {
    /// By the version that was found.
    pub(super) fn of(version: Option<i32>) -> Fit {
        match version {
            None => Fit::Missing,
            Some(VERSION) => Fit::Right,
            Some(newer @ VERSION..) => Fit::Newer(newer),
            Some(older) => Fit::Older(older),
        }
    }

    /// What is wrong and what to do, in one sentence.
    pub(super) fn complaint(self, schema: &str) -> String {
        match self {
            Fit::Right => String::new(),
            Fit::Missing => format!("the schema {schema:?} is not in this database: run `onceproxy store init`"),
            Fit::WithoutRecords => format!(
                "the schema {schema:?} is in this database, but its table `records` is not: the records may be elsewhere, and \
                 with an empty table every key would run again; restore the table, or drop the whole schema to begin anew"
            ),
            Fit::WithoutSweep => format!(
                "the schema {schema:?} is in this database, but its table `sweep` is not: run `onceproxy store init`"
            ),
            Fit::WithoutDetails => format!(
                "the schema {schema:?} was made by an earlier version, and the column `details` is not in its table \
                 `records`: run `onceproxy store init` of this version; programs of the earlier version go on with it"
            ),
            Fit::Older(version) => {
                format!("the schema {schema:?} has version {version}, {VERSION} is needed: run `onceproxy store init`")
            }
            Fit::Newer(version) => format!(
                "the schema {schema:?} has version {version}, which is newer than this program: `onceproxy store init` \
                 of version {VERSION} cannot go back, run a program that knows it"
            ),
        }
    }
}

/// Makes the schema where it is missing, and says what was done, line by line.
pub(in crate::store) async fn init(config: &Postgres, prefix: &str, section: &str) -> Result<Vec<String>, InitError> {
    let endpoint = Endpoint::new(config, PATIENCE, section, &Renewals::default())?;
    let statements = Statements::new(prefix, PATIENCE.as_millis());
    let link = Link::new(std::sync::Arc::new(endpoint));
    let limits = Limits::new(PATIENCE).impatient();
    let before = look(&link, &statements, &limits).await?;
    match before.fit() {
        unfit @ (Fit::WithoutRecords | Fit::Newer(_) | Fit::Older(_)) => {
            return Err(InitError::Schema(unfit.complaint(prefix)));
        }
        Fit::Right | Fit::Missing | Fit::WithoutSweep | Fit::WithoutDetails => {}
    }
    let there = parts(&before, &link, &statements, &limits).await?;
    let connection = link.connection().await.map_err(|why| InitError::Failed(why.to_string()))?;
    // Several statements at once are one transaction: all of it is there, or nothing.
    let script = format!("SELECT pg_advisory_xact_lock({LOCK});\n{}", statements.init);
    connection.client.batch_execute(&script).await.map_err(|e| InitError::Failed(super::ask::text(&e)))?;
    let after = look(&link, &statements, &limits).await?;
    if after.fit() != Fit::Right {
        return Err(InitError::Schema(after.fit().complaint(prefix)));
    }
    let address = format!("database {:?} at {}", config.database, link.endpoint().address());
    let mut put_back = parts(&after, &link, &statements, &limits).await?;
    put_back.retain(|part| !there.contains(part));
    let put_back = put_back.join(", ");
    let mut said = vec![match put_back.as_str() {
        _ if before.is_empty() => format!("made the schema {prefix:?}, version {VERSION}, in {address}"),
        "" => format!("the schema {prefix:?}, version {VERSION}, is in {address}; nothing was changed"),
        missed => format!("the schema {prefix:?}, version {VERSION}, is in {address}; missing and put back: {missed}"),
    }];
    said.push(
        "the user that the proxy logs in as needs no more than this (put its name in place of onceproxy):".into(),
    );
    said.extend(statements.grants.iter().map(|grant| format!("  {grant}")));
    Ok(said)
}

async fn look(link: &Link, statements: &Statements, limits: &Limits) -> Result<Facts, InitError> {
    facts::see(statements, link, limits).await.map_err(|error| InitError::Failed(error.to_string()))
}

/// All that the schema consists of, as far as it is there.
async fn parts(facts: &Facts, link: &Link, statements: &Statements, limits: &Limits) -> Result<Vec<String>, InitError> {
    let said = |error: crate::store::StoreError| InitError::Failed(error.to_string());
    let rows = ask(link, &statements.parts, &[], limits).await.map_err(said)?;
    let mut parts: Vec<String> = rows.iter().filter_map(|row| row.try_get(0).ok()).collect();
    if facts.has("sweep") && !ask(link, &statements.counts, &[], limits).await.map_err(said)?.is_empty() {
        parts.push("the row of sweep".to_owned());
    }
    if facts.has_version() {
        parts.push("the row of meta".to_owned());
    }
    Ok(parts)
}

impl std::fmt::Display for Unconnected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unconnected::Io(error) => error.fmt(f),
            Unconnected::Driver(error) => f.write_str(&super::ask::text(error)),
        }
    }
}

impl From<OpenError> for InitError {
    fn from(error: OpenError) -> InitError {
        InitError::Settings(error)
    }
}
