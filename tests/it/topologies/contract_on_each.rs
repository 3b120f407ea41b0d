//! The store's contract on each topology, in clear and with TLS under a user who may do no more than docs/stores.md says.

use std::sync::Arc;

use onceproxy::config::store::{Redis, RedisTls, StoreConfig};

use super::{Process, cluster_config, redis_of, sentinel_config};
use crate::contract;
use crate::support::tls::Authority;
use crate::support::topologies::{Cluster, Entry, Watched};

/// The suite through two processes, and the sweep when one of them is gone.
pub(super) async fn keeps_the_contract(config: &StoreConfig) {
    let (one, two) = (Process::ready(config).await, Process::ready(config).await);
    let handles = std::cell::Cell::new(0);
    contract::suite(|| {
        handles.set(handles.get() + 1);
        if handles.get() % 2 == 0 { one.store.for_core() } else { Arc::clone(&two.store) }
    })
    .await;
    drop(two);
    contract::sweep(&*one.store, &one.metrics).await;
}

#[tokio::test]
async fn a_cluster_keeps_the_contract() {
    let cluster = Cluster::start().await;
    keeps_the_contract(&cluster_config(&cluster)).await;
    assert_eq!(cluster.errors("CROSSSLOT"), 0);
}

#[tokio::test]
async fn a_master_behind_sentinels_keeps_the_contract() {
    let watched = Watched::start().await;
    keeps_the_contract(&sentinel_config(&watched)).await;
}

/// What docs/stores.md shows in the block that begins with this line, without the user's name and password.
pub(super) fn documented(first: &str) -> String {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/stores.md")).unwrap();
    let rights = docs
        .lines()
        .skip_while(|line| *line != first)
        .find_map(|line| line.strip_prefix("ACL SETUSER onceproxy on >PASSWORD "));
    format!("on >secret {}", rights.unwrap_or_else(|| panic!("no ACL under {first:?}")))
}

struct Secured {
    entry: Entry,
    authority: Authority,
    _folder: tempfile::TempDir,
}

impl Secured {
    fn new(rights: &str) -> Secured {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        authority.write("127.0.0.1", folder.path());
        let text = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let ca = authority.file().to_str().unwrap();
        let entry = Entry::tls(&text("cert.pem"), &text("key.pem"), ca);
        let entry = entry.user(rights, &documented("At the sentinels:"));
        Secured { entry, authority, _folder: folder }
    }

    fn config(&self, url: &str) -> StoreConfig {
        let tls = Some(RedisTls { ca_file: Some(self.authority.file().to_owned()), client: None });
        let with_login = Redis {
            tls,
            username: Some("onceproxy".into()),
            password: Some("secret".to_owned().into()),
            ..redis_of(url)
        };
        contract::config(onceproxy::config::store::Backend::Redis(with_login))
    }
}

#[tokio::test]
async fn a_cluster_keeps_it_with_tls_and_the_least_rights() {
    let secured = Secured::new(&documented("On a cluster:"));
    let cluster = Cluster::start_with(&secured.entry).await;
    keeps_the_contract(&secured.config(&cluster.url())).await;
    for node in &cluster.nodes {
        assert_eq!(denied(&node.command(&["ACL", "LOG"])), Vec::<&str>::new());
    }
}

#[tokio::test]
async fn a_master_behind_sentinels_keeps_it_with_tls_and_the_least_rights() {
    let secured = Secured::new(&documented("Behind sentinels:"));
    let watched = Watched::start_with(&secured.entry).await;
    let mut config = secured.config(&watched.url());
    let onceproxy::config::store::Backend::Redis(redis) = &mut config.backend else { panic!("not Redis") };
    let onceproxy::config::store::Topology::Sentinel(sentinels) = &mut redis.topology else { panic!("no sentinels") };
    sentinels.username = Some("onceproxy".into());
    sentinels.password = Some("secret".to_owned().into());
    keeps_the_contract(&config).await;
    for node in watched.servers.iter().chain(&watched.sentinels) {
        assert_eq!(denied(&node.command(&["ACL", "LOG"])), Vec::<&str>::new());
    }
}

/// The commands that the user was denied, besides CONFIG, which only says more for the log.
pub(super) fn denied(log: &str) -> Vec<&str> {
    let lines: Vec<&str> = log.lines().collect();
    let objects = lines.windows(2).filter(|pair| pair[0] == "object").map(|pair| pair[1]);
    objects.filter(|object| !object.starts_with("config")).collect()
}
