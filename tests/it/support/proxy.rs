//! One proxy: the real binary as a child process, found by what it logs, asked through its admin listener.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::client::Answer;
use super::eventually;

/// A running proxy. Dropping it kills it, and shows its log when the test is failing.
pub(crate) struct Proxy {
    config: PathBuf,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    /// Taken by whoever reads the log, for each line.
    reader: Reader,
    /// Where clients connect; another one after a restart.
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
}

type Reader = Arc<tokio::sync::Mutex<()>>;

impl Proxy {
    /// Starts `onceproxy serve --config …` and waits until both listeners are bound.
    pub(crate) async fn start(config: &Path) -> Proxy {
        Proxy::start_by(&[], config).await
    }

    /// The same by way of this command, which runs what follows it.
    pub(crate) async fn start_by(way: &[&str], config: &Path) -> Proxy {
        let (mut child, log, reader) = spawn(way, config);
        let (address, admin) = eventually("both listeners", async || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the proxy ended at start with {status}:\n{}", log.lock().unwrap().join("\n"));
            }
            let log = log.lock().unwrap();
            Some((listening(&log, "proxy")?, listening(&log, "admin")?))
        })
        .await;
        Proxy { config: config.to_owned(), child, log, reader, address, admin }
    }

    /// Waits until it wants traffic.
    pub(crate) async fn ready(&self) {
        eventually("/readyz", async || (self.readyz().await == Some(200)).then_some(())).await;
    }

    /// The status of `/readyz`, `None` when nobody listens.
    pub(crate) async fn readyz(&self) -> Option<u16> {
        // Asked while the process ends, so a refused connection is an answer too.
        let mut stream = super::wire::Wire::new(tokio::net::TcpStream::connect(self.admin).await.ok()?);
        stream.write(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").await.ok()?;
        stream.head().await.ok()??.start.split(' ').nth(1)?.parse().ok()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The memory that it has, in bytes.
    pub(crate) fn resident_memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
    }

    /// How many files it has open, connections among them.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        signal("TERM", self.child.id());
    }

    /// SIGHUP.
    pub(crate) fn hang_up(&self) {
        signal("HUP", self.child.id());
    }

    /// SIGSTOP: it keeps its sockets, and does nothing.
    pub(crate) fn pause(&self) {
        signal("STOP", self.child.id());
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        signal("CONT", self.child.id());
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("the proxy to end", async || child.try_wait().unwrap()).await
    }

    /// Kills it if it still runs, starts it again with the same settings file, and waits until it is ready.
    pub(crate) async fn restart(&mut self) {
        self.start_again().await;
        self.ready().await;
    }

    /// The same without waiting until it is ready.
    pub(crate) async fn start_again(&mut self) {
        self.kill();
        let next = Proxy::start(&self.config).await;
        next.log.lock().unwrap().splice(0..0, self.log.lock().unwrap().drain(..));
        *self = next;
    }

    /// What it logged, as far as it has been read: a line comes some time after what it tells of.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Has nobody read what it logs until the guard is dropped.
    pub(crate) async fn stop_reading(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.reader.clone().lock_owned().await
    }

    /// The first line of the log with this text, once it is there.
    pub(crate) async fn logged(&self, text: &str) -> String {
        let find = async || self.log().into_iter().find(|line| line.contains(text));
        eventually(&format!("{text} in the log"), find).await
    }

    /// Where operators connect; another one after a restart.
    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// One call of the admin listener, as a tool on this host makes it.
    pub(crate) async fn admin(&self, method: &str, target: &str, body: Option<Value>) -> Answer {
        try_admin(self.admin, method, target, body).await.unwrap_or_else(|| panic!("no answer from {}", self.admin))
    }

    /// The sum of a metric's samples that carry all these labels; 0 when there are none.
    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = self.admin("GET", "/metrics", None).await.text();
        let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let samples = text.lines().filter(|line| {
            line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label))
        });
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// The open records in this state (`claimed`, `unknown`), or all with an empty one.
    pub(crate) async fn open_records(&self, state: &str) -> Vec<Value> {
        let query = if state.is_empty() { String::new() } else { format!("?state={state}") };
        let answer = self.admin("GET", &format!("/records{query}"), None).await;
        assert_eq!(answer.status, 200, "{}", answer.shown());
        answer.json()["records"].as_array().expect("a list of records").clone()
    }

    /// The one open record there is.
    pub(crate) async fn only_open_record(&self) -> Value {
        let mut records = self.open_records("").await;
        assert_eq!(records.len(), 1, "{records:?}");
        records.remove(0)
    }

    /// A record by its id, `None` when absent.
    pub(crate) async fn record(&self, id: &str) -> Option<Value> {
        let answer = self.admin("GET", &format!("/records/{id}"), None).await;
        match answer.status {
            200 => Some(answer.json()),
            404 => None,
            _ => panic!("{}", answer.shown()),
        }
    }

    /// Waits until a record is in this state.
    pub(crate) async fn record_in_state(&self, id: &str, state: &str) -> Value {
        let what = format!("record {id} {state}");
        eventually(&what, async || self.record(id).await.filter(|record| record["state"] == state)).await
    }

    /// Tells it what an operator found out.
    pub(crate) async fn resolve(&self, record: &Value, finding: Value) -> Answer {
        let mut body = finding;
        body["token"] = record["token"].clone();
        body["note"] = json!("looked it up");
        let id = record["id"].as_str().unwrap();
        self.admin("POST", &format!("/records/{id}/resolve"), Some(body)).await
    }

    /// Forgets a record.
    pub(crate) async fn forget(&self, record: &Value) -> Answer {
        let (id, token) = (record["id"].as_str().unwrap(), record["token"].as_str().unwrap());
        self.admin("DELETE", &format!("/records/{id}?token={token}"), None).await
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log of the proxy on {} ---\n{}\n---", self.address, self.log.lock().unwrap().join("\n"));
        }
    }
}

/// A process that a scenario started by hand; it is killed at the scenario's end.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One call of an admin listener that may be gone: `None` is no answer.
pub(crate) async fn try_admin(admin: SocketAddr, method: &str, target: &str, body: Option<Value>) -> Option<Answer> {
    let mut request = format!("{method} {target} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n").into_bytes();
    if let Some(body) = body {
        let body = body.to_string();
        let length = body.len();
        let head = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
        request.extend(head.as_bytes());
    } else {
        request.extend(b"Content-Type: application/json\r\n\r\n");
    }
    let mut connection = super::Connection::try_open(admin).await?;
    connection.write(&request).await;
    connection.try_answer().await
}

/// Sends a signal by process id. The shell's own `kill` is everywhere; the program of that name is not.
///
/// With STOP it returns when the process has stopped: one thread of it takes the signal, some time, and others run on until
/// that one has told them.
pub(crate) fn signal(name: &str, pid: u32) {
    let sent = Command::new("sh").args(["-c", "kill -$0 $1", name, &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "kill -{name} {pid}");
    while name == "STOP" && !has_stopped(pid) {
        std::thread::yield_now();
    }
}

fn has_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.map(|thread| thread.unwrap().path().join("stat")).all(|stat| {
        // Behind the name in brackets; a thread that has ended meanwhile does nothing any more.
        std::fs::read_to_string(stat)
            .map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    })
}

fn spawn(way: &[&str], config: &Path) -> (Child, Arc<Mutex<Vec<String>>>, Reader) {
    let mut words = way.iter().copied().chain([env!("CARGO_BIN_EXE_onceproxy")]);
    let mut command = Command::new(words.next().expect("there is the program itself"));
    command.args(words);
    // The settings are the file's alone, whatever the environment of the tests is.
    for name in ["CONFIG", "LISTEN", "UPSTREAM", "STORE", "ADMIN_LISTEN", "ADMIN_TOKEN", "LOG"] {
        command.env_remove(format!("ONCEPROXY_{name}"));
    }
    let mut child = command
        .args(["serve", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let reader = Reader::default();
    keep(child.stdout.take().unwrap(), log.clone(), reader.clone());
    keep(child.stderr.take().unwrap(), log.clone(), reader.clone());
    (child, log, reader)
}

// A thread, not a task: the log must be whole when the test's runtime is already gone.
fn keep(stream: impl Read + Send + 'static, log: Arc<Mutex<Vec<String>>>, reader: Reader) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            drop(reader.blocking_lock());
            log.lock().unwrap().push(line);
        }
    });
}

fn listening(log: &[String], listener: &str) -> Option<SocketAddr> {
    log.iter().find_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let member = |name: &str| line[name].as_str().or(line["fields"][name].as_str());
        let found = member("message") == Some("listening") && member("listener") == Some(listener);
        found.then(|| member("address").and_then(|address| address.parse().ok())).flatten()
    })
}
