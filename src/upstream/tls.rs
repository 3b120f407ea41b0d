//! The TLS settings of one upstream: whom to trust, the name that the certificate must carry, and our own certificate.
//!
//! Built once, at start, so that a missing file is found there and not by the first request. The provider is given
//! explicitly; no process-wide default is needed or set.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{VerifierBuilderError, WantsClientCert};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ConfigBuilder};
use tokio_rustls::TlsConnector;

use crate::config;
use crate::trust::Trusted;

/// The names of the protocols over TLS (ALPN).
pub(super) const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// TLS towards an upstream cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    /// The upstream's host, or `server_name`, is neither a DNS name nor an IP address.
    #[error("`{host}` cannot be the name in a certificate")]
    Name {
        /// As it stands in the settings.
        host: String,
        /// What is wrong with it.
        source: InvalidDnsNameError,
    },
    /// `ca_file` cannot be read, or is not PEM.
    #[error("cannot read the certificates in ca_file `{}`", path.display())]
    CaFile {
        /// As it stands in the settings.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// `ca_file` holds no certificate.
    #[error("ca_file `{}` holds no certificate", path.display())]
    CaFileEmpty {
        /// As it stands in the settings.
        path: PathBuf,
    },
    /// A certificate in `ca_file` cannot be used as a root.
    #[error("a certificate in ca_file `{}` is unusable", path.display())]
    CaCertificate {
        /// As it stands in the settings.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// `client_cert_file` or `client_key_file` cannot be read, or holds nothing of its kind in PEM.
    #[error("cannot read {what} in {setting} `{}`", path.display())]
    ClientFile {
        /// Its setting.
        setting: &'static str,
        /// What was looked for.
        what: &'static str,
        /// As it stands in the settings.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The certificate in `client_cert_file` cannot be used: there is none, or the key is another one's.
    #[error("the certificate in client_cert_file `{}` cannot be used with the key in client_key_file", path.display())]
    ClientCertificate {
        /// As it stands in the settings.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// The system has no certificates to trust, as in an image without a CA bundle.
    #[error("the system has no root certificates; install a CA bundle or set the upstream's ca_file")]
    NoSystemRoots {
        /// The first thing that went wrong in looking for them, if any did.
        source: Option<rustls_native_certs::Error>,
    },
    /// Nothing can be verified with the certificates that are there.
    #[error("cannot verify servers with the certificates that are trusted")]
    Verifier {
        /// What is wrong.
        source: VerifierBuilderError,
    },
    /// The provider does not support what is asked of it.
    #[error("cannot set up TLS")]
    Provider {
        /// What is missing.
        source: rustls::Error,
    },
}

/// How to speak TLS to one upstream.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) connector: TlsConnector,
    pub(super) name: ServerName<'static>,
}

// The connector has no `Debug`, and all of it would be noise.
impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.name).finish()
    }
}

impl Tls {
    pub(super) fn new(upstream: &config::Upstream) -> Result<Tls, TlsSetupError> {
        let name = name_of(upstream)?;
        let trusted = match &upstream.ca_file {
            Some(path) => listed_in(path)?,
            None => of_the_system()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = trusted.verifier(&provider).map_err(|source| TlsSetupError::Verifier { source })?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|source| TlsSetupError::Provider { source })?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &upstream.client {
            Some((certificate, key)) => with_certificate(config, certificate, key)?,
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![if upstream.http2 { H2 } else { HTTP_1_1 }.to_vec()];
        Ok(Tls { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// The same towards another host.
    pub(super) fn towards(&self, upstream: &config::Upstream) -> Result<Tls, TlsSetupError> {
        Ok(Tls { connector: self.connector.clone(), name: name_of(upstream)? })
    }
}

/// Reads the files that the settings of one upstream name, as a pool of it would. For a check of the settings.
///
/// # Errors
/// What is wrong with them.
pub fn check_files(upstream: &config::Upstream) -> Result<(), TlsSetupError> {
    if upstream.tls { Tls::new(upstream).map(drop) } else { Ok(()) }
}

/// The name that the certificate must carry.
fn name_of(upstream: &config::Upstream) -> Result<ServerName<'static>, TlsSetupError> {
    let host = match &upstream.server_name {
        Some(name) => name.clone(),
        // Nothing is ever connected to under this name: each request has one of its own.
        None if upstream.is_requested() => "host.invalid".to_owned(),
        None => upstream.host.clone(),
    };
    ServerName::try_from(host.clone()).map_err(|source| TlsSetupError::Name { host, source })
}

/// Shows the upstream this certificate.
fn with_certificate(
    config: ConfigBuilder<ClientConfig, WantsClientCert>,
    certificate: &Path,
    key: &Path,
) -> Result<ClientConfig, TlsSetupError> {
    let unreadable = |setting, what, path: &Path| {
        let path = path.to_owned();
        move |source| TlsSetupError::ClientFile { setting, what, path, source }
    };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(unreadable("client_cert_file", "the certificate", certificate))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(unreadable("client_key_file", "the private key", key))?;
    config
        .with_client_auth_cert(chain, secret)
        .map_err(|source| TlsSetupError::ClientCertificate { path: certificate.to_owned(), source })
}

fn listed_in(path: &Path) -> Result<Trusted, TlsSetupError> {
    let unreadable = |source| TlsSetupError::CaFile { path: path.to_owned(), source };
    let mut trusted = Trusted::default();
    for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
        trusted
            .add(certificate.map_err(unreadable)?)
            .map_err(|source| TlsSetupError::CaCertificate { path: path.to_owned(), source })?;
    }
    if trusted.is_empty() { Err(TlsSetupError::CaFileEmpty { path: path.to_owned() }) } else { Ok(trusted) }
}

fn of_the_system() -> Result<Trusted, TlsSetupError> {
    let (trusted, source) = Trusted::system();
    if trusted.is_empty() { Err(TlsSetupError::NoSystemRoots { source }) } else { Ok(trusted) }
}
