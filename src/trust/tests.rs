//! Certificates of a real openssl, as people make them, against the names and dates that they are asked for.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;

use super::*;

/// A folder in which openssl makes certificates.
struct Maker(tempfile::TempDir);

impl Maker {
    fn new() -> Maker {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("bare.cnf"), "[req]\ndistinguished_name = dn\n[dn]\n").unwrap();
        Maker(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs openssl there with these words.
    fn openssl(&self, words: &str) {
        let run = Command::new("openssl").args(words.split(' ')).current_dir(self.0.path()).output();
        let run = run.expect("openssl is installed");
        assert!(run.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&run.stderr));
    }

    /// A self-signed certificate that ends in a day.
    fn own(&self, words: &str) -> CertificateDer<'static> {
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem";
        self.openssl(&format!("req -x509 {key} -out cert.pem -days 1 {words}"));
        self.read("cert.pem")
    }

    fn read(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(name)).unwrap()
    }
}

fn trusting(listed: &[&CertificateDer<'static>]) -> Arc<Verifier> {
    let mut trusted = Trusted::default();
    for certificate in listed {
        trusted.add((*certificate).clone()).unwrap();
    }
    trusted.verifier(&Arc::new(rustls::crypto::ring::default_provider())).unwrap()
}

fn at(verifier: &Verifier, shown: &CertificateDer<'_>, name: &str, now: UnixTime) -> Result<(), Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier.verify_server_cert(shown, &[], &name, &[], now).map(|_| ())
}

/// In an hour: clocks of certificates count whole seconds.
fn soon() -> UnixTime {
    UnixTime::since_unix_epoch(since_epoch() + Duration::from_secs(3600))
}

fn since_epoch() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
}

const SAN: &str = "-addext subjectAltName=DNS:shop.test,DNS:*.shop.test,IP:127.0.0.1";

#[test]
fn a_servers_own_certificate_is_trusted_for_its_names_and_dates() {
    let maker = Maker::new();
    let bare = "-config bare.cnf -subj /CN=shop.test";
    for (made, is_ca) in [
        // As the systems' openssl.cnf has it: CA:TRUE.
        (format!("-subj /CN=shop.test {SAN}"), true),
        // No basicConstraints.
        (format!("{bare} {SAN}"), false),
        (format!("{bare} {SAN} -addext basicConstraints=critical,CA:FALSE"), false),
        (format!("{bare} {SAN} -addext basicConstraints=CA:TRUE,pathlen:0 -addext keyUsage=keyCertSign"), true),
    ] {
        let shown = maker.own(&made);
        let verifier = trusting(&[&shown]);
        for name in ["shop.test", "www.shop.test", "127.0.0.1"] {
            assert_eq!(at(&verifier, &shown, name, soon()), Ok(()), "{made}: {name}");
        }
        for name in ["other.test", "127.0.0.2", "shop.test.evil.test"] {
            let refused = at(&verifier, &shown, name, soon()).unwrap_err();
            assert!(
                matches!(&refused, Error::InvalidCertificate(wrong) if is_about_the_name(wrong)),
                "{made}: {refused}"
            );
        }
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        let late = at(&verifier, &shown, "shop.test", UnixTime::since_unix_epoch(since_epoch() + days(2))).unwrap_err();
        assert!(matches!(late, Error::InvalidCertificate(CertificateError::ExpiredContext { .. })), "{made}: {late}");
        let early = UnixTime::since_unix_epoch(since_epoch() - days(2));
        let early = at(&verifier, &shown, "shop.test", early).unwrap_err();
        assert!(matches!(early, Error::InvalidCertificate(CertificateError::NotValidYetContext { .. })), "{early}");

        // The same name with another key, whoever is trusted: it is not that certificate.
        let forged = maker.own(&made);
        let refused = at(&verifier, &forged, "shop.test", soon()).unwrap_err();
        assert!(matches!(refused, Error::InvalidCertificate(_)), "{made}: {refused}");
        let right = if is_ca { "put its certificate into ca_file" } else { "put the new one there" };
        assert!(advice(&refused).is_some_and(|advice| advice.contains(right)), "{made}: {refused:?}");
    }
}

#[test]
fn a_common_name_counts_where_the_certificate_carries_no_other() {
    let maker = Maker::new();
    // The plainest of all.
    let shown = maker.own("-subj /O=Shop/CN=Shop.test");
    let verifier = trusting(&[&shown]);
    assert_eq!(at(&verifier, &shown, "shop.test", soon()), Ok(()));
    for name in ["other.test", "www.shop.test", "shop", "127.0.0.1"] {
        assert!(at(&verifier, &shown, name, soon()).is_err(), "{name}");
    }
    let shown = maker.own("-subj /CN=127.0.0.1");
    assert_eq!(at(&trusting(&[&shown]), &shown, "127.0.0.1", soon()), Ok(()));
    // An organisation is none, and with other names the common one does not count.
    for made in ["-subj /O=shop.test/CN=other.test", "-subj /CN=shop.test -addext subjectAltName=DNS:other.test"] {
        let shown = maker.own(made);
        assert!(at(&trusting(&[&shown]), &shown, "shop.test", soon()).is_err(), "{made}");
    }
    // Nor where an authority has signed it, as it never did.
    let authority = maker.own("-subj /CN=authority");
    maker.openssl("genpkey -algorithm ec -pkeyopt ec_paramgen_curve:prime256v1 -out leaf.key");
    maker.openssl("req -new -key leaf.key -subj /CN=shop.test -out leaf.csr");
    std::fs::write(maker.path("leaf.ext"), "basicConstraints=CA:FALSE\n").unwrap();
    maker.openssl(
        "x509 -req -in leaf.csr -CA cert.pem -CAkey key.pem -CAcreateserial -days 1 -extfile leaf.ext -out leaf.pem",
    );
    let leaf = maker.read("leaf.pem");
    assert!(at(&trusting(&[&authority]), &leaf, "shop.test", soon()).is_err());
    // Listed itself, it needs no authority.
    assert_eq!(at(&trusting(&[&leaf]), &leaf, "shop.test", soon()), Ok(()));
}

#[test]
fn what_cannot_be_taken_is_told_with_what_would_be_right() {
    let maker = Maker::new();
    maker.openssl("genpkey -algorithm ec -pkeyopt ec_paramgen_curve:prime256v1 -out first.key");
    maker.openssl("req -new -key first.key -subj /CN=shop.test -out first.csr");
    maker.openssl("x509 -req -in first.csr -signkey first.key -days 1 -out first.pem");
    let first = maker.read("first.pem");
    let refused = at(&trusting(&[&first]), &first, "shop.test", soon()).unwrap_err();
    assert!(advice(&refused).is_some_and(|right| right.contains("X.509 version 1")), "{refused:?}");
    let (shown, other) = (maker.own("-subj /CN=shop.test"), maker.own("-subj /CN=other.test"));
    let unknown = at(&trusting(&[&other]), &shown, "shop.test", soon()).unwrap_err();
    assert!(advice(&unknown).is_some_and(|right| right.contains("ca_file")), "{unknown:?}");
    assert_eq!(advice(&Error::DecryptError), None);
}

#[test]
fn a_subject_that_is_torn_names_nobody() {
    for subject in
        [&b""[..], b"\x31", b"\x31\x80\x00", b"\x31\x05\x30\x03", b"\x31\x84\xff\xff\xff\xff", b"\x31\x02\x30\x7f"]
    {
        assert_eq!(common_names(subject).count(), 0, "{subject:?}");
    }
    let one = b"\x31\x0e\x30\x0c\x06\x03\x55\x04\x03\x0c\x05a.com";
    assert_eq!(common_names(one).collect::<Vec<_>>(), ["a.com"]);
    let long = [&b"\x31\x81\x10\x30\x81\x0d\x06\x03\x55\x04\x03\x0c\x81\x05a.com"[..]].concat();
    assert_eq!(common_names(&long).collect::<Vec<_>>(), ["a.com"]);
}
