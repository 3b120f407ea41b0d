//! One `[[route]]`: its own settings over those of its preset, and what cannot stand together in it.

use std::sync::Arc;
use std::time::Duration;

use http::Method;

use super::address::{http_proxy, print_upstream, server_name, upstream};
use super::commanded::Commanded;
use super::mistakes::{Located, wrong};
use super::origins::origin;
use super::presets::{Defaults, PRESETS, Preset, SENDERS, Sender};
use super::rules;
use super::sources::{forward_key, ignored_parameter, key_source, scope_part};
use super::statuses::{Lists, Verdict, entry};
use super::tree::{Section, string};
use super::values::{
    at_least, choice, choice_of_names, count, duration_or_never, field_name, json_pointer, kept_field, media_type,
    method, route_host, route_name, route_path, size, word,
};
use super::{
    BodyMode, COMMANDED_ROUTE, DnsRefresh, Egress, Environment, Fingerprint, ForwardKey, Forwarded, KeySource,
    OPERATION, OnDuplicate, OnStoreError, OnUnknown, Pings, ReplayTo, Route, ScopePart, Underscores, Upstream,
    authorize, verify,
};

/// The words of `fingerprint.body`.
pub(super) const BODY_MODES: [(&str, BodyMode); 5] = [
    ("bytes", BodyMode::Bytes),
    ("json", BodyMode::Json),
    ("form", BodyMode::Form),
    ("multipart", BodyMode::Multipart),
    ("ignore", BodyMode::Ignore),
];
/// The words of `replay_to`.
pub(super) const REPLAY_TO: [(&str, ReplayTo); 2] =
    [("same-credentials", ReplayTo::SameCredentials), ("scope", ReplayTo::Scope)];
/// The words of `on_duplicate`.
pub(super) const ON_DUPLICATE: [(&str, OnDuplicate); 2] =
    [("wait", OnDuplicate::Wait), ("reject", OnDuplicate::Reject)];
/// The words of `on_unknown`.
pub(super) const ON_UNKNOWN: [(&str, OnUnknown); 2] = [("hold", OnUnknown::Hold), ("resend", OnUnknown::Resend)];
/// The words of `on_store_error`.
pub(super) const ON_STORE_ERROR: [(&str, OnStoreError); 2] =
    [("reject", OnStoreError::Reject), ("forward", OnStoreError::Forward)];
/// The words of `upstream_protocol`, and whether each is HTTP/2.
pub(super) const PROTOCOLS: [(&str, bool); 2] = [("h1", false), ("h2", true)];
/// The words of `underscores`.
pub(super) const UNDERSCORES: [(&str, Underscores); 3] =
    [("drop", Underscores::Drop), ("pass", Underscores::Pass), ("refuse", Underscores::Refuse)];
/// The words of `forwarded`.
pub(super) const FORWARDED: [(&str, Forwarded); 2] = [("append", Forwarded::Append), ("drop", Forwarded::Drop)];

/// The media types that flow while they arrive.
const STREAM_TYPES: [&str; 5] = [
    "text/event-stream",
    "application/x-ndjson",
    "application/jsonl",
    "application/json-seq",
    "multipart/x-mixed-replace",
];

const MOMENT: Duration = Duration::from_millis(1);
/// Below this, one hiccup of the scheduler or the store ends a claim.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// A route, and what it was made from.
pub(super) struct Made {
    pub(super) route: Route,
    pub(super) preset: Preset,
    pub(super) sender: Option<Sender>,
    pub(super) lists: Lists,
    /// Whether it has a name of its own, and a right one.
    pub(super) is_named: bool,
    /// Whether what it matches holds as written.
    pub(super) is_matchable: bool,
}

/// Reads a route. `outer` is what is said outside the file, for the one route that needs no file.
pub(super) fn read(
    section: &mut Section<'_>,
    outer: Option<&Commanded>,
    egress: &Arc<Egress>,
    environment: &Environment,
) -> Made {
    let preset = section.text("preset", choice(&PRESETS)).map(|located| located.value);
    let preset = preset.or(outer.and_then(|outer| outer.preset)).unwrap_or(Preset::Api);
    let sender = section.text("key_preset", choice_of_names(&SENDERS)).map(|located| located.value);
    let defaults = preset.defaults();
    let lists = statuses(section, &defaults);
    let (host, path) = (section.text("host", route_host), section.text("path", route_path));
    let is_matchable = host.is_some() == section.has("host") && path.is_some() == section.has("path");
    let own_name = name(section, outer);
    let is_named = own_name.is_some();
    let route = Route {
        name: own_name.unwrap_or_else(|| COMMANDED_ROUTE.into()),
        host: host.map(|located| located.value),
        path: path.map_or_else(|| "/".to_owned(), |located| located.value),
        preset: word(&PRESETS, &preset),
        strip_prefix: section.flag("strip_prefix", false),
        upstream: target(section, outer, egress),
        methods: methods(section, &defaults),
        key: key(section, &defaults, sender, outer),
        key_required: section.flag("key_required", defaults.key_required),
        max_key_length: section.read("max_key_length", count(1, 8192)).map_or(255, |located| located.value),
        scope: scope(section, &defaults, sender, outer),
        authorize: authorize::read(section),
        authorize_timeout: section.duration("authorize_timeout", MOMENT, Duration::from_secs(1)),
        verify: verify::read(section, environment),
        replay_to: section.word("replay_to", &REPLAY_TO, defaults.replay_to),
        fingerprint: fingerprint(section, &defaults),
        on_duplicate: section.word("on_duplicate", &ON_DUPLICATE, OnDuplicate::Wait),
        wait_timeout: section.duration("wait_timeout", Duration::ZERO, defaults.wait_timeout),
        statuses: lists.policy(),
        when: rules::read(section),
        stream_types: section
            .texts("stream_types", media_type)
            .unwrap_or_else(|| STREAM_TYPES.map(str::to_owned).into()),
        on_unknown: section.word("on_unknown", &ON_UNKNOWN, defaults.on_unknown),
        retention: section.duration("retention", MOMENT, defaults.retention),
        unknown_retention: section.text("unknown_retention", duration_or_never).and_then(|located| located.value),
        timeout: section.duration("timeout", MOMENT, defaults.timeout),
        abandon_after: section.duration("abandon_after", MOMENT, defaults.abandon_after),
        lease: section.text("lease", at_least(SHORTEST_LEASE)).map_or(Duration::from_secs(10), |located| located.value),
        max_in_flight: section.read("max_in_flight", count(1, 10_000_000)).map(|located| located.value),
        max_request_body: section.size("max_request_body", 8 << 20),
        max_response_body: section.size("max_response_body", 1 << 20),
        on_store_error: section.word("on_store_error", &ON_STORE_ERROR, OnStoreError::Reject),
        keep_headers: section.texts("keep_headers", kept_field).unwrap_or_default(),
        cors_origins: section.texts("cors_origins", origin).unwrap_or_default(),
        forward_key: section.text("forward_key", forward_key).map_or(ForwardKey::Same, |located| located.value),
        preserve_host: section.flag("preserve_host", defaults.preserve_host),
        underscores: section.word("underscores", &UNDERSCORES, Underscores::Drop),
        forwarded: section.word("forwarded", &FORWARDED, defaults.forwarded),
        connect_timeout: section.duration("connect_timeout", MOMENT, Duration::from_secs(5)),
        idle_timeout: section.duration("idle_timeout", MOMENT, Duration::from_secs(4)),
    };
    contradictions(section, &route);
    Made { route, preset, sender, lists, is_named, is_matchable }
}

impl Section<'_> {
    fn word<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)], default: T) -> T {
        self.text(key, choice(words)).map_or(default, |located| located.value)
    }

    fn size(&mut self, key: &'static str, default: usize) -> usize {
        self.text(key, size(0, 1 << 30)).map_or(default, |located| located.value)
    }
}

fn name(section: &mut Section<'_>, outer: Option<&Commanded>) -> Option<Arc<str>> {
    let given = section.text("name", route_name);
    if given.is_none() && !section.has("name") && outer.is_none() {
        section.mistake(
            "name",
            wrong("the route has no name", "add name = \"…\"; it stands in records, metrics and logs"),
        );
    }
    given.map(|located| located.value.into())
}

/// Settings of a route that mean nothing without TLS.
const TLS_ONLY: [&str; 4] = ["ca_file", "client_cert_file", "client_key_file", "server_name"];

fn target(section: &mut Section<'_>, outer: Option<&Commanded>, egress: &Arc<Egress>) -> Upstream {
    let given = section
        .text("upstream", upstream)
        .map(|located| located.value)
        .or_else(|| outer.map(|outer| outer.upstream.clone()));
    if given.is_none() && !section.has("upstream") {
        section.mistake("upstream", wrong("the route has no upstream", "add upstream = \"http://HOST:PORT\""));
    }
    let known = given.is_some();
    // Reported already where it is missing; the place holder never leaves this module's caller.
    let mut target = given.unwrap_or_default();
    if let Some(reachable) = &mut target.egress {
        *reachable = egress.clone();
        if egress.allow.0.is_empty() {
            let what = "requests name the host, and none may be reached";
            section
                .mistake("upstream", wrong(what, "add [egress] with allow = [\"api.example.com\"], or name the host"));
        }
    }
    target.ca_file = section.path("ca_file");
    target.http2 = section.word("upstream_protocol", &PROTOCOLS, false);
    let pings = Pings::default();
    target.pings = Pings {
        after: section.duration("h2_ping_after", MOMENT, pings.after),
        timeout: section.duration("h2_ping_timeout", MOMENT, pings.timeout),
    };
    target.dns_refresh = DnsRefresh(section.duration("dns_refresh", MOMENT, DnsRefresh::default().0));
    target.client = section.client_certificate();
    target.server_name = section.text("server_name", server_name).map(|located| located.value);
    target.proxy = section.text("upstream_proxy", http_proxy).map(|located| located.value);
    for key in TLS_ONLY.into_iter().filter(|key| known && !target.tls && section.has(key)) {
        let what = wrong("the upstream is not reached by TLS", "take it out, or write https:// in `upstream`");
        section.mistake(key, what);
    }
    if target.socket.is_some() && section.has("upstream_proxy") {
        section.mistake("upstream_proxy", wrong("a proxy cannot connect to a socket of this host", "take it out"));
    }
    if target.egress.is_some() && section.has("upstream_proxy") {
        let what = "which address a requested host has would be the other proxy's to say";
        section.mistake("upstream_proxy", wrong(what, "take it out, or name the host in `upstream`"));
    }
    target
}

fn methods(section: &mut Section<'_>, defaults: &Defaults) -> Vec<Method> {
    section.texts("methods", method).unwrap_or_else(|| defaults.methods.clone())
}

fn key(
    section: &mut Section<'_>,
    defaults: &Defaults,
    sender: Option<Sender>,
    outer: Option<&Commanded>,
) -> Vec<KeySource> {
    let given = section.list("key", key_source);
    if section.has("key") && section.has("key_preset") {
        let what = wrong("`key` and `key_preset` both say where the key is", "keep one of them");
        section.mistake("key_preset", what);
    }
    let Some(given) = given else {
        let commanded = outer.and_then(|outer| outer.key.clone()).map(|source| vec![source]);
        return commanded.or(sender.map(Sender::key)).unwrap_or_else(|| defaults.key.clone());
    };
    if section.is_empty_list("key") {
        let right = "name a source such as \"header:Idempotency-Key\"; a route that protects nothing has methods = []";
        section.mistake("key", wrong("no source is named, so no request would have a key", right));
    }
    let last = given.len().saturating_sub(1);
    if given.iter().take(last).any(|source| source.value == KeySource::Fingerprint) {
        section
            .mistake("key", wrong("\"fingerprint\" is always there, so later sources are never asked", "put it last"));
    }
    given.into_iter().map(|located| located.value).collect()
}

fn scope(
    section: &mut Section<'_>,
    defaults: &Defaults,
    sender: Option<Sender>,
    outer: Option<&Commanded>,
) -> Vec<ScopePart> {
    section.texts("scope", scope_part).unwrap_or_else(|| {
        let mut scope = defaults.scope.clone();
        scope.extend(sender.map(Sender::scope).unwrap_or_default());
        // Two proxies started by hand in front of two upstreams may share a store: their keys are not the same.
        scope.extend(outer.map(|outer| ScopePart::Constant(identity(&outer.upstream))));
        scope
    })
}

/// What tells an upstream from others on the same store. Socket files all have the same authority.
fn identity(upstream: &Upstream) -> String {
    if upstream.socket.is_some() { print_upstream(upstream) } else { upstream.authority() }
}

fn fingerprint(route: &mut Section<'_>, defaults: &Defaults) -> Fingerprint {
    let mut section = route.section("fingerprint");
    let body = section.word("body", &BODY_MODES, defaults.body);
    let headers = section.texts("headers", field_name).unwrap_or_else(|| OPERATION.to_vec());
    let ignore_query = section.texts("ignore_query", ignored_parameter).unwrap_or_default();
    let ignore = section.texts("ignore", json_pointer).unwrap_or_default();
    if !ignore.is_empty() && body != BodyMode::Json {
        section.mistake(
            "ignore",
            wrong("only members of a JSON body can be left out", "set fingerprint.body = \"json\", or take it out"),
        );
    }
    section.finish();
    Fingerprint { body, headers, ignore_query, ignore }
}

/// The preset's lists under the route's own.
fn statuses(section: &mut Section<'_>, defaults: &Defaults) -> Lists {
    let own = Verdict::ALL.map(|verdict| (verdict, section.list(verdict.key(), |value| string(value, entry))));
    let mut lists = defaults.statuses.clone();
    let mut seen = Vec::new();
    for (verdict, list) in &own {
        for Located { value, at } in list.iter().flatten() {
            if let Some((_, earlier)) = seen.iter().find(|(entry, _)| entry == value) {
                let (key, earlier) = (section.name(verdict.key()), Verdict::key(*earlier));
                section.report.mistake(
                    at.clone(),
                    key,
                    wrong(format!("\"{value}\" is in `{earlier}` too"), "keep it in one list"),
                );
            }
            seen.push((*value, *verdict));
        }
        if let Some(list) = list {
            let entries: Vec<_> = list.iter().map(|located| located.value).collect();
            lists.replace(*verdict, &entries);
        }
    }
    lists
}

/// What makes no sense together, whatever each is worth alone.
fn contradictions(section: &Section<'_>, route: &Route) {
    if route.on_unknown == OnUnknown::Resend && route.forward_key == ForwardKey::None {
        let what = wrong(
            "with on_unknown = \"resend\" the upstream must see the key, or a resend is a second execution",
            "set forward_key = \"same\", or on_unknown = \"hold\"",
        );
        section.mistake("forward_key", what);
    }
    let own_key = route.key.contains(&KeySource::Fingerprint);
    let only_operations = route.fingerprint.headers.iter().all(|name| OPERATION.contains(name));
    if own_key && route.fingerprint.body == BodyMode::Ignore && only_operations {
        let what = wrong(
            "the fingerprint leaves the body out, so every request to a path would have the same key",
            "set fingerprint.body = \"bytes\", or name fingerprint.headers",
        );
        section.mistake("key", what);
    }
}
