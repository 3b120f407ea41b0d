//! Other settings for a running proxy: by SIGHUP, by a changed file, by the link of a mounted ConfigMap. Requests go on
//! meanwhile, and what is wrong changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use crate::support::tls::Authority;
use crate::support::{Gate, Request, Store, World, eventually, reply};

const RELOADS: &str = "onceproxy_config_reloads_total";

/// Waits until this many reloads ended so.
async fn reloaded(world: &World, result: &str, times: f64) {
    let what = format!("{times} reloads with {result}");
    let labels = [("result", result)];
    eventually(&what, async || (world.proxy().metric(RELOADS, &labels).await >= times).then_some(())).await;
}

#[tokio::test]
async fn sighup_puts_the_file_in_force() {
    let mut world = World::new(Store::Memory).await;
    assert_eq!(world.proxy().metric("onceproxy_config_last_reload_successful", &[]).await, 1.0);
    world.change_route("key_required = true\n retention = \"90s\"");
    world.proxy().hang_up();
    reloaded(&world, "success", 1.0).await;
    // And did not wait for the file to be looked at.
    world.proxy().logged("\"why\":\"SIGHUP\"").await;
    world.send(&Request::pay()).await.assert_problem(400, "key-missing");
    let shown = world.proxy().admin("GET", "/config", None).await.text();
    assert!(shown.contains("key_required = true") && shown.contains("retention = \"90s\""), "{shown}");
}

#[tokio::test]
async fn rules_on_bodies_and_types_of_streams_are_put_in_force() {
    let rule = |then: &str| format!("[[route.when]]\njson = \"/a\"\nis = [1]\nthen = \"{then}\"\n");
    let mut world = World::build(Store::Memory).more(&rule("release")).start().await;
    for (n, then, status) in [(0, "release", "released"), (1, "unknown", "outcome-unknown")] {
        if n > 0 {
            world.change_more(&rule(then));
            world.change_route("stream_types = [\"application/json\"]");
            world.proxy().hang_up();
            reloaded(&world, "success", 1.0).await;
        }
        world.upstream.next(reply(200).body("{\"a\":1}"));
        let answer = world.pay(&format!("k-{n}")).await;
        assert_eq!(answer.field("Cache-Status"), Some(format!("onceproxy; fwd=miss; detail={status}").as_str()));
    }
    // A type that flows now matches no rule.
    world.upstream.next(reply(200).field("Content-Type", "application/json").body("{\"a\":1}"));
    world.pay("k-2").await.assert_executed(200);
    world.pay("k-2").await.assert_replay(200);
}

#[tokio::test]
async fn routes_come_change_and_go_under_load_without_a_failed_request() {
    let mut world = World::build(Store::Memory).top("threads = 2").start().await;
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let (stop, answered, address) = (stop.clone(), answered.clone(), world.address());
            tokio::spawn(async move {
                let mut connection = crate::support::Connection::open(address).await;
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    connection.send(&Request::pay().key(&format!("k-{client}-{number}"))).await;
                    connection.answer().await.assert_executed(201);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let route = "[[route]]\nname = \"more\"\npath = \"/more\"\nupstream = \"UPSTREAM\"\n";
    let routes = [format!("{route}key_required = true\n"), format!("{route}preset = \"webhook\"\n"), String::new()];
    let in_force: [fn(&str) -> bool; 3] = [
        |config| config.contains("key_required = true"),
        |config| config.contains("webhook-id"),
        |config| !config.contains("/more"),
    ];
    for (number, more) in routes.iter().cycle().take(6).enumerate() {
        let before = answered.load(Ordering::Relaxed);
        world.change_more(more);
        world.proxy().hang_up();
        eventually("the settings to be in force", async || {
            let config = world.proxy().admin("GET", "/config", None).await.text();
            in_force[number % 3](&config).then_some(())
        })
        .await;
        let more = world.send(&Request::new("POST", "/more/x").json("{}")).await;
        match number % 3 {
            0 => drop(more.assert_problem(400, "key-missing")),
            _ => assert_eq!(more.status, 201, "{}", more.shown()),
        }
        let what = "answers under the new settings";
        eventually(what, async || (answered.load(Ordering::Relaxed) > before + 8).then_some(())).await;
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("no request fails");
    }
}

#[tokio::test]
async fn a_kept_upstream_keeps_its_connections() {
    let mut world = World::build(Store::Memory).top("threads = 1").route("idle_timeout = \"60s\"").start().await;
    world.pay("k-1").await.assert_executed(201);
    world.change_route("retention = \"90s\"");
    world.proxy().hang_up();
    reloaded(&world, "success", 1.0).await;
    world.pay("k-2").await.assert_executed(201);
    let received = world.upstream.received();
    assert_eq!(received[0].connection, received[1].connection, "the second came by another connection");
}

#[tokio::test]
async fn a_changed_file_is_noticed_by_its_content() {
    let mut world = World::new(Store::Memory).await;
    world.change_route("key_required = true");
    reloaded(&world, "success", 1.0).await;
    world.send(&Request::pay()).await.assert_problem(400, "key-missing");
}

/// What Kubernetes does: the file is a link into `..data`, which is a link to a folder with the time in its name. Only
/// that one link is replaced.
#[tokio::test]
async fn a_config_map_that_is_swapped_by_a_link_is_noticed() {
    use std::os::unix::fs::symlink;

    let mut world = World::new(Store::Memory).await;
    let file = world.config().to_owned();
    let folder = file.parent().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::create_dir(folder.join(name)).unwrap();
        std::fs::write(folder.join(name).join("onceproxy.toml"), text).unwrap();
    };
    write("..2026_01", &std::fs::read_to_string(&file).unwrap());
    symlink("..2026_01", folder.join("..data")).unwrap();
    std::fs::remove_file(&file).unwrap();
    symlink("..data/onceproxy.toml", &file).unwrap();
    world.restart().await;

    let next =
        std::fs::read_to_string(&file).unwrap().replace("preset = \"api\"", "preset = \"api\"\nkey_required = true");
    write("..2026_02", &next);
    symlink("..2026_02", folder.join("..data_tmp")).unwrap();
    std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    reloaded(&world, "success", 1.0).await;
    world.send(&Request::pay()).await.assert_problem(400, "key-missing");
}

#[tokio::test]
async fn a_bad_file_changes_nothing_says_why_and_shows_in_a_metric() {
    let mut world = World::new(Store::Memory).await;
    world.change_route("key_required = true\n retention = \"soon\"");
    reloaded(&world, "failure", 1.0).await;
    assert_eq!(world.proxy().metric("onceproxy_config_last_reload_successful", &[]).await, 0.0);
    world.proxy().logged("route.pay.retention").await;
    world.proxy().logged("the old ones stay in force").await;
    // Neither of the two settings is in force.
    world.send(&Request::pay()).await.assert_executed(201);

    world.change_route("retention = \"80s\"");
    reloaded(&world, "success", 1.0).await;
    assert_eq!(world.proxy().metric("onceproxy_config_last_reload_successful", &[]).await, 1.0);
    assert_eq!(world.proxy().metric(RELOADS, &[("result", "failure")]).await, 1.0, "one bad file is one failure");
    world.send(&Request::pay()).await.assert_problem(400, "key-missing");
}

#[tokio::test]
async fn certificates_that_cannot_be_read_change_nothing() {
    let mut world = World::new(Store::Memory).await;
    let more =
        "[[route]]\nname = \"tls\"\npath = \"/tls\"\nupstream = \"https://u.example\"\nca_file = \"/nowhere.pem\"\n";
    world.change_more(more);
    world.change_route("key_required = true");
    world.proxy().hang_up();
    reloaded(&world, "failure", 1.0).await;
    world.proxy().logged("/nowhere.pem").await;
    world.send(&Request::pay()).await.assert_executed(201);
}

#[tokio::test]
async fn what_needs_a_restart_is_named_and_not_shown_as_in_force() {
    let mut world = World::new(Store::Memory).await;
    world.change_top("listen = \"127.0.0.1:1\"\n threads = 3\n drain_timeout = \"11s\"");
    world.proxy().hang_up();
    reloaded(&world, "success", 1.0).await;
    let named = world.proxy().logged("takes effect after a restart").await;
    let named: serde_json::Value = serde_json::from_str(&named).unwrap();
    assert_eq!((&named["settings"], &named["level"]), (&json!("listen threads"), &json!("WARN")));
    let shown = world.proxy().admin("GET", "/config", None).await.text();
    assert!(!shown.contains("127.0.0.1:1\"") && shown.contains("drain_timeout = \"11s\""), "{shown}");
    world.pay("k-1").await.assert_executed(201);
}

#[tokio::test]
async fn settings_that_name_records_anew_are_told() {
    let mut world = World::new(Store::Memory).await;
    world.change_route("scope = []");
    world.proxy().hang_up();
    reloaded(&world, "success", 1.0).await;
    world.proxy().logged("\"settings\":\"route.pay.scope\"").await;
    world.proxy().logged("not found any more").await;
}

on_each_store! {
    async fn an_attempt_ends_under_the_settings_it_began_with(store) {
        let mut world = World::new(store).await;
        let gate = Gate::new();
        world.upstream.next(reply(500).body("first").behind(&gate));
        let first = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        // Under the new settings the answer would be unknown, and the route is another's.
        world.change_route("unknown = [\"5xx\"]\n timeout = \"7s\"");
        world.proxy().hang_up();
        reloaded(&world, "success", 1.0).await;
        let joiner = world.begin_pay("k-1");
        let labels = [("route", "pay")];
        eventually("a joiner", async || (world.proxy().metric("onceproxy_waiting", &labels).await > 0.0).then_some(()))
            .await;
        gate.open();
        first.answer().await.assert_executed(500);
        assert_eq!(joiner.answer().await.text(), "first");
        world.pay("k-1").await.assert_replay(500);
        // A new attempt goes by the new ones.
        world.upstream.next(reply(500));
        assert_eq!(world.pay("k-2").await.status, 500);
        world.pay("k-2").await.assert_unknown();
        assert_eq!(world.executions(), 2);
    }
}

#[tokio::test]
async fn a_route_that_is_gone_still_records_what_runs_on_it() {
    let more = "[[route]]\nname = \"more\"\npath = \"/more\"\nupstream = \"UPSTREAM\"\n";
    let mut world = World::build(Store::Memory).more(more).start().await;
    let gate = Gate::new();
    world.upstream.next(reply(201).behind(&gate));
    let request = Request::new("POST", "/more").json("{}").key("k-1");
    let first = request.begin(world.address());
    world.upstream.reached(1).await;
    world.change_more("");
    world.proxy().hang_up();
    reloaded(&world, "success", 1.0).await;
    gate.open();
    first.answer().await.assert_executed(201);
    world.change_more(more);
    world.proxy().hang_up();
    reloaded(&world, "success", 2.0).await;
    world.send(&request).await.assert_replay(201);
    assert_eq!(world.executions(), 1);
}

#[tokio::test]
async fn the_log_level_follows_the_settings_and_the_operator() {
    let mut world = World::build(Store::Memory).start().await;
    let level = async |world: &World| world.proxy().admin("GET", "/log-level", None).await.json()["level"].clone();
    assert_eq!(level(&world).await, "info");
    let set = async |world: &World, body| world.proxy().admin("PUT", "/log-level", Some(body)).await.status;
    assert_eq!(set(&world, json!({"level": "debug"})).await, 200);
    assert_eq!(level(&world).await, "debug");
    for wrong in [json!({"level": "loud"}), json!({"level": "debug", "for": "1h"}), json!([])] {
        assert_eq!(set(&world, wrong).await, 400);
    }
    // Settings that say what they said before do not take back what an operator set.
    world.proxy().hang_up();
    reloaded(&world, "success", 1.0).await;
    assert_eq!(level(&world).await, "debug");
    world.change_log("[log]\nformat = \"json\"\nlevel = \"warn\"\n");
    world.proxy().hang_up();
    reloaded(&world, "success", 2.0).await;
    assert_eq!(level(&world).await, "warn");
}

#[tokio::test]
async fn renewed_certificates_of_an_upstream_are_taken_without_a_word() {
    let (old, new) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let trusted = folder.path().join("upstream-ca.pem");
    std::fs::copy(old.file(), &trusted).unwrap();
    // Connections are not kept, so that each request shakes hands.
    let route = format!("upstream = \"https://AUTHORITY\"\n ca_file = {trusted:?}\n idle_timeout = \"1ms\"");
    let world = World::with(Store::Memory, &route).await;
    let metric = async |name: &str| world.proxy().metric(&format!("onceproxy_certificate_{name}_total"), &[]).await;
    world.upstream.speak_tls(old.certificate_for("127.0.0.1"));
    world.pay("k-1").await.assert_executed(201);

    std::fs::write(&trusted, "no certificate").unwrap();
    eventually("the bad file", async || (metric("reload_failures").await == 1.0).then_some(())).await;
    world.pay("k-2").await.assert_executed(201);
    world.proxy().logged("cannot take new certificates or secrets of a route").await;

    world.upstream.speak_tls(new.certificate_for("127.0.0.1"));
    world.pay("k-3").await.assert_problem(502, "upstream-unreachable");
    std::fs::copy(new.file(), &trusted).unwrap();
    eventually("the new file", async || (metric("reloads").await == 1.0).then_some(())).await;
    world.pay("k-3").await.assert_executed(201);
    assert_eq!((metric("reload_failures").await, world.executions()), (1.0, 3));
    assert_eq!(world.proxy().metric(RELOADS, &[("result", "success")]).await, 0.0);
}
