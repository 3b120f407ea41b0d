//! TLS to the server by the crate's own rustls, and what `sslmode` asks it to prove.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::tls::{ChannelBinding, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::store::{Postgres, SslMode};
use crate::store::OpenError;
use crate::trust::{Trusted, Verifier};

/// How TLS is spoken; read from the settings once.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// Reads the files that the settings name. `None` without TLS. `section` is what is named in errors.
    pub(super) fn new(config: &Postgres, section: &str) -> Result<Option<Tls>, OpenError> {
        if config.sslmode == SslMode::Disable {
            return Ok(None);
        }
        let name = ServerName::try_from(config.host.clone()).map_err(|e| {
            OpenError::new(format!("{section}.url: {} is not a name that a certificate can carry", config.host))
                .because(e)
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| OpenError::new("TLS cannot be set up").because(e))?;
        let chain = match (config.sslmode, &config.ca_file) {
            (SslMode::Require, None) => None,
            _ => {
                let verifier = trusted(config, section)?.verifier(&provider);
                Some(verifier.map_err(|e| OpenError::new("TLS cannot be set up").because(e))?)
            }
        };
        let builder = builder.dangerous().with_custom_certificate_verifier(match (config.sslmode, chain) {
            (SslMode::VerifyFull, Some(chain)) => chain,
            (_, chain) => Arc::new(WithoutName { chain, provider }),
        });
        let client = match &config.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate, &format!("{section}.client_cert_file"))?;
                let setting = format!("{section}.client_key_file");
                let key = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(&setting, key).because(e))?;
                builder.with_client_auth_cert(chain, key).map_err(|e| {
                    OpenError::new(format!("{section}.client_cert_file and {setting} do not belong together"))
                        .because(e)
                })?
            }
        };
        Ok(Some(Tls { connector: TlsConnector::from(Arc::new(client)), name }))
    }
}

fn trusted(config: &Postgres, section: &str) -> Result<Trusted, OpenError> {
    let mut trusted = Trusted::default();
    match &config.ca_file {
        Some(file) => {
            let setting = format!("{section}.ca_file");
            for certificate in certificates(file, &setting)? {
                trusted.add(certificate).map_err(|e| unreadable(&setting, file).because(e))?;
            }
        }
        None => {
            (trusted, _) = Trusted::system();
            if trusted.is_empty() {
                let said = format!("this system has no certificate store; set {section}.ca_file to a PEM file");
                return Err(OpenError::new(said));
            }
        }
    }
    Ok(trusted)
}

fn certificates(file: &std::path::Path, setting: &str) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|e| unreadable(setting, file).because(e))?;
    if certificates.is_empty() { Err(unreadable(setting, file)) } else { Ok(certificates) }
}

fn unreadable(setting: &str, file: &std::path::Path) -> OpenError {
    OpenError::new(format!("{setting}: {} must be a file that can be read and is in PEM form", file.display()))
}

/// `sslmode=require`: a certificate from the CA file whatever name it carries; without a CA file any certificate.
#[derive(Debug)]
struct WithoutName {
    chain: Option<Arc<Verifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for WithoutName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is looked at last, so all else was in order.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A TLS connection as the driver wants it.
pub(super) struct Secured(TlsStream<TcpStream>);

impl TlsConnect<TcpStream> for Tls {
    type Stream = Secured;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Secured>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move { self.connector.connect(self.name, stream).await.map(Secured) })
    }
}

impl tokio_postgres::tls::TlsStream for Secured {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Secured {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
