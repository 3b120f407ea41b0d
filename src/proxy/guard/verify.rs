//! The signature of a webhook, looked at over the bytes that came.
//!
//! Comparing takes the same time for every wrong signature: what is compared is an HMAC of each side.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use http::header::HeaderName;
use http::request;
use ring::hmac;

use super::secrets::{self, BASE64, SecretFault, hex};
use super::twilio;
use crate::config;
use crate::config::verify::{Encoding, Hmac, Scheme, SignedPart, TimeOf};
use crate::metrics::{Forgery, Metrics, SignatureMetrics};
use crate::proxy::error::Problem;
use crate::seldom::Seldom;

/// A request whose sender is in question.
pub(super) struct Delivery<'a> {
    pub(super) head: &'a request::Parts,
    pub(super) body: &'a [u8],
    /// Whether it came by TLS.
    pub(super) is_secured: bool,
}

/// Knows a sender's signature when it sees one.
#[derive(Debug)]
pub(super) struct Verifier {
    route: String,
    scheme: Scheme,
    keys: Vec<hmac::Key>,
    tolerance: Duration,
    rejected: SignatureMetrics,
    refusals: Seldom<()>,
}

impl Verifier {
    /// Reads the secrets.
    pub(super) fn new(route: &str, verify: &config::Verify, metrics: &Metrics) -> Result<Verifier, SecretFault> {
        Ok(Verifier {
            route: route.to_owned(),
            scheme: verify.scheme.clone(),
            keys: secrets::read(verify)?,
            tolerance: verify.tolerance,
            rejected: metrics.signatures(route),
            refusals: Seldom::each_minute(),
        })
    }

    /// Lets genuine deliveries through. Others are counted, and told in the log once in a while.
    pub(super) fn check(&self, delivery: &Delivery<'_>) -> Result<(), Problem> {
        let Err(why) = self.judge(delivery, SystemTime::now()) else { return Ok(()) };
        self.rejected.count(why);
        if let Some(left_out) = self.refusals.count(()) {
            let (route, why) = (&self.route, why.as_str());
            tracing::warn!(
                route,
                why,
                left_out,
                "a delivery was refused for its signature; told once a minute, counted always"
            );
        }
        Err(Problem::forged(why))
    }

    fn judge(&self, delivery: &Delivery<'_>, now: SystemTime) -> Result<(), Forgery> {
        let (given, is_right): (Vec<Vec<u8>>, _) = match &self.scheme {
            Scheme::Hmac(hmac) => {
                let signed = Signed::read(hmac, delivery)?;
                if let Some(time) = signed.time {
                    self.check_time(time, now)?;
                }
                let given = signed.given.iter().filter_map(|entry| decode(hmac.encoding, entry)).collect();
                (given, self.keys.iter().map(|key| vec![signed.tag(hmac, key, delivery.body)]).collect::<Vec<_>>())
            }
            Scheme::Twilio { url } => {
                let given = BASE64.decode(only(delivery, &HeaderName::from_static(twilio::SIGNATURE))?);
                let texts = twilio::tags(url.as_deref(), delivery)?;
                (given.into_iter().collect(), self.keys.iter().map(|key| texts.under(key).into()).collect())
            }
        };
        if given.is_empty() {
            return Err(Forgery::Malformed);
        }
        let mut pairs = self.keys.iter().zip(&is_right);
        let holds = pairs.any(|(key, tags)| tags.iter().any(|tag| given.iter().any(|given| is_equal(key, tag, given))));
        if holds { Ok(()) } else { Err(Forgery::Wrong) }
    }

    /// The time in seconds since 1970, not further from now than is tolerated.
    fn check_time(&self, text: &[u8], now: SystemTime) -> Result<(), Forgery> {
        let digits = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let then = digits.and_then(|digits| digits.parse().ok()).map(Duration::from_secs).ok_or(Forgery::Malformed)?;
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if now.abs_diff(then) <= self.tolerance { Ok(()) } else { Err(Forgery::Expired) }
    }
}

/// What a delivery says of its signature.
struct Signed<'a> {
    /// As they are written, without the prefix.
    given: Vec<&'a [u8]>,
    time: Option<&'a [u8]>,
    id: Option<&'a [u8]>,
}

impl<'a> Signed<'a> {
    fn read(hmac: &Hmac, delivery: &Delivery<'a>) -> Result<Signed<'a>, Forgery> {
        let line = only(delivery, &hmac.header)?;
        let entries = match &hmac.separator {
            Some(separator) => split(line, separator.as_bytes()),
            None => vec![line],
        };
        let given = entries.iter().filter_map(|entry| entry.strip_prefix(hmac.prefix.as_bytes())).collect();
        let time = match &hmac.time {
            None => None,
            Some(TimeOf::Header(name)) => Some(only(delivery, name)?),
            Some(TimeOf::Entry(prefix)) => {
                let mut times = entries.iter().filter_map(|entry| entry.strip_prefix(prefix.as_bytes()));
                // Of two, this proxy and the upstream might take another one each.
                let (Some(time), None) = (times.next(), times.next()) else { return Err(Forgery::Malformed) };
                Some(time)
            }
        };
        let id = hmac.id_header.as_ref().map(|name| only(delivery, name)).transpose()?;
        Ok(Signed { given, time, id })
    }

    /// The signature that this key makes.
    fn tag(&self, hmac: &Hmac, key: &hmac::Key, body: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(key);
        for part in &hmac.signed {
            context.update(match part {
                SignedPart::Text(text) => text.as_bytes(),
                SignedPart::Body => body,
                SignedPart::Timestamp => self.time.unwrap_or_default(),
                SignedPart::Id => self.id.unwrap_or_default(),
            });
        }
        context.sign()
    }
}

/// The one line of a field. Of two, this proxy and the upstream might take another one each.
fn only<'a>(delivery: &Delivery<'a>, name: &HeaderName) -> Result<&'a [u8], Forgery> {
    let mut lines = delivery.head.headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => Ok(line.as_bytes()),
        (None, _) => Err(Forgery::Missing),
        (Some(_), Some(_)) => Err(Forgery::Malformed),
    }
}

/// The entries between separators, without white space around them.
fn split<'a>(line: &'a [u8], separator: &[u8]) -> Vec<&'a [u8]> {
    let (mut entries, mut rest) = (Vec::new(), line);
    while let Some(at) = rest.windows(separator.len()).position(|window| window == separator) {
        entries.push(rest[..at].trim_ascii());
        rest = &rest[at + separator.len()..];
    }
    entries.push(rest.trim_ascii());
    entries
}

fn decode(encoding: Encoding, text: &[u8]) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Hex => hex(text),
        Encoding::Base64 => BASE64.decode(text).ok(),
    }
    .filter(|bytes| !bytes.is_empty())
}

fn is_equal(key: &hmac::Key, right: &hmac::Tag, given: &[u8]) -> bool {
    hmac::verify(key, given, hmac::sign(key, right.as_ref()).as_ref()).is_ok()
}

#[cfg(test)]
mod tests;
