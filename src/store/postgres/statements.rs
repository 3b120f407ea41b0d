//! The statements, each a file under `sql/`, with the names of this deployment put in.
//!
//! None is prepared under a name: behind a pooler the next one may run on another connection of the server.

use tokio_postgres::types::{ToSql, Type};

use super::INLINE_BODY;

/// What follows `now` and `done` in every answer that carries a row. `left_out` says that the body is too large for it.
const COLUMNS: &str = "r.hash, r.route, r.revision, r.version, r.encryption, r.state, r.token, r.fingerprint, r.details, \
                       r.quoted, r.attempts, r.claimed_at, r.abandon_at, r.moment, r.expires_at, r.unknown_retention, r.reason, \
                       r.status, r.fields, r.prior, r.tombstones, {body}";
const NOW: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// In statements that must not be answered with the answer to another one: their last parameter comes back in every row.
/// A pooler that loses its server in the middle of several statements can tell its client one answer too many or too few.
pub(super) const ECHO: &str = " AS echo";

/// A parameter with its type, since nobody is asked for it.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// All statements of one deployment.
pub(super) struct Statements {
    pub(super) claim: String,
    pub(super) complete: String,
    pub(super) renew: String,
    /// The row; a large body is left out.
    pub(super) read: String,
    /// The row with its body.
    pub(super) read_whole: String,
    pub(super) insert: String,
    pub(super) replace: String,
    pub(super) bury: String,
    pub(super) delete: String,
    pub(super) watch: String,
    pub(super) poll: String,
    pub(super) list: String,
    pub(super) lapse: String,
    pub(super) expire: String,
    pub(super) sweeper: String,
    pub(super) count: String,
    pub(super) counts: String,
    pub(super) facts: String,
    pub(super) version: String,
    pub(super) parts: String,
    pub(super) listen: String,
    /// Makes all that the others need.
    pub(super) init: String,
    /// What the run-time user must be granted.
    pub(super) grants: [String; 2],
    /// The schema's name, as in the settings.
    pub(super) schema: String,
}

impl Statements {
    /// The statements for the schema that bears the prefix's name. A lock is waited for this many milliseconds.
    pub(super) fn new(prefix: &str, lock_timeout: u128) -> Statements {
        Statements::with_clock(prefix, lock_timeout, NOW)
    }

    /// The same with another clock than the server's.
    pub(super) fn with_clock(prefix: &str, lock_timeout: u128, now: &str) -> Statements {
        let schema = format!("\"{prefix}\"");
        let small = format!(
            "CASE WHEN octet_length(r.body) <= {INLINE_BODY} THEN r.body END AS body, \
             r.body IS NOT NULL AND octet_length(r.body) > {INLINE_BODY} AS left_out, \
             r.body IS NOT NULL AS has_body"
        );
        let whole = "r.body AS body, false AS left_out, r.body IS NOT NULL AS has_body";
        let with_body = |text: &str, body: &str| {
            let text = without_comments(text);
            let echo = format!("${}::bigint{ECHO}", parameters(&text) + 1);
            text.replace("{echo}", &echo)
                .replace("{columns}", COLUMNS)
                .replace("{body}", body)
                .replace("{told}", &without_comments(include_str!("sql/told.sql")))
                .replace("{now}", now)
                .replace("{schema}", &schema)
                .replace("{channel}", prefix)
                .replace("{lock_timeout}", &lock_timeout.to_string())
        };
        let reading = |text: &str| with_body(text, &small);
        let writing = |text: &str| with_body(&format!("{}{text}", include_str!("sql/clock.sql")), &small);
        Statements {
            claim: writing(include_str!("sql/claim.sql")),
            complete: writing(include_str!("sql/complete.sql")),
            renew: writing(include_str!("sql/renew.sql")),
            read: reading(include_str!("sql/read.sql")),
            read_whole: with_body(include_str!("sql/read.sql"), whole),
            insert: writing(include_str!("sql/insert.sql")),
            replace: writing(include_str!("sql/replace.sql")),
            bury: writing(include_str!("sql/bury.sql")),
            delete: writing(include_str!("sql/delete.sql")),
            watch: reading(include_str!("sql/watch.sql")),
            poll: reading(include_str!("sql/poll.sql")),
            list: reading(include_str!("sql/list.sql")),
            lapse: writing(include_str!("sql/lapse.sql")),
            expire: writing(include_str!("sql/expire.sql")),
            sweeper: reading(include_str!("sql/sweeper.sql")),
            count: reading(include_str!("sql/count.sql")),
            counts: reading(include_str!("sql/counts.sql")),
            facts: reading(include_str!("sql/facts.sql")),
            version: reading(include_str!("sql/version.sql")),
            parts: reading(include_str!("sql/parts.sql")),
            listen: format!("LISTEN {schema}"),
            init: include_str!("schema.sql").replace("{schema}", &schema),
            grants: [
                format!("GRANT USAGE ON SCHEMA {schema} TO onceproxy;"),
                format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO onceproxy;"),
            ],
            schema: prefix.to_owned(),
        }
    }
}

/// How many parameters a statement has.
fn parameters(text: &str) -> usize {
    let numbers = text.split('$').skip(1).filter_map(|rest| {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().ok()
    });
    numbers.max().unwrap_or(0)
}

/// Comments would travel with every request.
fn without_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("--"));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}
