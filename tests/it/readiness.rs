//! Ready means that a first execution can be recorded, on every core, and stays so through what an operation waits for.

use std::time::Duration;

use crate::support::{Answer, Request, Store, World, eventually, ms};

async fn turns(world: &World, status: u16) {
    let what = format!("/readyz to turn {status}");
    eventually(&what, async || (world.proxy().readyz().await == Some(status)).then_some(())).await;
}

/// Pays with new keys until one is executed again. Each on a connection of its own, so that every core has its turn.
async fn executes_again(world: &World) {
    let mut number = 0;
    eventually("a new key to be executed", async || {
        number += 1;
        (world.pay(&format!("again-{number}")).await.status == 201).then_some(())
    })
    .await;
}

/// What the key comes to, once the store can be asked again.
async fn once_told(world: &World, key: &str) -> Answer {
    let told = async || {
        let answer = world.pay(key).await;
        (!matches!(answer.status, 409 | 503)).then_some(answer)
    };
    eventually("the key to be told", told).await
}

#[tokio::test]
async fn what_cannot_be_recorded_is_not_claimed() {
    let world = World::build(Store::redis()).alone().top("threads = 1").store("timeout = \"500ms\"").start().await;
    world.pay("earlier").await.assert_executed(201);
    // Every script can still claim, and none can tell that it has completed.
    world.redis().command(&["ACL", "SETUSER", "default", "-publish"]).await;
    world.pay("the-one-that-finds-out").await;
    let executions = world.executions();
    for number in 0..20 {
        world.pay(&format!("later-{number}")).await.assert_problem(503, "store-unavailable");
    }
    assert_eq!(world.executions(), executions, "executed, and nobody can record it");
    turns(&world, 503).await;
    // What was recorded is replayed all the same.
    world.pay("earlier").await.assert_replay(201);
    world.redis().command(&["ACL", "SETUSER", "default", "+publish"]).await;
    turns(&world, 200).await;
    executes_again(&world).await;
    // What could not be recorded then was recorded since.
    let replay = async || (world.pay("the-one-that-finds-out").await.status == 201).then_some(());
    eventually("the first answer to be replayed", replay).await;
    assert_eq!(world.executions(), executions + 1);
}

#[tokio::test]
async fn a_right_that_is_taken_away_is_noticed_without_a_request() {
    let world = World::build(Store::redis()).alone().store("timeout = \"500ms\"").start().await;
    world.redis().command(&["ACL", "SETUSER", "default", "-set"]).await;
    turns(&world, 503).await;
    assert_eq!(world.executions(), 0);
    world.redis().command(&["ACL", "SETUSER", "default", "+set"]).await;
    turns(&world, 200).await;
}

on_shared_stores! {
    async fn a_store_that_takes_only_some_of_the_connections_is_not_ready(store) {
        let builder = World::build(store).relayed().alone().top("threads = 2").store("timeout = \"500ms\"");
        let world = builder.start().await;
        // Of those that claims, answers, waits and upkeep would have on two cores.
        for places in [1, 2, 4] {
            world.relay().admit(places).await;
            let key = |number: usize| format!("k-{places}-{number}");
            // At once, so that every core has some.
            let first: Vec<_> = (0..6).map(|number| world.begin_pay(&key(number))).collect();
            let mut executed = Vec::new();
            for (number, pending) in first.into_iter().enumerate() {
                if pending.answer().await.status == 201 {
                    executed.push(key(number));
                }
            }
            turns(&world, 503).await;
            // And it stays so, whichever of the connections there are.
            for _ in 0..20 {
                tokio::time::sleep(ms(50)).await;
                assert_eq!(world.proxy().readyz().await, Some(503));
            }
            for number in 6..12 {
                match world.pay(&key(number)).await.status {
                    201 => executed.push(key(number)),
                    status => assert_eq!(status, 503),
                }
            }
            world.relay().mend();
            turns(&world, 200).await;
            let executions = world.executions();
            for key in executed {
                once_told(&world, &key).await.assert_replay(201);
            }
            assert_eq!(world.executions(), executions);
            let none = async || world.proxy().open_records("unknown").await.is_empty().then_some(());
            eventually("no key to be held", none).await;
        }
    }

    async fn a_store_that_is_back_within_its_timeout_flips_nothing(store) {
        let mut world = World::build(store).alone().store("timeout = \"60s\"").start().await;
        world.stop_store();
        let during = world.begin_pay("during");
        // As long as it takes to see that it is gone, and more.
        for _ in 0..8 {
            tokio::time::sleep(ms(250)).await;
            assert_eq!(world.proxy().readyz().await, Some(200));
        }
        world.start_store().await;
        during.answer().await.assert_executed(201);
        assert_eq!(world.proxy().readyz().await, Some(200));
        assert_eq!(world.executions(), 1);
    }
}

#[tokio::test]
async fn a_new_password_is_taken_without_a_restart() {
    let server = crate::redis_server::RedisServer::start(&["--requirepass", "one"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "one\n").unwrap();
    let lines = format!("password_file = {file:?}\ntimeout = \"500ms\"");
    let url = format!("redis://127.0.0.1:{}", server.port());
    let world = World::build(Store::memory()).store_at(url).store(&lines).start().await;
    world.pay("k-1").await.assert_executed(201);
    let ask = |words: &str| crate::redis_server::ask(server.port(), &words.split(' ').collect::<Vec<_>>());
    // Without the right password nobody gets in again, and what was recorded cannot be told.
    let open = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    tell(&open, "AUTH one");
    tell(&open, "CONFIG SET requirepass two");
    tell(&open, "CLIENT KILL TYPE normal SKIPME yes");
    tell(&open, "CLIENT KILL TYPE pubsub");
    turns(&world, 503).await;
    world.pay("k-2").await.assert_problem(503, "store-unavailable");
    std::fs::write(&file, "two\n").unwrap();
    turns(&world, 200).await;
    world.pay("k-1").await.assert_replay(201);
    executes_again(&world).await;
    world.proxy().logged("took new files of the store").await;
    // SIGHUP takes what it can take now, and says so; also that there was nothing.
    world.proxy().hang_up();
    world.proxy().logged("the store's certificates and passwords are as they were").await;
    std::fs::write(&file, "").unwrap();
    world.proxy().hang_up();
    let told = async |times| {
        let log = || world.proxy().log();
        let count = || log().iter().filter(|line| line.contains("cannot take new files of the store")).count();
        eventually("it to be told", async || (count() >= times).then_some(())).await;
    };
    told(1).await;
    // Whoever asks again is told again, and not that all is as it was.
    world.proxy().hang_up();
    told(2).await;
    let same = world.proxy().log().iter().filter(|line| line.contains("are as they were")).count();
    assert_eq!(same, 1);
    assert_eq!(ask("PING"), Some("NOAUTH Authentication required.".to_owned()));
    world.pay("k-1").await.assert_replay(201);
}

/// Sends a command on an open connection, and waits for an answer.
fn tell(mut stream: &std::net::TcpStream, words: &str) {
    use std::io::{Read, Write};
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(format!("{words}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 256];
    let read = stream.read(&mut answer).unwrap();
    assert!(!answer[..read].starts_with(b"-"), "{words}: {}", String::from_utf8_lossy(&answer[..read]));
}

#[tokio::test]
async fn a_new_password_of_a_role_is_taken_without_a_restart() {
    let rules = "host all app all scram-sha-256\nlocal all all trust\nhost all all all trust\n";
    let server = crate::postgres_server::PostgresServer::start_with_rules(rules, &[]);
    let admin = crate::postgres_server::ADMIN;
    server.sql(&format!("CREATE ROLE app LOGIN PASSWORD 'one' IN ROLE {admin}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "one").unwrap();
    let url = format!("postgres://app@{}/{}", server.address(), crate::postgres_server::DATABASE);
    server.sql(&format!("GRANT CREATE ON DATABASE {} TO app", crate::postgres_server::DATABASE));
    let lines = format!("password_file = {file:?}\ntimeout = \"500ms\"");
    let world = World::build(Store::memory()).store_at(url).store(&lines).cold().start().await;
    let config = world.config().to_str().unwrap().to_owned();
    let made = tokio::process::Command::new(env!("CARGO_BIN_EXE_onceproxy"))
        .args(["store", "init", "--config", &config])
        .output()
        .await
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    turns(&world, 200).await;
    world.pay("k-1").await.assert_executed(201);
    server.sql(
        "ALTER ROLE app PASSWORD 'two'; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'",
    );
    turns(&world, 503).await;
    std::fs::write(&file, "two").unwrap();
    turns(&world, 200).await;
    world.pay("k-1").await.assert_replay(201);
    executes_again(&world).await;
    assert_eq!(world.send(&Request::new("GET", "/pay")).await.status, 201);
}

#[tokio::test]
async fn new_certificates_to_trust_are_taken_without_a_restart() {
    let world = World::build(Store::redis()).secured().alone().store("timeout = \"500ms\"").start().await;
    world.pay("k-1").await.assert_executed(201);
    let settings = std::fs::read_to_string(world.config()).unwrap();
    let file = settings.split_once("ca_file = \"").unwrap().1.split_once('"').unwrap().0;
    let trusted = std::fs::read(file).unwrap();
    std::fs::copy(crate::support::tls::Authority::new().file(), file).unwrap();
    world.redis().command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    turns(&world, 503).await;
    std::fs::write(file, trusted).unwrap();
    turns(&world, 200).await;
    world.pay("k-1").await.assert_replay(201);
    executes_again(&world).await;
}
