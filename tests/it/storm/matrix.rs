//! Which topology is struck by what: the table in docs/guarantees.md, as code, and the tests that hold the storms to it.
//!
//! Dice decide when a blow falls and what comes besides, never whether it falls: each cell is certain in every run.

use std::collections::BTreeSet;

use super::ALL;
use super::blows::Blow;
use super::failovers::Strike;
use super::storms::Storm;
use crate::support::Store;
use crate::support::dice::Dice;

/// What is done, in the words of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    ProxyKilled,
    ProxyPaused,
    Killed,
    Paused,
    CutOff,
    ReplyLost,
    FailedOver,
    Resharded,
    Full,
    Flushed,
    Emptied,
    OtherKilled,
    OtherPaused,
}

use Kind::*;

const COLUMNS: [(Kind, &str); 13] = [
    (ProxyKilled, "a proxy killed"),
    (ProxyPaused, "a proxy paused"),
    (Killed, "`kill -9`"),
    (Paused, "paused"),
    (CutOff, "cut off"),
    (ReplyLost, "a reply lost"),
    (FailedOver, "failed over"),
    (Resharded, "resharded"),
    (Full, "`maxmemory`"),
    (Flushed, "scripts flushed"),
    (Emptied, "restarted empty"),
    (OtherKilled, "pooler or second line killed"),
    (OtherPaused, "the same paused"),
];

/// What a topology gets: of this nothing is lost, of that what the documents say.
struct Row {
    topology: &'static str,
    holds: &'static [Kind],
    forgets: &'static [Kind],
}

const MATRIX: [Row; 14] = [
    Row { topology: "`memory:`", holds: &[ProxyPaused], forgets: &[ProxyKilled] },
    Row { topology: "`disk:`", holds: &[ProxyKilled, ProxyPaused], forgets: &[] },
    Row { topology: "one Redis", holds: &[Killed, Paused, CutOff, ReplyLost, Full, Flushed], forgets: &[Emptied] },
    Row {
        topology: "one Redis, TLS and the least rights",
        holds: &[ProxyKilled, ProxyPaused, Killed, Paused, CutOff, ReplyLost, Full, Flushed],
        forgets: &[],
    },
    Row {
        topology: "one Redis, unknowns sent again",
        holds: &[ProxyKilled, ProxyPaused, Killed, Paused, CutOff, ReplyLost, Full, Flushed],
        forgets: &[],
    },
    Row { topology: "sentinels", holds: &[], forgets: &[Killed, FailedOver, Emptied] },
    Row {
        topology: "sentinels, `wait_replicas`, TLS and the least rights",
        holds: &[ProxyKilled, ProxyPaused, Killed, Paused, CutOff, ReplyLost, FailedOver, Full, Flushed],
        forgets: &[],
    },
    Row { topology: "cluster", holds: &[], forgets: &[Killed, Emptied] },
    Row {
        topology: "cluster, `wait_replicas`, TLS and the least rights",
        holds: &[ProxyKilled, ProxyPaused, Killed, Paused, CutOff, ReplyLost, FailedOver, Resharded, Full, Flushed],
        forgets: &[],
    },
    Row { topology: "Postgres", holds: &[ProxyKilled, ProxyPaused, Killed, Paused, CutOff, ReplyLost], forgets: &[] },
    Row {
        topology: "Postgres, unknowns sent again",
        holds: &[ProxyKilled, ProxyPaused, Killed, Paused, CutOff, ReplyLost],
        forgets: &[],
    },
    Row {
        topology: "Postgres through PgBouncer",
        holds: &[ProxyKilled, ProxyPaused, Killed, Paused, CutOff, ReplyLost, OtherKilled, OtherPaused],
        forgets: &[],
    },
    Row {
        topology: "one Redis, second line",
        holds: &[
            ProxyKilled,
            ProxyPaused,
            Killed,
            Paused,
            CutOff,
            ReplyLost,
            Full,
            Flushed,
            Emptied,
            OtherKilled,
            OtherPaused,
        ],
        forgets: &[],
    },
    Row {
        topology: "sentinels, second line",
        holds: &[ProxyKilled, ProxyPaused, Killed, FailedOver, Emptied],
        forgets: &[],
    },
];

/// What a blow is on the topology of this storm.
fn kinds(blow: Blow, storm: &Storm) -> Vec<Kind> {
    // In front of a Postgres stands a pooler, behind a Redis the second line.
    let is_main = storm.store == Store::Postgres;
    match blow {
        Blow::KillProxy(_) => vec![ProxyKilled],
        Blow::PauseProxy(_) => vec![ProxyPaused],
        Blow::PauseRedis => vec![Paused],
        Blow::CutRelay | Blow::CutNode(_) => vec![CutOff],
        // A black hole is no cut: those who wait are told nothing. Each storm that cuts has one as well.
        Blow::HangRelay | Blow::HangNode(_) => Vec::new(),
        Blow::LoseReply(_) => vec![ReplyLost],
        Blow::FlushScripts => vec![Flushed],
        Blow::FillRedis => vec![Full],
        Blow::RestartRedis => vec![Killed],
        Blow::EmptyRedis | Blow::EmptyAll => vec![Killed, Emptied],
        Blow::PausePostgres => vec![if is_main { Paused } else { OtherPaused }],
        Blow::RestartPostgres => vec![if is_main { Killed } else { OtherKilled }],
        Blow::PausePooler => vec![OtherPaused],
        Blow::RestartPooler => vec![OtherKilled],
        Blow::Snapshot => Vec::new(),
        Blow::Master(Strike::Kill | Strike::CutOffAndKill, _) => vec![Killed, FailedOver],
        Blow::Master(Strike::Pause, _) => vec![Paused, FailedOver],
        Blow::Master(Strike::CutOff, _) => vec![CutOff, FailedOver],
        Blow::Master(Strike::ByHand, _) => vec![FailedOver],
        Blow::Master(Strike::MoveSlot, _) => vec![Resharded],
    }
}

/// What this storm gets whatever the dice say.
fn certain(storm: &Storm) -> BTreeSet<Kind> {
    let rolled = (0..50).map(|seed| {
        let plan = (storm.blows)(&mut Dice::new(seed), storm);
        plan.iter().flat_map(|planned| kinds(planned.blow, storm)).collect::<BTreeSet<_>>()
    });
    rolled.reduce(|one, other| &one & &other).expect("fifty plans")
}

/// The storms of a row: those in which nothing may be lost, or those that show what is.
fn storms_of(row: &Row, judged: bool) -> impl Iterator<Item = &'static Storm> {
    let how = if judged { "judged" } else { "forgets_exactly_what_is_documented" };
    let topology = row.topology;
    ALL.iter().filter(move |(as_is, storm)| *as_is == how && storm.row == topology).map(|(_, storm)| storm)
}

fn all_certain(storms: impl Iterator<Item = &'static Storm>) -> BTreeSet<Kind> {
    storms.flat_map(certain).collect()
}

#[test]
fn every_topology_gets_what_the_matrix_says() {
    for row in &MATRIX {
        let holds: BTreeSet<Kind> = row.holds.iter().copied().collect();
        assert_eq!(all_certain(storms_of(row, true)), holds, "{}: nothing is lost", row.topology);
        let forgets: BTreeSet<Kind> = row.forgets.iter().copied().collect();
        let shown = all_certain(storms_of(row, false));
        assert!(shown.is_superset(&forgets), "{}: {forgets:?} is to be shown, and {shown:?} is", row.topology);
    }
    for (_, storm) in ALL {
        assert!(MATRIX.iter().any(|row| row.topology == storm.row), "{} is in no row", storm.name);
    }
}

/// The matrix as the documents show it.
fn table() -> String {
    let names: Vec<&str> = COLUMNS.iter().map(|(_, name)| *name).collect();
    let mut text = format!("| | {} |\n|{}\n", names.join(" | "), " --- |".repeat(COLUMNS.len() + 1));
    for row in &MATRIX {
        let cell = |kind: &Kind| match (row.holds.contains(kind), row.forgets.contains(kind)) {
            (true, _) => "holds",
            (_, true) => "forgets",
            _ => "",
        };
        let cells: Vec<&str> = COLUMNS.iter().map(|(kind, _)| cell(kind)).collect();
        text += &format!("| {} | {} |\n", row.topology, cells.join(" | "));
    }
    text
}

#[test]
fn the_documents_show_this_matrix() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guarantees.md")).unwrap();
    let table = table();
    assert!(page.contains(&table), "docs/guarantees.md does not show:\n{table}");
}
