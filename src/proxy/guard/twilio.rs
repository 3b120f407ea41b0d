//! Twilio's signature: HMAC-SHA1 over the URL that it called and the form that it sent.
//!
//! What is not a form has its SHA-256 in the URL, as `bodySHA256`. Whether the URL names the port of its scheme differs
//! with what sends, so both are tried, as Twilio's own libraries do.

use http::header::{CONTENT_TYPE, HOST};
use http::uri::Authority;
use ring::hmac;
use sha2::{Digest as _, Sha256};

use super::secrets::hex;
use super::verify::Delivery;
use crate::fields::essence;
use crate::metrics::Forgery;
use crate::proxy::key::pairs::{Encoded, pairs};

/// The field with the signature.
pub(super) const SIGNATURE: &str = "x-twilio-signature";

const DIGEST: &str = "bodySHA256";

/// The signatures that this delivery may have under a key.
///
/// # Errors
/// The body is not one that Twilio signs, or not the one whose digest the URL has.
pub(super) fn tags(url: Option<&str>, delivery: &Delivery<'_>) -> Result<Texts, Forgery> {
    let target = delivery.head.uri.path_and_query().map_or("/", |target| target.as_str());
    let parameters = parameters(delivery)?;
    let (scheme, authority, prefix) = match url {
        Some(url) => {
            let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
            let (authority, prefix) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
            (scheme, authority.to_owned(), prefix)
        }
        None => {
            (if delivery.is_secured { "https" } else { "http" }, authority(delivery).ok_or(Forgery::Malformed)?, "")
        }
    };
    let usual = if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, port.to_owned()),
        _ => (authority.as_str(), usual.to_string()),
    };
    let text = |authority: &str| {
        let mut text = format!("{scheme}://{authority}{prefix}{target}").into_bytes();
        text.extend_from_slice(&parameters);
        text
    };
    Ok(Texts([text(host), text(&format!("{host}:{port}"))]))
}

/// The texts of which one is signed: the URL without its port, and with it.
pub(super) struct Texts([Vec<u8>; 2]);

impl Texts {
    /// Their signatures under this key.
    pub(super) fn under(&self, key: &hmac::Key) -> [hmac::Tag; 2] {
        [hmac::sign(key, &self.0[0]), hmac::sign(key, &self.0[1])]
    }
}

/// The host that the request says it was sent to.
fn authority(delivery: &Delivery<'_>) -> Option<String> {
    if let Some(authority) = delivery.head.uri.authority() {
        return Some(authority.as_str().to_owned());
    }
    let host = delivery.head.headers.get(HOST)?.to_str().ok()?;
    host.parse::<Authority>().ok().map(|_| host.to_owned())
}

/// What is signed behind the URL: the names and values of a form, sorted, each once.
fn parameters(delivery: &Delivery<'_>) -> Result<Vec<u8>, Forgery> {
    let query = delivery.head.uri.query().unwrap_or_default();
    if let Some(pair) = pairs(query.as_bytes()).find(|pair| pair.name.means(DIGEST)) {
        let said: Vec<u8> = pair.value.into_iter().flat_map(Encoded::decoded).collect();
        let is_body = hex(&said).is_some_and(|said| said == Sha256::digest(delivery.body)[..]);
        return if is_body { Ok(Vec::new()) } else { Err(Forgery::Wrong) };
    }
    if delivery.body.is_empty() {
        return Ok(Vec::new());
    }
    let mut types = delivery.head.headers.get_all(CONTENT_TYPE).iter();
    let is_form = match (types.next(), types.next()) {
        (Some(one), None) => essence(one.as_bytes()).eq_ignore_ascii_case(b"application/x-www-form-urlencoded"),
        _ => false,
    };
    if !is_form {
        // Nothing would hold this body to the signature.
        return Err(Forgery::Wrong);
    }
    let text = |encoded: Encoded<'_>| encoded.decoded().collect::<Vec<u8>>();
    let mut parameters: Vec<_> =
        pairs(delivery.body).map(|pair| (text(pair.name), pair.value.map(text).unwrap_or_default())).collect();
    parameters.sort_unstable();
    parameters.dedup();
    Ok(parameters.into_iter().flat_map(|(name, value)| [name, value]).flatten().collect())
}
