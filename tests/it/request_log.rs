//! The line that each request gets in the log, and what goes by unchanged where nothing is traced.

use serde_json::Value;

use crate::support::proxy::{Ended, signal};
use crate::support::{Connection, Request, Script, Store, Upstream, World, eventually, reply};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const LOG: &str = "[log]\nlevel = \"info\"\nrequests = true\nformat = \"json\"\n";

async fn logging() -> World {
    World::build(Store::Memory).log(LOG).start().await
}

/// The lines of requests, once there are so many.
async fn lines(world: &World, count: usize) -> Vec<Value> {
    let found = eventually("the lines of all requests", async || {
        let lines = world.proxy().log();
        let lines = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let found: Vec<_> = lines.filter(|line| line["message"] == "request").collect();
        (found.len() >= count).then_some(found)
    })
    .await;
    assert_eq!(found.len(), count, "{found:#?}");
    found
}

fn is_uuid(text: &Value) -> bool {
    let text = text.as_str().unwrap_or_default();
    text.len() == 36 && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[tokio::test]
async fn each_request_is_one_line_with_ids_result_and_times() {
    let world = logging().await;
    let request = Request::pay().key("k").field("X-Request-Id", "order-7/1").field("traceparent", TRACEPARENT);
    world.send(&request).await.assert_executed(201);
    world.send(&Request::pay().key("k")).await.assert_replay(201);
    world.send(&Request::new("GET", "/plain")).await;
    world.upstream.next(Script::close());
    let unknown = world.send(&Request::pay().key("u")).await;
    let lines = lines(&world, 4).await;
    let [first, replay, plain, broken] = &lines[..] else { unreachable!() };

    assert_eq!((&first["request_id"], &first["route"]), (&"order-7/1".into(), &"pay".into()));
    assert_eq!(first["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(
        (&first["method"], &first["status"], &first["result"]),
        (&"POST".into(), &201.into(), &"executed".into())
    );
    let seconds = |line: &Value, name: &str| line[name].as_f64().unwrap_or_else(|| panic!("no {name} in {line}"));
    let (store, upstream) = (seconds(first, "store_seconds"), seconds(first, "upstream_seconds"));
    assert!(store > 0.0 && upstream > 0.0 && seconds(first, "seconds") >= store.max(upstream), "{first}");

    assert!(is_uuid(&replay["request_id"]) && replay["trace_id"].is_null());
    assert_eq!((&replay["record"], &replay["result"]), (&first["record"], &"replayed".into()));
    assert!(replay["upstream_seconds"].is_null() && seconds(replay, "store_seconds") > 0.0);

    assert_eq!((&plain["result"], &plain["record"]), (&"unprotected".into(), &Value::Null));
    assert!(plain["store_seconds"].is_null() && seconds(plain, "upstream_seconds") > 0.0);

    assert_eq!((&broken["status"], &broken["record"]), (&502.into(), &unknown.record().into()));
    assert_eq!(broken["result"], "unknown");
    assert!(replay["request_id"] != plain["request_id"], "each has its own");
}

#[tokio::test]
async fn the_upstream_is_told_the_id_of_a_request_that_came_without() {
    let world = logging().await;
    world.send(&Request::pay().key("a")).await.assert_executed(201);
    let told = world.upstream.last().all("x-request-id");
    world.send(&Request::new("GET", "/plain")).await;
    let told_plain = world.upstream.last().all("x-request-id");
    // What a log cannot hold goes on as it came; the line has an id of its own.
    world.send(&Request::pay().key("b").field("X-Request-Id", "a \"b\"")).await.assert_executed(201);
    assert_eq!(world.upstream.last().all("x-request-id"), ["a \"b\""]);
    let lines = lines(&world, 3).await;
    assert_eq!([told, told_plain].concat(), [lines[0]["request_id"].clone(), lines[1]["request_id"].clone()]);
    assert!(is_uuid(&lines[2]["request_id"]));
}

#[tokio::test]
async fn one_whose_client_left_and_one_without_a_route_have_their_line_too() {
    let world = World::build(Store::Memory).log(LOG).route("path = \"/pay\"").start().await;
    world.send(&Request::new("GET", "/elsewhere")).await.assert_problem(404, "no-route");
    world.upstream.next(Script::never());
    let left = Request::pay().key("k").begin(world.address());
    world.upstream.reached(1).await;
    left.hang_up().await;
    let lines = lines(&world, 2).await;
    assert_eq!(
        (&lines[0]["result"], &lines[0]["status"], &lines[0]["route"]),
        (&"no_route".into(), &404.into(), &Value::Null)
    );
    assert_eq!((&lines[0]["host"], &lines[0]["path"]), (&"shop.test".into(), &"/elsewhere".into()));
    assert_eq!((&lines[1]["host"], &lines[1]["path"]), (&Value::Null, &"/pay".into()));
    assert_eq!(
        (&lines[1]["result"], &lines[1]["status"], &lines[1]["route"]),
        (&"client_left".into(), &Value::Null, &"pay".into())
    );
    assert!(lines[1]["record"].is_string());
}

#[tokio::test]
async fn a_line_has_the_path_and_neither_query_nor_key() {
    let world = World::build(Store::Memory).log(LOG).route("path = \"/pay\"\nkey = [\"query:id\"]").start().await;
    world.send(&Request::pay().target("/pay/a%20b?id=sk_secret")).await.assert_executed(201);
    let longest = format!("/{}", "x".repeat(5000));
    for host in ["elsewhere.test:8080".to_owned(), "h".repeat(2000)] {
        let request = Request::new("GET", &longest).set("Host", &host);
        world.send(&request).await.assert_problem(404, "no-route");
    }
    let lines = lines(&world, 3).await;
    assert_eq!((&lines[0]["path"], &lines[0]["host"]), (&"/pay/a%20b".into(), &Value::Null));
    assert_eq!((&lines[1]["host"], &lines[1]["result"]), (&"elsewhere.test".into(), &"no_route".into()));
    assert_eq!(lines[2]["host"], format!("{}…", "h".repeat(253)));
    assert_eq!(lines[2]["path"], format!("{}…", &longest[..1024]));
    assert!(!world.proxy().log().concat().contains("secret"), "the query is nobody's business");
}

#[tokio::test]
async fn traces_and_request_ids_go_by_unchanged_where_nobody_asks_for_them() {
    let world = World::new(Store::Memory).await;
    for request in [Request::pay().key("k"), Request::new("GET", "/plain")] {
        let fields = [("traceparent", TRACEPARENT), ("tracestate", "a=1"), ("tracestate", "b=2"), ("baggage", "c=d")];
        let marked = fields.iter().fold(request.clone(), |request, (name, value)| request.field(name, value));
        world.upstream.next(reply(200).field("traceparent", "00-of-the-upstream"));
        let answer = world.send(&marked.field("traceparent", "not one")).await;
        assert_eq!(answer.field("traceparent"), Some("00-of-the-upstream"));
        let received = world.upstream.last();
        assert_eq!(received.all("traceparent"), [TRACEPARENT, "not one"]);
        assert_eq!(received.all("tracestate"), ["a=1", "b=2"]);
        assert_eq!((received.all("baggage"), received.all("x-request-id")), (vec!["c=d".to_owned()], vec![]));
    }
    world.pay("another").await.assert_executed(201);
    let received = world.upstream.last();
    assert!(received.all("traceparent").is_empty() && received.all("x-request-id").is_empty(), "none is made up");
}

#[tokio::test]
async fn the_line_for_people_has_the_same() {
    let upstream = Upstream::start();
    let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let settings = format!(
        "listen = \"{listen}\"\n[log]\nrequests = true\n[admin]\nlisten = \"off\"\n[store]\nurl = \"memory:\"\n\
         [[route]]\nname = \"pay\"\nupstream = \"http://{}\"\n",
        upstream.address
    );
    std::fs::write(file.path(), settings).unwrap();
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_onceproxy"))
        .args(["serve", "--config"])
        .arg(file.path())
        .env_clear()
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Ended(child);
    drop(eventually("the listener", async || Connection::try_open(listen).await).await);
    let request = Request::pay().key("k").field("X-Request-Id", "order-7").field("traceparent", TRACEPARENT);
    request.send(listen).await.assert_executed(201);
    signal("TERM", child.0.id());
    let mut log = String::new();
    std::io::Read::read_to_string(child.0.stderr.as_mut().unwrap(), &mut log).unwrap();
    let found: Vec<_> = log.lines().filter(|line| line.contains(": request ")).collect();
    let [line] = found[..] else { panic!("{log}") };
    for part in [
        "request_id=\"order-7\"",
        "trace_id=0af7651916cd43dd8448eb211c80319c",
        "route=\"pay\"",
        "record=pay:",
        "path=\"/pay\" method=POST status=201 result=\"executed\"",
        " seconds=0.",
        " store_seconds=",
        " upstream_seconds=",
    ] {
        assert!(line.contains(part), "no {part} in {line}");
    }
}

#[cfg(not(feature = "otel"))]
#[test]
fn a_build_that_makes_no_traces_refuses_a_collector() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let trace =
        "[trace]\notlp_endpoint = \"http://127.0.0.1:4318\"\n[[route]]\nname = \"r\"\nupstream = \"http://u\"\n";
    std::fs::write(file.path(), trace).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_onceproxy"))
        .args(["check", "--config"])
        .arg(file.path())
        .env_clear()
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains(":2: trace.otlp_endpoint") && said.contains("--features otel"), "{said}");
}

/// What the log looks like on a terminal with these variables. The process ends by itself: its address is taken.
fn on_a_terminal(variables: &[(&str, &str)]) -> String {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let serve = format!(
        "{} serve --upstream http://127.0.0.1:1 --listen {} --admin-listen off --store memory:",
        env!("CARGO_BIN_EXE_onceproxy"),
        taken.local_addr().unwrap()
    );
    let output = std::process::Command::new("script")
        .args(["--quiet", "--command", &serve, "/dev/null"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(variables.iter().copied())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("starting"), "{said}");
    said
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let (xterm, refused) = (("TERM", "xterm"), ("NO_COLOR", "1"));
    for (variables, coloured) in [
        (&[xterm][..], true),
        (&[xterm, ("NO_COLOR", "")], true),
        (&[], true),
        (&[xterm, refused], false),
        (&[xterm, ("NO_COLOR", "0")], false),
        (&[("TERM", "dumb")], false),
    ] {
        let said = on_a_terminal(variables);
        assert_eq!(said.contains('\u{1b}'), coloured, "{variables:?}: {said:?}");
    }
}

#[tokio::test]
async fn nobody_waits_for_whoever_reads_the_log() {
    const REQUESTS: u64 = 2000;
    let world = logging().await;
    let nobody = world.proxy().stop_reading().await;
    let target = format!("/{}", "x".repeat(4000));
    for _ in 0..REQUESTS {
        assert_eq!(world.send(&Request::new("GET", &target)).await.status, 201);
    }
    world.send(&Request::pay().key("k")).await.assert_executed(201);
    let dropped = world.proxy().metric("onceproxy_log_lines_dropped_total", &[]).await as u64;
    assert!((1..REQUESTS).contains(&dropped), "{dropped}");
    drop(nobody);
    let told = world.proxy().logged("log lines were dropped").await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["level"], &told["dropped"]), (&"WARN".into(), &dropped.into()));
    let read = world.proxy().log().iter().filter(|line| line.contains("\"message\":\"request\"")).count() as u64;
    assert_eq!(read + dropped, REQUESTS + 1);
}
