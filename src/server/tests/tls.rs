//! TLS: the two versions of HTTP over it, clients' certificates, and certificates that change while it serves.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::config;

const SECOND: Duration = Duration::from_secs(1);

/// An authority, and a folder with the files of the settings.
struct Files {
    issuer: Issuer<'static, KeyPair>,
    authority: CertificateDer<'static>,
    folder: tempfile::TempDir,
    settings: config::Tls,
}

impl Files {
    fn new() -> Files {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let settings = config::Tls {
            cert_file: folder.path().join("cert.pem"),
            key_file: folder.path().join("key.pem"),
            client_ca_file: None,
        };
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        let files = Files { issuer: Issuer::new(params, key), authority: certificate.der().clone(), folder, settings };
        files.issue();
        files
    }

    /// Writes a new certificate and its key, and returns the certificate.
    fn issue(&self) -> CertificateDer<'static> {
        let (certificate, key) = self.made();
        std::fs::write(&self.settings.cert_file, certificate.pem()).unwrap();
        std::fs::write(&self.settings.key_file, key.serialize_pem()).unwrap();
        certificate.der().clone()
    }

    fn made(&self) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["a".to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    fn load(&self, metrics: &Arc<Metrics>) -> Tls {
        Tls::load(&self.settings, metrics.listeners().clone()).unwrap()
    }

    /// The client's side of TLS, which asks for these versions of HTTP.
    fn connector(&self, alpn: &[&str], identity: bool) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = if identity {
            let (certificate, key) = self.made();
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
            builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }

    async fn connect(&self, world: &World, alpn: &[&str]) -> TlsStream<TcpStream> {
        let name = ServerName::try_from("a").unwrap();
        let connecting = self.connector(alpn, false).connect(name, world.connect().await.0);
        patiently(connecting).await.unwrap()
    }

    /// The certificate that a new connection is shown.
    async fn shown(&self, world: &World) -> CertificateDer<'static> {
        let stream = self.connect(world, &[]).await;
        stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
    }
}

fn world(tls: &Tls) -> World {
    World::greeting(Some(tls), false, limits())
}

async fn ask(stream: &mut TlsStream<TcpStream>, path: &str) -> std::io::Result<String> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    patiently(stream.read_to_string(&mut answer)).await?;
    Ok(answer)
}

#[tokio::test]
async fn the_client_chooses_the_version() {
    let files = Files::new();
    let world = world(&files.load(&Metrics::new()));
    for alpn in [&[][..], &["http/1.1"], &["http/1.1", "other"]] {
        let mut stream = files.connect(&world, alpn).await;
        assert!(ask(&mut stream, "/x").await.unwrap().ends_with("\r\n\r\n/x "), "{alpn:?}");
    }
    let stream = files.connect(&world, &["h2", "http/1.1"]).await;
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("https://a/seen").body(()).unwrap();
    let (response, _) = sender.send_request(request, true).unwrap();
    let mut body = patiently(response).await.unwrap().into_body();
    assert_eq!(patiently(body.data()).await.unwrap().unwrap(), "GET /seen host=a");
    drop((sender, body));
    patiently(connection).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_large_answer_arrives_whole_while_draining() {
    let files = Files::new();
    let world = world(&files.load(&Metrics::new()));
    let mut stream = files.connect(&world, &[]).await;
    stream.write_all(get("/big").as_bytes()).await.unwrap();
    let mut first = [0; 1000];
    stream.read_exact(&mut first).await.unwrap();
    world.stop.give();
    let mut rest = Vec::new();
    patiently(stream.read_to_end(&mut rest)).await.unwrap();
    assert!(first.len() + rest.len() > BIG);
    world.ended().await;
}

#[tokio::test]
async fn a_handshake_that_does_not_come_about_is_counted_and_closed() {
    let files = Files::new();
    let world = world(&files.load(&Metrics::new()));
    let failures = || world.metrics.listeners().handshake_failures.get();
    let mut plain = world.connect().await;
    plain.send(get("/")).await;
    let mut rest = Vec::new();
    let _ = patiently(plain.0.read_to_end(&mut rest)).await;
    assert!(!rest.starts_with(b"HTTP/"));
    assert_eq!(failures(), 1);
    let mut silent = world.connect().await;
    pass(11 * SECOND).await;
    assert_eq!(silent.rest().await, "");
    assert_eq!((failures(), world.served()), (2, 0));
}

#[tokio::test]
async fn a_client_needs_a_certificate_where_authorities_are_named() {
    let files = Files::new();
    let settings = config::Tls { client_ca_file: Some(files.ca_file()), ..files.settings.clone() };
    let world = world(&Tls::load(&settings, Metrics::new().listeners().clone()).unwrap());
    let connect = async |files: &Files, identity| {
        let connector = files.connector(&[], identity);
        let mut stream = connector.connect(ServerName::try_from("a").unwrap(), world.connect().await.0).await?;
        ask(&mut stream, "/").await
    };
    assert!(connect(&files, true).await.unwrap().ends_with("/ "));
    assert!(connect(&files, false).await.is_err());
    // Another authority's certificate, though the server's is trusted.
    let stranger = Files { authority: files.authority.clone(), ..Files::new() };
    assert!(connect(&stranger, true).await.is_err());
    assert_eq!(world.served(), 1);
}

#[tokio::test]
async fn a_new_certificate_is_taken_and_a_bad_one_is_not() {
    let files = Files::new();
    let metrics = Metrics::new();
    let tls = files.load(&metrics);
    let watch = tokio::spawn(tls.clone().watch());
    let world = world(&tls);
    let mut before = files.connect(&world, &[]).await;
    let (taken, failed) = (&metrics.listeners().certificate_reloads, &metrics.listeners().certificate_reload_failures);

    let second = files.issue();
    patiently(async {
        while taken.get() == 0 {
            pass(SECOND).await;
        }
    })
    .await;
    assert_eq!(files.shown(&world).await, second);
    assert!(ask(&mut before, "/").await.unwrap().ends_with("/ "), "an open connection goes on");

    for bad in [&b"no PEM"[..], files.made().0.pem().as_bytes()] {
        let failures = failed.get();
        std::fs::write(&files.settings.cert_file, bad).unwrap();
        patiently(async {
            while failed.get() == failures {
                pass(SECOND).await;
            }
        })
        .await;
        pass(20 * SECOND).await;
        assert_eq!(failed.get(), failures + 1, "it is counted once");
        assert_eq!(files.shown(&world).await, second);
    }
    std::fs::remove_file(&files.settings.cert_file).unwrap();
    patiently(async {
        while failed.get() == 2 {
            pass(SECOND).await;
        }
    })
    .await;
    assert_eq!((taken.get(), files.shown(&world).await), (1, second));

    let third = files.issue();
    patiently(async {
        while taken.get() == 1 {
            pass(SECOND).await;
        }
    })
    .await;
    assert_eq!(files.shown(&world).await, third);
    watch.abort();
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let files = Files::new();
    let wrong =
        |settings: &config::Tls| Tls::load(settings, Metrics::new().listeners().clone()).unwrap_err().to_string();
    let absent = files.folder.path().join("absent.pem");
    let settings = config::Tls { key_file: absent.clone(), ..files.settings.clone() };
    assert_eq!(wrong(&settings), format!("cannot read tls.key_file `{}`", absent.display()));
    let cert = &files.settings.cert_file;
    let settings = config::Tls { key_file: cert.clone(), ..files.settings.clone() };
    assert_eq!(wrong(&settings), format!("tls.key_file `{}` is not PEM with a private key in it", cert.display()));
    let other = Files::new();
    let settings = config::Tls { key_file: other.settings.key_file.clone(), ..files.settings.clone() };
    assert!(wrong(&settings).contains("cannot be used with tls.key_file"));
}
