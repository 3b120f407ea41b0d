//! The entry of one send to the upstream: the time it took, its span, and the fields by which the upstream knows both.

use std::sync::Arc;

use http::Method;
use http::header::{HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use tokio::time::Instant;

use super::{Noted, Notes, TRACEPARENT, TRACESTATE, Traced, X_REQUEST_ID, known_method, say_method};
use crate::config::Route;
use crate::trace::{Context, Kind};

/// A send that is under way, from looking for a connection to the end of what is read. Dropped before it is
/// [`Sending::ended`], it was cut off.
#[derive(Debug)]
pub struct Sending(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    noted: Arc<Noted>,
    began: Instant,
    /// Of this send's span.
    context: Option<Context>,
    method: Method,
    target: PathAndQuery,
    route: Arc<Route>,
    /// How many sends were before it.
    before: u16,
}

impl Sending {
    /// Begins an entry.
    pub fn begin(notes: &Notes, route: &Arc<Route>, method: &Method, target: &PathAndQuery) -> Sending {
        Sending(notes.0.as_ref().map(|noted| {
            Box::new(Open {
                noted: noted.clone(),
                began: Instant::now(),
                context: noted.traced.as_ref().map(|traced| traced.context.child()),
                method: method.clone(),
                target: target.clone(),
                route: route.clone(),
                before: 0,
            })
        }))
    }

    /// Puts the fields of this send on a request.
    pub fn mark(&self, fields: &mut HeaderMap) {
        let Some(open) = &self.0 else { return };
        if let (Some(traced), Some(context)) = (&open.noted.traced, &open.context) {
            let value = HeaderValue::from_bytes(&context.to_text()).expect("hexadecimal digits are visible ASCII");
            fields.insert(TRACEPARENT, value);
            if traced.parent.is_none() {
                // It belonged to what was not understood.
                fields.remove(TRACESTATE);
            }
        }
        if let Some(id) = open.noted.id.as_ref().filter(|id| id.fresh)
            && let Ok(value) = HeaderValue::from_str(&id.text)
        {
            fields.insert(X_REQUEST_ID, value);
        }
    }

    /// Closes the entry, as one that was certainly not sent, and begins another.
    pub fn again(&mut self) {
        if let Some(open) = &mut self.0 {
            open.close(None, Some("not-sent"));
            open.began = Instant::now();
            open.before += 1;
            open.context = open.noted.traced.as_ref().map(|traced| traced.context.child());
        }
    }

    /// Closes the entry: with the status that came, and with why that is not all.
    pub fn ended(&mut self, status: Option<u16>, failed: Option<&'static str>) {
        if let Some(open) = self.0.take() {
            open.close(status, failed);
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.ended(None, Some("cut-off"));
    }
}

impl Open {
    fn close(&self, status: Option<u16>, failed: Option<&'static str>) {
        self.noted.upstream.add(self.began.elapsed());
        if let (Some(traced), Some(context)) = (self.noted.sampled(), self.context) {
            self.end_span(traced, context, status, failed);
        }
    }

    fn end_span(&self, traced: &Traced, context: Context, status: Option<u16>, failed: Option<&'static str>) {
        let name = known_method(&self.method).unwrap_or("HTTP");
        let mut span = self.noted.span(name, context, Kind::Client, self.began);
        span.parent = Some((traced.context, false));
        say_method(&mut span, &self.method);
        let upstream = &self.route.upstream;
        match &upstream.socket {
            Some(path) => span.say("server.address", path.display().to_string()),
            None => {
                span.say("server.address", upstream.host.clone());
                span.say("server.port", upstream.port);
            }
        }
        let scheme = if upstream.tls { "https" } else { "http" };
        span.say("url.full", format!("{scheme}://{}{}", upstream.authority(), self.target.path()));
        if self.before > 0 {
            span.say("http.request.resend_count", self.before);
        }
        if let Some(status) = status {
            span.say("http.response.status_code", status);
        }
        match (failed, status) {
            (Some(why), _) => {
                span.failed = true;
                span.say("error.type", why);
            }
            (None, Some(status)) if status >= 400 => {
                span.failed = true;
                span.say("error.type", status.to_string());
            }
            _ => {}
        }
        traced.tracer.take(span);
    }
}
