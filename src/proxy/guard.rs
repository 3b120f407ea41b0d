//! The guard: who may have an answer, and whose deliveries are genuine. It stands beside the steps, and routes without one
//! pay nothing for it.
//!
//! `verify` looks at a webhook's signature when its body is there, before anything is claimed, joined or replayed: nobody
//! else than the sender takes part in a delivery, and nobody else reads its answer.

use std::sync::Arc;

use http::{Method, request};

mod secrets;
mod seldom;
mod twilio;
mod verify;

pub use self::secrets::SecretFault;
use self::verify::{Delivery, Verifier};
use super::error::Problem;
use super::headers::Peer;
use crate::config;
use crate::metrics::Metrics;

/// Reads the secrets that a route names. For a check of the settings.
///
/// # Errors
/// What is wrong with them.
pub fn check_secrets(route: &config::Route) -> Result<(), SecretFault> {
    route.verify.as_ref().map_or(Ok(()), |verify| secrets::read(verify).map(drop))
}

/// What a route asks of its requests before it answers them. The cores share it.
#[derive(Debug, Default)]
pub struct Guard {
    verifier: Option<Verifier>,
}

impl Guard {
    /// The guard of a route. It reads the secrets that the settings name.
    ///
    /// # Errors
    /// A secret cannot be read.
    pub fn new(route: &config::Route, metrics: &Metrics) -> Result<Arc<Guard>, SecretFault> {
        let verifier = route.verify.as_ref().map(|verify| Verifier::new(&route.name, verify, metrics)).transpose()?;
        Ok(Arc::new(Guard { verifier }))
    }

    /// Whether requests show who has sent them, by a signature over their body.
    pub fn verifies(&self) -> bool {
        self.verifier.is_some()
    }

    /// Whether a request of this method does. Others are not protected, and nobody signs them.
    pub fn verifies_method(&self, route: &config::Route, method: &Method) -> bool {
        self.verifies() && route.methods.contains(method)
    }

    /// Looks at the signature of a request, where the route demands one.
    ///
    /// # Errors
    /// It is not there, or not the sender's. Nothing is told of any record.
    pub fn verify(&self, head: &request::Parts, peer: Peer, body: &[u8]) -> Result<(), Problem> {
        match &self.verifier {
            Some(verifier) => verifier.check(&Delivery { head, body, is_secured: peer.tls }),
            None => Ok(()),
        }
    }
}
