//! The secrets of senders: where they are read, and what is no secret.
//!
//! A key without a byte would let everyone sign, so such a file is refused. A line end behind the secret is not a part of
//! it: editors and `echo` leave one.

use std::io;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ring::hmac;
use secrecy::{ExposeSecret, SecretSlice};

use crate::config::Verify;
use crate::config::verify::{Algorithm, Scheme, SecretEncoding, SecretSource};

/// Base64 as senders write it: with its padding, or without.
pub(super) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What Standard Webhooks puts before its secrets.
const STANDARD_PREFIX: &[u8] = b"whsec_";

/// A secret cannot be used. Nothing of it is shown.
#[derive(Debug, thiserror::Error)]
pub enum SecretFault {
    /// The file cannot be read.
    #[error("cannot read the secret in {}", path.display())]
    Unreadable {
        /// As it stands in the settings.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no secret, or not written as this sender's secrets are.
    #[error("the secret in {place} {what}")]
    Unusable {
        /// The file or the variable.
        place: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Reads all secrets of a route, as keys.
///
/// # Errors
/// The first that cannot be used.
pub(super) fn read(verify: &Verify) -> Result<Vec<hmac::Key>, SecretFault> {
    let (algorithm, encoding) = match &verify.scheme {
        Scheme::Hmac(hmac) => (hash(hmac.algorithm), hmac.secret_encoding),
        Scheme::Twilio { .. } => (hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SecretEncoding::Text),
    };
    verify
        .secrets
        .iter()
        .map(|source| Ok(hmac::Key::new(algorithm, secret(source, encoding)?.expose_secret())))
        .collect()
}

fn hash(algorithm: Algorithm) -> hmac::Algorithm {
    match algorithm {
        Algorithm::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        Algorithm::Sha256 => hmac::HMAC_SHA256,
        Algorithm::Sha384 => hmac::HMAC_SHA384,
        Algorithm::Sha512 => hmac::HMAC_SHA512,
    }
}

fn secret(source: &SecretSource, encoding: SecretEncoding) -> Result<SecretSlice<u8>, SecretFault> {
    let (place, text): (_, SecretSlice<u8>) = match source {
        SecretSource::File(path) => {
            let unreadable = |source| SecretFault::Unreadable { path: path.clone(), source };
            (path.display().to_string(), std::fs::read(path).map_err(unreadable)?.into())
        }
        SecretSource::Variable { name, value } => (name.clone(), value.expose_secret().as_bytes().to_vec().into()),
    };
    let unusable = |what| SecretFault::Unusable { place: place.clone(), what };
    let text = text.expose_secret().trim_ascii();
    if text.contains(&b'\n') {
        return Err(unusable("has several lines; each secret has a file of its own"));
    }
    let decoded = match encoding {
        SecretEncoding::Text => text.to_vec(),
        SecretEncoding::Hex => hex(text).ok_or_else(|| unusable("is not written in hexadecimal digits"))?,
        SecretEncoding::Base64 => {
            let text = text.strip_prefix(STANDARD_PREFIX).unwrap_or(text);
            BASE64.decode(text).map_err(|_| unusable("is not written in base64, with or without whsec_ before it"))?
        }
    };
    if decoded.is_empty() { Err(unusable("is empty")) } else { Ok(decoded.into()) }
}

/// The bytes of hexadecimal digits in either case.
pub(super) fn hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], encoding: SecretEncoding) -> Result<Vec<u8>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, bytes).unwrap();
        let read = secret(&SecretSource::File(path), encoding);
        read.map(|secret| secret.expose_secret().to_vec()).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_secret_is_what_stands_in_its_file_without_the_line_end() {
        for text in ["s3cr3t", "s3cr3t\n", " s3cr3t\r\n"] {
            assert_eq!(read(text.as_bytes(), SecretEncoding::Text).unwrap(), b"s3cr3t");
        }
        // Stripe's secrets begin alike, and are text.
        assert_eq!(read(b"whsec_YQ==", SecretEncoding::Text).unwrap(), b"whsec_YQ==");
        for text in ["whsec_YWI=", "YWI=", "YWI", "whsec_YWI\n"] {
            assert_eq!(read(text.as_bytes(), SecretEncoding::Base64).unwrap(), b"ab", "{text}");
        }
        assert_eq!(read(b"6162\n", SecretEncoding::Hex).unwrap(), b"ab");
    }

    #[test]
    fn what_would_let_everyone_sign_is_no_secret() {
        for (text, encoding) in [
            ("", SecretEncoding::Text),
            (" \n", SecretEncoding::Text),
            ("whsec_", SecretEncoding::Base64),
            ("", SecretEncoding::Hex),
            ("one\ntwo", SecretEncoding::Text),
            ("s3cr3t?", SecretEncoding::Base64),
            ("s3cr3t", SecretEncoding::Hex),
            ("616", SecretEncoding::Hex),
        ] {
            let fault = read(text.as_bytes(), encoding).unwrap_err();
            assert!(!fault.contains("s3cr3t"), "{fault}");
        }
    }
}
