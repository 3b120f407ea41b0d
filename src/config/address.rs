//! Addresses: where to listen, and the URL of an upstream.
//!
//! No name is looked up here: settings are checked without a network, and an upstream's name may change its address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use http::Uri;

use super::mistakes::{Wrong, wrong};
use super::{HttpProxy, Listen, Upstream};

/// Parses a place where clients connect: an address, one with `http://` in front, or `unix:PATH`.
pub(super) fn listen(text: &str) -> Result<Listen, Wrong> {
    if let Some(path) = text.strip_prefix("unix:") {
        return unix_socket(path);
    }
    match text.split_once("://") {
        Some(("http", rest)) => address(rest.trim_end_matches('/')).map(|address| Listen::Tcp { address, plain: true }),
        Some(("https", _)) => Err(wrong(
            format!("{text:?} has a scheme that is not needed"),
            "write the address alone and the certificate under [tls]; every address without http:// then speaks TLS",
        )),
        _ => address(text).map(|address| Listen::Tcp { address, plain: false }),
    }
}

/// What the address of a Unix socket has room for.
const LONGEST_SOCKET_PATH: usize = 107;

fn unix_socket(rest: &str) -> Result<Listen, Wrong> {
    let path = rest.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(rest);
    let right = "write the path of a socket, such as \"unix:/run/onceproxy/proxy.sock\"";
    match path.len() {
        0 => Err(wrong("the path of the Unix socket is missing", right)),
        1..=LONGEST_SOCKET_PATH if !path.contains('\0') && !path.ends_with('/') => Ok(Listen::Unix(path.into())),
        1..=LONGEST_SOCKET_PATH => Err(wrong(format!("{path:?} cannot be a Unix socket"), right)),
        _ => Err(wrong("the path of the Unix socket is too long", format!("at most {LONGEST_SOCKET_PATH} bytes"))),
    }
}

/// Parses an address to listen on. Only an IP address or `localhost` (which is 127.0.0.1) will do: a bare port would
/// leave open whether the whole network is meant.
fn address(text: &str) -> Result<SocketAddr, Wrong> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let port = text.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    match (text.rsplit_once(':'), port) {
        (Some(("localhost", _)), Some(port)) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        (Some(("" | "*", _)) | None, Some(port)) => Err(wrong(
            format!("{text:?} does not say on which address"),
            format!("write \"127.0.0.1:{port}\" for this host alone, \"0.0.0.0:{port}\" for every address"),
        )),
        _ => Err(wrong(
            format!("{text:?} is not an address to listen on"),
            "write an IP address and a port, such as \"127.0.0.1:8080\", \"[::1]:8080\" or \"localhost:8080\"",
        )),
    }
}

/// Parses the operator's listener: an address, or `"off"`.
pub(super) fn admin_listen(text: &str) -> Result<Option<SocketAddr>, Wrong> {
    if text == "off" {
        return Ok(None);
    }
    address(text).map(Some).map_err(|what| Wrong { right: format!("{}; or \"off\"", what.right), ..what })
}

/// Stands for the host that each request names.
const REQUESTED_HOST: &str = "{host}";

/// Parses the URL of an upstream. It has no path: the request target goes there as it came. Messages do not show the
/// URL back, since a password may stand in it by mistake.
pub(super) fn upstream(text: &str) -> Result<Upstream, Wrong> {
    let example = "write http://HOST:PORT or https://HOST, such as \"https://api.example.com\"";
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path);
    }
    let (tls, rest) = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
        Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            return Err(wrong(format!("the scheme {scheme}:// is not one of an upstream"), example));
        }
        _ => return Err(wrong("this is not a URL with http:// or https://", without_scheme(text, example))),
    };
    let (authority, path) = rest.find(['/', '?', '#']).map_or((rest, ""), |end| rest.split_at(end));
    if authority.contains('@') {
        return Err(wrong(
            "an upstream's URL carries no user or password",
            "take them out; clients send their own Authorization",
        ));
    }
    if path.starts_with(['?', '#']) || path.contains(['?', '#']) {
        return Err(wrong("an upstream's URL has no query", "end it after the host and port"));
    }
    if path.len() > 1 {
        return Err(wrong(
            "an upstream's URL has no path",
            "end it after the host and port; match paths with `path`, take them off with `strip_prefix`",
        ));
    }
    let (requested, authority) = match authority.strip_prefix(REQUESTED_HOST) {
        // A host is needed to find the port; it is not kept.
        Some(port) => (true, format!("host{port}")),
        None => (false, authority.to_owned()),
    };
    let (host, port) = host_and_port(&authority).map_err(|()| wrong("the URL has no valid host and port", example))?;
    let upstream = Upstream { tls, ..Upstream::default() };
    match port {
        Some(0) => Err(wrong("port 0 cannot be connected to", example)),
        // What may be reached is filled in by whoever has read it.
        _ if requested => Ok(Upstream { port: port.unwrap_or(0), egress: Some(Arc::default()), ..upstream }),
        _ => Ok(Upstream { host, port: port.unwrap_or(if tls { 443 } else { 80 }), ..upstream }),
    }
}

/// What would be right where the scheme is left out: the URL itself, if this is no more than a host and a port.
fn without_scheme(text: &str, example: &str) -> String {
    match host_and_port(text) {
        Ok((host, None)) if !host.contains('.') => example.to_owned(),
        Ok((_, Some(port))) if port != 443 => {
            format!("write http://HOST:PORT or https://HOST, such as \"http://{text}\"")
        }
        Ok(_) => format!("write http://HOST:PORT or https://HOST, such as \"https://{text}\""),
        Err(()) => example.to_owned(),
    }
}

/// Parses the rest of `unix:/path`, or of `unix:///path`, which other programs write.
fn unix(rest: &str) -> Result<Upstream, Wrong> {
    let path = rest.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(rest);
    absolute_socket(path, "write unix: and an absolute path, such as \"unix:/run/app.sock\"")?;
    // Those are what `Host` says when the client's is not kept.
    Ok(Upstream { host: "localhost".to_owned(), port: 80, socket: Some(path.into()), ..Upstream::default() })
}

/// Checks the path of a socket that somebody else listens on.
pub(super) fn absolute_socket(path: &str, right: &'static str) -> Result<(), Wrong> {
    if !path.starts_with('/') || path.ends_with('/') || path.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(wrong("this is not the path of a socket", right));
    }
    if path.len() > LONGEST_SOCKET_PATH {
        return Err(wrong("the path is too long for a socket", format!("at most {LONGEST_SOCKET_PATH} bytes")));
    }
    Ok(())
}

/// Parses the URL of an HTTP proxy. Its port has no default: programs differ in it.
pub(super) fn http_proxy(text: &str) -> Result<HttpProxy, Wrong> {
    let right = "write http://HOST:PORT, such as \"http://proxy.example:3128\"";
    let rest = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest.strip_suffix('/').unwrap_or(rest),
        _ => return Err(wrong("this is not a URL with http://", right)),
    };
    if rest.contains('@') {
        return Err(wrong("a proxy that asks for a password is not supported", right));
    }
    match host_and_port(rest) {
        Ok((host, Some(port))) if port > 0 => Ok(HttpProxy { host, port }),
        _ => Err(wrong("the URL has no valid host and port", right)),
    }
}

/// Parses the URL of a collector of traces; a path is the beginning of its own. Messages do not show the URL back.
pub(super) fn collector(text: &str) -> Result<Uri, Wrong> {
    let example = "write http://HOST:PORT or https://HOST, such as \"http://127.0.0.1:4318\"";
    let uri: Uri = text.parse().map_err(|_| wrong("this is not a URL", example))?;
    let Some(authority) = uri.authority().filter(|_| matches!(uri.scheme_str(), Some("http" | "https"))) else {
        return Err(wrong("this is not a URL with http:// or https://", example));
    };
    if authority.as_str().contains('@') {
        let right = "take them out; a collector beside the proxy can add what a distant one asks for";
        return Err(wrong("a collector's URL carries no user or password", right));
    }
    if uri.query().is_some() {
        return Err(wrong("a collector's URL has no query", example));
    }
    if uri.path().trim_end_matches('/').ends_with("/v1/traces") {
        return Err(wrong("the URL names the path of traces already", "take /v1/traces off; it is added"));
    }
    match host_and_port(authority.as_str()) {
        Ok((_, port)) if port != Some(0) => Ok(uri),
        _ => Err(wrong("the URL has no valid host and port", example)),
    }
}

/// Parses the name in a certificate.
pub(super) fn server_name(text: &str) -> Result<String, Wrong> {
    match host_and_port(text) {
        Ok((host, None)) => Ok(host),
        _ => Err(wrong(format!("{text:?} cannot be the name in a certificate"), "write a DNS name or an IP address")),
    }
}

/// An upstream as it is written in a file.
pub(super) fn print_upstream(upstream: &Upstream) -> String {
    if let Some(path) = &upstream.socket {
        return format!("unix:{}", path.display());
    }
    let scheme = if upstream.tls { "https" } else { "http" };
    match (upstream.is_requested(), upstream.port) {
        (false, _) => format!("{scheme}://{}", upstream.authority()),
        (true, 0) => format!("{scheme}://{REQUESTED_HOST}"),
        (true, port) => format!("{scheme}://{REQUESTED_HOST}:{port}"),
    }
}

/// Splits `host[:port]`. The host comes back in lower case, an IPv6 address without brackets.
pub(super) fn host_and_port(text: &str) -> Result<(String, Option<u16>), ()> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']').ok_or(())?;
            let address: Ipv6Addr = address.parse().map_err(|_| ())?;
            let port = if after.is_empty() { None } else { Some(after.strip_prefix(':').ok_or(())?) };
            (address.to_string(), port)
        }
        None => {
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            if !is_name(host) {
                return Err(());
            }
            (host.to_ascii_lowercase(), port)
        }
    };
    match port {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => Ok((host, Some(port.parse().map_err(|_| ())?))),
        Some(_) => Err(()),
        None => Ok((host, None)),
    }
}

/// Whether this is a DNS name or an IPv4 address. Underscores occur in the names of container networks.
fn is_name(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    host.len() <= 253 && host.strip_suffix('.').unwrap_or(host).split('.').all(label)
}

/// Whether a host, as a name or an address, is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
