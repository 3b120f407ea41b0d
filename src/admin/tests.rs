//! Every call over the real router, with a store that applies the real rules.

use std::sync::Mutex;

use axum::body::Body;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::pulse::Pulses;
use crate::record::{self, Claim, ClaimReply, Fingerprint, OnUnknown, Reason, RecordId, Response, Token};
use crate::store::NotReady;

mod ruled;

use ruled::{Fault, Ruled};

const LEASE: Duration = Duration::from_secs(10);
const ABANDON_AFTER: Duration = Duration::from_secs(300);

/// The service under test, with its store at hand.
struct World {
    store: Arc<Ruled>,
    state: AdminState,
}

fn world() -> World {
    let store = Arc::new(Ruled::default());
    let ready = Ready::default();
    ready.set(true);
    let state = AdminState {
        store: Arc::clone(&store) as Arc<dyn Store>,
        tried: Standing::passed(),
        ways: Ways::default(),
        metrics: Metrics::new(),
        ready,
        settings: Arc::new(ArcSwap::from_pointee(Settings {
            effective: "listen = \"127.0.0.1:8080\"\n".into(),
            token: None,
            retention: HashMap::from([("payments".to_owned(), Duration::from_secs(60))]),
            keep_headers: HashMap::from([("sessions".to_owned(), vec![header::SET_COOKIE])]),
        })),
        pulses: Pulses::default(),
        liveness_stall: Duration::from_secs(10),
        level: None,
        loopback: true,
    };
    World { store, state }
}

struct Reply {
    status: StatusCode,
    headers: http::HeaderMap,
    text: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {:?}", self.text))
    }

    /// Asserts that this is a problem of this status and type, and returns its body.
    fn problem(&self, status: u16, kind: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(self.headers[header::CACHE_CONTROL], "no-store");
        let body = self.json();
        assert_eq!(body["type"], format!("urn:onceproxy:problem:{kind}"));
        assert_eq!(body["status"], status);
        body
    }
}

impl World {
    /// As after a reload of settings that have a token.
    fn want_token(&self, token: &str) {
        let settings = Settings { token: Some(token.into()), ..(**self.state.settings.load()).clone() };
        self.state.settings.store(Arc::new(settings));
    }

    async fn send(&self, request: Request<Body>) -> Reply {
        let response = router(self.state.clone()).oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: parts.status, headers: parts.headers, text: String::from_utf8(body.to_vec()).unwrap() }
    }

    async fn call(&self, method: Method, target: &str) -> Reply {
        self.send(request(method, target).body(Body::empty()).unwrap()).await
    }

    async fn get(&self, target: &str) -> Reply {
        self.call(Method::GET, target).await
    }

    async fn resolve(&self, id: &RecordId, body: Value) -> Reply {
        let target = format!("/records/{id}/resolve");
        let request = request(Method::POST, &target).header(header::CONTENT_TYPE, "application/json");
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    async fn claimed(&self, route: &str, number: u8) -> Claim {
        let claim = Claim {
            id: RecordId::new(route.into(), [number; 16]),
            token: Token::new(),
            imprint: Fingerprint { policy: [1; 4], digest: [2; 32] }.into(),
            quoted: false,
            lease: LEASE,
            abandon_after: ABANDON_AFTER,
            on_unknown: OnUnknown::Hold,
            unknown_retention: None,
        };
        assert!(matches!(self.store.claim(&claim).await, Ok(ClaimReply::Granted { .. })));
        claim
    }

    async fn unknown(&self, route: &str, number: u8) -> Claim {
        let claim = self.claimed(route, number).await;
        let answer = Response::new(504, [], [], None);
        self.store.doubt(&claim, Reason::Status, Some(&answer)).await.unwrap();
        claim
    }

    async fn completed(&self, number: u8) -> Claim {
        let claim = self.claimed("payments", number).await;
        let answer = Response::new(201, [], [], Some(bytes::Bytes::from_static(b"done")));
        self.store.complete(&claim, &answer, Duration::from_secs(60)).await.unwrap();
        claim
    }
}

fn request(method: Method, target: &str) -> http::request::Builder {
    Request::builder().method(method).uri(target).header(header::HOST, "127.0.0.1:9090")
}

#[tokio::test]
async fn is_alive_whatever_the_store_says_and_ready_only_with_it() {
    let world = world();
    assert_eq!(world.get("/readyz").await.status, 200);

    *world.store.not_ready.lock().unwrap() = Some(NotReady::ForNow("no connection to redis".to_owned()));
    let body = world.get("/readyz").await.problem(503, "not-ready");
    assert_eq!(body["detail"], "store: no connection to redis");
    assert_eq!(world.get("/livez").await.status, 200);

    *world.store.not_ready.lock().unwrap() = None;
    world.state.ready.set(false);
    let body = world.get("/readyz").await.problem(503, "not-ready");
    assert_eq!(body["detail"], "the proxy is starting or draining");
    assert_eq!(world.call(Method::HEAD, "/readyz").await.status, 503);
    assert_eq!(world.call(Method::HEAD, "/livez").await.status, 200);
}

#[tokio::test]
async fn is_not_alive_with_a_store_that_only_a_restart_mends() {
    let world = world();
    *world.store.not_ready.lock().unwrap() = Some(NotReady::UntilRestart("the last commit failed".to_owned()));
    let body = world.get("/livez").await.problem(503, "restart-needed");
    assert_eq!(body["detail"], "store: the last commit failed");
    world.get("/readyz").await.problem(503, "not-ready");
}

#[tokio::test(start_paused = true)]
async fn is_not_alive_while_a_core_stands_still() {
    let world = world();
    let beat = |core: bool| {
        let pulses = world.state.pulses.clone();
        tokio::spawn(async move { if core { pulses.beat_for_core().await } else { pulses.beat().await } })
    };
    let (_main, core) = (beat(false), beat(true));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.get("/livez").await.status, 200);
    core.abort();
    tokio::time::sleep(Duration::from_secs(12)).await;
    let body = world.get("/livez").await.problem(503, "restart-needed");
    assert!(body["detail"].as_str().unwrap().contains("a core"), "{body}");
}

#[tokio::test]
async fn shows_in_the_metrics_what_readyz_says() {
    let world = world();
    let shown = async || {
        world.get("/metrics").await.text.lines().find(|line| line.starts_with("onceproxy_ready ")).map(str::to_owned)
    };
    assert_eq!(shown().await.as_deref(), Some("onceproxy_ready 1"));
    *world.store.not_ready.lock().unwrap() = Some(NotReady::ForNow("no connection to redis".to_owned()));
    assert_eq!(shown().await.as_deref(), Some("onceproxy_ready 0"));
    *world.store.not_ready.lock().unwrap() = None;
    world.state.ready.set(false);
    assert_eq!(shown().await.as_deref(), Some("onceproxy_ready 0"));
}

#[tokio::test]
async fn shows_metrics_and_settings() {
    let world = world();
    world.state.metrics.set_records_open("unknown", 3);
    let metrics = world.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.headers[header::CONTENT_TYPE].to_str().unwrap().starts_with("application/openmetrics-text"));
    assert!(metrics.text.contains(r#"onceproxy_records_open{state="unknown"} 3"#));
    let config = world.get("/config").await;
    assert_eq!((config.status.as_u16(), config.text.as_str()), (200, "listen = \"127.0.0.1:8080\"\n"));
}

#[tokio::test]
async fn shows_a_record_in_each_state_with_null_for_what_does_not_apply() {
    let world = world();
    let claim = world.claimed("payments", 1).await;
    let shown = world.get(&format!("/records/{}", claim.id)).await;
    assert_eq!(shown.status, 200);
    assert_eq!(shown.headers[header::CACHE_CONTROL], "no-store");
    let expected = json!({
        "id": claim.id.to_string(), "route": "payments", "state": "claimed", "token": claim.token.to_string(),
        "attempts": 1, "claimed_at": "2023-11-14T22:13:20.000Z", "lease_until": "2023-11-14T22:13:30.000Z",
        "abandon_at": "2023-11-14T22:18:20.000Z", "expires_at": null, "reason": null, "original_status": null,
    });
    assert_eq!(shown.json(), expected);

    world.store.advance(LEASE);
    let lapsed = world.get(&format!("/records/{}", claim.id)).await.json();
    assert_eq!((&lapsed["state"], &lapsed["reason"]), (&json!("unknown"), &json!("lapsed")));
    assert_eq!((&lapsed["lease_until"], &lapsed["abandon_at"]), (&Value::Null, &expected["abandon_at"]));

    let doubtful = world.unknown("payments", 2).await;
    let shown = world.get(&format!("/records/{}", doubtful.id)).await.json();
    assert_eq!((&shown["reason"], &shown["original_status"]), (&json!("status"), &json!(504)));

    let done = world.completed(3).await;
    let shown = world.get(&format!("/records/{}", done.id)).await.json();
    assert_eq!((&shown["state"], &shown["original_status"]), (&json!("completed"), &json!(201)));
    assert_eq!((&shown["abandon_at"], &shown["expires_at"]), (&Value::Null, &json!("2023-11-14T22:14:30.000Z")));
}

#[tokio::test]
async fn finds_a_record_by_a_percent_encoded_id() {
    let world = world();
    let claim = world.claimed("payments", 1).await;
    let target = format!("/records/{}", claim.id.to_string().replace(':', "%3A"));
    assert_eq!(world.get(&target).await.json()["id"], claim.id.to_string());
    assert_eq!(world.call(Method::HEAD, &target).await.status, 200);
    world.get("/records/payments%FF").await.problem(400, "request-invalid");
    let body = world.get("/records/payments").await.problem(400, "request-invalid");
    assert!(body["detail"].as_str().unwrap().contains("expected ROUTE:HASH"));
}

#[tokio::test]
async fn lists_open_records_page_by_page() {
    let world = world();
    world.claimed("payments", 1).await;
    world.unknown("payments", 2).await;
    world.unknown("orders", 3).await;
    world.completed(4).await;
    let states = |reply: &Reply| -> Vec<String> {
        let body = reply.json();
        body["records"].as_array().unwrap().iter().map(|r| r["state"].as_str().unwrap().to_owned()).collect()
    };
    let all = world.get("/records").await;
    assert_eq!(states(&all), ["unknown", "claimed", "unknown"]);
    assert_eq!(all.json()["cursor"], Value::Null);
    assert_eq!(states(&world.get("/records?state=unknown&route=payments").await), ["unknown"]);
    assert_eq!(states(&world.get("/records?state=claimed").await), ["claimed"]);

    let first = world.get("/records?limit=2").await;
    assert_eq!(states(&first).len(), 2);
    let cursor = first.json()["cursor"].as_str().unwrap().replace(':', "%3A");
    let second = world.get(&format!("/records?limit=2&cursor={cursor}")).await;
    assert_eq!((states(&second).len(), &second.json()["cursor"]), (1, &Value::Null));
}

#[tokio::test]
async fn refuses_queries_that_it_does_not_understand() {
    let world = world();
    for (query, says) in [
        ("state=completed", "claimed or unknown"),
        ("limit=0", "from 1 to 1000"),
        ("limit=1001", "from 1 to 1000"),
        ("limit=x", "from 1 to 1000"),
        ("sate=unknown", "unknown field `sate`"),
        ("state=claimed&state=unknown", "duplicate field"),
    ] {
        let body = world.get(&format!("/records?{query}")).await.problem(400, "request-invalid");
        assert!(body["detail"].as_str().unwrap().contains(says), "{query}: {body}");
    }
}

#[tokio::test]
async fn not_executed_frees_the_key_but_not_before_the_attempt_is_over() {
    let world = world();
    let claim = world.unknown("payments", 1).await;
    let body = json!({"token": claim.token.to_string(), "outcome": "not-executed", "note": "asked the bank"});

    let early = world.resolve(&claim.id, body.clone()).await.problem(409, "attempt-may-be-running");
    assert!(early["detail"].as_str().unwrap().contains("until 2023-11-14T22:18:20.000Z"));
    assert_eq!((&early["state"], &early["record"]), (&json!("unknown"), &json!(claim.id.to_string())));
    assert_eq!(early["token"], claim.token.to_string());

    world.store.advance(ABANDON_AFTER);
    let resolved = world.resolve(&claim.id, body.clone()).await;
    assert_eq!(resolved.status, 200, "{}", resolved.text);
    assert_eq!(resolved.json(), json!({"id": claim.id.to_string(), "state": "absent"}));
    world.get(&format!("/records/{}", claim.id)).await.problem(404, "record-not-found");
    world.resolve(&claim.id, body).await.problem(404, "record-not-found");
}

#[tokio::test]
async fn force_says_not_executed_at_once() {
    let world = world();
    let claim = world.unknown("payments", 1).await;
    let body = json!({"token": claim.token.to_string(), "outcome": "not-executed", "force": true});
    assert_eq!(world.resolve(&claim.id, body).await.status, 200);
}

#[tokio::test]
async fn executed_completes_the_record_for_its_routes_retention() {
    let world = world();
    for (route, seconds) in [("payments", 60), ("gone", 24 * 60 * 60)] {
        let claim = world.unknown(route, 1).await;
        let body = json!({"token": claim.token.to_string(), "outcome": "executed",
            "response": {"status": 201, "headers": [["content-type", "text/plain"]], "body": "paid"}});
        let resolved = world.resolve(&claim.id, body.clone()).await;
        assert_eq!(resolved.json(), json!({"id": claim.id.to_string(), "state": "completed"}));

        let record = world.store.get(&claim.id).await.unwrap().unwrap();
        assert_eq!(record.expires_at(), Some(world.store.now() + Duration::from_secs(seconds)));
        let record::State::Completed { response, .. } = record.state else { panic!("{record:?}") };
        assert_eq!((response.status(), response.body().unwrap().as_ref()), (201, &b"paid"[..]));

        let again = world.resolve(&claim.id, body).await.problem(409, "record-conflict");
        assert_eq!(again["state"], "completed");
        assert!(again["detail"].as_str().unwrap().contains("completed already"));
    }
}

#[tokio::test]
async fn resolve_refuses_what_is_not_unknown_or_anothers() {
    let world = world();
    let claim = world.claimed("payments", 1).await;
    let body = |token: Token| json!({"token": token.to_string(), "outcome": "not-executed"});
    let alive = world.resolve(&claim.id, body(claim.token)).await.problem(409, "record-conflict");
    assert!(alive["detail"].as_str().unwrap().contains("alive until 2023-11-14T22:13:30.000Z"));

    let other = world.resolve(&claim.id, body(Token::new())).await.problem(409, "record-conflict");
    assert!(other["detail"].as_str().unwrap().contains(&claim.token.to_string()));
}

#[tokio::test]
async fn resolve_refuses_bodies_that_are_malformed_too_large_or_not_json() {
    let world = world();
    let claim = world.unknown("payments", 1).await;
    world.resolve(&claim.id, json!({"token": "x"})).await.problem(400, "request-invalid");

    let target = format!("/records/{}/resolve", claim.id);
    for (length, status, kind) in [(MAX_BODY, 400, "request-invalid"), (MAX_BODY + 1, 413, "body-too-large")] {
        let large = request(Method::POST, &target).header(header::CONTENT_TYPE, "application/json");
        world.send(large.body(Body::from(vec![b' '; length])).unwrap()).await.problem(status, kind);
    }

    for content_type in ["text/plain", "application/x-www-form-urlencoded"] {
        let form = request(Method::POST, &target).header(header::CONTENT_TYPE, content_type);
        let body = json!({"token": claim.token.to_string(), "outcome": "not-executed", "force": true}).to_string();
        let refused = world.send(form.body(Body::from(body)).unwrap()).await;
        refused.problem(415, "content-type-unsupported");
        assert_eq!(refused.headers["accept-post"], "application/json");
    }
    assert_eq!(world.get(&format!("/records/{}", claim.id)).await.json()["state"], "unknown");
}

/// What is never recorded of an answer is not recorded because an operator says it either.
#[tokio::test]
async fn resolve_takes_cookies_and_challenges_only_where_the_route_keeps_them() {
    let world = world();
    let headers = |name: &str| json!([["content-type", "a/b"], [name, "x"]]);
    let cases = [
        ("payments", "Set-Cookie", true),
        ("payments", "WWW-Authenticate", true),
        ("gone", "set-cookie", true),
        ("sessions", "WWW-Authenticate", true),
        ("sessions", "Set-Cookie", false),
        ("payments", "ETag", false),
    ];
    for (number, (route, name, refused)) in (1..).zip(cases) {
        let claim = world.unknown(route, number).await;
        let response = json!({"status": 200, "headers": headers(name)});
        let body = json!({"token": claim.token.to_string(), "outcome": "executed", "response": response});
        let reply = world.resolve(&claim.id, body).await;
        let now = if refused { "unknown" } else { "completed" };
        if refused {
            let detail = reply.problem(400, "request-invalid")["detail"].as_str().unwrap().to_owned();
            let says = format!("The header {} is not recorded: the route does not list it under", name.to_lowercase());
            assert!(detail.starts_with(&says), "{detail}");
        }
        let shown = world.get(&format!("/records/{}", claim.id)).await.json();
        assert_eq!(shown["state"], now, "{route} {name}");
    }
}

#[tokio::test]
async fn forgets_completed_records_and_open_ones_only_by_force() {
    let world = world();
    let done = world.completed(1).await;
    let target = |claim: &Claim| format!("/records/{}?token={}", claim.id, claim.token);
    let wrong = world.call(Method::DELETE, &format!("/records/{}?token={}", done.id, Token::new())).await;
    assert_eq!(wrong.problem(409, "record-conflict")["state"], "completed");
    let gone = world.call(Method::DELETE, &target(&done)).await;
    assert_eq!((gone.status.as_u16(), gone.json()["state"].clone()), (200, json!("absent")));
    world.call(Method::DELETE, &target(&done)).await.problem(404, "record-not-found");

    let open = world.unknown("payments", 2).await;
    let refused = world.call(Method::DELETE, &target(&open)).await.problem(409, "record-conflict");
    assert!(refused["detail"].as_str().unwrap().contains("unknown, not completed"));
    let forced = world.call(Method::DELETE, &format!("{}&force=true&note=ticket%201", target(&open))).await;
    assert_eq!(forced.status, 200);
}

#[tokio::test]
async fn forget_refuses_malformed_queries() {
    let world = world();
    let claim = world.completed(1).await;
    for (query, says) in [
        (String::new(), "?token=TOKEN"),
        ("token=1".to_owned(), "must be the UUID"),
        (format!("token={}&force=yes", claim.token), "true or false"),
        (format!("token={}&note=a%0Ab", claim.token), "one line"),
        (format!("token={}&forced=true", claim.token), "unknown field `forced`"),
    ] {
        let reply = world.call(Method::DELETE, &format!("/records/{}?{query}", claim.id)).await;
        let body = reply.problem(400, "request-invalid");
        assert!(body["detail"].as_str().unwrap().contains(says), "{query}: {body}");
    }
}

#[tokio::test]
async fn a_store_that_cannot_answer_is_503_and_says_that_a_change_may_have_been_made() {
    let world = world();
    let claim = world.unknown("payments", 1).await;
    *world.store.fault.lock().unwrap() = Some(Fault::Fails);
    let read = world.get(&format!("/records/{}", claim.id)).await;
    assert_eq!(read.headers[header::RETRY_AFTER], "1");
    assert!(read.problem(503, "store-unavailable")["detail"].as_str().unwrap().contains("no answer within 1s"));
    world.get("/records").await.problem(503, "store-unavailable");

    let body = json!({"token": claim.token.to_string(), "outcome": "not-executed"});
    let change = world.resolve(&claim.id, body).await.problem(503, "store-unavailable");
    assert!(change["detail"].as_str().unwrap().contains("may have been made"));
    let target = format!("/records/{}?token={}", claim.id, claim.token);
    world.call(Method::DELETE, &target).await.problem(503, "store-unavailable");
}

#[tokio::test]
async fn with_a_token_only_health_and_metrics_are_open() {
    let world = world();
    let claim = world.unknown("payments", 1).await;
    world.want_token("s3cret");
    for open in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(world.get(open).await.status, 200, "{open}");
    }
    let guarded = ["/config", "/records", &format!("/records/{}", claim.id), "/nowhere"];
    for target in guarded {
        let refused = world.get(target).await;
        refused.problem(401, "unauthorized");
        assert!(refused.headers[header::WWW_AUTHENTICATE].to_str().unwrap().starts_with("Bearer "), "{target}");
    }
    world
        .call(Method::DELETE, &format!("/records/{}?token={}", claim.id, claim.token))
        .await
        .problem(401, "unauthorized");
    let not_executed = json!({"token": claim.token.to_string(), "outcome": "not-executed", "force": true});
    world.resolve(&claim.id, not_executed).await.problem(401, "unauthorized");

    for wrong in ["Bearer s3cre", "Bearer s3crets", "Basic s3cret", "s3cret", "Bearer"] {
        let call = request(Method::GET, "/records").header(header::AUTHORIZATION, wrong).body(Body::empty()).unwrap();
        world.send(call).await.problem(401, "unauthorized");
    }
    let call = request(Method::GET, "/records").header(header::AUTHORIZATION, "Bearer s3cret");
    assert_eq!(world.send(call.body(Body::empty()).unwrap()).await.status, 200);
}

#[tokio::test]
async fn on_loopback_a_page_under_another_name_gets_nothing() {
    let mut world = world();
    let claim = world.completed(1).await;
    let rebound = |method: Method, target: String| {
        let call = Request::builder().method(method).uri(target).header(header::HOST, "evil.example:9090");
        call.header(header::CONTENT_TYPE, "application/json").body(Body::from("{}")).unwrap()
    };
    for (method, target) in [
        (Method::DELETE, format!("/records/{}?token={}", claim.id, claim.token)),
        (Method::POST, format!("/records/{}/resolve", claim.id)),
        (Method::GET, "/records".to_owned()),
    ] {
        world.send(rebound(method, target)).await.problem(403, "forbidden");
    }
    // A probe or scraper may use any name.
    assert_eq!(world.send(rebound(Method::GET, "/readyz".to_owned())).await.status, 200);
    assert_eq!(world.send(rebound(Method::GET, "/metrics".to_owned())).await.status, 200);

    // Elsewhere the token is what counts, and without one nothing is open.
    world.state.loopback = false;
    world.send(rebound(Method::GET, "/records".to_owned())).await.problem(403, "forbidden");
    world.want_token("s3cret");
    let mut call = rebound(Method::GET, "/records".to_owned());
    call.headers_mut().insert(header::AUTHORIZATION, "Bearer s3cret".parse().unwrap());
    assert_eq!(world.send(call).await.status, 200);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let world = world();
    for target in ["/", "/record", "/records/", "/records/a/b/c", "/livez/x"] {
        world.get(target).await.problem(404, "not-found");
    }
    for (method, target, allowed) in [
        (Method::DELETE, "/livez", "GET,HEAD"),
        (Method::DELETE, "/records", "GET,HEAD"),
        (Method::PUT, "/records/x", "GET,HEAD,DELETE"),
    ] {
        let refused = world.call(method, target).await;
        refused.problem(405, "method-not-allowed");
        assert_eq!(refused.headers[header::ALLOW], allowed, "{target}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_ended_and_too_many_are_refused_while_probes_are_answered() {
    let world = world();
    let id = world.claimed("payments", 1).await.id;
    *world.store.fault.lock().unwrap() = Some(Fault::Hangs);
    let service = router(world.state.clone());
    let call = |target: &str| service.clone().oneshot(request(Method::GET, target).body(Body::empty()).unwrap());
    let target = format!("/records/{id}");
    let mut running: Vec<_> = (0..CALLS_AT_A_TIME).map(|_| Box::pin(call(&target))).collect();
    for call in &mut running {
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx))).await.is_pending());
    }
    let refused = tokio::time::timeout(CALL_TIMEOUT * 2, call("/records")).await.expect("is not kept waiting").unwrap();
    assert_eq!(kind(refused).await, (503, "urn:onceproxy:problem:overloaded".to_owned()));
    assert_eq!(call("/readyz").await.unwrap().status(), 200);
    for call in running {
        let answer = tokio::time::timeout(CALL_TIMEOUT * 2, call).await.expect("is ended").unwrap();
        assert_eq!(kind(answer).await, (503, "urn:onceproxy:problem:timeout".to_owned()));
    }
}

async fn kind(answer: axum::response::Response) -> (u16, String) {
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    (status, body["type"].as_str().unwrap().to_owned())
}

/// A log that the test can read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn changes_are_logged_with_who_what_and_why_and_refusals_are_not() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    // With one subscriber in the process, another test's thread may decide for all that nobody listens (tracing-core asks
    // the thread that comes by first). With two it asks both.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(subscriber);
    let world = world();
    world.want_token("s3cret");
    let claim = world.unknown("payments", 1).await;
    let body = json!({"token": claim.token.to_string(), "outcome": "executed", "note": "asked the bank",
        "response": {"status": 200, "body": "private"}})
    .to_string();
    for expected in [200, 409] {
        let mut call = request(Method::POST, &format!("/records/{}/resolve", claim.id))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, "Bearer s3cret")
            .body(Body::from(body.clone()))
            .unwrap();
        call.extensions_mut().insert(Peer("127.0.0.1:55555".parse().unwrap()));
        assert_eq!(world.send(call).await.status, expected);
    }
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("record changed by an operator")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    let id = claim.id.to_string();
    for part in ["127.0.0.1:55555 with the token", "resolve: executed", id.as_str(), "asked the bank"] {
        assert!(lines[0].contains(part), "{part:?} is not in {text}");
    }
    assert!(!text.contains("s3cret") && !text.contains("private"), "{text}");
}

#[tokio::test]
async fn serves_on_a_socket_and_a_stop_lets_the_running_call_end() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let world = world();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = crate::shutdown::Signal::new();
    let server = tokio::spawn(serve(listener, router(world.state.clone()), stop.clone()));

    // One connection idle after an answer, and one whose call has begun: its body is not there yet.
    let mut idle = tokio::net::TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    idle.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");

    let claim = world.unknown("payments", 1).await;
    let body = json!({"token": claim.token.to_string(), "outcome": "not-executed", "force": true}).to_string();
    let mut running = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /records/{}/resolve HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        claim.id,
        body.len()
    );
    running.write_all(head.as_bytes()).await.unwrap();
    // The interim answer says that the call reads its body now.
    let mut interim = [0; 25];
    running.read_exact(&mut interim).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");

    stop.give();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    running.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    running.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    server.await.unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}
