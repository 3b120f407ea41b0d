//! The checks of a parsed head: to whom is it addressed? hyper lets two `Host` lines, none, and another one than the
//! target's through. What can only be seen in the bytes is left to `framing`.

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderName, TRANSFER_ENCODING, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};

use super::fault::{HeadFault, MAX_FIELDS};

/// Checks that a request of HTTP/1 has one addressee, and makes `Host` say it: a target that names one itself counts, whatever
/// the field says (RFC 9112, section 3.2.2).
pub(super) fn address<B>(request: &mut Request<B>) -> Result<(), HeadFault> {
    check(request)?;
    if request.method() == Method::CONNECT {
        return Ok(());
    }
    if let Some(authority) = request.uri().authority() {
        let authority = HeaderValue::from_str(authority.as_str()).map_err(|_| HeadFault::MalformedHost)?;
        request.headers_mut().insert(HOST, authority);
    }
    Ok(())
}

/// Checks that a request has one addressee.
fn check<B>(request: &Request<B>) -> Result<(), HeadFault> {
    let host = host(request)?;
    let uri = request.uri();
    match (uri.scheme_str(), uri.authority()) {
        _ if request.method() == Method::CONNECT => tunnel(uri, host),
        (None, None) if uri.path().starts_with('/') => Ok(()),
        (None, None) if uri.path() == "*" && request.method() == Method::OPTIONS => Ok(()),
        (Some("http" | "https"), Some(authority)) if !authority.as_str().contains('@') => Ok(()),
        // An authority alone; other schemes.
        _ => Err(HeadFault::Target),
    }
}

/// Takes the slash off `OPTIONS http://HOST` that the parser has added, and writes it as what the server behind HOST is
/// to be asked.
pub(super) fn ask_server<B>(request: &mut Request<B>) {
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static("*"));
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// Checks a request of HTTP/2 and gives it the form that one of HTTP/1 has: `:authority` becomes the `Host`, the target
/// has origin form, and the pieces of `Cookie` are one field again (RFC 9113, sections 8.3.1 and 8.2.3).
pub(super) fn adopt<B>(request: &mut Request<B>) -> Result<(), HeadFault> {
    // h2 refuses these as well; what is forwarded must not hang on that.
    let of_connection = [
        CONNECTION,
        TRANSFER_ENCODING,
        UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    if of_connection.iter().any(|name| request.headers().contains_key(name)) {
        return Err(HeadFault::ConnectionField);
    }
    if request.headers().get_all(CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(HeadFault::ContentLength);
    }
    if request.method() == Method::CONNECT {
        return Err(HeadFault::TunnelVersion);
    }
    if let Some(authority) = request.uri().authority() {
        let authority = HeaderValue::from_str(authority.as_str()).map_err(|_| HeadFault::MalformedHost)?;
        if !request.headers().contains_key(HOST) {
            // Before all other fields (RFC 9110, section 7.2).
            let others = std::mem::take(request.headers_mut());
            request.headers_mut().append(HOST, authority);
            request.headers_mut().extend(others);
        }
    }
    // `Host` counts, as it does in HTTP/1.
    if request.headers().len() > MAX_FIELDS {
        return Err(HeadFault::TooManyFields);
    }
    if request.headers().values().any(is_padded) {
        return Err(HeadFault::PaddedValue);
    }
    check(request)?;
    same_authority(request)?;
    let path = request.uri().path_and_query().cloned().ok_or(HeadFault::Target)?;
    let asks_this_server = path == "*" && request.method() == Method::OPTIONS;
    // RFC 3986 section 2: other bytes stand there percent-encoded, and HTTP/1 servers need not take them.
    if !path.as_str().starts_with('/') && !asks_this_server || !path.as_str().is_ascii() {
        return Err(HeadFault::Target);
    }
    if request.uri().authority().is_some() {
        *request.uri_mut() = Uri::from(path);
    }
    join_cookies(request.headers_mut());
    Ok(())
}

fn join_cookies(fields: &mut HeaderMap) {
    let mut pieces = fields.get_all(COOKIE).iter();
    if let (Some(first), Some(second)) = (pieces.next(), pieces.next()) {
        let mut whole = first.as_bytes().to_vec();
        for piece in std::iter::once(second).chain(pieces) {
            whole.extend_from_slice(b"; ");
            whole.extend_from_slice(piece.as_bytes());
        }
        if let Ok(whole) = HeaderValue::from_bytes(&whole) {
            fields.insert(COOKIE, whole);
        }
    }
}

/// The one `Host` of a request, which HTTP/1.0 may lack.
fn host<B>(request: &Request<B>) -> Result<Option<&str>, HeadFault> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let first = match hosts.next() {
        None if request.version() == Version::HTTP_10 => return Ok(None),
        None => return Err(HeadFault::NoHost),
        Some(first) => first,
    };
    if hosts.next().is_some() {
        return Err(HeadFault::SeveralHosts);
    }
    let is_named = !first.is_empty() || request.version() == Version::HTTP_10;
    host_and_port(first).filter(|_| is_named).map(Some).ok_or(HeadFault::MalformedHost)
}

/// The value as text if it is `uri-host [ ":" port ]` (RFC 3986, section 3.2). Commas are refused
/// although a name may have them: they are what two lines look like after something joined them.
fn host_and_port(value: &HeaderValue) -> Option<&str> {
    let text = value.to_str().ok()?;
    let (name, port) = split_port(text);
    let sound = match name.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|ip| ip.bytes().all(|b| is_name(b) || b == b':')),
        None => name.bytes().all(is_name),
    };
    (sound && port.bytes().all(|b| b.is_ascii_digit())).then_some(text)
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'='
        )
}

/// Name and port. The port is empty if there is none, or nothing behind the colon.
fn split_port(text: &str) -> (&str, &str) {
    match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (text, ""),
    }
}

/// Checks that `CONNECT` names one host and port (RFC 9112, section 3.2.3), and `Host` the same; clients leave the port out
/// of it.
fn tunnel(uri: &Uri, host: Option<&str>) -> Result<(), HeadFault> {
    let (None, Some(authority), None) = (uri.scheme(), uri.authority(), uri.path_and_query()) else {
        return Err(HeadFault::TunnelTarget);
    };
    let (name, port) = split_port(authority.as_str());
    if name.is_empty()
        || authority.as_str().contains('@')
        || port.parse::<u16>().is_ok_and(|port| port == 0)
        || port.is_empty()
    {
        return Err(HeadFault::TunnelTarget);
    }
    let Some((host_name, host_port)) = host.map(split_port) else { return Ok(()) };
    let same = name.eq_ignore_ascii_case(host_name) && (host_port.is_empty() || port == host_port);
    if same { Ok(()) } else { Err(HeadFault::OtherAuthority) }
}

/// Whether a value begins or ends with what HTTP/1 takes off.
fn is_padded(value: &HeaderValue) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_blank(value.as_bytes().first()) || is_blank(value.as_bytes().last())
}

/// Checks that `:authority` and `Host`, if both are there, are the same (RFC 9113, section 8.3.1); the scheme's own port may be
/// left out.
fn same_authority<B>(request: &Request<B>) -> Result<(), HeadFault> {
    let uri = request.uri();
    let (Some(authority), Some(host)) = (uri.authority(), host(request)?) else { return Ok(()) };
    let authority = authority.as_str();
    let own_port = if uri.scheme_str() == Some("https") { "443" } else { "80" };
    let parts = |text| {
        let (name, port): (&str, &str) = split_port(text);
        (name, if port.is_empty() { own_port } else { port })
    };
    let ((name, port), (host_name, host_port)) = (parts(authority), parts(host));
    if name.eq_ignore_ascii_case(host_name) && port == host_port { Ok(()) } else { Err(HeadFault::OtherAuthority) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(method: &str, target: &str, version: Version, hosts: &[&str]) -> Result<(), HeadFault> {
        let mut request = Request::builder().method(method).uri(target).version(version);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        check(&request.body(()).unwrap())
    }

    #[test]
    fn takes_requests_that_have_one_addressee() {
        for (method, target, host) in [
            ("POST", "/v1/charges?x=1", "example.com"),
            ("POST", "/", "example.com:8080"),
            ("GET", "/", "[::1]:8080"),
            ("GET", "/", "[::1]"),
            ("OPTIONS", "*", "example.com"),
            ("GET", "http://example.com/a", "EXAMPLE.com"),
            ("GET", "http://a/", "b"),
            ("GET", "https://a:80/", "a:81"),
            ("GET", "http://example.com:80/a", "example.com"),
            ("GET", "https://example.com/a", "example.com:443"),
            ("GET", "http://[::1]:81/a", "[::1]:81"),
            ("CONNECT", "a.example:443", "A.example:443"),
            ("CONNECT", "a.example:443", "a.example"),
            ("CONNECT", "[::1]:8443", "[::1]:8443"),
        ] {
            assert_eq!(verdict(method, target, Version::HTTP_11, &[host]), Ok(()), "{method} {target} at {host}");
        }
        assert_eq!(verdict("GET", "/", Version::HTTP_10, &[]), Ok(()));
        assert_eq!(verdict("GET", "/", Version::HTTP_10, &[""]), Ok(()));
    }

    #[test]
    fn refuses_requests_with_none_or_several() {
        use HeadFault::{MalformedHost, NoHost, OtherAuthority, SeveralHosts, Target, TunnelTarget};
        for (method, target, hosts, fault) in [
            ("GET", "/", &[][..], NoHost),
            ("GET", "/", &["a", "a"], SeveralHosts),
            ("GET", "/", &["a, b"], MalformedHost),
            ("GET", "/", &["a,b"], MalformedHost),
            ("GET", "/", &["user@a"], MalformedHost),
            ("GET", "/", &["a/b"], MalformedHost),
            ("GET", "/", &["a:b"], MalformedHost),
            ("GET", "/", &["a:1:2"], MalformedHost),
            ("GET", "/", &["[::1"], MalformedHost),
            ("GET", "/", &[""], MalformedHost),
            ("GET", "http://a/", &[""], MalformedHost),
            ("GET", "http://a/", &["a/b"], MalformedHost),
            ("GET", "http://user@a/", &["a"], Target),
            ("GET", "ftp://a/", &["a"], Target),
            ("GET", "*", &["a"], Target),
            ("GET", "a", &["a"], Target),
            ("CONNECT", "a", &["a"], TunnelTarget),
            ("CONNECT", "a:", &["a"], TunnelTarget),
            ("CONNECT", "a:0", &["a:0"], TunnelTarget),
            ("CONNECT", "/", &["a"], TunnelTarget),
            ("CONNECT", "http://a:443/", &["a:443"], TunnelTarget),
            ("CONNECT", "user@a:443", &["a:443"], TunnelTarget),
            ("CONNECT", "a:443", &["b:443"], OtherAuthority),
            ("CONNECT", "a:443", &["a:80"], OtherAuthority),
            ("CONNECT", "a:443", &[], NoHost),
        ] {
            assert_eq!(verdict(method, target, Version::HTTP_11, hosts), Err(fault), "{method} {target} at {hosts:?}");
        }
        assert_eq!(verdict("GET", "/", Version::HTTP_10, &["a", "b"]), Err(SeveralHosts));
    }

    #[test]
    fn an_absolute_target_counts_before_the_field() {
        for (target, version, host, expected) in [
            ("http://a.example:81/x", Version::HTTP_11, Some("b"), "a.example:81"),
            ("http://a.example/x", Version::HTTP_10, None, "a.example"),
            ("/x", Version::HTTP_11, Some("b"), "b"),
        ] {
            let request = Request::post(target).version(version).header("x-first", "1");
            let request = host.into_iter().fold(request, |request, host| request.header(HOST, host));
            let mut request = request.body(()).unwrap();
            assert_eq!(address(&mut request), Ok(()));
            assert_eq!(request.headers()[HOST], expected, "{target}");
        }
    }

    #[test]
    fn http2_must_say_one_thing_and_pad_nothing() {
        let adopted = |authority: &str, field: (&'static str, &'static str)| {
            let request =
                Request::post(format!("http://{authority}/x")).version(Version::HTTP_2).header(field.0, field.1);
            adopt(&mut request.body(()).unwrap())
        };
        assert_eq!(adopted("a", ("host", "A:80")), Ok(()));
        assert_eq!(adopted("a", ("host", "b")), Err(HeadFault::OtherAuthority));
        assert_eq!(adopted("a", ("x", "a b\tc")), Ok(()));
        for value in [" a", "a ", "\ta", "a\t", " "] {
            assert_eq!(adopted("a", ("authorization", value)), Err(HeadFault::PaddedValue), "{value:?}");
        }
    }
}
