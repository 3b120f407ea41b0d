//! The one route that needs no file, `default`: what the environment and the flags say of it.

use super::address;
use super::load::Flags;
use super::mistakes::{Located, Report, wrong};
use super::presets::{PRESETS, Preset};
use super::sections::Outer;
use super::values::{choice, field_name};
use super::{KeySource, Upstream};

/// What is said of the route outside a file.
pub(super) struct Commanded {
    pub(super) upstream: Upstream,
    pub(super) preset: Option<Preset>,
    pub(super) key: Option<KeySource>,
}

/// Reads it; `None` where no upstream is named, or a wrong one. Beside routes of a file each part of it is a mistake: it is
/// not clear which of them it is meant for.
pub(super) fn read(report: &Report, upstream: &Outer<'_>, flags: &Flags, has_file_routes: bool) -> Option<Commanded> {
    let target = upstream.over(report, "upstream", None, address::upstream).map(|located| located.value);
    let preset = Outer::flag("--preset", flags.preset.as_ref()).over(report, "preset", None, choice(&PRESETS));
    let key = Outer::flag("--key-header", flags.key_header.as_ref()).over(report, "key", None, field_name);
    if has_file_routes {
        if let Some(at) = upstream.given() {
            let right = "take it away, or take the routes out of the file";
            report.mistake(at, "upstream", wrong("the file has routes of its own, and none would go there", right));
        }
        let of_a_route = |line: String| {
            let what = "the file has routes of its own, and it is not clear which of them is meant";
            wrong(what, format!("take it away, and write {line} in the route"))
        };
        if let (Some(Located { at, .. }), Some(word)) = (&preset, &flags.preset) {
            report.mistake(at.clone(), "preset", of_a_route(format!("preset = \"{word}\"")));
        }
        if let (Some(Located { at, .. }), Some(name)) = (&key, &flags.key_header) {
            report.mistake(at.clone(), "key", of_a_route(format!("key = [\"header:{name}\"]")));
        }
    }
    Some(Commanded {
        upstream: target?,
        preset: preset.map(|located| located.value),
        key: key.map(|located| KeySource::Header(located.value)),
    })
}
