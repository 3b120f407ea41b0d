//! What TLS to a server is verified with, read from the files of the settings.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsConnector;

use crate::config::store::RedisTls;
use crate::store::OpenError;
use crate::trust::Trusted;

/// Reads the certificate files, which is what can be wrong for good.
pub(super) fn connector(tls: &RedisTls) -> Result<TlsConnector, OpenError> {
    let mut trusted = Trusted::default();
    match &tls.ca_file {
        Some(file) => {
            for certificate in certificates(file, "store.ca_file")? {
                trusted.add(certificate).map_err(|e| unreadable("store.ca_file", file, "certificates").because(e))?;
            }
        }
        None => {
            (trusted, _) = Trusted::system();
            if trusted.is_empty() {
                return Err(OpenError::new("this system has no certificate store; set store.ca_file to a PEM file"));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = trusted.verifier(&provider).map_err(|e| OpenError::new("TLS cannot be set up").because(e))?;
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| OpenError::new("TLS cannot be set up").because(e))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate, "store.client_cert_file")?;
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|e| unreadable("store.client_key_file", key, "a private key").because(e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| {
                OpenError::new("store.client_cert_file and store.client_key_file do not belong together").because(e)
            })?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(file: &std::path::Path, setting: &str) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|e| unreadable(setting, file, "certificates").because(e))?;
    match certificates.is_empty() {
        true => Err(unreadable(setting, file, "certificates")),
        false => Ok(certificates),
    }
}

fn unreadable(setting: &str, file: &std::path::Path, what: &str) -> OpenError {
    let file = file.display();
    OpenError::new(format!("{setting}: {file} must be a file that can be read and holds {what} in PEM form"))
}
