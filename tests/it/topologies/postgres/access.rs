//! Getting in, and being let do what is needed: passwords, TLS, rights, schemas, standbys.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::*;
use crate::support::tls::write_own_certificate;

const RULES: &str = "host all guarded 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";

#[tokio::test]
async fn a_password_gets_in_and_a_wrong_one_does_not() {
    let server = PostgresServer::start_with_rules(RULES, &[]);
    let config = prepared(backend(server.port())).await;
    server.sql("CREATE ROLE guarded SUPERUSER LOGIN PASSWORD 'secret'");
    let with = |password: Option<&str>| {
        let password = password.map(|password| password.to_owned().into());
        let postgres = Postgres { user: "guarded".into(), password, ..backend(server.port()) };
        StoreConfig { backend: Backend::Postgres(postgres), ..config.clone() }
    };
    completed(&*quiet(&with(Some("secret"))), &response(1)).await;
    for password in [Some("wr0ng"), None] {
        let error = quiet(&with(password)).claim(&claim()).await.unwrap_err();
        assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
        assert!(!error.to_string().contains("wr0ng"), "{error}");
        Process::open(&with(password)).becomes_unready("refuses").await;
    }
}

#[tokio::test]
async fn the_user_of_the_documents_can_do_everything_and_no_more() {
    let server = PostgresServer::start(&[]);
    let config = prepared(backend(server.port())).await;
    let documents = include_str!("../../../../docs/stores.md");
    let grants: Vec<String> = documents
        .lines()
        .filter(|line| line.starts_with("GRANT ") || line.starts_with("CREATE ROLE "))
        .map(|line| line.replace("\"once\"", &format!("\"{}\"", config.prefix)))
        .collect();
    assert_eq!(grants.len(), 3, "{grants:?}");
    server.sql(&grants.join("\n"));
    let postgres = Postgres { user: "onceproxy".into(), ..backend(server.port()) };
    let user = StoreConfig { backend: Backend::Postgres(postgres), ..config.clone() };
    keeps_the_contract(&user).await;
    let error = onceproxy::store::init(&StoreConfig { prefix: "another".into(), ..user }).await.unwrap_err();
    assert!(error.to_string().contains("permission denied"), "{error}");
}

#[tokio::test]
async fn rights_that_are_taken_away_make_it_not_ready_until_they_are_back() {
    let server = PostgresServer::start(&[]);
    // Whoever comes through it is the same user to the server.
    let mapped = format!("[databases]\n* = host=127.0.0.1 port={} user=lr", server.port());
    let pooler = PgBouncer::before(&server, &mapped);
    let config = prepared(backend(server.port())).await;
    let schema = format!("\"{}\"", config.prefix);
    let grants = format!(
        "GRANT USAGE ON SCHEMA {schema} TO lr; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO lr"
    );
    server.sql(&format!("CREATE ROLE lr LOGIN; {grants}"));
    for (user, port) in [("lr", server.port()), (ADMIN, pooler.port())] {
        let postgres = Postgres { user: user.into(), ..backend(port) };
        let process = Process::open(&StoreConfig { backend: Backend::Postgres(postgres), ..config.clone() });
        process.becomes_ready().await;
        for (taken, said) in [
            (format!("INSERT, UPDATE ON {schema}.records"), "INSERT, UPDATE on records; `onceproxy store init`"),
            (format!("DELETE ON {schema}.records"), "DELETE on records"),
            (format!("INSERT, UPDATE ON {schema}.sweep"), "INSERT, UPDATE on sweep"),
            (format!("SELECT ON {schema}.meta"), "SELECT on meta"),
            (format!("USAGE ON SCHEMA {schema}"), "USAGE on the schema"),
        ] {
            server.sql(&format!("REVOKE {taken} FROM lr"));
            // Nobody uses it: the look alone finds out.
            process.becomes_unready(said).await;
            let error = process.store.claim(&claim()).await.unwrap_err();
            assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
            server.sql(&grants);
            process.becomes_ready().await;
        }
        completed(&*process.store, &response(1)).await;
    }
}

#[tokio::test]
async fn a_schema_that_is_missing_or_newer_makes_it_not_ready_until_it_is_there() {
    let server = PostgresServer::shared();
    let config = config_of(backend(server.port()));
    let process = Process::open(&config);
    process.becomes_unready("run `onceproxy store init`").await;
    let error = process.store.claim(&claim()).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
    let made = onceproxy::store::init(&config).await.unwrap();
    assert!(made[0].contains("made the schema"), "{made:?}");
    process.becomes_ready().await;
    let done = completed(&*process.store, &response(1)).await;
    let again = onceproxy::store::init(&config).await.unwrap();
    assert!(again[0].contains("nothing was changed"), "{again:?}");
    replay(&*process.store, &done).await;
    server.sql(&format!("UPDATE \"{}\".meta SET version = 2", config.prefix));
    process.becomes_unready("newer than this program").await;
    assert_eq!(process.store.claim(&claim()).await.unwrap_err().kind, StoreErrorKind::Refused);
    let error = onceproxy::store::init(&config).await.unwrap_err();
    assert!(error.to_string().contains("newer"), "{error}");
    server.sql(&format!("DROP SCHEMA \"{}\" CASCADE", config.prefix));
    process.becomes_unready("run `onceproxy store init`").await;
}

#[tokio::test]
async fn records_that_are_elsewhere_are_not_replaced_by_an_empty_table() {
    let server = PostgresServer::shared();
    let config = prepared(backend(server.port())).await;
    let process = Process::open(&config);
    process.becomes_ready().await;
    let done = completed(&*process.store, &response(1)).await;
    server.sql(&format!("ALTER TABLE \"{}\".records RENAME TO kept", config.prefix));
    process.becomes_unready("the records may be elsewhere").await;
    let report = process.store.inspect().await.unwrap().broken().unwrap();
    assert!(report.contains("drop the whole schema to begin anew"), "{report}");
    for emptied in ["DELETE FROM", "DROP TABLE"] {
        let error = onceproxy::store::init(&config).await.unwrap_err().to_string();
        assert!(error.contains("`records` is not") && error.contains("restore the table"), "{error}");
        // Whatever else is gone too.
        server.sql(&format!("{emptied} \"{}\".meta", config.prefix));
    }
    let error = onceproxy::store::init(&config).await.unwrap_err().to_string();
    assert!(error.contains("the records may be elsewhere"), "{error}");
    server.sql(&format!("ALTER TABLE \"{}\".kept RENAME TO records", config.prefix));
    let said = onceproxy::store::init(&config).await.unwrap();
    assert!(said[0].ends_with("missing and put back: the table meta, the row of meta"), "{said:?}");
    process.becomes_ready().await;
    replay(&*process.store, &done).await;
}

#[tokio::test]
async fn the_sweep_goes_on_when_its_row_is_lost_and_a_lost_table_is_told() {
    let server = PostgresServer::shared();
    let config = prepared(backend(server.port())).await;
    server.sql(&format!("DELETE FROM \"{}\".sweep", config.prefix));
    let process = Process::open(&config);
    contract::sweep(&*process.store, &process.metrics).await;
    assert_eq!(server.sql(&format!("SELECT count(*) FROM \"{}\".sweep", config.prefix)), "1");
    server.sql(&format!("DROP TABLE \"{}\".sweep", config.prefix));
    process.becomes_unready("its table `sweep` is not").await;
    let said = onceproxy::store::init(&config).await.unwrap();
    assert!(said[0].ends_with("missing and put back: the table sweep, the row of sweep"), "{said:?}");
    process.becomes_ready().await;
}

#[tokio::test]
async fn what_is_put_back_is_said() {
    let server = PostgresServer::shared();
    let config = prepared(backend(server.port())).await;
    server.sql(&format!("DELETE FROM \"{0}\".sweep; DROP INDEX \"{0}\".records_ends", config.prefix));
    let said = onceproxy::store::init(&config).await.unwrap();
    assert!(said[0].ends_with("missing and put back: the index records_ends, the row of sweep"), "{said:?}");
    let said = onceproxy::store::init(&config).await.unwrap();
    assert!(said[0].ends_with("nothing was changed"), "{said:?}");
}

fn command(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_onceproxy"));
    let output = command.args(words).env_clear().output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_prepares_and_the_other_command_then_finds_nothing_wrong() {
    let server = PostgresServer::start(&[]);
    let url = format!("postgres://{ADMIN}@127.0.0.1:{}/{DATABASE}", server.port());
    let (code, page, _) = command(&["store", "check", "--store", &url, "--wait", "20"]);
    assert!(code == Some(1) && page.contains("run `onceproxy store init`"), "{page}");
    let (code, page, said) = command(&["store", "init", "--store", &url]);
    assert_eq!(code, Some(0), "{said}");
    assert!(page.starts_with("made the schema \"once\", version 1"), "{page}");
    assert!(page.contains("GRANT USAGE ON SCHEMA \"once\""), "{page}");
    let (code, page, _) = command(&["store", "init", "--store", &url]);
    assert!(code == Some(0) && page.contains("nothing was changed"), "{page}");
    let (code, page, said) = command(&["store", "check", "--store", &url, "--wait", "20"]);
    assert_eq!(code, Some(0), "{page}{said}");
    let (code, _, said) = command(&["store", "init", "--store", "postgres://u:s3cr3t@127.0.0.1:1/once"]);
    assert!(code == Some(1) && said.contains("cannot be reached") && !said.contains("s3cr3t"), "{said}");
    let (code, page, _) = command(&["store", "init", "--store", "memory:"]);
    assert!(code == Some(0) && page.contains("needs no preparation"), "{page}");
}

#[test]
fn an_option_that_is_given_twice_is_refused() {
    for twice in ["disable&sslmode=require", "require&sslmode=require"] {
        let url = format!("postgres://once@127.0.0.1:1/once?sslmode={twice}");
        let (code, _, said) = command(&["store", "check", "--store", &url, "--wait", "0"]);
        assert!(code == Some(2) && said.contains("sslmode is given twice"), "{code:?} {said}");
    }
}

#[tokio::test]
async fn two_that_prepare_at_once_do_not_disturb_each_other() {
    let config = config_of(backend(PostgresServer::shared().port()));
    let running: Vec<_> = (0..4)
        .map(|_| {
            let config = config.clone();
            tokio::spawn(async move { onceproxy::store::init(&config).await.unwrap() })
        })
        .collect();
    for one in running {
        one.await.unwrap();
    }
    completed(&*quiet(&config), &response(1)).await;
}

#[tokio::test]
async fn a_server_that_only_reads_is_refused() {
    let server = PostgresServer::start(&[]);
    let config = prepared(backend(server.port())).await;
    let process = Process::open(&config);
    process.becomes_ready().await;
    let claimed = claim();
    process.store.claim(&claimed).await.unwrap();
    server.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    server.sql("SELECT pg_reload_conf()");
    process.becomes_unready("read-only").await;
    let error = process.store.claim(&claim()).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
    let error = process.store.complete(&claimed, &response(1), DAY).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
    server.sql("ALTER SYSTEM RESET default_transaction_read_only");
    server.sql("SELECT pg_reload_conf()");
    process.becomes_ready().await;
    assert_eq!(process.store.complete(&claimed, &response(1), DAY).await.unwrap(), CompleteReply::Stored);
}

#[tokio::test]
async fn a_standby_is_refused_until_it_is_promoted() {
    let mut server = PostgresServer::start(&[]);
    let config = prepared(backend(server.port())).await;
    std::fs::write(server.folder().join("data/standby.signal"), "").unwrap();
    server.restart();
    let process = Process::open(&config);
    process.becomes_unready("standby").await;
    assert_eq!(process.store.claim(&claim()).await.unwrap_err().kind, StoreErrorKind::Refused);
    server.sql("SELECT pg_promote()");
    process.becomes_ready().await;
    completed(&*process.store, &response(1)).await;
}

/// A server with a certificate of an authority, for `localhost`; and the files of that authority and of another.
fn with_tls() -> (PostgresServer, std::path::PathBuf, std::path::PathBuf) {
    let mut server = PostgresServer::start(&[]);
    let folder = server.folder().to_owned();
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (ours, other) = (authority("ours"), authority("other"));
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &ours).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (ca, other) = (write("ca.pem", &ours.pem()), write("other.pem", &other.pem()));
    server.install_certificate(&leaf.pem(), &key.serialize_pem());
    (server, ca, other)
}

fn secured(port: u16, host: &str, sslmode: SslMode, ca: Option<&Path>) -> Postgres {
    Postgres { host: host.into(), sslmode, ca_file: ca.map(Path::to_owned), ..backend(port) }
}

#[tokio::test]
async fn tls_is_as_strict_as_sslmode_says() {
    let (server, ca, other) = with_tls();
    let config = prepared(backend(server.port())).await;
    let at = |host, mode, ca: Option<&Path>| StoreConfig {
        backend: Backend::Postgres(secured(server.port(), host, mode, ca)),
        timeout: Duration::from_secs(3),
        ..config.clone()
    };
    for (host, mode, ca, gets_in) in [
        ("localhost", SslMode::VerifyFull, Some(&*ca), true),
        ("127.0.0.1", SslMode::VerifyFull, Some(&*ca), false),
        ("localhost", SslMode::VerifyFull, Some(&*other), false),
        ("127.0.0.1", SslMode::Require, Some(&*ca), true),
        ("localhost", SslMode::Require, Some(&*other), false),
        ("localhost", SslMode::Require, None, true),
    ] {
        let reply = quiet(&at(host, mode, ca)).claim(&claim()).await;
        assert_eq!(reply.is_ok(), gets_in, "{host} {mode:?} {ca:?}: {reply:?}");
        if let Err(error) = reply {
            assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
        }
    }
    keeps_the_contract(&at("localhost", SslMode::VerifyFull, Some(&ca))).await;
    let plain = PostgresServer::shared();
    let config = StoreConfig {
        backend: Backend::Postgres(secured(plain.port(), "localhost", SslMode::Require, None)),
        ..config.clone()
    };
    let error = quiet(&config).claim(&claim()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Refused, "a server without TLS is never spoken to in clear: {error}");
}

#[tokio::test]
async fn a_certificate_that_openssl_made_is_trusted_by_itself() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for made in [&folder, &other] {
        write_own_certificate("-subj /CN=localhost", made.path());
    }
    let mut server = PostgresServer::start(&[]);
    let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    server.install_certificate(&text("cert.pem"), &text("key.pem"));
    let config = prepared(backend(server.port())).await;
    let (ours, theirs) = (folder.path().join("cert.pem"), other.path().join("cert.pem"));
    for (host, mode, ca, gets_in) in [
        ("localhost", SslMode::VerifyFull, &ours, true),
        ("127.0.0.1", SslMode::VerifyFull, &ours, false),
        ("127.0.0.1", SslMode::Require, &ours, true),
        ("localhost", SslMode::VerifyFull, &theirs, false),
        ("localhost", SslMode::Require, &theirs, false),
    ] {
        let backend = Backend::Postgres(secured(server.port(), host, mode, Some(ca)));
        let config = StoreConfig { backend, timeout: Duration::from_secs(3), ..config.clone() };
        let reply = quiet(&config).claim(&claim()).await;
        assert_eq!(reply.is_ok(), gets_in, "{host} {mode:?} {ca:?}: {reply:?}");
    }
}

/// Encrypted from here to the pooler and from there to the server.
#[tokio::test]
async fn pgbouncer_with_tls_keeps_the_contract() {
    let (server, ca, other) = with_tls();
    let config = prepared(backend(server.port())).await;
    let data = server.folder().join("data");
    let settings = format!(
        "client_tls_sslmode = require\nclient_tls_cert_file = {0}/server.crt\nclient_tls_key_file = {0}/server.key\n\
         server_tls_sslmode = require\n",
        data.display()
    );
    let pooler = PgBouncer::before(&server, &settings);
    let at = |mode, ca: Option<&Path>| StoreConfig {
        backend: Backend::Postgres(secured(pooler.port(), "localhost", mode, ca)),
        timeout: Duration::from_secs(10),
        ..config.clone()
    };
    keeps_the_contract(&at(SslMode::VerifyFull, Some(&ca))).await;
    assert_eq!(server.sql("SELECT count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl"), "t");
    for (mode, ca) in [(SslMode::VerifyFull, Some(&*other)), (SslMode::Disable, None)] {
        let error = quiet(&at(mode, ca)).claim(&claim()).await.unwrap_err();
        assert!(!error.may_have_run, "{mode:?}: {error}");
    }
}
