//! Egress: clients that know nothing of this proxy but that it is their `HTTP_PROXY`, and hosts that may not be reached.

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::support::tls::Authority;
use crate::support::wire::Wire;
use crate::support::world::Builder;
use crate::support::{Answer, Connection, DEADLINE, Store, World, eventually};

/// A world whose route goes where requests say, and may go to the upstream by its address.
fn egress(store: Store) -> Builder {
    World::build(store)
        .route("upstream = \"http://{host}\"\n key_required = true")
        .more("[egress]\nallow = [\"AUTHORITY\", \"api.example.com\"]\n")
}

/// Runs a program whose `HTTP_PROXY` is this world's proxy.
async fn run(world: &World, program: &str, arguments: &[&str]) -> String {
    let mut command = tokio::process::Command::new(program);
    command.env("http_proxy", format!("http://{}", world.address())).env("no_proxy", "");
    let output = command.args(arguments).output().await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program}: {out}{err}");
    out.into_owned()
}

/// An absolute-form request, as such clients send it.
async fn ask(world: &World, authority: &str, key: &str) -> Answer {
    ask_for(world, &format!("http://{authority}/pay"), authority, key).await
}

async fn ask_for(world: &World, target: &str, authority: &str, key: &str) -> Answer {
    let mut connection = Connection::open(world.address()).await;
    let fields = format!("Host: {authority}\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\n");
    connection.write(format!("POST {target} HTTP/1.1\r\n{fields}\r\n{{}}").as_bytes()).await;
    connection.answer().await
}

on_each_store! {
    async fn curl_is_protected_without_knowing(store) {
        let world = egress(store).start().await;
        let url = format!("http://{}/v1/charges?x=1", world.upstream.address);
        let arguments = ["-sS", "-i", "-d", "a=1", "-H", "Idempotency-Key: k-1", url.as_str()];
        let first = run(&world, "curl", &arguments).await;
        assert!(first.starts_with("HTTP/1.1 201") && !first.contains("idempotent-replayed"), "{first}");
        let second = run(&world, "curl", &arguments).await;
        assert!(second.starts_with("HTTP/1.1 201") && second.contains("idempotent-replayed: true"), "{second}");
        assert_eq!(world.executions(), 1);
        let received = world.upstream.last();
        assert_eq!(received.target, "/v1/charges?x=1");
        assert_eq!(received.field("Host"), Some(world.upstream.address.to_string()));
        assert_eq!(received.field("Proxy-Connection"), None);
    }
}

#[tokio::test]
async fn pythons_urllib_is_protected_without_knowing() {
    let world = egress(Store::Memory).start().await;
    let script = format!(
        "import urllib.request as u\n\
         r = u.Request('http://{}/pay', data=b'a=1', headers={{'Idempotency-Key': 'k-1'}})\n\
         print([u.urlopen(r).headers['Idempotent-Replayed'] for _ in range(2)])",
        world.upstream.address
    );
    assert_eq!(run(&world, "python3", &["-c", &script]).await.trim(), "[None, 'true']");
    assert_eq!(world.executions(), 1);
}

#[tokio::test]
async fn a_route_of_a_host_takes_what_is_meant_for_it() {
    let world = World::with(Store::Memory, "host = \"api.example.com\"\n key_required = true").await;
    ask(&world, "api.example.com", "k-1").await.assert_executed(201);
    ask(&world, "API.example.com:80", "k-1").await.assert_replay(201);
    ask(&world, "other.example.com", "k-1").await.assert_problem(404, "no-route");
    assert_eq!(world.executions(), 1);
}

#[tokio::test]
async fn hosts_that_are_not_listed_are_refused_before_anything_is_claimed() {
    let world = egress(Store::Memory).start().await;
    let other_port = format!("127.0.0.1:{}", world.upstream.address.port().wrapping_add(1));
    for host in ["evil.example", "169.254.169.254", "[::1]", "localhost", "api.example.com:8443", &other_port] {
        ask(&world, host, "k-1").await.assert_problem(403, "egress-refused");
    }
    // Nor in origin form, nor without the TLS that was asked for.
    ask_for(&world, "/pay", "evil.example", "k-1").await.assert_problem(403, "egress-refused");
    let secure = "https://api.example.com/pay";
    ask_for(&world, secure, "api.example.com", "k-1").await.assert_problem(403, "egress-refused");
    assert_eq!(world.proxy().open_records("").await.len(), 0);
    let labels = [("route", "pay"), ("result", "egress_refused")];
    assert_eq!(world.proxy().metric("onceproxy_requests_total", &labels).await, 8.0);
    assert_eq!(world.executions(), 0);
}

/// A listed name that leads into this host, as by DNS rebinding: the address is what counts.
#[tokio::test]
async fn a_listed_name_does_not_lead_to_an_inner_address() {
    let mut world = egress(Store::Memory).start().await;
    let port = world.upstream.address.port();
    world.change_more(&format!("[egress]\nallow = [\"localhost:{port}\"]\n"));
    world.restart().await;
    let by_name = format!("localhost:{port}");
    let refused = ask(&world, &by_name, "k-1").await;
    refused.assert_problem(502, "upstream-unreachable");
    assert!(refused.text().contains("not one that egress reaches"), "{}", refused.shown());
    assert_eq!((world.executions(), world.proxy().open_records("").await.len()), (0, 0));

    // With the address listed too the same name is fine, at once after a reload; and hosts do not share keys.
    world.change_more(&format!("[egress]\nallow = [\"localhost:{port}\", \"127.0.0.1:{port}\", \"[::1]:{port}\"]\n"));
    world.proxy().hang_up();
    eventually("the reload", async || (ask(&world, &by_name, "k-1").await.status == 201).then_some(())).await;
    ask(&world, &by_name, "k-1").await.assert_replay(201);
    ask(&world, &format!("127.0.0.1:{port}"), "k-1").await.assert_executed(201);
    assert_eq!(world.executions(), 2);
}

#[tokio::test]
async fn the_proxy_speaks_tls_to_the_outside_for_a_client_that_speaks_http() {
    let authority = Authority::new();
    let world = World::build(Store::Memory)
        .route(&format!("upstream = \"https://{{host}}\"\n ca_file = \"{}\"", authority.file().display()))
        .more("[egress]\nallow = [\"AUTHORITY\"]\n")
        .start()
        .await;
    world.upstream.speak_tls(authority.certificate_for("127.0.0.1"));
    let host = world.upstream.address.to_string();
    ask(&world, &host, "k-1").await.assert_executed(201);
    ask(&world, &host, "k-1").await.assert_replay(201);
    assert_eq!(world.executions(), 1);
}

/// A world that opens tunnels to this listener, and the connection that a client asks for one on.
async fn tunnels(listener: &TcpListener, limits: &str, top: &str) -> World {
    let place = listener.local_addr().unwrap();
    let more = format!(
        "[egress]\nallow = [\"api.example.com\"]\ntunnels = [\"{place}\", \"localhost:{0}\"]\n[limits]\n{limits}\n",
        place.port()
    );
    World::build(Store::Memory).top(top).more(&more).start().await
}

fn connect(place: impl std::fmt::Display) -> String {
    format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n")
}

async fn accept(listener: &TcpListener) -> Wire<TcpStream> {
    let accepted = tokio::time::timeout(DEADLINE, listener.accept()).await;
    Wire::new(accepted.expect("a connection to the outside").unwrap().0)
}

async fn read(side: &mut Wire<TcpStream>, length: usize) -> Vec<u8> {
    let mut seen = Vec::new();
    while seen.len() < length {
        let more = tokio::time::timeout(DEADLINE, side.some()).await.expect("bytes in time");
        seen.extend(more.expect("bytes before the end"));
    }
    seen
}

async fn tunnels_are(world: &World, expected: f64) {
    eventually("the count of tunnels", async || {
        (world.proxy().metric("onceproxy_tunnels", &[]).await == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_tunnel_carries_bytes_both_ways_counted_as_unprotected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = tunnels(&listener, "", "").await;
    let place = listener.local_addr().unwrap();
    let mut client = Connection::open(world.address()).await;
    // What is sent behind the head before the answer comes is the tunnel's, even if it looks like a request at fault.
    let early = b"POST /pay HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\x00\xff";
    client.write(&[connect(place).as_bytes(), early].concat()).await;
    let mut outside = accept(&listener).await;
    assert_eq!(read(&mut outside, early.len()).await, early);
    let answer = client.head().await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.field("Cache-Status"), Some("onceproxy; fwd=bypass; detail=unprotected"));
    let framing = ["Content-Length", "Transfer-Encoding", "Connection"].map(|name| answer.field(name));
    assert_eq!(framing, [None; 3]);
    tunnels_are(&world, 1.0).await;

    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".repeat(5000);
    client.write(&bytes).await;
    assert_eq!(read(&mut outside, bytes.len()).await, bytes);
    outside.write(b"hello").await.unwrap();
    assert_eq!(client.body_until("hello").await, b"hello");
    // The end of one side reaches the other, which may go on.
    outside.socket.shutdown().await.unwrap();
    assert!(client.closes().await);
    client.write(b"last").await;
    assert_eq!(read(&mut outside, 4).await, b"last");
    drop(client);
    assert!(tokio::time::timeout(DEADLINE, outside.closes()).await.unwrap());
    tunnels_are(&world, 0.0).await;
    let labels = [("route", ""), ("result", "unprotected")];
    assert_eq!(world.proxy().metric("onceproxy_requests_total", &labels).await, 1.0);
    for line in ["what runs in it is not protected", "tunnel closed"] {
        world.proxy().logged(line).await;
    }
    assert_eq!(world.executions(), 0);
}

#[tokio::test]
async fn curl_speaks_tls_through_a_tunnel() {
    let authority = Authority::new();
    let world = World::build(Store::Memory).more("[egress]\ntunnels = [\"AUTHORITY\"]\n").start().await;
    world.upstream.speak_tls(authority.certificate_for("127.0.0.1"));
    let proxy = format!("http://{}", world.address());
    let url = format!("https://{}/pay", world.upstream.address);
    let ca = authority.file().to_str().unwrap().to_owned();
    for version in ["--proxy1.0", "--proxy"] {
        let arguments = ["-sS", "-i", "--noproxy", "", version, &proxy, "--cacert", &ca, "-d", "a=1", &url];
        let answer = run(&world, "curl", &arguments).await;
        assert!(answer.contains("HTTP/1.1 201") && answer.contains(" 200 OK"), "{answer}");
    }
    assert_eq!(world.upstream.last().field("Via"), None);
    assert_eq!(world.executions(), 2);
}

#[tokio::test]
async fn tunnels_to_places_that_are_not_listed_are_refused_and_the_connection_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = tunnels(&listener, "", "").await;
    let port = listener.local_addr().unwrap().port();
    // `api.example.com` is allowed, but not for tunnels.
    let other = format!("127.0.0.1:{}", world.upstream.address.port());
    for place in ["api.example.com:443", "evil.example:443", "169.254.169.254:80", &other, &format!("127.0.0.2:{port}")]
    {
        let mut client = Connection::open(world.address()).await;
        client.write(format!("{}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", connect(place)).as_bytes()).await;
        let refused = client.answer().await;
        refused.assert_problem(403, "egress-refused");
        assert!(refused.text().contains("egress.tunnels"), "{}", refused.shown());
        assert!(client.closes().await, "{place}");
    }
    // A listed name leads to an inner address, which is listed by itself only as 127.0.0.1, and at this port.
    let mut client = Connection::open(world.address()).await;
    client.write(connect(format!("localhost:{port}")).as_bytes()).await;
    accept(&listener).await;
    assert_eq!(client.head().await.status, 200);
    assert_eq!(world.executions(), 0);
    let labels = [("route", ""), ("result", "egress_refused")];
    assert_eq!(world.proxy().metric("onceproxy_requests_total", &labels).await, 5.0);
}

#[tokio::test]
async fn a_listed_name_does_not_lead_a_tunnel_to_an_inner_address() {
    let world =
        World::build(Store::Memory).more("[egress]\ntunnels = [\"localhost:9\", \"localhost\"]\n").start().await;
    for place in ["localhost:9", "localhost:443"] {
        let mut client = Connection::open(world.address()).await;
        client.write(connect(place).as_bytes()).await;
        let refused = client.answer().await;
        refused.assert_problem(502, "upstream-unreachable");
        assert!(refused.text().contains("not one that egress reaches"), "{}", refused.shown());
        assert!(client.closes().await);
    }
}

#[tokio::test]
async fn without_the_setting_and_with_a_body_there_is_no_tunnel() {
    let world = egress(Store::Memory).start().await;
    let place = world.upstream.address;
    for (request, status) in [
        (connect(place), 403),
        (format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\nContent-Length: 2\r\n\r\nhi"), 400),
        (format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400),
        (format!("CONNECT {place} HTTP/1.1\r\nHost: other:443\r\n\r\n"), 400),
        ("CONNECT /pay HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400),
    ] {
        let mut client = Connection::open(world.address()).await;
        client.write(format!("{request}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await;
        assert_eq!(client.answer().await.status, status, "{request}");
        assert!(client.closes().await, "{request}");
    }
    assert_eq!(world.executions(), 0);
}

#[tokio::test]
async fn limits_bound_tunnels_and_silence_and_a_stop_end_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut world = tunnels(&listener, "in_flight = 1", "drain_timeout = \"1s\"").await;
    let place = listener.local_addr().unwrap();
    let mut client = Connection::open(world.address()).await;
    client.write(connect(place).as_bytes()).await;
    let mut outside = accept(&listener).await;
    assert_eq!(client.head().await.status, 200);
    let mut second = Connection::open(world.address()).await;
    second.write(connect(place).as_bytes()).await;
    second.answer().await.assert_problem(503, "overloaded");
    world.proxy().terminate();
    let address = world.address();
    eventually("the end of listening", async || TcpStream::connect(address).await.is_err().then_some(())).await;
    client.write(b"still").await;
    assert_eq!(read(&mut outside, 5).await, b"still");
    assert!(client.closes().await);
    assert!(world.proxies[0].ended().await.success());

    let world = tunnels(&listener, "idle_timeout = \"500ms\"", "").await;
    let mut client = Connection::open(world.address()).await;
    client.write(connect(place).as_bytes()).await;
    let mut outside = accept(&listener).await;
    assert_eq!(client.head().await.status, 200);
    assert!(client.closes().await);
    assert!(tokio::time::timeout(DEADLINE, outside.closes()).await.unwrap());
}
