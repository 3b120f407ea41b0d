//! Which layer wins, and where a mistake of each is said to be.

use secrecy::ExposeSecret;

use super::store::Backend;
use super::*;

fn with_upstream() -> Sources {
    let flags = Flags { upstream: Some("http://127.0.0.1:3000".into()), ..Flags::default() };
    Sources { flags, ..Sources::default() }
}

/// The port of the one address to listen on.
fn port(config: &Config) -> u16 {
    let [listen] = config.listen.as_slice() else { panic!("{:?}", config.listen) };
    listen.address().unwrap().port()
}

fn messages(sources: &Sources) -> Vec<String> {
    load(sources).unwrap_err().0.iter().map(ToString::to_string).collect()
}

#[test]
fn without_a_file_there_is_one_route_to_the_upstream() {
    let loaded = load(&with_upstream()).unwrap();
    assert_eq!(loaded.config.routes.len(), 1);
    let route = &loaded.config.routes[0];
    assert_eq!(&*route.name, "default");
    assert_eq!(route.upstream.authority(), "127.0.0.1:3000");
    let (upstream, credentials) = route.scope.split_last().unwrap();
    assert_eq!(*upstream, ScopePart::Constant("127.0.0.1:3000".into()));
    let names = ["authorization", "x-api-key", "api-key"];
    assert_eq!(credentials, names.map(|name| ScopePart::Header(HeaderName::from_static(name))));
    assert_eq!(loaded.warnings, []);
    let again = super::loaded(&effective(&loaded.config)).config;
    assert_eq!(format!("{again:?}"), format!("{:?}", loaded.config));
}

#[test]
fn neither_file_nor_upstream_says_what_to_give() {
    let expected = "settings: upstream: there is neither a file nor an upstream; \
                    give --config FILE, or --upstream http://HOST:PORT for one route called \"default\"";
    assert_eq!(messages(&Sources::default()), [expected]);
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let mut sources = Sources::text(format!(
        "listen = \"127.0.0.1:1\"\n[log]\nlevel = \"warn\"\n[admin]\nlisten = \"off\"\ntoken = \"file\"\n{}",
        route_with("")
    ));
    assert_eq!(port(&load(&sources).unwrap().config), 1);
    sources.environment = Environment::empty()
        .with("ONCEPROXY_LISTEN", "127.0.0.1:2")
        .with("ONCEPROXY_STORE", "memory:")
        .with("ONCEPROXY_ADMIN_LISTEN", "127.0.0.1:12")
        .with("ONCEPROXY_ADMIN_TOKEN", "environment")
        .with("ONCEPROXY_LOG", "debug");
    let config = load(&sources).unwrap().config;
    assert_eq!(port(&config), 2);
    assert!(matches!(config.store.backend, Backend::Memory));
    assert_eq!(config.admin.listen.unwrap().port(), 12);
    assert_eq!(config.admin.token.unwrap().expose_secret(), "environment");
    assert_eq!(config.log.level, LogLevel::Debug);
    sources.flags = Flags {
        listen: Some("127.0.0.1:3".into()),
        store: Some("disk:elsewhere".into()),
        admin_listen: Some("off".into()),
        log_requests: true,
        ..Flags::default()
    };
    let config = load(&sources).unwrap().config;
    assert_eq!(port(&config), 3);
    assert!(matches!(config.store.backend, Backend::Disk { dir } if dir == Path::new("elsewhere")));
    assert_eq!(config.admin.listen, None);
    assert!(config.log.requests);
}

#[test]
fn flags_say_what_the_route_without_a_file_is_for_and_where_its_key_is() {
    let mut sources = with_upstream();
    sources.flags.preset = Some("webhook".into());
    sources.flags.key_header = Some("X-Event".into());
    let config = load(&sources).unwrap().config;
    let route = &config.routes[0];
    assert_eq!((&*route.name, route.preset, route.on_unknown), ("default", "webhook", OnUnknown::Resend));
    assert_eq!(route.key, [KeySource::Header(HeaderName::from_static("x-event"))]);
    let upstream = ScopePart::Constant("127.0.0.1:3000".into());
    assert_eq!(route.scope, [ScopePart::Host, ScopePart::Path, upstream]);
    assert!(!config.log.requests);
    let again = super::loaded(&effective(&config)).config;
    assert_eq!(format!("{again:?}"), format!("{config:?}"));
    sources.text = Some("[log]\nrequests = false\n".into());
    sources.flags.log_requests = true;
    let config = load(&sources).unwrap().config;
    assert_eq!((config.routes[0].preset, config.log.requests), ("webhook", true));
}

#[test]
fn wrong_flags_of_the_route_without_a_file_are_named() {
    let mut sources = with_upstream();
    sources.flags.preset = Some("paymnt".into());
    sources.flags.key_header = Some("a b".into());
    let expected = [
        "--key-header: key: \"a b\" is not a field name; write a name such as \"X-Account-Id\"",
        "--preset: preset: \"paymnt\" is not a choice; did you mean \"payment\"?",
    ];
    assert_eq!(messages(&sources), expected);
}

#[test]
fn flags_of_the_route_without_a_file_contradict_routes_of_a_file() {
    let mut sources = Sources::text(route_with(""));
    sources.flags.preset = Some("payment".into());
    sources.flags.key_header = Some("X-Event".into());
    let said = "the file has routes of its own, and it is not clear which of them is meant; take it away, and write";
    let expected = [
        format!("--key-header: key: {said} key = [\"header:X-Event\"] in the route"),
        format!("--preset: preset: {said} preset = \"payment\" in the route"),
    ];
    assert_eq!(messages(&sources), expected);
    // Without a route to --upstream there is nothing that they are about.
    sources.text = None;
    let said = messages(&sources);
    assert!(said.len() == 1 && said[0].contains("--upstream http://HOST:PORT"), "{said:?}");
}

#[test]
fn the_upstream_of_a_flag_wins_over_that_of_the_environment() {
    let mut sources = with_upstream();
    sources.environment = Environment::empty().with("ONCEPROXY_UPSTREAM", "http://environment.example");
    assert_eq!(load(&sources).unwrap().config.routes[0].upstream.authority(), "127.0.0.1:3000");
    sources.flags.upstream = None;
    assert_eq!(load(&sources).unwrap().config.routes[0].upstream.authority(), "environment.example");
}

#[test]
fn an_upstream_serves_a_file_without_routes_and_contradicts_one_with_routes() {
    let flags = with_upstream().flags;
    let sources = Sources { flags: flags.clone(), ..Sources::text("listen = \"127.0.0.1:1\"") };
    let config = load(&sources).unwrap().config;
    assert_eq!((port(&config), &*config.routes[0].name), (1, "default"));
    let sources = Sources { flags, ..Sources::text(route_with("")) };
    let expected = "--upstream: upstream: the file has routes of its own, and none would go there; \
                    take it away, or take the routes out of the file";
    assert_eq!(messages(&sources), [expected]);
}

#[test]
fn what_is_said_of_the_default_route_names_the_flag_that_made_it() {
    let mut sources = with_upstream();
    sources.flags.listen = Some("127.0.0.1:3000".into());
    let expected = "--upstream: route.default.upstream: 127.0.0.1:3000 is this proxy itself; name the server behind it";
    assert_eq!(messages(&sources), [expected]);
}

#[test]
fn an_empty_variable_is_not_set() {
    let mut sources = with_upstream();
    sources.environment = Environment::empty().with("ONCEPROXY_LISTEN", "").with("ONCEPROXY_CONFIG", "");
    assert_eq!(port(&load(&sources).unwrap().config), 8080);
}

#[test]
fn mistakes_of_all_layers_come_together() {
    let mut sources = Sources::text(format!("lisen = \"127.0.0.1:1\"\n{}", route_with("timeout = 30")));
    sources.environment = Environment::empty().with("ONCEPROXY_LOG", "wran").with("ONCEPROXY_LISTEN", "here");
    sources.flags.store = Some("mongo://x".into());
    // The flag would win over a right value; the environment's mistake is said although the flag is right.
    sources.flags.listen = Some("127.0.0.1:5".into());
    assert_eq!(
        messages(&sources),
        [
            "line 1: lisen: no such setting; did you mean `listen`?",
            "line 5: route.r.timeout: 30 is not a string in quotes; \
             write a whole number and one of ms, s, m, h, d, such as \"250ms\", \"30s\" or \"24h\"",
            "ONCEPROXY_LISTEN: listen: \"here\" is not an address to listen on; \
             write an IP address and a port, such as \"127.0.0.1:8080\", \"[::1]:8080\" or \"localhost:8080\"",
            "ONCEPROXY_LOG: log.level: \"wran\" is not a choice; did you mean \"warn\"?",
            "--store: store.url: there is no store of this kind; \
             write \"memory:\", \"disk:DIR\", \"redis://HOST\", \"redis+unix:///SOCKET\", \"redis+sentinel://HOSTS/NAME\", \
             \"redis+cluster://HOSTS\" (rediss for TLS) or \"postgres://USER:PASSWORD@HOST/DATABASE\"",
        ]
    );
}

#[test]
fn a_file_is_read_and_named_in_messages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.toml");
    std::fs::write(&path, "listen = 8080\n").unwrap();
    let mut sources = with_upstream();
    sources.file = Some(path.clone());
    let message = messages(&sources).concat();
    assert!(message.starts_with(&format!("{}:1: listen: ", path.display())), "{message}");
    std::fs::write(&path, "listen = \"127.0.0.1:7\"\n").unwrap();
    let loaded = load(&sources).unwrap();
    assert_eq!((port(&loaded.config), loaded.file), (7, Some(path.clone())));
    // The flag wins over the variable, which names a file that is not there.
    sources.environment = Environment::empty().with("ONCEPROXY_CONFIG", "/nowhere/at/all.toml");
    assert_eq!(port(&load(&sources).unwrap().config), 7);
    sources.file = None;
    let message = messages(&sources).concat();
    assert!(message.starts_with("ONCEPROXY_CONFIG: config: /nowhere/at/all.toml cannot be read: "), "{message}");
}

#[test]
fn a_file_that_is_not_there_says_nothing_about_routes() {
    let sources = Sources { file: Some("/nowhere/at/all.toml".into()), ..Sources::default() };
    assert_eq!(messages(&sources).len(), 1);
}

#[test]
fn a_token_from_outside_opens_the_operators_listener_to_the_network() {
    let mut sources = with_upstream();
    sources.flags.admin_listen = Some("0.0.0.0:9090".into());
    let expected = "--admin-listen: admin.listen: this address can be reached from other hosts, and there is no token; \
                    set admin.token (better: ONCEPROXY_ADMIN_TOKEN), or listen on 127.0.0.1";
    assert_eq!(messages(&sources), [expected]);
    sources.environment = Environment::empty().with("ONCEPROXY_ADMIN_TOKEN", "t0ken");
    assert!(load(&sources).is_ok());
}

#[test]
fn variables_that_set_nothing_are_warned_about() {
    let mut sources = with_upstream();
    for name in ["ONCEPROXY_LISTNE", "ONCEPROXY_LOG_LEVEL", "ONCEPROXY_THREADS"] {
        sources.environment = sources.environment.with(name, "4");
    }
    // Of these Kubernetes makes some for every service, and others are nobody's business.
    for name in
        ["ONCEPROXY_SERVICE_HOST", "ONCEPROXY_SERVICE_PORT_HTTP", "ONCEPROXY_PORT", "ONCEPROXY_PORT_80_TCP_ADDR"]
    {
        sources.environment = sources.environment.with(name, "4");
    }
    sources.environment = sources.environment.with("HTTP_PROXY", "http://other");
    let warnings: Vec<_> = load(&sources).unwrap().warnings.iter().map(ToString::to_string).collect();
    let said =
        |name: &str, remedy: &str| format!("settings: {name}: this variable of the environment sets nothing; {remedy}");
    assert_eq!(
        warnings,
        [
            said("ONCEPROXY_LISTNE", "did you mean ONCEPROXY_LISTEN?"),
            said("ONCEPROXY_LOG_LEVEL", "did you mean ONCEPROXY_LOG?"),
            said(
                "ONCEPROXY_THREADS",
                "there are ONCEPROXY_CONFIG, ONCEPROXY_LISTEN, ONCEPROXY_UPSTREAM, ONCEPROXY_STORE, \
                 ONCEPROXY_ADMIN_LISTEN, ONCEPROXY_ADMIN_TOKEN, ONCEPROXY_LOG; the rest is set in the file"
            ),
        ]
    );
}

#[test]
fn the_operators_section_is_read_past_mistakes_elsewhere() {
    let broken = "[admin]\nlisten = \"127.0.0.1:4545\"\n[store]\nurl = \"paper:\"\n[[route]]\nname = \"a\n";
    let (admin, others) = load_admin(&Sources::text(broken)).unwrap();
    assert_eq!(admin.listen.unwrap().port(), 4545);
    let others: Vec<_> = others.iter().map(|mistake| mistake.key.as_str()).collect();
    assert!(others.contains(&"store.url") && others.contains(&"TOML"), "{others:?}");
    let (admin, others) = load_admin(&Sources::default()).unwrap();
    assert_eq!((admin.listen.unwrap().port(), others), (9090, Vec::new()), "no upstream is missed");
    let wrong = load_admin(&Sources::text("[admin]\nlisten = \"nowhere\"\n")).unwrap_err();
    assert!(wrong.to_string().contains("admin.listen"), "{wrong}");
}

/// A test cannot set its own process's environment safely, so another process runs the next test.
#[test]
fn the_real_environment_is_read() {
    let not_text: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(vec![b'/', 0xff]);
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "config::tests::layers::in_the_environment_of_another_test"])
        .env_clear()
        .env("ONCEPROXY_LISTEN", "127.0.0.1:4242")
        .env("ONCEPROXY_UPSTREAM", "http://u.example")
        .env("ONCEPROXY_ADMIN_LISTEN", "")
        .env("ONCEPROXY_LOG", "loud")
        .env("ONCEPROXY_CONFIG", not_text)
        .env("ONCEPROXY_SERVICE_HOST", "10.0.0.1")
        .env("ONCEPROXY_STORE_URL", "memory:")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "the_real_environment_is_read runs it, in a process of its own"]
fn in_the_environment_of_another_test() {
    let mut sources = Sources::real(None, Flags { store: Some("memory:".into()), ..Flags::default() });
    let expected = [
        "ONCEPROXY_CONFIG: environment: the value is not UTF-8; set it again, or unset it",
        "ONCEPROXY_LOG: log.level: \"loud\" is not a choice; \
         write one of \"error\", \"warn\", \"info\", \"debug\", \"trace\"",
    ];
    assert_eq!(messages(&sources), expected);
    sources.environment = sources.environment.with("ONCEPROXY_LOG", "warn");
    sources.environment.not_text.clear();
    let Loaded { config, warnings, .. } = load(&sources).unwrap();
    assert!(warnings.iter().any(|warning| warning.key == "ONCEPROXY_STORE_URL"), "{warnings:?}");
    assert_eq!((port(&config), config.log.level), (4242, LogLevel::Warn));
    assert_eq!(config.admin.listen.unwrap().port(), 9090);
}
