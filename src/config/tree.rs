//! Walks the file's tree: one `Section` a table, each value taken by its name together with the line it stands on.
//!
//! serde would stop at the first mistake and know no lines afterwards; this goes on and remembers. A section also learns
//! which keys were asked for, so that whatever else stands in it is reported. What values mean is left to others.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistakes::{Located, Origin, Report, Wrong, wrong};

/// The file's text, for turning places into lines.
pub(super) struct File<'a> {
    pub(super) path: Option<Arc<Path>>,
    pub(super) text: &'a str,
    /// Stands in for sections that are not there.
    pub(super) empty: DeTable<'static>,
}

impl File<'_> {
    /// The place `offset` bytes into the text.
    pub(super) fn at(&self, offset: usize) -> Origin {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        Origin::File { path: self.path.clone(), line: 1 + before.iter().filter(|byte| **byte == b'\n').count() }
    }
}

/// One table of the file, or none where a section is left out.
pub(super) struct Section<'a> {
    pub(super) report: &'a Report,
    file: &'a File<'a>,
    table: &'a DeTable<'a>,
    /// Where its head stands; built-in if the section is left out.
    pub(super) head: Origin,
    /// What is printed before a key: `store`, `route.payments`; empty at the top.
    shown: String,
    /// The same without names: `store`, `route`.
    kind: String,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// The whole file.
    pub(super) fn root(report: &'a Report, file: &'a File<'a>, table: &'a DeTable<'a>) -> Section<'a> {
        Section::new(report, file, table, file.at(0), String::new(), String::new())
    }

    fn new(
        report: &'a Report,
        file: &'a File<'a>,
        table: &'a DeTable<'a>,
        head: Origin,
        shown: String,
        kind: String,
    ) -> Section<'a> {
        Section { report, file, table, head, shown, kind, asked: Vec::new() }
    }

    /// A section that the file does not have, called `shown`.
    pub(super) fn absent(&self, shown: &str, kind: &str) -> Section<'a> {
        let (shown, kind) = (shown.to_owned(), kind.to_owned());
        Section::new(self.report, self.file, &self.file.empty, Origin::BuiltIn, shown, kind)
    }

    /// The full name of a key.
    pub(super) fn name(&self, key: &str) -> String {
        if self.shown.is_empty() { key.to_owned() } else { format!("{}.{key}", self.shown) }
    }

    /// The same without names.
    fn kind_of(&self, key: &str) -> String {
        if self.kind.is_empty() { key.to_owned() } else { format!("{}.{key}", self.kind) }
    }

    /// Where a key stands, or else its section's head.
    pub(super) fn at(&self, key: &str) -> Origin {
        self.find(key).map_or_else(|| self.head.clone(), |value| self.file.at(value.span().start))
    }

    /// Whether the file has this key, right or wrong.
    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Whether the file has an empty list under this key; one whose entries are all wrong is not empty.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        self.find(key).and_then(|value| value.get_ref().as_array()).is_some_and(|entries| entries.is_empty())
    }

    fn find(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.push(key);
        self.report.knows(&self.kind, key);
        self.find(key)
    }

    /// Notes a mistake about a key.
    pub(super) fn mistake(&self, key: &str, what: Wrong) {
        self.report.mistake(self.at(key), self.name(key), what);
    }

    /// Notes a risk that a key brings.
    pub(super) fn warning(&self, key: &str, risk: &str, remedy: &str) {
        self.report.warning(self.at(key), self.name(key), risk, remedy);
    }

    /// The value of a key. A wrong one is reported and counts as left out.
    pub(super) fn read<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'a>) -> Result<T, Wrong>,
    ) -> Option<Located<T>> {
        let found = self.take(key)?;
        match parse(found.get_ref()) {
            Ok(value) => Some(Located { value, at: self.at(key) }),
            Err(what) => {
                self.mistake(key, what);
                None
            }
        }
    }

    /// The value of a key that is a string.
    pub(super) fn text<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Option<Located<T>> {
        self.read(key, |value| string(value, &parse))
    }

    /// The value of a key that is `true` or `false`.
    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        let read = self.read(key, |value| {
            value
                .as_bool()
                .ok_or_else(|| wrong(format!("{} is not a truth value", shown(value)), "write true or false"))
        });
        read.map_or(default, |located| located.value)
    }

    /// The entries of a list, each with its place. Wrong ones and repeats are reported and left out.
    pub(super) fn list<T: PartialEq>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'a>) -> Result<T, Wrong>,
    ) -> Option<Vec<Located<T>>> {
        let found = self.take(key)?;
        let Some(entries) = found.get_ref().as_array() else {
            let shown = shown(found.get_ref());
            // One mistake at a time would send people twice: what stands there may be no entry either.
            let right = match parse(found.get_ref()) {
                Ok(_) => format!("write [{shown}]"),
                Err(what) => format!("write a list, its entries in [ ]; {}", what.right),
            };
            self.mistake(key, wrong(format!("{shown} is not a list"), right));
            return None;
        };
        let mut list: Vec<Located<T>> = Vec::new();
        for entry in entries.iter() {
            let at = self.file.at(entry.span().start);
            match parse(entry.get_ref()) {
                Ok(value) if list.iter().any(|earlier| earlier.value == value) => {
                    let what = wrong(format!("{} is named twice", shown(entry.get_ref())), "name it once");
                    self.report.mistake(at, self.name(key), what);
                }
                Ok(value) => list.push(Located { value, at }),
                Err(what) => self.report.mistake(at, self.name(key), what),
            }
        }
        Some(list)
    }

    /// The entries of a list of strings.
    pub(super) fn texts<T: PartialEq>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Option<Vec<T>> {
        let list = self.list(key, |value| string(value, &parse))?;
        Some(list.into_iter().map(|located| located.value).collect())
    }

    /// The value of a key that is a string, or a list of strings.
    pub(super) fn one_or_several<T: PartialEq>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Option<Vec<Located<T>>> {
        if self.find(key).is_some_and(|value| value.get_ref().as_array().is_some()) {
            return self.list(key, |value| string(value, &parse));
        }
        self.text(key, parse).map(|one| vec![one])
    }

    /// The table of this name, empty if it is left out.
    pub(super) fn section(&mut self, key: &'static str) -> Section<'a> {
        let (shown, kind) = (self.name(key), self.kind_of(key));
        let Some(found) = self.take(key) else {
            let mut absent = self.absent(&shown, &kind);
            absent.head = self.head.clone();
            return absent;
        };
        match found.get_ref().as_table() {
            Some(table) => Section::new(self.report, self.file, table, self.file.at(found.span().start), shown, kind),
            None => {
                self.mistake(key, wrong("this is a section", format!("write [{kind}] and its keys below")));
                self.absent(&shown, &kind)
            }
        }
    }

    /// The tables of this name, in order. Each is called by its key `name` if it has one, else by its number.
    pub(super) fn sections(&mut self, key: &'static str) -> Vec<Section<'a>> {
        let Some(found) = self.take(key) else { return Vec::new() };
        let kind = self.kind_of(key);
        let remedy =
            || wrong("this is a list of sections", format!("write [[{kind}]] in double brackets, once for each"));
        if let Some(table) = found.get_ref().as_table() {
            self.mistake(key, remedy());
            return vec![self.numbered(key, 0, table, self.at(key))];
        }
        let mut sections = Vec::new();
        for (index, entry) in found.get_ref().as_array().into_iter().flat_map(|entries| entries.iter()).enumerate() {
            if let Some(table) = entry.get_ref().as_table() {
                sections.push(self.numbered(key, index, table, self.file.at(entry.span().start)));
            }
        }
        if sections.is_empty() {
            self.mistake(key, remedy());
        }
        sections
    }

    fn numbered(&self, key: &str, index: usize, table: &'a DeTable<'a>, head: Origin) -> Section<'a> {
        let name =
            table.iter().find(|(name, _)| name.get_ref() == "name").and_then(|(_, value)| value.get_ref().as_str());
        let shown = match name {
            Some(name) if super::values::route_name(name).is_ok() => format!("{key}.{name}"),
            _ => format!("{key}[{}]", index + 1),
        };
        Section::new(self.report, self.file, table, head, self.name(&shown), self.kind_of(key))
    }

    /// Reports every key that was not asked for. Called last.
    pub(super) fn finish(self) {
        for name in self.table.keys() {
            if !self.asked.iter().any(|asked| asked == name.get_ref()) {
                let at = self.file.at(name.span().start);
                self.report.unknown(at, self.name(&key_shown(name.get_ref())), &self.kind, name.get_ref(), &self.asked);
            }
        }
    }
}

/// A key as it stands in a file. One with a line end in it must not make two messages of one.
fn key_shown(key: &str) -> Cow<'_, str> {
    let is_bare = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if is_bare && !key.is_empty() { key.into() } else { format!("{key:?}").into() }
}

/// Parses a value that must be a string. For another type the remedy is the one that the same characters would get.
pub(super) fn string<T>(value: &DeValue<'_>, parse: impl Fn(&str) -> Result<T, Wrong>) -> Result<T, Wrong> {
    if let Some(text) = value.as_str() {
        return parse(text);
    }
    let shown = shown(value);
    let right = match parse(&shown) {
        Ok(_) => format!("write \"{shown}\""),
        Err(what) => what.right,
    };
    Err(wrong(format!("{shown} is not a string in quotes"), right))
}

/// A value as messages show it. Never used for secrets.
pub(super) fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(moment) => moment.to_string(),
        DeValue::Array(_) => "[…]".to_owned(),
        DeValue::Table(_) => "{…}".to_owned(),
    }
}
