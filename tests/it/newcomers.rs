//! What people meet first: certificates that they made themselves, and URLs of the wrong kind.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use onceproxy::config::store::{Backend, StoreConfig};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

use crate::contract;
use crate::postgres_server::{ADMIN, DATABASE, PostgresServer, fresh_schema};
use crate::redis_server::RedisServer;
use crate::support::proxy::{Ended, signal};
use crate::support::tls::{Authority, acceptor, write_own_certificate};
use crate::support::{Request, Script, Store, Upstream, World, eventually};

on_each_store! {
    async fn a_certificate_that_openssl_made_is_trusted_as_curl_trusts_it(store) {
        let folder = tempfile::tempdir().unwrap();
        write_own_certificate("-subj /CN=127.0.0.1", folder.path());
        let ca = folder.path().join("cert.pem");
        let route = format!("upstream = \"https://AUTHORITY\"\n ca_file = \"{}\"", ca.display());
        let world = World::build(store).route(&route).start().await;
        world.upstream.speak_tls(acceptor(folder.path()));
        world.pay("k-1").await.assert_executed(201);
        world.pay("k-1").await.assert_replay(201);
        // Another of the same name, as an attacker or a renewal has it: not this one, not this one's.
        let other = tempfile::tempdir().unwrap();
        write_own_certificate("-subj /CN=127.0.0.1", other.path());
        let world = World::build(store).route(&route).start().await;
        world.upstream.speak_tls(acceptor(other.path()));
        world.pay("k-2").await.assert_problem(502, "upstream-unreachable");
        let said = world.proxy().logged("upstream not reached").await;
        assert!(said.contains("ca_file"), "{said}");
        assert_eq!(world.executions(), 0);
    }

    /// It is known that nothing was executed, so the key is free once the URL is mended.
    async fn http_to_a_port_of_tls_is_told_and_gives_the_key_back(store) {
        let mut world = World::new(store).await;
        let authority = Authority::new();
        world.upstream.speak_tls(authority.certificate_for("127.0.0.1"));
        let problem = world.pay("k-1").await;
        problem.assert_problem(502, "upstream-unreachable");
        assert_eq!(problem.retry(), "same-key");
        let detail = problem.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("speaks TLS") && detail.contains("http://"), "{detail}");
        let plain = world.send(&Request::new("GET", "/pay")).await;
        plain.assert_problem(502, "upstream-unreachable");
        assert!(plain.json()["detail"].as_str().unwrap().contains("speaks TLS"), "{}", plain.shown());
        assert_eq!(problem.field("Retry-After"), None);
        assert!(world.proxy().open_records("").await.is_empty());
        let said = world.proxy().logged("upstream not reached").await;
        assert!(said.contains("speaks TLS there") && said.contains("write https://"), "{said}");
        world.change_route(&format!("upstream = \"https://AUTHORITY\"\n ca_file = \"{}\"", authority.file().display()));
        world.restart().await;
        if store != Store::Memory {
            assert!(world.proxy().open_records("").await.is_empty());
        }
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 1);
    }
}

#[tokio::test]
async fn https_to_a_port_without_tls_is_told() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("upstream = \"https://{}\"", listener.local_addr().unwrap());
    // Servers of HTTP refuse a handshake of TLS as a bad request.
    let served = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        }
    });
    let world = World::with(Store::Memory, &upstream).await;
    for request in [Request::pay().key("k-1"), Request::new("GET", "/pay")] {
        let problem = world.send(&request).await;
        problem.assert_problem(502, "upstream-unreachable");
        let detail = problem.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("does not speak TLS there, and the settings say https://"), "{detail}");
    }
    let said = world.proxy().logged("upstream not reached").await;
    assert!(said.contains("write http://"), "{said}");
    served.abort();
}

/// OpenSSL sends no alert where the bytes are plainly HTTP; nor does a server that crashes. Only the log can help.
#[tokio::test]
async fn an_upstream_that_closes_without_a_byte_is_told_with_what_may_be_wrong() {
    // Within a second the second one is there at `debug` alone.
    let world = World::build(Store::Memory)
        .top("threads = 1")
        .log("[log]\nlevel = \"debug\"\nformat = \"json\"\n")
        .start()
        .await;
    world.upstream.next(Script::close());
    world.pay("k-1").await.assert_problem(502, "outcome-unknown");
    let said = world.proxy().logged("upstream broke off").await;
    assert!(said.contains("without a byte") && said.contains("write https://"), "{said}");
    // One that has answered before speaks no TLS.
    world.pay("k-2").await.assert_executed(201);
    world.upstream.next(Script::close());
    world.pay("k-3").await.assert_problem(502, "outcome-unknown");
    let broke = async || {
        let log = world.proxy().log();
        let found: Vec<_> = log.into_iter().filter(|line| line.contains("upstream broke off")).collect();
        (found.len() == 2).then_some(found)
    };
    assert!(!eventually("the second line", broke).await[1].contains("https://"));
}

/// It waits for the end of a request that never comes.
#[tokio::test]
async fn https_to_a_server_that_is_silent_is_told() {
    let world = World::with(Store::Memory, "upstream = \"https://AUTHORITY\"\n connect_timeout = \"300ms\"").await;
    let problem = world.pay("k-1").await;
    problem.assert_problem(502, "upstream-unreachable");
    let detail = problem.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("spoke no TLS in time"), "{detail}");
    let said = world.proxy().logged("upstream not reached").await;
    assert!(said.contains("write http://"), "{said}");
}

#[tokio::test]
async fn http_2_to_a_port_of_tls_is_told() {
    let world = World::with(Store::Memory, "upstream_protocol = \"h2\"").await;
    world.upstream.speak_tls(Authority::new().certificate_for("127.0.0.1"));
    world.pay("k-1").await.assert_problem(502, "upstream-unreachable");
    let said = world.proxy().logged("upstream not reached").await;
    assert!(said.contains("speaks TLS there") && said.contains("write https://"), "{said}");
}

/// `serve` as people start it, in a folder of its own.
struct Served {
    child: Ended,
    log: PathBuf,
}

impl Served {
    fn start(folder: &Path, arguments: &[&str]) -> Served {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "off"];
        Served::run(Command::new(env!("CARGO_BIN_EXE_onceproxy")).args(serve).args(arguments), folder)
    }

    fn run(command: &mut Command, folder: &Path) -> Served {
        let log = folder.join("log");
        let file = std::fs::File::create(&log).unwrap();
        let path = [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")];
        let child = command.current_dir(folder).env_clear().envs(path).stdin(Stdio::null()).stderr(file).spawn();
        Served { child: Ended(child.unwrap()), log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// The whole log, once it has this.
    async fn logged(&self, text: &str) -> String {
        eventually(&format!("{text} in the log"), async || Some(self.log()).filter(|log| log.contains(text))).await
    }

    async fn ended(&mut self) -> i32 {
        let status = eventually("the end", async || self.child.0.try_wait().unwrap()).await;
        status.code().unwrap_or(-1)
    }

    async fn stop(mut self) -> String {
        signal("TERM", self.child.0.id());
        assert_eq!(self.ended().await, 0);
        self.log()
    }
}

/// What the lines of a module say, without time and level.
fn said_by<'a>(log: &'a str, module: &str) -> Vec<&'a str> {
    let of_module = format!(" onceproxy::{module}: ");
    log.lines().filter_map(|line| line.split_once(&of_module).map(|(_, said)| said)).collect()
}

#[tokio::test]
async fn the_first_lines_say_what_to_call_and_how_to_try_it() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let to = format!("http://{}", upstream.address);
    let served = Served::start(folder.path(), &["--upstream", &to]);
    let log = served.logged("to see it work").await;
    assert!(log.find("listener=").unwrap() < log.find("app::introduction").unwrap(), "first it listens: {log}");
    let [calls, try_it] = said_by(&log, "app::introduction")[..] else { panic!("{log}") };
    let url = calls.split(' ').next().unwrap();
    assert_eq!(calls, format!("{url} goes to {to} (route default, preset api); records in disk:./onceproxy-data"));
    let curl = try_it.strip_prefix("to see it work, run this twice: ").unwrap();
    // The README shows the same.
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    for said in [calls, try_it] {
        let usual = said.replace(url, "http://127.0.0.1:8080").replace(&to, "http://127.0.0.1:3000");
        assert!(readme.lines().any(|line| line == usual), "README.md does not show: {usual}");
    }
    // And it does what it says.
    served.logged("the store was tried, and works").await;
    for (times, expected) in [(1, "fwd=miss; stored"), (2, "idempotent-replayed: true")] {
        let tried = tokio::process::Command::new("sh").args(["-c", &format!("{curl} --no-progress-meter")]).output();
        let tried = tried.await.unwrap();
        let answer = String::from_utf8_lossy(&tried.stdout).into_owned();
        assert!(answer.starts_with("HTTP/1.1 201") && answer.contains(expected), "{times}: {answer}");
    }
    assert_eq!(upstream.executions(), 1);
    let before = said_by(&served.log(), "app::introduction").len();
    signal("HUP", served.child.0.id());
    served.logged("reload").await;
    let log = served.stop().await;
    assert_eq!(said_by(&log, "app::introduction").len(), before, "a reload introduces nothing: {log}");
}

#[tokio::test]
async fn flags_say_what_the_upstream_is_for_and_where_its_callers_put_the_key() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let to = format!("http://{}", upstream.address);
    let flags = ["--preset", "payment", "--key-header", "X-Payment-Id", "--log-requests"];
    let served = Served::start(folder.path(), &[&["--upstream", &to], &flags[..]].concat());
    let log = served.logged("the store was tried, and works").await;
    let [calls, try_it] = said_by(&log, "app::introduction")[..] else { panic!("{log}") };
    assert!(calls.ends_with("(route default, preset payment); records in disk:./onceproxy-data"), "{calls}");
    assert!(try_it.contains("-H 'X-Payment-Id: try-1'"), "{try_it}");
    assert!(try_it.contains("run this twice (the first one reaches the upstream): curl"), "{try_it}");
    let address = calls.strip_prefix("http://").unwrap().split(' ').next().unwrap().parse().unwrap();
    let pay = |header: &str| Request::pay().field(header, "p-1");
    pay("X-Payment-Id").send(address).await.assert_executed(201);
    pay("X-Payment-Id").send(address).await.assert_replay(201);
    // The preset's own header is none any more, and a payment needs a key.
    pay("Idempotency-Key").send(address).await.assert_problem(400, "key-missing");
    assert_eq!(upstream.executions(), 1);
    served.logged("result=\"replay").await;
    served.stop().await;
}

#[tokio::test]
async fn machines_get_the_first_lines_as_fields() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onceproxy.toml");
    let route = |name: &str, place: &str| {
        format!("[[route]]\nname = \"{name}\"\n{place}\nupstream = \"http://127.0.0.1:1\"\npreset = \"payment\"\n")
    };
    let second = route("second", "path = \"/b/\"\nhost = \"b.example\"");
    let routes = [route("first", "path = \"/a/\""), second, route("third", "path = \"/c/\"")].concat();
    std::fs::write(&file, format!("[log]\nformat = \"json\"\n[store]\nurl = \"memory:\"\n{routes}")).unwrap();
    let served = Served::start(folder.path(), &["--config", file.to_str().unwrap()]);
    let log = served.logged("\"route\":\"second\",\"preset\"").await;
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let serving: Vec<_> = lines.filter(|line| line["message"] == "serving").collect();
    let [first, second] = &serving[..] else { panic!("{log}") };
    for (line, route, path) in [(first, "first", "/a/"), (second, "second", "/b/")] {
        let said = ["route", "upstream", "preset", "store"].map(|name| line[name].as_str().unwrap());
        assert_eq!(said, [route, "http://127.0.0.1:1", "payment", "memory:"], "{line}");
        let url = line["url"].as_str().unwrap();
        assert!(url.starts_with("http://127.0.0.1:") && url.ends_with(path), "{line}");
        assert!(line["curl"].as_str().unwrap().contains("/a/ -H 'Idempotency-Key: try-1'"), "{line}");
    }
    assert_eq!((first.get("host"), &second["host"]), (None, &Value::from("b.example")));
}

/// Paths that not even root can use.
#[tokio::test]
async fn a_store_folder_that_cannot_be_used_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    for (store, why) in [
        ("disk:file", "a file stands in its way"),
        ("disk:file/below", "a file stands in its way"),
        ("disk:/proc/onceproxy", "cannot be used"),
    ] {
        let mut served = Served::start(folder.path(), &["--upstream", "http://127.0.0.1:1", "--store", store]);
        let (code, log) = (served.ended().await, served.log());
        assert_eq!(code, 1, "{store}: {log}");
        let last = log.lines().last().unwrap();
        assert!(last.starts_with("error: cannot open the store: the folder ") && last.contains(why), "{log}");
        assert!(last.contains("--store disk:DIR"), "{log}");
        assert!(!log.contains("listener="), "nobody is to connect: {log}");
    }
}

#[tokio::test]
async fn a_store_folder_with_files_that_cannot_be_read_stops_the_start() {
    for (file, content) in
        [("records.redb", &b"no records"[..]), ("format", b"onceproxy records, format 9\n"), ("format", b"\xff\xfe")]
    {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("onceproxy-data");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join(file), content).unwrap();
        let mut served = Served::start(folder.path(), &["--upstream", "http://127.0.0.1:1"]);
        let (code, log) = (served.ended().await, served.log());
        assert_eq!(code, 1, "{file}: {log}");
        let last = log.lines().last().unwrap();
        assert!(last.starts_with("error: cannot open the store: ") && last.contains(file), "{log}");
        assert!(last.contains("in another folder its keys may run again"), "{log}");
        assert!(said_by(&log, "app::introduction").is_empty(), "nothing is served: {log}");
    }
}

/// File systems that are read-only, or full; where this process may mount some.
#[tokio::test]
async fn a_file_system_that_cannot_be_written_stops_the_start() {
    let allowed = Command::new("unshare").args(["--mount", "true"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: this user may not mount");
    }
    for (options, why) in [("ro", "mounted read-only"), ("size=4k", "make room"), ("size=16k", "make room")] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("mount")).unwrap();
        let serve = format!(
            "mount -t tmpfs -o {options} none mount && exec {} serve --listen 127.0.0.1:0 --admin-listen off --upstream \
             http://127.0.0.1:1 --store disk:mount/records",
            env!("CARGO_BIN_EXE_onceproxy")
        );
        let mut served = Served::run(Command::new("unshare").args(["--mount", "sh", "-c", &serve]), folder.path());
        let (code, log) = (served.ended().await, served.log());
        assert_eq!(code, 1, "{options}: {log}");
        assert!(log.lines().last().unwrap().contains(why), "{options}: {log}");
    }
}

#[tokio::test]
async fn a_store_folder_that_is_held_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let start = || Served::start(folder.path(), &["--upstream", "http://127.0.0.1:1"]);
    let first = start();
    first.logged("the store was tried, and works").await;
    let other = tempfile::tempdir().unwrap();
    let store = format!("disk:{}", folder.path().join("onceproxy-data").display());
    let second = Served::start(other.path(), &["--upstream", "http://127.0.0.1:1", "--store", &store]);
    let log = second.logged("is held by process").await;
    assert!(log.contains("waiting, and trying again") && log.contains("get 503 until then"), "{log}");
    assert!(log.contains("stop that process, or name another folder by --store"), "{log}");
    let log = second.logged("listener=\"proxy\"").await;
    assert!(said_by(&log, "app::introduction").is_empty(), "nothing works yet: {log}");
    first.stop().await;
    let log = second.logged("the store was tried, and works").await;
    assert_eq!(log.matches("is held by").count(), 1, "{log}");
    second.logged("to see it work").await;
    second.stop().await;
}

/// What is said where the records were made with another `--upstream`.
const OTHER: &str = "with another --upstream";

#[tokio::test]
async fn records_of_another_upstream_are_told_of_at_start() {
    let redis = RedisServer::start(&[]);
    let schema = fresh_schema();
    let postgres = PostgresServer::shared();
    let url = format!("postgres://{ADMIN}@{}/{DATABASE}", postgres.address());
    let tables = Backend::Postgres(onceproxy::config::store::Postgres::clone(&postgres_of(&url)));
    let prepared = StoreConfig { prefix: schema.clone(), ..contract::config(tables) };
    onceproxy::store::init(&prepared).await.unwrap();
    for store in [
        "url = \"disk:records\"".to_owned(),
        format!("url = \"redis://127.0.0.1:{}\"", redis.port()),
        format!("url = \"{url}\"\nprefix = \"{schema}\""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("onceproxy.toml");
        std::fs::write(&file, format!("[store]\n{store}\n")).unwrap();
        let said = async |upstream: &str, told: bool| {
            let served = Served::start(folder.path(), &["--config", file.to_str().unwrap(), "--upstream", upstream]);
            served.logged("the store was tried, and works").await;
            if told {
                served.logged(OTHER).await;
            }
            // The note is made at start; where nothing is told, a stop must not come before it.
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            served.stop().await
        };
        let (one, two) = ("http://one.invalid:3000", "http://two.invalid:3000");
        for (upstream, told) in [(one, false), (one, false), (two, true), (two, false), (one, true)] {
            let log = said(upstream, told).await;
            assert_eq!(log.contains(OTHER), told, "{store}: {upstream}: {log}");
            let authority = |upstream: &str| upstream.replace("http://", "");
            if told {
                assert!(log.contains("give each upstream a --store of its own"), "{log}");
                let earlier = if upstream == one { two } else { one };
                assert!(log.contains(&format!("earlier=\"{}\"", authority(earlier))), "{log}");
            }
        }
    }
}

/// The settings of this server.
fn postgres_of(url: &str) -> onceproxy::config::store::Postgres {
    let text = format!("[store]\nurl = \"{url}\"\n[[route]]\nname = \"r\"\nupstream = \"http://u\"\n");
    let loaded = onceproxy::config::load(&onceproxy::config::Sources::text(text)).unwrap();
    let Backend::Postgres(postgres) = loaded.config.store.backend else { unreachable!() };
    postgres
}

#[tokio::test]
async fn a_dead_upstream_is_told_once_a_second_and_not_for_each_request() {
    const REQUESTS: usize = 200;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let world = World::with(Store::Memory, &format!("upstream = \"http://{free}\"")).await;
    for number in 0..REQUESTS / 2 {
        world.pay(&format!("k-{number}")).await.assert_problem(502, "upstream-unreachable");
        world.send(&Request::new("GET", "/x")).await.assert_problem(502, "upstream-unreachable");
    }
    world.proxy().logged("upstream not reached").await;
    let told = world.proxy().log().iter().filter(|line| line.contains("upstream not reached")).count();
    assert!(told < REQUESTS / 4, "{told} lines");
}
