//! The commands for operators: the real binary against a real admin listener over a memory store.

use std::net::SocketAddr;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use onceproxy::admin::{self, AdminState};
use onceproxy::config::store::{Backend, StoreConfig};
use onceproxy::metrics::Metrics;
use onceproxy::record::{Claim, Fingerprint, OnUnknown, Reason, RecordId, State, Token};
use onceproxy::shutdown::{Ready, Signal};
use onceproxy::store::preflight::Standing;
use onceproxy::store::ways::Ways;
use onceproxy::store::{self, Store};

use crate::support::tls::Authority;

const SECRET: &str = "s3cret";

/// A running admin listener, and what it speaks for.
struct Operated {
    address: SocketAddr,
    store: Arc<dyn Store>,
    ready: Ready,
}

async fn operated() -> Operated {
    let config = StoreConfig {
        backend: Backend::Memory,
        timeout: Duration::from_secs(1),
        prefix: "once".to_owned(),
        allow_eviction: false,
        second_line: None,
    };
    let metrics = Metrics::new();
    let opened = store::open(&config, &metrics).unwrap();
    tokio::spawn(opened.background);
    let ready = Ready::default();
    ready.set(true);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let state = AdminState {
        store: Arc::clone(&opened.store),
        tried: Standing::passed(),
        ways: Ways::default(),
        metrics,
        ready: ready.clone(),
        settings: Arc::new(ArcSwap::from_pointee(admin::Settings {
            token: Some(SECRET.into()),
            ..admin::Settings::default()
        })),
        pulses: onceproxy::pulse::Pulses::default(),
        liveness_stall: Duration::from_secs(10),
        level: None,
        loopback: true,
    };
    tokio::spawn(admin::serve(listener, admin::router(state), Signal::new()));
    Operated { address, store: opened.store, ready }
}

impl Operated {
    async fn claimed(&self, number: u32) -> Claim {
        let mut hash = [0; 16];
        hash[..4].copy_from_slice(&number.to_be_bytes());
        let claim = Claim {
            id: RecordId::new("payments".into(), hash),
            token: Token::new(),
            imprint: Fingerprint { policy: [1; 4], digest: [2; 32] }.into(),
            quoted: false,
            lease: Duration::from_secs(60),
            abandon_after: Duration::from_secs(300),
            on_unknown: OnUnknown::Hold,
            unknown_retention: None,
        };
        self.store.claim(&claim).await.unwrap();
        claim
    }

    async fn unknown(&self, number: u32) -> Claim {
        let claim = self.claimed(number).await;
        self.store.doubt(&claim, Reason::Reset, None).await.unwrap();
        claim
    }

    /// Runs a command against this listener, with the token.
    async fn run(&self, arguments: &[&str]) -> Ran {
        let address = self.address.to_string();
        let mut arguments = arguments.to_vec();
        arguments.extend(["--admin", &address]);
        run(&arguments, &[("ONCEPROXY_ADMIN_TOKEN", SECRET)]).await
    }
}

/// What a command did.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

async fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_onceproxy"));
    // A proxy of the environment must not be used.
    command.env_clear().env("http_proxy", "http://127.0.0.1:1").envs(environment.iter().copied());
    let Output { status, stdout, stderr } = command.args(arguments).output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code().expect("an exit code"), out: text(stdout), err: text(stderr) }
}

impl Ran {
    /// Asserts the exit code, and that standard error says all of this.
    fn failed(&self, code: i32, says: &[&str]) {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert_eq!(self.out, "", "a failure has no result");
        for part in says {
            assert!(self.err.contains(part), "{part:?} is not in {}", self.err);
        }
    }

    /// Asserts success without complaints, and returns the result.
    fn succeeded(&self) -> &str {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        &self.out
    }
}

#[tokio::test]
async fn an_operator_finds_an_unknown_record_and_says_that_it_was_not_executed() {
    let proxy = operated().await;
    let claim = proxy.unknown(1).await;
    let (id, token) = (claim.id.to_string(), claim.token.to_string());
    proxy.claimed(2).await;

    let listed = proxy.run(&["records", "list", "--state", "unknown"]).await;
    let lines: Vec<_> = listed.succeeded().lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for part in [id.as_str(), "unknown", "reset", token.as_str()] {
        assert!(lines[1].contains(part), "{part} is not in {}", lines[1]);
    }
    assert!(proxy.run(&["records", "show", &id]).await.succeeded().contains(&format!("token            {token}\n")));

    let resolve = ["records", "resolve", &id, "--token", &token, "--not-executed", "--note", "asked the bank"];
    let early = proxy.run(&resolve).await;
    early.failed(1, &["may still be running until 20", "state            unknown", "reason           reset"]);
    let forced = proxy.run(&[&resolve[..], &["--force"]].concat()).await;
    assert!(forced.succeeded().contains("is absent"));
    proxy.run(&["records", "show", &id]).await.failed(1, &["There is no record"]);
}

#[tokio::test]
async fn an_operator_gives_the_answer_of_an_executed_request_and_forgets_it_later() {
    let proxy = operated().await;
    let claim = proxy.unknown(1).await;
    let (id, token) = (claim.id.to_string(), claim.token.to_string());
    let answer = ["--executed", "--status", "201", "--header", "X-Found: by hand", "--body", "paid"];
    let resolved = proxy.run(&[&["records", "resolve", &id, "--token", &token], &answer[..]].concat()).await;
    assert!(resolved.succeeded().contains("duplicates are answered with 201"));
    let State::Completed { response, .. } = proxy.store.get(&claim.id).await.unwrap().unwrap().state else {
        panic!("not completed");
    };
    assert_eq!((response.status(), response.body().unwrap().as_ref()), (201, &b"paid"[..]));
    assert_eq!(response.headers().next(), Some((&b"x-found"[..], &b"by hand"[..])));

    let other = Token::new().to_string();
    let wrong = proxy.run(&["records", "forget", &id, "--token", &other]).await;
    wrong.failed(1, &["belongs to another attempt", "state            completed"]);
    assert!(proxy.run(&["records", "forget", &id, "--token", &token]).await.succeeded().contains("is forgotten"));
    assert!(proxy.store.get(&claim.id).await.unwrap().is_none());
}

#[tokio::test]
async fn a_list_follows_cursors_up_to_its_limit() {
    let proxy = operated().await;
    for number in 0..1100 {
        proxy.claimed(number).await;
    }
    for (limit, count, more) in [("1050", 1050, true), ("5000", 1100, false)] {
        let listed = proxy.run(&["records", "list", "--json", "--limit", limit]).await;
        let list: serde_json::Value = serde_json::from_str(listed.succeeded()).unwrap();
        let mut ids: Vec<_> = list["records"].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((ids.len(), list["cursor"].is_string()), (count, more));
    }
    let short = proxy.run(&["records", "list", "--limit", "2"]).await;
    assert_eq!((short.code, short.out.lines().count()), (0, 3));
    assert!(short.err.contains("raise --limit"));
}

#[tokio::test]
async fn a_missing_or_wrong_token_is_said_with_what_to_do() {
    let proxy = operated().await;
    let address = proxy.address.to_string();
    let list = ["records", "list", "--admin", &address];
    run(&list, &[]).await.failed(1, &["Authorization: Bearer", "hint: ", "ONCEPROXY_ADMIN_TOKEN"]);
    run(&list, &[("ONCEPROXY_ADMIN_TOKEN", "other")]).await.failed(1, &["The token is not the one"]);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let with_file = [&list[..], &["--admin-token-file", file.to_str().unwrap()]].concat();
    let ran = run(&with_file, &[]).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, "no open records\n"));
    // The listener's address may come from the environment as well.
    let by_environment = [("ONCEPROXY_ADMIN_LISTEN", address.as_str()), ("ONCEPROXY_ADMIN_TOKEN", SECRET)];
    assert_eq!(run(&["records", "list"], &by_environment).await.code, 0);
}

#[tokio::test]
async fn health_says_yes_or_no_and_why() {
    let proxy = operated().await;
    assert_eq!(proxy.run(&["health"]).await.succeeded(), "ready\n");
    proxy.ready.set(false);
    proxy.run(&["health"]).await.failed(1, &["starting or draining"]);
    assert_eq!(proxy.run(&["health", "--live"]).await.succeeded(), "alive\n");

    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    run(&["health", "--admin", &address], &[]).await.failed(1, &["no answer from http://127.0.0.1:", "hint: "]);
}

/// A running proxy goes on under its old settings, so that a typing error must not make a probe kill it.
#[tokio::test]
async fn health_is_asked_for_past_a_mistake_in_the_settings() {
    let proxy = operated().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onceproxy.toml");
    let good = format!("[admin]\nlisten = \"{}\"\n[[route]]\nname = \"pay\"\n", proxy.address);
    for (mistake, says) in [("preset = \"paymnt\"\n", "did you mean"), ("preset = \"payment\n", "TOML: ")] {
        std::fs::write(&file, format!("{good}{mistake}")).unwrap();
        let asked = run(&["health", "--config", file.to_str().unwrap()], &[]).await;
        assert_eq!((asked.code, asked.out.as_str()), (0, "ready\n"), "{}", asked.err);
        assert!(asked.err.starts_with("warning: ") && asked.err.contains(says), "{}", asked.err);
    }
}

#[tokio::test]
async fn something_else_on_the_admin_port_is_told_apart() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = axum::Router::new()
        .route("/readyz", axum::routing::get(async || (axum::http::StatusCode::IM_A_TEAPOT, "tea")))
        .route(
            "/livez",
            axum::routing::get(async || {
                (axum::http::StatusCode::CONFLICT, r#"{"type": "about:blank", "detail": "tea"}"#)
            }),
        );
    tokio::spawn(async move { axum::serve(listener, other).await });
    run(&["health", "--admin", &address], &[]).await.failed(1, &["418", "is --admin right?"]);
    run(&["health", "--live", "--admin", &address], &[]).await.failed(1, &["409", "is --admin right?"]);
}

#[tokio::test]
async fn check_prints_what_would_be_used_or_every_mistake() {
    let upstream = ["check", "--upstream", "http://127.0.0.1:3000"];
    let good = run(&[&upstream[..], &["--store", "memory:"]].concat(), &[("ONCEPROXY_ADMIN_TOKEN", SECRET)]).await;
    assert_eq!(good.code, 0, "{}", good.err);
    assert!(good.out.contains("[[route]]") && !good.out.contains(SECRET), "{}", good.out);
    let wrong = run(&[&upstream[..], &["--listen", "nowhere", "--store", "paper:"]].concat(), &[]).await;
    wrong.failed(2, &["error: --listen", "error: --store"]);
    run(&["serve"], &[]).await.failed(2, &["neither a file nor an upstream"]);
}

/// Settings that name files everywhere: of the listeners, of the store, of a route.
fn settings_with_files(certificate: &str, key: &str, authority: &str) -> String {
    format!(
        "listen = \"127.0.0.1:0\"\n[admin]\nlisten = \"off\"\n\
         [tls]\ncert_file = {certificate:?}\nkey_file = {key:?}\nclient_ca_file = {authority:?}\n\
         [store]\nurl = \"rediss://127.0.0.1:1\"\nca_file = {authority:?}\n\
         client_cert_file = {certificate:?}\nclient_key_file = {key:?}\n\
         [second_line]\nurl = \"postgres://u:p@127.0.0.1:1/d?sslmode=verify-full\"\nca_file = {authority:?}\n\
         [[route]]\nname = \"pay\"\nupstream = \"https://127.0.0.1:1\"\nca_file = {authority:?}\n\
         client_cert_file = {certificate:?}\nclient_key_file = {key:?}\n"
    )
}

#[tokio::test]
async fn check_reads_the_files_that_the_settings_name() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.write("127.0.0.1", folder.path());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (settings, ca) = (path("onceproxy.toml"), authority.file().to_str().unwrap().to_owned());
    std::fs::write(path("other.pem"), rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let check = async |certificate: &str, key: &str, authority: &str| {
        std::fs::write(&settings, settings_with_files(certificate, key, authority)).unwrap();
        run(&["check", "--config", &settings], &[]).await
    };
    let good = check(&path("cert.pem"), &path("key.pem"), &ca).await;
    assert!(good.succeeded().contains("[[route]]"));

    // Each place says which of its settings is wrong, in one run.
    let none = check(&path("a.pem"), &path("b.pem"), &path("c.pem")).await;
    none.failed(2, &["tls.cert_file `", "tls.key_file `", "tls.client_ca_file `", "store.ca_file: "]);
    none.failed(2, &["second_line.ca_file: ", "route.pay: ", "in ca_file `", "onceproxy.toml: ", "No such file"]);
    assert_eq!(none.err.lines().count(), 6, "{}", none.err);
    assert_eq!(none.out, "", "settings were printed that cannot be used");
    let unfit = check(&path("cert.pem"), &path("other.pem"), &ca).await;
    unfit.failed(
        2,
        &["tls.cert_file `", "store.client_cert_file and store.client_key_file", "route.pay: ", "client_key_file"],
    );
    let not_pem = check(&path("onceproxy.toml"), &path("key.pem"), &ca).await;
    not_pem.failed(
        2,
        &["tls.cert_file `", "is not PEM with a certificate", "store.client_cert_file: ", "client_cert_file `"],
    );
}

#[tokio::test]
async fn wrong_usage_is_2_and_help_is_not_an_error() {
    run(&[], &[]).await.failed(2, &["Examples:", "Exit codes:"]);
    run(&["records", "show", "payments"], &[]).await.failed(2, &["ROUTE:HASH"]);
    run(&["health", "--admin", "https://127.0.0.1:1"], &[]).await.failed(2, &["plain HTTP"]);
    run(&["--help"], &[]).await.succeeded();
    assert!(run(&["--version"], &[]).await.succeeded().starts_with("onceproxy "));
}

#[tokio::test]
async fn completions_and_manual_pages_know_every_command() {
    let help = run(&["--help"], &[]).await.succeeded().to_owned();
    assert!(help.contains("onceproxy generate --help"), "whoever packages the binary does not find it: {help}");
    let commands = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    assert!(!commands.contains("generate"), "it is for whoever packages the binary: {commands}");
    let commands: Vec<_> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 4, "{commands:?}");

    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = run(&["generate", "completions", shell], &[]).await.succeeded().to_owned();
        for command in &commands {
            assert!(text.contains(command), "{shell} does not know {command}");
        }
    }
    run(&["generate", "completions", "csh"], &[]).await.failed(2, &["possible values: bash"]);

    let folder = tempfile::tempdir().unwrap();
    run(&["generate", "man", folder.path().to_str().unwrap()], &[]).await.succeeded();
    for command in commands.iter().filter(|command| **command != "help") {
        let page = std::fs::read_to_string(folder.path().join(format!("onceproxy-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    let missing = folder.path().join("missing");
    run(&["generate", "man", missing.to_str().unwrap()], &[]).await.failed(1, &["cannot write manual pages into"]);
}

#[tokio::test]
async fn a_token_that_is_no_token_is_wrong_usage() {
    let proxy = operated().await;
    let claim = proxy.unknown(1).await;
    let id = claim.id.to_string();
    proxy.run(&["records", "forget", &id, "--token", "1"]).await.failed(2, &["must be the UUID"]);
}

/// The main job, as the README's first command shows it: what it prints is the table that stands there.
#[tokio::test]
async fn the_demonstration_ends_as_the_readme_shows_it() {
    let ran = run(&["demo", "--once"], &[]).await;
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let readme = include_str!("../../README.md");
    let table =
        readme.split("```").find(|block| block.contains("what is sent")).expect("the table of the demonstration");
    let rows: Vec<_> = table.lines().skip(1).map(str::trim_end).filter(|row| !row.is_empty()).collect();
    assert_eq!(rows.len(), 7, "{table}");
    for row in rows {
        assert!(ran.out.lines().any(|line| line.trim_end() == row), "{row}\nis not in\n{}", ran.out);
    }
}
