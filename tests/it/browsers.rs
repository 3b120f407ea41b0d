//! Pages of browsers (CORS): who may read a problem or a replay, and that nothing changes where no origin is named.

use crate::support::{Answer, Connection, Gate, Request, Script, Store, World, eventually, reply};

const SHOP: &str = "https://shop.test";
const DESK: &str = "http://localhost:3000";
const ORIGINS: &str = "cors_origins = [\"https://shop.test\", \"http://localhost:3000\"]";

/// What a page is shown: the origin that may read, whether with credentials, which fields, and what the answer varies by.
fn shown(answer: &Answer) -> [Option<&str>; 4] {
    ["Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Access-Control-Expose-Headers", "Vary"]
        .map(|name| answer.field(name))
}

const FIELDS: Option<&str> = Some("Idempotent-Replayed, Cache-Status, Retry-After");

fn readable_by(origin: &str) -> [Option<&str>; 4] {
    [Some(origin), Some("true"), FIELDS, Some("Origin")]
}

const UNREADABLE: [Option<&str>; 4] = [None, None, None, Some("Origin")];

/// The request of the cases, from a page.
fn pay_from(origin: &str) -> Request {
    Request::pay().key("k-1").field("Origin", origin)
}

on_each_store! {
    /// Case P2, with the problem and with the replay after it.
    async fn a_page_of_a_listed_origin_reads_problems_and_replays(store) {
        let world = World::with(store, &format!("{ORIGINS}\n on_duplicate = \"reject\"")).await;
        let gate = Gate::new();
        world.upstream.next(reply(201).field("Access-Control-Allow-Origin", SHOP).behind(&gate));
        let first = pay_from(SHOP).begin(world.address());
        world.upstream.reached(1).await;
        for (origin, expected) in [
            (SHOP, readable_by(SHOP)),
            (DESK, readable_by(DESK)),
            ("https://evil.test", UNREADABLE),
            ("https://shop.test.evil.test", UNREADABLE),
            ("https://shop.test:444", UNREADABLE),
            ("http://shop.test", UNREADABLE),
            ("HTTPS://SHOP.TEST", UNREADABLE),
            ("null", UNREADABLE),
            ("", UNREADABLE),
        ] {
            let answer = world.send(&pay_from(origin)).await;
            answer.assert_problem(409, "request-in-progress");
            assert_eq!(shown(&answer), expected, "{origin}: {}", answer.shown());
        }
        let without = world.pay("k-1").await;
        assert_eq!(shown(without.assert_problem(409, "request-in-progress")), UNREADABLE);
        gate.open();
        // The upstream's own answer is not touched.
        let first = first.answer().await;
        assert_eq!(shown(first.assert_executed(201)), [Some(SHOP), None, None, None], "{}", first.shown());
        for (origin, expected) in [(SHOP, readable_by(SHOP)), (DESK, readable_by(DESK)), ("https://evil.test", UNREADABLE)] {
            let answer = world.send(&pay_from(origin)).await;
            assert_eq!(shown(answer.assert_replay(201)), expected, "{origin}: {}", answer.shown());
            assert_eq!(answer.all("Access-Control-Allow-Origin").len(), usize::from(expected[0].is_some()));
        }
        assert_eq!(shown(world.pay("k-1").await.assert_replay(201)), UNREADABLE);
        assert_eq!(world.executions(), 1);
    }

    async fn without_origins_a_replay_is_what_the_first_one_got(store) {
        let world = World::new(store).await;
        let allowed = reply(201).field("Access-Control-Allow-Origin", SHOP).field("Access-Control-Allow-Credentials", "true");
        world.upstream.next(allowed.field("Vary", "Accept").body("paid"));
        let first = world.send(&pay_from(SHOP)).await;
        for origin in [SHOP, "https://evil.test"] {
            let answer = world.send(&pay_from(origin)).await;
            assert_eq!(answer.assert_replay(201).essence(), first.essence());
        }
        let problem = world.send(&pay_from(SHOP).target("/other")).await;
        assert_eq!(shown(problem.assert_problem(422, "key-reused")), [None; 4]);
    }
}

#[tokio::test]
async fn a_page_that_joins_reads_the_answer_of_another_origin() {
    let world = World::with(Store::Memory, ORIGINS).await;
    let gate = Gate::new();
    let allowed =
        reply(201).field("Access-Control-Allow-Origin", SHOP).field("Access-Control-Expose-Headers", "Location");
    world.upstream.next(allowed.field("Vary", "Accept, origin").behind(&gate));
    let first = pay_from(SHOP).begin(world.address());
    world.upstream.reached(1).await;
    let joins = [DESK, "https://evil.test"].map(|origin| pay_from(origin).begin(world.address()));
    eventually("the duplicates to wait", async || {
        (world.proxy().metric("onceproxy_waiting", &[]).await == 2.0).then_some(())
    })
    .await;
    gate.open();
    first.answer().await.assert_executed(201);
    let [listed, other] = joins;
    let listed = listed.answer().await;
    listed.assert_replay(201);
    assert_eq!(listed.all("Access-Control-Allow-Origin"), [DESK.as_bytes()], "{}", listed.shown());
    let exposed = listed.all("Access-Control-Expose-Headers");
    assert_eq!(exposed, [b"Location".as_slice(), FIELDS.unwrap().as_bytes()], "{}", listed.shown());
    assert_eq!(listed.all("Vary"), [b"Accept, origin"], "it is named already");
    let other = other.answer().await;
    assert_eq!(shown(other.assert_replay(201))[..2], [None, None], "{}", other.shown());
}

#[tokio::test]
async fn every_problem_behind_a_route_is_readable_and_none_before_it() {
    let route = format!("path = \"/pay\"\n max_request_body = \"1KiB\"\n{ORIGINS}");
    let world = World::with(Store::Memory, &route).await;
    let long = Request::new("POST", "/pay").key("k-2").field("Origin", SHOP).body(vec![b'x'; 2048]);
    for (request, status) in [
        (pay_from(SHOP).key("twice"), 400),
        (pay_from(SHOP).field("Expect", "x"), 417),
        (Request::pay().field("Origin", SHOP).field("Expect", "x"), 417),
        (long, 413),
    ] {
        let answer = world.send(&request).await;
        assert_eq!((answer.status, shown(&answer)), (status, readable_by(SHOP)), "{}", answer.shown());
    }
    world.upstream.next(Script::close());
    let unknown = world.send(&pay_from(SHOP)).await;
    assert_eq!(shown(unknown.assert_problem(502, "outcome-unknown")), readable_by(SHOP));
    // No route, no list. Two lines name no origin.
    let nowhere = world.send(&pay_from(SHOP).target("/elsewhere")).await;
    assert_eq!(shown(nowhere.assert_problem(404, "no-route")), [None; 4]);
    let twice = world.send(&pay_from(SHOP).field("Origin", SHOP)).await;
    assert_eq!(shown(&twice), UNREADABLE, "{}", twice.shown());
    // A preflight is the upstream's.
    let preflight =
        Request::new("OPTIONS", "/pay").field("Origin", SHOP).field("Access-Control-Request-Method", "POST");
    world.upstream.next(reply(204).field("Access-Control-Allow-Origin", "*"));
    let mut connection = Connection::open(world.address()).await;
    connection.send(&preflight).await;
    let answer = connection.answer().await;
    assert_eq!((answer.status, shown(&answer)), (204, [Some("*"), None, None, None]), "{}", answer.shown());
    assert_eq!(world.upstream.last().field("Access-Control-Request-Method"), Some("POST".to_owned()));
}
