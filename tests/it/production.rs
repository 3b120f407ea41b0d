//! What production does, with the real programs of production: slower than a test should be, so `make test-production` runs
//! them, and not `make test`.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::redis_server::free_port;
use crate::support::proxy::{Ended, Proxy};
use crate::support::{Request, Store, World, eventually, ms};

/// A real nginx as the upstream, which notes the key of each request that it executes.
struct Nginx {
    folder: tempfile::TempDir,
    _process: Ended,
    port: u16,
}

impl Nginx {
    /// Listens as `protocol` says (`http2`, or nothing), with these lines of `http`.
    async fn start(protocol: &str, lines: &str) -> Nginx {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let path = folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {path}/{kind};\n"))
            .concat();
        let settings = format!(
            "daemon off; master_process off; pid {path}/pid; error_log {path}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ {temporary} log_format keys '$http_idempotency_key'; access_log {path}/keys.log keys;\n{lines}\n\
             server {{ listen 127.0.0.1:{port} {protocol}; location / {{ return 201 \"made\"; }} }} }}"
        );
        std::fs::write(folder.path().join("nginx.conf"), settings).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "nginx", "-c"]).arg(folder.path().join("nginx.conf"));
        command.args(["-p"]).arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let child: Child = command.spawn().expect("nginx and setpriv are installed");
        let nginx = Nginx { folder, _process: Ended(child), port };
        let listens = async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop);
        eventually("nginx to listen", listens).await;
        nginx
    }

    /// The keys that it executed, in order; lines are written after the answers.
    fn keys(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.path().join("keys.log")).unwrap();
        log.lines().filter(|key| *key != "-").map(str::to_owned).collect()
    }
}

/// Sends so many requests with keys of their own, each client its share in turn, with pauses in between.
async fn pay_all(world: &World, clients: usize, each: usize, pause: impl Fn(usize) -> Duration) {
    let pause = Arc::new((0..each).map(pause).collect::<Vec<_>>());
    let mut running = JoinSet::new();
    for client in 0..clients {
        let (address, pause) = (world.address(), pause.clone());
        running.spawn(async move {
            for number in 0..each {
                let answer = Request::pay().key(&format!("k-{client}-{number}")).send(address).await;
                answer.assert_executed(201);
                tokio::time::sleep(pause[number]).await;
            }
        });
    }
    while let Some(client) = running.join_next().await {
        client.unwrap();
    }
}

async fn each_was_executed_once(world: &World, nginx: &Nginx, requests: usize) {
    let all = async || {
        let mut keys = nginx.keys();
        (keys.len() >= requests).then(|| {
            keys.sort_unstable();
            keys
        })
    };
    let mut keys = eventually("nginx to have noted all", all).await;
    assert_eq!(keys.len(), requests);
    keys.dedup();
    assert_eq!(keys.len(), requests, "a key was executed twice");
    assert!(world.proxy().open_records("unknown").await.is_empty());
}

#[tokio::test]
#[ignore = "make test-production"]
async fn an_nginx_that_goes_away_every_twenty_requests_holds_no_key() {
    let nginx = Nginx::start("http2", "keepalive_requests 20;").await;
    let route = format!("upstream = \"http://127.0.0.1:{}\"\n upstream_protocol = \"h2\"", nginx.port);
    let world = World::with(Store::redis(), &route).await;
    pay_all(&world, 32, 60, |_| Duration::ZERO).await;
    each_was_executed_once(&world, &nginx, 32 * 60).await;
    assert!(world.proxy().metric("onceproxy_upstream_resends_total", &[]).await > 0.0, "nothing crossed a GOAWAY");
}

#[tokio::test]
#[ignore = "make test-production"]
async fn an_nginx_that_keeps_connections_for_a_second_holds_no_key() {
    let nginx = Nginx::start("", "keepalive_timeout 1s 1s;").await;
    let world = World::with(Store::redis(), &format!("upstream = \"http://127.0.0.1:{}\"", nginx.port)).await;
    // Around the second in which nginx closes them, at which a proxy with four seconds of its own would use them.
    pay_all(&world, 32, 8, |number| ms(960 + 10 * number as u64)).await;
    each_was_executed_once(&world, &nginx, 32 * 8).await;
}

#[tokio::test]
#[ignore = "make test-production"]
async fn an_upstream_whose_name_moves_is_followed_under_steady_traffic() {
    let hosts = tempfile::NamedTempFile::new().unwrap();
    let leads_to = |address: &str| std::fs::write(hosts.path(), format!("{address} moves.test\n")).unwrap();
    leads_to("127.0.0.2");
    let first = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = first.local_addr().unwrap().port();
    let second = TcpListener::bind(("127.0.0.3", port)).await.unwrap();
    let _serving = [tokio::spawn(serve(first, "first")), tokio::spawn(serve(second, "second"))];
    for protocol in ["h1", "h2"] {
        leads_to("127.0.0.2");
        let lines = format!(
            "upstream = \"http://moves.test:{port}\"\n upstream_protocol = \"{protocol}\"\n dns_refresh = \"200ms\""
        );
        let mut world = World::with(Store::memory(), &lines).await;
        // In a mount namespace of its own, in which /etc/hosts is this file.
        let bound = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        let own =
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", bound, &hosts.path().display().to_string()];
        let proxy = Proxy::start_by(&own, world.config()).await;
        world.proxies[0] = proxy;
        world.proxy().ready().await;
        let told = async || world.send(&Request::new("GET", "/")).await.text();
        assert_eq!(told().await, "first");
        leads_to("127.0.0.3");
        eventually("the requests to go where the name leads", async || (told().await == "second").then_some(())).await;
    }
}

/// Answers each request of either protocol with this text, on connections that are kept.
async fn serve(listener: TcpListener, text: &'static str) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut first = [0; 3];
            let _ = stream.peek(&mut first).await;
            if &first == b"PRI" {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let mut body = respond.send_response(http::Response::new(()), false).unwrap();
                    body.send_data(text.into(), true).unwrap();
                }
                return;
            }
            let mut wire = crate::support::wire::Wire::new(stream);
            while let Ok(Some(_)) = wire.head().await {
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
                if wire.socket.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[tokio::test]
#[ignore = "make test-production"]
async fn an_idle_redis_is_asked_little() {
    let world = World::build(Store::redis()).alone().top("threads = 2").start().await;
    // One execution, so that the sweep has had something to do.
    world.pay("k").await.assert_executed(201);
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.redis().command(&["CONFIG", "RESETSTAT"]).await;
    // As long as each core waits between two tries of its connections, twice.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let stats = String::from_utf8(world.redis().command(&["INFO", "stats"]).await).unwrap();
    let commands = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
    let commands: u64 = commands.trim().parse().unwrap();
    assert!(commands < 20 * 20, "{commands} commands in 20 s");
}
