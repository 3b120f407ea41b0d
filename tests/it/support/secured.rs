//! Redis with TLS, and a user who may do no more than docs/stores.md says: what the servers and the proxies are told.

use std::path::Path;

use super::tls::Authority;
use super::topologies::Entry;

/// The user of the proxies, at the servers and at the sentinels.
pub(crate) const USER: &str = "onceproxy";
/// Its password.
pub(crate) const PASSWORD: &str = "secret";

/// An authority of the test's own, a certificate of the servers, and the rights of the user.
pub(crate) struct Secured {
    /// For whoever starts the servers.
    pub(crate) entry: Entry,
    authority: Authority,
    _folder: tempfile::TempDir,
}

impl Secured {
    /// With the rights of the block in docs/stores.md that begins with this line.
    pub(crate) fn new(first_line: &str) -> Secured {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        authority.write("127.0.0.1", folder.path());
        let text = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let ca = authority.file().to_str().unwrap();
        let entry = Entry::tls(&text("cert.pem"), &text("key.pem"), ca);
        let entry = entry.user(&documented(first_line), &documented("At the sentinels:"));
        Secured { entry, authority, _folder: folder }
    }

    /// The certificate to be trusted.
    pub(crate) fn ca_file(&self) -> &Path {
        self.authority.file()
    }
}

/// What docs/stores.md shows in the block that begins with this line, without the user's name and password.
pub(crate) fn documented(first: &str) -> String {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/stores.md")).unwrap();
    let rights = docs
        .lines()
        .skip_while(|line| *line != first)
        .find_map(|line| line.strip_prefix("ACL SETUSER onceproxy on >PASSWORD "));
    format!("on >{PASSWORD} {}", rights.unwrap_or_else(|| panic!("no ACL under {first:?}")))
}
