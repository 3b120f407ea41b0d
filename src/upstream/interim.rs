//! What an upstream says before its answer (RFC 9110 section 15.2), told to whoever asked for it with the request.

use std::sync::Arc;

use http::{HeaderMap, Request, StatusCode, Version};

type Tell = dyn Fn(StatusCode, Version, &HeaderMap) + Send + Sync;

#[derive(Clone)]
pub(super) struct OnInterim(Arc<Tell>);

impl OnInterim {
    /// Takes it from a request.
    pub(super) fn of<B>(request: &mut Request<B>) -> Option<OnInterim> {
        request.extensions_mut().remove()
    }

    /// Tells it of an interim answer; but not of those that belong to this hop: `100 Continue`, for which the
    /// proxy has not asked, and `101`, which is the last word in HTTP.
    pub(super) fn tell(&self, status: StatusCode, version: Version, fields: &HeaderMap) {
        if status.as_u16() > 101 {
            (self.0)(status, version, fields);
        }
    }
}

/// Has somebody told of what the upstream says before its answer to this request.
pub fn on_interim<B>(request: &mut Request<B>, tell: impl Fn(StatusCode, Version, &HeaderMap) + Send + Sync + 'static) {
    request.extensions_mut().insert(OnInterim(Arc::new(tell)));
}
