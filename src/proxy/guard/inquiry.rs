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
        for own in [X_ORIGINAL_METHOD, X_ORIGINAL_URI, X_ONCEPROXY_RECORD] {
            fields.remove(own);
        }
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
