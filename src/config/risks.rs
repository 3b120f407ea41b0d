//! Settings that are legal alone and risky together: each is said at start and by `check`, never silently taken, never
//! refused. What can happen, and what to do about it.

use std::net::SocketAddr;
use std::time::Duration;

use super::mistakes::Origin;
use super::presets::Preset;
use super::route::Made;
use super::sections::DEFAULT_PREFIX;
use super::statuses::{Entry, Verdict};
use super::store::{Backend, Password, Place, Postgres, Redis, Sentinels, SslMode, StoreConfig, Topology};
use super::tree::Section;
use super::values::word;
use super::verify::SIGNERS;
use super::{
    Egress, ForwardKey, KeySource, Limits, OnDuplicate, OnStoreError, OnUnknown, ReplayTo, address, store_url,
};

/// How many operations of the store must fit into a lease: it is renewed every third of it.
const OPERATIONS_IN_A_LEASE: u32 = 3;

/// The risks of the store. `at` is where its URL was written.
pub(super) fn of_store(section: &Section<'_>, store: &StoreConfig, at: &Origin) {
    let warn = |risk: &str, remedy: &str| section.report.warning(at.clone(), "store.url", risk, remedy);
    match &store.backend {
        Backend::Memory => warn(
            "records end with the process: after a restart every key may run again",
            "use disk: or redis:// for anything but tests",
        ),
        Backend::Disk { .. } => {}
        Backend::Redis(redis) => {
            let is_here = |place: &Place| address::is_loopback(&place.host);
            if redis.password.is_some() && redis.tls.is_none() && !places(redis).iter().all(is_here) {
                warn("the password crosses the network in clear", "use rediss://");
            }
            let masked = "the password is the mask of printed settings";
            if store_url::is_mask(redis.password.as_ref().and_then(Password::given)) {
                warn(masked, "put the real password in its place");
            }
            if let Topology::Sentinel(sentinels) = &redis.topology
                && store_url::is_mask(sentinels.password.as_ref().and_then(Password::given))
            {
                section.warning("sentinel_password", masked, "put the real password in its place");
            }
            if store.allow_eviction {
                let risk = "a Redis that evicts keys may forget a claim, and the request runs a second time";
                section.warning(
                    "allow_eviction",
                    risk,
                    "set maxmemory-policy noeviction on the server, and take this out",
                );
            }
        }
        Backend::Postgres(postgres) => of_postgres(postgres, warn),
    }
}

/// The risks of the second line.
pub(super) fn of_second_line(section: &Section<'_>, postgres: &Postgres) {
    of_postgres(postgres, |risk, remedy| section.warning("url", risk, remedy));
}

fn of_postgres(postgres: &Postgres, warn: impl Fn(&str, &str)) {
    let elsewhere = postgres.socket().is_none() && !address::is_loopback(&postgres.host);
    if elsewhere && postgres.sslmode == SslMode::Disable {
        warn("records cross the network in clear", "write ?sslmode=verify-full in the URL");
    }
    if elsewhere && postgres.sslmode == SslMode::Require && postgres.ca_file.is_none() {
        warn("nothing proves that the server is the right one", "write ?sslmode=verify-full, or set ca_file");
    }
    if store_url::is_mask(postgres.password.as_ref().and_then(Password::given)) {
        warn("the password is the mask of printed settings", "put the real password in its place");
    }
}

fn places(redis: &Redis) -> &[Place] {
    match &redis.topology {
        Topology::One(place) => std::slice::from_ref(place),
        // Nothing that goes through it crosses a network.
        Topology::Socket(_) => &[],
        Topology::Sentinel(Sentinels { places, .. }) | Topology::Cluster(places) => places,
    }
}

/// The risks of `[egress]`.
pub(super) fn of_egress(section: &Section<'_>, egress: &Egress) {
    let protected = egress.tunnels.0.iter().find(|tunnel| egress.allow.0.iter().any(|allowed| allowed.meets(tunnel)));
    if let Some(tunnel) = protected {
        section.warning(
            "tunnels",
            &format!("requests to {tunnel} are protected by routes, and pass them by unseen in a tunnel"),
            "take it out of `tunnels`, so that clients which ask for a tunnel are refused",
        );
    }
}

/// The risks of one route.
/// `open` is a place to listen on that is reached from other hosts.
pub(super) fn of_route(
    section: &Section<'_>,
    made: &Made,
    store: &StoreConfig,
    limits: &Limits,
    open: Option<SocketAddr>,
) {
    of_callers(section, made, store, open);
    of_times(section, made, store);
    of_doubt(section, made);
    of_keeping(section, made, limits);
}

fn of_callers(section: &Section<'_>, made: &Made, store: &StoreConfig, open: Option<SocketAddr>) {
    let route = &made.route;
    if route.methods.is_empty() {
        section.warning(
            "methods",
            "no method is named, so nothing on this route is protected",
            "name methods such as \"POST\"",
        );
    }
    if route.scope.is_empty() && made.preset == Preset::Api {
        section.warning(
            "scope",
            "callers are not told apart: one that uses another's key is shown the other's response",
            "name a part that separates callers, such as \"header:Authorization\" or \"header:X-Account-Id\"",
        );
    }
    let is_open = open.is_some()
        && route.replay_to == ReplayTo::Scope
        && route.authorize.is_none()
        && !route.tells_callers_apart();
    if is_open && made.preset != Preset::Api {
        section.warning(
            "scope",
            "callers from other hosts are not told apart: one that uses another's key is shown the other's response",
            "name a part that separates callers, such as \"header:Authorization\", or listen on a loopback address",
        );
    }
    if route.scope.is_empty() && store.backend.is_shared() && store.prefix == DEFAULT_PREFIX {
        section.warning(
            "scope",
            "on this shared store, routes of this name in other deployments have the same records",
            "set store.prefix to a name of this deployment's own",
        );
    }
    let signer = route.verify.as_ref().and_then(|verify| verify.signer).filter(|signer| signer.signs_id());
    if let Some(signer) = signer.filter(|_| made.sender.is_none() && !section.has("key")) {
        let name = word(&SIGNERS, &signer);
        section.warning(
            "verify",
            "the key is also read from headers that this sender does not sign: whoever captured a delivery may send it again \
             under another key",
            &format!("set key_preset = \"{name}\""),
        );
    }
    if made.sender.is_some() && made.preset != Preset::Webhook {
        section.warning(
            "key_preset",
            "a sender of webhooks delivers again until it sees a 2xx, and this preset replays failures to it",
            "set preset = \"webhook\"",
        );
    }
}

fn of_times(section: &Section<'_>, made: &Made, store: &StoreConfig) {
    let route = &made.route;
    if route.on_duplicate == OnDuplicate::Wait && route.wait_timeout > route.timeout {
        section.warning(
            "wait_timeout",
            "a duplicate waits longer than the first caller, which is told earlier that the outcome is unknown",
            "set wait_timeout to at most `timeout`",
        );
    }
    if route.timeout > route.abandon_after {
        section.warning(
            "timeout",
            "the proxy stops listening before the caller's time is over, and an answer in between is lost",
            "set abandon_after to at least `timeout`",
        );
    }
    if route.retention < route.abandon_after {
        section.warning(
            "retention",
            "a record may be gone while the same request can still be under way elsewhere, and a repeat runs again",
            "set retention to at least abandon_after, better to as long as clients repeat requests",
        );
    }
    if route.lease > route.abandon_after {
        section.warning(
            "lease",
            "a crash shows later than an answer would have been given up",
            "set lease to seconds; it is renewed while the work runs",
        );
    }
    if route.lease < store.timeout.saturating_mul(OPERATIONS_IN_A_LEASE) {
        section.warning(
            "lease",
            "one slow answer of the store can end the claim of a running attempt, and its outcome counts as unknown",
            "set lease to at least three times store.timeout",
        );
    }
}

fn of_doubt(section: &Section<'_>, made: &Made) {
    let route = &made.route;
    if route.unknown_retention.is_some() {
        section.warning(
            "unknown_retention",
            "at this age a request that may have been executed runs again",
            "take it out, and let a person resolve unknown records",
        );
    }
    if route.on_store_error == OnStoreError::Forward {
        section.warning(
            "on_store_error",
            "while the store cannot be reached, repeated requests run a second time",
            "set it to \"reject\" wherever a second execution costs more than a refused request",
        );
    }
    let resends = route.on_unknown == OnUnknown::Resend;
    if resends && matches!(route.forward_key, ForwardKey::Renamed(_)) {
        section.warning(
            "forward_key",
            "an unknown request is sent again, which is safe only if the upstream honours the key under this name",
            "make sure that it does, or set on_unknown = \"hold\"",
        );
    }
    if resends && route.key.contains(&KeySource::Fingerprint) {
        section.warning(
            "on_unknown",
            "an unknown request is sent again, and a request without a key of its own gives the upstream nothing to honour",
            "set on_unknown = \"hold\", or take \"fingerprint\" out of `key`",
        );
    }
    if section.has("unknown") && [502, 504].into_iter().any(|status| is_final_unsaid(section, made, status)) {
        section.warning(
            "unknown",
            "this list is in place of the preset's, and a 502 or 504, by which gateways say that they cannot tell, is final now",
            "add \"502\" and \"504\" to it, or list them under `record`",
        );
    }
    let succeeded = |entry: &Entry| matches!(entry, Entry::Class(2) | Entry::Exact(200..=299));
    if made.lists.release.iter().any(succeeded) {
        section.warning(
            "release",
            "an answer that says the request was executed frees the key, and every repeat runs again",
            "list only statuses after which nothing was executed, such as \"429\"",
        );
    }
    let unsafe_release = [500, 502, 504].map(Entry::Exact).into_iter().chain([Entry::Class(5)]);
    let own = section.has("release") && made.preset != Preset::Webhook;
    if own && unsafe_release.into_iter().any(|entry| made.lists.release.contains(&entry)) {
        section.warning(
            "release",
            "a 5xx does not prove that nothing was executed, and after a release a repeat runs again",
            "list it under `unknown`, unless the upstream undoes everything before it answers so",
        );
    }
}

/// Whether this status is recorded although the route has not said so itself.
fn is_final_unsaid(section: &Section<'_>, made: &Made, status: u16) -> bool {
    let listed = [Entry::Exact(status), Entry::Class(status / 100)];
    let said = section.has("record") && listed.iter().any(|entry| made.lists.record.contains(entry));
    !said && made.route.statuses.verdict(status) == Verdict::Record
}

fn of_keeping(section: &Section<'_>, made: &Made, limits: &Limits) {
    let route = &made.route;
    if !route.keep_headers.is_empty() {
        section.warning(
            "keep_headers",
            "cookies and challenges of one answer are kept in the store and given to whoever repeats the request",
            "take it out unless clients need them on a replay",
        );
    }
    if route.max_request_body.saturating_add(route.max_response_body) > limits.buffered {
        section.warning(
            "max_request_body",
            "one request may need more than limits.buffered, and is then always refused as overloaded",
            "raise limits.buffered, or lower max_request_body and max_response_body",
        );
    }
    if route.connect_timeout > Duration::max(route.timeout, route.lease) {
        section.warning(
            "connect_timeout",
            "the caller's time and the lease are over before a connection is given up",
            "set connect_timeout below `timeout`",
        );
    }
}
