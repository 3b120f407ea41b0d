//! `onceproxy store check`, and the same at start: whether the promise holds on a store, by looking at it and by trying.

use std::process::Output;

use serde_json::Value;

use crate::redis_server;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::{eventually, within_deadline};

/// A proxy of its own on this store, its settings in this folder.
async fn proxy_on(store: &str, folder: &std::path::Path) -> Proxy {
    let config = folder.join("onceproxy.toml");
    let settings = format!(
        "listen = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = {store:?}\n\
         [[route]]\nname = \"pay\"\nupstream = \"http://127.0.0.1:9\"\n"
    );
    std::fs::write(&config, settings).unwrap();
    Proxy::start(&config).await
}

/// What the command came to: exit code, report, complaints.
async fn check(store: &str) -> (i32, Value, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_onceproxy"));
    command.env_clear().args(["store", "check", "--json", "--wait", "1", "--store", store]);
    let Output { status, stdout, stderr } = command.output().await.unwrap();
    let report = serde_json::from_slice(&stdout).unwrap_or(Value::Null);
    (status.code().expect("an exit code"), report, String::from_utf8(stderr).unwrap())
}

fn says(report: &Value, list: &str, part: &str) {
    let remarks = report[list].as_array().unwrap();
    assert!(remarks.iter().any(|remark| remark.as_str().unwrap().contains(part)), "{part:?} is not in {report:#}");
}

#[tokio::test]
async fn reports_a_server_on_which_the_promise_holds() {
    let server = RedisServer::start(&[]).await;
    server.command(&["CONFIG", "SET", "appendfsync", "always"]).await;
    server.command(&["CONFIG", "SET", "appendonly", "yes"]).await;
    let (code, report, complaints) = check(&format!("redis://{}", server.address)).await;
    assert_eq!((code, complaints.as_str()), (0, ""), "{report:#}");
    assert_eq!(report["holds"], true);
    let facts = &report["facts"];
    for (name, part) in [
        ("topology", "one server, master with 0 replicas"),
        ("persistence", "appendonly yes, appendfsync always"),
        ("eviction", "noeviction"),
        ("latency", "ms"),
        ("clock", "the same"),
        ("operations", "each was run"),
    ] {
        assert!(facts[name].as_str().unwrap().contains(part), "{name} does not say {part:?}: {report:#}");
    }
    assert_eq!((&report["breaks"], &report["weakens"]), (&serde_json::json!([]), &serde_json::json!([])));
    // Nothing of the trial is left but tombstones, which go by themselves.
    let keys = String::from_utf8(server.command(&["KEYS", "*:r:*"]).await).unwrap();
    assert_eq!(keys, "*0\r\n");
    let open = String::from_utf8(server.command(&["KEYS", "*:open"]).await).unwrap();
    assert_eq!(open, "*0\r\n");
}

#[tokio::test]
async fn reports_a_server_behind_a_unix_socket() {
    let server = redis_server::RedisServer::start(&["--unixsocket", "redis.sock"]);
    let socket = server.dir.path().join("redis.sock");
    let (code, report, _) = check(&format!("redis+unix://{}?db=2", socket.display())).await;
    assert_eq!((code, &report["holds"]), (0, &Value::Bool(true)), "{report:#}");
    assert!(report["facts"]["operations"].as_str().unwrap().contains("each was run"), "{report:#}");
    let (code, _, complaints) = check(&format!("unix://{}.gone?pass=s3cr3t", socket.display())).await;
    assert_eq!(code, 1);
    assert!(complaints.contains("cannot be reached") && complaints.contains("redis.sock.gone"), "{complaints}");
    assert!(!complaints.contains("s3cr3t"), "{complaints}");
    let (code, _, complaints) = check("redis+cluster+unix:///run/redis.sock").await;
    assert_eq!(code, 2);
    assert!(complaints.contains("only a single Redis is reached through a Unix socket"), "{complaints}");
}

#[tokio::test]
async fn says_what_a_server_may_lose_and_what_breaks_the_promise() {
    let server = RedisServer::start(&[]).await;
    let url = format!("redis://{}", server.address);
    let (code, report, _) = check(&url).await;
    assert_eq!(code, 0, "{report:#}");
    says(&report, "weakens", "a restart forgets every record");
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let (code, report, _) = check(&url).await;
    assert_eq!((code, &report["holds"]), (1, &Value::Bool(false)));
    says(&report, "breaks", "must be noeviction");
    assert_eq!(report["facts"]["operations"], Value::Null, "a server that must not be used is not written to");
}

#[tokio::test]
async fn finds_the_rights_that_a_user_lacks_by_trying() {
    let server = RedisServer::start(&[]).await;
    let user = ["ACL", "SETUSER", "u", "on", ">p", "~once:*", "&once:*", "+@all", "-zadd"];
    server.command(&user).await;
    let (code, report, _) = check(&format!("redis://u:p@{}", server.address)).await;
    assert_eq!(code, 1, "{report:#}");
    says(&report, "breaks", "docs/stores.md: claim");
    assert!(!report.to_string().contains("u:p@"), "a password is shown: {report:#}");
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_and_one_that_is_held_say_so() {
    let (code, _, complaints) = check("redis://127.0.0.1:1").await;
    assert_eq!(code, 1);
    assert!(complaints.contains("cannot be reached") && complaints.contains("127.0.0.1:1"), "{complaints}");
    let (code, _, complaints) = check("redis+nothing://h").await;
    assert_eq!(code, 2, "{complaints}");
    let folder = tempfile::tempdir().unwrap();
    let store = format!("disk:{}", folder.path().join("records").display());
    let (code, report, _) = check(&store).await;
    assert_eq!((code, &report["breaks"]), (0, &serde_json::json!([])), "{report:#}");
    let proxy = proxy_on(&store, folder.path()).await;
    proxy.ready().await;
    let (code, _, complaints) = check(&store).await;
    assert_eq!(code, 1);
    assert!(complaints.contains("held by process"), "{complaints}");
}

/// A pod whose user lacks a right gets no traffic, and the probe says which operation was refused.
#[tokio::test]
async fn a_proxy_whose_user_lacks_rights_is_not_ready_until_they_are_given() {
    within_deadline("rights given later", async {
        let server = RedisServer::start(&[]).await;
        server.command(&["ACL", "SETUSER", "u", "on", ">p", "~once:*", "&once:*", "+@all", "-zadd"]).await;
        let folder = tempfile::tempdir().unwrap();
        let proxy = proxy_on(&format!("redis://u:p@{}", server.address), folder.path()).await;
        let refused = |line: &String| line.contains("cannot be used");
        eventually("the refusal in the log", async || proxy.log().iter().any(refused).then_some(())).await;
        assert_eq!(proxy.readyz().await, Some(503));
        server.command(&["ACL", "SETUSER", "u", "+zadd"]).await;
        proxy.ready().await;
    })
    .await;
}
