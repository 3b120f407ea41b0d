//! What each status of the upstream means: final, not executed, or cannot tell.
//!
//! Settings say it in three lists; a request asks a table. Both are here, and how one becomes the other.

use std::fmt;

use super::mistakes::{Wrong, wrong};

/// What a status means for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Final: recorded and replayed.
    Record,
    /// Not executed: the key is free again.
    Release,
    /// Cannot tell: held.
    Unknown,
}

/// The verdict for each status 100–999: a table, so that asking costs nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct StatusPolicy {
    verdicts: Box<[Verdict; 1000]>,
}

impl StatusPolicy {
    /// The policy that records every status but 101 and those from 600 on, which are always unknown.
    pub fn record_all() -> StatusPolicy {
        let mut verdicts = Box::new([Verdict::Record; 1000]);
        verdicts[101] = Verdict::Unknown;
        verdicts[600..].fill(Verdict::Unknown);
        StatusPolicy { verdicts }
    }

    /// Sets the verdict for one status. 101 and those from 600 on stay unknown.
    pub fn set(&mut self, status: u16, verdict: Verdict) {
        if status != 101 && status < 600 {
            self.verdicts[usize::from(status)] = verdict;
        }
    }

    /// What this status means.
    pub fn verdict(&self, status: u16) -> Verdict {
        self.verdicts.get(usize::from(status)).copied().unwrap_or(Verdict::Unknown)
    }

    /// The shortest lists that say the same: each class with its most frequent verdict, then the exceptions.
    pub(super) fn lists(&self) -> Lists {
        let mut lists = Lists::default();
        for class in 2..=5 {
            let frequency = |verdict| (class * 100..class * 100 + 100).filter(|s| self.verdict(*s) == verdict).count();
            let usual = Verdict::ALL.into_iter().max_by_key(|verdict| frequency(*verdict)).unwrap_or(Verdict::Record);
            lists.of_mut(usual).push(Entry::Class(class));
        }
        for status in 200..600 {
            let verdict = self.verdict(status);
            if !lists.of(verdict).contains(&Entry::Class(status / 100)) {
                lists.of_mut(verdict).push(Entry::Exact(status));
            }
        }
        lists
    }
}

impl fmt::Debug for StatusPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.lists(), f)
    }
}

impl Verdict {
    /// Every verdict, in the order of the settings.
    pub(super) const ALL: [Verdict; 3] = [Verdict::Record, Verdict::Release, Verdict::Unknown];

    /// The setting that lists its statuses.
    pub(super) fn key(self) -> &'static str {
        match self {
            Verdict::Record => "record",
            Verdict::Release => "release",
            Verdict::Unknown => "unknown",
        }
    }
}

/// One entry of a status list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// `"2xx"`: a hundred statuses.
    Class(u16),
    /// `"404"`: one, which beats its class.
    Exact(u16),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Class(class) => write!(f, "{class}xx"),
            Entry::Exact(status) => write!(f, "{status}"),
        }
    }
}

/// Parses an entry. Interim answers (1xx) are never final (RFC 9110, 15.2); from 600 on there are no statuses.
pub(super) fn entry(text: &str) -> Result<Entry, Wrong> {
    let right = "write a class from \"2xx\" to \"5xx\" or a status from \"200\" to \"599\"";
    let parsed = match text.as_bytes() {
        [class @ b'2'..=b'5', b'x', b'x'] => Some(Entry::Class(u16::from(class - b'0'))),
        [b'2'..=b'5', b'0'..=b'9', b'0'..=b'9'] => text.parse().ok().map(Entry::Exact),
        _ => None,
    };
    match parsed {
        Some(entry) => Ok(entry),
        None if text == "101" => Err(wrong("\"101\" is always unknown", right)),
        None => Err(wrong(format!("{text:?} is not a status or a class that can be final"), right)),
    }
}

/// The three lists of a route or a preset. A status in none of them is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lists {
    pub(super) record: Vec<Entry>,
    pub(super) release: Vec<Entry>,
    pub(super) unknown: Vec<Entry>,
}

impl Lists {
    pub(super) fn of(&self, verdict: Verdict) -> &Vec<Entry> {
        match verdict {
            Verdict::Record => &self.record,
            Verdict::Release => &self.release,
            Verdict::Unknown => &self.unknown,
        }
    }

    pub(super) fn of_mut(&mut self, verdict: Verdict) -> &mut Vec<Entry> {
        match verdict {
            Verdict::Record => &mut self.record,
            Verdict::Release => &mut self.release,
            Verdict::Unknown => &mut self.unknown,
        }
    }

    /// Takes the route's list for one verdict: it replaces the preset's, and its entries leave the other lists. An
    /// entry is never in two of the route's own lists, so that the order in which they are taken does not count.
    pub(super) fn replace(&mut self, verdict: Verdict, own: &[Entry]) {
        for other in Verdict::ALL {
            self.of_mut(other).retain(|entry| !own.contains(entry));
        }
        *self.of_mut(verdict) = own.to_vec();
    }

    /// The table that the lists describe.
    pub(super) fn policy(&self) -> StatusPolicy {
        let mut policy = StatusPolicy::record_all();
        for verdict in Verdict::ALL {
            for entry in self.of(verdict) {
                if let Entry::Class(class) = entry {
                    (class * 100..class * 100 + 100).for_each(|status| policy.set(status, verdict));
                }
            }
        }
        for verdict in Verdict::ALL {
            for entry in self.of(verdict) {
                if let Entry::Exact(status) = entry {
                    policy.set(*status, verdict);
                }
            }
        }
        policy
    }
}
