//! The host that a request is for, in one form: what scopes and fingerprints compare.
//!
//! Separate from [`super::route`], which compares a host without its port with the one of a route's settings.

use std::borrow::Cow;

use http::request;
use http::uri::Scheme;

/// The host and port that a request names: in lower case, without the port that its scheme has by itself, and without
/// the dot of a name that is written out to the root. `None` if it names none, as HTTP/1.0 may; an empty name is another thing.
///
/// An absolute target counts before the `Host` field, and brings its scheme along; otherwise `tls` says which one it is.
/// A request of HTTP/2 has its `:authority` in the `Host` field by now.
pub fn host(head: &request::Parts, tls: bool) -> Option<Cow<'_, str>> {
    let (named, secured) = match head.uri.authority() {
        Some(authority) => (authority.as_str(), head.uri.scheme().map_or(tls, |scheme| *scheme == Scheme::HTTPS)),
        None => (head.headers.get(http::header::HOST)?.to_str().ok()?, tls),
    };
    let own_port = if secured { ":443" } else { ":80" };
    let kept = named.strip_suffix(own_port).or_else(|| named.strip_suffix(':')).unwrap_or(named);
    // A name that is written out to the root.
    let kept = kept.strip_suffix('.').unwrap_or(kept);
    let is_lower = !kept.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if is_lower { Cow::Borrowed(kept) } else { Cow::Owned(kept.to_ascii_lowercase()) })
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http::header::HOST;

    use super::*;

    fn named(target: &str, field: Option<&str>, tls: bool) -> Option<String> {
        let request = field.into_iter().fold(Request::post(target), |request, field| request.header(HOST, field));
        let head = request.body(()).unwrap().into_parts().0;
        host(&head, tls).map(Cow::into_owned)
    }

    #[test]
    fn the_same_host_is_the_same_however_it_is_written() {
        for (target, field, tls, expected) in [
            ("/", Some("a.test"), false, Some("a.test")),
            ("/", Some("A.Test"), false, Some("a.test")),
            ("/", Some("a.test:80"), false, Some("a.test")),
            ("/", Some("a.test:"), false, Some("a.test")),
            ("/", Some("a.test."), false, Some("a.test")),
            ("/", Some("a.test.:80"), false, Some("a.test")),
            ("/", Some("a.test:443"), true, Some("a.test")),
            ("/", Some("a.test:443"), false, Some("a.test:443")),
            ("/", Some("a.test:80"), true, Some("a.test:80")),
            ("/", Some("a.test:8080"), false, Some("a.test:8080")),
            ("/", Some("[::1]:80"), false, Some("[::1]")),
            ("/", Some("[::80]"), false, Some("[::80]")),
            ("/", Some("[2001:DB8::1]"), false, Some("[2001:db8::1]")),
            ("/", Some(""), false, Some("")),
            ("/", None, false, None),
            ("http://A.test:80/x", Some("a.test"), false, Some("a.test")),
            ("http://a.test:80/x", Some("a.test"), true, Some("a.test")),
            ("https://a.test:443/x", None, false, Some("a.test")),
            ("https://a.test:80/x", None, false, Some("a.test:80")),
        ] {
            assert_eq!(named(target, field, tls).as_deref(), expected, "{target} at {field:?}, tls {tls}");
        }
    }
}
