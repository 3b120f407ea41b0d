//! TLS: whom it trusts, what ends a body, and what the count makes of a broken stream.

use std::io::Write as _;
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::upstream::wire::{Family, Meter, Socket, Wire};

/// A peer with a certificate for these names, and the file of the authority that signed it.
struct TlsPeer {
    peer: Peer,
    acceptor: TlsAcceptor,
    ca_file: tempfile::NamedTempFile,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

/// A file with this in it.
fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

impl TlsPeer {
    async fn start(names: &[&str]) -> TlsPeer {
        TlsPeer::start_with(names, false).await
    }

    /// One that takes clients with a certificate of its own authority only, if it `asks`.
    async fn start_with(names: &[&str], asks: bool) -> TlsPeer {
        let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let authority_certificate = authority.self_signed(&authority_key).unwrap();
        let issuer = rcgen::Issuer::new(authority, authority_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority_certificate.der().clone()).unwrap();
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .unwrap();
        let config =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = if asks { config.with_client_cert_verifier(verifier) } else { config.with_no_client_auth() };
        let mut config = config
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let ca_file = file(&authority_certificate.pem());
        TlsPeer { peer: Peer::start().await, acceptor: TlsAcceptor::from(Arc::new(config)), ca_file, issuer }
    }

    /// The same certificate without a list of protocols.
    fn without_alpn(&self) -> TlsAcceptor {
        let mut config = rustls::ServerConfig::clone(self.acceptor.config());
        config.alpn_protocols.clear();
        TlsAcceptor::from(Arc::new(config))
    }

    /// A client's certificate of the peer's authority, and its key.
    fn client_files(&self) -> (tempfile::NamedTempFile, tempfile::NamedTempFile) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["onceproxy".to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        (file(&certificate.pem()), file(&key.serialize_pem()))
    }

    fn upstream(&self, host: &str) -> config::Upstream {
        let ca_file = Some(self.ca_file.path().to_owned());
        config::Upstream {
            tls: true,
            host: host.to_owned(),
            port: self.peer.address.port(),
            ca_file,
            ..config::Upstream::default()
        }
    }

    fn pool(&self, host: &str) -> Pool {
        Pool::new(&self.upstream(host), LONG, LONG, &self.peer.metrics).unwrap()
    }

    async fn accept(&self) -> std::io::Result<TlsStream<TcpStream>> {
        self.acceptor.accept(self.peer.accept().await).await
    }

    async fn answer_one(&self, answer: &[u8]) -> TlsStream<TcpStream> {
        let mut stream = self.accept().await.unwrap();
        read_request(&mut stream).await;
        stream.write_all(answer).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }
}

#[tokio::test]
async fn speaks_http_1_1_to_names_and_addresses_and_keeps_the_connection() {
    for host in ["localhost", "127.0.0.1"] {
        let peer = TlsPeer::start(&["localhost", "127.0.0.1"]).await;
        let pool = peer.pool(host);
        let (response, mut stream) = tokio::join!(send(&pool, post("/", "x")), peer.answer_one(OK));
        assert_eq!(text(response.unwrap()).await, "ok");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let name = (host == "localhost").then_some("localhost");
        assert_eq!(stream.get_ref().1.server_name(), name);

        let connection = pool.checkout().await.unwrap();
        assert!(connection.is_reused());
        let serve = async {
            read_request(&mut stream).await;
            stream.write_all(OK).await.unwrap();
        };
        let (response, ()) = tokio::join!(connection.send(post("/", "x")), serve);
        assert_eq!(text(response.unwrap()).await, "ok");
        // An idle connection is closed in good order.
        drop(pool);
        assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn untrusted_and_misnamed_certificates_are_not_sent_to() {
    let other = TlsPeer::start(&["localhost"]).await;
    let peer = TlsPeer::start(&["localhost"]).await;
    let untrusted = config::Upstream { ca_file: other.upstream("localhost").ca_file, ..peer.upstream("localhost") };
    for upstream in [untrusted, peer.upstream("127.0.0.1")] {
        let pool = Pool::new(&upstream, LONG, LONG, &peer.peer.metrics).unwrap();
        let (connected, accepted) = tokio::join!(pool.checkout(), peer.accept());
        let error = connected.unwrap_err();
        assert!(
            matches!(&error, ConnectError::Tls { source, .. } if source.to_string().contains("certificate")),
            "{error:?}"
        );
        assert!(accepted.is_err());
    }
    assert_eq!(peer.peer.metrics.upstream_sends.get(), 0);
}

#[tokio::test]
async fn plain_peer_is_not_sent_to() {
    let peer = TlsPeer::start(&["localhost"]).await;
    let pool = peer.pool("localhost");
    let answer = async {
        let mut stream = peer.peer.accept().await;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        stream
    };
    let (connected, _stream) = tokio::join!(pool.checkout(), answer);
    let error = connected.unwrap_err();
    assert!(matches!(error, ConnectError::NotTls { .. }), "{error:?}");
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
}

#[tokio::test]
async fn handshake_is_within_the_connect_timeout() {
    let peer = TlsPeer::start(&["localhost"]).await;
    let after = Duration::from_millis(50);
    let pool = Pool::new(&peer.upstream("localhost"), after, LONG, &peer.peer.metrics).unwrap();
    // The backlog takes the connection, and nobody answers the hello.
    let error = pool.checkout().await.unwrap_err();
    assert!(matches!(error, ConnectError::NoHandshake { after: limit, .. } if limit == after), "{error:?}");
}

#[tokio::test]
async fn body_without_framing_needs_close_notify() {
    for orderly in [true, false] {
        let peer = TlsPeer::start(&["localhost"]).await;
        let pool = peer.pool("localhost");
        let serve = async {
            let mut stream = peer.answer_one(b"HTTP/1.1 200 OK\r\n\r\nto the end").await;
            if orderly {
                stream.shutdown().await.unwrap();
            }
            // Without it only the FIN of the socket goes out.
            drop(stream);
        };
        let (response, ()) = tokio::join!(send(&pool, post("/", "")), serve);
        let ended = response.unwrap().into_body().collect().await;
        match ended {
            Ok(body) => assert!(orderly && body.to_bytes() == "to the end"),
            Err(error) => assert!(!orderly, "{error:?}"),
        }
        assert!(!pool.shared.idle.has_ready());
    }
}

#[tokio::test]
async fn read_and_closed_without_an_answer_is_doubt() {
    let peer = TlsPeer::start(&["localhost"]).await;
    let pool = peer.pool("localhost");
    let (sent, _) = tokio::join!(send(&pool, post("/", "")), async { drop(peer.answer_one(b"").await) });
    assert!(sent.unwrap_err().may_have_run());
}

#[tokio::test]
async fn close_notify_that_the_runtime_has_not_seen_is_handed_back() {
    let peer = TlsPeer::start(&["localhost"]).await;
    let pool = peer.pool("localhost");
    let (response, stream) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(OK));
    assert_eq!(text(response.unwrap()).await, "ok");
    let connection = pool.checkout().await.unwrap();
    // Another thread closes while this one, and so the runtime, stands still.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (tcp, mut session) = stream.into_inner();
            let mut tcp = tcp.into_std().unwrap();
            session.send_close_notify();
            session.write_tls(&mut tcp).unwrap();
        });
    });
    let error = connection.send(post("/", "")).await.unwrap_err();
    assert!(matches!(error, SendError::NotSent { request: Some(_), .. }), "{error:?}");
}

/// A write to TLS can encrypt everything, send a part and then fail; to a socket it takes all, a part, or nothing.
#[tokio::test]
async fn failed_write_counts_above_tls_and_not_above_tcp() {
    let peer = TlsPeer::start(&["localhost"]).await;
    for encrypted in [true, false] {
        let meter = Arc::new(Meter::default());
        let stream = Family::Tcp(TcpStream::connect(peer.peer.address).await.unwrap());
        let tcp = Socket::new(stream, meter.clone());
        let mut wire = if encrypted {
            let tls = crate::upstream::tls::Tls::new(&peer.upstream("localhost")).unwrap();
            let (client, server) = tokio::join!(tls.connector.connect(tls.name.clone(), tcp), peer.accept());
            reset(server.unwrap().into_inner().0);
            Wire::tls(client.unwrap())
        } else {
            reset(peer.peer.accept().await);
            Wire::plain(tcp)
        };
        // The reset has arrived when reading says so.
        let mut rest = Vec::new();
        let _ = wire.read_to_end(&mut rest).await;
        let before = meter.written();
        let error = wire.write(b"POST / HTTP/1.1\r\n").await.unwrap_err();
        assert_eq!(meter.written() > before, encrypted, "{error:?}");
    }
}

#[test]
fn unusable_settings_are_found_at_start() {
    let metrics = Metrics::new().route("r");
    let make = |host: &str, ca_file: &std::path::Path| {
        let upstream = config::Upstream {
            tls: true,
            host: host.to_owned(),
            port: 443,
            ca_file: Some(ca_file.to_owned()),
            ..config::Upstream::default()
        };
        Pool::new(&upstream, LONG, LONG, &metrics).unwrap_err()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = |content: &str| {
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, content).unwrap();
        path
    };
    let missing = make("localhost", &folder.path().join("missing.pem"));
    assert!(matches!(&missing, TlsSetupError::CaFile { .. }), "{missing:?}");
    assert!(missing.to_string().contains("missing.pem"));
    let empty = make("localhost", &file("no certificate here\n"));
    assert!(matches!(empty, TlsSetupError::CaFileEmpty { .. }), "{empty:?}");
    let torn = make("localhost", &file("-----BEGIN CERTIFICATE-----\nAAAA\n"));
    assert!(matches!(torn, TlsSetupError::CaFile { .. }), "{torn:?}");
    let junk = make("localhost", &file("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"));
    assert!(matches!(junk, TlsSetupError::CaCertificate { .. }), "{junk:?}");
    let name = make("not a name", &file(""));
    assert!(matches!(name, TlsSetupError::Name { .. }), "{name:?}");
}

#[tokio::test]
async fn certificate_is_shown_to_an_upstream_that_asks_for_it() {
    let peer = TlsPeer::start_with(&["localhost"], true).await;
    let (certificate, key) = peer.client_files();
    let client = Some((certificate.path().to_owned(), key.path().to_owned()));
    let upstream = config::Upstream { client, ..peer.upstream("localhost") };
    let pool = Pool::new(&upstream, LONG, LONG, &peer.peer.metrics).unwrap();
    let (response, stream) = tokio::join!(send(&pool, post("/", "x")), peer.answer_one(OK));
    assert_eq!(text(response.unwrap()).await, "ok");
    assert!(stream.get_ref().1.peer_certificates().is_some_and(|chain| chain.len() == 1));

    let without = peer.pool("localhost");
    let (_, accepted) = tokio::join!(without.checkout(), peer.accept());
    assert!(accepted.is_err(), "it took a client without a certificate");
}

#[tokio::test]
async fn unusable_client_files_are_found_at_start() {
    let peer = TlsPeer::start(&["localhost"]).await;
    let ((certificate, key), (_, other_key)) = (peer.client_files(), peer.client_files());
    let empty = file("");
    let missing = std::path::Path::new("/no/such/file.pem");
    for (certificate, key, expected) in [
        (certificate.path(), other_key.path(), "cannot be used with the key"),
        (empty.path(), key.path(), "cannot be used with the key"),
        (certificate.path(), empty.path(), "cannot read the private key in client_key_file"),
        (certificate.path(), missing, "cannot read the private key in client_key_file"),
        (missing, key.path(), "cannot read the certificate in client_cert_file"),
    ] {
        let client = Some((certificate.to_owned(), key.to_owned()));
        let upstream = config::Upstream { client, ..peer.upstream("localhost") };
        let error = Pool::new(&upstream, LONG, LONG, &peer.peer.metrics).unwrap_err();
        assert!(error.to_string().contains(expected), "{error} of {certificate:?} and {key:?}");
    }
}

#[tokio::test]
async fn server_name_is_asked_for_and_verified_in_place_of_the_host() {
    let peer = TlsPeer::start(&["internal.test"]).await;
    let named = |name: &str| config::Upstream { server_name: Some(name.to_owned()), ..peer.upstream("127.0.0.1") };
    let pool = Pool::new(&named("internal.test"), LONG, LONG, &peer.peer.metrics).unwrap();
    let (response, stream) = tokio::join!(send(&pool, post("/", "x")), peer.answer_one(OK));
    assert_eq!(text(response.unwrap()).await, "ok");
    assert_eq!(stream.get_ref().1.server_name(), Some("internal.test"));

    let pool = Pool::new(&named("other.test"), LONG, LONG, &peer.peer.metrics).unwrap();
    let (connected, _) = tokio::join!(pool.checkout(), peer.accept());
    assert!(matches!(connected.unwrap_err(), ConnectError::Tls { .. }));
}

#[tokio::test]
async fn tls_goes_through_a_proxy_to_the_upstream_itself() {
    let peer = TlsPeer::start(&["far.invalid"]).await;
    let port = peer.peer.address.port();
    let proxy = Some(config::HttpProxy { host: "127.0.0.1".to_owned(), port });
    let upstream = config::Upstream { port: 443, proxy, ..peer.upstream("far.invalid") };
    let pool = Pool::new(&upstream, LONG, LONG, &peer.peer.metrics).unwrap();
    let serve = async {
        let mut stream = peer.peer.accept().await;
        assert!(read_request(&mut stream).await.starts_with(b"CONNECT far.invalid:443 HTTP/1.1\r\n"));
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let mut stream = peer.acceptor.accept(stream).await.unwrap();
        read_request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
        stream.flush().await.unwrap();
        stream
    };
    let (response, _stream) = tokio::join!(send(&pool, post("/", "x")), serve);
    assert_eq!(text(response.unwrap()).await, "ok");
}

#[tokio::test]
async fn http_2_needs_an_upstream_that_agrees_on_it() {
    let peer = TlsPeer::start(&["localhost"]).await;
    let upstream = config::Upstream { http2: true, ..peer.upstream("localhost") };
    let pool = Pool::new(&upstream, LONG, LONG, &peer.peer.metrics).unwrap();
    let serve = async {
        let stream = peer.accept().await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        assert_eq!(request.uri().scheme_str(), Some("https"));
        respond.send_response(http::Response::new(()), true).unwrap();
        // Until the client closes.
        while connection.accept().await.is_some() {}
    };
    let ask = async {
        let response = send(&pool, post("/", "x")).await.unwrap();
        assert!(http_body::Body::is_end_stream(response.body()));
    };
    tokio::select! {
        () = serve => panic!("it closed first"),
        () = ask => {}
    }

    // One that agrees on nothing.
    let silent = TlsPeer { acceptor: peer.without_alpn(), ..TlsPeer::start(&["localhost"]).await };
    let upstream = config::Upstream { http2: true, ca_file: upstream.ca_file, ..silent.upstream("localhost") };
    let pool = Pool::new(&upstream, LONG, LONG, &silent.peer.metrics).unwrap();
    let (connected, _stream) = tokio::join!(pool.checkout(), silent.accept());
    let error = connected.unwrap_err();
    assert!(matches!(error, ConnectError::NotHttp2 { source: None, .. }), "{error:?}");
}
