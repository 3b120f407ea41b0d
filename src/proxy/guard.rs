//! The guard: who may have an answer, and whose deliveries are genuine. It stands beside the steps, and routes without one
//! pay nothing for it.
//!
//! `verify` looks at a webhook's signature when its body is there, before anything is claimed, joined or replayed: nobody
//! else than the sender takes part in a delivery, and nobody else reads its answer. `authorize` asks a service of the
//! settings before a replay or a join is given: a record outlives its caller's rights.

use std::sync::Arc;

use http::{Method, request};

mod authorize;
mod inquiry;
mod secrets;
mod twilio;
mod verify;

use self::authorize::{Authorizer, Ruling};
use self::inquiry::Inquiry;
pub use self::secrets::SecretFault;
use self::verify::{Delivery, Verifier};
use super::error::Problem;
use super::headers::Peer;
use super::notes::Notes;
use super::respond::Answer;
use crate::config;
use crate::metrics::{Metrics, RequestResult};
use crate::record::RecordId;
use crate::upstream::{self, TlsSetupError};

/// What a guard needs cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum GuardFault {
    /// A secret by which deliveries are verified.
    #[error("cannot verify signatures")]
    Secret(#[from] SecretFault),
    /// TLS towards the service that is asked.
    #[error("cannot prepare TLS to the service in `authorize`")]
    Authorizer(#[from] Box<TlsSetupError>),
}

/// Reads the files that the guard of a route needs. For a check of the settings.
pub fn check_guard(route: &config::Route) -> Vec<GuardFault> {
    let secret = route.verify.as_ref().and_then(|verify| secrets::read(verify).err());
    let authorizer = route.authorize.as_ref().and_then(|service| upstream::check_files(&service.upstream).err());
    let authorizer = authorizer.map(Box::new);
    secret.map(GuardFault::from).into_iter().chain(authorizer.map(GuardFault::from)).collect()
}

/// What a route asks of its requests before it answers them, on one core.
#[derive(Debug, Default)]
pub struct Guard {
    verifier: Option<Arc<Verifier>>,
    authorizer: Option<Authorizer>,
}

impl Guard {
    /// The guard of a route, which goes on with what it can of the one that runs. It reads the secrets and certificates
    /// that the settings name.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn new(route: &config::Route, metrics: &Metrics, running: Option<&Guard>) -> Result<Arc<Guard>, GuardFault> {
        let verifier = route.verify.as_ref().map(|verify| Verifier::new(&route.name, verify, metrics)).transpose()?;
        let running = running.and_then(|running| running.authorizer.as_ref());
        let authorizer = route.authorize.as_ref().map(|service| Authorizer::new(route, service, metrics, running));
        Ok(Arc::new(Guard { verifier: verifier.map(Arc::new), authorizer: authorizer.transpose().map_err(Box::new)? }))
    }

    /// The same on another core, which goes on with what it can of the one that runs there.
    pub fn for_another_core(&self, running: Option<&Guard>) -> Arc<Guard> {
        let running = running.and_then(|running| running.authorizer.as_ref());
        let authorizer = self.authorizer.as_ref().map(|authorizer| authorizer.for_another_core(running));
        Arc::new(Guard { verifier: self.verifier.clone(), authorizer })
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

    /// What the authorizer would be asked about this request, where there is one.
    pub fn inquiry(
        &self,
        route: &config::Route,
        head: &request::Parts,
        peer: Peer,
        record: &RecordId,
    ) -> Option<Box<Inquiry>> {
        let authorizer = self.authorizer.as_ref()?;
        Some(Box::new(Inquiry::new(route, authorizer.settings(), head, peer, record)))
    }

    /// The answer if it is the request's own, or nobody has anything against it; else the refusal.
    pub async fn allowed(&self, inquiry: Option<Box<Inquiry>>, answer: Answer, notes: &Notes) -> Answer {
        let is_anothers = matches!(answer.result, RequestResult::Replayed | RequestResult::Joined);
        match (&self.authorizer, inquiry) {
            (Some(authorizer), Some(inquiry)) if is_anothers => {
                // Boxed: routes that ask nobody should not have room for this.
                match Box::pin(authorizer.ask(&inquiry, notes)).await {
                    Ruling::Allowed => answer,
                    Ruling::Refused(refusal) => Answer::refusal(*refusal),
                    Ruling::Unavailable => Answer::problem(Problem::authorizer_unavailable(&inquiry.record)),
                }
            }
            _ => answer,
        }
    }
}
