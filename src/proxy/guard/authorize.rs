//! The authorizer: a service that says whether a caller may have what a record holds, as `auth_request` of nginx and
//! `ext_authz` of Envoy ask one.
//!
//! It is asked last of all, when the answer would be a replay or a join, and for nothing else. Its questions are safe to
//! repeat, so a kept connection that turns out dead costs a second try and no refusal. No redirect is followed, and no
//! proxy of the environment is used.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName};
use http::{Request, Response, StatusCode, Uri, response};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};

use super::inquiry::Inquiry;
use crate::chain::Chain;
use crate::config;
use crate::metrics::{AuthorizeMetrics, Authorized, Metrics};
use crate::proxy::body::{Body, Pieces};
use crate::proxy::headers;
use crate::proxy::notes::{Asking, Notes};
use crate::seldom::Seldom;
use crate::upstream::{BoxError, Pool, RequestBody, ResponseBody, SendError, TlsSetupError};

/// The largest body of a refusal that is passed on; of others no more is read either.
const LARGEST_BODY: usize = 64 << 10;
/// How long a connection is kept unused: below the 5 s of common servers.
const IDLE: Duration = Duration::from_secs(4);

/// The service of one route, on one core.
#[derive(Debug)]
pub(super) struct Authorizer {
    route: String,
    settings: config::Authorize,
    timeout: Duration,
    pool: Pool,
    metrics: AuthorizeMetrics,
    failures: Arc<Seldom<()>>,
}

/// What it said.
pub(super) enum Ruling {
    /// The caller may have the answer.
    Allowed,
    /// It may not, and is told so in these words.
    Refused(Box<Response<Body>>),
    /// It did not say.
    Unavailable,
}

impl Authorizer {
    /// Prepares to ask. What runs already lends its connections, unless there are certificates to read again.
    pub(super) fn new(
        route: &config::Route,
        settings: &config::Authorize,
        metrics: &Metrics,
        running: Option<&Authorizer>,
    ) -> Result<Authorizer, TlsSetupError> {
        let pool = match running.and_then(|running| running.lends_to(settings, route.authorize_timeout)) {
            Some(pool) => pool,
            None => Pool::uncounted(&settings.upstream, route.authorize_timeout, IDLE)?,
        };
        Ok(Authorizer {
            route: route.name.to_string(),
            settings: settings.clone(),
            timeout: route.authorize_timeout,
            pool,
            metrics: metrics.authorizer(&route.name),
            failures: Arc::new(Seldom::each_minute()),
        })
    }

    /// The same on another core, with connections of its own.
    pub(super) fn for_another_core(&self, running: Option<&Authorizer>) -> Authorizer {
        let lent = running.and_then(|running| running.lends_to(&self.settings, self.timeout));
        Authorizer {
            route: self.route.clone(),
            settings: self.settings.clone(),
            timeout: self.timeout,
            pool: lent.unwrap_or_else(|| self.pool.for_another_core()),
            metrics: self.metrics.clone(),
            failures: self.failures.clone(),
        }
    }

    fn lends_to(&self, settings: &config::Authorize, timeout: Duration) -> Option<Pool> {
        let same = self.settings == *settings && self.timeout == timeout && settings.upstream.ca_file.is_none();
        same.then(|| self.pool.clone())
    }

    /// Where it is.
    pub(super) fn settings(&self) -> &config::Authorize {
        &self.settings
    }

    /// Asks, and waits no longer than the route says.
    pub(super) async fn ask(&self, inquiry: &Inquiry, notes: &Notes) -> Ruling {
        let began = Instant::now();
        let mut asking = Asking::begin(notes);
        let ruled = self.ruled(inquiry, &mut asking, began + self.timeout).await;
        let (answer, ruling, failed) = match ruled {
            Ok(None) => (Authorized::Allowed, Ruling::Allowed, None),
            Ok(Some(refusal)) => (Authorized::Refused, Ruling::Refused(refusal), None),
            Err(error) => (Authorized::Unavailable, Ruling::Unavailable, Some(error)),
        };
        self.metrics.asked(answer, began.elapsed());
        asking.ended(failed.is_some().then_some("authorizer-unavailable"));
        if let Some(error) = failed
            && let Some(left_out) = self.failures.count(())
        {
            let (route, record, error) = (&self.route, &inquiry.record, Chain(&*error));
            tracing::warn!(route, %record, %error, left_out, "the authorizer did not say; told once a minute, counted always");
        }
        ruling
    }

    /// What it says: nothing against it, or a refusal.
    async fn ruled(
        &self,
        inquiry: &Inquiry,
        asking: &mut Asking,
        until: Instant,
    ) -> Result<Option<Box<Response<Body>>>, BoxError> {
        let late = |_| BoxError::from("it did not answer in time");
        let (head, body) = timeout_at(until, self.exchange(inquiry, asking)).await.map_err(late)??.into_parts();
        asking.answered(head.status.as_u16());
        let refuses = matches!(head.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if !head.status.is_success() && !refuses {
            return Err(format!("it answered {}", head.status.as_u16()).into());
        }
        // Read to its end also where it says nothing, so that the connection can be used again.
        let body = timeout_at(until, read(body)).await.unwrap_or(None);
        Ok(refuses.then(|| Box::new(refusal(head, body))))
    }

    /// One question, sent again where the connection had been used before: the service may have closed it just then.
    async fn exchange(&self, inquiry: &Inquiry, asking: &Asking) -> Result<Response<ResponseBody>, BoxError> {
        let connection = self.pool.checkout().await?;
        let was_used = connection.is_reused();
        match connection.send(self.question(inquiry, asking)).await {
            Ok(response) => Ok(response),
            Err(_) if was_used => {
                let connection = self.pool.connect().await?;
                connection.send(self.question(inquiry, asking)).await.map_err(|error| in_words(&error))
            }
            Err(error) => Err(in_words(&error)),
        }
    }

    fn question(&self, inquiry: &Inquiry, asking: &Asking) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::empty());
        *request.uri_mut() = Uri::from(self.settings.target.clone());
        request.headers_mut().clone_from(&inquiry.fields);
        asking.mark(request.headers_mut());
        request
    }
}

/// What went wrong. The error itself may hold the question, which cannot go where it goes.
fn in_words(error: &SendError) -> BoxError {
    Chain(error).to_string().into()
}

/// A body, whole; `None` if it is too large, or does not end as it should.
async fn read(mut body: ResponseBody) -> Option<Bytes> {
    let mut pieces = Pieces::default();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            if pieces.len() + data.len() > LARGEST_BODY {
                return None;
            }
            pieces.push(data);
        }
    }
    Some(pieces.into_bytes())
}

/// The fields that say what a body is.
const OF_THE_BODY: [HeaderName; 4] = [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_RANGE];

/// The refusal as the caller gets it: in the service's own words, as far as they are not its connection's. Without a body,
/// if that could not be had.
fn refusal(head: response::Parts, body: Option<Bytes>) -> Response<Body> {
    let mut fields: HeaderMap = headers::from_upstream(head.headers, head.version, false);
    if body.is_none() {
        OF_THE_BODY.iter().for_each(|name| drop(fields.remove(name)));
    }
    headers::mark_refused(&mut fields);
    let mut response = Response::new(Body::full(body.unwrap_or_default()));
    *response.status_mut() = head.status;
    *response.headers_mut() = fields;
    response
}
