//! A real Redis server for one test: on a free port, in a temporary folder, gone when it is dropped; and a few lines of
//! client, so that a test can look at the server without the driver that it tests.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, mpsc};
use std::time::Duration;

/// A running server.
pub(crate) struct RedisServer {
    /// The process. Nobody else's is ever signalled.
    pub(crate) child: Child,
    port: u16,
    /// Its folder.
    pub(crate) dir: tempfile::TempDir,
}

impl RedisServer {
    /// Starts a server without persistence, with these further settings (`--name value …`).
    pub(crate) fn start(settings: &[&str]) -> RedisServer {
        let dir = tempfile::tempdir().unwrap();
        // A port that is free now may be taken by the time the server binds it.
        for _ in 0..10 {
            let port = free_port();
            if let Some(child) = spawn(dir.path(), port, settings) {
                return RedisServer { child, port, dir };
            }
        }
        panic!("redis-server does not start");
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The answer to one command, as text: of a list the elements, one a line.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.bytes(&words)
    }

    /// As [`RedisServer::command`], with words that are not text.
    pub(crate) fn bytes(&self, words: &[&[u8]]) -> String {
        let mut stream = connect(self.port).unwrap_or_else(|| panic!("the server in {:?} is gone", self.dir));
        send(&mut stream, words);
        read_reply(&mut BufReader::new(stream)).expect("the server answers")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // Killing works on a stopped process too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Starts a server on this port, with nothing in it. `None` if it ended at once.
pub(crate) fn spawn(dir: &Path, port: u16, settings: &[&str]) -> Option<Child> {
    wait_until_up(begin(dir, port, settings), port)
}

/// The process, once it answers on this port. `None` if it ended at once.
pub(crate) fn wait_until_up(mut child: Child, port: u16) -> Option<Child> {
    // The deadline is for a server that never comes up; nothing is concluded from it.
    for _ in 0..1000 {
        if ask(port, &["PING"]).is_some_and(|reply| !reply.starts_with("LOADING")) {
            return Some(child);
        }
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        park(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Starts a server on this port, and does not wait for it.
pub(crate) fn begin(dir: &Path, port: u16, settings: &[&str]) -> Child {
    begin_program(Path::new("redis-server"), dir, port, settings)
}

/// The same of another program, a newer Redis or a Valkey.
pub(crate) fn begin_program(program: &Path, dir: &Path, port: u16, settings: &[&str]) -> Child {
    let mut command = Command::new("setpriv");
    // By default a write beyond the limit of a file's size would end it, where a full disk is but an error.
    command.args(["--pdeathsig", "KILL", "env", "--ignore-signal=XFSZ"]).arg(program);
    command.args(settings.first().filter(|first| !first.starts_with("--")));
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(dir);
    command.args(["--save", "", "--appendonly", "no"]);
    command.args(settings.iter().skip_while(|setting| !setting.starts_with("--")));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (tell, told) = mpsc::channel();
    NURSERY.lock().unwrap().send((command, tell)).expect("the nursery lives as long as the process");
    told.recv().expect("the nursery answers").expect("redis-server 7 and setpriv are installed")
}

/// What to start, and who wants to know.
type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Starts all servers. The kernel ends each when the thread that started it ends, and so with the process that runs the
/// tests, however that ends; the thread of a test ends much earlier.
static NURSERY: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
    let (orders, taken) = mpsc::channel::<Order>();
    std::thread::spawn(move || {
        for (mut command, tell) in taken {
            let _ = tell.send(command.spawn());
        }
    });
    Mutex::new(orders)
});

/// The answer of the server on this port to one command, as text; `None` if there is none.
pub(crate) fn ask(port: u16, words: &[&str]) -> Option<String> {
    let mut stream = connect(port)?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    send(&mut stream, &words);
    read_reply(&mut BufReader::new(stream))
}

fn park(span: Duration) {
    std::thread::park_timeout(span);
}

fn connect(port: u16) -> Option<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
}

fn send(stream: &mut TcpStream, words: &[&[u8]]) {
    let mut message = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        message.extend(format!("${}\r\n", word.len()).bytes());
        message.extend(*word);
        message.extend(b"\r\n");
    }
    let _ = stream.write_all(&message);
}

fn read_reply(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let line = line.strip_suffix("\r\n")?;
    let (kind, rest) = line.split_at_checked(1)?;
    match kind {
        "$" => {
            let Ok(length) = rest.parse::<usize>() else { return Some(String::new()) };
            let mut bytes = vec![0; length + 2];
            reader.read_exact(&mut bytes).ok()?;
            bytes.truncate(length);
            Some(String::from_utf8_lossy(&bytes).into_owned())
        }
        "*" => {
            let count = rest.parse::<usize>().unwrap_or(0);
            let parts: Option<Vec<String>> = (0..count).map(|_| read_reply(reader)).collect();
            Some(parts?.join("\n"))
        }
        _ => Some(rest.to_owned()),
    }
}
