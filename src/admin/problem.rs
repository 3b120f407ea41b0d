//! The refusals of the admin listener as RFC 9457 problems: the one place here that chooses status codes.
//!
//! The words a caller of the *proxy* sees are `proxy/error.rs`'s; the two share only the form.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde_json::{Map, Value, json};

use super::wire;
use crate::record::{Record, RecordId};

/// A refusal: status, a stable type, and a sentence that says what would be right.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    members: Map<String, Value>,
    header: Option<(&'static str, &'static str)>,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Problem {
        Problem { status, kind, title, detail: detail.into(), members: Map::new(), header: None }
    }

    fn with_header(mut self, name: &'static str, value: &'static str) -> Problem {
        self.header = Some((name, value));
        self
    }

    /// Adds the id of the record it is about, under the name that every problem of the proxy uses.
    fn about(mut self, id: &RecordId) -> Problem {
        self.members.insert("record".to_owned(), json!(id.to_string()));
        self
    }

    /// Adds the members of the record as it is now.
    fn showing(mut self, id: &RecordId, record: &Record) -> Problem {
        self.members.extend(wire::record(id, record));
        self.about(id)
    }

    /// 400: the call is malformed; `detail` says what would be right.
    pub(super) fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "request-invalid", "The call is malformed", detail)
    }

    /// 401: no token, or another one (RFC 9110 section 11.6.1, RFC 6750 section 3).
    pub(super) fn unauthorized(detail: &str) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "The admin token is needed", detail)
            .with_header("www-authenticate", r#"Bearer realm="onceproxy admin""#)
    }

    /// 403: the call did not come the way an operator's call comes.
    pub(super) fn forbidden(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", "The call is not allowed here", detail)
    }

    /// 404: nothing under this path.
    pub(super) fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not-found", "There is no such call", detail)
    }

    /// 404: no such record.
    pub(super) fn no_record(id: &RecordId) -> Problem {
        let detail = format!("There is no record {id}: it was never there, was released or forgotten, or has expired.");
        Problem::new(StatusCode::NOT_FOUND, "record-not-found", "There is no such record", detail).about(id)
    }

    /// 405. The router adds `Allow`.
    pub(super) fn method_not_allowed() -> Problem {
        let detail = "This path does not take this method; the field Allow lists those it takes.";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "The method is not allowed", detail)
    }

    /// 409: the record is not as the call supposes. The record as it is now comes along.
    pub(super) fn conflict(id: &RecordId, record: &Record, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, "record-conflict", "The record is not as supposed", detail)
            .showing(id, record)
    }

    /// 409: not-executed cannot be said before the last attempt stopped listening.
    pub(super) fn may_be_running(id: &RecordId, record: &Record) -> Problem {
        let detail = format!(
            "The last attempt may still be running until {}. Say not-executed after that, or with force if it \
             certainly is not.",
            wire::time(record.abandon_at)
        );
        let title = "An attempt may still be running";
        Problem::new(StatusCode::CONFLICT, "attempt-may-be-running", title, detail).showing(id, record)
    }

    /// 413.
    pub(super) fn too_large() -> Problem {
        let detail = format!("The body of a call may have {} bytes.", super::MAX_BODY);
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large", detail)
    }

    /// 415: a body that is not JSON.
    pub(super) fn not_json() -> Problem {
        let detail = "Send the body with Content-Type: application/json.";
        let title = "The body is not declared as JSON";
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-type-unsupported", title, detail)
            .with_header("accept-post", "application/json")
    }

    /// 503: the process does not want traffic, and why.
    pub(super) fn not_ready(reason: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", "Not ready for traffic", reason)
            .with_header("retry-after", "1")
    }

    /// 503: the process will not serve again, and why.
    pub(super) fn broken(reason: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "restart-needed", "Only a restart helps", reason)
    }

    /// 503: the store could not answer.
    pub(super) fn store_unavailable(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", "The store cannot answer", detail)
            .with_header("retry-after", "1")
    }

    /// 503: too many calls at a time.
    pub(super) fn overloaded() -> Problem {
        let detail = format!("More than {} calls are running; call again.", super::CALLS_AT_A_TIME);
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Too many calls at a time", detail)
            .with_header("retry-after", "1")
    }

    /// 503: the call took too long. A change may have happened.
    pub(super) fn timed_out() -> Problem {
        let detail = "The call took too long. A change may have been made all the same: look at the record first.";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", "The call took too long", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = self.members;
        body.insert("type".to_owned(), json!(format!("urn:onceproxy:problem:{}", self.kind)));
        body.insert("title".to_owned(), json!(self.title));
        body.insert("status".to_owned(), json!(self.status.as_u16()));
        body.insert("detail".to_owned(), json!(self.detail));
        let mut response = (self.status, Value::Object(body).to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some((name, value)) = self.header {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
