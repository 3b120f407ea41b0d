//! What a store says of itself, and what that means for the promise: in words, for the log, the probes and
//! `onceproxy store check`.
//!
//! A back-end fills it in by [`inspect`](super::Store::inspect); what only use can show is added by
//! [`preflight`](super::preflight).

/// The fact behind which all are about the second line.
pub const SECOND: &str = "second";

/// A store, looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was found, in the order in which it is shown.
    pub facts: Vec<Fact>,
    /// What is wrong or weak about it.
    pub remarks: Vec<Remark>,
}

/// One property of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Its name: `topology`, `eviction` and the like, one word.
    pub name: &'static str,
    /// Its value in words; `not shown` where the store keeps it to itself.
    pub value: String,
}

/// Something about a store that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// What it does to the promise.
    pub weight: Weight,
    /// What is so, what follows from it, and what would be right.
    pub text: String,
}

/// What a remark does to the promise of at most one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The promise cannot be kept: protected requests are refused.
    Breaks,
    /// The promise holds until something happens that the text names.
    Weakens,
}

impl Report {
    /// Adds a fact.
    pub fn fact(&mut self, name: &'static str, value: impl Into<String>) {
        self.facts.push(Fact { name, value: value.into() });
    }

    /// Adds a reason why the promise cannot be kept.
    pub fn breaks(&mut self, text: impl Into<String>) {
        self.remarks.push(Remark { weight: Weight::Breaks, text: text.into() });
    }

    /// Adds a case in which the promise would not be kept.
    pub fn weakens(&mut self, text: impl Into<String>) {
        self.remarks.push(Remark { weight: Weight::Weakens, text: text.into() });
    }

    /// Why the promise cannot be kept, all reasons in one sentence; `None` if it can.
    pub fn broken(&self) -> Option<String> {
        let reasons: Vec<_> = self.of(Weight::Breaks).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// The texts of the remarks of this weight.
    pub fn of(&self, weight: Weight) -> impl Iterator<Item = &str> {
        self.remarks.iter().filter(move |remark| remark.weight == weight).map(|remark| remark.text.as_str())
    }

    /// Adds what a trial of the whole store found. It stands before what is about the second line alone.
    pub fn add_trial(&mut self, trial: Report) {
        let end = self.facts.iter().position(|fact| fact.name == SECOND).unwrap_or(self.facts.len());
        self.facts.splice(end..end, trial.facts);
        self.remarks.extend(trial.remarks);
    }

    /// Puts what was found in another look behind this.
    pub fn append(&mut self, other: Report) {
        self.facts.extend(other.facts);
        self.remarks.extend(other.remarks);
    }
}

impl std::fmt::Display for Report {
    /// The facts in one line, for the log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, fact) in self.facts.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{}: {}", fact.name, fact.value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_by_any_reason_and_names_all() {
        let mut report = Report::default();
        report.fact("version", "7.0.15");
        report.fact("role", "master");
        report.weakens("a restart forgets everything");
        assert_eq!(report.broken(), None);
        let mut more = Report::default();
        more.breaks("it evicts");
        more.breaks("it is a replica");
        report.append(more);
        assert_eq!(report.broken().as_deref(), Some("it evicts; it is a replica"));
        assert_eq!(report.of(Weight::Weakens).collect::<Vec<_>>(), ["a restart forgets everything"]);
        assert_eq!(report.to_string(), "version: 7.0.15, role: master");
    }

    #[test]
    fn a_trial_is_about_both_lines() {
        let mut report = Report::default();
        report.fact("version", "7.0.15");
        report.fact(SECOND, "follows");
        report.fact("version", "15");
        let mut trial = Report::default();
        trial.fact("rights", "enough");
        report.add_trial(trial);
        assert_eq!(report.to_string(), "version: 7.0.15, rights: enough, second: follows, version: 15");
    }
}
