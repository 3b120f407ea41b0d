//! `onceproxy store check`, and the same at start: whether the promise holds on a store, by looking at it and by trying.

use std::process::Output;

use serde_json::Value;

use crate::postgres_server::{ADMIN, DATABASE, PostgresServer, fresh_schema};
use crate::redis_server;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::topologies::{Cluster, Watched};
use crate::support::{eventually, within_deadline};

/// A proxy of its own on this store, its settings in this folder.
async fn proxy_on(store: &str, folder: &std::path::Path) -> Proxy {
    Proxy::start(&settings_of(&format!("url = {store:?}"), folder)).await
}

/// A file of settings with this section `[store]`.
fn settings_of(store: &str, folder: &std::path::Path) -> std::path::PathBuf {
    let config = folder.join("onceproxy.toml");
    let settings = format!(
        "listen = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\n{store}\n\
         [[route]]\nname = \"pay\"\nupstream = \"http://127.0.0.1:9\"\n"
    );
    std::fs::write(&config, settings).unwrap();
    config
}

/// What the command came to: exit code, report, complaints.
async fn check(store: &str) -> (i32, Value, String) {
    check_by(&["--wait", "1", "--store", store]).await
}

/// The same with other arguments.
async fn check_by(arguments: &[&str]) -> (i32, Value, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_onceproxy"));
    command.env_clear().args(["store", "check", "--json"]).args(arguments);
    let Output { status, stdout, stderr } = command.output().await.unwrap();
    let report = serde_json::from_slice(&stdout).unwrap_or(Value::Null);
    (status.code().expect("an exit code"), report, String::from_utf8(stderr).unwrap())
}

/// What the report gives as this fact.
fn fact<'a>(facts: &'a Value, name: &str) -> &'a str {
    facts[name].as_str().unwrap_or_else(|| panic!("no fact {name}: {facts:#}"))
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
        ("rights", "all that are needed"),
        ("scripts", "run"),
    ] {
        assert!(fact(facts, name).contains(part), "{name} does not say {part:?}: {report:#}");
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

/// Not that evictions be allowed, which is what a server says that shows nothing of itself to one of its users.
#[tokio::test]
async fn says_that_a_server_wants_a_login() {
    let server = RedisServer::start(&[]).await;
    server.command(&["CONFIG", "SET", "requirepass", "secret"]).await;
    let (code, report, _) = check(&format!("redis://{}", server.address)).await;
    assert_eq!(code, 1, "{report:#}");
    says(&report, "breaks", "Redis wants a login: write the user and the password into store.url");
    assert!(!report["breaks"].to_string().contains("allow_eviction"), "{report:#}");
}

#[tokio::test]
async fn finds_the_rights_that_a_user_lacks_by_trying() {
    let server = RedisServer::start(&[]).await;
    let user = ["ACL", "SETUSER", "u", "on", ">p", "~once:*", "&once:*", "+@all", "-zadd"];
    server.command(&user).await;
    let (code, report, _) = check(&format!("redis://u:p@{}", server.address)).await;
    assert_eq!(code, 1, "{report:#}");
    says(&report, "breaks", "docs/stores.md: claim");
    assert!(fact(&report["facts"], "rights").starts_with("not enough for claim"), "{report:#}");
    assert_eq!(fact(&report["facts"], "scripts"), "run");
    assert!(!report.to_string().contains("u:p@"), "a password is shown: {report:#}");
}

#[tokio::test]
async fn says_that_scripts_do_not_run() {
    let server = RedisServer::start(&[]).await;
    server.command(&["ACL", "SETUSER", "u", "on", ">p", "~once:*", "&once:*", "+@all", "-eval"]).await;
    let (code, report, _) = check(&format!("redis://u:p@{}", server.address)).await;
    assert_eq!((code, &report["holds"]), (1, &Value::Bool(false)), "{report:#}");
    assert!(fact(&report["facts"], "scripts").starts_with("refused: "), "{report:#}");
    says(&report, "breaks", "allow EVAL and EVALSHA");
}

#[tokio::test]
async fn reports_a_cluster_and_a_master_behind_sentinels() {
    let cluster = Cluster::start().await;
    let (code, report, _) = check_by(&["--wait", "60", "--store", &cluster.url()]).await;
    assert_eq!((code, &report["holds"]), (0, &Value::Bool(true)), "{report:#}");
    let facts = &report["facts"];
    let masters: Vec<_> = cluster.nodes[..3].iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    for master in &masters {
        assert!(fact(facts, "address").contains(master), "{report:#}");
    }
    assert!(fact(facts, "topology").contains("a node of a cluster, master with 1 replicas"), "{report:#}");
    for (name, value) in
        [("operations", "each was run and permitted"), ("rights", "all that are needed"), ("scripts", "run")]
    {
        assert_eq!(fact(facts, name), value, "{report:#}");
    }
    says(&report, "weakens", "replication is asynchronous");
    // One of its masters evicts: that alone breaks the promise, and the report says which.
    cluster.nodes[1].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (code, report, _) = check_by(&["--wait", "60", "--store", &cluster.url()]).await;
    assert_eq!((code, &report["holds"]), (1, &Value::Bool(false)), "{report:#}");
    says(&report, "breaks", &format!("{}: Redis may forget claims", masters[1]));

    let watched = Watched::start().await;
    let (code, report, _) = check_by(&["--wait", "60", "--store", &watched.url()]).await;
    assert_eq!((code, &report["holds"]), (0, &Value::Bool(true)), "{report:#}");
    let facts = &report["facts"];
    assert_eq!(fact(facts, "address"), format!("127.0.0.1:{}", watched.servers[0].port), "the master alone");
    assert!(fact(facts, "topology").contains("master with 2 replicas"), "{report:#}");
    assert_eq!((fact(facts, "rights"), fact(facts, "scripts")), ("all that are needed", "run"));
    says(&report, "weakens", "replication is asynchronous");
    let (code, _, complaints) = check(&watched.url().replace("/main", "/other")).await;
    assert!(code == 1 && complaints.contains("no sentinel names the master"), "{complaints}");
}

#[tokio::test]
async fn reports_both_lines() {
    let (redis, postgres) = (RedisServer::start(&[]).await, PostgresServer::shared());
    let (folder, schema) = (tempfile::tempdir().unwrap(), fresh_schema());
    let config = folder.path().join("onceproxy.toml");
    let settings = format!(
        "[store]\nurl = \"redis://{}\"\nprefix = \"{schema}\"\n[second_line]\nurl = \"postgres://{ADMIN}@{}/{DATABASE}\"\n\
         [[route]]\nname = \"pay\"\nupstream = \"http://127.0.0.1:9\"\n",
        redis.address,
        postgres.address()
    );
    std::fs::write(&config, settings).unwrap();
    let arguments = ["--wait", "60", "--config", config.to_str().unwrap()];
    let (code, report, _) = check_by(&arguments).await;
    assert_eq!(code, 1, "there is no schema: {report:#}");
    says(&report, "breaks", "onceproxy store init");
    let mut init = tokio::process::Command::new(env!("CARGO_BIN_EXE_onceproxy"));
    let made = init.env_clear().args(["store", "init"]).args(&arguments[2..]).output().await.unwrap();
    assert!(made.status.success(), "{made:?}");
    let (code, report, _) = check_by(&arguments).await;
    assert_eq!((code, &report["holds"]), (0, &Value::Bool(true)), "{report:#}");
    assert!(fact(&report["facts"], "topology").contains("one server, master"), "{report:#}");
    assert_eq!(fact(&report["facts"], "operations"), "each was run and permitted");
    let second = &report["facts"]["second_line"];
    assert_eq!(fact(second, "topology"), "Postgres");
    assert!(fact(second, "schema").contains(&schema), "{report:#}");
    // The trial went through both.
    assert_eq!(postgres.sql(&format!("SELECT count(*) > 0 FROM \"{schema}\".records WHERE route = 'PREFLIGHT'")), "t");
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
    let proxy = proxy_on(&store, folder.path()).await;
    proxy.ready().await;
    let (code, _, complaints) = check(&store).await;
    assert_eq!(code, 1);
    assert!(complaints.contains("held by process"), "{complaints}");
}

#[tokio::test]
async fn a_check_of_a_folder_leaves_nothing_behind() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("records");
    let store = format!("disk:{}", dir.display());
    let (code, _, complaints) = check(&store).await;
    assert_eq!(code, 1);
    assert!(complaints.contains("does not exist") && complaints.contains("`onceproxy serve` makes it"), "{complaints}");
    assert!(!dir.exists(), "the check made the folder");

    std::fs::create_dir(&dir).unwrap();
    let (code, report, complaints) = check(&store).await;
    assert_eq!((code, &report["breaks"]), (0, &serde_json::json!([])), "{report:#} {complaints}");
    assert!(fact(&report["facts"], "records").contains("none yet"), "{report:#}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "the check left something in the folder");

    let mut proxy = proxy_on(&store, parent.path()).await;
    proxy.ready().await;
    proxy.terminate();
    proxy.ended().await;
    let (code, report, _) = check(&store).await;
    assert_eq!((code, &report["breaks"]), (0, &serde_json::json!([])), "{report:#}");
    assert!(report["facts"]["records"].is_null(), "its own records were tried: {report:#}");
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

/// The line of docs/stores.md for one server has no `+wait`, which `wait_replicas` needs there too.
#[tokio::test]
async fn a_user_who_may_not_wait_for_replicas_is_told_so_by_the_check_and_by_the_probe() {
    within_deadline("+wait given later", async {
        let (server, replica) = (RedisServer::start(&[]).await, RedisServer::start(&[]).await);
        let user = ["ACL", "SETUSER", "u", "on", ">p", "~once:*", "&once:*", "+@all", "-wait"];
        server.command(&user).await;
        replica.command(&["REPLICAOF", "127.0.0.1", &server.address.port().to_string()]).await;
        eventually("the replica to have joined", async || {
            let told = String::from_utf8(server.command(&["INFO", "replication"]).await).unwrap();
            told.contains("state=online").then_some(())
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let url = format!("redis://u:p@{}", server.address);
        let config = settings_of(
            &format!("url = {url:?}\nwait_replicas = 1\nwait_timeout = \"5s\"\ntimeout = \"20s\""),
            folder.path(),
        );
        let what = "takes claims, but will not say how many replicas have them (store.wait_replicas needs +wait): ";
        let (code, report, _) = check_by(&["--wait", "1", "--config", config.to_str().unwrap()]).await;
        assert_eq!(code, 1, "{report:#}");
        says(&report, "breaks", what);
        says(&report, "breaks", "the 'wait' command");
        let proxy = Proxy::start(&config).await;
        let refused = eventually("the reason at /readyz", async || {
            let answer = proxy.admin("GET", "/readyz", None).await;
            answer.text().contains("needs +wait").then_some(answer)
        })
        .await;
        assert_eq!(refused.status, 503, "{}", refused.shown());
        server.command(&["ACL", "SETUSER", "u", "+wait"]).await;
        proxy.ready().await;
        let (code, report, _) = check_by(&["--wait", "1", "--config", config.to_str().unwrap()]).await;
        assert_eq!((code, &report["holds"]), (0, &Value::Bool(true)), "{report:#}");
    })
    .await;
}
