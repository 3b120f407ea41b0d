//! Settings as files: the sample file, the good and bad fixtures under `tests/config/`, layers, and printing.
//!
//! A bad fixture begins with the messages it must cause, one a line after `#! `, in order; a good one in the same way
//! with its warnings. Both lists are exact.

use std::path::{Path, PathBuf};

use super::load::load_with;
use super::mistakes::Report;
use super::*;

mod layers;
mod printing;
mod sample;
mod schema;
mod tables;

/// The settings in a text, which must hold.
fn loaded(text: &str) -> Loaded {
    load(&Sources::text(text)).unwrap_or_else(|mistakes| panic!("{mistakes}\n--- in\n{text}"))
}

/// The mistakes in a text, one a line.
fn mistakes(text: &str) -> Vec<String> {
    let mistakes = load(&Sources::text(text)).expect_err("this text has mistakes");
    mistakes.0.iter().map(ToString::to_string).collect()
}

/// One route with these further lines.
fn route_with(lines: &str) -> String {
    format!("[[route]]\nname = \"r\"\nupstream = \"http://u.example\"\n{lines}\n")
}

fn fixtures(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(folder);
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    assert!(!files.is_empty(), "no fixtures in {}", folder.display());
    files
}

fn expected(text: &str) -> Vec<String> {
    text.lines().map_while(|line| line.strip_prefix("#! ")).map(str::to_owned).collect()
}

#[test]
fn every_bad_file_causes_exactly_its_messages() {
    for path in fixtures("invalid") {
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = expected(&text);
        assert!(!expected.is_empty(), "{} names no messages", path.display());
        assert_eq!(mistakes(&text), expected, "{}", path.display());
    }
}

#[test]
fn every_good_file_loads_with_exactly_its_warnings() {
    for path in fixtures("valid") {
        let text = std::fs::read_to_string(&path).unwrap();
        let warnings: Vec<_> = loaded(&text).warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, expected(&text), "{}", path.display());
    }
}

#[test]
fn every_good_file_prints_settings_that_load_to_the_same() {
    for path in fixtures("valid") {
        let config = loaded(&std::fs::read_to_string(&path).unwrap()).config;
        let printed = effective(&config);
        let again = loaded(&printed).config;
        assert_eq!(format!("{again:#?}"), format!("{config:#?}"), "{} as\n{printed}", path.display());
        assert_eq!(effective(&again), printed);
    }
}
