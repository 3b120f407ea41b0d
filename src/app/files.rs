//! The files that the settings name (certificates, keys, authorities), read as a start would read them.
//!
//! Separate from the start because a check goes on after the first fault, and binds, opens and connects to nothing.

use crate::config::Config;
use crate::server::{self, CertificateError};
use crate::store::{self, OpenError};
use crate::upstream::{self, TlsSetupError};

/// Files that a start would refuse, and why.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// Those of `[tls]`.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Those of `[store]` or `[second_line]`.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Those of a route's upstream.
    #[error("route.{route}")]
    Upstream {
        /// The route's name.
        route: String,
        /// What is wrong.
        source: Box<TlsSetupError>,
    },
}

/// Reads all files that these settings name, and says what is wrong with them.
pub fn check_files(config: &Config) -> Vec<FileFault> {
    let listeners = config.tls.iter().flat_map(server::faults).map(FileFault::from);
    let stores = store::check_files(&config.store).into_iter().map(FileFault::from);
    let upstreams = config.routes.iter().filter_map(|route| {
        let source = Box::new(upstream::check_files(&route.upstream).err()?);
        Some(FileFault::Upstream { route: route.name.to_string(), source })
    });
    listeners.chain(stores).chain(upstreams).collect()
}
