//! Traces: what a real socket gets that stands in for a collector, and what the upstream sees of them.

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

use crate::support::collector::{Collector, Span, refused, taken};
use crate::support::proxy::Ended;
use crate::support::tls::Authority;
use crate::support::{Connection, Gate, Request, Script, Store, Upstream, World, eventually, reply, within_deadline};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

async fn traced(store: Store, collector: &Collector, more: &str) -> World {
    World::build(store).more(&collector.settings(more)).start().await
}

/// The span of this name under that one.
fn under<'a>(spans: &'a [Span], parent: &Span, name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.parent == parent.id && span.name == name);
    let first = found.next().unwrap_or_else(|| panic!("no {name} under {parent:#?} in {spans:#?}"));
    assert!(found.next().is_none(), "two of {name}");
    assert_eq!(first.trace, parent.trace);
    assert!(first.times.0 >= parent.times.0);
    first
}

#[tokio::test]
async fn an_execution_is_told_with_its_sends_and_its_store_operations() {
    let collector = Collector::start();
    let world = traced(Store::Disk, &collector, "service_name = \"pay-once\"").await;
    let request = Request::new("POST", "/pay/1?q=2").json("{}").key("k");
    let request =
        request.field("traceparent", traceparent("01")).field("tracestate", "a=1,b=2").field("baggage", "c=d");
    world.send(&request.field("tracestate", "e=3")).await.assert_executed(201);

    let [server]: [Span; 1] = collector.requests(1).await.try_into().unwrap();
    assert_eq!((server.name.as_str(), server.trace.as_str(), server.parent.as_str()), ("POST pay", TRACE, CALLER));
    assert_eq!(server.flags, 0x301, "sampled, and the parent is another process's");
    assert!(!server.failed && server.links.is_empty());
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.response.status_code", "201"),
        ("url.path", "/pay/1"),
        ("url.scheme", "http"),
        ("network.peer.address", "127.0.0.1"),
        ("network.protocol.version", "1.1"),
        ("onceproxy.route", "pay"),
        ("onceproxy.result", "executed"),
        ("onceproxy.cache", "onceproxy; fwd=miss; stored"),
    ] {
        assert_eq!(server.says(name), value, "{name}");
    }
    assert!(server.says("onceproxy.record").starts_with("pay:"));
    assert_eq!(server.resource["service.name"], "pay-once");
    assert_eq!(server.resource["service.version"], env!("CARGO_PKG_VERSION"));

    let spans = collector.spans();
    assert_eq!(spans.len(), 4, "{spans:#?}");
    assert_eq!(under(&spans, &server, "store claim").kind, SpanKind::Internal);
    assert_eq!(under(&spans, &server, "store complete").kind, SpanKind::Internal);
    let sent = under(&spans, &server, "POST");
    assert_eq!((sent.kind, sent.flags, sent.failed), (SpanKind::Client, 0x101, false));
    assert_eq!(sent.says("http.response.status_code"), "201");
    assert_eq!(sent.says("server.port"), world.upstream.address.port().to_string());
    assert_eq!(sent.says("url.full"), format!("http://{}/pay/1", world.upstream.address));

    let received = world.upstream.last();
    assert_eq!(received.all("traceparent"), [format!("00-{TRACE}-{}-01", sent.id)]);
    assert_eq!(received.all("tracestate"), ["a=1,b=2", "e=3"]);
    assert_eq!(received.all("baggage"), ["c=d"]);
}

on_each_store! {
    async fn a_replay_is_linked_to_the_trace_of_its_first_execution(store) {
        let collector = Collector::start();
        let mut world = traced(store, &collector, "").await;
        let request = Request::pay().key("k");
        let first = world.send(&request.clone().field("traceparent", traceparent("01"))).await;
        first.assert_executed(201);
        if store != Store::Memory {
            collector.requests(1).await;
            world.restart().await;
        }
        let replay = world.send(&request).await;
        replay.assert_replay(201);
        assert_eq!(replay.essence(), first.essence());
        assert!(!replay.shown().contains(TRACE), "{}", replay.shown());
        let [first, again]: [Span; 2] = collector.requests(2).await.try_into().unwrap();
        assert_eq!(again.says("onceproxy.result"), "replayed");
        assert_ne!(again.trace, first.trace);
        assert_eq!(again.links, [(TRACE.to_owned(), first.id.clone())]);
        assert_eq!(again.says("onceproxy.record"), first.says("onceproxy.record"));
    }
}

on_lasting_stores! {
    async fn a_record_is_the_same_with_tracing_and_without(store) {
        let collector = Collector::start();
        let mut world = traced(store, &collector, "").await;
        let (with, without) = (Request::pay().key("with"), Request::pay().key("without"));
        let first = world.send(&with).await;
        collector.requests(1).await;
        world.change_more("");
        world.restart().await;
        let replay = world.send(&with).await;
        replay.assert_replay(201);
        assert_eq!(replay.essence(), first.essence());
        world.send(&without).await.assert_executed(201);
        world.change_more(&collector.settings(""));
        world.restart().await;
        world.send(&without).await.assert_replay(201);
        let [_, again]: [Span; 2] = collector.requests(2).await.try_into().unwrap();
        assert!(again.links.is_empty(), "its first execution was not traced");
    }
}

on_shared_stores! {
    async fn one_that_waited_for_another_process_is_linked_to_it(store) {
        let collector = Collector::start();
        let world = World::build(store).more(&collector.settings("")).proxies(2).start().await;
        let gate = Gate::new();
        world.upstream.next(reply(201).behind(&gate));
        let owner = Request::pay().key("k").begin(world.proxies[0].address);
        world.upstream.reached(1).await;
        let waiter = Request::pay().key("k").begin(world.proxies[1].address);
        eventually("the waiter", async || {
            (world.proxies[1].metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
        })
        .await;
        gate.open();
        owner.answer().await.assert_executed(201);
        waiter.answer().await.assert_replay(201);
        let spans = collector.requests(2).await;
        let owner = spans.iter().find(|span| span.says("onceproxy.result") == "executed").unwrap();
        let waiter = spans.iter().find(|span| span.says("onceproxy.result") == "joined").unwrap();
        assert_eq!(waiter.links, [(owner.trace.clone(), owner.id.clone())]);
    }
}

#[tokio::test]
async fn one_that_joined_is_linked_to_whom_it_joined() {
    let collector = Collector::start();
    let world = traced(Store::Memory, &collector, "").await;
    let gate = Gate::new();
    world.upstream.next(reply(201).behind(&gate));
    let owner = Request::pay().key("k").begin(world.address());
    world.upstream.reached(1).await;
    let joiner = Request::pay().key("k").begin(world.address());
    eventually("the joiner", async || (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(()))
        .await;
    gate.open();
    owner.answer().await.assert_executed(201);
    joiner.answer().await.assert_replay(201);
    let [owner, joiner]: [Span; 2] = collector.requests(2).await.try_into().unwrap();
    assert_eq!((owner.says("onceproxy.result"), joiner.says("onceproxy.result")), ("executed", "joined"));
    assert_eq!(joiner.links, [(owner.trace.clone(), owner.id.clone())]);
}

#[tokio::test]
async fn a_question_to_the_authorizer_is_told_under_the_duplicate_that_asks() {
    let (collector, service) = (Collector::start(), Upstream::start());
    service.always(|_| reply(200).into());
    let route = format!("authorize = \"http://{}/check\"", service.address);
    let world = World::build(Store::Memory).route(&route).more(&collector.settings("")).start().await;
    let ask = || Request::pay().key("k").field("traceparent", traceparent("01"));
    world.send(&ask()).await.assert_executed(201);
    world.send(&ask()).await.assert_replay(201);
    service.next(reply(403));
    assert_eq!(world.send(&ask()).await.status, 403);
    service.next(reply(500));
    world.send(&ask()).await.assert_problem(503, "authorizer-unavailable");

    let servers = collector.requests(4).await;
    let spans = collector.spans();
    let [first, replay, refused, unsaid] = &servers[..] else { unreachable!() };
    assert!(!spans.iter().any(|span| span.name == "authorize" && span.parent == first.id), "nobody is asked for it");
    for (question, server, status, failed) in
        [(0, replay, "200", false), (1, refused, "403", false), (2, unsaid, "500", true)]
    {
        let asked = under(&spans, server, "authorize");
        assert_eq!((asked.kind, asked.failed), (SpanKind::Client, failed), "{asked:#?}");
        assert_eq!(asked.says("http.response.status_code"), status);
        assert_eq!(asked.says("error.type"), if failed { "authorizer-unavailable" } else { "" });
        let told = service.received()[question].all("traceparent");
        assert_eq!(told, [format!("00-{TRACE}-{}-01", asked.id)], "the service goes on below it");
    }
}

#[tokio::test]
async fn an_upstream_cannot_say_where_a_replay_is_linked_to() {
    let collector = Collector::start();
    let world = traced(Store::Memory, &collector, "").await;
    // As a field of the ordinary name it is the caller's, and no link.
    world.upstream.next(reply(201).field("traceparent", traceparent("01")));
    let first = world.send(&Request::pay().key("a")).await;
    assert_eq!(first.field("traceparent"), Some(traceparent("01").as_str()));
    let replay = world.send(&Request::pay().key("a")).await;
    assert_eq!(replay.field("traceparent"), Some(traceparent("01").as_str()));
    // Under the name of the record's own it is no HTTP.
    world.upstream.next(Script::bytes_then_close(format!(
        "HTTP/1.1 201 Created\r\n:traceparent: {}\r\nContent-Length: 0\r\n\r\n",
        traceparent("01")
    )));
    world.send(&Request::pay().key("b")).await.assert_problem(502, "outcome-unknown");
    let [first, replay, _] = collector.requests(3).await.try_into().unwrap();
    assert_eq!(replay.links, [(first.trace.clone(), first.id.clone())]);
}

#[tokio::test]
async fn whether_a_trace_is_sampled_is_its_callers_decision() {
    let collector = Collector::start();
    let world = traced(Store::Memory, &collector, "sample = 0.0").await;
    let ask = |key: &str, flags: &str| Request::pay().key(key).field("traceparent", traceparent(flags));

    world.send(&ask("sampled", "03")).await.assert_executed(201);
    let [server]: [Span; 1] = collector.requests(1).await.try_into().unwrap();
    assert_eq!((server.trace.as_str(), server.flags & 0xff), (TRACE, 3));

    world.send(&ask("not-sampled", "00")).await.assert_executed(201);
    assert_eq!(world.upstream.last().all("traceparent"), [traceparent("00")], "passed on as it came");

    // No trace: a new one, which is not sampled, and the upstream is told so.
    world.send(&Request::pay().key("none")).await.assert_executed(201);
    let [begun]: [String; 1] = world.upstream.last().all("traceparent").try_into().unwrap();
    assert!(begun.starts_with("00-") && begun.ends_with("-00"), "{begun}");

    // A record that was made untraced has nothing to be linked to.
    world.send(&ask("none", "01")).await.assert_replay(201);
    let [_, replay]: [Span; 2] = collector.requests(2).await.try_into().unwrap();
    assert!(replay.links.is_empty());
    assert_eq!(collector.spans().iter().filter(|span| span.trace != TRACE).count(), 0);
}

#[tokio::test]
async fn a_trace_that_is_not_understood_begins_anew() {
    let collector = Collector::start();
    let world = traced(Store::Memory, &collector, "").await;
    let broken = Request::pay().key("a").field("traceparent", "00-0-0-01").field("tracestate", "a=1");
    world.send(&broken).await.assert_executed(201);
    assert_eq!(world.upstream.last().all("tracestate"), [] as [&str; 0]);
    let [begun]: [String; 1] = world.upstream.last().all("traceparent").try_into().unwrap();
    let twice = Request::pay().key("b").field("traceparent", traceparent("01")).field("traceparent", traceparent("01"));
    world.send(&twice).await.assert_executed(201);
    assert_eq!(world.upstream.last().all("traceparent").len(), 1);
    let [first, second]: [Span; 2] = collector.requests(2).await.try_into().unwrap();
    assert!(begun.contains(&first.trace) && first.parent.is_empty() && first.flags == 0x101);
    assert_ne!(second.trace, TRACE);
}

#[tokio::test]
async fn every_way_to_end_has_its_span() {
    let collector = Collector::start();
    let mut world =
        World::build(Store::Memory).top("drain_timeout = \"200ms\"").more(&collector.settings("")).start().await;
    world.send(&Request::new("GET", "/plain?q=1").field("traceparent", traceparent("01"))).await;
    world.upstream.next(Script::close());
    world.send(&Request::pay().key("cut")).await.assert_problem(502, "outcome-unknown");
    world.send(&Request::new("PURGEALL", "/x")).await;
    world.upstream.next(Script::never());
    let left = Request::pay().key("left").begin(world.address());
    world.upstream.reached(4).await;
    left.hang_up().await;
    let spans = collector.requests(4).await;
    let [plain, cut, odd, left] = &spans[..] else { unreachable!() };
    assert_eq!((plain.name.as_str(), plain.says("onceproxy.result")), ("GET pay", "unprotected"));
    assert_eq!(plain.says("onceproxy.record"), "");
    assert_eq!((cut.says("error.type"), cut.says("onceproxy.result"), cut.failed), ("502", "unknown", true));
    assert_eq!((odd.name.as_str(), odd.says("http.request.method")), ("HTTP pay", "_OTHER"));
    assert_eq!(odd.says("http.request.method_original"), "PURGEALL");
    assert_eq!((left.says("error.type"), left.failed), ("client_left", true));
    let all = collector.spans();
    let sent = under(&all, cut, "POST");
    assert_eq!((sent.says("error.type"), sent.failed), ("reset", true));
    under(&all, cut, "store doubt");
    assert_eq!(under(&all, plain, "GET").says("url.full"), format!("http://{}/plain", world.upstream.address));
    assert!(world.upstream.received()[0].all("traceparent")[0].contains(TRACE));
    // The attempt whose caller left goes on, until the stop cuts it off; that is told too.
    world.proxies[0].terminate();
    world.proxies[0].ended().await;
    let all = collector.spans();
    assert_eq!(under(&all, left, "POST").says("error.type"), "cut-off");
    under(&all, left, "store doubt");
}

#[tokio::test]
async fn nothing_secret_leaves_in_a_span() {
    let collector = Collector::start();
    let world = traced(Store::Memory, &collector, "").await;
    let request = || {
        Request::new("POST", "/pay?token=sugar-query")
            .key("sugar-key")
            .field("Authorization", "Bearer sugar-token")
            .field("Cookie", "sugar-cookie")
            .field("tracestate", "sugar-state")
            .json("{\"card\":\"sugar-body\"}")
    };
    world.upstream.next(reply(201).field("Set-Cookie", "sugar-set").body("sugar-answer"));
    world.send(&request()).await.assert_executed(201);
    world.send(&request()).await.assert_replay(201);
    world.send(&request().target("/other?token=sugar-query")).await.assert_problem(422, "key-reused");
    world.send(&Request::new("GET", "/plain?token=sugar-query").field("Authorization", "sugar-token")).await;
    collector.requests(4).await;
    let sent = collector.bytes();
    assert!(contains(&sent, "/other") && contains(&sent, "/plain"));
    assert!(!contains(&sent, "sugar"));
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn a_collector_that_is_away_costs_no_request_and_gets_the_spans_when_it_is_back() {
    let mut collector = Collector::away();
    let world = traced(Store::Memory, &collector, "").await;
    for key in ["a", "b", "c"] {
        world.send(&Request::pay().key(key)).await.assert_executed(201);
    }
    world.proxy().logged("the collector does not take spans").await;
    collector.0.next(reply(503));
    collector.0.open();
    // The first message is refused for now, and sent again.
    eventually("the spans", async || {
        (world.proxy().metric("onceproxy_trace_spans_total", &[("result", "exported")]).await == 12.0).then_some(())
    })
    .await;
    assert_eq!(world.proxy().metric("onceproxy_trace_spans_total", &[("result", "lost")]).await, 0.0);
    assert!(collector.spans().len() > 12, "what was refused was sent again");
    world.proxy().logged("the collector takes spans again").await;
}

#[tokio::test]
async fn spans_that_a_collector_refuses_are_counted() {
    let collector = Collector::start();
    let world = traced(Store::Memory, &collector, "").await;
    let count = async |result: &str, expected: f64| {
        eventually(result, async || {
            let found = world.proxy().metric("onceproxy_trace_spans_total", &[("result", result)]).await;
            (found == expected).then_some(())
        })
        .await;
    };
    collector.0.next(refused(1, "too old"));
    world.send(&Request::pay().key("a")).await.assert_executed(201);
    count("exported", 3.0).await;
    count("lost", 1.0).await;
    collector.0.always(|_| reply(400).into());
    world.send(&Request::pay().key("b")).await.assert_executed(201);
    count("lost", 5.0).await;
    collector.0.always(|_| taken());
    world.send(&Request::pay().key("c")).await.assert_executed(201);
    count("exported", 7.0).await;
    count("dropped", 0.0).await;
}

#[tokio::test]
async fn what_is_left_is_sent_at_the_stop() {
    let collector = Collector::start();
    let mut world = traced(Store::Memory, &collector, "").await;
    world.send(&Request::pay().key("a")).await.assert_executed(201);
    world.proxies[0].terminate();
    assert!(world.proxies[0].ended().await.success());
    assert_eq!(collector.spans().len(), 4);
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_up_neither_requests_nor_the_stop() {
    within_deadline("a silent collector", async {
        let collector = Collector::start();
        collector.0.always(|_| Script::never());
        let mut world = traced(Store::Memory, &collector, "").await;
        world.send(&Request::pay().key("a")).await.assert_executed(201);
        collector.0.reached(1).await;
        world.send(&Request::pay().key("b")).await.assert_executed(201);
        world.proxies[0].terminate();
        assert!(world.proxies[0].ended().await.success());
        let said = eventually("the last words", async || {
            let log = world.proxy().log();
            log.into_iter().find(|line| line.contains("stopped before the collector took all spans"))
        })
        .await;
        assert!(said.contains("\"spans\":8"), "{said}");
    })
    .await;
}

/// The system's certificates are those of a file that the environment names, so this proxy is started by hand.
#[tokio::test]
async fn a_collector_can_be_asked_by_https_for_a_certificate_that_the_system_trusts() {
    let (trusted, other) = (Authority::new(), Authority::new());
    let collector = Collector::start();
    collector.0.speak_tls(other.certificate_for("127.0.0.1"));
    let upstream = Upstream::start();
    let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onceproxy.toml");
    let settings = format!(
        "listen = \"{listen}\"\n{}[admin]\nlisten = \"off\"\n[store]\nurl = \"memory:\"\n\
         [[route]]\nname = \"pay\"\nupstream = \"http://{}\"\n",
        collector.settings("").replace("http://", "https://"),
        upstream.address
    );
    std::fs::write(&file, settings).unwrap();
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_onceproxy"))
        .args(["serve", "--config"])
        .arg(&file)
        .env_clear()
        .env("SSL_CERT_FILE", trusted.file())
        .stderr(log)
        .spawn()
        .unwrap();
    let _child = Ended(child);
    drop(eventually("the listener", async || Connection::try_open(listen).await).await);
    Request::pay().key("k").send(listen).await.assert_executed(201);
    eventually("a refusal of the other's certificate", async || {
        std::fs::read_to_string(folder.path().join("log")).unwrap().contains("invalid peer certificate").then_some(())
    })
    .await;
    assert!(collector.0.received().is_empty());
    collector.0.speak_tls(trusted.certificate_for("127.0.0.1"));
    assert_eq!(collector.requests(1).await[0].says("onceproxy.result"), "executed");
}
