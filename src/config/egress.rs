//! Egress: which hosts a route may reach whose upstream is named by each request, which hosts clients may open tunnels
//! to, and which addresses never.
//!
//! An allow-list of names is not enough: whoever answers for a name may let it point into this network a moment later
//! (DNS rebinding). So the address is judged when it is connected to, by [`Hosts::permit_address`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::address::host_and_port;
use super::mistakes::{Wrong, wrong};

/// The ports of an entry that names none.
const USUAL_PORTS: [u16; 2] = [80, 443];

/// The port of a tunnel that names none: what is hidden from this proxy is TLS.
const TUNNEL_PORT: u16 = 443;

/// The hosts outside that requests may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Egress {
    /// Hosts of requests in absolute form, under the protection of a route. Default none.
    pub allow: Hosts,
    /// Hosts that `CONNECT` opens tunnels to, in which nothing is protected. Each entry has its port. Default none.
    pub tunnels: Hosts,
}

/// A list of hosts that may be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(
    /// In the order of the file.
    pub Vec<Allowed>,
);

/// One entry of the allow-list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Lower-case; an IPv6 address without brackets. With `below`, what follows `*.`.
    host: String,
    /// Whether it stands for every name below the host, and not for the host itself.
    below: bool,
    /// The one port; without one, 80 and 443.
    port: Option<u16>,
}

impl Hosts {
    /// Whether this host may be reached at this port, as far as its name goes. Case does not count.
    pub fn permit(&self, host: &str, port: u16) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        self.0.iter().any(|allowed| allowed.takes_host(&host) && allowed.takes_port(port))
    }

    /// Whether this address may be connected to. Loopback, link-local and the metadata services of clouds may not,
    /// whatever name led there, unless the list has the very address.
    pub fn permit_address(&self, address: SocketAddr) -> bool {
        let ip = canonical(address.ip());
        if !is_internal(ip) {
            return true;
        }
        let listed = |allowed: &Allowed| !allowed.below && allowed.host.parse().is_ok_and(|own| canonical(own) == ip);
        self.0.iter().any(|allowed| listed(allowed) && allowed.takes_port(address.port()))
    }
}

impl Allowed {
    fn takes_host(&self, host: &str) -> bool {
        if !self.below {
            return self.host == host;
        }
        // An address has no names below it.
        host.strip_suffix(self.host.as_str())
            .and_then(|rest| rest.strip_suffix('.'))
            .is_some_and(|name| !name.is_empty())
    }

    fn takes_port(&self, port: u16) -> bool {
        self.port.map_or_else(|| USUAL_PORTS.contains(&port), |own| own == port)
    }

    /// Whether this entry and one of `tunnels` let clients reach the same place.
    pub(super) fn meets(&self, tunnel: &Allowed) -> bool {
        let host = match (self.below, tunnel.below) {
            (false, _) => tunnel.takes_host(&self.host),
            (true, false) => self.takes_host(&tunnel.host),
            (true, true) => self.host == tunnel.host || self.takes_host(&tunnel.host) || tunnel.takes_host(&self.host),
        };
        host && tunnel.port.is_some_and(|port| self.takes_port(port))
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.below { "*." } else { "" })?;
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Parses an entry: `HOST`, `*.DOMAIN` or an address, each with or without a port.
pub(super) fn allowed(text: &str) -> Result<Allowed, Wrong> {
    let right = "write \"api.example.com\", \"*.example.com\" or an address, with :PORT if it is not 80 or 443";
    let no_host = || wrong(format!("{text:?} is not a host"), right);
    let (below, rest) = text.strip_prefix("*.").map_or((false, text), |rest| (true, rest));
    let (host, port) = host_and_port(rest).map_err(|()| no_host())?;
    let host = host.trim_end_matches('.').to_owned();
    if port == Some(0) || (below && host.parse::<IpAddr>().is_ok()) {
        return Err(no_host());
    }
    if below && !host.contains('.') {
        let right = "name a domain of your own or of the service, such as \"*.example.com\"";
        return Err(wrong(format!("{text:?} allows a whole top-level domain"), right));
    }
    Ok(Allowed { host, below, port })
}

/// Parses an entry of `tunnels`: the same, at port 443 if none is named.
pub(super) fn tunnel(text: &str) -> Result<Allowed, Wrong> {
    let right = "write \"api.example.com:443\", \"*.example.com:443\" or an address, with the port of the tunnel";
    let Allowed { host, below, port } = allowed(text).map_err(|what| Wrong { right: right.into(), ..what })?;
    Ok(Allowed { host, below, port: Some(port.unwrap_or(TUNNEL_PORT)) })
}

/// The address that a packet would go to: IPv6 has several ways to write one of IPv4.
fn canonical(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let [.., a, b] = v6.segments();
    let last = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match v6.segments() {
        // Mapped; translated by SIIT (RFC 2765 section 2.1) and by NAT64 (RFC 6052 section 2.1).
        [0, 0, 0, 0, 0, 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => last(a, b).into(),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => last(high, low).into(),
        // Compatible (RFC 4291 section 2.5.5.1), but for the unspecified address and loopback.
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => last(a, b).into(),
        _ => ip,
    }
}

/// Whether an address leads into this host, to its link, or to a cloud's metadata: what a request from outside of this
/// process must not get at through it.
fn is_internal(ip: IpAddr) -> bool {
    /// Alibaba, Oracle and Azure; all others are link-local.
    const METADATA: [Ipv4Addr; 3] =
        [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192), Ipv4Addr::new(168, 63, 129, 16)];
    match ip {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_link_local()
                || v4.octets()[0] == 0
                || v4.is_broadcast()
                || v4.is_multicast()
                || METADATA.contains(&v4)
        }
        IpAddr::V6(v6) => is_internal_v6(v6),
    }
}

fn is_internal_v6(v6: Ipv6Addr) -> bool {
    /// Oracle's and Scaleway's.
    const METADATA: [[u16; 8]; 2] = [[0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]];
    match v6.segments() {
        // AWS, and Google's.
        [0xfd00, 0xec2, ..] | [0xfd20, 0xce, ..] => true,
        // A NAT64 of one's own (RFC 8215), whose prefix may have any of these lengths. Behind it nothing is at 0.0.0.0/8, which
        // the padding of a shorter prefix looks like.
        [0x64, 0xff9b, 1, ..] => embedded(v6).into_iter().any(|v4| v4.octets()[0] != 0 && is_internal(v4.into())),
        segments if METADATA.contains(&segments) => true,
        _ => v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local() || v6.is_multicast(),
    }
}

/// The IPv4 addresses that may stand in one behind a prefix of 48, 56, 64 or 96 bits (RFC 6052 section 2.2).
fn embedded(v6: Ipv6Addr) -> [Ipv4Addr; 4] {
    let bytes = v6.octets();
    [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], [12, 13, 14, 15]]
        .map(|places| Ipv4Addr::from(places.map(|place| bytes[place])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn egress(entries: &[&str]) -> Hosts {
        Hosts(entries.iter().map(|text| allowed(text).unwrap_or_else(|wrong| panic!("{wrong:?}"))).collect())
    }

    #[test]
    fn entries_take_the_host_that_they_name_at_the_usual_ports() {
        let egress = egress(&["api.example.com", "*.example.org", "Internal:8080", "[2001:db8::1]:81"]);
        for (host, port) in [
            ("api.example.com", 443),
            ("API.example.com.", 80),
            ("a.example.org", 443),
            ("a.b.example.org", 80),
            ("internal", 8080),
            ("2001:db8::1", 81),
        ] {
            assert!(egress.permit(host, port), "{host}:{port}");
        }
        for (host, port) in [
            ("api.example.com", 8443),
            ("x.api.example.com", 443),
            ("example.org", 443),
            (".example.org", 443),
            ("evilexample.org", 443),
            ("api.example.com.evil.example", 443),
            ("internal", 80),
            ("2001:db8::1", 80),
            ("", 80),
        ] {
            assert!(!egress.permit(host, port), "{host}:{port}");
        }
    }

    #[test]
    fn inner_addresses_are_never_reached_however_they_are_written() {
        let none = egress(&["api.example.com", "*.example.org"]);
        for inner in [
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "169.254.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "255.255.255.255",
            "224.0.0.1",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "::1",
            "::",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "::ffff:0:169.254.169.254",
            "::ffff:0:7f00:1",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1:a9:fe:a9fe::",
            "64:ff9b:1:0:a9:fea9:fe00:0",
            "64:ff9b:1:abcd::7f00:1",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
        ] {
            let address = SocketAddr::new(inner.parse().unwrap(), 80);
            assert!(!none.permit_address(address), "{address}");
        }
        for outer in [
            "93.184.216.34",
            "10.0.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "2001:db8::1",
            "fd00::1",
            "64:ff9b::808:808",
            "64:ff9b:1:808:8:800::",
            "fd00:c1::1",
        ] {
            let address = SocketAddr::new(outer.parse().unwrap(), 80);
            assert!(none.permit_address(address), "{address}");
        }
    }

    #[test]
    fn an_inner_address_is_reached_only_if_it_is_listed_itself() {
        let by_name = egress(&["localhost:3000"]);
        assert!(!by_name.permit_address("127.0.0.1:3000".parse().unwrap()));
        let listed = egress(&["127.0.0.1:3000", "[::1]"]);
        assert!(listed.permit_address("127.0.0.1:3000".parse().unwrap()));
        assert!(listed.permit_address("[::ffff:127.0.0.1]:3000".parse().unwrap()));
        assert!(!listed.permit_address("127.0.0.1:3001".parse().unwrap()));
        assert!(!listed.permit_address("127.0.0.2:3000".parse().unwrap()));
        assert!(listed.permit_address("[::1]:443".parse().unwrap()));
    }

    #[test]
    fn a_tunnel_has_one_port_and_meets_what_is_allowed_there() {
        for (text, printed) in
            [("api.example.com", "api.example.com:443"), ("*.example.org:8443", "*.example.org:8443")]
        {
            assert_eq!(tunnel(text).unwrap().to_string(), printed);
        }
        for (entry, text, meets) in [
            ("api.example.com", "api.example.com", true),
            ("api.example.com", "*.example.com:80", true),
            ("api.example.com:8443", "api.example.com", false),
            ("example.com", "*.example.com", false),
            ("*.example.com", "api.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "*.api.example.com", true),
            ("*.api.example.com", "*.example.com", true),
            ("*.example.com", "*.example.com", true),
            ("*.example.com", "*.example.org", false),
        ] {
            assert_eq!(allowed(entry).unwrap().meets(&tunnel(text).unwrap()), meets, "{entry} and {text}");
        }
    }

    #[test]
    fn entries_print_as_they_are_written() {
        for text in ["api.example.com", "*.example.org", "internal:8080", "[2001:db8::1]:81", "127.0.0.1"] {
            assert_eq!(allowed(text).unwrap().to_string(), text);
        }
        for wrong in
            ["", "*", "*.", "*.com", "https://a.example", "a.example/x", "a.example:0", "*.127.0.0.1", "a*.example"]
        {
            assert!(allowed(wrong).is_err(), "{wrong}");
        }
    }
}
