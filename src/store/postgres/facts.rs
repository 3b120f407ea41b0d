//! What a Postgres server says of itself, and what follows from it for the promise.
//!
//! Separate from `health`, which decides when to look and what to do about it.

use tokio_postgres::Row;

use super::ask::{Limits, ask};
use super::init::Fit;
use super::link::Link;
use super::row::odd_answer;
use super::statements::Statements;
use crate::store::StoreError;
use crate::store::report::Report;

const OLDEST_VERSION: i32 = 130_000;

/// What the server says of itself, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    version: String,
    number: i32,
    standby: bool,
    read_only: bool,
    synchronous_commit: String,
    standbys: String,
    fsync: bool,
    direct: bool,
    /// Who this process is to the server.
    role: String,
    /// Those of the schema's tables that are there.
    tables: Vec<String>,
    /// Whether the table of records has the column `details`, which earlier versions did not make.
    details: bool,
    /// Whether this user may ask the schema for its version, and there is one to ask.
    tells_version: bool,
    /// The rights that are needed and missing: `INSERT, UPDATE on records`.
    lacks: Vec<String>,
    /// The schema's version; `None` when it does not say.
    format: Option<i32>,
    /// The schema's name.
    schema: String,
}

/// Asks the server.
pub(super) async fn see(statements: &Statements, link: &Link, limits: &Limits) -> Result<Facts, StoreError> {
    let rows = ask(link, &statements.facts, &[], limits).await?;
    let [row] = rows.as_slice() else { return Err(odd_answer(None)) };
    let mut facts = Facts::read(row).map_err(|e| odd_answer(Some(e)))?;
    facts.schema.clone_from(&statements.schema);
    if facts.tells_version {
        let rows = ask(link, &statements.version, &[], limits).await?;
        facts.format = rows.first().and_then(|row| row.try_get(0).ok());
    }
    Ok(facts)
}

impl Facts {
    fn read(row: &Row) -> Result<Facts, tokio_postgres::Error> {
        Ok(Facts {
            version: row.try_get("version")?,
            number: row.try_get("number")?,
            standby: row.try_get("standby")?,
            read_only: row.try_get("read_only")?,
            synchronous_commit: row.try_get("synchronous_commit")?,
            standbys: row.try_get("standbys")?,
            fsync: row.try_get("fsync")?,
            direct: row.try_get("direct")?,
            role: row.try_get("role")?,
            tables: row.try_get("tables")?,
            details: row.try_get("details")?,
            tells_version: row.try_get("tells_version")?,
            lacks: row.try_get("lacks")?,
            ..Facts::default()
        })
    }

    /// Whether the schema is there, and ours.
    pub(super) fn fit(&self) -> Fit {
        // Both are made in one transaction: what is there without the other lost it.
        match Fit::of(self.format) {
            _ if !self.is_empty() && !self.has("records") => Fit::WithoutRecords,
            Fit::Right if !self.has("sweep") => Fit::WithoutSweep,
            Fit::Right if !self.details => Fit::WithoutDetails,
            fit => fit,
        }
    }

    /// Whether nothing of the schema is there.
    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Whether the schema has this table.
    pub(super) fn has(&self, table: &str) -> bool {
        self.tables.iter().any(|name| name == table)
    }

    /// Whether the schema tells its version.
    pub(super) fn has_version(&self) -> bool {
        self.format.is_some()
    }

    /// Whether no pooler is in between: only then connections can listen.
    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// The facts in words, and what follows from them.
    pub(super) fn report(&self) -> Report {
        let mut report = Report::default();
        report.fact("version", self.version.as_str());
        report.fact("topology", if self.direct { "Postgres" } else { "Postgres behind a pooler" });
        let commit = match self.synchronous_commit.as_str() {
            weak @ ("off" | "local") => format!("{weak}; what is written here asks for `on` by itself"),
            enough => enough.to_owned(),
        };
        report.fact("commit", commit);
        let replication = match self.standbys.as_str() {
            "" => "no synchronous standby".to_owned(),
            names => format!("synchronous ({names})"),
        };
        report.fact("replication", replication);
        let schema = self.format.map_or_else(|| "missing".to_owned(), |format| format!("version {format}"));
        report.fact("schema", format!("{:?}, {schema}", self.schema));
        if self.number < OLDEST_VERSION {
            report.breaks(format!("Postgres {} is too old: 13 or newer is needed", self.version));
        }
        if self.standby {
            report.breaks("this Postgres is a standby: the URL must lead to the primary");
        } else if self.read_only {
            report.breaks("this Postgres is read-only (default_transaction_read_only)");
        }
        match self.fit() {
            Fit::Right => {}
            // It may be there: this user is not told, and is told below what for.
            Fit::Missing if !self.lacks.is_empty() => {}
            fit => report.breaks(fit.complaint(&self.schema)),
        }
        if !self.lacks.is_empty() {
            report.breaks(format!(
                "the user {:?} lacks rights in the schema {:?}: {}; `onceproxy store init` prints the GRANT lines",
                self.role,
                self.schema,
                self.lacks.join("; ")
            ));
        }
        if !self.fsync {
            report.weakens("fsync is off: a power loss can forget every record, and their keys run again; turn it on");
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn facts() -> Facts {
        let version = "15.1".to_owned();
        let synchronous_commit = "on".to_owned();
        Facts {
            version,
            number: 150_001,
            format: Some(1),
            tables: tables(&["records", "sweep", "meta"]),
            details: true,
            schema: "once".into(),
            synchronous_commit,
            fsync: true,
            ..Facts::default()
        }
    }

    #[test]
    fn accepts_only_a_primary_that_writes_and_has_the_schema() {
        assert_eq!(facts().report().remarks, []);
        for (unfit, reason) in [
            (Facts { number: 120_009, ..facts() }, "too old"),
            (Facts { standby: true, read_only: true, ..facts() }, "standby"),
            (Facts { read_only: true, ..facts() }, "read-only"),
            (Facts { format: None, ..facts() }, "onceproxy store init"),
            (Facts { format: Some(2), ..facts() }, "newer"),
            (Facts { tables: Vec::new(), format: None, ..facts() }, "onceproxy store init"),
            (Facts { tables: tables(&["records", "meta"]), ..facts() }, "table `sweep` is not"),
            (Facts { details: false, ..facts() }, "column `details` is not"),
            (Facts { tables: tables(&["sweep", "meta"]), ..facts() }, "may be elsewhere"),
            (Facts { tables: tables(&["meta"]), format: None, ..facts() }, "may be elsewhere"),
            (Facts { lacks: vec!["UPDATE on records".into()], ..facts() }, "UPDATE on records"),
            (Facts { lacks: vec!["SELECT on meta".into()], format: None, ..facts() }, "SELECT on meta"),
        ] {
            let said = unfit.report().broken().unwrap();
            assert!(said.contains(reason), "{said}");
        }
    }

    #[test]
    fn says_what_weakens_and_what_is_made_up_for() {
        let report = Facts { fsync: false, synchronous_commit: "off".into(), ..facts() }.report();
        assert_eq!(report.broken(), None);
        assert_eq!(report.remarks.len(), 1);
        assert!(report.to_string().contains("asks for `on` by itself"), "{report}");
    }
}
