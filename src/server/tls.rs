//! TLS towards clients: the proxy's certificate, whether clients need one, and both read anew when their files change.
//!
//! The files are polled by content, not watched: volumes of containers are swapped by links, and what is asked for is
//! always what stands there now. A set of files that does not fit together never replaces one that does.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::chain::Chain;
use crate::config;
use crate::metrics::ListenerMetrics;

/// How often the files are looked at.
const EVERY: Duration = Duration::from_secs(2);

/// TLS towards clients cannot be set up with the files that are there.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read tls.{setting} `{}`", path.display())]
    Unreadable {
        /// Its setting.
        setting: &'static str,
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what its setting asks for.
    #[error("tls.{setting} `{}` is not PEM with {wanted} in it", path.display())]
    NotPem {
        /// Its setting.
        setting: &'static str,
        /// Where it is.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// Certificate and key cannot be used, or not with each other.
    #[error("tls.cert_file `{}` cannot be used with tls.key_file `{}`", certificate.display(), key.display())]
    Unusable {
        /// `tls.cert_file`.
        certificate: PathBuf,
        /// `tls.key_file`.
        key: PathBuf,
        /// What is wrong with them.
        source: rustls::Error,
    },
    /// A certificate of `client_ca_file` cannot be an authority's.
    #[error("a certificate in tls.client_ca_file `{}` cannot be used", path.display())]
    Authority {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// Clients' certificates cannot be verified with what `client_ca_file` has.
    #[error("cannot verify clients with tls.client_ca_file `{}`", path.display())]
    Verifier {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        source: VerifierBuilderError,
    },
}

/// The present certificate of the listeners that speak TLS. Clones share it.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: config::Tls,
    current: ArcSwap<ServerConfig>,
    /// Of the files that `current` was made from.
    digest: [u8; 32],
    metrics: ListenerMetrics,
}

// The parts have no `Debug`, and a key must not have one.
impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn load(files: &config::Tls, metrics: ListenerMetrics) -> Result<Tls, CertificateError> {
        let contents = Contents::read(files)?;
        let current = ArcSwap::from_pointee(contents.server_config(files)?);
        Ok(Tls(Arc::new(Inner { files: files.clone(), current, digest: contents.digest(), metrics })))
    }

    /// What the next connection is to be greeted with.
    pub(super) fn current(&self) -> Arc<ServerConfig> {
        self.0.current.load_full()
    }

    /// Looks at the files every few seconds and takes them when they changed, for ever. New connections get what is
    /// new; open ones go on. What cannot be used is logged and counted once, and the old certificate stays.
    pub async fn watch(self) {
        let mut served = self.0.digest;
        let mut trouble = Trouble::default();
        loop {
            tokio::time::sleep(EVERY).await;
            let files = self.0.files.clone();
            // A file may lie on a disk that has gone away; this thread has connections to accept.
            let Ok(looked) = tokio::task::spawn_blocking(move || look(&files, served)).await else { continue };
            match looked {
                Ok(None) => trouble = Trouble::default(),
                Ok(Some((digest, config))) => {
                    self.0.current.store(Arc::new(config));
                    (served, trouble) = (digest, Trouble::default());
                    self.0.metrics.certificate_reloads.inc();
                    tracing::info!(file = %self.0.files.cert_file.display(), "took a new certificate");
                }
                // Files are replaced one by one: what does not fit now may fit at the next look.
                Err(error) if trouble.persists(&error) => {
                    self.0.metrics.certificate_reload_failures.inc();
                    tracing::error!(error = %Chain(&error), "cannot take the new certificate, keeping the old one");
                }
                Err(_) => {}
            }
        }
    }
}

/// What is wrong with the files: each that cannot be read, or what cannot be used of them. For a check of the settings.
pub fn faults(files: &config::Tls) -> Vec<CertificateError> {
    let authorities = files.client_ca_file.as_deref().map(|path| ("client_ca_file", path));
    let named =
        [("cert_file", files.cert_file.as_path()), ("key_file", &files.key_file)].into_iter().chain(authorities);
    let unreadable: Vec<_> = named.filter_map(|(setting, path)| read(setting, path).err()).collect();
    if !unreadable.is_empty() {
        return unreadable;
    }
    Contents::read(files).and_then(|contents| contents.server_config(files)).err().into_iter().collect()
}

/// Reads the files; `None` when they are those of this digest.
fn look(files: &config::Tls, served: [u8; 32]) -> Result<Option<([u8; 32], ServerConfig)>, CertificateError> {
    let contents = Contents::read(files)?;
    let digest = contents.digest();
    if digest == served {
        return Ok(None);
    }
    Ok(Some((digest, contents.server_config(files)?)))
}

/// The trouble that was seen last, and whether it was told.
#[derive(Default)]
struct Trouble {
    what: Option<String>,
    told: bool,
}

impl Trouble {
    /// Whether this trouble is there for the second time in a row, and was not told yet.
    fn persists(&mut self, error: &CertificateError) -> bool {
        let what = Chain(error).to_string();
        if self.what.as_ref() != Some(&what) {
            *self = Trouble { what: Some(what), told: false };
            return false;
        }
        !std::mem::replace(&mut self.told, true)
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, CertificateError> {
    std::fs::read(path).map_err(|source| CertificateError::Unreadable { setting, path: path.to_owned(), source })
}

/// The files as they stood at one moment.
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authorities: Option<Vec<u8>>,
}

impl Contents {
    fn read(files: &config::Tls) -> Result<Contents, CertificateError> {
        Ok(Contents {
            certificate: read("cert_file", &files.cert_file)?,
            key: read("key_file", &files.key_file)?,
            authorities: files.client_ca_file.as_deref().map(|path| read("client_ca_file", path)).transpose()?,
        })
    }

    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for part in [Some(&self.certificate), Some(&self.key), self.authorities.as_ref()].into_iter().flatten() {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }

    fn server_config(&self, files: &config::Tls) -> Result<ServerConfig, CertificateError> {
        let unusable = |source| CertificateError::Unusable {
            certificate: files.cert_file.clone(),
            key: files.key_file.clone(),
            source,
        };
        let chain = certificates("cert_file", &files.cert_file, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|source| CertificateError::NotPem {
            setting: "key_file",
            path: files.key_file.clone(),
            wanted: "a private key",
            source,
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let builder = match files.client_ca_file.as_deref().zip(self.authorities.as_deref()) {
            None => builder.with_no_client_auth(),
            Some((path, authorities)) => {
                let roots = Arc::new(roots(path, authorities)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                let verifier =
                    verifier.map_err(|source| CertificateError::Verifier { path: path.to_owned(), source })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// At least one certificate.
fn certificates(
    setting: &'static str,
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let wrong = |source| CertificateError::NotPem { setting, path: path.to_owned(), wanted: "a certificate", source };
    let found: Vec<_> = CertificateDer::pem_slice_iter(bytes).collect::<Result<_, _>>().map_err(wrong)?;
    if found.is_empty() { Err(wrong(pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn roots(path: &Path, bytes: &[u8]) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("client_ca_file", path, bytes)? {
        roots.add(certificate).map_err(|source| CertificateError::Authority { path: path.to_owned(), source })?;
    }
    Ok(roots)
}
