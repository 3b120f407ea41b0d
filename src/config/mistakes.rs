//! What is wrong with the settings, or risky, and where it was written.
//!
//! Everything that reads settings reports here and goes on, so that one run names every mistake. A message has three
//! parts: the place, what is wrong, and what would be right. No message repeats a secret.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// In the file, or in a text that stands for one.
    File {
        /// Its path; `None` for a text.
        path: Option<Arc<Path>>,
        /// Counted from 1; 0 is the file as a whole.
        line: usize,
    },
    /// In this variable of the environment.
    Environment(&'static str),
    /// In this flag of the command line.
    Flag(&'static str),
    /// Nowhere: the built-in value, or nothing at all.
    BuiltIn,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path: Some(path), line: 0 } => write!(f, "{}", path.display()),
            Origin::File { path: Some(path), line } => write!(f, "{}:{line}", path.display()),
            Origin::File { path: None, line } => write!(f, "line {line}"),
            Origin::Environment(name) => f.write_str(name),
            Origin::Flag(name) => f.write_str(name),
            Origin::BuiltIn => f.write_str("settings"),
        }
    }
}

/// One mistake: `PLACE: KEY: what is wrong; what would be right`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {key}: {wrong}; {right}")]
pub struct Mistake {
    /// Where.
    pub origin: Origin,
    /// The setting's full name, such as `route.payments.timeout`.
    pub key: String,
    /// What is wrong.
    pub wrong: String,
    /// What would be right.
    pub right: String,
}

/// Every mistake of all layers: the file's by line, then the environment's, then the flags'. Prints one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{mistake}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// Settings that are legal alone and risky together: `PLACE: KEY: what can happen; what to do`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Where the riskier of the settings was written.
    pub origin: Origin,
    /// Its full name.
    pub key: String,
    /// What can happen.
    pub risk: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}; {}", self.origin, self.key, self.risk, self.remedy)
    }
}

/// Why a value was refused, before it is known where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) wrong: String,
    pub(super) right: String,
}

/// A refusal that says what is wrong and what would be right.
pub(super) fn wrong(wrong: impl Into<String>, right: impl Into<String>) -> Wrong {
    Wrong { wrong: wrong.into(), right: right.into() }
}

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) at: Origin,
}

/// A key that its section does not know; it is judged when every section has said what it knows.
struct Unknown {
    at: Origin,
    path: String,
    section: String,
    key: String,
    siblings: Vec<&'static str>,
}

/// Collects mistakes and warnings while settings are read.
#[derive(Default)]
pub(super) struct Report {
    mistakes: RefCell<Vec<Mistake>>,
    warnings: RefCell<Vec<Warning>>,
    unknown: RefCell<Vec<Unknown>>,
    known: RefCell<BTreeSet<(String, &'static str)>>,
}

impl Report {
    /// Notes a mistake.
    pub(super) fn mistake(&self, origin: Origin, key: impl Into<String>, what: Wrong) {
        let Wrong { wrong, right } = what;
        self.mistakes.borrow_mut().push(Mistake { origin, key: key.into(), wrong, right });
    }

    /// Notes a risk.
    pub(super) fn warning(&self, origin: Origin, key: impl Into<String>, risk: &str, remedy: &str) {
        let warning = Warning { origin, key: key.into(), risk: risk.to_owned(), remedy: remedy.to_owned() };
        self.warnings.borrow_mut().push(warning);
    }

    /// Notes that a section knows a key.
    pub(super) fn knows(&self, section: &str, key: &'static str) {
        self.known.borrow_mut().insert((section.to_owned(), key));
    }

    /// Notes a key that its section, which knows `siblings`, does not know.
    pub(super) fn unknown(&self, at: Origin, path: String, section: &str, key: &str, siblings: &[&'static str]) {
        self.unknown.borrow_mut().push(Unknown {
            at,
            path,
            section: section.to_owned(),
            key: key.to_owned(),
            siblings: siblings.to_vec(),
        });
    }

    /// Every key that was asked for, as `section.key`.
    #[cfg(test)]
    pub(super) fn known_keys(&self) -> BTreeSet<String> {
        let known = self.known.borrow();
        known
            .iter()
            .map(|(section, key)| if section.is_empty() { (*key).to_owned() } else { format!("{section}.{key}") })
            .collect()
    }

    /// The warnings, or every mistake.
    pub(super) fn finish(&self) -> Result<Vec<Warning>, Mistakes> {
        let mut mistakes = self.mistakes.take();
        for unknown in self.unknown.take() {
            let right = self.remedy(&unknown);
            let wrong = "no such setting".to_owned();
            mistakes.push(Mistake { origin: unknown.at, key: unknown.path, wrong, right });
        }
        if mistakes.is_empty() {
            let mut warnings = self.warnings.take();
            warnings.sort_by(|a, b| a.origin.cmp(&b.origin));
            return Ok(warnings);
        }
        mistakes.sort_by(|a, b| a.origin.cmp(&b.origin));
        Err(Mistakes(mistakes))
    }

    fn remedy(&self, unknown: &Unknown) -> String {
        let known = self.known.borrow();
        let home = known.iter().find(|(section, key)| *key == unknown.key && *section != unknown.section);
        // A word that is right elsewhere is no typing error.
        let near = home.is_none().then(|| nearest(&unknown.key, unknown.siblings.iter().copied())).flatten();
        if let Some(near) = near {
            return format!("did you mean `{near}`?");
        }
        match home {
            Some((section, key)) if section.is_empty() => {
                format!("`{key}` stands at the top, before the first section")
            }
            Some((section, key)) if section == "route" => format!("`{key}` belongs in a [[route]]"),
            Some((section, key)) if section == "route.when" => format!("`{key}` belongs in a [[route.when]]"),
            Some((section, key)) => format!("`{key}` belongs in [{section}]"),
            None if unknown.siblings.len() <= 12 => format!("known here: {}", unknown.siblings.join(", ")),
            None => "take it out; config.toml names every setting".to_owned(),
        }
    }
}

/// The candidate that a typing error would turn into `text`, if there is one.
pub(super) fn nearest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    nearest_within(if text.len() < 5 { 1 } else { 2 }, text, candidates)
}

/// The same, with so many letters that may be wrong.
pub(super) fn nearest_within<'a>(
    limit: usize,
    text: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let text = text.to_ascii_lowercase().replace('-', "_");
    candidates
        .map(|candidate| (distance(&text, &candidate.to_ascii_lowercase().replace('-', "_")), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// The least number of characters to insert, delete, replace, or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut costs = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            costs[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let replaced = costs[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let one_less = costs[i - 1][j].min(costs[i][j - 1]) + 1;
                    let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    let swap = if swapped { costs[i - 2][j - 2] + 1 } else { usize::MAX };
                    replaced.min(one_less).min(swap)
                }
            };
        }
    }
    costs[a.len()][b.len()]
}
