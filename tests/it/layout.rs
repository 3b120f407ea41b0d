//! Who may use whom: the paths that the sources name, in `use` lines and elsewhere, against the table of the design.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Each module of `src/` and the modules of the crate that it may use, besides itself.
const MAY_USE: &[(&str, &[&str])] = &[
    ("main", &["cli"]),
    ("cli", &["app", "chain", "config", "telemetry"]),
    (
        "app",
        &[
            "admin",
            "chain",
            "config",
            "metrics",
            "proxy",
            "pulse",
            "record",
            "server",
            "shutdown",
            "store",
            "telemetry",
            "trace",
            "upstream",
        ],
    ),
    ("server", &["chain", "config", "interim", "metrics", "seldom", "shutdown"]),
    (
        "proxy",
        &[
            "alarm", "chain", "config", "fields", "interim", "record", "seldom", "store", "upstream", "metrics",
            "shutdown", "trace",
        ],
    ),
    ("upstream", &["config", "metrics", "reach", "trust"]),
    ("reach", &["seldom"]),
    ("admin", &["config", "fields", "pulse", "record", "store", "metrics", "telemetry", "shutdown"]),
    ("store", &["alarm", "chain", "record", "config::store", "config::Content", "metrics", "reach", "seldom", "trust"]),
    ("record", &[]),
    ("config", &[]),
    ("metrics", &[]),
    ("shutdown", &[]),
    ("alarm", &[]),
    ("chain", &[]),
    ("seldom", &[]),
    ("pulse", &[]),
    ("fields", &[]),
    ("interim", &[]),
    ("trust", &[]),
    ("telemetry", &["config"]),
    ("trace", &["config", "metrics", "shutdown"]),
];

/// The steps of the proxy in the order of a request. A step may use earlier ones, never a later one. `outcome` is no step
/// of its own: what forward finds out, record judges and respond tells.
const STEPS: [&str; 8] = ["route", "key", "fingerprint", "claim", "outcome", "forward", "record", "respond"];

/// The files in which a back-end's driver may be named.
const DRIVERS: &[(&str, &str)] =
    &[("redb", "src/store/disk"), ("redis", "src/store/redis"), ("tokio_postgres", "src/store/postgres")];

fn sources() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() > 30, "the sources were not found");
    found
}

/// The path below `src/`, without its ending: `proxy/claim`.
fn name(path: &Path) -> String {
    let below = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    below.with_extension("").to_str().unwrap().to_owned()
}

fn is_test(name: &str) -> bool {
    name.ends_with("tests") || name.contains("tests/")
}

/// The code without its test module and without comments.
fn code(text: &str) -> String {
    let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    shipped.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Where the statuses of the proxy, of the admin listener and of requests that are no HTTP are chosen.
const CHOOSE_STATUSES: [&str; 4] = ["proxy/error", "proxy/hops", "admin/problem", "server/fault"];
/// Files that name statuses without choosing one for an answer of the proxy, and which.
const NAME_STATUSES: &[(&str, &[&str])] = &[
    // They tell what the upstream answered with.
    ("proxy/forward", &["SWITCHING_PROTOCOLS", "NOT_MODIFIED"]),
    ("proxy/pass", &["SWITCHING_PROTOCOLS"]),
    // It tells what the authorizer answered with.
    ("proxy/guard/authorize", &["UNAUTHORIZED", "FORBIDDEN"]),
    ("upstream/connection", &["SWITCHING_PROTOCOLS", "NO_CONTENT", "NOT_MODIFIED"]),
    ("server", &["SWITCHING_PROTOCOLS"]),
    // What axum says of a body.
    ("admin/records", &["PAYLOAD_TOO_LARGE"]),
    // Clients of others, and the upstream of the demonstration.
    ("cli/client", &["OK", "UNAUTHORIZED", "BAD_REQUEST"]),
    ("cli/demo/upstream", &["CREATED"]),
    ("trace/export", &["TOO_MANY_REQUESTS", "BAD_GATEWAY", "SERVICE_UNAVAILABLE", "GATEWAY_TIMEOUT"]),
];

type Names = Vec<String>;

/// The paths of a tree as `use` has them, `a::{b, c::d}`, and what stands behind it.
fn tree(text: &str) -> (Vec<Names>, &str) {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        let mut all = Vec::new();
        loop {
            let (paths, behind) = tree(rest);
            all.extend(paths);
            // Past a renaming.
            rest = &behind[behind.find([',', '}']).expect("a list ends")..];
            let ends = rest.starts_with('}');
            rest = &rest[1..];
            if ends {
                return (all, rest);
            }
        }
    }
    let name = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*')).next().unwrap();
    let rest = &text[name.len()..];
    match rest.strip_prefix("::").filter(|_| !name.is_empty()) {
        Some(below) => {
            let (paths, behind) = tree(below);
            let whole = paths.into_iter().map(|path| [vec![name.to_owned()], path].concat());
            (whole.collect(), behind)
        }
        None => (vec![vec![name.to_owned()].into_iter().filter(|name| !name.is_empty()).collect()], rest),
    }
}

/// The modules and what is in them that this code of the module `at` names by `crate::`, `super::` or `self::`, each as a
/// path from the crate's root.
fn uses(text: &str, at: &str) -> BTreeSet<String> {
    let code = code(text);
    let mut found = BTreeSet::new();
    for start in ["crate::", "super::", "self::"] {
        for (position, _) in code.match_indices(start) {
            // Not the end of another name, nor in the middle of a path.
            let before = code[..position].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            // Behind the last comma of a list stands nothing.
            for path in tree(&code[position..]).0.into_iter().filter(|path| path.len() > 1) {
                let mut whole: Names = at.split('/').map(str::to_owned).collect();
                let mut path = path.into_iter().peekable();
                if path.next_if_eq("crate").is_some() {
                    whole.clear();
                }
                let _ = path.next_if_eq("self");
                while path.next_if_eq("super").is_some() {
                    whole.pop();
                }
                whole.extend(path.filter(|name| name != "self"));
                found.insert(whole.join("::"));
            }
        }
    }
    found
}

#[test]
fn every_way_to_name_a_module_is_seen() {
    let code = "use super::{record, forward::{self, Outcome as O}};\nuse super::respond;\nfn f() { \
                crate::store::open(super::super::metrics::Metrics::new()) }\nuse crate::{\n    config,\n};\n\
                pub(super) struct S(self::inner::Deep, my_crate::Other);\n// super::comment\n#[cfg(test)]\nmod tests {\n    \
                use super::late::*;\n}\n";
    let expected = [
        "config",
        "metrics::Metrics::new",
        "proxy::claim::inner::Deep",
        "proxy::forward",
        "proxy::forward::Outcome",
        "proxy::record",
        "proxy::respond",
        "store::open",
    ];
    assert_eq!(uses(code, "proxy/claim").into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn modules_use_only_what_the_table_allows() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let name = name(&path);
        if name == "lib" || is_test(&name) {
            continue;
        }
        let module = name.split('/').next().unwrap();
        let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| *known == module) else {
            faults.push(format!("src/{name}.rs: `{module}` is not in the table"));
            continue;
        };
        for used in uses(&text, &name) {
            let inside = used.split("::").next() == Some(module);
            let listed = allowed.iter().any(|a| used == *a || used.starts_with(&format!("{a}::")));
            if !inside && !listed {
                faults.push(format!("src/{name}.rs uses crate::{used}; `{module}` may use {allowed:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn steps_use_only_earlier_steps() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let name = name(&path);
        let Some(step) = name.strip_prefix("proxy/").map(|rest| rest.split('/').next().unwrap()) else { continue };
        let Some(position) = STEPS.iter().position(|known| *known == step) else { continue };
        let used = uses(&text, &name);
        for later in &STEPS[position + 1..] {
            if used.iter().any(|path| path.split("::").take(2).eq(["proxy", later])) {
                faults.push(format!("src/{name}.rs: step {step} uses the later step {later}"));
            }
        }
        if used.contains("proxy::*") {
            faults.push(format!("src/{name}.rs: a step that uses all of proxy uses later steps"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn drivers_status_codes_and_the_environment_are_named_in_one_place() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let name = name(&path);
        if is_test(&name) {
            continue;
        }
        let code = code(&text);
        for (driver, place) in DRIVERS {
            // `store` itself opens the back-ends, whose modules bear the same names.
            if name != "store" && code.contains(&format!(" {driver}::")) && !format!("src/{name}").starts_with(place) {
                faults.push(format!("src/{name}.rs names the driver {driver}, which belongs to {place}"));
            }
        }
        if !CHOOSE_STATUSES.contains(&name.as_str()) {
            let listed = NAME_STATUSES.iter().find(|(file, _)| *file == name).map_or(&[][..], |(_, statuses)| statuses);
            let named = code
                .split("StatusCode::")
                .skip(1)
                .map(|rest| rest.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).next().unwrap());
            let chosen = named.filter(|status| status.len() > 1 && !listed.contains(status));
            faults.extend(chosen.map(|status| format!("src/{name}.rs chooses {status}; see {CHOOSE_STATUSES:?}")));
        }
        if code.contains("env::var") && !name.starts_with("config") {
            faults.push(format!("src/{name}.rs reads the environment; that is config's"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
