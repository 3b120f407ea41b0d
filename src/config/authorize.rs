//! `authorize`: the URL of a service that is asked whether a caller may have what a record says.

use http::Uri;
use http::uri::PathAndQuery;

use super::Upstream;
use super::address::{print_upstream, upstream};
use super::mistakes::{Wrong, wrong};
use super::tree::Section;

/// A service that is asked before each replay and each join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorize {
    /// Where it is.
    pub upstream: Upstream,
    /// What is asked for there.
    pub target: PathAndQuery,
}

/// Reads `authorize` and what goes with it.
pub(super) fn read(section: &mut Section<'_>) -> Option<Authorize> {
    let given = section.text("authorize", url).map(|located| located.value);
    let ca_file = section.path("authorize_ca_file");
    if section.has("authorize_ca_file") && !given.as_ref().is_some_and(|given| given.upstream.tls) {
        let what = wrong("no service is asked by TLS", "take it out, or write https:// in `authorize`");
        section.mistake("authorize_ca_file", what);
    }
    let mut authorize = given?;
    authorize.upstream.ca_file = ca_file;
    Some(authorize)
}

/// Parses the URL. Messages do not show it back, since a password may stand in it by mistake.
fn url(text: &str) -> Result<Authorize, Wrong> {
    let right = "write a URL such as \"http://127.0.0.1:9000/check\", or unix:/path/to.sock";
    if text.starts_with("unix:") {
        return Ok(Authorize { upstream: upstream(text)?, target: PathAndQuery::from_static("/") });
    }
    let uri: Uri = text.parse().map_err(|_| wrong("this is not a URL", right))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(wrong("this is not a URL with http:// or https:// and a host", right));
    };
    if authority.as_str().contains('@') {
        return Err(wrong("the URL carries a user or password", "take them out; callers send their own Authorization"));
    }
    if text.contains('#') {
        return Err(wrong("a fragment is never sent", "take off the # and what follows it"));
    }
    let place =
        upstream(&format!("{scheme}://{authority}")).map_err(|what| Wrong { right: right.to_owned(), ..what })?;
    let target = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Ok(Authorize { upstream: place, target })
}

/// The URL as it is written in a file.
pub(super) fn print(authorize: &Authorize) -> String {
    let place = print_upstream(&authorize.upstream);
    if authorize.upstream.socket.is_some() { place } else { format!("{place}{}", authorize.target) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_prints_as_it_is_meant() {
        for (text, printed) in [
            ("http://auth:9000/check", "http://auth:9000/check"),
            ("https://auth.example", "https://auth.example/"),
            ("https://auth.example:443/a?b=c", "https://auth.example/a?b=c"),
            ("http://auth?b=c", "http://auth/?b=c"),
            ("http://[::1]:9000/", "http://[::1]:9000/"),
            ("unix:/run/auth.sock", "unix:/run/auth.sock"),
        ] {
            let printed_of = |text| print(&url(text).unwrap());
            assert_eq!(printed_of(text), printed);
            assert_eq!(printed_of(printed), printed);
        }
        for text in [
            "",
            "auth",
            "/check",
            "auth:9000",
            "ftp://auth/",
            "http://",
            "http:///check",
            "http://u:p@auth/",
            "http://auth/#x",
            "http://{host}/check",
            "http://auth:0/",
            "unix:run/auth.sock",
        ] {
            assert!(url(text).is_err(), "{text}");
        }
    }
}
