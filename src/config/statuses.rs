//! What each status of the upstream means: final, not executed, or cannot tell.

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
}

impl std::fmt::Debug for StatusPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StatusPolicy")
    }
}
