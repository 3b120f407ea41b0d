//! A Valkey server of 8.1, which scripts/install-test-packages puts into `.tools`: it has what Debian's Redis is too old for.

use std::path::{Path, PathBuf};
use std::process::Child;

use crate::redis_server::{ask, begin_program, free_port, wait_until_up};

/// The server. Dropping it ends it.
pub(super) struct Valkey {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
    settings: Vec<String>,
}

impl Valkey {
    /// Starts one with these further settings (`--name value …`).
    pub(super) fn start(settings: &[&str]) -> Valkey {
        let folder = tempfile::tempdir().unwrap();
        // A port that is free now may be taken by the time the server binds it.
        for _ in 0..10 {
            let port = free_port();
            if let Some(child) = spawn(folder.path(), port, settings) {
                let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
                return Valkey { child, port, folder, settings };
            }
        }
        panic!("valkey-server does not start");
    }

    /// Where it listens.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The answer to one command, as text: of a list the elements, one a line.
    pub(super) fn command(&self, words: &[&str]) -> String {
        ask(self.port, words).unwrap_or_else(|| panic!("the server on {} is gone: {words:?}", self.port))
    }

    /// `kill -9`, and a start on the same port with what its folder holds.
    pub(super) fn crash_and_restart(&mut self) {
        self.kill();
        let settings: Vec<&str> = self.settings.iter().map(String::as_str).collect();
        self.child = spawn(self.folder.path(), self.port, &settings).expect("it starts again on its port");
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Valkey {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(folder: &Path, port: u16, settings: &[&str]) -> Option<Child> {
    let program: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/valkey-server");
    assert!(program.exists(), "scripts/install-test-packages installs {}", program.display());
    wait_until_up(begin_program(&program, folder, port, settings), port)
}
