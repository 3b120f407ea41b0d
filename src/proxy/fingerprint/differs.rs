//! In what a request differs from the first one under its key, in the words that its sender is told.

use crate::config::{BodyMode, OPERATION, Route};
use crate::record::{Differences, RequestPart};

/// How far a part counts under the settings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counting {
    /// In every byte.
    Wholly,
    /// But for what the settings leave out, or see as equal.
    Partly,
    Never,
}

/// The words for what is known to differ: `target`, `host`, `headers`, `body`.
///
/// Of two requests that were read under the same settings a part may differ that does not count, or differ only in what
/// does not. A part that counts wholly is named first; the others only where nothing else explains that the two are not
/// the same; and if no part does, a header field that the settings name.
pub fn differs(route: &Route, differences: &Differences) -> Vec<&'static str> {
    if differences.parts.is_none() {
        return Vec::new();
    }
    if !differences.same_policy {
        return words(|part| differences.has(part));
    }
    for enough in [Counting::Wholly, Counting::Partly] {
        let named = words(|part| counts(route, part) == enough && differences.has(part));
        if !named.is_empty() {
            return named;
        }
    }
    vec!["headers"]
}

fn words(differs: impl Fn(RequestPart) -> bool) -> Vec<&'static str> {
    let mut words: Vec<_> = RequestPart::ALL.into_iter().filter(|part| differs(*part)).map(word).collect();
    words.dedup();
    words
}

fn word(part: RequestPart) -> &'static str {
    match part {
        RequestPart::Target => "target",
        RequestPart::Host => "host",
        RequestPart::Operation | RequestPart::Content => "headers",
        RequestPart::Body => "body",
    }
}

fn counts(route: &Route, part: RequestPart) -> Counting {
    let settings = &route.fingerprint;
    match part {
        RequestPart::Target if settings.ignore_query.is_empty() => Counting::Wholly,
        RequestPart::Host if route.shows_host() => Counting::Wholly,
        RequestPart::Operation if OPERATION.iter().all(|name| settings.headers.contains(name)) => Counting::Wholly,
        RequestPart::Target | RequestPart::Operation => Counting::Partly,
        RequestPart::Host => Counting::Never,
        // What the body is said to be decides how it is read.
        RequestPart::Content => match settings.body {
            BodyMode::Form | BodyMode::Multipart => Counting::Partly,
            BodyMode::Bytes | BodyMode::Json | BodyMode::Ignore => Counting::Never,
        },
        RequestPart::Body => match settings.body {
            BodyMode::Bytes => Counting::Wholly,
            BodyMode::Json | BodyMode::Form | BodyMode::Multipart => Counting::Partly,
            BodyMode::Ignore => Counting::Never,
        },
    }
}
