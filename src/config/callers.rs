//! Who is kept apart from whom on a route, in words: for the log at start.

use super::sources::print_scope_part;
use super::{ReplayTo, Route, ScopePart};

impl Route {
    /// Whether something in the scope differs between callers, or between the addresses that they call.
    pub(super) fn tells_callers_apart(&self) -> bool {
        self.scope.iter().any(|part| !matches!(part, ScopePart::Constant(_)))
    }

    /// Who is kept apart from whom on this route, in one line.
    pub fn callers(&self) -> String {
        let parts: Vec<String> = self.scope.iter().map(print_scope_part).collect();
        let apart = match self.tells_callers_apart() {
            true => format!("kept apart by {}", parts.join(", ")),
            false if parts.is_empty() => "nobody is kept apart: all callers share their keys".to_owned(),
            false => format!("all callers share their keys, under {}", parts.join(", ")),
        };
        let replay = match self.replay_to {
            _ if self.authorize.is_some() => "the authorizer is asked before an answer is replayed",
            ReplayTo::SameCredentials => "answers are replayed to the credentials that they were made for",
            ReplayTo::Scope => "answers are replayed to whoever shares the scope",
        };
        let signed = if self.verify.is_some() { "; what is not signed is refused" } else { "" };
        format!("{apart}; {replay}{signed}")
    }
}
