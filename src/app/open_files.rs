//! How many files the process may have open, and how many of them clients may take.
//!
//! A connection is a file. Where there are too few, clients must wait, and not the upstream, the store and the probes: what
//! was accepted could not be forwarded, and what was executed could not be recorded.

use crate::config::Limits;

/// For the log, listeners, files of the store, and whatever runtimes have.
const OTHERS: usize = 64;
/// For each core: its connections to the store, and its own.
const OF_A_CORE: usize = 24;

/// Raises the limit of this process as far as it goes, and returns it. `None` if the system does not say.
pub(super) fn raise() -> Option<usize> {
    let raised = rlimit::increase_nofile_limit(u64::MAX);
    match raised {
        Ok(files) => Some(usize::try_from(files).unwrap_or(usize::MAX)),
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be raised");
            None
        }
    }
}

/// How many connections clients may have when so many files can be open: all that the limits say, or as many as leave one
/// for the upstream of each request that may be under way on them. Says in the log if that is less.
pub(super) fn connections(files: Option<usize>, limits: &Limits, cores: usize) -> usize {
    let Some(files) = files else { return limits.connections };
    let ours = OTHERS + OF_A_CORE * cores;
    let left = files.saturating_sub(ours);
    let for_upstreams = limits.in_flight.min(left / 2);
    let connections = limits.connections.min(left - for_upstreams).max(1);
    if connections < limits.connections {
        let wanted = limits.connections + limits.in_flight + ours;
        tracing::warn!(
            files,
            wanted,
            connections,
            "fewer files may be open than limits.connections and limits.in_flight need: further clients wait; raise the \
             hard limit (LimitNOFILE, ulimit -Hn) or lower these"
        );
    }
    connections
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Sources};

    #[test]
    fn clients_leave_files_for_the_upstream_and_the_store() {
        let text = "[limits]\nconnections = 1000\nin_flight = 100\n[[route]]\nname = \"r\"\nupstream = \"http://u\"\n";
        let limits = config::load(&Sources::text(text)).unwrap().config.limits;
        let ours = OTHERS + 2 * OF_A_CORE;
        for (files, taken) in [
            (None, 1000),
            (Some(1_048_576), 1000),
            (Some(ours + 1100), 1000),
            (Some(ours + 1099), 999),
            (Some(ours + 300), 200),
            (Some(ours + 100), 50),
            (Some(ours), 1),
            (Some(10), 1),
        ] {
            assert_eq!(connections(files, &limits, 2), taken, "{files:?}");
        }
    }
}
