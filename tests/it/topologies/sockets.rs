//! Servers on this host behind Unix sockets: the same contract, under a user who may do no more than docs/stores.md says,
//! and what happens when nobody listens there.

use std::path::Path;
use std::time::Duration;

use onceproxy::config::store::StoreConfig;
use onceproxy::config::{self, Sources};
use onceproxy::store::StoreErrorKind;

use super::contract_on_each::{denied, keeps_the_contract};
use super::postgres;
use super::{GRANTED, Process, claim_in, quiet};
use crate::contract::until;
use crate::postgres_server::{ADMIN, DATABASE, PostgresServer};
use crate::redis_server::{self, RedisServer};
use crate::support::secured::documented;

/// Redis makes the socket in its own folder.
const SETTINGS: [&str; 4] = ["--unixsocket", "redis.sock", "--unixsocketperm", "700"];

/// The settings of a store as a file has them, with the patience of a test.
fn settings(url: &str, more: &str) -> StoreConfig {
    let text = format!("[store]\nurl = {url:?}\n{more}\n[[route]]\nname = \"a\"\nupstream = \"http://127.0.0.1:9\"\n");
    StoreConfig { timeout: Duration::from_secs(10), ..config::load(&Sources::text(text)).unwrap().config.store }
}

fn socket_of(server: &RedisServer) -> String {
    server.dir.path().join("redis.sock").to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_redis_behind_a_socket_keeps_the_contract_with_the_least_rights() {
    let server = RedisServer::start(&SETTINGS);
    let rights = documented("One server:").replacen(">secret", ">s&cr#t", 1);
    let user: Vec<&str> = ["ACL", "SETUSER", "once&proxy"].into_iter().chain(rights.split_whitespace()).collect();
    assert_eq!(server.command(&user), "OK");
    let url = format!("redis+unix://{}?db=3&user=once%26proxy&pass=s%26cr%23t", socket_of(&server));
    keeps_the_contract(&settings(&url, "")).await;
    assert_eq!(denied(&server.command(&["ACL", "LOG"])), Vec::<&str>::new());
    let keyspace = server.command(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db3:") && !keyspace.contains("db0:"), "{keyspace}");
}

#[tokio::test]
async fn a_wrong_password_at_a_socket_is_refused_and_not_shown() {
    let server = RedisServer::start(&SETTINGS);
    server.command(&["CONFIG", "SET", "requirepass", "right"]);
    for login in ["", "?pass=wr0ng"] {
        let config = settings(&format!("unix://{}{login}", socket_of(&server)), "");
        let error = quiet(&config).claim(&claim_in(1)).await.unwrap_err();
        assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
        assert!(error.message.contains("redis.sock") && !error.message.contains("wr0ng"), "{error}");
    }
    let config = settings(&format!("unix://{}?pass=right", socket_of(&server)), "");
    assert_eq!(quiet(&config).claim(&claim_in(1)).await.unwrap(), GRANTED);
}

/// A file that nobody listens behind is what a crash leaves.
#[tokio::test]
async fn a_redis_that_is_gone_from_its_socket_is_away_until_it_is_back() {
    let mut server = RedisServer::start(&SETTINGS);
    let config = settings(&format!("redis+unix://{}", socket_of(&server)), "");
    let process = Process::ready(&config).await;
    assert_eq!(process.store.claim(&claim_in(1)).await.unwrap(), GRANTED);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let reason = until("the store is not ready", async || process.store.ready().err()).await.to_string();
    assert!(reason.contains("redis.sock"), "{reason}");
    let short = StoreConfig { timeout: Duration::from_millis(200), ..config.clone() };
    for is_there in [true, false] {
        assert_eq!(Path::new(&socket_of(&server)).exists(), is_there);
        let error = quiet(&short).claim(&claim_in(2)).await.unwrap_err();
        assert!(error.is_away() && !error.may_have_run, "{error}");
        let _ = std::fs::remove_file(socket_of(&server));
    }
    server.child =
        until("Redis is back", async || redis_server::spawn(server.dir.path(), server.port(), &SETTINGS)).await;
    until("the store is ready again", async || process.store.ready().ok()).await;
    assert_eq!(process.store.claim(&claim_in(3)).await.unwrap(), GRANTED);
}

#[tokio::test]
async fn a_postgres_behind_a_socket_keeps_the_contract() {
    // It makes the socket in the folder of its data.
    let server = PostgresServer::start(&["unix_socket_directories=.", "unix_socket_permissions=0700"]);
    let folder = server.folder().join("data");
    let url = format!("postgres://{ADMIN}@/{DATABASE}?host={}&port={}", folder.display(), server.port());
    let config = settings(&url, "prefix = \"socket\"");
    onceproxy::store::init(&config).await.unwrap();
    postgres::keeps_the_contract(&config).await;
}
