//! Header fields at this hop: what is taken off, what is put on, and what is never recorded.
//!
//! Hop-by-hop fields are those of RFC 9110 section 7.6.1 and whatever `Connection` names. The fields of a message stay in
//! the map that they were parsed into, in their order: most have nothing to be taken off, and hyper uses the map's memory
//! for the next message.

mod forwarded;

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AGE, CONNECTION, CONTENT_LENGTH, DATE, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, SET_COOKIE,
    TE, TRAILER, VIA, WWW_AUTHENTICATE,
};
use http::{Version, request};
use http_body::Frame;

use super::key::Key;
use crate::config::{ForwardKey, Forwarded, KeySource, Route};
use crate::fields::list;
use crate::interim::Interim;
use crate::record::Response;
use crate::trace::Context;
use crate::upstream::OnInterim;

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The name of this hop in `Via` and `Cache-Status`.
const PSEUDONYM: &str = "onceproxy";

/// What `Cache-Status` (RFC 9211) says of a response.
#[derive(Clone, Copy, Debug)]
pub enum CacheStatus {
    /// Forwarded and recorded.
    Stored,
    /// Forwarded; not recorded, or not yet, for this reason.
    Missed(&'static str),
    /// Replayed; kept for this long.
    Hit(Duration),
    /// Answered with a running attempt's response, which was recorded.
    Joined,
    /// Answered with a running attempt's response, which was not recorded.
    Collapsed,
    /// Passed through without protection, for this reason.
    Bypass(&'static str),
    /// A problem of this type.
    Problem(&'static str),
}

impl CacheStatus {
    fn to_value(self) -> HeaderValue {
        let text = match self {
            CacheStatus::Stored => return HeaderValue::from_static("onceproxy; fwd=miss; stored"),
            CacheStatus::Missed(detail) => format!("{PSEUDONYM}; fwd=miss; detail={detail}"),
            CacheStatus::Hit(ttl) => format!("{PSEUDONYM}; hit; ttl={}", ttl.as_secs()),
            CacheStatus::Joined => return HeaderValue::from_static("onceproxy; hit; collapsed"),
            CacheStatus::Collapsed => return HeaderValue::from_static("onceproxy; fwd=miss; collapsed"),
            CacheStatus::Bypass("unprotected") => {
                // Every plain request's.
                return HeaderValue::from_static("onceproxy; fwd=bypass; detail=unprotected");
            }
            CacheStatus::Bypass(detail) => format!("{PSEUDONYM}; fwd=bypass; detail={detail}"),
            CacheStatus::Problem(kind) => format!("{PSEUDONYM}; detail={kind}"),
        };
        HeaderValue::from_str(&text).expect("numbers and our own words are visible ASCII")
    }
}

/// Appends this hop's `Cache-Status`, after those of hops nearer the origin (RFC 9211 section 2).
pub fn add_cache_status(fields: &mut HeaderMap, status: &CacheStatus) {
    fields.append(CACHE_STATUS, status.to_value());
}

/// What this hop said in `Cache-Status`.
pub fn own_cache_status(fields: &HeaderMap) -> Option<&str> {
    let last = fields.get_all(CACHE_STATUS).iter().next_back()?;
    last.to_str().ok().filter(|status| status.starts_with(PSEUDONYM))
}

/// Marks a response that comes from a record.
pub fn mark_replayed(fields: &mut HeaderMap) {
    fields.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
}

/// Adds the time a response has been kept to the `Age` it had (RFC 9111 section 5.1).
pub fn add_age(fields: &mut HeaderMap, age: Duration) {
    let before = fields.get(AGE).and_then(|v| v.to_str().ok()?.parse::<u64>().ok()).unwrap_or(0);
    fields.insert(AGE, HeaderValue::from(before.saturating_add(age.as_secs())));
}

/// Says that `Prefer: wait` was honoured (RFC 7240 section 3).
pub fn add_preference_applied(fields: &mut HeaderMap, wait: Duration) {
    let text = format!("wait={}", wait.as_secs());
    fields.append(PREFERENCE_APPLIED, HeaderValue::from_str(&text).expect("digits are visible ASCII"));
}

/// Adds this hop to `Via`, with the version in which the message was received (RFC 9110 section 7.6.3).
pub fn add_via(fields: &mut HeaderMap, received: Version) {
    let value = match received {
        Version::HTTP_10 => HeaderValue::from_static("1.0 onceproxy"),
        Version::HTTP_2 => HeaderValue::from_static("2 onceproxy"),
        _ => HeaderValue::from_static("1.1 onceproxy"),
    };
    fields.append(VIA, value);
}

/// How long a duplicate is willing to wait, from `Prefer: wait=SECONDS` (RFC 7240 section 4.3).
pub fn preferred_wait(fields: &HeaderMap) -> Option<Duration> {
    fields
        .get_all("prefer")
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|preference| {
            let (name, value) = preference.split(';').next()?.split_once('=')?;
            let seconds = value.trim().trim_matches('"').parse::<u32>().ok()?;
            name.trim().eq_ignore_ascii_case("wait").then(|| Duration::from_secs(seconds.into()))
        })
        .next()
}

/// The names that a message's `Connection` fields list. The usual two are left out: `close` is no field, `keep-alive` is
/// taken off anyway.
fn named_by_connection(fields: &HeaderMap) -> Vec<HeaderName> {
    list(fields, &CONNECTION)
        .filter(|name| !name.eq_ignore_ascii_case(b"keep-alive") && !name.eq_ignore_ascii_case(b"close"))
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .collect()
}

fn is_hop_by_hop(name: &HeaderName, named: &[HeaderName]) -> bool {
    matches!(name.as_str(), "connection" | "keep-alive" | "proxy-connection" | "te" | "transfer-encoding" | "upgrade")
        || named.contains(name)
}

/// A frame as it goes on: in trailers, without the fields that belong to a connection, frame or route a message, or are
/// this hop's own (RFC 9110 section 6.5.1). A message with one of them could not be sent by HTTP/2 at all.
pub fn frame_to_pass(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            clean_trailers(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(data) => data,
    }
}

/// The same for trailers alone.
pub fn clean_trailers(trailers: &mut HeaderMap) {
    let named = named_by_connection(trailers);
    take_off(trailers, |name| {
        is_hop_by_hop(name, &named)
            || matches!(
                name.as_str(),
                "content-length"
                    | "host"
                    | "trailer"
                    | "age"
                    | "proxy-authorization"
                    | "cache-status"
                    | "idempotent-replayed"
                    | "preference-applied"
            )
    });
}

/// Takes fields off and keeps the order of the others, which [`HeaderMap::remove`] would not.
pub(super) fn take_off(fields: &mut HeaderMap, goes: impl Fn(&HeaderName) -> bool) {
    let mut going = fields.keys().enumerate().filter(|(_, name)| goes(name));
    match (going.next(), going.next()) {
        (None, _) => {}
        // Of the last one nothing changes its place.
        (Some((at, name)), None) if at + 1 == fields.keys_len() => {
            let name = name.clone();
            fields.remove(name);
        }
        _ => {
            let mut stays = true;
            let kept: Vec<_> = fields
                .drain()
                .filter(|(name, _)| {
                    // Further lines of a field come without its name.
                    stays = name.as_ref().map_or(stays, |name| !goes(name));
                    stays
                })
                .collect();
            fields.extend(kept);
        }
    }
}

/// The client of one request.
#[derive(Debug)]
pub struct Client {
    /// Who it is.
    pub peer: Peer,
    /// Where interim answers go, if it can be told.
    pub interim: Option<Interim>,
}

/// Who sent a request, as the upstream is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The client's address; `None` on a Unix socket.
    pub ip: Option<IpAddr>,
    /// Whether it came by TLS.
    pub tls: bool,
}

impl Peer {
    fn proto(self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

/// The fields of the request as the upstream gets them, all but its framing. They are taken out of the head.
///
/// `key` is the key if the request is protected, and whether it is to be forwarded in the quoted form.
pub fn to_upstream(route: &Route, head: &mut request::Parts, peer: Peer, key: Option<&Key>) -> HeaderMap {
    let mut fields = std::mem::take(&mut head.headers);
    let named = named_by_connection(&fields);
    let host = fields.get(HOST).cloned();
    let dropped_key = key.filter(|_| route.forward_key != ForwardKey::Same).map(|_| key_headers(&route.key));
    let takes_trailers = route.upstream.http2 && takes_trailers(&fields);
    take_off(&mut fields, |name| {
        (*name != HOST && is_hop_by_hop(name, &named))
            || match name.as_str() {
                "expect" | "cache-status" | "idempotent-replayed" | "preference-applied" => true,
                // RFC 9110 section 11.7.2: it was for this proxy, whoever believed that it wants one.
                "proxy-authorization" => true,
                "forwarded" | "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" => {
                    route.forwarded != Forwarded::Append
                }
                "trailer" => key.is_some(),
                _ => dropped_key.as_ref().is_some_and(|names| names.contains(&name)),
            }
    });
    set_host(&mut fields, route, head, host.as_ref());
    if let (Some(key), ForwardKey::Renamed(name)) = (key, &route.forward_key) {
        fields.insert(name, key.to_header_value(key.is_quoted()));
    }
    if takes_trailers {
        // Of one hop like all of `TE`, and true of this one as well. gRPC servers refuse calls without it.
        fields.append(TE, HeaderValue::from_static("trailers"));
    }
    if route.forwarded == Forwarded::Append {
        forwarded::append(&mut fields, peer, host.as_ref());
    }
    add_via(&mut fields, head.version);
    fields
}

/// The fields of a request as an authorizer gets them: those that would reach an upstream, without what belongs to its body
/// and to this hop. They are copied out of the buffer that they were read into.
pub fn to_authorizer(route: &Route, received: &HeaderMap, peer: Peer) -> HeaderMap {
    let named = named_by_connection(received);
    let goes_on = |name: &HeaderName| {
        !is_hop_by_hop(name, &named)
            && match name.as_str() {
                "content-length" | "expect" | "trailer" | "host" => false,
                "cache-status" | "idempotent-replayed" | "preference-applied" | "proxy-authorization" => false,
                "forwarded" | "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" => {
                    route.forwarded == Forwarded::Append
                }
                _ => true,
            }
    };
    let mut fields = HeaderMap::with_capacity(received.keys_len() + 8);
    for (name, value) in received.iter().filter(|(name, _)| goes_on(name)) {
        let copied = (HeaderName::from_bytes(name.as_str().as_bytes()), HeaderValue::from_bytes(value.as_bytes()));
        if let (Ok(name), Ok(value)) = copied {
            fields.append(name, value);
        }
    }
    if route.forwarded == Forwarded::Append {
        forwarded::append(&mut fields, peer, received.get(HOST));
    }
    fields
}

/// Marks what an authorizer told a caller: it is no replay, whatever it says.
pub fn mark_refused(fields: &mut HeaderMap) {
    take_off(fields, |name| *name == IDEMPOTENT_REPLAYED || *name == PREFERENCE_APPLIED || *name == TRAILER);
    add_cache_status(fields, &CacheStatus::Problem("not-allowed"));
}

/// Names the host: where the client has put it, if it is the client's.
fn set_host(fields: &mut HeaderMap, route: &Route, head: &request::Parts, received: Option<&HeaderValue>) {
    let asked_for = match head.uri.authority() {
        None if route.preserve_host && received.is_some() => return,
        Some(authority) if route.preserve_host => HeaderValue::from_str(authority.as_str()).ok(),
        _ => None,
    };
    let own = || HeaderValue::from_str(&route.upstream.authority()).ok();
    fields.insert(HOST, asked_for.or_else(own).unwrap_or_else(|| HeaderValue::from_static("")));
}

/// Whether the client says that it can be sent trailers (RFC 9110 section 10.1.4).
fn takes_trailers(fields: &HeaderMap) -> bool {
    list(fields, &TE).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

/// Puts the key into the form of the first time, where a resend would otherwise show another one.
pub fn keep_key_form(route: &Route, fields: &mut HeaderMap, key: &Key, quoted: bool) {
    if key.is_quoted() == quoted {
        return;
    }
    let name = match &route.forward_key {
        ForwardKey::Same => key_headers(&route.key).into_iter().find(|name| fields.contains_key(*name)),
        ForwardKey::Renamed(name) => Some(name),
        ForwardKey::None => None,
    };
    if let Some(name) = name {
        fields.insert(name, key.to_header_value(quoted));
    }
}

fn key_headers(sources: &[KeySource]) -> Vec<&HeaderName> {
    let mut names = Vec::new();
    for source in sources {
        match source {
            KeySource::Header(name) => names.push(name),
            KeySource::Joined(parts) => names.extend(key_headers(parts)),
            KeySource::Query(_) | KeySource::Json(_) | KeySource::Form(_) | KeySource::Fingerprint => {}
        }
    }
    names
}

/// The upstream's fields as the first caller gets them: without those of the hop, with a `Date` (RFC 9110 section 6.6.1
/// lets a recipient add one) and this hop's `Via`, so that a replay can show the same.
///
/// `Content-Length` stays only where `keep_length` says that the body does not give it.
pub fn from_upstream(mut fields: HeaderMap, version: Version, keep_length: bool) -> HeaderMap {
    let named = named_by_connection(&fields);
    take_off(&mut fields, |name| is_hop_by_hop(name, &named) || (!keep_length && *name == CONTENT_LENGTH));
    fields.entry(DATE).or_insert_with(|| {
        let now = httpdate::fmt_http_date(std::time::SystemTime::now());
        HeaderValue::from_str(&now).expect("an HTTP date is visible ASCII")
    });
    add_via(&mut fields, version);
    fields
}

/// Tells the client of a request what the upstream says before its answer, without the fields of the hop.
pub fn pass_interim(interim: Interim) -> OnInterim {
    OnInterim::new(move |status, version, fields| {
        let mut fields = fields.clone();
        let named = named_by_connection(&fields);
        take_off(&mut fields, |name| is_hop_by_hop(name, &named) || *name == CONTENT_LENGTH);
        add_via(&mut fields, version);
        interim.tell(status, &fields);
    })
}

/// Takes the length off that [`from_upstream`] has left: the body gives it once it is whole.
pub fn take_length(fields: &mut HeaderMap) {
    take_off(fields, |name| *name == CONTENT_LENGTH);
}

/// Announces trailers, which are sent only if the field `Trailer` names them (RFC 9110 section 6.6.2).
pub fn announce_trailers(fields: &mut HeaderMap, trailers: &HeaderMap) {
    let names: Vec<&str> = trailers.keys().map(HeaderName::as_str).collect();
    if let (false, Ok(value)) = (names.is_empty(), HeaderValue::from_str(&names.join(", "))) {
        fields.insert(TRAILER, value);
    }
}

fn is_recorded(route: &Route, name: &HeaderName) -> bool {
    let personal = *name == SET_COOKIE || *name == WWW_AUTHENTICATE || *name == PROXY_AUTHENTICATE;
    !personal || route.keep_headers.contains(name)
}

/// Under this a record keeps the place in a trace at which its response was made, before all fields. It is no name of a
/// field: no upstream can send it, and a replay leaves it out like everything that is none, in every version and build.
const ORIGIN: &[u8] = b":traceparent";

/// The place in a trace at which a recorded response was made, if that was noted.
pub fn origin(response: &Response) -> Option<Context> {
    let (name, value) = response.headers().next()?;
    if name == ORIGIN { Context::parse(value) } else { None }
}

/// The response as it is recorded: without what must not be kept, and with the place in a trace at which it was made.
pub fn recorded(
    route: &Route,
    status: u16,
    fields: &HeaderMap,
    trailers: Option<&HeaderMap>,
    body: Option<Bytes>,
    origin: Option<Context>,
) -> Response {
    fn lines<'a>(route: &'a Route, fields: &'a HeaderMap) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        fields
            .iter()
            .filter(|(name, _)| is_recorded(route, name))
            .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
    }
    let trailers = trailers.into_iter().flat_map(|fields| lines(route, fields));
    let origin = origin.map(|context| context.to_text());
    let origin = origin.iter().map(|text| (ORIGIN, &text[..]));
    Response::new(status, origin.chain(lines(route, fields)), trailers, body)
}

/// The fields of a recorded response. Stored names and values were checked when they came in; a damaged one is left out.
pub fn replayed<'a>(lines: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> HeaderMap {
    lines
        .filter_map(|(name, value)| Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?)))
        .fold(HeaderMap::with_capacity(16), |mut fields, (name, value)| {
            fields.append(name, value);
            fields
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().fold(HeaderMap::new(), |mut fields, (name, value)| {
            fields.append(*name, HeaderValue::from_static(value));
            fields
        })
    }

    #[test]
    fn what_is_taken_off_leaves_the_others_in_their_order() {
        let lines = [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("d", "1"), ("c", "2"), ("e", "1")];
        for goes in ["", "a", "c", "e", "ac", "bde", "abcde"] {
            let mut fields = of(&lines);
            take_off(&mut fields, |name| goes.contains(name.as_str()));
            // A map keeps the lines of one field together.
            let kept: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
            let mut expected: Vec<_> = lines.into_iter().filter(|(name, _)| !goes.contains(name)).collect();
            expected.sort();
            assert_eq!(kept, expected, "without {goes:?}");
        }
    }
}
