//! The settings: any text is read or refused with a place for each mistake, and what is printed reads back the same.
//!
//! The input is a file.

use onceproxy::config::{self, Loaded, Mistakes, Origin, Sources, effective};

/// Runs one input.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match config::load(&Sources::text(text)) {
        Ok(loaded) => accepted(text, &loaded),
        Err(mistakes) => refused(text, &mistakes),
    }
}

/// The settings as they are printed load to the same settings.
pub(crate) fn accepted(text: &str, loaded: &Loaded) {
    for warning in &loaded.warnings {
        place(text, &warning.origin, true);
        one_line(&warning.to_string());
        assert!(!warning.key.is_empty() && !warning.risk.is_empty() && !warning.remedy.is_empty());
    }
    assert!(!loaded.config.routes.is_empty() && !loaded.config.listen.is_empty());
    let printed = effective(&loaded.config);
    let again = match config::load(&Sources::text(printed.as_str())) {
        Ok(again) => again,
        Err(mistakes) => panic!("the printed settings do not load: {mistakes}\n{printed}"),
    };
    assert_eq!(effective(&again.config), printed, "printed again they are others");
    let [one, other] = [&loaded.config.routes, &again.config.routes].map(|routes| format!("{routes:?}"));
    assert_eq!(one, other, "the printed routes are others");
}

/// Each mistake says where, what is wrong and what would be right, on one line.
pub(crate) fn refused(text: &str, mistakes: &Mistakes) {
    assert!(!mistakes.0.is_empty());
    for mistake in &mistakes.0 {
        place(text, &mistake.origin, false);
        one_line(&mistake.to_string());
        assert!(!mistake.key.is_empty() && !mistake.wrong.is_empty() && !mistake.right.is_empty(), "{mistake}");
    }
}

/// Risks may come from what is built in; mistakes of a file are in the file.
fn place(text: &str, origin: &Origin, may_be_built_in: bool) {
    match origin {
        // A text that ends with a line end has one more line: an empty one.
        Origin::File { path: None, line } => assert!(*line <= 1 + text.matches('\n').count(), "line {line}"),
        Origin::BuiltIn if may_be_built_in => {}
        other => panic!("{other} is no place in the file"),
    }
}

fn one_line(message: &str) {
    assert!(!message.chars().any(char::is_control), "{message:?} is more than one line");
}
