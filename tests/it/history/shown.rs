//! How a history reads in a verdict, and the whole story of a key.

use std::collections::BTreeSet;
use std::fmt;

use super::{Act, Call, Execution, Finding, Given, History, Key, Moment, Seen, Verdict};

fn seconds(moment: Moment) -> String {
    format!("{:.3} s", moment.as_secs_f64())
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {} of scope {}", self.number, self.scope)
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start: String = String::from_utf8_lossy(&self.body).chars().take(60).collect();
        write!(f, "{} [{}] {start} ({} B)", self.status, self.receipt, self.body.len())
    }
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "execution {} (call {}, begun at {}, ", self.number, self.call, seconds(self.begun))?;
        match self.ended {
            Some(ended) => write!(f, "gave {} at {})", self.gave, seconds(ended)),
            None => f.write_str("gave no whole answer)"),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, ended) = (seconds(self.sent), seconds(self.ended));
        write!(f, "call {} (request {}, proxy {}, {sent} to {ended}) got ", self.number, self.request, self.proxy)?;
        match &self.seen {
            Seen::Nothing => f.write_str("no answer"),
            Seen::Problem(p) => write!(f, "{} {} (retry {}, reason {:?})", p.status, p.kind, p.retry, p.reason),
            Seen::Answer(a) => write!(f, "{} (replayed: {}, kept: {})", a.given, a.replayed, a.kept),
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (begun, ended) = (seconds(self.begun), seconds(self.ended));
        match &self.what {
            Finding::Free => write!(f, "the operator freed it ({begun} to {ended}, done: {})", self.done),
            Finding::Executed(given) => {
                write!(f, "the operator gave {given} ({begun} to {ended}, done: {})", self.done)
            }
        }
    }
}

/// The whole story of each key that a verdict names, one line an event.
pub(super) fn stories(history: &History, verdicts: &[Verdict]) -> String {
    let named = |key: &Key| verdicts.iter().any(|v| v.evidence.contains(&format!("{key}")));
    let keys: BTreeSet<Key> = history.calls.iter().map(|call| call.key).filter(named).collect();
    let mut text = format!("{:#?}\n", history.terms);
    for key in keys.into_iter().take(5) {
        let mut lines: Vec<(Moment, String)> = Vec::new();
        lines.extend(history.executions.iter().filter(|e| e.key == key).map(|e| (e.begun, format!("{e}"))));
        lines.extend(history.calls.iter().filter(|c| c.key == key).map(|c| (c.ended, format!("{c}"))));
        lines.extend(history.acts.iter().filter(|a| a.key == key).map(|a| (a.begun, format!("{a}"))));
        lines.sort();
        text += &format!("--- {key} ---\n");
        text.extend(lines.into_iter().map(|(at, line)| format!("{:>9}  {line}\n", seconds(at))));
    }
    text
}
