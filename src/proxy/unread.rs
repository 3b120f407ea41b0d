//! Keys that protect nothing: those on methods that the route does not protect, and those in headers that no source reads.
//!
//! The request passes, marked as unprotected. Whoever sent a key asked for more than that, so it is counted, and told in
//! the log once a minute for each route and header.

use http::header::HeaderName;

use crate::metrics::{KEY_HEADERS, OTHER_KEY_HEADER, RouteMetrics};
use crate::seldom::Seldom;

/// What the log is told about: by route, and by the name of the header as metrics have it.
pub type Unread = Seldom<(String, &'static str)>;

/// The label of a header that may carry a key; `None` for all others.
///
/// Every header of an unprotected request is asked this, so the first letter decides for nearly all of them.
fn label(name: &str) -> Option<&'static str> {
    let is_spelling = match name.as_bytes().first()? {
        b'i' => name.starts_with("idempoten"),
        b'x' => name.starts_with("x-idempoten"),
        b'p' | b'r' | b'c' | b'k' => false,
        _ => return None,
    };
    let known = KEY_HEADERS.iter().find(|known| **known == name).copied();
    if is_spelling { Some(known.unwrap_or(OTHER_KEY_HEADER)) } else { known }
}

/// Counts and tells the keys among the fields of a request that passes unprotected.
pub fn note<'a>(unread: &Unread, route: &str, names: impl Iterator<Item = &'a HeaderName>, metrics: &RouteMetrics) {
    for name in names {
        let Some(header) = label(name.as_str()) else { continue };
        metrics.unprotected_key(header);
        if let Some(left_out) = unread.count((route.to_owned(), header)) {
            tracing::warn!(
                route,
                header = name.as_str(),
                left_out,
                "a request with a key passed unprotected: its method is not in `methods`, or no source in `key` reads this header"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_by_their_names_and_nothing_else_is() {
        for name in KEY_HEADERS {
            assert_eq!(label(name), Some(name));
        }
        for name in ["idempotency", "x-idempotency-id", "x-idempotency_key", "idempotency-reference"] {
            assert_eq!(label(name), Some(OTHER_KEY_HEADER), "{name}");
        }
        for name in [
            "request-id",
            "x-request-id",
            "x-correlation-id",
            "if-match",
            "content-type",
            "cookie",
            "range",
            "prefer",
            "x-forwarded-for",
            "not-idempotency-key",
            "key",
        ] {
            assert_eq!(label(name), None, "{name}");
        }
    }
}
