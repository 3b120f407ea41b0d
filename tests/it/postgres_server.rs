//! Real Postgres servers for tests: on free ports, in temporary folders, gone when the process that tests is.
//!
//! One server is shared by all tests of a process, each with a schema of its own; a test that stops, pauses or sets up the
//! server differently starts one of its own. `psql` asks questions, so that a test does not rely on the driver it tests.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The user of the tests, who may do everything and needs no password.
pub(crate) const ADMIN: &str = "postgres";
/// The database of the tests.
pub(crate) const DATABASE: &str = "postgres";

/// A running server.
pub(crate) struct PostgresServer {
    child: Child,
    port: u16,
    settings: Vec<String>,
    folder: PathBuf,
    // The shared one's folder goes with its supervisor, since a static is never dropped.
    _owned: Option<tempfile::TempDir>,
}

impl PostgresServer {
    /// The server that all tests of this process share.
    pub(crate) fn shared() -> &'static PostgresServer {
        static SHARED: OnceLock<PostgresServer> = OnceLock::new();
        SHARED.get_or_init(|| {
            let (sender, receiver) = std::sync::mpsc::channel();
            // A process that is to end with its parent ends with the thread that started it: so that one must stay.
            std::thread::spawn(move || {
                let folder = new_folder().keep();
                // As many as a machine with many cores opens at once.
                let _ = sender.send(PostgresServer::start_in(folder, None, &["max_connections=1500"]));
                loop {
                    std::thread::park();
                }
            });
            receiver.recv().expect("the shared Postgres starts")
        })
    }

    /// A server of one's own, with these further settings (`name=value`).
    pub(crate) fn start(settings: &[&str]) -> PostgresServer {
        let owned = new_folder();
        PostgresServer::start_in(owned.path().to_owned(), Some(owned), settings)
    }

    /// The same with this `pg_hba.conf`.
    pub(crate) fn start_with_rules(rules: &str, settings: &[&str]) -> PostgresServer {
        let mut server = PostgresServer::start(settings);
        std::fs::write(server.folder.join("data/pg_hba.conf"), rules).unwrap();
        server.restart();
        server
    }

    fn start_in(folder: PathBuf, owned: Option<tempfile::TempDir>, settings: &[&str]) -> PostgresServer {
        let data = folder.join("data");
        let made = as_postgres(&program("initdb"), None)
            .args(["--no-sync", "--auth=trust", "--locale=C", "--encoding=UTF8", "--username", ADMIN, "--pgdata"])
            .arg(&data)
            .output()
            .expect("initdb of postgresql is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        // A port that is free now may be taken by the time the server binds it.
        for _ in 0..10 {
            let port = free_port();
            if let Some(child) = spawn(&folder, owned.is_none(), port, &settings) {
                return PostgresServer { child, port, settings, folder, _owned: owned };
            }
        }
        panic!("postgres does not start: {}", std::fs::read_to_string(folder.join("log")).unwrap_or_default());
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The same with its host.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// A folder that the server can read.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Lets it speak TLS with this certificate and key.
    pub(crate) fn install_certificate(&mut self, certificate: &str, key: &str) {
        for (name, text, mode) in [("server.crt", certificate, 0o644), ("server.key", key, 0o600)] {
            let path = self.folder.join("data").join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            if let Some(user) = other_user() {
                chown(&path, Some(user), Some(user)).unwrap();
            }
        }
        self.settings.push("ssl=on".to_owned());
        self.restart();
    }

    /// The answer to one or more statements, columns with `|` in between, rows one a line.
    pub(crate) fn sql(&self, statements: &str) -> String {
        let output = self.try_sql(statements);
        assert!(output.status.success(), "{statements}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// The same, which may fail.
    pub(crate) fn try_sql(&self, statements: &str) -> Output {
        Command::new("psql")
            .args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", ADMIN, "-d", DATABASE])
            .args(["-p", &self.port.to_string(), "-c", statements])
            .output()
            .expect("psql of postgresql-client is installed")
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        self.signal("KILL");
        let _ = self.child.wait();
        // Its processes end when they notice; until then the next server does not start.
        while is_at_work_in(&self.folder) {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    /// Starts it again after a crash, or anew with its settings, on the same port.
    pub(crate) fn restart(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal("INT");
            let _ = self.child.wait();
        }
        self.child = spawn(&self.folder, false, self.port, &self.settings).expect("postgres starts again");
    }

    /// It goes on holding its connections, and answers nothing: every one of its processes is stopped, or goes on.
    pub(crate) fn pause(&self) {
        self.signal_all("STOP");
    }

    /// It goes on.
    pub(crate) fn resume(&self) {
        self.signal_all("CONT");
    }

    /// Fills this table until it cannot grow any more, as on a full disk. Its file gets larger than a part of the
    /// server's log: that one can still be written, and every other table can grow. In `values` stands `SIZE` for the
    /// length of a text: the last rows are smaller than any that are to find no room.
    pub(crate) fn fill(&self, table: &str, columns: &str, values: &str) {
        const PART_OF_LOG: u64 = 16 << 20;
        let insert = |length: &str| {
            let values = values.replace("SIZE", length);
            format!("INSERT INTO {table} ({columns}) SELECT {values} FROM generate_series(1, 10000)")
        };
        let size = || self.sql(&format!("SELECT pg_relation_size('{table}')")).parse::<u64>().unwrap();
        while size() <= PART_OF_LOG {
            self.sql(&insert("700"));
        }
        // In the middle of a page, so that the server is told what it is told when a disk is full: a short write.
        self.limit_files(Some(size() + 4096));
        // The server comes to know what is left on its pages, and that is used up as well, at last by what is rolled back.
        self.sql(&format!("VACUUM {table}"));
        loop {
            let inserted = self.try_sql(&insert("0"));
            let said = String::from_utf8_lossy(&inserted.stderr);
            if !inserted.status.success() {
                assert!(said.contains("could not extend file"), "{said}");
                return;
            }
        }
    }

    /// There is room again.
    pub(crate) fn leave_room(&self) {
        self.limit_files(None);
    }

    fn limit_files(&self, bytes: Option<u64>) {
        let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        // The one that starts others first: whoever is started from now on has it from the first.
        for pid in self.processes() {
            let mut command = as_postgres(Path::new("prlimit"), None);
            command.args(["--pid", &pid.to_string(), &format!("--fsize={limit}:unlimited")]).stderr(Stdio::null());
            let done = command.status().expect("prlimit of util-linux is installed");
            // One that has just ended has no limits any more.
            assert!(done.success() || !Path::new(&format!("/proc/{pid}")).exists(), "prlimit {pid}");
        }
    }

    /// The one that starts the others, and those.
    fn processes(&self) -> Vec<u32> {
        let parent = self.child.id();
        let found = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        std::iter::once(parent).chain(found.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
    }

    fn signal_all(&self, signal: &str) {
        // The one that starts others first when they stop, last when they go on.
        let mut all = self.processes();
        if signal == "CONT" {
            all.reverse();
        }
        for pid in all {
            send(signal, &pid.to_string());
        }
    }

    fn signal(&self, signal: &str) {
        send(signal, &self.child.id().to_string());
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.resume();
        // At once; it tells its processes.
        self.signal("QUIT");
        let _ = self.child.wait();
    }
}

/// A name for a schema that no other test has.
pub(crate) fn fresh_schema() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("once.{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A pooler before a server, in transaction mode.
pub(crate) struct PgBouncer {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl PgBouncer {
    /// Starts one, with these further lines of settings.
    pub(crate) fn before(server: &PostgresServer, settings: &str) -> PgBouncer {
        for _ in 0..10 {
            let folder = new_folder();
            let port = free_port();
            std::fs::write(folder.path().join("users"), format!("\"{ADMIN}\" \"\"\n")).unwrap();
            let text = format!(
                "[databases]\n* = host=127.0.0.1 port={} user={ADMIN}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                 listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
                 default_pool_size = 8\nmax_client_conn = 500\n{settings}\n",
                server.port(),
                folder.path().join("users").display()
            );
            std::fs::write(folder.path().join(POOLER_SETTINGS), text).unwrap();
            if let Some(child) = spawn_pooler(folder.path(), port) {
                return PgBouncer { child, port, folder };
            }
        }
        panic!("pgbouncer does not start");
    }

    /// Ends it as a crash would; every connection through it breaks.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = spawn_pooler(self.folder.path(), self.port).expect("pgbouncer starts again");
    }

    /// It goes on holding its connections, and passes nothing on.
    pub(crate) fn pause(&self) {
        send("STOP", &self.child.id().to_string());
    }

    /// It goes on.
    pub(crate) fn resume(&self) {
        send("CONT", &self.child.id().to_string());
    }

    /// The same with its host.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.kill();
    }
}

const POOLER_SETTINGS: &str = "pgbouncer.ini";

/// Starts a pooler on this port. `None` if it ended at once.
fn spawn_pooler(folder: &Path, port: u16) -> Option<Child> {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    let mut child = as_postgres(&pooler(), Some("TERM"))
        .arg(folder.join(POOLER_SETTINGS))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("pgbouncer is installed");
    wait_until_up(&mut child, port).then_some(child)
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// A folder for the user that Postgres runs as: it refuses to run as root.
fn new_folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("onceproxy-postgres-").tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    if let Some(user) = other_user() {
        chown(folder.path(), Some(user), Some(user)).unwrap();
    }
    folder
}

/// The number of the user `postgres`, when the tests run as root.
fn other_user() -> Option<u32> {
    static USER: OnceLock<Option<u32>> = OnceLock::new();
    let number = |args: &[&str]| {
        let output = Command::new("id").args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse::<u32>().ok()
    };
    *USER.get_or_init(|| {
        let am_root = number(&["-u"]) == Some(0);
        am_root.then(|| number(&["-u", ADMIN]).expect("the package postgresql makes the user postgres"))
    })
}

/// The command that runs a program as that user, and ends it by this signal when the thread that started it ends.
fn as_postgres(program: &Path, end_by: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(signal) = end_by {
        command.args(["--pdeathsig", signal]);
    }
    if other_user().is_some() {
        command.args(["--reuid", ADMIN, "--regid", ADMIN, "--clear-groups"]);
    }
    command.arg(program);
    command
}

/// A program of the newest Postgres of this system; Debian keeps most of them out of the PATH.
fn program(name: &str) -> PathBuf {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let path = entry.path().join("bin").join(name);
            Some((entry.file_name().to_str()?.parse().ok()?, path.exists().then_some(path)?))
        })
        .collect();
    found.sort();
    found.pop().map_or_else(|| name.into(), |(_, path)| path)
}

/// The pooler, which Debian keeps where not every user looks.
fn pooler() -> PathBuf {
    let path = Path::new("/usr/sbin/pgbouncer");
    if path.exists() { path.to_owned() } else { "pgbouncer".into() }
}

/// Starts a server on this port. `None` if it ended at once.
fn spawn(folder: &Path, tidies_up: bool, port: u16, settings: &[String]) -> Option<Child> {
    let script = "trap 'kill -QUIT $server' TERM; \"$@\" & server=$!; wait $server; wait $server; rm -rf \"$0\"";
    let mut command = match tidies_up {
        // Ends with this process, and takes its folder along.
        true => {
            let mut command = as_postgres(Path::new("sh"), Some("TERM"));
            command.args(["-c", script]).arg(folder).arg(program("postgres"));
            command
        }
        false => as_postgres(&program("postgres"), Some("QUIT")),
    };
    command.arg("-D").arg(folder.join("data"));
    let port_text = port.to_string();
    for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "max_connections=300"]
        .into_iter()
        .chain(["shared_buffers=16MB", "log_min_messages=warning", "autovacuum=off"])
        .chain(settings.iter().map(String::as_str))
    {
        command.args(["-c", setting]);
    }
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    let mut child = command
        .args(["-p", &port_text])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("postgresql and setpriv are installed");
    wait_until_up(&mut child, port).then_some(child)
}

/// Whether the process came up on this port. The deadline is for one that never does; nothing is concluded from it.
fn wait_until_up(child: &mut Child, port: u16) -> bool {
    for _ in 0..1500 {
        let asked = Command::new("pg_isready").args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]).status();
        if asked.expect("pg_isready of postgresql-client is installed").success() {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(15));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// Whether processes of a crashed server are still about: they hold its shared memory.
fn is_at_work_in(folder: &Path) -> bool {
    let data = folder.join("data");
    let is_there = |entry: std::fs::DirEntry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data);
    std::fs::read_dir("/proc").unwrap().flatten().any(is_there)
}

fn send(signal: &str, pid: &str) {
    // Whoever is gone already needs no signal. The shell has a `kill` of its own; the program is not everywhere.
    let _ = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).stderr(Stdio::null()).status();
}
