//! `authorize`: who may have what a record says is for another service to say, each time.

use crate::support::tls::Authority;
use crate::support::{Answer, Gate, Pending, Request, Script, Store, Upstream, World, eventually, ms, reply};

/// A service that lets everyone through, until a test says otherwise.
fn service() -> Upstream {
    let service = Upstream::start();
    service.always(|_| reply(200).into());
    service
}

/// The settings of a route that asks it.
fn route(service: &Upstream) -> String {
    format!("authorize = \"http://{}/check?by=once\"\n authorize_timeout = \"20s\"", service.address)
}

async fn asking(store: Store, service: &Upstream) -> World {
    World::with(store, &route(service)).await
}

async fn counted(world: &World) -> [f64; 3] {
    let mut all = [0.0; 3];
    for (count, answer) in all.iter_mut().zip(["allowed", "refused", "unavailable"]) {
        let labels = [("route", "pay"), ("answer", answer)];
        *count = world.proxy().metric("onceproxy_authorize_total", &labels).await;
    }
    let seconds = world.proxy().metric("onceproxy_authorize_seconds_count", &[("route", "pay")]).await;
    assert_eq!(seconds, all.iter().sum::<f64>());
    all
}

fn assert_unavailable(answer: &Answer) {
    answer.assert_problem(503, "authorizer-unavailable");
    assert_eq!((answer.retry().as_str(), answer.field("Retry-After")), ("same-key", Some("1")));
    assert_eq!(answer.field("Stripe-Should-Retry"), Some("true"));
    assert!(answer.record().starts_with("pay:"), "{}", answer.shown());
}

/// A duplicate that waits for the running attempt.
async fn joiner(world: &World, request: &Request) -> Pending {
    let waiting = async || world.proxy().metric("onceproxy_waiting", &[]).await;
    let before = waiting().await;
    let joiner = request.begin(world.address());
    eventually("the duplicate to wait", async || (waiting().await == before + 1.0).then_some(())).await;
    joiner
}

on_each_store! {
    async fn n3_a_caller_that_lost_its_rights_gets_no_replay_and_the_record_stays(store) {
        let service = service();
        let world = asking(store, &service).await;
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(service.executions(), 0, "the owner's own answer is nobody's to refuse");
        world.pay("k-1").await.assert_replay(201);
        assert_eq!(service.executions(), 1);

        for status in [403, 401] {
            let refusal = reply(status)
                .field("WWW-Authenticate", "Bearer realm=\"a\"")
                .field("WWW-Authenticate", "Basic")
                .field("Set-Cookie", "session=over")
                .field("Content-Type", "text/plain")
                .field("Connection", "X-Hop")
                .field("X-Hop", "1")
                .field("Idempotent-Replayed", "true")
                .body("not any more");
            service.next(refusal);
            let refused = world.pay("k-1").await;
            assert_eq!((refused.status, refused.text().as_str()), (status, "not any more"), "{}", refused.shown());
            assert_eq!(refused.all("WWW-Authenticate"), [&b"Bearer realm=\"a\""[..], b"Basic"]);
            assert_eq!(refused.field("Set-Cookie"), Some("session=over"));
            assert_eq!(refused.field("Content-Type"), Some("text/plain"));
            assert_eq!((refused.field("X-Hop"), refused.is_replay()), (None, false));
            assert_eq!(refused.field("Cache-Status"), Some("onceproxy; detail=not-allowed"));
            assert!(!refused.shown().contains("execution"), "nothing of the record: {}", refused.shown());
        }
        world.pay("k-1").await.assert_replay(201);
        assert_eq!((world.executions(), service.executions()), (1, 4));
        assert_eq!(counted(&world).await, [2.0, 2.0, 0.0]);
        let labels = [("route", "pay"), ("result", "not_allowed")];
        assert_eq!(world.proxy().metric("onceproxy_requests_total", &labels).await, 2.0);
        assert_eq!(world.proxy().metric("onceproxy_upstream_sends_total", &[]).await, 1.0, "they are no sends");
    }

    async fn n3_each_join_is_asked_for_when_the_answer_is_there(store) {
        let service = service();
        service.always(|asked| {
            reply(if asked.field("Authorization").as_deref() == Some("Bearer alice") { 204 } else { 403 }).into()
        });
        let world = World::with(store, &format!("{}\n scope = []", route(&service))).await;
        let of = |name: &str| Request::pay().key("k-1").field("Authorization", format!("Bearer {name}"));
        let gate = Gate::new();
        world.upstream.next(reply(201).body("done").behind(&gate));
        let owner = of("mallory").begin(world.address());
        world.upstream.reached(1).await;
        let (alice, bob) = (joiner(&world, &of("alice")).await, joiner(&world, &of("bob")).await);
        // Another request, and one that will not wait: problems, for which nobody is asked.
        world.send(&of("bob").body("{}")).await.assert_problem(422, "key-reused");
        world.send(&of("bob").field("Prefer", "wait=0")).await.assert_in_flight();
        assert_eq!(service.executions(), 0);
        gate.open();
        owner.answer().await.assert_executed(201);
        alice.answer().await.assert_replay(201);
        assert_eq!(bob.answer().await.status, 403);
        world.send(&of("alice")).await.assert_replay(201);
        assert_eq!(world.send(&of("bob")).await.status, 403);
        assert_eq!((world.executions(), service.executions()), (1, 4));
    }

    async fn n3_a_service_that_does_not_say_is_not_taken_for_one_that_does(store) {
        let service = service();
        let world = asking(store, &service).await;
        world.pay("k-1").await.assert_executed(201);
        for status in [100, 300, 301, 302, 307, 400, 404, 407, 429, 500, 503] {
            let other = Upstream::start();
            let told = reply(status).field("Location", format!("http://{}/", other.address));
            service.next(if status == 100 { Script::close() } else { told.into() });
            assert_unavailable(&world.pay("k-1").await);
            assert_eq!(other.executions(), 0, "no redirect is followed");
        }
        world.pay("k-1").await.assert_replay(201);
        assert_eq!(world.executions(), 1);
        let labels = [("route", "pay"), ("result", "authorizer_error")];
        assert_eq!(world.proxy().metric("onceproxy_requests_total", &labels).await, 11.0);
        let told = world.proxy().logged("the authorizer did not say").await;
        assert!(told.contains("pay:"), "{told}");
    }
}

#[tokio::test]
async fn the_service_is_given_the_head_of_the_duplicate_and_no_word_of_its_own_choosing() {
    let service = service();
    let world = asking(Store::Memory, &service).await;
    let request = Request::new("POST", "/pay/%2e?x=1&y")
        .key("k-1")
        .field("Authorization", "Bearer a")
        .field("Cookie", "s=1")
        .field("X-Repeated", "1")
        .field("X-Repeated", "2")
        .field("X-Original-Method", "GET")
        .field("X-Original-URI", "/mine")
        .field("X-Onceproxy-Record", "pay:0")
        .field("Connection", "close, X-Hop")
        .field("X-Hop", "1")
        .field("TE", "trailers")
        .field("X-Forwarded-For", "192.0.2.1")
        .field("Proxy-Authorization", "Basic b25jZQ==")
        .json(r#"{"amount":10}"#);
    world.send(&request).await.assert_executed(201);
    world.send(&request).await.assert_replay(201);
    let asked = service.last();
    assert_eq!((asked.method.as_str(), asked.target.as_str(), asked.body.len()), ("GET", "/check?by=once", 0));
    assert_eq!(asked.all("Host"), [service.address.to_string()]);
    assert_eq!(asked.all("X-Original-Method"), ["POST"]);
    assert_eq!(asked.all("X-Original-URI"), ["/pay/%2e?x=1&y"]);
    let [record] = &asked.all("X-Onceproxy-Record")[..] else { panic!("one record: {asked:?}") };
    assert_eq!(world.proxy().record(record).await.expect("that record")["state"], "completed");
    assert_eq!(asked.all("Authorization"), ["Bearer a"]);
    assert_eq!((asked.all("Cookie"), asked.all("Idempotency-Key")), (vec!["s=1".into()], vec!["k-1".into()]));
    assert_eq!(asked.all("X-Repeated"), ["1", "2"]);
    assert_eq!(asked.all("Content-Type"), ["application/json"]);
    assert_eq!(asked.all("X-Forwarded-For"), ["192.0.2.1, 127.0.0.1"]);
    assert_eq!(asked.all("X-Forwarded-Host"), [world.upstream.last().field("Host").unwrap()]);
    let gone =
        ["Content-Length", "Transfer-Encoding", "Expect", "Connection", "X-Hop", "TE", "Proxy-Authorization", "Via"];
    for name in gone {
        assert_eq!(asked.field(name), None, "{name}: {asked:?}");
    }
    // Chunked bodies and those that are asked for are no bodies of the question either.
    world.send(&request.clone().chunked(4)).await.assert_replay(201);
    let asked = service.last();
    assert_eq!((asked.field("Transfer-Encoding"), asked.body.len()), (None, 0), "{asked:?}");
}

#[tokio::test]
async fn a_slow_service_is_waited_for_as_long_as_the_route_says() {
    let service = service();
    let world = World::with(Store::Memory, &format!("{}\n authorize_timeout = \"300ms\"", route(&service))).await;
    world.pay("k-1").await.assert_executed(201);
    service.next(Script::never());
    assert_unavailable(&world.pay("k-1").await);
    world.pay("k-1").await.assert_replay(201);
    // What it says counts once its head is there: a body that does not end holds nobody up for longer, and changes nothing.
    let endless = |status: u16| {
        Script(vec![
            crate::support::Step::Bytes(format!("HTTP/1.1 {status} X\r\nContent-Length: 9\r\n\r\nbegun").into_bytes()),
            crate::support::Step::Never,
        ])
    };
    service.next(endless(200));
    world.pay("k-1").await.assert_replay(201);
    service.next(endless(403));
    let refused = world.pay("k-1").await;
    assert_eq!((refused.status, refused.text().as_str(), refused.complete), (403, "", true), "{}", refused.shown());
    assert_eq!(world.executions(), 1);
}

#[tokio::test]
async fn a_service_that_is_away_refuses_replays_and_nothing_else() {
    let mut away = Upstream::closed();
    let world = asking(Store::Memory, &away).await;
    world.pay("k-1").await.assert_executed(201);
    assert_unavailable(&world.pay("k-1").await);
    world.pay("k-2").await.assert_executed(201);
    world.send(&Request::pay().key("k-1").body("{}")).await.assert_problem(422, "key-reused");
    world.send(&Request::new("GET", "/pay")).await.assert_executed(201);
    assert_eq!(counted(&world).await, [0.0, 0.0, 1.0]);
    away.open();
    away.always(|_| reply(200).into());
    world.pay("k-1").await.assert_replay(201);
    assert_eq!(world.executions(), 3);
}

#[tokio::test]
async fn connections_to_the_service_are_kept_and_may_be_found_dead() {
    let service = service();
    service.always(|_| reply(200).body("welcome").into());
    let world = World::build(Store::Memory).top("threads = 1").route(&route(&service)).start().await;
    world.pay("k-1").await.assert_executed(201);
    for _ in 0..3 {
        world.pay("k-1").await.assert_replay(201);
    }
    assert_eq!(service.last().connection, 1);
    // It reads the question on a kept connection, and closes: asked again on a fresh one.
    service.next(Script::close());
    world.pay("k-1").await.assert_replay(201);
    assert_eq!((service.executions(), service.last().connection), (5, 2));
    // On a fresh one it is not asked again.
    service.next(Script::close());
    service.next(Script::close());
    assert_unavailable(&world.pay("k-1").await);
    assert_eq!(service.executions(), 7);
}

#[tokio::test]
async fn a_refusal_is_passed_on_up_to_a_size() {
    let service = service();
    let world = asking(Store::Memory, &service).await;
    world.pay("k-1").await.assert_executed(201);
    for (size, passed) in [(64 << 10, 64 << 10), ((64 << 10) + 1, 0)] {
        service.next(reply(403).field("Content-Type", "text/plain").field("X-Why", "x").body(vec![b'x'; size]));
        let refused = world.pay("k-1").await;
        assert_eq!((refused.status, refused.body.len(), refused.field("X-Why")), (403, passed, Some("x")));
        assert_eq!(refused.field("Content-Type").is_some(), passed > 0);
    }
}

/// A client that waits to be told to send its body has the replay without one, but not without being asked for.
#[tokio::test]
async fn a_replay_without_the_body_is_asked_for_too() {
    let service = service();
    let world = World::with(Store::Memory, &format!("{}\n fingerprint.body = \"ignore\"", route(&service))).await;
    world.pay("k-1").await.assert_executed(201);
    let whole = Request::pay().key("k-1").field("Expect", "100-continue").to_bytes();
    for (status, begins) in [(200, "HTTP/1.1 201 "), (403, "HTTP/1.1 403 "), (500, "HTTP/1.1 503 ")] {
        service.next(reply(status));
        let mut connection = crate::support::Connection::open(world.address()).await;
        connection.write(&whole[..whole.len() - r#"{"amount":10}"#.len()]).await;
        let answer = connection.body_until("\r\n\r\n").await;
        assert!(answer.starts_with(begins.as_bytes()), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(service.last().field("Expect"), None);
    }
    assert_eq!((world.executions(), service.executions()), (1, 3));
}

#[tokio::test]
async fn two_callers_of_one_scope_are_asked_for_by_their_own_credentials() {
    let service = service();
    service.always(|asked| reply(if asked.field("Authorization").as_deref() == Some("a") { 200 } else { 401 }).into());
    let world = World::with(Store::Memory, &format!("{}\n scope = []", route(&service))).await;
    let of = |name: &str| Request::pay().key("k-1").field("Authorization", name);
    world.send(&of("b")).await.assert_executed(201);
    world.send(&of("a")).await.assert_replay(201);
    assert_eq!(world.send(&of("b")).await.status, 401);
    assert_eq!(world.send(&Request::pay().key("k-1")).await.status, 401);
    world.send(&of("a")).await.assert_replay(201);
    assert_eq!(world.executions(), 1);
}

#[tokio::test]
async fn the_service_may_speak_tls_under_an_authority_of_its_own() {
    let (known, other) = (Authority::new(), Authority::new());
    let service = service();
    service.speak_tls(known.certificate_for("127.0.0.1"));
    let settings = format!(
        "authorize = \"https://{}/\"\n authorize_ca_file = {:?}\n authorize_timeout = \"20s\"",
        service.address,
        known.file()
    );
    let world = World::with(Store::Memory, &settings).await;
    world.pay("k-1").await.assert_executed(201);
    world.pay("k-1").await.assert_replay(201);
    assert_eq!(service.last().target, "/");
    service.next(Script::from(reply(200)));
    service.speak_tls(other.certificate_for("127.0.0.1"));
    crate::support::pass(ms(4500)).await;
    assert_unavailable(&world.pay("k-1").await);
}

#[tokio::test]
async fn it_is_asked_under_the_settings_of_now() {
    let (one, two) = (service(), service());
    let mut world = asking(Store::Memory, &one).await;
    world.pay("k-1").await.assert_executed(201);
    world.pay("k-1").await.assert_replay(201);
    two.always(|_| reply(403).into());
    world.change_route(&route(&two));
    world.proxy().hang_up();
    world.proxy().logged("settings reloaded").await;
    assert_eq!(world.pay("k-1").await.status, 403);
    assert_eq!((one.executions(), two.executions()), (1, 1));
}
