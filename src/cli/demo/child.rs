//! The demonstration's proxy: this program again, as a process that can be killed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStderr, Command};

/// How long the proxy may take to say where it listens.
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder of its own under the system's temporary one, gone with this value.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes it.
    pub(super) fn make() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("onceproxy-demo-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Folder(path))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in the temporary folder, where the system clears up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The running proxy, killed with this value.
#[derive(Debug)]
pub(super) struct Child {
    process: tokio::process::Child,
    address: SocketAddr,
    admin_address: SocketAddr,
}

impl Child {
    /// Starts the proxy on free ports, with its records in the folder, and waits until it listens.
    pub(super) async fn start(folder: &Folder, upstream: SocketAddr) -> Result<Child> {
        let file = folder.path().join("config.toml");
        std::fs::write(&file, settings(folder.path(), upstream)).context("cannot write the settings")?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut process = Command::new(program)
            .arg("serve")
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the proxy")?;
        let log = process.stderr.take().context("the proxy has no log")?;
        let mut lines = BufReader::new(log).lines();
        let listening = tokio::time::timeout(PATIENCE, listening(&mut lines)).await;
        let (address, admin_address) = listening.context("the proxy did not say where it listens")??;
        // Read on, so that the proxy never waits for someone to read its log.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Child { process, address, admin_address })
    }

    /// Kills it, as `kill -9` does: it gets no chance to clean up.
    pub(super) async fn kill(mut self) -> Result<()> {
        self.process.kill().await.context("cannot kill the proxy")
    }

    /// Where clients connect.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where operators connect.
    pub(super) fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }
}

fn settings(folder: &Path, upstream: SocketAddr) -> String {
    // Written by serde_json, a path is a TOML string as well.
    let store = Value::from(format!("disk:{}", folder.join("records").display()));
    format!(
        "listen = \"127.0.0.1:0\"\n\
         [log]\nformat = \"json\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nurl = {store}\n\
         [[route]]\nname = \"payments\"\nupstream = \"http://{upstream}\"\n\
         timeout = \"1s\"\nabandon_after = \"30s\"\n"
    )
}

/// Reads the log up to the lines that name both addresses.
async fn listening(log: &mut Lines<BufReader<ChildStderr>>) -> Result<(SocketAddr, SocketAddr)> {
    let (mut proxy, mut admin) = (None, None);
    let mut said = String::new();
    while let Some(line) = log.next_line().await? {
        let entry: Value = serde_json::from_str(&line).unwrap_or_default();
        let address = entry["address"].as_str().and_then(|text| text.parse().ok());
        match entry["listener"].as_str() {
            Some("proxy") => proxy = address,
            Some("admin") => admin = address,
            _ => said.push_str(&line),
        }
        if let (Some(proxy), Some(admin)) = (proxy, admin) {
            return Ok((proxy, admin));
        }
    }
    bail!("the proxy ended at once: {said}")
}
