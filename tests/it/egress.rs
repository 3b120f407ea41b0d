//! Egress: clients that know nothing of this proxy but that it is their `HTTP_PROXY`, and hosts that may not be reached.

use crate::support::tls::Authority;
use crate::support::world::Builder;
use crate::support::{Answer, Connection, Store, World, eventually};

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
    assert!(refused.text().contains("egress does not reach"), "{}", refused.shown());
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

#[tokio::test]
async fn tunnels_are_refused_and_say_what_to_do() {
    let world = egress(Store::Memory).start().await;
    let mut connection = Connection::open(world.address()).await;
    let authority = world.upstream.address;
    connection.write(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").as_bytes()).await;
    let refused = connection.answer().await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("no tunnels"), "{}", refused.shown());
    assert_eq!(world.executions(), 0);
}
