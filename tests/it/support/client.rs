//! The caller: sends exactly the bytes it is told to, and keeps the whole answer, in order.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::net::TcpStream;

use super::DEADLINE;
use super::wire::{Fields, Framing, Head, Wire, values};

/// One request, as it goes on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: String,
    target: String,
    version: &'static str,
    fields: Fields,
    body: Vec<u8>,
    chunks: Option<usize>,
}

impl Request {
    /// A request without a body.
    pub(crate) fn new(method: &str, target: &str) -> Request {
        let host = ("Host".to_owned(), b"shop.test".to_vec());
        Request {
            method: method.into(),
            target: target.into(),
            version: "HTTP/1.1",
            fields: vec![host],
            body: Vec::new(),
            chunks: None,
        }
    }

    /// The request of the cases: `POST /pay` of `{"amount":10}`.
    pub(crate) fn pay() -> Request {
        Request::new("POST", "/pay").json(r#"{"amount":10}"#)
    }

    /// The same by another method.
    pub(crate) fn method(mut self, method: &str) -> Request {
        self.method = method.into();
        self
    }

    /// The same without this field.
    pub(crate) fn without(mut self, name: &str) -> Request {
        self.fields.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    /// The same to another target.
    pub(crate) fn target(mut self, target: &str) -> Request {
        self.target = target.into();
        self
    }

    /// The same, for another host.
    pub(crate) fn host(mut self, host: &str) -> Request {
        self.fields.retain(|(name, _)| name != "Host");
        self.fields.insert(0, ("Host".into(), host.into()));
        self
    }

    /// One more header field line.
    pub(crate) fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Request {
        self.fields.push((name.into(), value.as_ref().to_vec()));
        self
    }

    /// This field in the place of those of its name.
    pub(crate) fn set(mut self, name: &str, value: impl AsRef<[u8]>) -> Request {
        self.fields.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.field(name, value)
    }

    /// The field `Idempotency-Key`.
    pub(crate) fn key(self, key: &str) -> Request {
        self.field("Idempotency-Key", key)
    }

    /// A JSON body.
    pub(crate) fn json(self, body: &str) -> Request {
        self.field("Content-Type", "application/json").body(body)
    }

    /// This body instead.
    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Request {
        self.body = body.as_ref().to_vec();
        self
    }

    /// The body in chunks of this size.
    pub(crate) fn chunked(mut self, size: usize) -> Request {
        self.chunks = Some(size);
        self
    }

    /// As an HTTP/1.0 client would send it.
    pub(crate) fn http10(mut self) -> Request {
        self.version = "HTTP/1.0";
        self
    }

    /// Every byte of it.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} {}\r\n", self.method, self.target, self.version).into_bytes();
        for (name, value) in &self.fields {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        match self.chunks {
            Some(size) => {
                bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                for chunk in self.body.chunks(size) {
                    bytes.extend([format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
                }
                bytes.extend(b"0\r\n\r\n");
            }
            None if self.body.is_empty() && !matches!(self.method.as_str(), "POST" | "PUT" | "PATCH") => {
                bytes.extend(b"\r\n");
            }
            None => {
                bytes.extend(format!("Content-Length: {}\r\n\r\n", self.body.len()).as_bytes());
                bytes.extend(&self.body);
            }
        }
        bytes
    }

    /// Sends it on a connection of its own and returns the answer.
    pub(crate) async fn send(&self, to: SocketAddr) -> Answer {
        let mut connection = Connection::open(to).await;
        connection.send(self).await;
        connection.answer().await
    }

    /// The same, without waiting for the answer here.
    pub(crate) fn begin(&self, to: SocketAddr) -> Pending {
        let request = self.clone();
        Pending(tokio::spawn(async move { request.send(to).await }))
    }
}

/// A request under way.
pub(crate) struct Pending(tokio::task::JoinHandle<Answer>);

impl Pending {
    /// Its answer.
    pub(crate) async fn answer(self) -> Answer {
        self.0.await.unwrap()
    }

    /// Whether it has its answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.0.is_finished()
    }

    /// Closes the connection without having read the answer.
    pub(crate) async fn hang_up(self) {
        self.0.abort();
        // The socket is closed once the task is gone.
        let _ = self.0.await;
    }
}

/// One connection, for what needs more than a request and its answer.
pub(crate) struct Connection {
    wire: Wire<TcpStream>,
    head_only: bool,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(to: SocketAddr) -> Connection {
        Connection::try_open(to).await.unwrap_or_else(|| panic!("no connection to {to}"))
    }

    /// Connects, or not, where the peer may be gone.
    pub(crate) async fn try_open(to: SocketAddr) -> Option<Connection> {
        let stream = TcpStream::connect(to).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Connection { wire: Wire::new(stream), head_only: false })
    }

    /// Writes a request. A peer that closes meanwhile is not an error here: its answer may say why.
    pub(crate) async fn send(&mut self, request: &Request) {
        self.head_only = request.method == "HEAD";
        self.write(&request.to_bytes()).await;
    }

    /// Writes these bytes.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let _ = self.wire.write(bytes).await;
    }

    /// Reads the next answer whole.
    pub(crate) async fn answer(&mut self) -> Answer {
        self.try_answer().await.expect("an answer")
    }

    /// Reads the next answer, `None` when the peer closes instead.
    pub(crate) async fn try_answer(&mut self) -> Option<Answer> {
        let read = async {
            let head = self.next_head().await?;
            let mut answer = Answer::new(&head);
            let bodyless = self.head_only || matches!(answer.status, 204 | 304);
            let framing = if bodyless { Framing::None } else { head.framing(Framing::UntilClose) };
            let body = self.wire.body(framing).await;
            answer.body = body.bytes;
            answer.trailers = body.trailers;
            answer.complete = body.complete;
            Some(answer)
        };
        tokio::time::timeout(DEADLINE, read).await.expect("an answer in time")
    }

    /// Reads the head of the next answer; its body stays to be read by [`Connection::body_until`].
    pub(crate) async fn head(&mut self) -> Answer {
        let head = tokio::time::timeout(DEADLINE, self.next_head()).await.expect("a head in time");
        Answer::new(&head.expect("an answer"))
    }

    /// Reads the next head, be it an interim answer or not.
    pub(crate) async fn interim(&mut self) -> Answer {
        let head = tokio::time::timeout(DEADLINE, self.wire.head()).await.expect("a head in time");
        Answer::new(&head.unwrap().expect("an answer"))
    }

    /// Reads raw bytes of the body, framing and all, until they contain `what`.
    pub(crate) async fn body_until(&mut self, what: &str) -> Vec<u8> {
        let mut seen = Vec::new();
        let read = async {
            while !super::wire::contains(&seen, what.as_bytes()) {
                match self.wire.some().await {
                    Some(bytes) => seen.extend(bytes),
                    None => panic!("the body ended before {what:?}: {:?}", String::from_utf8_lossy(&seen)),
                }
            }
        };
        tokio::time::timeout(DEADLINE, read).await.unwrap_or_else(|_| panic!("{what:?} did not come"));
        seen
    }

    /// Whether the peer closes the connection without another byte.
    pub(crate) async fn closes(&mut self) -> bool {
        tokio::time::timeout(DEADLINE, self.wire.closes()).await.expect("the peer to close or to write")
    }

    async fn next_head(&mut self) -> Option<Head> {
        loop {
            let head = self.wire.head().await.ok()??;
            let interim = head.start.split(' ').nth(1).is_some_and(|s| s.starts_with('1') && s != "101");
            if !interim {
                return Some(head);
            }
        }
    }
}

/// One answer, every byte of it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
    /// Whether the body came to its end.
    pub(crate) complete: bool,
}

impl Answer {
    fn new(head: &Head) -> Answer {
        let status = head.start.split(' ').nth(1);
        Answer {
            status: status.and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("no answer: {:?}", head.start)),
            fields: head.fields.clone(),
            body: Vec::new(),
            trailers: Vec::new(),
            complete: false,
        }
    }

    /// The first value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        values(&self.fields, name).next().and_then(|value| std::str::from_utf8(value).ok())
    }

    /// All values of a field.
    pub(crate) fn all(&self, name: &str) -> Vec<&[u8]> {
        values(&self.fields, name).collect()
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {self:?}"))
    }

    /// Whether it came from a record.
    pub(crate) fn is_replay(&self) -> bool {
        self.field("Idempotent-Replayed") == Some("true")
    }

    /// What is the same on every replay: status, fields that the upstream sent, body.
    pub(crate) fn essence(&self) -> (u16, Fields, Vec<u8>) {
        const OURS: [&str; 8] = [
            "age",
            "via",
            "cache-status",
            "idempotent-replayed",
            "preference-applied",
            "connection",
            "transfer-encoding",
            "content-length",
        ];
        let fields = self.fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
        (self.status, fields.filter(|(name, _)| !OURS.contains(&name.as_str())).collect(), self.body.clone())
    }

    /// The word after `urn:onceproxy:problem:`, empty when the answer is no problem of ours.
    pub(crate) fn problem(&self) -> String {
        if self.field("Content-Type") != Some("application/problem+json") {
            return String::new();
        }
        let json = self.json();
        let kind = json["type"].as_str().and_then(|t| t.strip_prefix("urn:onceproxy:problem:"));
        kind.unwrap_or_default().to_owned()
    }

    /// The member `retry` of a problem.
    pub(crate) fn retry(&self) -> String {
        self.json()["retry"].as_str().unwrap_or_default().to_owned()
    }

    /// Panics unless this refuses another request under a used key, which differs in these parts.
    #[track_caller]
    pub(crate) fn assert_reused(&self, differs: &[&str], retry: &str, original_status: Option<u16>) -> &Answer {
        self.assert_problem(422, "key-reused");
        let json = self.json();
        let seen = (&json["differs"], &json["retry"], json["original_status"].as_u64());
        let expected = (&Value::from(differs.to_vec()), &Value::from(retry), original_status.map(u64::from));
        assert_eq!(seen, expected, "{}", self.shown());
        assert_eq!(self.field("Stripe-Should-Retry"), Some("false"), "{}", self.shown());
        // A client that only wrote its request anew would execute it twice.
        assert!(!self.text().to_lowercase().contains("new"), "{}", self.shown());
        self
    }

    /// The member `record` of a problem.
    pub(crate) fn record(&self) -> String {
        self.json()["record"].as_str().unwrap_or_else(|| panic!("names no record: {}", self.text())).to_owned()
    }

    /// Panics unless this is the first execution's answer.
    #[track_caller]
    pub(crate) fn assert_executed(&self, status: u16) -> &Answer {
        assert_eq!((self.status, self.is_replay()), (status, false), "not a first execution: {}", self.shown());
        self
    }

    /// Panics unless this is a replay with this status.
    #[track_caller]
    pub(crate) fn assert_replay(&self, status: u16) -> &Answer {
        assert_eq!((self.status, self.is_replay()), (status, true), "not a replay: {}", self.shown());
        self
    }

    /// Panics unless this is the problem of this status and type.
    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, problem: &str) -> &Answer {
        let seen = (self.status, self.problem());
        assert_eq!(seen, (status, problem.to_owned()), "another answer: {}", self.shown());
        self
    }

    /// Panics unless this says that an attempt is running.
    #[track_caller]
    pub(crate) fn assert_in_flight(&self) -> &Answer {
        self.assert_problem(409, "request-in-progress");
        assert!(self.field("Retry-After").is_some(), "no Retry-After: {}", self.shown());
        self
    }

    /// Panics unless this says, to a duplicate, that nobody can tell.
    #[track_caller]
    pub(crate) fn assert_unknown(&self) -> &Answer {
        self.assert_problem(409, "outcome-unknown");
        assert_eq!(self.retry(), "operator", "{}", self.shown());
        self
    }

    /// For messages: everything, as text.
    pub(crate) fn shown(&self) -> String {
        let fields: Vec<_> =
            self.fields.iter().map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value))).collect();
        let body: String = self.text().chars().take(600).collect();
        format!("{} [{}] {body}", self.status, fields.join(" | "))
    }
}
