//! CORS: which pages of browsers may read what is answered here and not by the upstream (the Fetch standard, section 3.3).
//!
//! The upstream says so for its own answers. It cannot for problems, which it never sees, nor for replays: those were made
//! for the origin that asked first. Preflights (`OPTIONS`) are the upstream's: they are passed on like all that is not
//! protected.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, HeaderMap,
    HeaderValue, ORIGIN, VARY,
};
use http::request;

use super::headers::take_off;
use super::respond::Answer;
use crate::config::Route;
use crate::fields::list;

/// The fields of problems and replays that a page could not read otherwise.
const EXPOSED: HeaderValue = HeaderValue::from_static("Idempotent-Replayed, Cache-Status, Retry-After");

/// Who asks, on a route that names origins.
#[derive(Debug)]
pub struct Cors {
    /// The request's `Origin`, if the route lists it.
    listed: Option<HeaderValue>,
}

impl Cors {
    /// Who asks; `None` on a route that names no origins, of which nothing is changed.
    pub fn of(route: &Route, head: &request::Parts) -> Option<Cors> {
        if route.cors_origins.is_empty() {
            return None;
        }
        let mut origins = head.headers.get_all(ORIGIN).iter();
        let listed = match (origins.next(), origins.next()) {
            (Some(only), None) => route.cors_origins.iter().any(|listed| only == listed.as_str()).then(|| only.clone()),
            _ => None,
        };
        Some(Cors { listed })
    }

    /// Lets the page read the answer, or keeps it from doing so, if the answer was made here.
    pub fn mark(self, answer: &mut Answer) {
        if answer.is_own {
            self.mark_fields(answer.response.headers_mut());
        }
    }

    fn mark_fields(self, fields: &mut HeaderMap) {
        take_off(fields, |name| *name == ACCESS_CONTROL_ALLOW_ORIGIN || *name == ACCESS_CONTROL_ALLOW_CREDENTIALS);
        if let Some(origin) = self.listed {
            fields.append(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            fields.append(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
            fields.append(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
        if !list(fields, &VARY).any(|name| name == b"*" || name.eq_ignore_ascii_case(b"origin")) {
            fields.append(VARY, HeaderValue::from_static("Origin"));
        }
    }
}
