//! The store's contract on each topology, in clear and with TLS under a user who may do no more than docs/stores.md says.

use std::sync::Arc;

use onceproxy::config::store::{Redis, RedisTls, StoreConfig};

use super::{Process, cluster_config, redis_of, sentinel_config};
use crate::contract;
use crate::support::secured::{PASSWORD, Secured, USER};
use crate::support::topologies::{Cluster, Watched};

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

/// The settings of a store on such servers.
fn config_of(secured: &Secured, url: &str) -> StoreConfig {
    let tls = Some(RedisTls { ca_file: Some(secured.ca_file().to_owned()), client: None });
    let (username, password) = (Some(USER.to_owned()), Some(PASSWORD.to_owned().into()));
    let with_login = Redis { tls, username, password, ..redis_of(url) };
    contract::config(onceproxy::config::store::Backend::Redis(with_login))
}

#[tokio::test]
async fn a_cluster_keeps_it_with_tls_and_the_least_rights() {
    let secured = Secured::new("On a cluster:");
    let cluster = Cluster::start_with(&secured.entry).await;
    keeps_the_contract(&config_of(&secured, &cluster.url())).await;
    for node in &cluster.nodes {
        assert_eq!(denied(&node.command(&["ACL", "LOG"])), Vec::<&str>::new());
    }
}

#[tokio::test]
async fn a_master_behind_sentinels_keeps_it_with_tls_and_the_least_rights() {
    let secured = Secured::new("Behind sentinels:");
    let watched = Watched::start_with(&secured.entry).await;
    let mut config = config_of(&secured, &watched.url());
    let onceproxy::config::store::Backend::Redis(redis) = &mut config.backend else { panic!("not Redis") };
    let onceproxy::config::store::Topology::Sentinel(sentinels) = &mut redis.topology else { panic!("no sentinels") };
    sentinels.username = Some(USER.into());
    sentinels.password = Some(PASSWORD.to_owned().into());
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
