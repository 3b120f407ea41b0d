//! What is noted of one request while it runs: for its line in the log, and for its spans.
//!
//! Every step may write something down; nothing is read back but here. Where neither the log nor a trace wants anything,
//! the notes are an empty hand: no memory, no clock, one branch. What is noted never holds keys, credentials, queries or
//! bodies.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Version, request};
use tokio::time::Instant;

use super::headers::{self, Peer};
use crate::record::{RecordId, Response};
use crate::trace::{Context, Kind, Span, Tracer};

mod asking;
mod diary;
mod sending;

pub use self::asking::Asking;
pub use self::diary::Diary;
pub use self::sending::Sending;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is taken over from a client.
const LONGEST_ID: usize = 128;

/// The notes of one request. Clones are the same notes: those of a task that outlives its caller.
#[derive(Clone, Debug, Default)]
pub struct Notes(Option<Arc<Noted>>);

#[derive(Debug)]
struct Noted {
    /// One moment on both clocks: spans are told in the time of day, and measured in the other.
    began: (Instant, SystemTime),
    method: Method,
    /// Without the query, which may hold what is secret. Empty for a `CONNECT`.
    path: String,
    /// Where a `CONNECT` wants to go: host and port, no more.
    target: Option<String>,
    /// Given where each request gets a line.
    id: Option<RequestId>,
    traced: Option<Traced>,
    /// Of a trace that goes by this proxy unseen.
    passing: Option<Context>,
    record: OnceLock<RecordId>,
    store: Spent,
    upstream: Spent,
}

/// By what a request is called in logs.
#[derive(Debug)]
struct RequestId {
    text: String,
    /// The client gave none: the upstream is told ours.
    fresh: bool,
}

/// The place of a request in a trace.
#[derive(Debug)]
struct Traced {
    tracer: Tracer,
    context: Context,
    parent: Option<Context>,
    /// Where the answer was made, if that was another request.
    origin: OnceLock<Context>,
    about: About,
}

/// What a span says of the request as it came.
#[derive(Debug)]
struct About {
    version: &'static str,
    peer: Peer,
}

/// Time that was spent waiting for others.
#[derive(Debug, Default)]
struct Spent(AtomicU64);

impl Spent {
    fn add(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// In seconds; `None` if there was nothing to wait for.
    fn seconds(&self) -> Option<f64> {
        let nanoseconds = self.0.load(Ordering::Relaxed);
        (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds).as_secs_f64())
    }
}

impl Notes {
    /// No notes at all.
    pub fn none() -> Notes {
        Notes(None)
    }

    /// The notes of a request that has just come, if the log (`line`) or a trace wants any.
    pub fn begin(tracer: &Tracer, line: bool, head: &request::Parts, peer: Peer) -> Notes {
        if !line && !tracer.is_on() {
            return Notes(None);
        }
        let parent = parent(&head.headers);
        let traced = match (tracer.place(parent.as_ref()), &parent) {
            // Its caller does not want it traced: it goes on as it came.
            (Some(context), Some(_)) if !context.is_sampled() => None,
            (None, _) => None,
            (Some(context), _) => Some(Traced {
                tracer: tracer.clone(),
                context,
                parent,
                origin: OnceLock::new(),
                about: About { version: version(head.version), peer },
            }),
        };
        if !line && traced.is_none() {
            return Notes(None);
        }
        Notes(Some(Arc::new(Noted {
            began: (Instant::now(), SystemTime::now()),
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            target: (head.method == Method::CONNECT).then(|| head.uri.to_string()),
            id: line.then(|| request_id(&head.headers)),
            passing: if traced.is_none() { parent } else { None },
            traced,
            record: OnceLock::new(),
            store: Spent::default(),
            upstream: Spent::default(),
        })))
    }

    /// Says which record the request is about.
    pub fn about(&self, id: &RecordId) {
        if let Some(noted) = &self.0 {
            let _ = noted.record.set(id.clone());
        }
    }

    /// Says that this response answers the request, although it was made for another one.
    pub fn answered_by(&self, response: &Response) {
        if let Some(traced) = self.0.as_ref().and_then(|noted| noted.sampled())
            && let Some(origin) = headers::origin(response)
        {
            let _ = traced.origin.set(origin);
        }
    }

    /// The place that goes into a record, for those that are answered from it.
    pub fn origin(&self) -> Option<Context> {
        self.0.as_ref().and_then(|noted| noted.sampled()).map(|traced| traced.context)
    }

    /// A watch for [`Notes::stored`], if anyone wants to know the time.
    pub fn clock(&self) -> Option<Instant> {
        self.0.as_ref().map(|_| Instant::now())
    }

    /// Notes a store operation that began then, and by which kind of error it failed, if it did.
    pub fn stored(&self, name: &'static str, began: Option<Instant>, failed: Option<&'static str>) {
        let (Some(noted), Some(began)) = (&self.0, began) else { return };
        noted.store.add(began.elapsed());
        if let Some(traced) = noted.sampled() {
            let mut span = noted.span(name, traced.context.child(), Kind::Internal, began);
            span.parent = Some((traced.context, false));
            if let Some(kind) = failed {
                span.failed = true;
                span.say("error.type", kind);
            }
            traced.tracer.take(span);
        }
    }
}

impl Noted {
    /// The place in a trace whose spans are sent.
    fn sampled(&self) -> Option<&Traced> {
        self.traced.as_ref().filter(|traced| traced.context.is_sampled())
    }

    /// The trace that the request belongs to, whoever sends its spans.
    fn trace(&self) -> Option<&Context> {
        self.traced.as_ref().map(|traced| &traced.context).or(self.passing.as_ref())
    }

    /// A span of this request that began then and ends now.
    fn span(&self, name: impl Into<Cow<'static, str>>, context: Context, kind: Kind, began: Instant) -> Span {
        let mut span = Span::new(name, context, kind, self.time_of_day(began));
        span.ended = self.time_of_day(Instant::now());
        span
    }

    fn time_of_day(&self, moment: Instant) -> SystemTime {
        self.began.1 + moment.saturating_duration_since(self.began.0)
    }
}

/// The caller's place in a trace. Two lines are as good as none: nobody can tell which is right.
fn parent(fields: &HeaderMap) -> Option<Context> {
    let mut lines = fields.get_all(TRACEPARENT).iter();
    let (first, None) = (lines.next()?, lines.next()) else { return None };
    Context::parse(first.as_bytes())
}

/// The client's own id if a log can hold it, else a fresh one. A strange one goes on to the upstream as it came.
fn request_id(fields: &HeaderMap) -> RequestId {
    let mut lines = fields.get_all(X_REQUEST_ID).iter();
    match (lines.next(), lines.next()) {
        (Some(given), None) if is_well_formed(given) => {
            RequestId { text: String::from_utf8_lossy(given.as_bytes()).into_owned(), fresh: false }
        }
        (given, _) => {
            let mut random = [0; 16];
            getrandom::fill(&mut random).expect("the system has random bytes once it is up");
            let text = uuid::Builder::from_random_bytes(random).into_uuid().to_string();
            RequestId { text, fresh: given.is_none() }
        }
    }
}

fn is_well_formed(id: &HeaderValue) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b',');
    (1..=LONGEST_ID).contains(&id.len()) && id.as_bytes().iter().all(allowed)
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

/// A method's name, of which there are few: what clients make up is `None`.
fn known_method(method: &Method) -> Option<&'static str> {
    const KNOWN: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"];
    KNOWN.into_iter().find(|known| *known == method.as_str())
}

/// Says the method, as the semantic conventions have it.
fn say_method(span: &mut Span, method: &Method) {
    match known_method(method) {
        Some(known) => span.say("http.request.method", known),
        None => {
            span.say("http.request.method", "_OTHER");
            span.say("http.request.method_original", method.as_str().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let lines = lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        lines.fold(HeaderMap::new(), |mut fields, (name, value)| {
            fields.append(name, value);
            fields
        })
    }

    #[test]
    fn a_request_id_that_a_log_can_hold_is_kept() {
        for (given, kept) in [("req-1/a:b", true), ("a b", false), ("a\"b", false), ("a,b", false), ("", false)] {
            let id = request_id(&fields(&[("x-request-id", given)]));
            assert_eq!(id.text == given, kept, "{given:?}");
            assert!(!id.fresh, "the upstream sees the client's own");
        }
        let longest: &'static str = "x".repeat(LONGEST_ID).leak();
        assert_eq!(request_id(&fields(&[("x-request-id", longest)])).text, longest);
        let longer: &'static str = "x".repeat(LONGEST_ID + 1).leak();
        assert_eq!(request_id(&fields(&[("x-request-id", longer)])).text.len(), 36);
        assert_eq!(request_id(&fields(&[("x-request-id", "a"), ("x-request-id", "b")])).text.len(), 36);
        assert!(request_id(&fields(&[])).fresh);
    }

    #[test]
    fn nothing_is_noted_where_nobody_asks() {
        let (head, ()) = http::Request::new(()).into_parts();
        let peer = Peer { ip: None, tls: false };
        assert!(Notes::begin(&Tracer::off(), false, &head, peer).0.is_none());
        assert!(Notes::begin(&Tracer::off(), true, &head, peer).0.is_some());
    }
}
