//! Requests, routes and fingerprints, as the targets need them.

use http::Request;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use onceproxy::config::{self, Route, Sources};
use onceproxy::proxy::fingerprint::{BodyAsRead, Policy};

/// The one route of settings with these further lines.
pub fn route(lines: &str) -> Route {
    let text = format!("[[route]]\nname = \"r\"\nupstream = \"http://u.example\"\n{lines}\n");
    let loaded = config::load(&Sources::text(text)).expect("the settings of a target hold");
    Route::clone(&loaded.config.routes[0])
}

/// How fingerprints are made on a route with these further lines.
pub fn policy(lines: &str) -> Policy {
    Policy::of(&route(lines))
}

/// The head of a POST.
pub fn head() -> Parts {
    Request::post("/v1/charges").body(()).expect("a plain request").into_parts().0
}

/// The head of a POST with a body of this type, if a field can have such a value.
pub fn head_of(content_type: &[u8]) -> Option<Parts> {
    let mut head = head();
    head.headers.insert(CONTENT_TYPE, HeaderValue::from_bytes(content_type).ok()?);
    Some(head)
}

/// The digest of a body in this way, or what is wrong with it.
pub fn digest(policy: &Policy, head: &Parts, body: &[u8]) -> Result<[u8; 32], String> {
    policy
        .print(head, BodyAsRead::Whole(body, Some(body)), false)
        .map(|print| print.fingerprint.digest)
        .map_err(|fault| fault.to_string())
}
