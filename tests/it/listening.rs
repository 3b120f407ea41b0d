//! The ways in: TLS, HTTP/2 and Unix sockets on the real binary, as curl and an attacker use them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::tls::Authority;
use crate::support::{Script, Step, Store, World, eventually};

/// A world that listens on an address with TLS, on one without, and on a Unix socket.
struct Doors {
    world: World,
    authority: Authority,
    folder: tempfile::TempDir,
}

impl Doors {
    async fn open() -> Doors {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        authority.write("127.0.0.1", folder.path());
        let [cert, key, socket] = ["cert.pem", "key.pem", "proxy.sock"].map(|name| folder.path().join(name));
        let places = ["127.0.0.1:0".to_owned(), "http://127.0.0.1:0".to_owned(), format!("unix:{}", socket.display())];
        let world = World::build(Store::Memory)
            .top(&format!("listen = {places:?}\n h2c = true"))
            .more(&format!("[tls]\ncert_file = {cert:?}\nkey_file = {key:?}\n"))
            .start()
            .await;
        Doors { world, authority, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("proxy.sock")
    }

    /// The address on which TLS is spoken, or the other one.
    async fn address(&self, tls: bool) -> String {
        address(&self.world, tls).await
    }

    /// Runs curl in one of the ways in; its output begins with the version of HTTP that it spoke.
    async fn curl(&self, way: Way, path: &str, more: &[&str]) -> String {
        let ca = self.authority.file().to_str().unwrap().to_owned();
        let socket = self.socket().to_str().unwrap().to_owned();
        let (secure, plain) = (format!("https://{}{path}", self.address(true).await), self.address(false).await);
        let plain = format!("http://{plain}{path}");
        let args: Vec<&str> = match way {
            Way::Tls1 => vec!["--http1.1", "--cacert", &ca, &secure],
            Way::Tls2 => vec!["--http2", "--cacert", &ca, &secure],
            Way::Plain1 => vec!["--http1.1", &plain],
            Way::Plain2 => vec!["--http2-prior-knowledge", &plain],
            Way::Unix1 => vec!["--http1.1", "--unix-socket", &socket, &plain],
            Way::Unix2 => vec!["--http2-prior-knowledge", "--unix-socket", &socket, &plain],
        };
        let output = curl(&[&args[..], more].concat()).await;
        assert!(output.status.success(), "{way:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Where a world listens with TLS, or without.
async fn address(world: &World, tls: bool) -> String {
    let find = async || {
        world.proxy().log().iter().find_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            let line = line.get("fields").unwrap_or(&line);
            let address = line["address"].as_str().filter(|address| !address.starts_with("unix:"))?;
            (line["listener"] == "proxy" && line["tls"] == tls).then(|| address.to_owned())
        })
    };
    eventually("a listener", find).await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tls1,
    Tls2,
    Plain1,
    Plain2,
    Unix1,
    Unix2,
}

const WAYS: [Way; 6] = [Way::Tls1, Way::Tls2, Way::Plain1, Way::Plain2, Way::Unix1, Way::Unix2];

impl Way {
    fn is_2(self) -> bool {
        matches!(self, Way::Tls2 | Way::Plain2 | Way::Unix2)
    }
}

async fn curl(args: &[&str]) -> Output {
    let mut command = tokio::process::Command::new("curl");
    command.args(["--silent", "--show-error", "--include", "--noproxy", "*", "--max-time", "20"]).args(args);
    command.kill_on_drop(true).output().await.unwrap()
}

/// One request. The host counts, so it names the same one through every door.
const PAY: [&str; 8] =
    ["--data", "amount=1", "-H", "Idempotency-Key: k-1", "-H", "Authorization: me", "-H", "Host: shop.example"];

#[tokio::test]
async fn a_key_is_the_same_whichever_way_it_comes_in() {
    let doors = Doors::open().await;
    let mut answers = Vec::new();
    for way in WAYS {
        let answer = doors.curl(way, "/pay", &PAY).await;
        let version = if way.is_2() { "HTTP/2 201" } else { "HTTP/1.1 201 " };
        assert!(answer.starts_with(version), "{way:?}: {answer}");
        assert_eq!(answer.contains("idempotent-replayed: true"), way != Way::Tls1, "{way:?}: {answer}");
        answers.push(answer.split_once("\r\n\r\n").unwrap().1.to_owned());
    }
    assert_eq!(doors.world.executions(), 1);
    assert!(answers.iter().all(|body| *body == answers[0] && !body.is_empty()), "{answers:?}");
}

#[tokio::test]
async fn the_upstream_is_told_how_the_request_came() {
    let doors = Doors::open().await;
    for way in WAYS {
        doors.curl(way, "/x", &["-H", "Host: shop.example"]).await;
        let seen = doors.world.upstream.last();
        let secure = matches!(way, Way::Tls1 | Way::Tls2);
        let (proto, version) = (if secure { "https" } else { "http" }, if way.is_2() { "2" } else { "1.1" });
        let node = if matches!(way, Way::Unix1 | Way::Unix2) { "unknown" } else { "127.0.0.1" };
        assert_eq!(seen.field("X-Forwarded-Proto").as_deref(), Some(proto), "{way:?}");
        assert_eq!(seen.field("X-Forwarded-For").as_deref(), Some(node), "{way:?}");
        let forwarded = format!("for={node};proto={proto};host=\"shop.example\"");
        assert_eq!(seen.field("Forwarded").as_deref(), Some(forwarded.as_str()), "{way:?}");
        assert_eq!(seen.field("Via").as_deref(), Some(format!("{version} onceproxy").as_str()), "{way:?}");
        assert_eq!((seen.field("Host").as_deref(), seen.target.as_str()), (Some("shop.example"), "/x"), "{way:?}");
        assert!(seen.head.starts_with(b"GET /x HTTP/1.1\r\n"));
    }
}

#[tokio::test]
async fn trailers_arrive_and_fields_of_the_connection_do_not() {
    let doors = Doors::open().await;
    let answer =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\
                   Keep-Alive: timeout=5\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n";
    for more in [&[][..], &PAY, &PAY] {
        doors.world.upstream.next(Script(vec![Step::Bytes(answer.to_vec())]));
        for way in [Way::Tls2, Way::Plain2] {
            let answer = doors.curl(way, "/x", more).await.to_lowercase();
            if answer.starts_with("http/2 200") {
                assert!(answer.contains("abc") && answer.contains("x-sum: 6"), "{way:?}: {answer}");
                assert!(!answer.contains("x-hop") && !answer.contains("keep-alive"), "{way:?}: {answer}");
            } else {
                // The upstream's own answer, to the second way of a request without a key.
                assert!(more.is_empty() && answer.starts_with("http/2 201"), "{way:?}: {answer}");
            }
        }
    }
}

#[tokio::test]
async fn a_large_upload_and_a_large_answer_pass_through() {
    let doors = Doors::open().await;
    let file = doors.folder.path().join("upload");
    std::fs::write(&file, vec![b'x'; 6 << 20]).unwrap();
    let data = format!("@{}", file.display());
    for way in [Way::Tls1, Way::Tls2, Way::Plain2, Way::Unix2] {
        doors.world.upstream.next(crate::support::reply(200).body(vec![b'y'; 6 << 20]));
        let answer = doors.curl(way, "/up", &["-X", "PUT", "--data-binary", &data]).await;
        // The last, since HTTP/1.1 begins with a 100 here.
        assert_eq!(answer.rsplit_once("\r\n\r\n").unwrap().1.len(), 6 << 20, "{way:?}");
        assert_eq!(doors.world.upstream.last().body.len(), 6 << 20, "{way:?}");
    }
}

#[tokio::test]
async fn a_replaced_certificate_is_served_without_a_restart() {
    let doors = Doors::open().await;
    let other = Authority::new();
    let url = format!("https://{}/", doors.address(true).await);
    let trusted = async |ca: &Path| curl(&["--cacert", ca.to_str().unwrap(), &url]).await.status.success();
    assert!(trusted(doors.authority.file()).await && !trusted(other.file()).await);
    std::fs::write(doors.folder.path().join("cert.pem"), "no certificate").unwrap();
    let metric = async |name: &str| doors.world.proxy().metric(name, &[]).await;
    eventually("the bad certificate to be counted", async || {
        (metric("onceproxy_certificate_reload_failures_total").await == 1.0).then_some(())
    })
    .await;
    assert!(trusted(doors.authority.file()).await);
    other.write("127.0.0.1", doors.folder.path());
    eventually("the new certificate", async || trusted(other.file()).await.then_some(())).await;
    assert_eq!(metric("onceproxy_certificate_reloads_total").await, 1.0);
}

/// The scope `client-cert`: the name in a certificate separates callers, and outlives the certificate.
#[tokio::test]
async fn a_clients_certificate_says_whose_key_it_is() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.write("127.0.0.1", folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let ca = authority.file().display();
    let tls = format!(
        "[tls]\ncert_file = {:?}\nkey_file = {:?}\nclient_ca_file = \"{ca}\"\n",
        file("cert.pem"),
        file("key.pem")
    );
    let world = World::build(Store::Memory)
        .top("listen = [\"127.0.0.1:0\", \"http://127.0.0.1:0\"]")
        .route("scope = [\"client-cert\"]")
        .more(&tls)
        .start()
        .await;
    let clients = tempfile::tempdir().unwrap();
    let (cert, key) = (clients.path().join("cert.pem"), clients.path().join("key.pem"));
    let (secure, plain) = (
        format!("https://{}/pay", address(&world, true).await),
        format!("http://{}/pay", address(&world, false).await),
    );
    let ca = authority.file().to_str().unwrap();
    let shown = ["--cacert", ca, "--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let replayed = async |more: &[&str]| {
        let output = curl(&[more, &PAY].concat()).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().contains("idempotent-replayed: true")
    };
    let secured = |version| [&shown[..], &[version, secure.as_str()]].concat();

    for (subject, uri) in
        [("worker", None), ("other", None), ("worker", Some("spiffe://a/x")), ("worker", Some("spiffe://a/y"))]
    {
        authority.write_client(subject, uri, clients.path());
        assert!(!replayed(&secured("--http1.1")).await, "{subject} {uri:?}");
        assert!(replayed(&secured("--http2")).await, "{subject} {uri:?}");
        // Renewed, with another key.
        authority.write_client(subject, uri, clients.path());
        assert!(replayed(&secured("--http1.1")).await, "{subject} {uri:?}");
    }
    // No certificate is a caller as well, and no other's.
    assert!(!replayed(&[&plain]).await);
    assert!(replayed(&[&plain]).await);
    assert_eq!(world.executions(), 5);
}

#[tokio::test]
async fn a_crash_leaves_a_socket_that_is_replaced_and_a_stop_leaves_none() {
    let mut doors = Doors::open().await;
    doors.world.proxies[0].kill();
    assert!(doors.socket().exists());
    doors.world.restart().await;
    assert!(doors.curl(Way::Unix1, "/", &[]).await.starts_with("HTTP/1.1 201 "));
    let second = start_with(&format!("unix:{}", doors.socket().display()), "");
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert!(
        String::from_utf8_lossy(&second.stderr)
            .contains("another process is listening there; stop it, or choose another path"),
        "{second:?}"
    );
    assert!(doors.curl(Way::Unix1, "/", &[]).await.starts_with("HTTP/1.1 201 "));
    doors.world.proxy().terminate();
    assert!(doors.world.proxies[0].ended().await.success());
    assert!(!doors.socket().exists());
}

/// Runs `serve`, which is to end by itself.
fn start_with(listen: &str, more: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onceproxy.toml");
    let route = "[[route]]\nname = \"r\"\nupstream = \"http://127.0.0.1:1\"\n";
    let store = "[store]\nurl = \"memory:\"\n[admin]\nlisten = \"off\"\n";
    std::fs::write(&file, format!("listen = {listen:?}\n{store}{more}{route}")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_onceproxy")).args(["serve", "--config"]).arg(file).output().unwrap()
}

#[test]
fn a_certificate_that_cannot_be_used_is_a_wrong_setting() {
    let tls = "[tls]\ncert_file = \"/nowhere/cert.pem\"\nkey_file = \"/nowhere/key.pem\"\n";
    let output = start_with("127.0.0.1:0", tls);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("tls.cert_file `/nowhere/cert.pem`"), "{output:?}");
}

/// One HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request's fields in HPACK, as literals that are not indexed.
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// Writes the same again and again until the proxy closes, reading what comes.
async fn flood(address: &str, mut next: impl FnMut(u32) -> Vec<u8>) {
    let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
    let reading = tokio::spawn(async move {
        let mut heard = [0; 4096];
        while read.read(&mut heard).await.is_ok_and(|length| length > 0) {}
    });
    let start = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[])].concat();
    write.write_all(&start).await.unwrap();
    for number in 0.. {
        assert!(number < 1_000_000, "it takes everything");
        if write.write_all(&next(number)).await.is_err() {
            break;
        }
    }
    reading.await.unwrap();
}

#[tokio::test]
async fn abuse_of_http_2_ends_the_connection_and_takes_no_memory() {
    let doors = Doors::open().await;
    let address = doors.address(false).await;
    let request = fields(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/pay"),
        ("idempotency-key", "k-1"),
    ]);
    let long = fields(&[("x", &"x".repeat(100))]).repeat(150);
    let attack = async || {
        // Rapid reset, a head that does not end, and heads that are too long.
        flood(&address, |n| [frame(1, 5, 2 * n + 1, &request), frame(3, 0, 2 * n + 1, &8u32.to_be_bytes())].concat())
            .await;
        let mut begun = false;
        flood(&address, |_| match std::mem::replace(&mut begun, true) {
            false => frame(1, 1, 1, &request),
            true => frame(9, 0, 1, &long),
        })
        .await;
        flood(&address, |n| {
            let list = [&request[..], &long].concat();
            [frame(1, 1, 2 * n + 1, &list), frame(9, 0, 2 * n + 1, &long).repeat(50), frame(9, 4, 2 * n + 1, &long)]
                .concat()
        })
        .await;
    };
    attack().await;
    let before = doors.world.proxy().resident_memory();
    for _ in 0..5 {
        attack().await;
    }
    let grown = doors.world.proxy().resident_memory().saturating_sub(before);
    assert!(grown < 24 << 20, "it grew by {} KiB", grown >> 10);
    eventually("every connection to be gone", async || {
        (doors.world.proxy().metric("onceproxy_connections", &[]).await == 0.0).then_some(())
    })
    .await;
    assert!(doors.curl(Way::Plain2, "/", &[]).await.starts_with("HTTP/2 201"));
    assert!(doors.world.proxy().metric("onceproxy_http2_abused_connections_total", &[]).await >= 12.0);
}
