//! Fields with an underscore in place of a dash, `Idempotency_Key` or `X_Forwarded_For`: many applications read both as one
//! (CGI's `HTTP_IDEMPOTENCY_KEY` has no dash), and so would see another request than this proxy.
//!
//! nginx drops every field with an underscore. Here it is those whose twin means something to the proxy: to its framing, its
//! routing, what it tells the upstream, and to the route's keys, scope, fingerprint and credentials.

use http::header::HeaderName;
use http::request::Parts;

use super::error::Problem;
use super::headers;
use super::route::Route;
use super::shared::Shared;
use super::unread;
use crate::config::{self, KeySource, ScopePart, Underscores};
use crate::seldom::Seldom;

/// What the log is told about: by route.
pub type Twins = Seldom<String>;

/// Fields that mean something on every route, besides those that begin with `x-forwarded-`.
const ALWAYS: [&str; 15] = [
    "content-length",
    "transfer-encoding",
    "content-type",
    "content-encoding",
    "proxy-authorization",
    "proxy-connection",
    "x-real-ip",
    "x-http-method-override",
    "x-method-override",
    "x-amz-target",
    "x-api-key",
    "api-key",
    "idempotency-key",
    "x-idempotency-key",
    "cache-status",
];

/// Takes such fields off a request, counts and tells them; or refuses it, as the route says.
///
/// # Errors
/// There is such a field, and the route refuses them.
pub fn check(route: &Route, head: &mut Parts, shared: &Shared) -> Result<(), Problem> {
    if !head.headers.keys().any(has_underscore) || route.config.underscores == Underscores::Pass {
        return Ok(());
    }
    let twins: Vec<HeaderName> = head.headers.keys().filter(|name| is_twin(&route.config, name)).cloned().collect();
    if let (Some(name), Underscores::Refuse) = (twins.first(), route.config.underscores) {
        return Err(Problem::ambiguous_field(name, &dashed(name)));
    }
    // Whoever wrote a key so asked for protection, and has none by it.
    let alone = twins.iter().filter(|name| !head.headers.contains_key(dashed(name)));
    unread::note(&shared.unread, &route.config.name, alone, &route.metrics);
    for name in &twins {
        headers::take_off(&mut head.headers, |other| other == name);
        route.metrics.underscore_fields.inc();
        if let Some(left_out) = shared.twins.count(route.config.name.to_string()) {
            let route = &*route.config.name;
            tracing::warn!(
                route,
                field = name.as_str(),
                left_out,
                "a field was dropped that applications read as one with dashes"
            );
        }
    }
    Ok(())
}

fn has_underscore(name: &HeaderName) -> bool {
    name.as_str().as_bytes().contains(&b'_')
}

fn dashed(name: &HeaderName) -> String {
    name.as_str().replace('_', "-")
}

/// Whether the field with dashes in place of underscores means something on this route.
fn is_twin(route: &config::Route, name: &HeaderName) -> bool {
    if !has_underscore(name) {
        return false;
    }
    let dashed = dashed(name);
    let is = |known: &HeaderName| known.as_str() == dashed;
    let scope = route.scope.iter().any(|part| matches!(part, ScopePart::Header(name) if is(name)));
    ALWAYS.contains(&&*dashed)
        || dashed.starts_with("x-forwarded-")
        || scope
        || route.key.iter().any(|source| reads(source, &is))
        || route.fingerprint.headers.iter().any(is)
}

fn reads(source: &KeySource, is: &impl Fn(&HeaderName) -> bool) -> bool {
    match source {
        KeySource::Header(name) => is(name),
        KeySource::Joined(parts) => parts.iter().any(|part| reads(part, is)),
        KeySource::Query(_) | KeySource::Json(_) | KeySource::Form(_) | KeySource::Fingerprint => false,
    }
}
