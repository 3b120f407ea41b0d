//! What becomes of a running process's settings when others are put in their place.
//!
//! Some can change while it runs; the others were given to sockets, threads and the store when it started. Everything
//! counts among those others unless it is named here, so that a setting nobody thought of is never half in force.

use std::path::Path;

use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use toml::Value;

use super::store::{Backend, Password, Redis, Topology};
use super::{Config, Route, ScopePart, effective};

/// The settings that can change while the process runs, besides those of routes.
const CHANGEABLE: [&str; 11] = [
    "drain_timeout",
    "drain_delay",
    "limits.in_flight",
    "limits.waiting",
    "limits.buffered",
    "limits.body_timeout",
    "log.level",
    "log.requests",
    "admin.token",
    "egress.allow",
    "egress.tunnels",
];

/// What is in force after a change of settings.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The settings in force: the new ones, but for those that need a restart.
    pub config: Config,
    /// The full names of settings that differ and take effect after a restart only, in order.
    pub after_restart: Vec<String>,
    /// Settings of routes that name the records anew: those of earlier requests are not found under them.
    pub forgetting: Vec<String>,
}

/// Puts `next` in the place of `running`, as far as a running process can.
pub fn change(running: &Config, next: &Config) -> Changed {
    let mut config = running.clone();
    config.drain_timeout = next.drain_timeout;
    config.drain_delay = next.drain_delay;
    config.limits.in_flight = next.limits.in_flight;
    config.limits.waiting = next.limits.waiting;
    config.limits.buffered = next.limits.buffered;
    config.limits.body_timeout = next.limits.body_timeout;
    config.log.level = next.log.level;
    config.log.requests = next.log.requests;
    config.admin.token.clone_from(&next.admin.token);
    config.egress.clone_from(&next.egress);
    let uncertain = routes_without_certificates(running, next);
    if uncertain.is_empty() {
        config.routes.clone_from(&next.routes);
    }
    let mut after_restart = differing(running, next);
    after_restart.retain(|name| !CHANGEABLE.contains(&name.as_str()));
    after_restart.extend(uncertain);
    let forgetting = forgetting(running, &config);
    Changed { config, after_restart, forgetting }
}

/// What makes up the names of records, and differs: the route's name itself (with the old name), its key and its scope.
fn forgetting(running: &Config, next: &Config) -> Vec<String> {
    let mut names = Vec::new();
    for before in &running.routes {
        let Some(after) = next.routes.iter().find(|route| route.name == before.name) else {
            names.push(format!("route.{}.name", before.name));
            continue;
        };
        let named_host = |route: &Route| route.upstream.egress.is_some();
        if before.scope != after.scope || named_host(before) != named_host(after) {
            names.push(format!("route.{}.scope", before.name));
        }
        if before.key != after.key {
            names.push(format!("route.{}.key", before.name));
        }
    }
    names
}

/// The scopes that need clients' certificates, where the sockets that are open ask for none: until a restart such a route
/// could not tell its callers apart. All routes stay as they are then.
fn routes_without_certificates(running: &Config, next: &Config) -> Vec<String> {
    let asks = running.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some());
    let uncertain = next.routes.iter().filter(|route| !asks && route.scope.contains(&ScopePart::ClientCert));
    uncertain.map(|route| format!("route.{}.scope", route.name)).collect()
}

/// The names of all settings outside of routes that differ. Printed settings have every one of them, secrets aside.
fn differing(running: &Config, next: &Config) -> Vec<String> {
    let (before, after) = (settings(running), settings(next));
    let mut names: Vec<_> = before.iter().chain(&after).map(|(name, _)| name.clone()).collect();
    names.sort();
    names.dedup();
    let value = |settings: &[(String, Value)], name: &str| {
        settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    names.retain(|name| value(&before, name) != value(&after, name));
    for (name, password) in PASSWORDS {
        if password(running) != password(next) && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

fn settings(config: &Config) -> Vec<(String, Value)> {
    let table: toml::Table = effective(config).parse().expect("printed settings are TOML");
    let mut found = Vec::new();
    for (name, value) in table {
        match value {
            _ if name == "route" => {}
            Value::Table(section) => {
                found.extend(section.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            value => found.push((name, value)),
        }
    }
    found
}

/// A setting that holds a password, and the password itself: where it is printed, it is masked.
type Secret = (&'static str, fn(&Config) -> Option<&str>);

const PASSWORDS: [Secret; 3] =
    [("store.url", password), ("store.sentinel_password", sentinel_password), ("second_line.url", second_password)];

fn sentinel_password(config: &Config) -> Option<&str> {
    match &config.store.backend {
        Backend::Redis(Redis { topology: Topology::Sentinel(sentinels), .. }) => given(sentinels.password.as_ref()),
        _ => None,
    }
}

fn password(config: &Config) -> Option<&str> {
    match &config.store.backend {
        Backend::Redis(redis) => given(redis.password.as_ref()),
        Backend::Postgres(postgres) => given(postgres.password.as_ref()),
        Backend::Memory | Backend::Disk { .. } => None,
    }
}

fn second_password(config: &Config) -> Option<&str> {
    let second = config.store.second_line.as_ref()?;
    given(second.postgres.password.as_ref())
}

fn given(password: Option<&Password>) -> Option<&str> {
    password.and_then(Password::given).map(ExposeSecret::expose_secret)
}

/// What a file holds, as far as it takes to notice a change: by content, since the files of a mounted Kubernetes
/// ConfigMap change by a link that is put in another's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content([u8; 32]);

impl Content {
    /// What this file holds now; `None` if it cannot be read. Something else than a file, such as the pipe of a shell,
    /// can be read once only, and so holds nothing that could change.
    pub fn of(path: &Path) -> Option<Content> {
        let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
        let bytes = if is_file { std::fs::read(path).ok()? } else { return None };
        Some(Content(Sha256::digest(bytes).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sources, load};
    use super::*;

    fn config(text: &str) -> Config {
        let route = "[[route]]\nname = \"r\"\nupstream = \"http://u.example\"\n";
        load(&Sources::text(format!("{text}\n{route}"))).unwrap_or_else(|wrong| panic!("{wrong}")).config
    }

    #[test]
    fn every_setting_outside_of_routes_changes_or_is_named() {
        let other = "listen = \"127.0.0.1:1\"\ndrain_timeout = \"1s\"\ndrain_delay = \"1s\"\nliveness_stall = \"9s\"\nthreads = 7\nh2c = true\n\
                     [tls]\ncert_file = \"c\"\nkey_file = \"k\"\nclient_ca_file = \"a\"\n\
                     [limits]\nconnections = 1\nstreams = 1\nin_flight = 1\nwaiting = 1\nbuffered = \"1MiB\"\n\
                     header_bytes = \"8KiB\"\nheader_timeout = \"1s\"\nbody_timeout = \"1s\"\nidle_timeout = \"1s\"\n\
                     [log]\nlevel = \"debug\"\nformat = \"json\"\nrequests = true\n\
                     [trace]\nsample = 0.5\nservice_name = \"s\"\n\
                     [admin]\nlisten = \"off\"\ntoken = \"t\"\n[egress]\nallow = [\"h.example\"]\ntunnels = [\"h.example\"]\n\
                     [store]\nurl = \"memory:\"\ntimeout = \"2s\"\nprefix = \"p\"\nallow_eviction = true";
        let (running, next) = (config(""), config(other));
        let Changed { config: changed, after_restart, .. } = change(&running, &next);
        // What is in force now differs from the new settings in exactly what was named.
        assert_eq!(differing(&changed, &next), after_restart);
        let mut all = differing(&running, &changed);
        all.extend(after_restart.clone());
        all.sort();
        assert_eq!(all, differing(&running, &next));
        assert_eq!(all.len(), settings(&next).len(), "{all:?}");
        assert!(after_restart.contains(&"listen".to_owned()) && after_restart.contains(&"store.url".to_owned()));
    }

    #[test]
    fn a_scope_of_certificates_waits_for_sockets_that_ask_for_them() {
        let tls = "[tls]\ncert_file = \"c\"\nkey_file = \"k\"\nclient_ca_file = \"a\"\n";
        let next = config(&format!(
            "{tls}[[route]]\nname = \"q\"\nupstream = \"http://u\"\npath = \"/q\"\nscope = [\"client-cert\"]"
        ));
        let Changed { config: changed, after_restart, .. } = change(&config(""), &next);
        assert!(after_restart.contains(&"route.q.scope".to_owned()), "{after_restart:?}");
        assert_eq!(changed.routes.len(), 1);
        assert_eq!(change(&config(tls), &next).config.routes.len(), 2);
    }

    #[test]
    fn what_names_records_anew_is_told() {
        let forgotten = |next: &str| change(&config(""), &config(next)).forgetting;
        let route = |name: &str, more: &str| {
            format!("[[route]]\nname = \"{name}\"\npath = \"/z\"\nupstream = \"http://u\"\n{more}")
        };
        let before = config(&route("z", ""));
        let told = |next: &str| change(&before, &config(next)).forgetting;
        assert!(forgotten("").is_empty() && forgotten(&route("z", "")).is_empty());
        assert!(told(&route("z", "timeout = \"1s\"")).is_empty());
        assert_eq!(told(&route("y", "")), ["route.z.name"]);
        assert_eq!(told(&route("z", "scope = []")), ["route.z.scope"]);
        assert_eq!(told(&route("z", "key = [\"header:X-Id\"]")), ["route.z.key"]);
    }

    #[test]
    fn a_changed_password_of_the_store_is_named_and_not_shown() {
        let with = |password| config(&format!("[store]\nurl = \"rediss://u:{password}@h\""));
        assert_eq!(change(&with("one"), &with("two")).after_restart, ["store.url"]);
        assert!(change(&with("one"), &with("one")).after_restart.is_empty());
    }

    #[test]
    fn content_is_what_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&first, "x").unwrap();
        std::fs::write(&second, "x").unwrap();
        assert!(Content::of(&first).is_some());
        assert_eq!(Content::of(&first), Content::of(&second));
        std::fs::write(&second, "y").unwrap();
        assert_ne!(Content::of(&first), Content::of(&second));
        assert_eq!(Content::of(folder.path()), None);
    }
}
