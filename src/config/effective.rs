//! Prints settings as the TOML that would give the same ones, with secrets masked.
//!
//! For `onceproxy check` and the admin call `/config`. Every setting is written out; the preset is named for people.

use std::fmt::{Display, Write as _};
use std::path::Path;
use std::time::Duration;

use toml::Value;

use super::address::print_upstream;
use super::postgres_url;
use super::route::{
    BODY_MODES, FORWARDED, ON_DUPLICATE, ON_STORE_ERROR, ON_UNKNOWN, PROTOCOLS, REPLAY_TO, UNDERSCORES,
};
use super::rules;
use super::sections::{FORMATS, LEVELS};
use super::sources::{print_key_source, print_scope_part};
use super::statuses::Verdict;
use super::store::{Backend, Password, SslMode, StoreConfig, Topology};
use super::store_url::{self, MASK};
use super::values::{print_duration, print_size, word};
use super::{Config, ForwardKey, Route, Upstream, authorize, verify};

/// The effective settings as TOML. It loads again to the same settings, except that secrets are masked.
pub fn effective(config: &Config) -> String {
    let mut page = Page(String::new());
    match config.listen.as_slice() {
        [one] => page.text("listen", one),
        several => page.texts("listen", several),
    }
    page.value("h2c", config.h2c);
    page.duration("drain_timeout", config.drain_timeout);
    page.duration("drain_delay", config.drain_delay);
    page.duration("liveness_stall", config.liveness_stall);
    page.number("threads", config.threads);
    if let Some(tls) = &config.tls {
        page.head("[tls]");
        page.path("cert_file", Some(&tls.cert_file));
        page.path("key_file", Some(&tls.key_file));
        page.path("client_ca_file", tls.client_ca_file.as_deref());
    }
    limits(&mut page, config);
    page.head("[log]");
    page.text("level", word(&LEVELS, &config.log.level));
    page.text("format", word(&FORMATS, &config.log.format));
    page.value("requests", config.log.requests);
    page.head("[trace]");
    if let Some(endpoint) = &config.trace.otlp_endpoint {
        page.text("otlp_endpoint", endpoint);
    }
    page.value("sample", config.trace.sample);
    page.text("service_name", &config.trace.service_name);
    page.head("[admin]");
    page.text("listen", config.admin.listen.map_or_else(|| "off".to_owned(), |address| address.to_string()));
    if config.admin.token.is_some() {
        page.text("token", MASK);
    }
    page.head("[egress]");
    page.texts("allow", &config.egress.allow.0);
    page.texts("tunnels", &config.egress.tunnels.0);
    store(&mut page, &config.store);
    for one in &config.routes {
        route(&mut page, one);
    }
    page.0
}

fn limits(page: &mut Page, config: &Config) {
    let limits = &config.limits;
    page.head("[limits]");
    page.number("connections", limits.connections);
    page.number("streams", limits.streams);
    page.number("in_flight", limits.in_flight);
    page.number("waiting", limits.waiting);
    page.size("buffered", limits.buffered);
    page.size("header_bytes", limits.header_bytes);
    page.duration("header_timeout", limits.header_timeout);
    page.duration("body_timeout", limits.body_timeout);
    page.duration("idle_timeout", limits.idle_timeout);
}

fn store(page: &mut Page, store: &StoreConfig) {
    page.head("[store]");
    page.text("url", store_url::print(&store.backend));
    page.duration("timeout", store.timeout);
    page.text("prefix", &store.prefix);
    page.value("allow_eviction", store.allow_eviction);
    let password = match &store.backend {
        Backend::Redis(redis) => redis.password.as_ref(),
        Backend::Postgres(postgres) => postgres.password.as_ref(),
        Backend::Memory | Backend::Disk { .. } => None,
    };
    page.path("password_file", password.and_then(Password::file));
    if let Backend::Redis(redis) = &store.backend {
        let wait = redis.acknowledged;
        page.number("wait_replicas", wait.map_or(0, |wait| wait.replicas as usize));
        if let Some(wait) = wait {
            page.value("wait_aof", wait.on_disk);
            page.duration("wait_timeout", wait.timeout);
        }
        if let Topology::Sentinel(sentinels) = &redis.topology {
            if let Some(username) = &sentinels.username {
                page.text("sentinel_username", username);
            }
            match &sentinels.password {
                Some(Password::Given(_)) => page.text("sentinel_password", store_url::MASK),
                Some(Password::InFile(file)) => page.path("sentinel_password_file", Some(file)),
                None => {}
            }
        }
        let tls = redis.tls.clone().unwrap_or_default();
        page.path("ca_file", tls.ca_file.as_deref());
        page.path("client_cert_file", tls.client.as_ref().map(|(cert, _)| cert.as_path()));
        page.path("client_key_file", tls.client.as_ref().map(|(_, key)| key.as_path()));
    }
    if let Backend::Postgres(postgres) = &store.backend
        && postgres.sslmode != SslMode::Disable
    {
        page.path("ca_file", postgres.ca_file.as_deref());
        page.path("client_cert_file", postgres.client.as_ref().map(|(cert, _)| cert.as_path()));
        page.path("client_key_file", postgres.client.as_ref().map(|(_, key)| key.as_path()));
    }
    if let Some(second) = &store.second_line {
        page.head("[second_line]");
        page.text("url", postgres_url::print(&second.postgres));
        page.duration("timeout", second.timeout);
        page.path("password_file", second.postgres.password.as_ref().and_then(Password::file));
        page.path("ca_file", second.postgres.ca_file.as_deref());
    }
}

fn route(page: &mut Page, route: &Route) {
    page.head("[[route]]");
    page.text("name", &route.name);
    if let Some(host) = &route.host {
        page.text("host", host);
    }
    page.text("path", &route.path);
    page.text("preset", route.preset);
    page.value("strip_prefix", route.strip_prefix);
    page.text("upstream", print_upstream(&route.upstream));
    upstream(page, &route.upstream);
    page.texts("methods", &route.methods);
    page.value("key", route.key.iter().map(print_key_source).collect::<Vec<_>>());
    page.value("key_required", route.key_required);
    page.number("max_key_length", route.max_key_length);
    page.value("scope", route.scope.iter().map(print_scope_part).collect::<Vec<_>>());
    if let Some(authorize) = &route.authorize {
        page.text("authorize", authorize::print(authorize));
        page.path("authorize_ca_file", authorize.upstream.ca_file.as_deref());
    }
    page.duration("authorize_timeout", route.authorize_timeout);
    for (key, value) in route.verify.iter().flat_map(verify::print) {
        page.value(key, value);
    }
    page.text("replay_to", word(&REPLAY_TO, &route.replay_to));
    page.text("fingerprint.body", word(&BODY_MODES, &route.fingerprint.body));
    page.texts("fingerprint.headers", &route.fingerprint.headers);
    page.texts("fingerprint.ignore_query", &route.fingerprint.ignore_query);
    page.texts("fingerprint.ignore", &route.fingerprint.ignore);
    page.text("on_duplicate", word(&ON_DUPLICATE, &route.on_duplicate));
    page.duration("wait_timeout", route.wait_timeout);
    let lists = route.statuses.lists();
    for verdict in Verdict::ALL {
        page.texts(verdict.key(), lists.of(verdict));
    }
    page.texts("stream_types", &route.stream_types);
    page.text("on_unknown", word(&ON_UNKNOWN, &route.on_unknown));
    times(page, route);
    if let Some(most) = route.max_in_flight {
        page.number("max_in_flight", most);
    }
    page.size("max_request_body", route.max_request_body);
    page.size("max_response_body", route.max_response_body);
    page.text("on_store_error", word(&ON_STORE_ERROR, &route.on_store_error));
    page.texts("keep_headers", &route.keep_headers);
    page.texts("cors_origins", &route.cors_origins);
    match &route.forward_key {
        ForwardKey::Same => page.text("forward_key", "same"),
        ForwardKey::None => page.text("forward_key", "none"),
        ForwardKey::Renamed(name) => page.text("forward_key", name),
    }
    page.value("preserve_host", route.preserve_host);
    page.text("underscores", word(&UNDERSCORES, &route.underscores));
    page.text("forwarded", word(&FORWARDED, &route.forwarded));
    page.duration("connect_timeout", route.connect_timeout);
    page.duration("idle_timeout", route.idle_timeout);
    for rule in &route.when {
        page.head("[[route.when]]");
        for (key, text) in rules::lines(rule) {
            page.line(format_args!("{key} = {text}"));
        }
    }
}

fn upstream(page: &mut Page, upstream: &Upstream) {
    if let Some(proxy) = &upstream.proxy {
        page.text("upstream_proxy", format!("http://{}", proxy.authority()));
    }
    page.text("upstream_protocol", word(&PROTOCOLS, &upstream.http2));
    page.duration("h2_ping_after", upstream.pings.after);
    page.duration("h2_ping_timeout", upstream.pings.timeout);
    page.duration("dns_refresh", upstream.dns_refresh.0);
    page.path("ca_file", upstream.ca_file.as_deref());
    page.path("client_cert_file", upstream.client.as_ref().map(|(cert, _)| cert.as_path()));
    page.path("client_key_file", upstream.client.as_ref().map(|(_, key)| key.as_path()));
    if let Some(name) = &upstream.server_name {
        page.text("server_name", name);
    }
}

fn times(page: &mut Page, route: &Route) {
    page.duration("retention", route.retention);
    match route.unknown_retention {
        Some(age) => page.duration("unknown_retention", age),
        None => page.text("unknown_retention", "never"),
    }
    page.duration("timeout", route.timeout);
    page.duration("abandon_after", route.abandon_after);
    page.duration("lease", route.lease);
}

/// TOML under construction.
struct Page(String);

impl Page {
    fn head(&mut self, head: &str) {
        self.line(format_args!("\n{head}"));
    }

    fn value(&mut self, key: &str, value: impl Into<Value>) {
        self.line(format_args!("{key} = {}", value.into()));
    }

    fn text(&mut self, key: &str, text: impl Display) {
        self.value(key, text.to_string());
    }

    fn texts(&mut self, key: &str, texts: &[impl ToString]) {
        self.value(key, texts.iter().map(ToString::to_string).collect::<Vec<_>>());
    }

    fn number(&mut self, key: &str, number: usize) {
        self.value(key, i64::try_from(number).unwrap_or(i64::MAX));
    }

    fn size(&mut self, key: &str, bytes: usize) {
        self.text(key, print_size(u64::try_from(bytes).unwrap_or(u64::MAX)));
    }

    fn duration(&mut self, key: &str, duration: Duration) {
        self.text(key, print_duration(duration));
    }

    fn path(&mut self, key: &str, path: Option<&Path>) {
        if let Some(path) = path {
            self.text(key, path.display());
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("writing to a String cannot fail");
    }
}
