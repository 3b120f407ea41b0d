//! A certificate authority of the test's own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// Writes `cert.pem` and `key.pem` of a self-signed certificate, as people make them: by a real `openssl req -x509`.
pub(crate) fn write_own_certificate(words: &str, folder: &Path) {
    let made = std::process::Command::new("openssl")
        .args(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem"
                .split(' '),
        )
        .args(words.split(' '))
        .current_dir(folder)
        .output()
        .expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A server's side of TLS with the two files of a folder.
pub(crate) fn acceptor(folder: &Path) -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_file(folder.join("cert.pem")).unwrap();
    accepting(certificate, PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap())
}

fn accepting(certificate: CertificateDer<'static>, key: PrivateKeyDer<'static>) -> TlsAcceptor {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// An authority and the file that its certificate stands in.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Authority {
    /// Makes one that nobody trusts yet.
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // OpenSSL takes a certificate for self-signed that bears its issuer's name.
        params.distinguished_name.push(DnType::CommonName, "an authority of the tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, certificate.pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), file, _folder: folder }
    }

    /// Its certificate, in PEM.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Writes `cert.pem` and `key.pem` under this name or address.
    pub(crate) fn write(&self, name: &str, folder: &Path) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        std::fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    }

    /// Writes `cert.pem` and `key.pem` of a client: a new key under this subject, and this URI if there is one.
    pub(crate) fn write_client(&self, subject: &str, uri: Option<&str>, folder: &Path) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        params.subject_alt_names.extend(uri.map(|uri| SanType::URI(uri.try_into().unwrap())));
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    }

    /// A server's side of TLS under this name or address.
    pub(crate) fn certificate_for(&self, name: &str) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        accepting(certificate.der().clone(), key)
    }
}
