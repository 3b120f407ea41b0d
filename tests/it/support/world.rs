//! A world in three lines: an upstream, a store, one proxy or more, and the caller of the cases.
//!
//! The settings are those of the cases unless a scenario says otherwise: preset `api`, lease 2 s, retention 60 s.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use onceproxy::config::store::{Backend, Postgres, SslMode, StoreConfig};

use super::client::{Answer, Pending, Request};
use super::eventually;
use super::proxy::Proxy;
use super::redis::RedisServer;
use super::relay::Relay;
use super::secured::{PASSWORD, Secured, USER};
use super::topologies::{Cluster, Node, Watched};
use super::upstream::Upstream;
use crate::contract;
use crate::postgres_server::{ADMIN, DATABASE, PgBouncer, PostgresServer, fresh_schema};

/// Which store a scenario runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Memory,
    Disk,
    Redis,
    /// Six nodes.
    Cluster,
    /// A master, two replicas, three sentinels.
    Sentinel,
    /// A server of its own.
    Postgres,
    /// A schema of its own, on the server that all scenarios share.
    PostgresSchema,
    /// Redis, and such a schema as its second line.
    SecondLine,
}

impl Store {
    pub(crate) fn memory() -> Store {
        Store::Memory
    }

    pub(crate) fn disk() -> Store {
        Store::Disk
    }

    pub(crate) fn redis() -> Store {
        Store::Redis
    }

    pub(crate) fn cluster() -> Store {
        Store::Cluster
    }

    pub(crate) fn sentinel() -> Store {
        Store::Sentinel
    }

    pub(crate) fn postgres() -> Store {
        Store::PostgresSchema
    }

    pub(crate) fn second_line() -> Store {
        Store::SecondLine
    }

    /// The line of docs/stores.md under which the least rights on it stand.
    fn rights(self) -> &'static str {
        match self {
            Store::Cluster => "On a cluster:",
            Store::Sentinel => "Behind sentinels:",
            _ => "One server:",
        }
    }

    /// A part of the message by which a claim reaches the server, and no other message does.
    pub(crate) fn claims_by(self) -> &'static str {
        match self {
            Store::Postgres | Store::PostgresSchema => "granted AS (",
            _ => ":r:",
        }
    }
}

/// Settings as `key = value` lines, in which a later line replaces an earlier one of the same key.
#[derive(Clone, Debug, Default)]
struct Lines(Vec<(String, String)>);

impl Lines {
    fn set(&mut self, lines: &str) {
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("not a setting: {line}"));
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            match self.0.iter_mut().find(|(known, _)| *known == key) {
                Some(known) => known.1 = value,
                None => self.0.push((key, value)),
            }
        }
    }

    fn text(&self) -> String {
        self.0.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
    }
}

/// What a world will be like.
pub(crate) struct Builder {
    store: Store,
    top: Lines,
    store_lines: Lines,
    route: Lines,
    log: String,
    more: String,
    proxies: usize,
    relayed: bool,
    second_line: bool,
    relayed_each: bool,
    secured: bool,
    pooled: bool,
    cold: bool,
    upstream_closed: bool,
    at: Option<String>,
    redis: &'static [&'static str],
}

impl Builder {
    /// Settings of the route `pay`, one a line.
    pub(crate) fn route(mut self, lines: &str) -> Builder {
        self.route.set(lines);
        self
    }

    /// Settings of `[store]`.
    pub(crate) fn store(mut self, lines: &str) -> Builder {
        self.store_lines.set(lines);
        self
    }

    /// With a store of the test's own, under this URL; the world's is a memory store then.
    pub(crate) fn store_at(mut self, url: String) -> Builder {
        self.at = Some(url);
        self
    }

    /// Settings above the sections.
    pub(crate) fn top(mut self, lines: &str) -> Builder {
        self.top.set(lines);
        self
    }

    /// Another section `[log]`; its format must stay `json`, which the start is read from.
    pub(crate) fn log(mut self, section: &str) -> Builder {
        self.log = section.to_owned();
        self
    }

    /// Further sections. In all settings `UPSTREAM` stands for the upstream's URL, `AUTHORITY` for its `host:port`.
    pub(crate) fn more(mut self, toml: &str) -> Builder {
        self.more.push_str(toml);
        self
    }

    /// With proxies that have just opened their ports, and may not have reached their store yet.
    pub(crate) fn cold(mut self) -> Builder {
        self.cold = true;
        self
    }

    /// How many proxies share the store.
    pub(crate) fn proxies(mut self, count: usize) -> Builder {
        self.proxies = count;
        self
    }

    /// With a server that no other scenario uses, so that this one may stop it.
    pub(crate) fn alone(mut self) -> Builder {
        if self.store == Store::PostgresSchema {
            self.store = Store::Postgres;
        }
        self
    }

    /// The same, but where there are several servers with data each has a relay of its own, which other servers come by
    /// as well.
    pub(crate) fn relayed_each(mut self) -> Builder {
        self.relayed_each = matches!(self.store, Store::Cluster | Store::Sentinel);
        self.relayed = !self.relayed_each;
        self
    }

    /// With a relay between the proxies and Redis, each node of a cluster, or Postgres.
    pub(crate) fn relayed(mut self) -> Builder {
        self.relayed = true;
        self
    }

    /// With these arguments of the Redis server.
    pub(crate) fn redis(mut self, settings: &'static [&'static str]) -> Builder {
        self.redis = settings;
        self
    }

    /// With a Postgres of its own as second line.
    pub(crate) fn second_line(mut self) -> Builder {
        self.second_line = true;
        self
    }

    /// Redis with TLS, and a user who may do no more than the documents say.
    pub(crate) fn secured(mut self) -> Builder {
        self.secured = true;
        self
    }

    /// Postgres through PgBouncer in transaction mode.
    pub(crate) fn pooled(mut self) -> Builder {
        self.pooled = true;
        self
    }

    /// With an upstream that refuses connections until it is opened.
    pub(crate) fn upstream_closed(mut self) -> Builder {
        self.upstream_closed = true;
        self
    }

    /// Builds it.
    pub(crate) async fn start(self) -> World {
        let folder = tempfile::tempdir().unwrap();
        let upstream = if self.upstream_closed { Upstream::closed() } else { Upstream::start() };
        let secured = self.secured.then(|| Secured::new(self.store.rights()));
        let mut entry = secured.as_ref().map(|secured| secured.entry.clone()).unwrap_or_default();
        if self.relayed_each {
            entry = entry.relayed();
        }
        let (mut redis, mut cluster, mut watched) = (None, None, None);
        match self.store {
            Store::Memory | Store::Disk | Store::Postgres | Store::PostgresSchema => {}
            Store::Redis | Store::SecondLine => {
                let entry = Some(&entry).filter(|_| self.secured);
                redis = Some(RedisServer::start_with(self.redis, entry).await);
            }
            Store::Cluster => cluster = Some(Cluster::start_with(&entry).await),
            Store::Sentinel => watched = Some(Watched::start_with(&entry).await),
        }
        let has_postgres = self.store == Store::Postgres || self.second_line;
        let postgres = has_postgres.then(|| PostgresServer::start(&[]));
        if let Some(postgres) = &postgres {
            onceproxy::store::init(&settings_of(postgres)).await.unwrap();
        }
        // A server that was away is tried again soon: by default only after 15 s.
        let pooler = postgres
            .as_ref()
            .filter(|_| self.pooled)
            .map(|postgres| PgBouncer::before(postgres, "server_login_retry = 1"));
        let shares_postgres = matches!(self.store, Store::PostgresSchema | Store::SecondLine);
        let schema = shares_postgres.then(fresh_schema);
        if let Some(schema) = &schema {
            let settings = StoreConfig { prefix: schema.clone(), ..settings_of(PostgresServer::shared()) };
            onceproxy::store::init(&settings).await.unwrap();
        }
        let server = match self.store {
            Store::Postgres if self.pooled => pooler.as_ref().map(PgBouncer::address),
            Store::Postgres => postgres.as_ref().map(PostgresServer::address),
            Store::PostgresSchema => Some(PostgresServer::shared().address()),
            _ => redis.as_ref().map(|redis| redis.reached),
        };
        let relay = match (server, &cluster) {
            (Some(server), _) if self.relayed => Some(Relay::before(server)),
            (None, Some(cluster)) if self.relayed => Some(before_nodes(cluster).await),
            _ => None,
        };
        let server = relay.as_ref().map(|relay| relay.address).or(server);
        let mut url = match self.store {
            Store::Memory => "memory:".to_owned(),
            Store::Disk => format!("disk:{}", folder.path().join("data").display()),
            Store::Redis | Store::SecondLine => format!("redis://{}", server.unwrap()),
            Store::Postgres | Store::PostgresSchema => format!("postgres://{ADMIN}@{}/{DATABASE}", server.unwrap()),
            Store::Cluster if relay.is_some() => format!("redis+cluster://{}", server.unwrap()),
            Store::Cluster => cluster.as_ref().map(Cluster::url).unwrap(),
            Store::Sentinel => watched.as_ref().map(Watched::url).unwrap(),
        };
        if secured.is_some() {
            url = url.replacen("redis", "rediss", 1).replacen("://", &format!("://{USER}:{PASSWORD}@"), 1);
        }
        if let Some(at) = &self.at {
            url.clone_from(at);
        }
        let mut world = World {
            proxies: Vec::new(),
            relay,
            pooler,
            redis,
            cluster,
            watched,
            postgres,
            schema,
            upstream,
            config: folder.path().join("onceproxy.toml"),
            folder,
            secured,
            settings: self,
        };
        world.settings.store_lines.set(&format!("url = \"{url}\""));
        if let Some(secured) = &world.secured {
            world.settings.store_lines.set(&format!("ca_file = {:?}", secured.ca_file()));
            if world.settings.store == Store::Sentinel {
                let login = format!("sentinel_username = \"{USER}\"\nsentinel_password = \"{PASSWORD}\"");
                world.settings.store_lines.set(&login);
            }
        }
        if let Some(schema) = &world.schema {
            world.settings.store_lines.set(&format!("prefix = \"{schema}\""));
        }
        let second = match world.settings.store {
            Store::SecondLine => Some(PostgresServer::shared()),
            _ => world.postgres.as_ref().filter(|_| world.settings.second_line),
        };
        if let Some(postgres) = second {
            let url = format!("postgres://{ADMIN}@{}/{DATABASE}", postgres.address());
            world.settings.more.push_str(&format!("[second_line]\nurl = \"{url}\"\n"));
        }
        world.write_settings();
        for _ in 0..world.settings.proxies {
            world.proxies.push(Proxy::start(&world.config).await);
        }
        for proxy in world.proxies.iter().filter(|_| !world.settings.cold) {
            proxy.ready().await;
        }
        world
    }
}

/// Everything a scenario needs. Fields are dropped in this order: who uses a thing goes before the thing.
pub(crate) struct World {
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) relay: Option<Relay>,
    pub(crate) pooler: Option<PgBouncer>,
    pub(crate) redis: Option<RedisServer>,
    cluster: Option<Cluster>,
    watched: Option<Watched>,
    pub(crate) postgres: Option<PostgresServer>,
    schema: Option<String>,
    pub(crate) upstream: Upstream,
    config: PathBuf,
    folder: tempfile::TempDir,
    secured: Option<Secured>,
    settings: Builder,
}

impl World {
    /// The world of the cases on this store.
    pub(crate) async fn new(store: Store) -> World {
        World::build(store).start().await
    }

    /// The same with these settings of the route.
    pub(crate) async fn with(store: Store, route: &str) -> World {
        World::build(store).route(route).start().await
    }

    /// The same, to be changed before it starts.
    pub(crate) fn build(store: Store) -> Builder {
        let builder = Builder {
            store,
            top: Lines::default(),
            store_lines: Lines::default(),
            route: Lines::default(),
            log: "[log]\nformat = \"json\"\n".to_owned(),
            more: String::new(),
            proxies: 1,
            relayed: false,
            second_line: false,
            relayed_each: false,
            secured: false,
            pooled: false,
            cold: false,
            upstream_closed: false,
            at: None,
            redis: &[],
        };
        builder
            .top("listen = \"127.0.0.1:0\"\n drain_timeout = \"10s\"")
            // Far longer than a healthy store takes, so that a loaded machine is not mistaken for a broken store.
            .store("timeout = \"5s\"")
            .route("name = \"pay\"\n path = \"/\"\n upstream = \"UPSTREAM\"\n preset = \"api\"")
            .route("lease = \"2s\"\n retention = \"60s\"")
    }

    /// The first proxy.
    pub(crate) fn proxy(&self) -> &Proxy {
        &self.proxies[0]
    }

    /// Where clients connect to the first proxy.
    pub(crate) fn address(&self) -> SocketAddr {
        self.proxy().address
    }

    /// The request of the cases with this key, answered.
    pub(crate) async fn pay(&self, key: &str) -> Answer {
        self.send(&Request::pay().key(key)).await
    }

    /// The same, under way.
    pub(crate) fn begin_pay(&self, key: &str) -> Pending {
        Request::pay().key(key).begin(self.address())
    }

    /// Any request to the first proxy.
    pub(crate) async fn send(&self, request: &Request) -> Answer {
        request.send(self.address()).await
    }

    /// How many requests the upstream executed.
    pub(crate) fn executions(&self) -> usize {
        self.upstream.executions()
    }

    /// The Redis of this world.
    pub(crate) fn redis(&self) -> &RedisServer {
        self.redis.as_ref().expect("a world on Redis")
    }

    /// The cluster of this world.
    pub(crate) fn cluster(&mut self) -> &mut Cluster {
        self.cluster.as_mut().expect("a world on a cluster")
    }

    /// The master, replicas and sentinels of this world.
    pub(crate) fn watched(&mut self) -> &mut Watched {
        self.watched.as_mut().expect("a world with sentinels")
    }

    /// The same, if this is such a world.
    pub(crate) fn cluster_ref(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// The same, if this is such a world.
    pub(crate) fn watched_ref(&self) -> Option<&Watched> {
        self.watched.as_ref()
    }

    /// Ends the store's server as a crash would: whoever connects to it is refused.
    pub(crate) fn stop_store(&mut self) {
        match (&mut self.redis, &mut self.postgres) {
            (Some(redis), _) => redis.kill(),
            (None, Some(postgres)) => postgres.kill(),
            (None, None) => panic!("a world with a server of its own"),
        }
    }

    /// Starts it again on the same port; Redis has forgotten everything.
    pub(crate) async fn start_store(&mut self) {
        match (&mut self.redis, &mut self.postgres) {
            (Some(redis), _) => redis.restart().await,
            (None, Some(postgres)) => postgres.restart(),
            (None, None) => panic!("a world with a server of its own"),
        }
    }

    /// The store's server goes on holding its connections, and answers nothing.
    pub(crate) fn pause_store(&self) {
        match (&self.redis, &self.postgres) {
            (Some(redis), _) => redis.pause(),
            (None, Some(postgres)) => postgres.pause(),
            (None, None) => panic!("a world with a server of its own"),
        }
    }

    /// It goes on.
    pub(crate) fn resume_store(&self) {
        match (&self.redis, &self.postgres) {
            (Some(redis), _) => redis.resume(),
            (None, Some(postgres)) => postgres.resume(),
            (None, None) => panic!("a world with a server of its own"),
        }
    }

    /// The store loses every record, as a server that came back empty.
    pub(crate) async fn forget_everything(&self) {
        match self.settings.store {
            Store::PostgresSchema => drop(self.sql("DELETE FROM SCHEMA.records")),
            _ => drop(self.redis().command(&["FLUSHALL"]).await),
        }
    }

    /// How many records are open, by the store's own account. What a proxy tries at its start is over by then.
    pub(crate) async fn open_in_store(&self) -> usize {
        let counted = match self.settings.store {
            Store::PostgresSchema => self.sql("SELECT count(*) FROM SCHEMA.records WHERE state IN (1, 2)"),
            _ => {
                let count = "local n = 0 for _, key in ipairs(redis.call('KEYS', '*:open')) do \
                             n = n + redis.call('ZCARD', key) end return tostring(n)";
                let reply = self.redis().command(&["EVAL", count, "0"]).await;
                let digits = reply.rsplit(|byte| *byte == b'$').next().unwrap_or_default();
                let digits = String::from_utf8_lossy(digits);
                digits.lines().last().expect("a number").to_owned()
            }
        };
        counted.trim().parse().expect("a number")
    }

    /// The answer of this world's schema, which `SCHEMA` stands for.
    fn sql(&self, statement: &str) -> String {
        let schema = self.schema.as_ref().expect("a world with a schema");
        PostgresServer::shared().sql(&statement.replace("SCHEMA", &format!("\"{schema}\"")))
    }

    /// The relay before the store.
    pub(crate) fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("a relayed world")
    }

    /// All relays: that one, or those before each server.
    pub(crate) fn relays(&self) -> impl Iterator<Item = &Relay> {
        self.relay.iter().chain(self.nodes().iter().filter_map(|node| node.relay.as_ref()))
    }

    /// The servers of the cluster, or those that the sentinels watch; none where there is one Redis or none.
    pub(crate) fn nodes(&self) -> &[Node] {
        match (&self.cluster, &self.watched) {
            (Some(cluster), _) => &cluster.nodes,
            (_, Some(watched)) => &watched.servers,
            _ => &[],
        }
    }

    /// Asks every Redis of this world, the replicas too.
    pub(crate) async fn tell_every_redis(&self, words: &[&str]) {
        if let Some(redis) = &self.redis {
            redis.command(words).await;
        }
        self.nodes().iter().for_each(|node| drop(node.command(words)));
    }

    /// Whether a Postgres stands behind Redis.
    pub(crate) fn has_second_line(&self) -> bool {
        self.settings.second_line
    }

    /// Whether the proxies talk to Redis by TLS.
    pub(crate) fn is_secured(&self) -> bool {
        self.secured.is_some()
    }

    /// The settings' file.
    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// Changes the route's settings. The file is written: a running proxy sees it, or a restart.
    pub(crate) fn change_route(&mut self, lines: &str) {
        self.settings.route.set(lines);
        self.write_settings();
    }

    /// Changes the settings above the sections.
    pub(crate) fn change_top(&mut self, lines: &str) {
        self.settings.top.set(lines);
        self.write_settings();
    }

    /// Puts another section `[log]` in the place of the one there is.
    pub(crate) fn change_log(&mut self, section: &str) {
        self.settings.log = section.to_owned();
        self.write_settings();
    }

    /// Puts other sections in the place of those that `more` gave.
    pub(crate) fn change_more(&mut self, toml: &str) {
        self.settings.more = toml.to_owned();
        self.write_settings();
    }

    /// Kills the first proxy if it runs and starts it on the same store.
    pub(crate) async fn restart(&mut self) {
        self.proxies[0].restart().await;
    }

    /// Starts one more proxy with the same settings, and does not wait until it is ready.
    pub(crate) async fn add_proxy(&mut self) {
        self.proxies.push(Proxy::start(&self.config).await);
    }

    /// Every byte that the store keeps outside of the proxy.
    pub(crate) async fn stored_bytes(&self) -> Vec<u8> {
        match self.settings.store {
            Store::Memory => Vec::new(),
            Store::Redis => self.redis().dump().await,
            Store::PostgresSchema => self.table_bytes(),
            Store::SecondLine => [self.redis().dump().await, self.table_bytes()].concat(),
            Store::Cluster | Store::Sentinel | Store::Postgres => panic!("not asked for so far"),
            Store::Disk => {
                let mut all = Vec::new();
                for entry in std::fs::read_dir(self.folder.path().join("data")).unwrap() {
                    let path = entry.unwrap().path();
                    if path.is_file() {
                        all.extend(std::fs::read(path).unwrap());
                    }
                }
                all
            }
        }
    }

    /// Every column of every record, with bytes that are text as that text.
    fn table_bytes(&self) -> Vec<u8> {
        self.sql("SET bytea_output = 'escape'; SELECT * FROM SCHEMA.records").into_bytes()
    }

    fn write_settings(&self) {
        let settings = &self.settings;
        let text = format!(
            "{}\n[admin]\nlisten = \"127.0.0.1:0\"\n{}\n[store]\n{}\n[[route]]\n{}\n{}",
            settings.top.text(),
            settings.log,
            settings.store_lines.text(),
            settings.route.text(),
            settings.more
        );
        let authority = self.upstream.address.to_string();
        let text = text.replace("UPSTREAM", "http://AUTHORITY").replace("AUTHORITY", &authority);
        std::fs::write(&self.config, text).unwrap();
    }
}

/// A relay before each node, under whose address the cluster sends whoever asks for it.
async fn before_nodes(cluster: &Cluster) -> Relay {
    let relay = Relay::before_each(cluster.nodes.iter().map(|node| ([127, 0, 0, 1], node.port).into()));
    let ports: Vec<String> = relay.addresses.iter().map(|address| address.port().to_string()).collect();
    for (node, port) in cluster.nodes.iter().zip(&ports) {
        assert_eq!(node.command(&["CONFIG", "SET", "cluster-announce-port", port]), "OK");
    }
    eventually("every node to send to the relays", async || {
        let knows = |seen: &str| ports.iter().all(|port| seen.contains(&format!(":{port}@")));
        let all = cluster.nodes.iter().all(|node| knows(&node.command(&["CLUSTER", "NODES"])));
        (all && cluster.is_whole()).then_some(())
    })
    .await;
    relay
}

/// The settings of a store on this server, as the proxies have them.
fn settings_of(postgres: &PostgresServer) -> StoreConfig {
    contract::config(Backend::Postgres(Postgres {
        host: "127.0.0.1".into(),
        port: postgres.port(),
        database: DATABASE.into(),
        user: ADMIN.into(),
        password: None,
        sslmode: SslMode::Disable,
        ca_file: None,
        client: None,
    }))
}
