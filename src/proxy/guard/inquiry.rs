//! What an authorizer is asked: the head of a duplicate, as it would go to an upstream, and which record it is about.
//!
//! It is made before the request's own head goes its way, and copied: a duplicate that waits must not keep the buffer of
//! its connection.

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::request;

use crate::config;
use crate::proxy::headers::{self, Peer};
use crate::record::RecordId;

const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const X_ONCEPROXY_RECORD: HeaderName = HeaderName::from_static("x-onceproxy-record");

/// A question to an authorizer.
#[derive(Debug)]
pub struct Inquiry {
    /// The fields of the question, all but those of a trace.
    pub(super) fields: HeaderMap,
    /// The record that the duplicate is to be answered from.
    pub(super) record: RecordId,
}

impl Inquiry {
    /// The question about a request.
    pub(super) fn new(
        route: &config::Route,
        authorizer: &config::Authorize,
        head: &request::Parts,
        peer: Peer,
        record: &RecordId,
    ) -> Inquiry {
        let mut fields = headers::to_authorizer(route, &head.headers, peer);
        take_off_own(&mut fields);
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let value = |text: &str| HeaderValue::from_str(text).ok();
        for (name, value) in [
            (HOST, value(&authorizer.upstream.authority())),
            (X_ORIGINAL_METHOD, value(head.method.as_str())),
            (X_ORIGINAL_URI, value(target)),
            (X_ONCEPROXY_RECORD, value(&record.to_string())),
        ] {
            // All of them are visible ASCII: they were read as such, or are our own.
            fields.extend(value.map(|value| (name, value)));
        }
        Inquiry { fields, record: record.clone() }
    }
}

/// Takes off a client's own fields of these names. Also with underscores: many servers read both as one (CGI's
/// `HTTP_X_ORIGINAL_URI`), and would believe the client's.
fn take_off_own(fields: &mut HeaderMap) {
    let own = [X_ORIGINAL_METHOD, X_ORIGINAL_URI, X_ONCEPROXY_RECORD];
    let is_own = |name: &HeaderName| own.iter().any(|own| name.as_str().replace('_', "-") == own.as_str());
    let forged: Vec<_> = fields.keys().filter(|name| name.as_str().starts_with('x') && is_own(name)).cloned().collect();
    forged.iter().for_each(|name| drop(fields.remove(name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_own_words_about_the_request_are_taken_off_however_they_are_spelled() {
        let names = ["x-original-uri", "x_original_uri", "x-original_uri", "x_original_method", "x_onceproxy-record"];
        let mut fields = HeaderMap::new();
        for name in names {
            fields.append(HeaderName::from_static(name), HeaderValue::from_static("/public"));
        }
        fields.append("x-original-uris", HeaderValue::from_static("/kept"));
        take_off_own(&mut fields);
        assert_eq!(fields.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-original-uris"]);
    }
}
