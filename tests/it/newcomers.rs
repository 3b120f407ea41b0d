//! What people meet first: certificates that they made themselves, and URLs of the wrong kind.

use tokio::io::AsyncWriteExt;

use crate::support::tls::{Authority, acceptor, write_own_certificate};
use crate::support::{Request, Store, World};

on_each_store! {
    async fn a_certificate_that_openssl_made_is_trusted_as_curl_trusts_it(store) {
        let folder = tempfile::tempdir().unwrap();
        write_own_certificate("-subj /CN=127.0.0.1", folder.path());
        let ca = folder.path().join("cert.pem");
        let route = format!("upstream = \"https://AUTHORITY\"\n ca_file = \"{}\"", ca.display());
        let world = World::build(store).route(&route).start().await;
        world.upstream.speak_tls(acceptor(folder.path()));
        world.pay("k-1").await.assert_executed(201);
        world.pay("k-1").await.assert_replay(201);
        // Another of the same name, as an attacker or a renewal has it: not this one, not this one's.
        let other = tempfile::tempdir().unwrap();
        write_own_certificate("-subj /CN=127.0.0.1", other.path());
        let world = World::build(store).route(&route).start().await;
        world.upstream.speak_tls(acceptor(other.path()));
        world.pay("k-2").await.assert_problem(502, "upstream-unreachable");
        let said = world.proxy().logged("upstream not reached").await;
        assert!(said.contains("ca_file"), "{said}");
        assert_eq!(world.executions(), 0);
    }

    /// It is known that nothing was executed, so the key is free once the URL is mended.
    async fn http_to_a_port_of_tls_is_told_and_gives_the_key_back(store) {
        let mut world = World::new(store).await;
        let authority = Authority::new();
        world.upstream.speak_tls(authority.certificate_for("127.0.0.1"));
        let problem = world.pay("k-1").await;
        problem.assert_problem(502, "upstream-unreachable");
        assert_eq!(problem.retry(), "same-key");
        let detail = problem.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("speaks TLS") && detail.contains("http://"), "{detail}");
        let plain = world.send(&Request::new("GET", "/pay")).await;
        plain.assert_problem(502, "upstream-unreachable");
        assert!(plain.json()["detail"].as_str().unwrap().contains("speaks TLS"), "{}", plain.shown());
        assert_eq!(problem.field("Retry-After"), None);
        assert!(world.proxy().open_records("").await.is_empty());
        let said = world.proxy().logged("upstream not reached").await;
        assert!(said.contains("speaks TLS there") && said.contains("write https://"), "{said}");
        world.change_route(&format!("upstream = \"https://AUTHORITY\"\n ca_file = \"{}\"", authority.file().display()));
        world.restart().await;
        if store != Store::Memory {
            assert!(world.proxy().open_records("").await.is_empty());
        }
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 1);
    }
}

#[tokio::test]
async fn https_to_a_port_without_tls_is_told() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("upstream = \"https://{}\"", listener.local_addr().unwrap());
    // Servers of HTTP refuse a handshake of TLS as a bad request.
    let served = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        }
    });
    let world = World::with(Store::Memory, &upstream).await;
    for request in [Request::pay().key("k-1"), Request::new("GET", "/pay")] {
        let problem = world.send(&request).await;
        problem.assert_problem(502, "upstream-unreachable");
        let detail = problem.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("does not speak TLS there, and the settings say https://"), "{detail}");
    }
    let said = world.proxy().logged("upstream not reached").await;
    assert!(said.contains("write http://"), "{said}");
    served.abort();
}

/// It waits for the end of a request that never comes.
#[tokio::test]
async fn https_to_a_server_that_is_silent_is_told() {
    let world = World::with(Store::Memory, "upstream = \"https://AUTHORITY\"\n connect_timeout = \"300ms\"").await;
    let problem = world.pay("k-1").await;
    problem.assert_problem(502, "upstream-unreachable");
    let detail = problem.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("spoke no TLS in time"), "{detail}");
    let said = world.proxy().logged("upstream not reached").await;
    assert!(said.contains("write http://"), "{said}");
}

#[tokio::test]
async fn http_2_to_a_port_of_tls_is_told() {
    let world = World::with(Store::Memory, "upstream_protocol = \"h2\"").await;
    world.upstream.speak_tls(Authority::new().certificate_for("127.0.0.1"));
    world.pay("k-1").await.assert_problem(502, "upstream-unreachable");
    let said = world.proxy().logged("upstream not reached").await;
    assert!(said.contains("speaks TLS there") && said.contains("write https://"), "{said}");
}
