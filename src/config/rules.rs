//! `[[route.when]]`: rules on the body of an answer, for upstreams that tell there what became of a request.
//!
//! Separate from the status lists, which they come before. Here is what a rule says; the proxy's verdict applies it.

use toml::de::DeValue;

use super::mistakes::{Wrong, wrong};
use super::statuses::{Entry, Verdict, entry};
use super::tree::{Section, shown};
use super::values::{choice, json_pointer};

/// One rule: what is looked for in which answers, and what it means there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The statuses that it is about; empty is each.
    statuses: Vec<Entry>,
    /// Where in the body it looks, as JSON pointer (RFC 6901).
    pub pointer: String,
    /// What it looks for there.
    pub test: Test,
    /// What that means for the record.
    pub then: Verdict,
}

/// What a rule looks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// One of these values.
    Is(Vec<Literal>),
    /// A list or an object that has nothing in it.
    Empty,
    /// Whether there is anything.
    Exists(bool),
}

/// A value of JSON that is neither list nor object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    /// A string.
    Text(String),
    /// A number, as it is written.
    Number(String),
    /// `true` or `false`.
    Truth(bool),
    /// `null`, for which TOML has no word: the text "null".
    Null,
}

impl Rule {
    /// Whether the rule is about answers of this status.
    pub fn is_about(&self, status: u16) -> bool {
        let has = |entry: &Entry| match entry {
            Entry::Class(class) => status / 100 == *class,
            Entry::Exact(exact) => status == *exact,
        };
        (200..600).contains(&status) && (self.statuses.is_empty() || self.statuses.iter().any(has))
    }
}

/// The words of `then`.
const THEN: [(&str, Verdict); 3] =
    [("record", Verdict::Record), ("release", Verdict::Release), ("unknown", Verdict::Unknown)];

/// Reads the rules of a route. Of a wrong one nothing is left, but what is wrong with it is reported.
pub(super) fn read(route: &mut Section<'_>) -> Vec<Rule> {
    route.sections("when").into_iter().filter_map(rule).collect()
}

fn rule(mut section: Section<'_>) -> Option<Rule> {
    let statuses = section.one_or_several("status", entry).unwrap_or_default();
    if section.is_empty_list("status") {
        section.mistake("status", wrong("no status is named", "name one such as \"2xx\", or take it out for each"));
    }
    let pointer = section.text("json", pointer);
    let test = test(&mut section);
    let then = section.text("then", choice(&THEN));
    for (key, right) in [
        ("json", "add json = \"/POINTER\" to the value that tells, such as \"/errors/0/extensions/code\""),
        ("then", "add then = \"record\", \"release\" or \"unknown\""),
    ] {
        if !section.has(key) {
            section.mistake(key, wrong(format!("the rule has no `{key}`"), right));
        }
    }
    section.finish();
    let statuses = statuses.into_iter().map(|located| located.value).collect();
    Some(Rule { statuses, pointer: pointer?.value, test: test?, then: then?.value })
}

/// Parses a pointer. Unlike those to keys it may lead to the whole body.
fn pointer(text: &str) -> Result<String, Wrong> {
    if text.is_empty() || text == "/" { Ok(text.to_owned()) } else { json_pointer(text) }
}

const TESTS: [&str; 3] = ["is", "empty", "exists"];

fn test(section: &mut Section<'_>) -> Option<Test> {
    let is = section.list("is", literal);
    let empty = section.read("empty", |value| match value.as_bool() {
        Some(true) => Ok(Test::Empty),
        _ => Err(wrong(format!("{} cannot be looked for", shown(value)), "write true, or another test: is, exists")),
    });
    let exists = section.read("exists", |value| {
        let truth = value.as_bool().map(Test::Exists);
        truth.ok_or_else(|| wrong(format!("{} is not a truth value", shown(value)), "write true or false"))
    });
    if section.is_empty_list("is") {
        section.mistake("is", wrong("no value is listed, so nothing would match", "list one such as \"THROTTLED\""));
    }
    let mut there = TESTS.into_iter().filter(|key| section.has(key));
    match (there.next(), there.next()) {
        (None, _) => {
            let right = "add one of is = [\"VALUE\"], empty = true, exists = true";
            section.mistake("is", wrong("the rule does not say what it looks for", right));
        }
        (Some(first), Some(second)) => {
            section.mistake(second, wrong(format!("`{first}` is there too"), "keep one, and write a rule for each"));
        }
        _ => {}
    }
    let is = is.map(|list| Test::Is(list.into_iter().map(|located| located.value).collect()));
    is.or(empty.map(|located| located.value)).or(exists.map(|located| located.value))
}

/// What stands for `null`.
const NULL: &str = "null";

fn literal(value: &DeValue<'_>) -> Result<Literal, Wrong> {
    match value {
        DeValue::String(text) if text == NULL => Ok(Literal::Null),
        DeValue::String(text) => Ok(Literal::Text(text.clone().into_owned())),
        DeValue::Integer(_) | DeValue::Float(_) if is_number(&shown(value)) => Ok(Literal::Number(shown(value))),
        DeValue::Boolean(truth) => Ok(Literal::Truth(*truth)),
        _ => {
            let what = format!("{} is not a value that JSON has", shown(value));
            Err(wrong(what, "write a string, a number as JSON has it, true, false, or \"null\""))
        }
    }
}

/// Whether a number of TOML is one of JSON too, and not `inf`, `0x1f` or `+1`; and one that can be printed.
fn is_number(text: &str) -> bool {
    let is_printable = text.parse::<i64>().is_ok() || text.contains(['.', 'e', 'E']);
    is_printable && serde_json::from_str::<f64>(text).is_ok()
}

/// A rule as the lines of a file that give it.
pub(super) fn lines(rule: &Rule) -> Vec<(&'static str, String)> {
    let text = |text: &str| toml::Value::from(text).to_string();
    let list = |texts: Vec<String>| format!("[{}]", texts.join(", "));
    let mut lines = Vec::new();
    if !rule.statuses.is_empty() {
        lines.push(("status", list(rule.statuses.iter().map(|entry| text(&entry.to_string())).collect())));
    }
    lines.push(("json", text(&rule.pointer)));
    lines.push(match &rule.test {
        Test::Is(values) => {
            let print = |value: &Literal| match value {
                Literal::Text(value) => text(value),
                // In its own words: they are what is compared.
                Literal::Number(number) => number.clone(),
                Literal::Truth(truth) => truth.to_string(),
                Literal::Null => text(NULL),
            };
            ("is", list(values.iter().map(print).collect()))
        }
        Test::Empty => ("empty", true.to_string()),
        Test::Exists(exists) => ("exists", exists.to_string()),
    });
    lines.push(("then", text(rule.then.key())));
    lines
}
