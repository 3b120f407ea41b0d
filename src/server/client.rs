//! Who a client is, by its certificate: the name that stays when the certificate is renewed.
//!
//! The certificate was verified in the handshake. What counts of it is what an authority of `tls.client_ca_file` calls
//! its holder, not its key or its serial number: those change with every renewal.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The name in a client's certificate, as bytes that no other name has. Found among the extensions of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientName(Arc<[u8]>);

impl ClientName {
    /// The bytes, to be compared with others.
    pub fn into_bytes(self) -> Arc<[u8]> {
        self.0
    }

    /// The URIs of the certificate (a SPIFFE ID); without one its subject, its DNS names, or at last its public key.
    /// `None` if it cannot be read, which a verified one can.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<ClientName> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        let uris: Vec<&[u8]> = certificate.valid_uri_names().map(str::as_bytes).collect();
        let names: Vec<&[u8]> = certificate.valid_dns_names().map(str::as_bytes).collect();
        let key = certificate.subject_public_key_info();
        Some(match certificate.subject() {
            _ if !uris.is_empty() => ClientName::new(b'u', &uris),
            [] if !names.is_empty() => ClientName::new(b'd', &names),
            [] => ClientName::new(b'k', &[key.as_ref()]),
            subject => ClientName::new(b's', &[subject]),
        })
    }

    /// A kind and its parts, whose order does not count.
    fn new(kind: u8, parts: &[&[u8]]) -> ClientName {
        let mut parts = parts.to_vec();
        parts.sort_unstable();
        let mut bytes = vec![kind];
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        ClientName(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    fn name(key: &KeyPair, subject: &str, uris: &[&str], names: &[&str]) -> ClientName {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        if !subject.is_empty() {
            params.distinguished_name.push(DnType::CommonName, subject);
        }
        let uris = uris.iter().map(|uri| SanType::URI(Ia5String::try_from(*uri).unwrap()));
        params.subject_alt_names.extend(uris);
        ClientName::of(params.self_signed(key).unwrap().der()).unwrap()
    }

    #[test]
    fn a_renewed_certificate_has_the_name_of_the_one_before() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let same = |subject, uris: &[&str], names: &[&str]| {
            name(&one, subject, uris, names) == name(&other, subject, uris, names)
        };
        assert!(same("worker", &[], &["a.example"]));
        assert!(same("", &["spiffe://example/worker"], &[]));
        assert!(same("", &[], &["b.example", "a.example"]));
        assert!(!same("", &[], &[]), "only its key tells it from others");
    }

    #[test]
    fn two_names_are_two_clients() {
        let key = KeyPair::generate().unwrap();
        let names = [
            name(&key, "worker", &[], &[]),
            name(&key, "worker-2", &[], &[]),
            name(&key, "", &["spiffe://example/worker"], &[]),
            name(&key, "", &["spiffe://example/worker-2"], &[]),
            name(&key, "", &["spiffe://example/worker", "spiffe://example/worker-2"], &[]),
            name(&key, "", &[], &["worker"]),
            name(&key, "", &[], &["worker", "worker-2"]),
            name(&key, "", &[], &[]),
        ];
        for (index, one) in names.iter().enumerate() {
            assert!(!names[..index].contains(one), "{index}");
        }
        // The URI is what counts where there is one: subjects of workloads are often all the same, or change.
        assert_eq!(name(&key, "x", &["spiffe://example/worker"], &[]), names[2]);
    }
}
