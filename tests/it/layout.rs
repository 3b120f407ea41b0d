//! Who may use whom: the `use crate::` lines of the sources against the table of the design.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Each module of `src/` and the modules of the crate that it may use, besides itself.
const MAY_USE: &[(&str, &[&str])] = &[
    ("main", &["cli"]),
    ("cli", &["app", "config", "telemetry"]),
    (
        "app",
        &[
            "admin",
            "config",
            "metrics",
            "proxy",
            "record",
            "server",
            "shutdown",
            "store",
            "telemetry",
            "trace",
            "upstream",
        ],
    ),
    ("server", &["config", "metrics", "shutdown"]),
    ("proxy", &["config", "record", "store", "upstream", "metrics", "shutdown", "trace"]),
    ("upstream", &["config", "metrics"]),
    ("admin", &["config", "record", "store", "metrics", "telemetry", "shutdown"]),
    ("store", &["record", "config::store", "metrics"]),
    ("record", &[]),
    ("config", &[]),
    ("metrics", &[]),
    ("shutdown", &[]),
    ("telemetry", &["config"]),
    ("trace", &["config", "metrics", "shutdown"]),
];

/// The steps of the proxy in the order of a request. A step may use earlier ones, never a later one.
const STEPS: [&str; 7] = ["route", "key", "fingerprint", "claim", "forward", "record", "respond"];

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

/// What follows each `crate::` in the code.
fn uses(text: &str) -> BTreeSet<String> {
    let code = code(text);
    let after = code.split("crate::").skip(1);
    let path = after.map(|rest| rest.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).next().unwrap());
    path.map(|path| path.trim_end_matches(':').to_owned()).collect()
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
        for used in uses(&text) {
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
        for later in &STEPS[position + 1..] {
            let code = code(&text);
            if code.contains(&format!("super::{later}::")) || code.contains(&format!("crate::proxy::{later}")) {
                faults.push(format!("src/{name}.rs: step {step} uses the later step {later}"));
            }
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
        let chooses_status =
            ["BAD_REQUEST", "CONFLICT", "GATEWAY_TIMEOUT", "SERVICE_UNAVAILABLE", "UNPROCESSABLE_ENTITY"];
        if name.starts_with("proxy/") && name != "proxy/error" {
            let chosen = chooses_status.iter().filter(|status| code.contains(&format!("StatusCode::{status}")));
            faults.extend(chosen.map(|status| format!("src/{name}.rs chooses {status}; that is proxy/error's")));
        }
        if code.contains("env::var") && !name.starts_with("config") {
            faults.push(format!("src/{name}.rs reads the environment; that is config's"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
