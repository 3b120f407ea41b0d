//! What the upstream is told of where a request came from: `X-Forwarded-For`, `-Proto`, `-Host` and `Forwarded` (RFC 7239).

use std::cell::RefCell;
use std::fmt::Write as _;

use http::header::{Entry, FORWARDED, HeaderMap, HeaderName, HeaderValue};

use super::Peer;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Longer names of hosts are written each time, so that a core remembers little.
const LONGEST_HOST: usize = 512;

/// What this hop says of a request.
#[derive(Clone)]
struct Hop {
    /// The address alone.
    node: HeaderValue,
    /// The element of `Forwarded`.
    element: HeaderValue,
}

/// What this hop said last, and of which client and host.
struct Said {
    peer: Peer,
    host: Option<HeaderValue>,
    hop: Hop,
}

thread_local! {
    // Request after request comes from the same client for the same host: a connection's do.
    static LAST: RefCell<Option<Said>> = const { RefCell::new(None) };
}

/// Says who sent the request to this hop, and for which host, behind what the hops before have said.
pub(super) fn append(fields: &mut HeaderMap, peer: Peer, host: Option<&HeaderValue>) {
    let Hop { node, element } = hop(peer, host);
    append_to_list(fields, X_FORWARDED_FOR, node);
    fields.entry(X_FORWARDED_PROTO).or_insert_with(|| HeaderValue::from_static(peer.proto()));
    if let Some(host) = host {
        fields.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
    }
    append_to_list(fields, FORWARDED, element);
}

fn hop(peer: Peer, host: Option<&HeaderValue>) -> Hop {
    if host.is_some_and(|host| host.len() > LONGEST_HOST) {
        return Hop::of(peer, host);
    }
    LAST.with_borrow_mut(|last| match last {
        Some(said) if said.peer == peer && said.host.as_ref() == host => said.hop.clone(),
        _ => {
            // A copy: the field that came shares the read buffer of its connection.
            let copy = |host: &HeaderValue| HeaderValue::from_bytes(host.as_bytes()).expect("it is a value already");
            last.insert(Said { peer, host: host.map(copy), hop: Hop::of(peer, host) }).hop.clone()
        }
    })
}

impl Hop {
    /// As RFC 7239 section 4 says; by section 6 an IPv6 address is bracketed and, having colons, quoted.
    fn of(peer: Peer, host: Option<&HeaderValue>) -> Hop {
        // A client on a Unix socket has no address. Left out, it would pass for the one before it.
        let node = peer.ip.map_or_else(|| "unknown".to_owned(), |ip| ip.to_string());
        let mut element = match peer.ip.is_some_and(|ip| ip.is_ipv6()) {
            true => format!("for=\"[{node}]\""),
            false => format!("for={node}"),
        };
        let is_quotable = |host: &&str| !host.bytes().any(|byte| matches!(byte, b'"' | b'\\'));
        let host = host.and_then(|host| host.to_str().ok()).filter(is_quotable);
        let host = host.map(|host| format!(";host=\"{host}\"")).unwrap_or_default();
        // Writing into a string cannot fail.
        let _ = write!(element, ";proto={}{host}", peer.proto());
        let value = |text: String| {
            HeaderValue::try_from(text).expect("addresses and values of fields have no control characters")
        };
        Hop { node: value(node), element: value(element) }
    }
}

/// Makes one line of what was received, if anything, with this element at its end.
fn append_to_list(fields: &mut HeaderMap, name: HeaderName, element: HeaderValue) {
    match fields.entry(name) {
        Entry::Vacant(place) => {
            place.insert(element);
        }
        Entry::Occupied(mut lines) => {
            let mut line = Vec::new();
            for value in lines.iter() {
                line.extend_from_slice(value.as_bytes());
                line.extend_from_slice(b", ");
            }
            line.extend_from_slice(element.as_bytes());
            if let Ok(value) = HeaderValue::from_bytes(&line) {
                lines.insert(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lines<'a> = Vec<(&'a str, &'a str)>;

    fn forwarded(received: &[(&'static str, &'static str)], peer: (&str, bool), host: Option<&str>) -> String {
        let mut fields = HeaderMap::new();
        for (name, value) in received {
            fields.append(*name, HeaderValue::from_static(value));
        }
        let peer = Peer { ip: peer.0.parse().ok(), tls: peer.1 };
        append(&mut fields, peer, host.map(|host| HeaderValue::from_str(host).unwrap()).as_ref());
        let lines: Lines<'_> = fields.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        lines.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
    }

    #[test]
    fn says_where_a_request_came_from() {
        let said = |node: &str, host: &str, element: &str| {
            format!(
                "x-forwarded-for: {node}\nx-forwarded-proto: http\nx-forwarded-host: {host}\nforwarded: {element}\n"
            )
        };
        let plain = "for=10.0.200.7;proto=http;host=\"a.example\"";
        for _ in 0..2 {
            assert_eq!(
                forwarded(&[], ("10.0.200.7", false), Some("a.example")),
                said("10.0.200.7", "a.example", plain)
            );
        }
        // Each of what it is made of is another element.
        let element = "for=10.0.200.8;proto=http;host=\"a.example\"";
        assert_eq!(forwarded(&[], ("10.0.200.8", false), Some("a.example")), said("10.0.200.8", "a.example", element));
        let element = "for=10.0.200.8;proto=http;host=\"b.example\"";
        assert_eq!(forwarded(&[], ("10.0.200.8", false), Some("b.example")), said("10.0.200.8", "b.example", element));
        let element = "for=10.0.200.8;proto=https;host=\"b.example\"";
        assert!(forwarded(&[], ("10.0.200.8", true), Some("b.example")).ends_with(&format!("forwarded: {element}\n")));
        assert!(forwarded(&[], ("10.0.200.8", true), None).ends_with("forwarded: for=10.0.200.8;proto=https\n"));
        assert!(forwarded(&[], ("socket", false), None).ends_with("forwarded: for=unknown;proto=http\n"));
        assert!(forwarded(&[], ("socket", false), Some("a\"b")).ends_with("forwarded: for=unknown;proto=http\n"));
    }

    #[test]
    fn adds_itself_behind_the_hops_before() {
        let received = [
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "b.example"),
            ("forwarded", "for=192.0.2.1"),
        ];
        let expected = "x-forwarded-for: 192.0.2.1, ::1\nx-forwarded-proto: https\nx-forwarded-host: b.example\n\
                        forwarded: for=192.0.2.1, for=\"[::1]\";proto=http;host=\"a.example\"\n";
        assert_eq!(forwarded(&received, ("::1", false), Some("a.example")), expected);
    }
}
