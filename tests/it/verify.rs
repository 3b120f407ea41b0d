//! Signatures of webhooks: what is not the sender's takes no part in anything, and reads nothing.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use crate::support::{Answer, Connection, Gate, Request, Store, World, eventually, reply};

const SECRET: &str = "It's a Secret to Everybody";
const BODY: &str = r#"{"action":"opened"}"#;

/// A folder of secrets.
struct Secrets(tempfile::TempDir);

impl Secrets {
    fn new() -> Secrets {
        Secrets(tempfile::tempdir().unwrap())
    }

    /// Puts a secret into a file, as another program would: it is there whole, or not at all.
    fn write(&self, name: &str, secret: &str) -> PathBuf {
        let (path, next) = (self.0.path().join(name), self.0.path().join("next"));
        std::fs::write(&next, secret).unwrap();
        std::fs::rename(&next, &path).unwrap();
        path
    }
}

/// The settings of a route for webhooks that this sender signs.
fn route(preset: &str, secrets: &[&Path]) -> String {
    let secrets: Vec<_> = secrets.iter().map(|path| format!("{{ file = {path:?} }}")).collect();
    format!("preset = \"webhook\"\n verify.preset = {preset:?}\n verify.secrets = [{}]", secrets.join(", "))
}

async fn of_github(store: Store, secrets: &Secrets) -> World {
    World::with(store, &route("github", &[&secrets.write("github", SECRET)])).await
}

fn hex(secret: &str, signed: &str) -> String {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), signed.as_bytes());
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A delivery of GitHub's, signed with this secret.
fn delivery(id: &str, secret: &str) -> Request {
    let signature = format!("sha256={}", hex(secret, BODY));
    Request::new("POST", "/hook").field("X-GitHub-Delivery", id).field("X-Hub-Signature-256", signature).json(BODY)
}

/// What somebody sends who knows the id and not the secret.
fn forgeries(id: &str) -> Vec<Request> {
    let bare = || Request::new("POST", "/hook").field("X-GitHub-Delivery", id);
    let genuine = format!("sha256={}", hex(SECRET, BODY));
    vec![
        delivery(id, "guessed"),
        bare().json(BODY),
        bare().field("X-Hub-Signature-256", &genuine).json(r#"{"action":"closed"}"#),
        bare().field("X-Hub-Signature-256", &genuine).body(""),
        delivery(id, SECRET).field("X-Hub-Signature-256", &genuine),
        delivery(id, "guessed").chunked(5),
    ]
}

/// Refused, and nothing said of any record.
fn assert_forged(answer: &Answer) {
    answer.assert_problem(401, "signature-invalid");
    assert_eq!(answer.retry(), "after-correction");
    assert_eq!(answer.field("Stripe-Should-Retry"), Some("false"));
    assert!(!answer.is_replay() && answer.json()["record"].is_null(), "{}", answer.shown());
    assert_eq!(answer.field("Cache-Status"), Some("onceproxy; detail=signature-invalid"));
}

async fn rejected(world: &World, why: &str) -> f64 {
    let labels = [("route", "pay"), ("why", why)];
    world.proxy().metric("onceproxy_signatures_rejected_total", &labels).await
}

on_each_store! {
    async fn n4_a_forged_webhook_takes_no_part_in_the_genuine_one(store) {
        let secrets = Secrets::new();
        let world = of_github(store, &secrets).await;
        // Before it: nothing is claimed.
        for forged in forgeries("m1") {
            assert_forged(&world.send(&forged).await);
        }
        assert!(world.proxy().open_records("claimed").await.is_empty());
        // While it is answered slowly: none waits for it.
        let gate = Gate::new();
        world.upstream.next(reply(200).body("done").behind(&gate));
        let genuine = delivery("m1", SECRET).begin(world.address());
        world.upstream.reached(1).await;
        for forged in forgeries("m1") {
            assert_forged(&world.send(&forged).await);
        }
        assert!(!genuine.is_answered());
        gate.open();
        genuine.answer().await.assert_executed(200);
        // After it: the sender's own redelivery has the answer, and nobody else.
        for forged in forgeries("m1") {
            assert_forged(&world.send(&forged).await);
        }
        let again = world.send(&delivery("m1", SECRET)).await;
        again.assert_replay(200);
        assert_eq!((again.text(), world.executions()), ("done".to_owned(), 1));
        let counted = [rejected(&world, "wrong").await, rejected(&world, "missing").await, rejected(&world, "malformed").await];
        assert_eq!(counted, [12.0, 3.0, 3.0]);
        let labels = [("route", "pay"), ("result", "signature_rejected")];
        assert_eq!(world.proxy().metric("onceproxy_requests_total", &labels).await, 18.0);
    }

    async fn n4_a_forged_webhook_is_refused_while_the_genuine_one_waits_for_its_first_delivery(store) {
        let secrets = Secrets::new();
        let world = of_github(store, &secrets).await;
        let gate = Gate::new();
        world.upstream.next(reply(200).behind(&gate));
        let first = delivery("m1", SECRET).begin(world.address());
        world.upstream.reached(1).await;
        let second = delivery("m1", SECRET).begin(world.address());
        eventually("the redelivery to wait", async || {
            (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
        })
        .await;
        assert_forged(&world.send(&delivery("m1", "guessed")).await);
        gate.open();
        first.answer().await.assert_executed(200);
        second.answer().await.assert_replay(200);
        assert_eq!(world.executions(), 1);
    }
}

/// A client that waits to be told to send its body could have the replay without one.
#[tokio::test]
async fn a_replay_needs_the_body_that_is_signed() {
    let secrets = Secrets::new();
    let world = of_github(Store::Memory, &secrets).await;
    world.send(&delivery("m1", SECRET)).await.assert_executed(201);
    for (request, genuine) in [(delivery("m1", "guessed"), false), (delivery("m1", SECRET), true)] {
        let whole = request.field("Expect", "100-continue").to_bytes();
        let body = whole.len() - BODY.len();
        let mut connection = Connection::open(world.address()).await;
        connection.write(&whole[..body]).await;
        let interim = connection.body_until("\r\n\r\n").await;
        assert!(interim.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&interim));
        connection.write(&whole[body..]).await;
        let answer = connection.answer().await;
        match genuine {
            true => _ = answer.assert_replay(201),
            false => assert_forged(&answer),
        }
    }
    assert_eq!(world.executions(), 1);
}

#[tokio::test]
async fn a_delivery_without_an_id_is_signed_too_and_other_methods_are_nobodys() {
    let secrets = Secrets::new();
    let world = of_github(Store::Memory, &secrets).await;
    let signature = format!("sha256={}", hex(SECRET, BODY));
    let bare = Request::new("POST", "/hook").json(BODY);
    assert_forged(&world.send(&bare).await);
    assert_forged(&world.send(&bare.clone().field("X-Hub-Signature-256", "sha256=00")).await);
    assert_eq!(world.executions(), 0);
    let passed = world.send(&bare.field("X-Hub-Signature-256", &signature)).await;
    passed.assert_executed(201);
    assert_eq!(passed.field("Cache-Status"), Some("onceproxy; fwd=bypass; detail=unprotected"));
    assert_eq!(world.upstream.last().body, BODY.as_bytes());
    world.send(&Request::new("GET", "/hook")).await.assert_executed(201);
    // Spelled in another case it is not protected, but many servers would take it.
    world.send(&Request::new("post", "/hook").json(BODY)).await.assert_problem(400, "method-invalid");
    assert_eq!(world.executions(), 2);
}

#[tokio::test]
async fn secrets_rotate_without_a_restart() {
    let secrets = Secrets::new();
    let (old, new) = (secrets.write("old", "one\n"), secrets.write("new", "two"));
    let world = World::with(Store::Memory, &route("github", &[&old, &new])).await;
    for (id, secret) in [("m1", "one"), ("m2", "two")] {
        world.send(&delivery(id, secret)).await.assert_executed(201);
    }
    assert_forged(&world.send(&delivery("m3", "sugar")).await);
    secrets.write("old", "sugar");
    eventually("the third secret", async || (world.send(&delivery("m3", "sugar")).await.status == 201).then_some(()))
        .await;
    assert_forged(&world.send(&delivery("m1", "one")).await);
    world.send(&delivery("m2", "two")).await.assert_replay(201);
    // What cannot be read changes nothing, and is told.
    std::fs::remove_file(&old).unwrap();
    let told = world.proxy().logged("cannot take new certificates or secrets of a route").await;
    assert!(told.contains("cannot read the secret in"), "{told}");
    world.send(&delivery("m3", "sugar")).await.assert_replay(201);
    secrets.write("old", "");
    eventually("the empty file to be told", async || {
        world.proxy().log().iter().any(|line| line.contains("is empty")).then_some(())
    })
    .await;
    assert_forged(&world.send(&delivery("m4", "")).await);
    world.send(&delivery("m3", "sugar")).await.assert_replay(201);
    let log = world.proxy().log().join("\n");
    assert!(!log.contains("sugar"), "a secret is in the log: {log}");
}

#[tokio::test]
async fn a_time_that_is_signed_must_be_of_now() {
    let secrets = Secrets::new();
    let file = secrets.write("standard", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let world = World::with(Store::Memory, &route("standard-webhooks", &[&file])).await;
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let at = |time: u64| {
        let tag = hmac::sign(&key, format!("m1.{time}.{BODY}").as_bytes());
        let request =
            Request::new("POST", "/hook").field("webhook-id", "m1").field("webhook-timestamp", time.to_string());
        request.field("webhook-signature", format!("v1,AAAA v1,{}", STANDARD.encode(tag))).json(BODY)
    };
    for time in [now - 400, now + 400] {
        assert_forged(&world.send(&at(time)).await);
    }
    assert_eq!(rejected(&world, "expired").await, 2.0);
    world.send(&at(now)).await.assert_executed(201);
    // Each delivery is signed anew; the body is what it was.
    world.send(&at(now + 1)).await.assert_replay(201);
    assert_eq!(world.executions(), 1);
}

/// The line is written once a minute, however many come.
#[tokio::test]
async fn forged_deliveries_are_told_in_the_log_once_and_without_what_they_say() {
    let secrets = Secrets::new();
    let world = of_github(Store::Memory, &secrets).await;
    for _ in 0..3 {
        assert_forged(&world.send(&delivery("sugar-id", "guessed")).await);
    }
    let told = world.proxy().logged("refused for its signature").await;
    assert!(told.contains("wrong") && told.contains("pay") && !told.contains("sugar-id"), "{told}");
    assert_eq!(world.proxy().log().iter().filter(|line| line.contains("refused for its signature")).count(), 1);
}
