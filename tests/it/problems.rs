//! Every problem that a caller can get, checked against one table: status, type, advice, and the fields that belong.

use crate::support::{Answer, Connection, Gate, Request, Script, Store, World, eventually, reply};

/// What one kind of problem must look like.
struct Expected {
    status: u16,
    problem: &'static str,
    /// Empty where a problem gives no advice.
    retry: &'static str,
    retry_after: bool,
    record: bool,
}

const fn expect(status: u16, problem: &'static str, retry: &'static str) -> Expected {
    Expected { status, problem, retry, retry_after: false, record: false }
}

impl Expected {
    const fn with_retry_after(mut self) -> Expected {
        self.retry_after = true;
        self
    }

    const fn of_a_record(mut self) -> Expected {
        self.record = true;
        self
    }

    #[track_caller]
    fn check(&self, answer: &Answer) {
        let shown = answer.shown();
        answer.assert_problem(self.status, self.problem);
        let json = answer.json();
        assert_eq!(json["status"], self.status, "{shown}");
        for text in ["title", "detail"] {
            assert!(json[text].as_str().is_some_and(|t| !t.is_empty()), "no {text}: {shown}");
        }
        // What Stripe's SDK for Node needs to see that it is no success.
        assert_eq!(
            (&json["error"]["code"], &json["error"]["message"]),
            (&self.problem.into(), &json["detail"]),
            "{shown}"
        );
        assert!(json["error"]["type"].is_string(), "{shown}");
        assert_eq!(json["retry"].as_str().unwrap_or_default(), self.retry, "{shown}");
        assert_eq!(answer.all("Cache-Control"), [b"no-store"], "{shown}");
        assert_eq!(answer.field("Retry-After").is_some(), self.retry_after, "Retry-After: {shown}");
        let stripe = match self.retry {
            "operator" | "never" | "after-correction" => Some("false"),
            "same-key" => Some("true"),
            _ => None,
        };
        assert_eq!(answer.field("Stripe-Should-Retry"), stripe, "{shown}");
        assert_eq!(json["record"].is_string(), self.record, "record: {shown}");
        assert_eq!(answer.field("Idempotent-Replayed"), None, "{shown}");
        if self.problem != "no-route" {
            let status = format!("onceproxy; detail={}", self.problem);
            assert_eq!(answer.field("Cache-Status"), Some(status.as_str()), "{shown}");
        }
    }
}

#[tokio::test]
async fn key_missing() {
    let world = World::with(Store::Memory, "key_required = true").await;
    expect(400, "key-missing", "after-correction").check(&world.send(&Request::pay()).await);
    assert_eq!(world.executions(), 0);
}

#[tokio::test]
async fn method_invalid() {
    let world = World::new(Store::Memory).await;
    let expected = expect(400, "method-invalid", "after-correction");
    for request in [Request::new("post", "/pay").key("k-1"), Request::new("Post", "/pay")] {
        expected.check(&world.send(&request).await);
    }
    assert_eq!(world.executions(), 0);
    // Another method altogether, and none that is protected under another name.
    world.send(&Request::new("get", "/pay")).await.assert_executed(201);
}

#[tokio::test]
async fn key_invalid() {
    let world = World::new(Store::Memory).await;
    let expected = expect(400, "key-invalid", "after-correction");
    for key in ["", "\"", "a b", "a,b", &"k".repeat(256)] {
        expected.check(&world.pay(key).await);
    }
    expected.check(&world.send(&Request::pay().key("a").key("a")).await);
    assert_eq!(world.executions(), 0);
}

#[tokio::test]
async fn scope_invalid() {
    let world = World::new(Store::Memory).await;
    let request = Request::pay().key("k-1").field("Authorization", "Bearer a").field("Authorization", "Bearer b");
    expect(400, "scope-invalid", "after-correction").check(&world.send(&request).await);
    assert_eq!(world.executions(), 0);
}

#[tokio::test]
async fn key_reused() {
    let world = World::new(Store::Memory).await;
    world.pay("k-1").await.assert_executed(201);
    let answer = world.send(&Request::pay().key("k-1").target("/other")).await;
    expect(422, "key-reused", "after-correction").of_a_record().check(&answer);
    world.upstream.next(Script::close());
    assert_eq!(world.pay("k-2").await.status, 502);
    let answer = world.send(&Request::pay().key("k-2").target("/other")).await;
    expect(422, "key-reused", "operator").of_a_record().check(&answer);
}

#[tokio::test]
async fn other_caller() {
    let world = World::with(Store::Memory, "scope = []").await;
    let from = |caller: &str| Request::pay().key("k-1").field("Authorization", caller);
    world.send(&from("Bearer a")).await.assert_executed(201);
    let answer = world.send(&from("Bearer b")).await;
    expect(403, "other-caller", "after-correction").of_a_record().check(&answer);
    assert_eq!(answer.json().get("original_status"), None, "{}", answer.shown());
}

#[tokio::test]
async fn request_in_progress_at_once_or_after_the_wait() {
    for settings in ["on_duplicate = \"reject\"", "wait_timeout = \"300ms\""] {
        let world = World::with(Store::Memory, settings).await;
        let gate = Gate::new();
        world.upstream.next(reply(201).behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let expected = expect(409, "request-in-progress", "same-key").with_retry_after().of_a_record();
        expected.check(&world.pay("k-1").await);
        gate.open();
        owner.answer().await.assert_executed(201);
    }
}

#[tokio::test]
async fn outcome_unknown_for_the_caller_and_for_a_duplicate() {
    let world = World::new(Store::Memory).await;
    world.upstream.next(Script::close());
    expect(502, "outcome-unknown", "operator").of_a_record().check(&world.pay("k-1").await);
    expect(409, "outcome-unknown", "operator").of_a_record().check(&world.pay("k-1").await);
}

#[tokio::test]
async fn outcome_unknown_while_the_proxy_still_listens() {
    let world = World::with(Store::Memory, "timeout = \"300ms\"").await;
    let gate = Gate::new();
    world.upstream.next(reply(201).behind(&gate));
    let expected = expect(504, "outcome-unknown", "same-key").with_retry_after().of_a_record();
    expected.check(&world.pay("k-1").await);
    gate.open();
}

#[tokio::test]
async fn outcome_unknown_where_the_upstream_honours_the_key() {
    let world = World::with(Store::Memory, "on_unknown = \"resend\"").await;
    world.upstream.next(Script::close());
    let expected = expect(502, "outcome-unknown", "same-key").with_retry_after().of_a_record();
    expected.check(&world.pay("k-1").await);
    world.pay("k-1").await.assert_executed(201);
}

#[tokio::test]
async fn body_invalid() {
    let expected = expect(400, "body-invalid", "after-correction");
    let world = World::with(Store::Memory, "fingerprint.body = \"json\"").await;
    expected.check(&world.send(&Request::new("POST", "/pay").key("k-1").json(r#"{"a":1,"a":1}"#)).await);
    let world = World::with(Store::Memory, "key = [\"json:/id\"]\n key_required = true").await;
    expected.check(&world.send(&Request::new("POST", "/pay").json("no JSON")).await);
    assert_eq!(world.executions(), 0);
}

#[tokio::test]
async fn upstream_unreachable() {
    let world = World::build(Store::Memory).upstream_closed().start().await;
    let answer = world.pay("k-1").await;
    expect(502, "upstream-unreachable", "same-key").check(&without_record(answer));
}

#[tokio::test]
async fn response_not_retained() {
    let world = World::with(Store::Memory, "max_response_body = \"1KiB\"").await;
    world.upstream.next(reply(201).body(vec![b'x'; 2048]));
    assert_eq!(world.pay("k-1").await.body.len(), 2048);
    let answer = world.pay("k-1").await;
    expect(409, "response-not-retained", "never").of_a_record().check(&answer);
    assert_eq!(answer.json()["original_status"], 201);
}

#[tokio::test]
async fn store_unavailable() {
    let mut world = World::build(Store::Redis).store("timeout = \"300ms\"").start().await;
    world.redis.as_mut().unwrap().kill();
    let answer = world.pay("k-1").await;
    expect(503, "store-unavailable", "same-key").with_retry_after().check(&without_record(answer));
}

#[tokio::test]
async fn body_too_large() {
    let world = World::with(Store::Memory, "max_request_body = \"1KiB\"").await;
    let long = Request::new("POST", "/pay").key("k-1").body(vec![b'x'; 2048]);
    for long in [long.clone(), long.chunked(100)] {
        let answer = world.send(&long).await;
        expect(413, "body-too-large", "after-correction").check(&answer);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("max_request_body of this route, which is 1KiB;"), "{detail}");
    }
}

#[tokio::test]
async fn expectation_failed() {
    let world = World::new(Store::Memory).await;
    let expected = expect(417, "expectation-failed", "after-correction");
    let unknown = ["x", "100-continue, x", "x;a=b, 100-Continue", "100-continue;a=b", "100", "200-ok=\"1\""];
    for value in unknown {
        expected.check(&world.send(&Request::pay().key("k-1").field("Expect", value)).await);
        expected.check(&world.send(&Request::pay().field("Expect", value)).await);
        expected.check(&world.send(&Request::new("GET", "/pay").field("Expect", value)).await);
    }
    let twice = Request::pay().key("k-1").field("Expect", "100-continue").field("Expect", "x");
    expected.check(&world.send(&twice).await);
    // At once: it is not waited for a body that may never come.
    let mut connection = Connection::open(world.address()).await;
    let whole = Request::pay().key("k-1").field("Expect", "x").to_bytes();
    connection.write(&whole[..whole.len() - 3]).await;
    expected.check(&connection.answer().await);
    assert!(world.proxy().open_records("").await.is_empty());
    assert_eq!(world.upstream.received().len(), 0, "nothing is forwarded");
    // An empty field expects nothing, and letter case does not count.
    for (key, value) in [("k-2", ""), ("k-3", "100-Continue"), ("k-4", "100-continue,100-CONTINUE"), ("k-5", ",")] {
        world.send(&Request::pay().key(key).field("Expect", value)).await.assert_executed(201);
        assert_eq!(world.upstream.last().field("Expect"), None);
    }
}

#[tokio::test]
async fn body_timeout() {
    let world = World::build(Store::Memory).more("[limits]\nbody_timeout = \"300ms\"\n").start().await;
    let mut connection = Connection::open(world.address()).await;
    let whole = Request::pay().key("k-1").to_bytes();
    connection.write(&whole[..whole.len() - 3]).await;
    expect(408, "body-timeout", "same-key").check(&connection.answer().await);
    assert!(connection.closes().await, "the rest of that body must not become a request");
    assert!(world.proxy().open_records("").await.is_empty());
    assert_eq!(world.executions(), 0);
}

#[tokio::test]
async fn no_route() {
    let world = World::with(Store::Memory, "path = \"/v1/\"").await;
    for target in ["/v2/pay", "/v1x"] {
        expect(404, "no-route", "").check(&world.send(&Request::pay().key("k-1").target(target)).await);
    }
    assert_eq!(world.executions(), 0);
}

#[tokio::test]
async fn overloaded() {
    let world = World::build(Store::Memory).more("[limits]\nin_flight = 1\n").start().await;
    let gate = Gate::new();
    world.upstream.next(reply(201).behind(&gate));
    let owner = world.begin_pay("k-1");
    world.upstream.reached(1).await;
    let answer = world.pay("k-2").await;
    expect(503, "overloaded", "same-key").with_retry_after().check(&without_record(answer));
    gate.open();
    owner.answer().await.assert_executed(201);
    let free = eventually("a free place", async || {
        let answer = world.pay("k-2").await;
        (answer.status != 503).then_some(answer)
    })
    .await;
    free.assert_executed(201);
    assert_eq!(world.executions(), 2);
}

#[tokio::test]
async fn overloaded_by_waiting_duplicates() {
    let world = World::build(Store::Memory).more("[limits]\nwaiting = 1\n").start().await;
    let gate = Gate::new();
    world.upstream.next(reply(201).behind(&gate));
    let owner = world.begin_pay("k-1");
    world.upstream.reached(1).await;
    let waiter = world.begin_pay("k-1");
    eventually("the first to wait", async || {
        (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
    })
    .await;
    let answer = world.pay("k-1").await;
    expect(503, "overloaded", "same-key").with_retry_after().check(&without_record(answer));
    gate.open();
    owner.answer().await.assert_executed(201);
    waiter.answer().await.assert_replay(201);
}

#[tokio::test]
async fn a_problem_of_a_head_request_has_no_body_and_the_same_status() {
    let world = World::with(Store::Memory, "path = \"/v1/\"").await;
    let mut connection = Connection::open(world.address()).await;
    connection.send(&Request::new("HEAD", "/v2/")).await;
    let answer = connection.answer().await;
    assert_eq!((answer.status, answer.field("Content-Type")), (404, Some("application/problem+json")));
    // Were there a body, it would be taken for the head of this answer.
    connection.send(&Request::new("GET", "/v2/")).await;
    expect(404, "no-route", "").check(&connection.answer().await);
}

#[tokio::test]
async fn an_http_10_caller_gets_the_same_problem_and_its_end() {
    let world = World::with(Store::Memory, "key_required = true").await;
    let mut connection = Connection::open(world.address()).await;
    connection.send(&Request::pay().http10()).await;
    expect(400, "key-missing", "after-correction").check(&connection.answer().await);
    assert!(connection.closes().await);
}

/// Whether a problem without an open record names one is left open by the contract.
fn without_record(mut answer: Answer) -> Answer {
    let mut json = answer.json();
    json.as_object_mut().unwrap().remove("record");
    answer.body = json.to_string().into_bytes();
    answer
}
