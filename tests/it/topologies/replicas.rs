//! What a failover forgets, and what waiting for replicas makes of it (case G4).

use onceproxy::store::StoreErrorKind;

use super::valkey::Valkey;
use super::*;
use crate::support::{Answer, Store as On, World, eventually, within_deadline};

/// A world behind sentinels whose master goes on alone: its replicas get nothing any more.
async fn cut_off(store: &str) -> World {
    cut_off_from(World::build(On::Sentinel).store(store)).await
}

async fn cut_off_from(builder: crate::support::world::Builder) -> World {
    let mut world = builder.route("on_duplicate = \"reject\"\n lease = \"3s\"").start().await;
    world.pay("warm-up").await.assert_executed(201);
    world.watched().servers[0].cut_off_replicas();
    world
}

/// The master dies, and a replica takes its place.
async fn fail_over(world: &mut World) {
    world.watched().servers[0].kill();
    world.watched().failed_over(0).await;
}

async fn once_back(world: &World) -> Answer {
    eventually("the store to be back and the key to be free", async || {
        let answer = world.pay("k-1").await;
        (!matches!(answer.problem().as_str(), "store-unavailable" | "request-in-progress")).then_some(answer)
    })
    .await
}

#[tokio::test]
async fn g4_a_failover_forgets_what_was_not_replicated() {
    within_deadline(
        "g4",
        Box::pin(async {
            let mut world = cut_off("").await;
            world.pay("k-1").await.assert_executed(201);
            fail_over(&mut world).await;
            // Documented: the claim and the answer are gone, and the repeat is a second execution.
            once_back(&world).await.assert_executed(201);
            assert_eq!(world.executions(), 3);
        }),
    )
    .await;
}

#[tokio::test]
async fn g4_a_claim_that_no_replica_has_does_not_count() {
    within_deadline(
        "g4 with replicas",
        Box::pin(async {
            let mut world = cut_off("wait_replicas = 1").await;
            world.pay("k-1").await.assert_problem(503, "store-unavailable");
            assert_eq!(world.executions(), 1);
            fail_over(&mut world).await;
            once_back(&world).await.assert_executed(201);
            world.pay("k-1").await.assert_replay(201);
            assert_eq!(world.executions(), 2);
        }),
    )
    .await;
}

#[tokio::test]
async fn g4_the_second_line_has_what_a_failover_forgets() {
    within_deadline(
        "g4 with the second line",
        Box::pin(async {
            let mut world = cut_off_from(World::build(On::Sentinel).second_line()).await;
            let first = world.pay("k-1").await;
            first.assert_executed(201);
            let doubted = crate::support::Request::pay().key("k-2");
            world.upstream.next(crate::support::reply(504));
            assert_eq!(world.send(&doubted).await.status, 504);
            fail_over(&mut world).await;
            assert_eq!(once_back(&world).await.assert_replay(201).body, first.body);
            world.send(&doubted).await.assert_unknown();
            assert_eq!(world.executions(), 3);
            // The new master has them again: the next repeats end there, with nobody behind it.
            world.postgres.as_mut().unwrap().kill();
            world.pay("k-1").await.assert_replay(201);
            world.send(&doubted).await.assert_unknown();
            assert_eq!(world.executions(), 3);
        }),
    )
    .await;
}

#[tokio::test]
async fn g4_an_answer_that_was_not_replicated_leaves_the_claim_behind() {
    within_deadline(
        "g4, the answer lost",
        Box::pin(async {
            let route = "on_duplicate = \"reject\"\n lease = \"3s\"";
            let mut world = World::build(On::Sentinel).store("wait_replicas = 2").route(route).start().await;
            let gate = crate::support::Gate::new();
            world.upstream.next(crate::support::reply(201).behind(&gate));
            let owner = world.begin_pay("k-1");
            world.upstream.reached(1).await;
            world.watched().servers[0].cut_off_replicas();
            gate.open();
            owner.answer().await.assert_executed(201);
            fail_over(&mut world).await;
            // The claim is still there; nobody renews it, so that its outcome becomes unknown. It is not run again.
            once_back(&world).await.assert_problem(409, "outcome-unknown");
            assert_eq!(world.executions(), 1);
        }),
    )
    .await;
}

#[tokio::test]
async fn a_claim_counts_when_enough_replicas_have_it() {
    let watched = Watched::start().await;
    let place = Place { host: "127.0.0.1".into(), port: watched.servers[0].port };
    let alone = contract::config(Backend::Redis(Redis::new(Topology::One(place))));
    let wanted = [(1, true), (2, true), (3, false)].map(|(replicas, expected)| {
        [&alone, &sentinel_config(&watched)].map(|config| (with_replicas(config.clone(), replicas), replicas, expected))
    });
    for (config, replicas, expected) in wanted.into_iter().flatten() {
        let store = quiet(&config);
        let claim = claim_in(1);
        match store.claim(&claim).await {
            Ok(reply) => assert!(expected && reply == GRANTED, "{replicas}: {reply:?}"),
            Err(error) => {
                assert!(!expected, "{replicas}: {error}");
                assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, true));
                assert!(error.message.contains("2 replicas have the claim after 200ms, and 3 are wanted"), "{error}");
                // What it left behind is given back by the proxy, which knows that it may have run.
                store.release(&claim).await.unwrap();
                assert_eq!(store.get(&claim.id).await.unwrap(), None);
            }
        }
    }
}

/// The claim is there, and nobody says who has it: it must be known that it is to be given back.
#[tokio::test]
async fn a_grant_whose_wait_is_refused_is_given_back() {
    let watched = Watched::start().await;
    let rights = ["ACL", "SETUSER", "u", "on", ">p", "~once:*", "&once:*", "+@all", "-wait"];
    assert_eq!(watched.servers[0].command(&rights), "OK");
    let place = Place { host: "127.0.0.1".into(), port: watched.servers[0].port };
    let mut redis = Redis::new(Topology::One(place));
    (redis.username, redis.password) = (Some("u".into()), Some("p".to_owned().into()));
    let store = quiet(&with_replicas(contract::config(Backend::Redis(redis)), 1));
    let claim = claim_in(1);
    let error = store.claim(&claim).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, true), "{error}");
    assert!(error.message.contains("store.wait_replicas needs +wait"), "{error}");
    assert!(store.get(&claim.id).await.unwrap().is_some());
    store.release(&claim).await.unwrap();
    assert_eq!(store.get(&claim.id).await.unwrap(), None);
}

#[tokio::test]
async fn too_few_replicas_make_the_store_unready_and_say_why() {
    let watched = Watched::start().await;
    let process = Process::open(&with_replicas(sentinel_config(&watched), 3));
    let reason = until("the reason is shown", async || {
        process.store.ready().err().map(|reason| reason.to_string()).filter(|reason| reason.contains("wait_replicas"))
    })
    .await;
    assert_eq!(reason, "Redis has 2 replicas, and store.wait_replicas is 3");
}

#[tokio::test]
async fn many_claims_share_their_waits_and_replays_wait_for_nobody() {
    let watched = Watched::start().await;
    let store = quiet(&with_replicas(sentinel_config(&watched), 2));
    let known = claim_in(0);
    store.claim(&known).await.unwrap();
    store.complete(&known, &response(1), HOUR).await.unwrap();
    let waits = || {
        let counted = watched.servers[0].info("cmdstat_wait");
        counted.strip_prefix("calls=").map_or(0, |rest| rest.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    let before = waits();
    let claiming: Vec<_> = (0..500)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.claim(&claim_in((n % 256) as u8)).await.unwrap() })
        })
        .collect();
    for claim in claiming {
        assert_eq!(claim.await.unwrap(), GRANTED);
    }
    let shared = waits() - before;
    assert!(shared < 100, "500 claims took {shared} waits");
    // Without replicas a grant does not count; a replay needs none.
    watched.servers[0].cut_off_replicas();
    assert!(matches!(store.claim(&again(&known)).await.unwrap(), ClaimReply::Taken(Taken::Completed(_))));
    assert!(store.claim(&claim_in(5)).await.is_err());
    watched.servers[0].let_replicas_in();
    until("the replicas are back", async || store.claim(&claim_in(5)).await.ok()).await;
}

#[tokio::test]
async fn a_server_that_cannot_wait_for_its_disk_is_refused() {
    let watched = Watched::start().await;
    let mut config = with_replicas(sentinel_config(&watched), 1);
    let Backend::Redis(redis) = &mut config.backend else { panic!("not Redis") };
    redis.acknowledged.as_mut().unwrap().on_disk = true;
    let result = quiet(&config).claim(&claim_in(1)).await;
    let version = watched.servers[0].info("redis_version");
    if version.starts_with("7.0.") {
        let error = result.unwrap_err();
        assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false));
        assert_eq!(error.message, format!("store.wait_aof needs Redis 7.2 or newer, and this is {version}"));
    } else {
        // These keep nothing on disk.
        assert!(result.unwrap_err().message.contains("appendonly"), "{version}");
    }
}

/// On a server that has WAITAOF: a claim counts when it is on the disk of the server and of its replica.
#[tokio::test]
async fn a_claim_counts_when_it_is_on_disk() {
    let on_disk = ["--appendonly", "yes", "--appendfsync", "everysec", "--repl-diskless-sync-delay", "0"];
    let mut master = Valkey::start(&on_disk);
    let port = master.port().to_string();
    let replica = Valkey::start(&[&on_disk[..], &["--replicaof", "127.0.0.1", &port]].concat());
    until("the replica to be in step", async || {
        (replica.command(&["INFO", "replication"]).contains("master_link_status:up")).then_some(())
    })
    .await;
    let one = Redis::new(Topology::One(Place { host: "127.0.0.1".into(), port: master.port() }));
    let mut config = with_replicas(contract::config(Backend::Redis(one)), 1);
    let Backend::Redis(redis) = &mut config.backend else { panic!("not Redis") };
    // An fsync comes every second.
    let acknowledged = Acknowledged { replicas: 1, on_disk: true, timeout: Duration::from_secs(60) };
    redis.acknowledged = Some(acknowledged);
    config.timeout = Duration::from_secs(90);
    let store = quiet(&config);
    let claim = claim_in(1);
    assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
    let calls = master.command(&["INFO", "commandstats"]);
    assert!(calls.contains("cmdstat_waitaof:") && !calls.contains("cmdstat_wait:"), "{calls}");
    // The file has it, which a server that starts again reads.
    master.crash_and_restart();
    assert!(matches!(store.claim(&again(&claim)).await.unwrap(), ClaimReply::Taken(Taken::InProgress { .. })));
    // A replica that keeps nothing on disk acknowledges none.
    until("the replica to be back", async || {
        master.command(&["INFO", "replication"]).contains("state=online").then_some(())
    })
    .await;
    assert_eq!(replica.command(&["CONFIG", "SET", "appendonly", "no"]), "OK");
    let Backend::Redis(redis) = &mut config.backend else { panic!("not Redis") };
    redis.acknowledged = Some(Acknowledged { timeout: Duration::from_millis(500), ..acknowledged });
    let error = quiet(&config).claim(&claim_in(2)).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, true), "{error}");
    assert!(error.message.contains("0 replicas have the claim on disk after 500ms, and 1 are wanted"), "{error}");
}

#[tokio::test]
async fn replicas_are_waited_for_on_a_cluster_too() {
    let cluster = Cluster::start().await;
    let config = with_replicas(cluster_config(&cluster), 1);
    let store = quiet(&config);
    for shard in 0..=255 {
        assert_eq!(store.claim(&claim_in(shard)).await.unwrap(), GRANTED);
    }
    let shard = (0..=255).find(|shard| cluster.master_of(slot_of(&cluster, *shard), 0) == 1).unwrap();
    cluster.nodes[1].cut_off_replicas();
    let error = store.claim(&claim_in(shard)).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, true), "{error}");
    cluster.nodes[1].let_replicas_in();
    until("its replica is back", async || store.claim(&claim_in(shard)).await.ok()).await;
}

#[tokio::test]
#[ignore = "a measurement; cargo test --release --test it -- --ignored --nocapture what_waiting_for_replicas_costs"]
async fn what_waiting_for_replicas_costs() {
    let watched = Watched::start().await;
    for replicas in [0, 1, 2, 0, 1, 2] {
        let config = sentinel_config(&watched);
        let store = quiet(&if replicas == 0 { config } else { with_replicas(config, replicas) });
        for callers in [1, 16, 128] {
            let count = if callers == 1 { 2000 } else { 20_000 / callers };
            let start = std::time::Instant::now();
            let running: Vec<_> = (0..callers)
                .map(|_| {
                    let store = Arc::clone(&store);
                    tokio::spawn(async move {
                        let mut times = Vec::with_capacity(count);
                        for n in 0..count {
                            let claim = claim_in((n % 256) as u8);
                            let begun = std::time::Instant::now();
                            assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
                            times.push(begun.elapsed());
                        }
                        times
                    })
                })
                .collect();
            let mut times = Vec::new();
            for caller in running {
                times.extend(caller.await.unwrap());
            }
            times.sort();
            let rate = times.len() as f64 / start.elapsed().as_secs_f64();
            let [half, most] = [50, 99].map(|part| times[times.len() * part / 100]);
            println!("{replicas} replicas, {callers:3} callers: {rate:6.0} claims/s, median {half:?}, 99 % {most:?}");
        }
    }
}
