//! The first lines of the log: what to call, where it goes, what is kept where, and how to try it. Once, at start.
//!
//! For people as sentences; for machines as fields.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method};
use tokio::time::sleep;

use crate::config::{Config, KeySource, LogFormat, Route};
use crate::server::Door;
use crate::store::Store;

/// The key of the request to try.
const KEY: &str = "try-1";

/// The preset of routes that a try should not surprise.
const PAYMENT: &str = "payment";

/// How many routes are introduced; the rest is counted.
const ROUTES: usize = 2;

/// How often a store that is away is looked at.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// What is to be said, once, when all works.
pub(super) struct Introduction {
    url: Option<String>,
    config: Config,
}

impl Introduction {
    /// Of a proxy that listens there.
    pub(super) fn new(config: &Config, doors: &[Door]) -> Introduction {
        Introduction { url: doors.first().map(url), config: config.clone() }
    }

    /// Says it when the store can be used.
    pub(super) async fn say_when_ready(self, store: Arc<dyn Store>) {
        while store.ready().is_err() {
            sleep(BETWEEN_LOOKS).await;
        }
        self.say();
    }

    /// Says it.
    pub(super) fn say(&self) {
        let Some(url) = self.url.as_deref() else { return };
        let (routes, store) = (&self.config.routes, self.config.store.shown());
        let tried = routes.iter().find_map(|route| Some((route, curl(url, route)?)));
        if self.config.log.format == LogFormat::Json {
            let curl = tried.map(|(_, curl)| curl);
            for route in routes.iter().take(ROUTES) {
                let Route { name, preset, upstream, host, .. } = &**route;
                let (url, host, upstream) = (called(url, route), host.as_deref(), upstream.shown());
                tracing::info!(url, host, upstream, route = &**name, preset, store, curl, "serving");
            }
            return;
        }
        for route in routes.iter().take(ROUTES) {
            let Route { name, preset, upstream, host, .. } = &**route;
            let host = host.as_ref().map(|host| format!(" for the host {host}")).unwrap_or_default();
            let (called, upstream) = (called(url, route), upstream.shown());
            tracing::info!("{called}{host} goes to {upstream} (route {name}, preset {preset}); records in {store}");
        }
        let more = routes.len().saturating_sub(ROUTES);
        if more > 0 {
            tracing::info!("and {more} more routes; `onceproxy check` prints all settings");
        }
        if let Some((route, curl)) = tried {
            let warning = if route.preset == PAYMENT { " (the first one reaches the upstream)" } else { "" };
            tracing::info!("to see it work, run this twice{warning}: {curl}");
        }
    }
}

/// Where clients on this host can call it.
fn url(door: &Door) -> String {
    let shown = door.to_string();
    let Ok(mut address) = shown.parse::<SocketAddr>() else { return shown };
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let scheme = if door.is_secured() { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// What of it the route takes.
fn called(url: &str, route: &Route) -> String {
    let path = if route.path == "/" { "" } else { route.path.as_str() };
    format!("{url}{path}")
}

/// A command that sends a request with a key; none where a key cannot be guessed, or a signature is asked for.
fn curl(url: &str, route: &Route) -> Option<String> {
    if route.upstream.egress.is_some() || route.verify.is_some() {
        return None;
    }
    let method = route.methods.iter().find(|method| **method == Method::POST).or(route.methods.first())?;
    let mut words = vec!["curl -i".to_owned()];
    if *method != Method::POST {
        words.push(format!("-X {method}"));
    }
    let mut target = match url.strip_prefix("unix:") {
        Some(socket) => {
            words.push(format!("--unix-socket '{socket}'"));
            format!("http://localhost{}", route.path)
        }
        None => format!("{url}{}", route.path),
    };
    let mut fields: Vec<_> = route.host.iter().map(|host| format!("-H 'Host: {host}'")).collect();
    let mut body = "-d amount=10".to_owned();
    let parts = match route.key.first()? {
        KeySource::Joined(parts) => parts.as_slice(),
        single => std::slice::from_ref(single),
    };
    for part in parts {
        match part {
            KeySource::Header(name) => fields.push(format!("-H '{}: {KEY}'", written(name))),
            KeySource::Query(name) if is_plain(name) => {
                target.push(if target.contains('?') { '&' } else { '?' });
                target.push_str(&format!("{name}={KEY}"));
            }
            KeySource::Json(pointer) if parts.len() == 1 => {
                let name = pointer.strip_prefix('/').filter(|name| is_plain(name))?;
                body = format!("-H 'Content-Type: application/json' -d '{{\"{name}\":\"{KEY}\"}}'");
            }
            KeySource::Fingerprint => {}
            _ => return None,
        }
    }
    words.push(if target.contains('?') { format!("'{target}'") } else { target });
    words.extend(fields);
    words.push(body);
    Some(words.join(" "))
}

/// Whether it can stand in a URL, in JSON and in a shell as it is.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// A header's name as people write it.
fn written(name: &HeaderName) -> String {
    let words = name.as_str().split('-').map(|word| {
        let (first, rest) = word.split_at(usize::from(!word.is_empty()));
        first.to_ascii_uppercase() + rest
    });
    words.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Sources};

    fn curl_of(lines: &str) -> Option<String> {
        let text = format!("[[route]]\nname = \"r\"\nupstream = \"http://u.example\"\n{lines}");
        let loaded = config::load(&Sources::text(text)).unwrap_or_else(|wrong| panic!("{wrong}"));
        curl("http://127.0.0.1:8080", &loaded.config.routes[0])
    }

    #[test]
    fn the_command_has_a_key_where_the_route_looks_for_it() {
        for (lines, command) in [
            ("", "curl -i http://127.0.0.1:8080/ -H 'Idempotency-Key: try-1' -d amount=10"),
            (
                "key = [\"query:id\"]\nmethods = [\"PUT\"]",
                "curl -i -X PUT 'http://127.0.0.1:8080/?id=try-1' -d amount=10",
            ),
            ("key = [\"fingerprint\"]\npath = \"/v1/\"", "curl -i http://127.0.0.1:8080/v1/ -d amount=10"),
            (
                "key = [\"json:/event_id\"]",
                "curl -i http://127.0.0.1:8080/ -H 'Content-Type: application/json' -d '{\"event_id\":\"try-1\"}'",
            ),
            (
                "key = [[\"header:ce-source\", \"header:ce-id\"]]\nhost = \"h.example\"",
                "curl -i http://127.0.0.1:8080/ -H 'Host: h.example' -H 'Ce-Source: try-1' -H 'Ce-Id: try-1' -d amount=10",
            ),
        ] {
            assert_eq!(curl_of(lines).as_deref(), Some(command), "{lines}");
        }
        let signed = "[route.verify]\npreset = \"github\"\nsecrets = [{ file = \"f\" }]";
        for lines in ["key = [\"json:/a/b\"]", "methods = []", signed] {
            assert_eq!(curl_of(lines), None, "{lines}");
        }
    }
}
