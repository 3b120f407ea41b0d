//! The entry of a whole request: one line in the log, and the span above all others.
//!
//! It is made when the answer's head is there. A request whose client leaves before is dropped, and gets its entry then.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Noted, Notes, Peer, Traced, known_method, say_method};
use crate::metrics::RequestResult;
use crate::proxy::headers;
use crate::trace::Kind;

/// What the log and traces say of a request that nobody waited for.
const CLIENT_LEFT: &str = "client_left";

/// How much of a path stands in a line of the log.
const LONGEST_PATH: usize = 1024;

/// The longest name of the DNS.
const LONGEST_HOST: usize = 253;

/// What of a client's text stands in a line: the beginning, without what a terminal would act on.
fn shown(text: &str, longest: usize) -> Cow<'_, str> {
    if text.len() <= longest && !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut end = longest.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut cut = text[..end].replace(char::is_control, "\u{fffd}");
    if end < text.len() {
        cut.push('…');
    }
    Cow::Owned(cut)
}

/// The open entry of one request.
#[derive(Debug)]
pub struct Diary {
    notes: Notes,
    line: bool,
    route: Option<Arc<str>>,
    /// Which host was asked for, where no route takes it.
    host: Option<String>,
    began: Instant,
}

/// How a request was answered.
struct Answered<'a> {
    status: u16,
    result: RequestResult,
    fields: &'a http::HeaderMap,
}

impl Diary {
    /// Opens an entry, with a line in the log or without.
    pub fn open(notes: Notes, line: bool, began: Instant) -> Diary {
        Diary { notes, line, route: None, host: None, began }
    }

    /// The notes that the steps write.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Says which route took the request.
    pub fn taken_by(&mut self, route: &Arc<str>) {
        if self.notes.0.is_some() {
            self.route = Some(route.clone());
        }
    }

    /// Says that no route took the request, and for which host it was.
    pub fn taken_by_none(&mut self, host: Option<&str>) {
        if self.line {
            self.host = host.map(|host| shown(host, LONGEST_HOST).into_owned());
        }
    }

    /// Closes the entry with an answer.
    pub fn answered<B>(mut self, response: &http::Response<B>, result: RequestResult) {
        if self.notes.0.is_some() {
            let answered = Answered { status: response.status().as_u16(), result, fields: response.headers() };
            self.close(Some(answered));
        }
    }

    fn close(&mut self, answered: Option<Answered<'_>>) {
        let Some(noted) = self.notes.0.take() else { return };
        if self.line {
            self.write_line(&noted, answered.as_ref());
        }
        if let Some(traced) = noted.sampled() {
            self.end_span(&noted, traced, answered);
        }
    }

    fn write_line(&self, noted: &Noted, answered: Option<&Answered<'_>>) {
        tracing::info!(
            request_id = noted.id.as_ref().map(|id| id.text.as_str()),
            trace_id = noted.trace().map(|context| tracing::field::display(context.shown_trace())),
            route = self.route.as_deref(),
            record = noted.record.get().map(tracing::field::display),
            host = self.host.as_deref(),
            path = (!noted.path.is_empty()).then(|| shown(&noted.path, LONGEST_PATH)).as_deref(),
            method = %noted.method,
            authority = noted.target.as_deref(),
            status = answered.map(|answered| answered.status),
            result = answered.map_or(CLIENT_LEFT, |answered| answered.result.as_str()),
            seconds = self.began.elapsed().as_secs_f64(),
            store_seconds = noted.store.seconds(),
            upstream_seconds = noted.upstream.seconds(),
            "request"
        );
    }

    fn end_span(&self, noted: &Noted, traced: &Traced, answered: Option<Answered<'_>>) {
        let method = known_method(&noted.method).unwrap_or("HTTP");
        let name = match &self.route {
            Some(route) => Cow::Owned(format!("{method} {route}")),
            None => Cow::Borrowed(method),
        };
        let mut span = noted.span(name, traced.context, Kind::Server, self.began);
        span.parent = traced.parent.map(|parent| (parent, true));
        span.link = traced.origin.get().copied();
        say_method(&mut span, &noted.method);
        let Peer { ip, tls } = traced.about.peer;
        span.say("url.scheme", if tls { "https" } else { "http" });
        match &noted.target {
            Some(target) => span.say("onceproxy.target", target.clone()),
            None => span.say("url.path", noted.path.clone()),
        }
        span.say("network.protocol.version", traced.about.version);
        if let Some(ip) = ip {
            span.say("network.peer.address", ip.to_string());
        }
        if let Some(route) = &self.route {
            span.say("onceproxy.route", route.to_string());
        }
        if let Some(record) = noted.record.get() {
            span.say("onceproxy.record", record.to_string());
        }
        match answered {
            Some(Answered { status, result, fields }) => {
                span.say("http.response.status_code", status);
                span.say("onceproxy.result", result.as_str());
                if let Some(cache) = headers::own_cache_status(fields) {
                    span.say("onceproxy.cache", cache.to_owned());
                }
                if status >= 500 {
                    span.failed = true;
                    span.say("error.type", status.to_string());
                }
            }
            None => {
                span.failed = true;
                span.say("error.type", CLIENT_LEFT);
            }
        }
        traced.tracer.take(span);
    }
}

impl Drop for Diary {
    fn drop(&mut self) {
        self.close(None);
    }
}
