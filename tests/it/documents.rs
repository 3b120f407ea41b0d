//! The documents against the code: what a page lists is what there is, and the other way round.
//!
//! Only what goes stale unseen is held here: names, defaults, statuses, links. Whether a sentence is true is for readers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use http_body_util::BodyExt;
use onceproxy::config::{self, Sources};
use onceproxy::metrics::{Authorized, Forgery, Metrics, RequestResult};
use onceproxy::proxy::error::{Kind, Problem};
use onceproxy::store::StoreErrorKind;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Every page: those at the top, those in `docs/` and its guides, and those of the examples.
fn pages() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec!["README.md".to_owned(), "CHANGELOG.md".to_owned()];
    for folder in ["docs", "docs/guides", "examples/celery", "k8s"] {
        let names = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".md"));
        pages.extend(names.map(|name| format!("{folder}/{name}")));
    }
    assert!(pages.len() > 17, "the documents were not found");
    pages
}

/// The rows of all tables under this heading, without their heads, up to the next heading.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let text = format!("\n{}", read(page));
    let (_, rest) = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("{page}: no {heading}"));
    let section: Vec<_> = rest.lines().take_while(|line| !line.starts_with('#')).collect();
    let below = section.windows(2).filter(|pair| !pair[1].starts_with("| ---")).map(|pair| pair[0]);
    let table = below.chain(section.last().copied());
    let table = table.filter(|line| line.starts_with('|') && !line.starts_with("| ---"));
    table.map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// What stands in back-ticks, if the whole cell does.
fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`').filter(|inner| !inner.contains('`'))
}

/// Everything that stands in back-ticks.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The words of the first column.
fn firsts(rows: &[Vec<String>]) -> BTreeSet<String> {
    rows.iter().filter_map(|row| code(&row[0]).map(str::to_owned)).collect()
}

fn set<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> BTreeSet<String> {
    words.into_iter().map(|word| word.as_ref().to_owned()).collect()
}

fn metrics_with_everything() -> String {
    let metrics = Metrics::new();
    metrics.route("r").answered(RequestResult::Executed, std::time::Duration::ZERO);
    metrics.answered_without_route(RequestResult::NoRoute);
    metrics.authorizer("r").asked(Authorized::Allowed, std::time::Duration::ZERO);
    metrics.signatures("r").count(Forgery::Wrong);
    metrics.set_records_open("unknown", 1);
    metrics.store_operation("claim").failed("refused");
    metrics.expose().0
}

#[test]
fn every_metric_is_listed_with_its_type() {
    let exposed = metrics_with_everything();
    let families = exposed.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((format!("{name}{}", if kind == "counter" { "_total" } else { "" }), kind.to_owned()))
    });
    let listed = rows("docs/metrics.md", "# Metrics").into_iter().filter_map(|row| {
        let name = code(&row[0]).filter(|name| name.starts_with("onceproxy_"))?;
        Some((name.to_owned(), row[1].split(',').next()?.to_owned()))
    });
    assert_eq!(listed.collect::<BTreeMap<_, _>>(), families.collect::<BTreeMap<_, _>>());
}

#[test]
fn every_value_of_a_metrics_label_is_listed() {
    let mut listed = BTreeSet::new();
    for row in rows("docs/metrics.md", "# Metrics").iter().filter(|row| !row[0].contains("onceproxy_")) {
        listed.extend(codes(&row[0]).map(str::to_owned));
    }
    let measured = read("src/store/measured.rs");
    let operations = measured.split("operation(metrics, \"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut words = set(operations);
    words.extend(RequestResult::ALL.map(|result| result.as_str().to_owned()));
    words.extend(StoreErrorKind::FAILURES.map(|kind| kind.as_str().to_owned()));
    assert_eq!(listed, words);
}

#[test]
fn every_metric_that_a_page_names_is_there() {
    let exposed = metrics_with_everything();
    for page in pages() {
        let text = read(&page);
        for name in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let is_metric = name.starts_with("onceproxy_") && name != "onceproxy_";
            let family = name.strip_suffix("_total").unwrap_or(name);
            assert!(!is_metric || exposed.contains(&format!("# TYPE {family} ")), "{page}: there is no {name}");
        }
    }
}

/// The headings of docs/configuration.md and the sections of a file.
const SECTIONS: [(&str, &str); 11] = [
    ("## Top of the file", ""),
    ("## `[tls]`", "[tls]"),
    ("## `[limits]`", "[limits]"),
    ("## `[log]`", "[log]"),
    ("## `[trace]`", "[trace]"),
    ("## `[admin]`", "[admin]"),
    ("## `[egress]`", "[egress]"),
    ("## `[store]`", "[store]"),
    ("## `[second_line]`", "[second_line]"),
    ("## `[[route]]`", "[[route]]"),
    ("### Outcomes told in a body", "[[route.when]]"),
];

#[test]
fn every_setting_is_listed() {
    let (mut section, mut settings) = (String::new(), BTreeMap::<String, BTreeSet<String>>::new());
    for line in read("config.toml").lines() {
        // One that is left out stands there as a comment.
        if line.trim_start_matches('#').starts_with('[') {
            section = line.trim_start_matches('#').to_owned();
        }
        if let Some(key) = line.strip_prefix("#[[route.") {
            settings.entry("[[route]]".to_owned()).or_default().insert(key.trim_end_matches(']').to_owned());
        }
        let key = line.trim_start_matches('#').split(" = ").next().filter(|key| line.contains(" = ") && is_key(key));
        settings.entry(section.clone()).or_default().extend(key.map(str::to_owned));
    }
    assert_eq!(settings.len(), SECTIONS.len());
    for (heading, section) in SECTIONS {
        let mut listed = firsts(&rows("docs/configuration.md", heading));
        if section == "[[route]]" {
            listed.extend(firsts(&signatures()));
        }
        assert_eq!(listed, settings[section], "{heading}");
    }
}

/// The settings of `[route.verify]`, which have a table of their own.
fn signatures() -> Vec<Vec<String>> {
    let all = rows("docs/configuration.md", "### Signatures of webhooks");
    all.into_iter().filter(|row| row[0].starts_with("`verify.")).collect()
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.'))
}

fn effective(text: &str) -> String {
    config::effective(&config::load(&Sources::text(text)).unwrap_or_else(|wrong| panic!("{wrong}\n{text}")).config)
}

/// The column of the default, and of the preset `api`.
const DEFAULT: usize = 2;

/// The default in this column as it would be written in a file; none where the cell is words.
fn written(row: &[String], column: usize) -> Option<String> {
    let cell = if row[column] == "same" { &row[DEFAULT] } else { &row[column] };
    Some(format!("{} = {}\n", code(&row[0])?, code(cell)?))
}

#[test]
fn the_defaults_are_those_of_the_pages() {
    let route = "[[route]]\nname = \"r\"\nupstream = \"http://u\"\n";
    let mut file = String::new();
    for (heading, section) in &SECTIONS[..7] {
        file += &format!("{section}\n");
        file.extend(rows("docs/configuration.md", heading).iter().filter_map(|row| written(row, DEFAULT)));
    }
    assert!(file.lines().count() > 20, "{file}");
    assert_eq!(effective(&format!("{file}{route}")), effective(route));

    let table = rows("docs/configuration.md", "## `[[route]]`");
    for (column, preset) in [(DEFAULT, "api"), (3, "payment"), (4, "webhook")] {
        let plain = format!("{route}preset = \"{preset}\"\n");
        let settings = table.iter().filter(|row| row[0] != "`preset`").filter_map(|row| written(row, column));
        let spelled: String = settings.collect();
        assert!(spelled.lines().count() >= 25, "{spelled}");
        assert_eq!(effective(&format!("{plain}{spelled}")), effective(&plain), "{preset}");
    }

    let secrets = "verify.secrets = [{ file = \"secret\" }]\n";
    for (verify, keys) in
        [("preset = \"stripe\"", "`verify.tolerance"), ("hmac.header = \"X-Signature\"", "`verify.hmac.")]
    {
        let plain = format!("{route}{secrets}verify.{verify}\n");
        let table = signatures();
        let spelled: String =
            table.iter().filter(|row| row[0].starts_with(keys)).filter_map(|row| written(row, DEFAULT)).collect();
        assert!(!spelled.is_empty(), "{keys}");
        assert_eq!(effective(&format!("{plain}{spelled}")), effective(&plain), "{verify}");
    }
}

#[test]
fn the_environment_and_the_senders_are_listed() {
    let quoted = |file: &str, from: &str| {
        let text = read(file);
        let list = text.split_once(from).unwrap().1.split_once("];").unwrap().0.to_owned();
        list.split('"').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let variables = quoted("src/config/load.rs", "const VARIABLES");
    assert_eq!(firsts(&rows("docs/configuration.md", "## Layers")), variables);
    let senders = quoted("src/config/presets.rs", "SENDERS: ");
    assert_eq!(firsts(&rows("docs/integration.md", "## Webhooks")), senders);
}

const KINDS: &[Kind] = &[
    Kind::MethodInvalid,
    Kind::FieldInvalid,
    Kind::KeyMissing,
    Kind::KeyInvalid,
    Kind::ScopeInvalid,
    Kind::KeyReused,
    Kind::OtherCaller,
    Kind::RequestInProgress,
    Kind::OutcomeUnknown,
    Kind::OutcomeUnknownBroken,
    Kind::OutcomeUnknownTimeout,
    Kind::SignatureInvalid,
    Kind::AuthorizerUnavailable,
    Kind::BodyInvalid,
    Kind::UpstreamUnreachable,
    Kind::ResponseNotRetained,
    Kind::StoreUnavailable,
    Kind::BodyTooLarge,
    Kind::BodyTimeout,
    Kind::ExpectationFailed,
    Kind::NoRoute,
    Kind::EgressRefused,
    Kind::Overloaded,
];

#[tokio::test]
async fn every_problem_is_listed_with_its_status_and_advice() {
    let source = read("src/proxy/error.rs");
    let variants = source.split_once("pub enum Kind {").unwrap().1.split_once("\n}").unwrap().0;
    let count = variants.lines().filter(|line| line.ends_with(',') && !line.contains("///")).count();
    assert_eq!(KINDS.len(), count, "a kind was added: name it above, and in docs/problems.md");
    let table = rows("docs/problems.md", "## Problems of the proxy");
    let mut expected = BTreeSet::new();
    for &kind in KINDS {
        let response = Problem::new(kind, "").into_response();
        let key = (kind.word().to_owned(), response.status().as_str().to_owned());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let retry = body["retry"].as_str().unwrap_or("none");
        let row = table.iter().find(|row| code(&row[0]) == Some(&key.0) && row[1] == key.1);
        let row = row.unwrap_or_else(|| panic!("{key:?} is not listed"));
        assert!(row[2].contains(retry), "{key:?} is listed with {:?}, not {retry}", row[2]);
        expected.insert(key);
    }
    let listed = table.iter().filter_map(|row| Some((code(&row[0])?.to_owned(), row[1].clone())));
    assert_eq!(listed.collect::<BTreeSet<_>>(), expected);
}

#[test]
fn every_problem_of_the_admin_listener_is_listed() {
    let source = read("src/admin/problem.rs");
    let made = source.split("Problem::new(StatusCode::").skip(1).filter_map(|rest| {
        let (status, rest) = rest.split_once(", \"")?;
        let reason = status.to_ascii_lowercase().replace('_', " ");
        let number = (400..600).find(|number| {
            let known = http::StatusCode::from_u16(*number).unwrap().canonical_reason();
            known.is_some_and(|known| known.to_ascii_lowercase() == reason)
        });
        Some((rest.split('"').next()?.to_owned(), number?.to_string()))
    });
    let made: BTreeSet<_> = made.collect();
    assert!(made.len() > 12, "{made:?}");
    let table = rows("docs/problems.md", "## Problems of the admin listener");
    let listed = table.iter().filter_map(|row| Some((code(&row[0])?.to_owned(), row[1].clone())));
    assert_eq!(listed.collect::<BTreeSet<_>>(), made);
}

#[test]
fn the_least_rights_are_those_that_were_tried() {
    let test = read("tests/it/redis_store/access.rs");
    let tried = test.split_once("const ACL: &str = \"").unwrap().1.split_once("\";").unwrap().0;
    let tried = tried.replace('\\', " ").replace(">secret", ">PASSWORD");
    let shown = read("docs/stores.md");
    let shown = shown.lines().find_map(|line| line.strip_prefix("ACL SETUSER onceproxy ")).unwrap();
    assert_eq!(shown.split_whitespace().collect::<Vec<_>>(), tried.split_whitespace().collect::<Vec<_>>());
}

/// A page without what stands in fences.
fn prose(page: &str) -> String {
    read(page).split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// A heading as the fragment of a link.
fn slug(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().replace(' ', "-")
}

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut links = 0;
    for page in pages() {
        for link in prose(&page).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            links += 1;
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target: PathBuf = match file {
                "" => root.join(&page),
                file => root.join(&page).parent().unwrap().join(file),
            };
            assert!(target.exists(), "{page}: {link} leads nowhere");
            let text = std::fs::read_to_string(&target).unwrap();
            let mut slugs = text.lines().filter(|line| line.starts_with('#')).map(|line| slug(line.trim_matches('#')));
            assert!(fragment.is_empty() || slugs.any(|slug| slug == fragment), "{page}: {link} has no such heading");
        }
    }
    assert!(links > 20, "only {links} links were found");
}

#[test]
fn the_names_of_the_code_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => code += &std::fs::read_to_string(path).unwrap(),
            }
        }
    }
    // A comment may use any word; a name is one only in code.
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let words: BTreeSet<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let page = prose("docs/life-of-a-request.md");
    let mut names = 0;
    for name in codes(&page) {
        if name.contains('/') || name.ends_with(".rs") || name.ends_with(".lua") {
            let places = ["", "src", "src/proxy", "src/store/redis"].map(|folder| root.join(folder).join(name));
            assert!(places.iter().any(|place| place.exists()), "there is no file {name}");
        } else if name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | ':')) {
            names += 1;
            let missing = name.split("::").find(|part| !part.is_empty() && !words.contains(part));
            assert_eq!(missing, None, "{name} is not in the code");
        }
    }
    assert!(names > 60, "only {names} names were found");
    for page in pages() {
        assert!(!read(&page).contains(".rs:"), "{page} names a line of the code, which moves");
    }
}

/// The Debian packages that these scripts install.
fn installed_by(scripts: &[&str]) -> BTreeSet<String> {
    let packages = scripts.iter().flat_map(|script| {
        let text = read(&format!("scripts/{script}"));
        let of_line = |line: &str| {
            let lacking = line.strip_prefix("lacks ").and_then(|rest| rest.split(' ').nth(1));
            let appended = line.split_once("missing=\"$missing ").and_then(|(_, rest)| rest.split('"').next());
            lacking.or(appended).filter(|package| !package.starts_with('$')).map(str::to_owned)
        };
        text.lines().filter_map(of_line).collect::<Vec<_>>()
    });
    packages.collect()
}

#[test]
fn the_readme_names_every_package_that_make_installs() {
    let readme = read("README.md");
    let row = |command: &str| {
        let start = format!("| `{command}` |");
        readme.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row {start}")).to_owned()
    };
    let clients = installed_by(&["install-client-tools"]);
    let all = installed_by(&["install-test-packages", "install-celery"]);
    assert!(clients.contains("nghttp2-client") && all.contains("pgbouncer"), "{clients:?} {all:?}");
    for package in &clients {
        assert!(row("make test-clients").contains(&format!("`{package}`")), "{package}");
    }
    // It refers to the other row for the rest.
    for package in all.difference(&clients) {
        assert!(row("make test").contains(&format!("`{package}`")), "{package}");
    }
}
