//! Keys, credentials and bodies appear in no log, no metric and no operator's list; the record id does.

use crate::support::{Gate, Request, Script, Store, World, reply};

const KEY: &str = "sugar-key";
const SECRETS: [&str; 6] = [KEY, "sugar-token", "sugar-body", "sugar-answer", "sugar-cookie", "sugar-query"];

#[tokio::test]
async fn what_is_secret_stays_out_of_logs_metrics_and_lists() {
    let top = "[log]\nlevel = \"trace\"\nrequests = true\nformat = \"json\"\n";
    let world = World::build(Store::Disk).log(top).route("scope = [\"header:Authorization\"]").start().await;
    let request = |key: &str| {
        Request::new("POST", "/pay?q=sugar-query")
            .field("Authorization", "Bearer sugar-token")
            .json(r#"{"card":"sugar-body"}"#)
            .key(key)
    };
    let answer = || reply(201).field("Set-Cookie", "s=sugar-cookie").body("sugar-answer");
    let gate = Gate::new();
    world.upstream.next(answer().behind(&gate));
    let owner = request(KEY).begin(world.address());
    world.upstream.reached(1).await;
    let joiner = request(KEY).begin(world.address());
    let mut seen = world.proxy().admin("GET", "/records", None).await.text();
    gate.open();
    let id = owner.answer().await.assert_executed(201).status;
    assert_eq!(joiner.answer().await.assert_replay(201).status, id);
    // And every way to be refused or to fail.
    world.send(&request(KEY).target("/other?q=sugar-query")).await.assert_problem(422, "key-reused");
    world.send(&request("sugar-key,sugar-key")).await.assert_problem(400, "key-invalid");
    world.upstream.next(Script::close());
    world.send(&request("sugar-key-2")).await.assert_problem(502, "outcome-unknown");
    let unknown = world.send(&request("sugar-key-2")).await;
    unknown.assert_unknown();
    world.upstream.next(Script::bytes_then_close("HTTP/1.1 200 OK\r\nX-Sugar: sugar-answer\r\nbroken sugar-answer"));
    world.send(&request("sugar-key-3")).await.assert_problem(502, "outcome-unknown");

    for path in ["/records", "/metrics", "/config"] {
        seen.push_str(&world.proxy().admin("GET", path, None).await.text());
    }
    world.proxy().logged(&unknown.record()).await;
    seen.push_str(&world.proxy().log().join("\n"));
    for line in seen.lines() {
        for secret in SECRETS {
            assert!(!line.contains(secret), "{secret} is in: {line}");
        }
    }
}
