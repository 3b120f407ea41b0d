//! Which servers are trusted: by the certificates of a file or of the system, with one verifier for upstreams and stores.
//!
//! A certificate in the file is an authority, as everywhere. It is also trusted **itself**, where a server shows it byte for
//! byte: that is what a self-signed certificate is for (`openssl req -x509`), and as OpenSSL and curl have it. The crate
//! `webpki` alone refuses one that may sign others (`CA:TRUE`) and one whose authority is not there. Names and dates are
//! looked at in any case.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use webpki::EndEntityCert;

/// The certificates to go by.
#[derive(Debug)]
pub struct Trusted {
    roots: RootCertStore,
    listed: Vec<CertificateDer<'static>>,
}

impl Default for Trusted {
    fn default() -> Trusted {
        Trusted { roots: RootCertStore::empty(), listed: Vec::new() }
    }
}

impl Trusted {
    /// Those of the system, and the first thing that went wrong in looking for them. Bundles often hold one old
    /// certificate that cannot be read; the others are still good.
    pub fn system() -> (Trusted, Option<rustls_native_certs::Error>) {
        let found = rustls_native_certs::load_native_certs();
        let mut trusted = Trusted::default();
        trusted.roots.add_parsable_certificates(found.certs);
        (trusted, found.errors.into_iter().next())
    }

    /// Adds one that the settings list.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn add(&mut self, certificate: CertificateDer<'static>) -> Result<(), Error> {
        self.roots.add(certificate.clone())?;
        self.listed.push(certificate);
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// What a client's side of TLS verifies servers with.
    ///
    /// # Errors
    /// There are none.
    pub fn verifier(self, provider: &Arc<CryptoProvider>) -> Result<Arc<Verifier>, VerifierBuilderError> {
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(self.roots), Arc::clone(provider)).build()?;
        Ok(Arc::new(Verifier { chain, listed: self.listed }))
    }
}

/// Verifies servers: by authorities, or because their own certificate is listed.
#[derive(Debug)]
pub struct Verifier {
    chain: Arc<WebPkiServerVerifier>,
    listed: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// The verdict on a listed certificate, which did not pass as one that an authority has signed.
    fn verify_listed(shown: &CertificateDer<'_>, name: &ServerName<'_>, found: Error) -> Result<(), Error> {
        let unnamed = match found {
            // All else was in order.
            Error::InvalidCertificate(ref wrong) if is_about_the_name(wrong) => found,
            Error::InvalidCertificate(wrong) if is_about_the_issuer(&wrong) => {
                match verify_server_name(&ParsedCertificate::try_from(shown)?, name) {
                    Ok(()) => return Ok(()),
                    Err(unnamed) => unnamed,
                }
            }
            found => return Err(found),
        };
        if is_named_by_its_subject(shown, name) { Ok(()) } else { Err(unnamed) }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(found) if self.listed.contains(end_entity) => {
                Verifier::verify_listed(end_entity, server_name, found).map(|()| ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// The name is looked at last.
fn is_about_the_name(wrong: &CertificateError) -> bool {
    matches!(wrong, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })
}

/// Whether only who signed it is in question. `webpki` looks at a certificate's own dates before it comes to that.
fn is_about_the_issuer(wrong: &CertificateError) -> bool {
    matches!(wrong, CertificateError::UnknownIssuer | CertificateError::BadSignature)
        || webpki_says(wrong) == Some(&webpki::Error::CaUsedAsEndEntity)
}

fn webpki_says(wrong: &CertificateError) -> Option<&webpki::Error> {
    match wrong {
        CertificateError::Other(other) => other.0.downcast_ref(),
        _ => None,
    }
}

/// Whether a certificate that carries no names at all has this one as its subject's common name. Such are made by a plain
/// `openssl req -x509 -subj /CN=HOST`.
fn is_named_by_its_subject(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return false };
    let carries_names = match certificate.verify_is_valid_for_subject_name(name) {
        Err(webpki::Error::CertNotValidForName(context)) => !context.presented.is_empty(),
        _ => true,
    };
    let is_named = |common: &str| match name {
        ServerName::DnsName(name) => name.as_ref().eq_ignore_ascii_case(common),
        ServerName::IpAddress(ip) => common.parse::<IpAddr>().is_ok_and(|common| common == IpAddr::from(*ip)),
        _ => false,
    };
    !carries_names && common_names(certificate.subject()).any(is_named)
}

/// The common names of a subject (RFC 5280 section 4.1.2.4), as far as they are text.
fn common_names(subject: &[u8]) -> impl Iterator<Item = &str> {
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    elements(subject).flat_map(elements).filter_map(|attribute| {
        let mut parts = elements(attribute);
        let (kind, value) = (parts.next()?, parts.next()?);
        if kind == COMMON_NAME { std::str::from_utf8(value).ok() } else { None }
    })
}

/// The contents of the DER elements that stand in a row here.
fn elements(mut der: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (_kind, rest) = der.split_first()?;
        let (first, rest) = rest.split_first()?;
        // Over 127 bytes the first says how many hold the length.
        let (length, rest) = match first.checked_sub(0x80) {
            None => (usize::from(*first), rest),
            Some(size @ 1..=3) => {
                let (size, rest) = rest.split_at_checked(size.into())?;
                (size.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte)), rest)
            }
            Some(_) => return None,
        };
        let (content, behind) = rest.split_at_checked(length)?;
        der = behind;
        Some(content)
    })
}

/// What would mend a handshake that failed by the server's certificate, where the error does not say so.
pub fn advice(error: &Error) -> Option<&'static str> {
    let Error::InvalidCertificate(wrong) = error else { return None };
    match (wrong, webpki_says(wrong)) {
        (CertificateError::UnknownIssuer, _) => Some(
            "nobody who is trusted has signed its certificate: name that authority, or the certificate itself, in ca_file",
        ),
        (_, Some(webpki::Error::CaUsedAsEndEntity)) => {
            Some("its certificate is an authority's own (CA:TRUE): put its certificate into ca_file")
        }
        // The name of an authority is in the file, and another key.
        (
            CertificateError::BadSignature
            | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. },
            _,
        ) => Some("ca_file has another certificate of this name; put the new one there"),
        (_, Some(webpki::Error::UnsupportedCertVersion)) => Some(
            "its certificate is of X.509 version 1: make it with extensions, as openssl req -x509 -addext \
             \"subjectAltName=DNS:HOST\" does",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
