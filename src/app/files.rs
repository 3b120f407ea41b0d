//! The files that the settings name (certificates, keys, authorities, secrets), read as a start would read them.
//!
//! Separate from the start because a check goes on after the first fault, and binds, opens and connects to nothing.

use crate::config::Config;
use crate::proxy::{self, RouteFault};
use crate::server::{self, CertificateError};
use crate::store::{self, OpenError};
use crate::upstream;

/// Files that a start would refuse, and why.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// Those of `[tls]`.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Those of `[store]` or `[second_line]`.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Those of a route.
    #[error("route.{route}")]
    Route {
        /// The route's name.
        route: String,
        /// What is wrong.
        source: Box<RouteFault>,
    },
}

/// Reads all files that these settings name, and says what is wrong with them.
pub fn check_files(config: &Config) -> Vec<FileFault> {
    let listeners = config.tls.iter().flat_map(server::faults).map(FileFault::from);
    let stores = store::check_files(&config.store).into_iter().map(FileFault::from);
    let routes = config.routes.iter().flat_map(|route| {
        let upstream = upstream::check_files(&route.upstream).err().map(RouteFault::from);
        let guard = proxy::check_guard(route).into_iter().map(RouteFault::from);
        let name = route.name.to_string();
        let faults = upstream.into_iter().chain(guard);
        faults.map(move |source| FileFault::Route { route: name.clone(), source: Box::new(source) })
    });
    listeners.chain(stores).chain(routes).collect()
}
