//! The client of the admin calls: one request, one answer, no cleverness. Proxies of the environment, redirects and repeats
//! are off: a change that was not answered may have been made, and only a person should make it again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use http::{Method, StatusCode};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::{EXIT_FAILURE, EXIT_USAGE, fail, say};
use crate::chain::Chain;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A little more than the admin listener gives a call, so that its own answer is seen.
const TIMEOUT: Duration = Duration::from_secs(35);

/// Talks to the admin listener of one proxy.
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<SecretString>,
    runtime: tokio::runtime::Runtime,
}

/// How a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// No client could be made on this machine.
    #[error("cannot set up a client")]
    SetUp(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nobody answered.
    #[error("no answer from {base}")]
    Unanswered {
        /// Who was called.
        base: Url,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The admin listener refused.
    #[error("{}", .problem["detail"].as_str().unwrap_or("refused without a reason"))]
    Refused {
        /// The status.
        status: StatusCode,
        /// The problem's members.
        problem: Value,
    },
    /// Something answered that is no admin listener.
    #[error("{base} answered {status}, but not as an admin listener of onceproxy does; is --admin right?")]
    Strange {
        /// Who was called.
        base: Url,
        /// The status.
        status: StatusCode,
    },
}

impl Client {
    /// A client for the admin listener at `base`.
    pub(super) fn new(base: Url, token: Option<SecretString>) -> Result<Client, CallError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| CallError::SetUp(error.into()))?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .user_agent(concat!("onceproxy/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| CallError::SetUp(error.into()))?;
        Ok(Client { http, base, token, runtime })
    }

    /// Calls `path` (its segments, unencoded) with this query, and returns the body of a success.
    pub(super) fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Vec<u8>, CallError> {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("an http URL has a path").clear().extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose_secret());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        self.runtime.block_on(self.send(request))
    }

    /// As [`Client::call`], for an answer in JSON.
    pub(super) fn call_json(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value, CallError> {
        let body = self.call(method, path, query, body)?;
        serde_json::from_slice(&body)
            .map_err(|_| CallError::Strange { base: self.base.clone(), status: StatusCode::OK })
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, CallError> {
        // reqwest names the URL in its errors, and a query may hold what is not to be shown.
        let unanswered =
            |source: reqwest::Error| CallError::Unanswered { base: self.base.clone(), source: source.without_url() };
        let response = request.send().await.map_err(unanswered)?;
        let status = response.status();
        let body = response.bytes().await.map_err(unanswered)?;
        if status.is_success() {
            return Ok(body.to_vec());
        }
        match serde_json::from_slice::<Value>(&body) {
            Ok(problem) if problem["type"].as_str().is_some_and(|kind| kind.starts_with("urn:onceproxy:problem:")) => {
                Err(CallError::Refused { status, problem })
            }
            _ => Err(CallError::Strange { base: self.base.clone(), status }),
        }
    }
}

impl CallError {
    /// Prints what went wrong, what would be right, and the current record if one came along.
    pub(super) fn report(&self) -> ExitCode {
        match self {
            CallError::Refused { status, problem } => {
                fail(&self.to_string());
                if problem["state"].is_string() {
                    say(&super::records::describe(problem));
                }
                match *status {
                    StatusCode::UNAUTHORIZED => {
                        say("hint: give the token by ONCEPROXY_ADMIN_TOKEN, --admin-token-file or the settings");
                        ExitCode::from(EXIT_FAILURE)
                    }
                    StatusCode::BAD_REQUEST => ExitCode::from(EXIT_USAGE),
                    _ => ExitCode::from(EXIT_FAILURE),
                }
            }
            CallError::Unanswered { source, .. } => {
                let code = fail(&Chain(self).to_string());
                if source.is_connect() {
                    say("hint: is the proxy running, and is its admin listener there? --admin ADDRESS names another");
                } else {
                    say("hint: a change may have been made all the same; look at the record before you repeat it");
                }
                code
            }
            CallError::SetUp(_) | CallError::Strange { .. } => fail(&Chain(self).to_string()),
        }
    }
}

/// Reads `HOST:PORT` or `http://HOST:PORT`.
pub(super) fn parse_base(text: &str) -> Result<Url, String> {
    let right = "write ADDRESS:PORT or http://ADDRESS:PORT";
    let is_url = text.contains("://");
    let full = if is_url { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&full).map_err(|error| format!("{error}; {right}"))?;
    if url.scheme() != "http" {
        return Err(format!("the admin listener speaks plain HTTP; {right}, through a tunnel if need be"));
    }
    let plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if !plain || url.password().is_some() {
        return Err(format!("there is more than an address in it; {right}"));
    }
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if !is_url && !has_port {
        return Err(format!("there is no port in it; {right}"));
    }
    Ok(url)
}

/// Where a listener bound to `listen` is reached from its own host.
pub(super) fn base_of(listen: SocketAddr) -> Url {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Url::parse(&format!("http://{}", SocketAddr::new(ip, listen.port())))
        .expect("a socket address is a URL's authority")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_addresses_and_urls() {
        for (text, url) in [
            ("127.0.0.1:9090", "http://127.0.0.1:9090/"),
            ("localhost:9", "http://localhost:9/"),
            ("[::1]:9090", "http://[::1]:9090/"),
            ("http://proxy.internal:9090/", "http://proxy.internal:9090/"),
        ] {
            assert_eq!(parse_base(text).unwrap().as_str(), url);
        }
        for (text, says) in [
            ("https://h:1", "plain HTTP"),
            ("http://h:1/records", "more than an address"),
            ("http://u:p@h:1", "more than an address"),
            ("h:port", "write ADDRESS:PORT"),
            ("localhost", "no port in it; write ADDRESS:PORT"),
            ("[::1]", "no port in it"),
            ("", "write ADDRESS:PORT"),
        ] {
            let error = parse_base(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn reaches_a_listener_on_all_addresses_by_loopback() {
        for (listen, url) in [
            ("0.0.0.0:9090", "http://127.0.0.1:9090/"),
            ("[::]:9090", "http://[::1]:9090/"),
            ("10.1.2.3:9", "http://10.1.2.3:9/"),
        ] {
            assert_eq!(base_of(listen.parse().unwrap()).as_str(), url);
        }
    }
}
