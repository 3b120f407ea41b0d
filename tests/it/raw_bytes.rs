//! Requests byte by byte: each is refused, or reaches the upstream as one sound request, and what stands behind it on
//! the connection is never joined to it.
//!
//! The requests and what becomes of them are the table `raw_bytes/requests.txt`. Each is sent three times, together with
//! a marker request behind it: plain, plain in small pieces, and keyed.

use crate::support::wire::{contains, values};
use crate::support::{Connection, Store, World};

use crate::support::upstream::Received;

const TABLE: &str = include_str!("raw_bytes/requests.txt");

/// What stands behind each request. Its answer is the last.
const MARKER: &[u8] = b"GET /marker HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    Dribbled,
    Keyed,
}

/// What is to become of a request.
#[derive(Debug)]
enum Verdict {
    Close,
    Shut,
    Refuse,
    Forward { method: Vec<u8>, target: Vec<u8>, body: Vec<u8>, last: bool },
}

impl Verdict {
    fn parse(text: &str) -> Verdict {
        let mut words = text.splitn(4, ' ');
        let word = words.next().unwrap_or_default();
        match word {
            "close" => Verdict::Close,
            "shut" => Verdict::Shut,
            "refuse" => Verdict::Refuse,
            "pass" | "last" => {
                let mut part = || unescape(words.next().unwrap_or_default(), None);
                Verdict::Forward { method: part(), target: part(), body: part(), last: word == "last" }
            }
            _ => panic!("not a verdict: {text}"),
        }
    }
}

struct Case {
    name: &'static str,
    verdict: &'static str,
    bytes: &'static str,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    while let Some(head) = lines.next() {
        let (name, verdict) = head.split_once(": ").unwrap_or_else(|| panic!("no verdict: {head}"));
        let bytes = lines.next().and_then(|line| line.strip_prefix("  ")).unwrap_or_else(|| panic!("no bytes: {name}"));
        cases.push(Case { name, verdict, bytes });
    }
    cases
}

/// The bytes of a text with escapes. The key stands where `{k}` and `{h}` say.
fn unescape(text: &str, key: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '{']) {
        bytes.extend(&rest.as_bytes()[..at]);
        rest = &rest[at..];
        if let Some(inner) = rest.strip_prefix('{') {
            let (word, after) = inner.split_once('}').unwrap_or_else(|| panic!("an open brace: {text}"));
            bytes.extend(braced(word, key));
            rest = after;
            continue;
        }
        let (byte, length) = match rest.as_bytes()[1] {
            b'r' => (b'\r', 2),
            b'n' => (b'\n', 2),
            b't' => (b'\t', 2),
            b'0' => (0, 2),
            b'x' => (u8::from_str_radix(&rest[2..4], 16).unwrap(), 4),
            other => panic!("not an escape: {:?} in {text}", char::from(other)),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes.extend(rest.as_bytes());
    bytes
}

fn braced(word: &str, key: Option<&str>) -> Vec<u8> {
    let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
    match word.rsplit_once('*') {
        Some((text, times)) => unescape(text, None).repeat(times.parse().unwrap()),
        None => match word {
            "k" => key.into_bytes(),
            "h" => format!("Host: shop.test\r\n{key}").into_bytes(),
            "hi" => b"Content-Length: 2\r\n\r\nhi".to_vec(),
            _ => panic!("not a word in braces: {word}"),
        },
    }
}

/// The statuses that the proxy answered with until it closed the connection.
async fn exchange(world: &World, bytes: &[u8], form: Form) -> Vec<u16> {
    let mut connection = Connection::open(world.address()).await;
    let all = [bytes, MARKER].concat();
    if form == Form::Dribbled {
        for piece in all.chunks(1 + all.len() / 40) {
            connection.write(piece).await;
            tokio::task::yield_now().await;
        }
    } else {
        connection.write(&all).await;
    }
    let mut statuses = Vec::new();
    while let Some(answer) = connection.try_answer().await {
        statuses.push(answer.status);
    }
    statuses
}

/// What is wrong with a request that the upstream got.
pub(crate) fn unsound(received: &Received) -> Option<String> {
    let head = received.head.strip_suffix(b"\r\n\r\n").unwrap_or(&received.head);
    let text: Vec<&[u8]> = head.split(|byte| *byte == b'\n').collect();
    let mut lines = Vec::new();
    for (index, line) in text.iter().enumerate() {
        let is_last = index + 1 == text.len();
        match line.strip_suffix(b"\r") {
            Some(line) => lines.push(line),
            None if is_last => lines.push(line),
            None => return Some("a line ends with LF alone".to_owned()),
        }
    }
    let words: Vec<&[u8]> = lines[0].split(|byte| *byte == b' ').collect();
    if words.len() != 3 || words[2] != b"HTTP/1.1" || !is_token(words[0]) || words[1].is_empty() {
        return Some("the request line is not of three words".to_owned());
    }
    if words[1].iter().any(|byte| byte.is_ascii_control() || *byte == b'#') {
        return Some("the target has a control byte or a fragment".to_owned());
    }
    for line in &lines[1..] {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return Some("a field has no colon".to_owned());
        };
        if !is_token(&line[..colon]) {
            return Some("a field's name is not a token".to_owned());
        }
        if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            return Some("a field has a control byte".to_owned());
        }
    }
    let count = |name| values(&received.fields, name).count();
    let (lengths, codings) = (count("content-length"), count("transfer-encoding"));
    let length = values(&received.fields, "content-length").next();
    if lengths + codings > 1 || length.is_some_and(|length| length != received.body.len().to_string().as_bytes()) {
        return Some("its framing is not one, in plain digits".to_owned());
    }
    for name in ["connection", "upgrade", "te", "keep-alive", "proxy-connection", "expect", "http2-settings"] {
        if count(name) > 0 {
            return Some(format!("it has {name}, which is of one hop"));
        }
    }
    let framed: Vec<&(String, Vec<u8>)> =
        received.trailers.iter().filter(|(name, _)| !name.to_ascii_lowercase().starts_with("x-")).collect();
    if !framed.is_empty() {
        return Some(format!("a trailer says how it is framed or routed: {framed:?}"));
    }
    (count("host") != 1).then(|| "it has not exactly one Host".to_owned())
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

/// What is wrong with what became of a request.
fn complaint(verdict: &Verdict, statuses: &[u16], received: &[Received]) -> Option<String> {
    let refused = |status: &u16| (400..500).contains(status);
    if let Some(what) = received.iter().find_map(unsound) {
        return Some(what);
    }
    let marked = received.last().is_some_and(|last| last.target == "/marker");
    let before = if marked { &received[..received.len() - 1] } else { received };
    match verdict {
        Verdict::Close | Verdict::Shut if !received.is_empty() => Some("something was forwarded".to_owned()),
        Verdict::Close => (statuses.len() != 1 || !refused(&statuses[0])).then(|| "no plain refusal".to_owned()),
        // HTTP/2's preface is shut out without a word if it is read in one piece, and as a bad request line otherwise.
        Verdict::Shut => (statuses.len() > 1 || !statuses.iter().all(refused)).then(|| "no plain refusal".to_owned()),
        Verdict::Refuse if !before.is_empty() => Some("it was forwarded".to_owned()),
        Verdict::Refuse if !marked => Some("what stands behind it was lost".to_owned()),
        Verdict::Refuse => (statuses.len() != 2 || !refused(&statuses[0])).then(|| "no plain refusal".to_owned()),
        Verdict::Forward { method, target, body, last } => {
            let [one] = before else { return Some(format!("it was forwarded {} times", before.len())) };
            let line = [method.as_slice(), b" ", target, b" HTTP/1.1\r\n"].concat();
            if !one.head.starts_with(&line) || one.body != *body {
                return Some("the upstream got something else".to_owned());
            }
            if *last == marked || statuses.len() != 1 + usize::from(marked) {
                return Some("what stands behind it was lost, or read after the end".to_owned());
            }
            (!statuses.iter().all(|status| *status == 201)).then(|| "it was not answered as it should".to_owned())
        }
    }
}

fn shown(received: &[Received]) -> String {
    let shown = received.iter().map(|one| {
        let head: String = one.head.escape_ascii().to_string().chars().take(500).collect();
        format!("\n    {head} + {:?}", one.body.escape_ascii().to_string())
    });
    shown.collect()
}

async fn run(form: Form) {
    let world = World::build(Store::memory()).start().await;
    let cases = cases();
    assert!(cases.len() >= 150, "only {} requests", cases.len());
    let mut complaints = Vec::new();
    for Case { name, verdict, bytes } in &cases {
        let verdict = match verdict.split_once(" | ") {
            Some((_, keyed)) if form == Form::Keyed => keyed,
            Some((plain, _)) => plain,
            None => verdict,
        };
        let bytes = unescape(bytes, (form == Form::Keyed).then_some(name));
        let before = world.upstream.received().len();
        let statuses = exchange(&world, &bytes, form).await;
        let received = world.upstream.received().split_off(before);
        if let Some(what) = complaint(&Verdict::parse(verdict), &statuses, &received) {
            complaints.push(format!("{name} ({verdict}): {what}; {statuses:?} {}", shown(&received)));
        }
    }
    // Whatever is left on a connection to the upstream would stand before the next request.
    let last = world.send(&crate::support::Request::new("GET", "/last")).await;
    last.assert_executed(201);
    assert_eq!(world.upstream.last().target, "/last");
    assert!(!world.upstream.received().iter().any(|one| contains(&one.head, b"hidden")));
    assert!(complaints.is_empty(), "{form:?}: {} complaints\n{}", complaints.len(), complaints.join("\n"));
}

#[tokio::test]
async fn plain_requests_reach_the_upstream_sound_or_not_at_all() {
    run(Form::Plain).await;
}

#[tokio::test]
async fn plain_requests_in_pieces_reach_the_upstream_sound_or_not_at_all() {
    run(Form::Dribbled).await;
}

#[tokio::test]
async fn keyed_requests_reach_the_upstream_sound_or_not_at_all() {
    run(Form::Keyed).await;
}
