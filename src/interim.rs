//! Interim answers (RFC 9110 section 15.2): what an upstream says before its answer, on the way to the client that waits.
//!
//! Neither hyper's server nor its client takes part in it: one end is the client's connection, the other the upstream's.

use std::fmt;
use std::sync::Weak;

use http::{HeaderMap, StatusCode};

/// Where interim answers to one request go. Clones are the same.
#[derive(Clone)]
pub struct Interim {
    client: Weak<dyn Client>,
    request: u64,
}

/// A connection to a client.
pub trait Client: Send + Sync {
    /// Passes an interim answer on, if the request with this number still waits for its answer.
    fn tell(&self, request: u64, status: StatusCode, fields: &HeaderMap);
}

impl Interim {
    /// For the request with this number on a client's connection, which is not kept open by it.
    pub fn new(client: Weak<dyn Client>, request: u64) -> Interim {
        Interim { client, request }
    }

    /// Passes an interim answer on. It is gone without a word if the answer has been begun, or nobody waits for it.
    pub fn tell(&self, status: StatusCode, fields: &HeaderMap) {
        if let Some(client) = self.client.upgrade() {
            client.tell(self.request, status, fields);
        }
    }
}

impl fmt::Debug for Interim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interim").field("request", &self.request).finish_non_exhaustive()
    }
}
