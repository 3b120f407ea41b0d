//! Getting in: passwords, users, databases, TLS.

use std::path::{Path, PathBuf};

use onceproxy::config::store::RedisTls;
use onceproxy::store::StoreErrorKind;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::*;
use crate::support::tls::write_own_certificate;

fn with_user(server: &RedisServer, username: Option<&str>, password: &str) -> Redis {
    Redis {
        username: username.map(str::to_owned),
        password: Some(password.to_owned().into()),
        ..backend(server.port())
    }
}

#[tokio::test]
async fn a_password_gets_in_and_a_wrong_one_does_not() {
    let server = RedisServer::start(&["--requirepass", "secret"]);
    let right = Process::ready(&config_of(with_user(&server, None, "secret"))).await;
    completed(&*right.store, &response(1)).await;
    let none = Redis { password: None, ..with_user(&server, None, "") };
    for redis in [with_user(&server, None, "wrong"), none] {
        let config = config_of(redis);
        let error = quiet(&config).claim(&claim()).await.unwrap_err();
        assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
        assert!(!error.message.contains("secret"), "{error}");
        let process = Process::open(&config);
        until("the reason is shown", async || {
            process.store.ready().err().filter(|e| e.to_string().contains("refuses"))
        })
        .await;
    }
}

/// The user that docs/stores.md shows.
const ACL: &str = "on >secret resetkeys ~once:* resetchannels &once:* -@all +evalsha +eval +time +get +set +getrange \
                   +setrange +exists +del +zadd +zrem +zcard +zcount +zrangebyscore +publish +subscribe +unsubscribe \
                   +ping +info +hello +select";

#[tokio::test]
async fn a_user_with_the_least_rights_can_do_everything() {
    let server = RedisServer::start(&[]);
    let rule: Vec<&str> = ["ACL", "SETUSER", "proxy"].into_iter().chain(ACL.split_whitespace()).collect();
    assert_eq!(server.command(&rule), "OK");
    let redis = with_user(&server, Some("proxy"), "secret");
    let (one, two) = (Process::ready(&config_of(redis.clone())).await, Process::ready(&config_of(redis)).await);
    contract::suite(|| one.store.for_core()).await;
    drop(two);
    contract::sweep(&*one.store, &one.metrics).await;
    let denied = server.command(&["ACL", "LOG"]);
    // CONFIG is asked for and may be forbidden: it only says more for the log.
    let others: Vec<&str> = denied.lines().filter(|line| line.contains("config")).collect();
    let entries = denied.lines().filter(|line| *line == "object").count();
    assert!(others.len() >= entries, "{denied}");
}

#[tokio::test]
async fn a_user_without_the_rights_is_told_so() {
    let server = RedisServer::start(&[]);
    server.command(&["ACL", "SETUSER", "reader", "on", ">secret", "~once:*", "+@read", "+info", "+ping"]);
    let store = quiet(&config_of(with_user(&server, Some("reader"), "secret")));
    let error = store.claim(&claim()).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
    server.command(&["ACL", "SETUSER", "blind", "on", ">secret", "~once:*", "+@all", "-info"]);
    let blind = with_user(&server, Some("blind"), "secret");
    let error = quiet(&config_of(blind.clone())).claim(&claim()).await.unwrap_err();
    assert!(error.kind == StoreErrorKind::Refused && error.message.contains("INFO"), "{error}");
    let config = StoreConfig { allow_eviction: true, ..config_of(blind) };
    assert_eq!(quiet(&config).claim(&claim()).await.unwrap(), GRANTED);
}

#[tokio::test]
async fn records_are_in_the_database_that_was_set() {
    let server = RedisServer::start(&[]);
    let store = quiet(&config_of(Redis { db: 3, ..backend(server.port()) }));
    store.claim(&claim()).await.unwrap();
    assert_eq!(server.command(&["DBSIZE"]), "0");
    assert!(server.command(&["INFO", "keyspace"]).contains("db3:keys=2"));
    let error = quiet(&config_of(Redis { db: 99, ..backend(server.port()) })).claim(&claim()).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
}

struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    fn make() -> Certificates {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = CertificateParams::default();
        // A name of its own: what carries its issuer's name would be taken for self-signed.
        authority.distinguished_name.push(DnType::CommonName, "authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.path().join("ca.pem"), authority.pem()).unwrap();
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &authority).unwrap();
            std::fs::write(dir.path().join(format!("{name}.pem")), certificate.pem()).unwrap();
            std::fs::write(dir.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Certificates { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

fn tls(port: u16, ca: &Path, client: Option<(PathBuf, PathBuf)>) -> StoreConfig {
    let tls = Some(RedisTls { ca_file: Some(ca.to_owned()), client });
    config_of(Redis { tls, ..backend_at("localhost", port) })
}

#[tokio::test]
async fn tls_with_an_own_authority_and_client_certificate() {
    let certificates = Certificates::make();
    let tls_port = redis_server::free_port();
    let (cert, key, ca) =
        (certificates.text("server.pem"), certificates.text("server.key"), certificates.text("ca.pem"));
    let settings = [
        "--tls-port",
        &tls_port.to_string(),
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
    ];
    let _server = RedisServer::start(&settings);
    let pair = Some((certificates.path("client.pem"), certificates.path("client.key")));
    let process = Process::ready(&tls(tls_port, &certificates.path("ca.pem"), pair)).await;
    let large = completed(&*process.store, &response(200_000)).await;
    assert_eq!(replay(&*process.store, &large).await, response(200_000));
    contract::suite(|| process.store.for_core()).await;
    contract::sweep(&*process.store, &process.metrics).await;
    // Without its certificate the server does not let this client in; another authority is not trusted.
    let stranger = Certificates::make();
    let pair = Some((certificates.path("client.pem"), certificates.path("client.key")));
    for refused in [tls(tls_port, &certificates.path("ca.pem"), None), tls(tls_port, &stranger.path("ca.pem"), pair)] {
        let store = quiet(&StoreConfig { timeout: Duration::from_millis(500), ..refused });
        let error = store.claim(&claim()).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unreachable, "{error}");
    }
}

#[tokio::test]
async fn a_certificate_that_openssl_made_is_trusted_by_itself() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for made in [&folder, &other] {
        write_own_certificate("-subj /CN=localhost", made.path());
    }
    let tls_port = redis_server::free_port();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (port, cert, key) = (tls_port.to_string(), file("cert.pem"), file("key.pem"));
    let settings = ["--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-auth-clients", "no"];
    let _server = RedisServer::start(&[&settings[..], &["--tls-ca-cert-file", &cert]].concat());
    let process = Process::ready(&tls(tls_port, cert.as_ref(), None)).await;
    completed(&*process.store, &response(1)).await;
    let stranger = tls(tls_port, &other.path().join("cert.pem"), None);
    let store = quiet(&StoreConfig { timeout: Duration::from_millis(500), ..stranger });
    assert_eq!(store.claim(&claim()).await.unwrap_err().kind, StoreErrorKind::Unreachable);
}

#[tokio::test]
async fn certificate_files_that_are_no_good_are_named_at_once() {
    let certificates = Certificates::make();
    let (ca, key) = (certificates.path("ca.pem"), certificates.path("client.key"));
    let missing = certificates.path("missing.pem");
    for (config, setting) in [
        (tls(1, &missing, None), "store.ca_file"),
        (tls(1, &key, None), "store.ca_file"),
        (tls(1, &ca, Some((missing.clone(), key.clone()))), "store.client_cert_file"),
        (tls(1, &ca, Some((certificates.path("client.pem"), ca.clone()))), "store.client_key_file"),
        (tls(1, &ca, Some((certificates.path("server.pem"), key.clone()))), "store.client_key_file"),
    ] {
        let Err(error) = onceproxy::store::open(&config, &Metrics::new()) else { panic!("{setting} was accepted") };
        assert!(error.to_string().contains(setting), "{error}");
    }
}
