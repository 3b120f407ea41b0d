//! Who may call: the bearer token, and on loopback a defence against pages in an operator's browser.
//!
//! A listener on 127.0.0.1 is reached by every page that the operator opens: directly, with requests that need no
//! preflight, or by DNS rebinding, under a name of the page's own. The first is stopped by wanting JSON, the second by
//! wanting a loopback `Host`. Neither proves who calls; that is the token's.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::uri::Authority;
use http::{HeaderMap, Method};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::AdminState;
use super::problem::Problem;
use crate::fields::essence;

/// Lets a call through if it may be made. Everything but `/livez`, `/readyz` and `/metrics` passes here.
pub(super) async fn check(State(state): State<AdminState>, request: Request, next: Next) -> Response {
    match refuse(&state, request.method(), request.headers()) {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    }
}

fn refuse(state: &AdminState, method: &Method, headers: &HeaderMap) -> Option<Problem> {
    if state.loopback && !has_loopback_host(headers) {
        return Some(Problem::forbidden(
            "This listener is on loopback: call it as localhost, 127.0.0.1 or [::1], not by another name.",
        ));
    }
    match &state.settings.load().token {
        Some(token) => {
            if let Some(problem) = refuse_token(token, headers) {
                return Some(problem);
            }
        }
        // The settings refuse this; should they ever not, the records are still not open to the network.
        None if !state.loopback => return Some(Problem::forbidden("Set admin.token to call this from another host.")),
        None => {}
    }
    (method == Method::POST && !is_json(headers)).then(Problem::not_json)
}

fn refuse_token(token: &SecretString, headers: &HeaderMap) -> Option<Problem> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else {
        return Some(Problem::unauthorized(
            "Send one field Authorization: Bearer TOKEN, with the token of admin.token.",
        ));
    };
    match bearer(field.as_bytes()) {
        None => Some(Problem::unauthorized("The field Authorization must be: Bearer TOKEN.")),
        Some(given) if !same(given, token.expose_secret().as_bytes()) => {
            Some(Problem::unauthorized("The token is not the one of admin.token."))
        }
        Some(_) => None,
    }
}

/// The token of a field `Bearer TOKEN`. The scheme's case does not count (RFC 9110 section 11.1).
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = field.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// Compares hashes, so that the time taken tells nothing about the secret, not even its length.
fn same(given: &[u8], expected: &[u8]) -> bool {
    let (given, expected) = (Sha256::digest(given), Sha256::digest(expected));
    given.iter().zip(expected.iter()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

fn has_loopback_host(headers: &HeaderMap) -> bool {
    let mut fields = headers.get_all(HOST).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return false };
    let Some(authority) = field.to_str().ok().and_then(|text| text.parse::<Authority>().ok()) else { return false };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut fields = headers.get_all(CONTENT_TYPE).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return false };
    essence(field.as_bytes()).eq_ignore_ascii_case(b"application/json")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn host(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HOST, HeaderValue::from_static(value))])
    }

    #[test]
    fn takes_only_loopback_hosts_for_loopback() {
        for good in ["localhost", "LOCALHOST:9090", "127.0.0.1", "127.3.2.1:80", "[::1]:9090", "[::1]"] {
            assert!(has_loopback_host(&host(good)), "{good}");
        }
        for bad in ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:9090", "10.0.0.1", "[::2]"] {
            assert!(!has_loopback_host(&host(bad)), "{bad}");
        }
        assert!(!has_loopback_host(&HeaderMap::new()));
        let mut twice = host("localhost");
        twice.append(HOST, HeaderValue::from_static("evil.example"));
        assert!(!has_loopback_host(&twice));
    }

    #[test]
    fn reads_bearer_tokens() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bEARER  abc "), Some(&b"abc"[..]));
        assert_eq!(bearer(b"Basic abc"), None);
        assert_eq!(bearer(b"Bearer"), None);
        assert!(same(b"abc", b"abc"));
        assert!(!same(b"abcd", b"abc"));
        assert!(!same(b"", b"abc"));
    }

    #[test]
    fn knows_json_by_its_media_type() {
        let with = |value| HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
        assert!(is_json(&with("application/json")));
        assert!(is_json(&with("Application/JSON ; charset=utf-8")));
        assert!(!is_json(&with("text/plain")));
        assert!(!is_json(&with("text/plain; application/json")));
        assert!(!is_json(&HeaderMap::new()));
    }
}
