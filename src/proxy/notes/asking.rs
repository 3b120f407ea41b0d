//! The entry of one question to an authorizer: its span, and the field by which the service knows it.

use std::sync::Arc;

use http::header::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use super::{Noted, Notes, TRACEPARENT};
use crate::trace::{Context, Kind};

/// A question that is under way. Where no trace is sent it is an empty hand.
#[derive(Debug)]
pub struct Asking(Option<Open>);

#[derive(Debug)]
struct Open {
    noted: Arc<Noted>,
    began: Instant,
    context: Context,
    status: Option<u16>,
}

impl Asking {
    /// Begins an entry.
    pub fn begin(notes: &Notes) -> Asking {
        let open = notes.0.as_ref().and_then(|noted| {
            let context = noted.sampled()?.context.child();
            Some(Open { noted: noted.clone(), began: Instant::now(), context, status: None })
        });
        Asking(open)
    }

    /// Puts the place of this question into its fields.
    pub fn mark(&self, fields: &mut HeaderMap) {
        if let Some(open) = &self.0 {
            let value = HeaderValue::from_bytes(&open.context.to_text());
            fields.insert(TRACEPARENT, value.expect("hexadecimal digits are visible ASCII"));
        }
    }

    /// Notes the status that came.
    pub fn answered(&mut self, status: u16) {
        if let Some(open) = &mut self.0 {
            open.status = Some(status);
        }
    }

    /// Closes the entry, with why nothing was said, if so.
    pub fn ended(self, failed: Option<&'static str>) {
        let Some(open) = self.0 else { return };
        let Some(traced) = open.noted.sampled() else { return };
        let mut span = open.noted.span("authorize", open.context, Kind::Client, open.began);
        span.parent = Some((traced.context, false));
        span.say("http.request.method", "GET");
        if let Some(status) = open.status {
            span.say("http.response.status_code", status);
        }
        if let Some(why) = failed {
            span.failed = true;
            span.say("error.type", why);
        }
        traced.tracer.take(span);
    }
}
