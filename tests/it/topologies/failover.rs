//! Masters that are killed or demoted: who follows is found, and nothing that was replicated runs twice.

use onceproxy::record::LookReply;

use super::*;
use crate::support::{Request, Store as On, World, eventually, within_deadline};

/// Repeats until the store serves again.
async fn once_back(world: &World, key: &str) -> crate::support::Answer {
    eventually("the store to be back", async || {
        let answer = world.pay(key).await;
        (!matches!(answer.problem().as_str(), "store-unavailable" | "request-in-progress")).then_some(answer)
    })
    .await
}

#[tokio::test]
async fn a_killed_master_behind_sentinels_is_followed() {
    within_deadline(
        "sentinel failover",
        Box::pin(async {
            let mut world = World::new(On::Sentinel).await;
            world.pay("k-1").await.assert_executed(201);
            let watched = world.watched();
            until_replicated(&watched.servers).await;
            watched.servers[0].kill();
            watched.failed_over(0).await;
            once_back(&world, "k-2").await.assert_executed(201);
            world.pay("k-1").await.assert_replay(201);
            world.pay("k-2").await.assert_replay(201);
            // The old master comes back as one, and is not taken for it.
            world.watched().servers[0].restart().await;
            eventually("the old master to be a replica", async || {
                (world.watched().servers[0].info("role") == "slave").then_some(())
            })
            .await;
            world.pay("k-3").await.assert_executed(201);
            world.pay("k-1").await.assert_replay(201);
            assert_eq!(world.executions(), 3);
            eventually("/readyz", async || (world.proxy().readyz().await == Some(200)).then_some(())).await;
        }),
    )
    .await;
}

#[tokio::test]
async fn a_killed_master_of_a_cluster_is_followed() {
    within_deadline(
        "cluster failover",
        Box::pin(async {
            let mut world = World::new(On::Cluster).await;
            for n in 0..12 {
                world.pay(&format!("k-{n}")).await.assert_executed(201);
            }
            until_replicated(&world.cluster().nodes).await;
            world.cluster().nodes[0].kill();
            // Keys of the two other masters go on; those of the third do once its replica has taken over.
            for n in 12..24 {
                once_back(&world, &format!("k-{n}")).await.assert_executed(201);
            }
            for n in 0..24 {
                once_back(&world, &format!("k-{n}")).await.assert_replay(201);
            }
            assert_eq!(world.executions(), 24);
            assert_eq!(world.proxy().readyz().await, Some(200));
            // It comes back as a replica of the one that took over.
            world.cluster().nodes[0].restart().await;
            eventually("the old master to be a replica", async || {
                (world.cluster().nodes[0].info("role") == "slave").then_some(())
            })
            .await;
            for n in 0..30 {
                once_back(&world, &format!("k-{n}")).await;
            }
            assert_eq!(world.executions(), 30);
        }),
    )
    .await;
}

async fn until_replicated(nodes: &[crate::support::topologies::Node]) {
    eventually("the replicas to have everything", async || {
        let offset = |node: &crate::support::topologies::Node| node.info("master_repl_offset").parse::<u64>().ok();
        let masters = nodes.iter().filter(|node| node.info("role") == "master");
        let mut lag = masters.filter_map(|master| {
            let slaves = (0..2).map(|n| master.info(&format!("slave{n}")));
            let behind = |slave: String| {
                let at: u64 = slave.split("offset=").nth(1)?.split(',').next()?.parse().ok()?;
                offset(master).map(|offset| offset.saturating_sub(at))
            };
            slaves.filter_map(behind).max()
        });
        lag.all(|lag| lag == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_demoted_master_is_left_although_it_keeps_its_connections() {
    let watched = Watched::start().await;
    let config = sentinel_config(&watched);
    let process = Process::ready(&config).await;
    let claim = claim_in(1);
    assert_eq!(process.store.claim(&claim).await.unwrap(), GRANTED);
    until_replicated(&watched.servers).await;
    let error = watched.sentinels[0].command(&["SENTINEL", "FAILOVER", "main"]);
    assert_eq!(error, "OK");
    let new = watched.failed_over(0).await;
    eventually("the old master to be a replica", async || (watched.servers[0].info("role") == "slave").then_some(()))
        .await;
    // Whatever is asked now is asked of the new master, once.
    let late = claim_in(2);
    assert_eq!(process.store.claim(&late).await.unwrap(), GRANTED);
    assert!(matches!(
        process.store.look(&claim.id, &claim.imprint).await.unwrap(),
        LookReply::Taken(Taken::InProgress { .. })
    ));
    let key = format!("once:{{02}}:r:{}", late.id.hex());
    assert_eq!(watched.servers[new].command(&["EXISTS", &key]), "1");
}

#[tokio::test]
async fn a_master_demoted_by_hand_is_not_written_to_or_read() {
    let watched = Watched::start().await;
    let config = StoreConfig { timeout: Duration::from_millis(800), ..sentinel_config(&watched) };
    let process = Process::ready(&config).await;
    let claim = claim_in(1);
    assert_eq!(process.store.claim(&claim).await.unwrap(), GRANTED);
    assert!(process.store.get(&claim.id).await.unwrap().is_some());
    // The sentinels still name it.
    watched.sentinels.iter().for_each(|sentinel| sentinel.pause());
    let other = watched.servers[1].port.to_string();
    assert_eq!(watched.servers[0].command(&["REPLICAOF", "127.0.0.1", &other]), "OK");
    let error = process.store.claim(&claim_in(2)).await.unwrap_err();
    assert!(!error.may_have_run, "{error}");
    until("reads are refused as well", async || process.store.get(&claim.id).await.err()).await;
    until("it is not ready", async || process.store.ready().err()).await;
    assert_eq!(watched.servers[0].command(&["REPLICAOF", "NO", "ONE"]), "OK");
    until("it serves again", async || process.store.claim(&again(&claim)).await.ok()).await;
    watched.sentinels.iter().for_each(|sentinel| sentinel.resume());
}

#[tokio::test]
async fn a_sentinel_that_hangs_holds_up_nothing() {
    let watched = Watched::start().await;
    watched.sentinels[0].pause();
    let config = StoreConfig { timeout: Duration::from_secs(2), ..sentinel_config(&watched) };
    // The first operation of a new process has to ask them; whoever waits for the hanging one gets no answer in time.
    for _ in 0..5 {
        assert_eq!(quiet(&config).claim(&claim_in(1)).await.unwrap(), GRANTED);
    }
    // With all of them hanging a known master is used on, and a new process is told in time.
    let process = Process::ready(&config).await;
    watched.sentinels.iter().for_each(|sentinel| sentinel.pause());
    assert_eq!(process.store.claim(&claim_in(1)).await.unwrap(), GRANTED);
    let error = quiet(&config).claim(&claim_in(1)).await.unwrap_err();
    assert!(!error.may_have_run && error.message.contains("no sentinel"), "{error}");
    watched.sentinels.iter().for_each(|sentinel| sentinel.resume());
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_said() {
    let watched = Watched::start().await;
    let url = watched.url().replace("/main", "/other");
    let config =
        StoreConfig { timeout: Duration::from_millis(500), ..contract::config(Backend::Redis(redis_of(&url))) };
    let process = Process::open(&config);
    let error = process.store.claim(&claim_in(1)).await.unwrap_err();
    assert!(error.message.contains("no sentinel names the master \"other\""), "{error}");
    assert!(process.store.ready().is_err());
}

on_stores! {
    [cluster sentinel]
    async fn a_duplicate_on_another_proxy_is_woken(store) {
        let mut world = World::build(store).proxies(2).route("wait_timeout = \"20s\"").start().await;
        let gate = crate::support::Gate::new();
        world.upstream.next(crate::support::reply(201).body("done").behind(&gate));
        let owner = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let waiter = Request::pay().key("k-1").begin(world.proxies[1].address);
        let channels = if store == On::Cluster { "SHARDCHANNELS" } else { "CHANNELS" };
        let nodes = if store == On::Cluster { &world.cluster().nodes } else { &world.watched().servers };
        eventually("one process to listen for the record", async || {
            let heard: Vec<String> = nodes.iter().map(|node| node.command(&["PUBSUB", channels, "once:*"])).collect();
            (heard.iter().filter(|channels| channels.lines().count() == 1).count() == 1).then_some(())
        })
        .await;
        gate.open();
        owner.answer().await.assert_executed(201);
        waiter.answer().await.assert_replay(201);
        assert_eq!(world.executions(), 1);
        let nodes = if store == On::Cluster { &world.cluster().nodes } else { &world.watched().servers };
        let published = |command: &str| nodes.iter().any(|node| node.info(&format!("cmdstat_{command}")).contains("calls"));
        let [own, other] = if store == On::Cluster { ["spublish", "publish"] } else { ["publish", "spublish"] };
        // Sentinels publish as well, on every server.
        assert!(published(own) && (store == On::Sentinel || !published(other)));
    }
}
