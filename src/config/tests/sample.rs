//! `config.toml` at the root of the repository: it names every key, with its default, and loads.

use std::collections::BTreeSet;

use super::*;

pub(super) const SAMPLE: &str = include_str!("../../../config.toml");

/// The keys of the sample that say more than a default would.
pub(super) const CHOSEN: [&str; 2] = ["route.name", "route.upstream"];

/// One setting of the sample.
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) key: String,
    pub(super) commented: bool,
}

fn is_setting(line: &str) -> bool {
    line.split_once(" = ")
        .is_some_and(|(key, _)| key.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.')))
}

pub(super) fn lines() -> Vec<Line> {
    let mut section = String::new();
    let mut lines = Vec::new();
    for (number, line) in SAMPLE.lines().enumerate() {
        // A section that is left out stands there as a comment.
        if let Some(head) = line.trim_start_matches('#').strip_prefix('[') {
            section = format!("{}.", head.trim_matches(['[', ']']));
        }
        let (commented, text) = line.strip_prefix('#').map_or((false, line), |text| (true, text));
        if is_setting(text) {
            let (key, _) = text.split_once(" = ").unwrap();
            lines.push(Line { number, key: format!("{section}{key}"), commented });
        }
    }
    lines
}

/// The sample with these of its lines changed.
pub(super) fn changed(change: impl Fn(usize, &str) -> String) -> String {
    SAMPLE.lines().enumerate().map(|(number, line)| change(number, line) + "\n").collect()
}

#[test]
fn it_loads_without_a_warning() {
    assert_eq!(loaded(SAMPLE).warnings, []);
}

#[test]
fn it_names_every_key_that_is_known() {
    let report = Report::default();
    let with_rule = changed(|_, line| if in_rule(line) { line.trim_start_matches('#') } else { line }.to_owned());
    load_with(&Sources::text(with_rule), &report).unwrap();
    let sections = [
        "tls",
        "limits",
        "log",
        "trace",
        "admin",
        "egress",
        "store",
        "second_line",
        "route",
        "route.fingerprint",
        "route.verify",
        "route.verify.hmac",
        "route.when",
    ];
    let known: BTreeSet<_> = report.known_keys().into_iter().filter(|key| !sections.contains(&key.as_str())).collect();
    let named: BTreeSet<_> = lines().into_iter().map(|line| line.key).collect();
    assert!(known.len() > 50);
    assert_eq!(named, known);
}

#[test]
fn every_value_is_the_default() {
    let whole = format!("{:?}", loaded(SAMPLE).config);
    let defaults = lines().into_iter().filter(|line| !line.commented && !CHOSEN.contains(&line.key.as_str()));
    let mut checked = 0;
    for Line { number, key, .. } in defaults {
        let without = changed(|n, line| if n == number { String::new() } else { line.to_owned() });
        assert_eq!(format!("{:?}", loaded(&without).config), whole, "{key} is not at its default");
        checked += 1;
    }
    assert!(checked > 45);
}

/// A line of `verify` as it stands beside this key of it.
fn signed(key: &str, line: &str) -> String {
    let taken = line.trim_start_matches('#');
    let name = taken.split(" = ").next().unwrap();
    let key = key.trim_start_matches("route.");
    match name {
        "verify.preset" if key == "verify.url" => "verify.preset = \"twilio\"".to_owned(),
        "verify.preset" if !key.starts_with("verify.hmac.") => taken.to_owned(),
        "verify.secrets" => taken.to_owned(),
        "verify.hmac.header" | "verify.hmac.separator" if key.starts_with("verify.hmac.") => taken.to_owned(),
        "verify.hmac.signed" if key.contains("timestamp") => "verify.hmac.signed = \"{timestamp}{body}\"".to_owned(),
        "verify.hmac.signed" if key.contains("id_header") => "verify.hmac.signed = \"{id}{body}\"".to_owned(),
        name if name == key => taken.to_owned(),
        _ => line.to_owned(),
    }
}

#[test]
fn every_key_that_is_commented_out_can_be_taken_in() {
    let mut checked = 0;
    // Not every build can send traces.
    let here = |line: &Line| cfg!(feature = "otel") || line.key != "trace.otlp_endpoint";
    for Line { number, key, .. } in lines().into_iter().filter(|line| line.commented && here(line)) {
        let text = changed(|n, line| match line {
            // A signature needs a sender and its secret, and what is signed must be where it is looked for.
            _ if key.starts_with("route.verify.") && line.starts_with("#verify.") => signed(&key, line),
            _ if n == number => line.trim_start_matches('#').to_owned(),
            // A certificate and its key come together.
            _ if key.starts_with("tls.") && (line.starts_with("#cert_") || line.starts_with("#key_file")) => {
                line.trim_start_matches('#').to_owned()
            }
            _ if key.ends_with(".client_cert_file") && n == number + 1 => line.trim_start_matches('#').to_owned(),
            _ if key.ends_with(".client_key_file") && n + 1 == number => line.trim_start_matches('#').to_owned(),
            _ if key == "store.sentinel_username" && n == number + 1 => line.trim_start_matches('#').to_owned(),
            // A second line stands behind Redis; only TLS has a CA file.
            _ if key.starts_with("second_line.") && line.starts_with("url = \"disk:") => {
                "url = \"redis://redis.example\"".to_owned()
            }
            _ if key.starts_with("second_line.") && line.starts_with("#url = \"postgres:") => {
                "url = \"postgres://onceproxy@db.internal/onceproxy?sslmode=require\"".to_owned()
            }
            // Only TLS has some of them, and only sentinels others.
            _ if key.starts_with("store.") && line.starts_with("url = ") => {
                "url = \"rediss+sentinel://redis.example/main\"".to_owned()
            }
            // Only TLS has a CA file.
            _ if key == "route.authorize_ca_file" && line.starts_with("#authorize = ") => {
                "authorize = \"https://auth.example/check\"".to_owned()
            }
            // The two say the same in different ways.
            // A rule is whole or none, and makes one test.
            _ if key.starts_with("route.when.") && in_rule(line) => {
                let another = line.starts_with("#is = ") && (key.ends_with(".empty") || key.ends_with(".exists"));
                if another { String::new() } else { line.trim_start_matches('#').to_owned() }
            }
            _ if key == "route.key_preset" && line.starts_with("key = ") => String::new(),
            _ => line.to_owned(),
        });
        assert_ne!(effective(&loaded(&text).config), effective(&loaded(SAMPLE).config), "{key} changes nothing");
        checked += 1;
    }
    assert!(checked >= 11);
}

/// Whether this line is what each rule has.
fn in_rule(line: &str) -> bool {
    ["#[[route.when]]", "#json = ", "#is = ", "#then = "].iter().any(|start| line.starts_with(start))
}

#[test]
fn every_setting_has_a_comment() {
    let all: Vec<_> = SAMPLE.lines().collect();
    for Line { number, key, .. } in lines() {
        let before = all[number - 1];
        let shares = (key.ends_with("key_file") && before.contains("cert_file = "))
            || (key.ends_with("sentinel_password") && before.contains("sentinel_username = "));
        assert!(before.starts_with("# ") || shares, "{key} has no comment");
    }
}
