//! Requests of HTTP/2 frame by frame: each is refused, or reaches the upstream as one sound request of HTTP/1.1.
//!
//! What smuggles requests from HTTP/2 into HTTP/1.1 is in the table [`cases`]: lengths that are not those of the data,
//! fields of a connection, bytes that end a line, pseudo-fields in odd places. Each is sent twice, plain and keyed.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::raw_bytes::unsound;
use crate::support::upstream::Received;
use crate::support::{DEADLINE, Request, Store, World, reply};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITIZED: u8 = 32;
const WHOLE: u8 = END_STREAM | END_HEADERS;

type Field<'a> = (&'a [u8], &'a [u8]);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A string in HPACK, not compressed (RFC 7541 section 5.2).
fn text(bytes: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    match bytes.len() {
        short @ 0..127 => coded.push(u8::try_from(short).unwrap()),
        long => {
            let mut rest = long - 127;
            coded.push(127);
            while rest >= 128 {
                coded.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            coded.push(u8::try_from(rest).unwrap());
        }
    }
    coded.extend(bytes);
    coded
}

/// Fields in HPACK, each as a literal that is not indexed.
fn block(fields: &[Field<'_>]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// What is to become of a request.
#[derive(Clone, Debug)]
enum Verdict {
    /// An answer of 4xx or 501, a reset, or the end of the connection; and nothing is forwarded.
    Refuse,
    /// One request with this line and body.
    Pass(&'static str, &'static [u8]),
    /// Either of the two, with whatever target.
    Either,
}

/// Makes frames that may carry these fields, the key, among their others.
type Frames = dyn Fn(&[Field<'_>]) -> Vec<u8>;

struct Case {
    name: String,
    verdict: Verdict,
    /// What is sent on stream 1, given the fields of a key.
    frames: Box<Frames>,
}

fn case(name: &str, verdict: Verdict, frames: impl Fn(&[Field<'_>]) -> Vec<u8> + 'static) -> Case {
    Case { name: name.to_owned(), verdict, frames: Box::new(frames) }
}

const BASE: [Field<'static>; 4] =
    [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"shop.test"), (b":path", b"/p")];

/// `POST /p` with these fields more, and this body in one piece if there is one.
fn post(more: &[Field<'_>], key: &[Field<'_>], body: Option<&[u8]>) -> Vec<u8> {
    let head = block(&[&BASE[..], key, more].concat());
    match body {
        None => frame(HEADERS, WHOLE, 1, &head),
        Some(body) => [frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, END_STREAM, 1, body)].concat(),
    }
}

/// A request with exactly these fields before the key.
fn exactly(fields: &'static [Field<'static>]) -> impl Fn(&[Field<'_>]) -> Vec<u8> + 'static {
    move |key| frame(HEADERS, WHOLE, 1, &block(&[fields, key].concat()))
}

/// The base with another value of one pseudo-field.
fn with(name: &'static str, value: Vec<u8>) -> impl Fn(&[Field<'_>]) -> Vec<u8> + 'static {
    move |key| {
        let fields: Vec<Field<'_>> = BASE
            .iter()
            .map(|(known, old)| (*known, if *known == name.as_bytes() { &value[..] } else { old }))
            .collect();
        frame(HEADERS, WHOLE, 1, &block(&[&fields[..], key].concat()))
    }
}

/// The base and fields more.
fn and(more: &'static [Field<'static>]) -> impl Fn(&[Field<'_>]) -> Vec<u8> + 'static {
    move |key| post(more, key, None)
}

/// The base with a declared length and a body.
fn sized(length: &'static [u8], body: Option<&'static [u8]>) -> impl Fn(&[Field<'_>]) -> Vec<u8> + 'static {
    move |key| post(&[(b"content-length", length)], key, body)
}

fn cases() -> Vec<Case> {
    use Verdict::{Either, Pass, Refuse};
    const P: &str = "POST /p";
    let mut all = vec![
        case("plain", Pass(P, b""), and(&[])),
        case("body with a length", Pass(P, b"hi"), sized(b"2", Some(b"hi"))),
        case("body without a length", Pass(P, b"hi"), |key| post(&[], key, Some(b"hi"))),
        case("body in pieces", Pass(P, b"hihi"), |key| {
            let head = block(&[&BASE[..], key].concat());
            [
                frame(HEADERS, END_HEADERS, 1, &head),
                frame(DATA, 0, 1, b"hi"),
                frame(DATA, 0, 1, b""),
                frame(DATA, END_STREAM, 1, b"hi"),
            ]
            .concat()
        }),
        case("body that looks like chunks", Pass(P, b"0\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n"), |key| {
            post(&[], key, Some(b"0\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n"))
        }),
        case("body that looks like chunks, with its length", Pass(P, b"0\r\n\r\n"), sized(b"5", Some(b"0\r\n\r\n"))),
        case("head in pieces", Pass(P, b""), |key| {
            let head = block(&[&BASE[..], key].concat());
            let (first, rest) = head.split_at(7);
            let (second, third) = rest.split_at(9);
            [
                frame(HEADERS, END_STREAM, 1, first),
                frame(CONTINUATION, 0, 1, second),
                frame(CONTINUATION, END_HEADERS, 1, third),
            ]
            .concat()
        }),
        case("head and data padded", Pass(P, b"hi"), |key| {
            let head = [&[3][..], &block(&[&BASE[..], key].concat()), &[0; 3]].concat();
            [
                frame(HEADERS, END_HEADERS | PADDED, 1, &head),
                frame(DATA, END_STREAM | PADDED, 1, &[2, b'h', b'i', 0, 0]),
            ]
            .concat()
        }),
        case("unknown frames", Pass(P, b""), |key| {
            [frame(77, 0xff, 0, b"x"), post(&[], key, None), frame(78, 0, 1, b"y")].concat()
        }),
        // Lengths.
        case("length over the data", Refuse, sized(b"5", Some(b"hi"))),
        case("length under the data", Refuse, sized(b"1", Some(b"hi"))),
        case("length and no data", Refuse, sized(b"5", None)),
        case("length 0 and data", Refuse, sized(b"0", Some(b"hi"))),
        case("length with a sign", Refuse, sized(b"+2", Some(b"hi"))),
        case("length below zero", Refuse, sized(b"-2", Some(b"hi"))),
        case("length in hex", Refuse, sized(b"0x2", Some(b"hi"))),
        case("length in words", Refuse, sized(b"two", Some(b"hi"))),
        case("length as a list", Refuse, sized(b"2, 2", Some(b"hi"))),
        case("length empty", Refuse, sized(b"", Some(b"hi"))),
        case("length out of range", Refuse, sized(b"18446744073709551618", Some(b"hi"))),
        case("two equal lengths", Refuse, |key| {
            post(&[(b"content-length", b"2"), (b"content-length", b"2")], key, Some(b"hi"))
        }),
        case("two different lengths", Refuse, |key| {
            post(&[(b"content-length", b"2"), (b"content-length", b"5")], key, Some(b"hi"))
        }),
        case("chunked", Refuse, |key| post(&[(b"transfer-encoding", b"chunked")], key, Some(b"0\r\n\r\n"))),
        case("chunked, and a length", Refuse, |key| {
            post(&[(b"transfer-encoding", b"chunked"), (b"content-length", b"5")], key, Some(b"0\r\n\r\n"))
        }),
        case("identity", Refuse, |key| post(&[(b"transfer-encoding", b"identity")], key, Some(b"hi"))),
        // Fields of a connection of HTTP/1.1.
        case("connection: close", Refuse, and(&[(b"connection", b"close")])),
        case("connection that names a field", Refuse, and(&[(b"connection", b"x-a"), (b"x-a", b"1")])),
        case("keep-alive", Refuse, and(&[(b"keep-alive", b"timeout=5")])),
        case("proxy-connection", Refuse, and(&[(b"proxy-connection", b"close")])),
        case("upgrade", Refuse, and(&[(b"upgrade", b"websocket")])),
        case("te: gzip", Refuse, and(&[(b"te", b"gzip")])),
        case("te: trailers", Pass(P, b""), and(&[(b"te", b"trailers")])),
        // Names and values.
        case("name in upper case", Refuse, and(&[(b"X-Up", b"1")])),
        case("transfer-encoding in upper case", Refuse, |key| {
            post(&[(b"Transfer-Encoding", b"chunked")], key, Some(b"0\r\n\r\n"))
        }),
        case("name with a space", Refuse, and(&[(b"x a", b"1")])),
        case("name with a space behind it", Refuse, and(&[(b"transfer-encoding ", b"chunked")])),
        case("name with a colon", Refuse, and(&[(b"transfer-encoding: chunked\r\nx", b"1")])),
        case("name with CR LF", Refuse, and(&[(b"x\r\nhost: evil", b"1")])),
        case("name with NUL", Refuse, and(&[(b"x\0", b"1")])),
        case("name beyond ASCII", Refuse, and(&[(b"x-\xe9", b"1")])),
        case("name empty", Refuse, and(&[(b"", b"1")])),
        case("value with CR LF", Refuse, and(&[(b"x-a", b"1\r\nhost: evil")])),
        case("value with LF", Refuse, and(&[(b"x-a", b"1\nhost: evil")])),
        case("value with CR", Refuse, and(&[(b"x-a", b"1\rhost: evil")])),
        case("value with NUL", Refuse, and(&[(b"x-a", b"1\0")])),
        case("value with DEL", Refuse, and(&[(b"x-a", b"1\x7f")])),
        case("value with two requests", Refuse, and(&[(b"x-a", b"1\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a")])),
        case("value with white space around it", Refuse, and(&[(b"x-a", b" 1\t")])),
        case("value with white space before it", Refuse, and(&[(b"authorization", b" Bearer a")])),
        case("value with white space behind it", Refuse, and(&[(b"authorization", b"Bearer a ")])),
        case("value beyond ASCII", Pass(P, b""), and(&[(b"x-a", b"\xe9\xff")])),
        case("value empty", Pass(P, b""), and(&[(b"x-a", b"")])),
        // Pseudo-fields.
        case(
            "pseudo-field behind a field",
            Refuse,
            exactly(&[
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":authority", b"shop.test"),
                (b"x-a", b"1"),
                (b":path", b"/p"),
            ]),
        ),
        case(
            "two methods",
            Refuse,
            exactly(&[
                (b":method", b"POST"),
                (b":method", b"GET"),
                (b":scheme", b"http"),
                (b":authority", b"shop.test"),
                (b":path", b"/p"),
            ]),
        ),
        case(
            "two paths",
            Refuse,
            exactly(&[
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":authority", b"shop.test"),
                (b":path", b"/p"),
                (b":path", b"/q"),
            ]),
        ),
        case(
            "two schemes",
            Refuse,
            exactly(&[
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":scheme", b"https"),
                (b":authority", b"shop.test"),
                (b":path", b"/p"),
            ]),
        ),
        case(
            "two authorities",
            Refuse,
            exactly(&[
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":authority", b"shop.test"),
                (b":authority", b"evil"),
                (b":path", b"/p"),
            ]),
        ),
        case(
            "an unknown pseudo-field",
            Refuse,
            exactly(&[
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":authority", b"shop.test"),
                (b":path", b"/p"),
                (b":evil", b"1"),
            ]),
        ),
        case(
            "the pseudo-field of an answer",
            Refuse,
            exactly(&[
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":authority", b"shop.test"),
                (b":path", b"/p"),
                (b":status", b"200"),
            ]),
        ),
        case(
            "a protocol without the setting",
            Refuse,
            exactly(&[
                (b":method", b"CONNECT"),
                (b":protocol", b"websocket"),
                (b":scheme", b"http"),
                (b":authority", b"shop.test"),
                (b":path", b"/p"),
            ]),
        ),
        case("no method", Refuse, exactly(&[(b":scheme", b"http"), (b":authority", b"shop.test"), (b":path", b"/p")])),
        case("no scheme", Refuse, exactly(&[(b":method", b"POST"), (b":authority", b"shop.test"), (b":path", b"/p")])),
        case(
            "no path",
            Refuse,
            exactly(&[(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"shop.test")]),
        ),
        case(
            "no authority and no host",
            Refuse,
            exactly(&[(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/p")]),
        ),
        case(
            "a host and no authority",
            Pass(P, b""),
            exactly(&[(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/p"), (b"host", b"shop.test")]),
        ),
        case("the same host twice over", Pass(P, b""), and(&[(b"host", b"shop.test")])),
        case("another host than the authority", Refuse, and(&[(b"host", b"evil")])),
        case("another port than the authority's", Refuse, and(&[(b"host", b"shop.test:81")])),
        case("two hosts", Refuse, and(&[(b"host", b"shop.test"), (b"host", b"evil")])),
        case("a host with CR LF", Refuse, and(&[(b"host", b"shop.test\r\nx: y")])),
        case("tunnel", Refuse, exactly(&[(b":method", b"CONNECT"), (b":authority", b"shop.test:443")])),
        // Trailers.
        case("trailers that no one should have", Either, |key| {
            let head = block(&[&BASE[..], key, &[(&b"trailer"[..], &b"host, content-length"[..])]].concat());
            let trailers: [Field<'_>; 3] = [(b"host", b"evil"), (b"content-length", b"100"), (b"x-sum", b"1")];
            [
                frame(HEADERS, END_HEADERS, 1, &head),
                frame(DATA, 0, 1, b"hi"),
                frame(HEADERS, WHOLE, 1, &block(&trailers)),
            ]
            .concat()
        }),
        // Of them the fields are dropped, or the request is.
        case("trailers with a pseudo-field", Either, |key| {
            let head = block(&[&BASE[..], key, &[(&b"content-length"[..], &b"2"[..])]].concat());
            let trailers: [Field<'_>; 1] = [(b":path", b"/hidden")];
            [
                frame(HEADERS, END_HEADERS, 1, &head),
                frame(DATA, 0, 1, b"hi"),
                frame(HEADERS, WHOLE, 1, &block(&trailers)),
            ]
            .concat()
        }),
        case("trailers behind less data than was said", Refuse, |key| {
            let head = block(&[&BASE[..], key, &[(&b"content-length"[..], &b"5"[..])]].concat());
            let trailers: [Field<'_>; 1] = [(b"x-sum", b"1")];
            [
                frame(HEADERS, END_HEADERS, 1, &head),
                frame(DATA, 0, 1, b"hi"),
                frame(HEADERS, WHOLE, 1, &block(&trailers)),
            ]
            .concat()
        }),
        case("a second head that ends nothing", Refuse, |key| {
            let head = block(&[&BASE[..], key].concat());
            [frame(HEADERS, END_HEADERS, 1, &head), frame(HEADERS, END_HEADERS, 1, &head)].concat()
        }),
        // Frames.
        case("a head on stream 0", Refuse, |key| frame(HEADERS, WHOLE, 0, &block(&[&BASE[..], key].concat()))),
        case("a head on an even stream", Refuse, |key| frame(HEADERS, WHOLE, 2, &block(&[&BASE[..], key].concat()))),
        case("data on a stream that is not open", Refuse, |_| frame(DATA, END_STREAM, 1, b"hi")),
        case("data on stream 0", Refuse, |_| frame(DATA, END_STREAM, 0, b"hi")),
        case("a head that goes on by itself", Refuse, |key| {
            frame(CONTINUATION, WHOLE, 1, &block(&[&BASE[..], key].concat()))
        }),
        case("a head that goes on elsewhere", Refuse, |key| {
            let head = block(&[&BASE[..], key].concat());
            [frame(HEADERS, END_STREAM, 1, &head[..9]), frame(CONTINUATION, END_HEADERS, 3, &head[9..])].concat()
        }),
        case("data in the middle of a head", Refuse, |key| {
            let head = block(&[&BASE[..], key].concat());
            [
                frame(HEADERS, 0, 1, &head[..9]),
                frame(DATA, 0, 1, b"hi"),
                frame(CONTINUATION, END_HEADERS, 1, &head[9..]),
            ]
            .concat()
        }),
        case("more padding than there is", Refuse, |key| {
            let head = [&[255][..], &block(&[&BASE[..], key].concat())].concat();
            frame(HEADERS, WHOLE | PADDED, 1, &head)
        }),
        case("a frame that is too large", Refuse, |_| frame(HEADERS, WHOLE, 1, &[0; 16_385])),
        case("an index that is not there", Refuse, |_| frame(HEADERS, WHOLE, 1, &[0xff, 0xff, 0xff, 0x0f])),
        case("an index of zero", Refuse, |_| frame(HEADERS, WHOLE, 1, &[0x80])),
        case("a head that is cut off", Refuse, |_| frame(HEADERS, WHOLE, 1, &[0, 7, b':', b'm'])),
        case("a code that is broken", Refuse, |_| frame(HEADERS, WHOLE, 1, &[0x04, 0x84, 0xff, 0xff, 0xff, 0xff])),
        case("a stream that hangs on itself", Refuse, |key| {
            let head = [&[0, 0, 0, 1, 16][..], &block(&[&BASE[..], key].concat())].concat();
            frame(HEADERS, WHOLE | PRIORITIZED, 1, &head)
        }),
        case("a promise from a client", Refuse, |key| {
            let head = [&[0, 0, 0, 2][..], &block(&[&BASE[..], key].concat())].concat();
            frame(PROMISE, END_HEADERS, 1, &head)
        }),
        case("a window of nothing", Refuse, |_| frame(WINDOW, 0, 0, &[0; 4])),
        case("a window over the limit", Refuse, |_| frame(WINDOW, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        case("a reset of what is not open", Refuse, |_| frame(RESET, 0, 1, &[0, 0, 0, 8])),
        case("a priority of the wrong size", Refuse, |_| frame(PRIORITY, 0, 1, &[0; 4])),
        case("settings on a stream", Refuse, |_| frame(SETTINGS, 0, 1, &[])),
        case("settings of the wrong size", Refuse, |_| frame(SETTINGS, 0, 0, &[0; 5])),
        case("an acknowledgement with settings", Refuse, |_| frame(SETTINGS, 1, 0, &[0; 6])),
        case("a ping of the wrong size", Refuse, |_| frame(PING, 0, 0, &[0; 7])),
        case("a ping on a stream", Refuse, |_| frame(PING, 0, 1, &[0; 8])),
        case("a farewell on a stream", Refuse, |_| frame(GOAWAY, 0, 1, &[0; 8])),
    ];
    for (what, path, verdict) in [
        ("empty", &b""[..], Refuse),
        ("without a slash", b"p", Refuse),
        ("an asterisk", b"*", Refuse),
        ("a query alone", b"?x", Refuse),
        ("with a space", b"/a b", Refuse),
        ("with a version behind it", b"/ HTTP/1.1\r\nhost: evil\r\n\r\nGET /hidden", Refuse),
        ("with a tab", b"/a\tb", Refuse),
        ("with CR LF", b"/a\r\nx: y", Refuse),
        ("with NUL", b"/a\0", Refuse),
        // The parser takes it off, before anyone can see it.
        ("with a fragment", b"/p#f", Pass("POST /p", b"")),
        ("absolute", b"http://evil.test/x", Refuse),
        ("an authority", b"evil.test:80", Refuse),
        ("with two slashes", b"//evil.test/x", Pass("POST //evil.test/x", b"")),
        ("with dots", b"/a/../b/./c", Pass("POST /a/../b/./c", b"")),
        ("with codes", b"/%2e%2e/%0d%0a", Pass("POST /%2e%2e/%0d%0a", b"")),
        ("with a query", b"/p?a=/%20&b", Pass("POST /p?a=/%20&b", b"")),
        ("beyond ASCII", b"/\xc3\xa9", Either),
        ("with a backslash", b"/a\\b", Either),
    ] {
        all.push(case(&format!("path {what}"), verdict, with(":path", path.to_vec())));
    }
    for (what, method, verdict) in [
        ("empty", &b""[..], Refuse),
        ("with a space", b"PO ST", Refuse),
        ("with a line behind it", b"GET /hidden HTTP/1.1\r\nhost: a\r\n\r\nPOST", Refuse),
        ("in lower case", b"post", Refuse),
        ("of its own", b"BREW", Pass("BREW /p", b"")),
    ] {
        all.push(case(&format!("method {what}"), verdict, with(":method", method.to_vec())));
    }
    for (what, authority) in [
        ("with user information", &b"user@shop.test"[..]),
        ("with a space", b"shop.test evil"),
        ("with a path", b"shop.test/evil"),
        ("with a comma", b"shop.test,evil"),
        ("with two ports", b"shop.test:80:80"),
        ("with CR LF", b"shop.test\r\nx: y"),
        ("with NUL", b"shop.test\0"),
        ("beyond ASCII", b"shop.t\xc3\xa9st"),
    ] {
        all.push(case(&format!("authority {what}"), Refuse, with(":authority", authority.to_vec())));
    }
    for (what, scheme) in [
        ("other", &b"ftp"[..]),
        ("empty", b""),
        ("with a line behind it", b"http\r\nx: y"),
        ("that is a URL", b"http://evil/"),
    ] {
        all.push(case(&format!("scheme {what}"), Refuse, with(":scheme", scheme.to_vec())));
    }
    all
}

/// What became of stream 1.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Answered(u16),
    Reset,
    Closed,
}

/// Sends these frames on a connection of their own, and reads until something has become of them.
async fn exchange(world: &World, frames: &[u8]) -> End {
    // No table, so that the status stands in the answer itself.
    let settings = frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]);
    exchange_from_preface(world, &[&settings[..], frames].concat()).await
}

/// The same without the client's settings.
async fn exchange_from_preface(world: &World, frames: &[u8]) -> End {
    let mut stream = TcpStream::connect(world.address()).await.unwrap();
    let start = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], frames].concat();
    stream.write_all(&start).await.unwrap();
    let reading = async {
        loop {
            let mut head = [0; 9];
            if stream.read_exact(&mut head).await.is_err() {
                return End::Closed;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let number = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let mut payload = vec![0; length];
            if stream.read_exact(&mut payload).await.is_err() {
                return End::Closed;
            }
            match (head[3], number) {
                (HEADERS, 1) => return End::Answered(status(&payload)),
                (RESET, 1) => return End::Reset,
                (GOAWAY, _) => return End::Closed,
                _ => {}
            }
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.expect("something becomes of it")
}

/// The status that an answer's fields begin with.
fn status(block: &[u8]) -> u16 {
    let block = match block {
        // The size of the table, which we have asked for.
        [0x20..=0x3f, rest @ ..] => rest,
        block => block,
    };
    match block {
        [0x88, ..] => 200,
        [0x8c, ..] => 400,
        [0x8d, ..] => 404,
        [0x8e, ..] => 500,
        // A name of the table and a value: digits in Huffman's code, of which those below 3 have five bits.
        [0x08 | 0x48, length, rest @ ..] => digits(&rest[..usize::from(length & 0x7f)], length & 0x80 != 0),
        other => panic!("not a status: {other:?}"),
    }
}

/// Three digits, compressed or not (RFC 7541 appendix B).
fn digits(bytes: &[u8], coded: bool) -> u16 {
    if !coded {
        return std::str::from_utf8(bytes).unwrap().parse().unwrap();
    }
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let mut rest = bits.as_str();
    let mut value = 0;
    for _ in 0..3 {
        let (digit, length) = match u16::from_str_radix(&rest[..5], 2).unwrap() {
            small @ 0..=2 => (small, 5),
            _ => (u16::from_str_radix(&rest[..6], 2).unwrap() - 0b01_1001 + 3, 6),
        };
        value = value * 10 + digit;
        rest = &rest[length..];
    }
    value
}

/// What is wrong with what became of a request.
fn complaint(verdict: &Verdict, end: &End, received: &[Received]) -> Option<String> {
    if let Some(what) = received.iter().find_map(unsound) {
        return Some(what);
    }
    let refused = match end {
        End::Answered(status) => (400..500).contains(status) || *status == 501,
        End::Reset | End::Closed => true,
    };
    match (verdict, received) {
        (_, [_, _, ..]) => Some("it was forwarded more than once".to_owned()),
        (Verdict::Refuse | Verdict::Either, []) => {
            (!refused).then(|| "it was neither refused nor forwarded".to_owned())
        }
        (Verdict::Refuse, [_]) => Some("it was forwarded".to_owned()),
        (Verdict::Pass(..), []) => Some("it was not forwarded".to_owned()),
        (Verdict::Either, [_]) => (*end != End::Answered(200)).then(|| "it was not answered".to_owned()),
        (Verdict::Pass(line, body), [one]) => {
            let whole = format!("{line} HTTP/1.1\r\n");
            let same = one.head.starts_with(whole.as_bytes()) && one.body == *body;
            let host = one.field("Host").as_deref() == Some("shop.test");
            if !same || !host {
                return Some("the upstream got something else".to_owned());
            }
            (*end != End::Answered(200)).then(|| "it was not answered".to_owned())
        }
    }
}

async fn run(keyed: bool) {
    let world = World::build(Store::memory()).top("h2c = true").start().await;
    world.upstream.always(|_| reply(200).body("ok").into());
    let cases = cases();
    assert!(cases.len() >= 120, "only {} requests", cases.len());
    let mut complaints = Vec::new();
    for (number, Case { name, verdict, frames }) in cases.iter().enumerate() {
        let key = format!("k-{number}");
        let key: [Field<'_>; 1] = [(b"idempotency-key", key.as_bytes())];
        let bytes = frames(if keyed { &key } else { &[] });
        let before = world.upstream.received().len();
        let end = exchange(&world, &bytes).await;
        let received = world.upstream.received().split_off(before);
        if let Some(what) = complaint(verdict, &end, &received) {
            let heads: Vec<_> = received.iter().map(|one| one.head.escape_ascii().to_string()).collect();
            complaints.push(format!("{name} ({verdict:?}): {what}; {end:?} {heads:?}"));
        }
    }
    // Whatever is left on a connection to the upstream would stand before the next request, and be seen with it.
    assert_eq!(world.send(&Request::new("GET", "/last")).await.status, 200);
    assert_eq!(world.upstream.last().target, "/last");
    assert!(
        !world
            .upstream
            .received()
            .iter()
            .any(|one| one.target.contains("hidden") || one.field("Host").as_deref() == Some("evil"))
    );
    assert!(complaints.is_empty(), "{} complaints\n{}", complaints.len(), complaints.join("\n"));
    let open = world.proxy().open_records("").await;
    assert!(open.is_empty(), "{open:?}");
}

#[tokio::test]
async fn plain_requests_reach_the_upstream_sound_or_not_at_all() {
    run(false).await;
}

#[tokio::test]
async fn keyed_requests_reach_the_upstream_sound_or_not_at_all() {
    run(true).await;
}

/// A request whose client takes it back before its body has ended is no shorter request.
#[tokio::test]
async fn a_client_that_does_not_begin_with_its_settings_is_closed() {
    let world = World::build(Store::memory()).top("h2c = true").start().await;
    world.upstream.always(|_| reply(200).body("ok").into());
    let settings = |flags| frame(SETTINGS, flags, 0, &[]);
    for first in [post(&[], &[], None), frame(PING, 0, 0, &[0; 8]), settings(1)] {
        let late = [&first[..], &settings(0), &post(&[], &[], None)].concat();
        assert_eq!(exchange_from_preface(&world, &late).await, End::Closed);
    }
    assert!(world.upstream.received().is_empty());
    assert_ne!(exchange_from_preface(&world, &[settings(0), post(&[], &[], None)].concat()).await, End::Closed);
}

#[tokio::test]
async fn what_is_taken_back_before_its_end_is_not_forwarded() {
    let world = World::build(Store::memory()).top("h2c = true").start().await;
    let mut number = 0;
    for reason in [0u32, 1, 5, 8] {
        for (keyed, lengthy, piece) in [
            (false, false, &b""[..]),
            (true, false, b""),
            (false, true, b""),
            (true, true, b""),
            (false, false, b"half"),
            (true, false, b"half"),
            (false, true, b"half"),
            (true, true, b"half"),
        ] {
            for pause in [false, true] {
                number += 1;
                let key = format!("k-{number}");
                let fields: Vec<Field<'_>> = [
                    keyed.then_some((&b"idempotency-key"[..], key.as_bytes())),
                    lengthy.then_some((&b"content-length"[..], &b"8"[..])),
                ]
                .into_iter()
                .flatten()
                .collect();
                let head = block(&[&BASE[..], &fields].concat());
                let mut begun = frame(HEADERS, END_HEADERS, 1, &head);
                if !piece.is_empty() {
                    begun.extend(frame(DATA, 0, 1, piece));
                }
                let taken_back = frame(RESET, 0, 1, &reason.to_be_bytes());
                let mut stream = TcpStream::connect(world.address()).await.unwrap();
                let start = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat();
                stream.write_all(&[start, begun].concat()).await.unwrap();
                if pause {
                    answered(&mut stream, PING, &frame(PING, 0, 0, b"01234567")).await;
                }
                // Another request behind it, whose answer says that the first has been dealt with.
                let path = format!("/after-{number}");
                let after: [Field<'_>; 4] = [
                    (b":method", b"GET"),
                    (b":scheme", b"http"),
                    (b":authority", b"shop.test"),
                    (b":path", path.as_bytes()),
                ];
                let after = frame(HEADERS, WHOLE, 3, &block(&after));
                answered(&mut stream, HEADERS, &[taken_back, after].concat()).await;
            }
        }
    }
    let whole: Vec<_> = world.upstream.received().into_iter().filter(|one| one.method == "POST").collect();
    assert!(whole.is_empty(), "{} of {number} were taken for whole: {:?}", whole.len(), whole[0]);
    assert_eq!(world.executions(), number);
    assert!(world.proxy().open_records("").await.is_empty());
}

/// The same for a plain body that is on its way already: the upstream sees it break off, and no end.
#[tokio::test]
async fn what_is_taken_back_on_its_way_breaks_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("upstream = \"http://{}\"", listener.local_addr().unwrap());
    let world = World::build(Store::memory()).top("h2c = true").route(&url).start().await;
    for reason in [0u32, 8] {
        let mut stream = TcpStream::connect(world.address()).await.unwrap();
        let head = frame(HEADERS, END_HEADERS, 1, &block(&BASE));
        let start = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[]), &head].concat();
        stream.write_all(&start).await.unwrap();
        let mut upstream = tokio::time::timeout(DEADLINE, listener.accept()).await.unwrap().unwrap().0;
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            assert!(tokio::time::timeout(DEADLINE, upstream.read_buf(&mut seen)).await.unwrap().unwrap() > 0);
        }
        // In one piece, so that the body is looked at before the reset is.
        let rest = [frame(DATA, 0, 1, b"half"), frame(RESET, 0, 1, &reason.to_be_bytes())].concat();
        stream.write_all(&rest).await.unwrap();
        let mut body = Vec::new();
        let ended = tokio::time::timeout(DEADLINE, upstream.read_to_end(&mut body)).await.expect("the end");
        drop(ended);
        assert!(!body.ends_with(b"0\r\n\r\n"), "{reason}: {}", body.escape_ascii());
    }
}

/// Sends these frames, and reads until a frame of this kind comes (of a ping its answer, of a head one on stream 3).
async fn answered(stream: &mut TcpStream, kind: u8, frames: &[u8]) {
    stream.write_all(frames).await.unwrap();
    let reading = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            stream.read_exact(&mut payload).await.unwrap();
            if head[3] == kind && (kind == PING || head[8] == 3) {
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.expect("an answer in time");
}

/// Frames that ask for an answer or for nothing at all, as fast as they are taken, while nothing is read: the connection
/// ends, or what it may cost is bounded, and others are served meanwhile. Resets are among the abuse in `listening`.
#[tokio::test]
async fn floods_of_settings_pings_and_priorities_take_no_memory() {
    let limits = "[limits]\nidle_timeout = \"2s\"\nheader_timeout = \"2s\"\n";
    let world = World::build(Store::memory()).top("h2c = true").more(limits).start().await;
    let floods: [(&str, Vec<u8>); 5] = [
        ("settings", frame(SETTINGS, 0, 0, &[])),
        ("settings of a window", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])),
        ("pings", frame(PING, 0, 0, &[7; 8])),
        ("priorities", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
        ("unknown frames", frame(99, 0, 0, &[0; 64])),
    ];
    world.pay("warm").await.assert_executed(201);
    let before = world.proxy().resident_memory();
    for (name, one) in floods {
        let mut stream = TcpStream::connect(world.address()).await.unwrap();
        let start = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat();
        stream.write_all(&start).await.unwrap();
        let many = one.repeat(1000);
        // Nothing is read, so that what the proxy answers piles up on its side or makes it stop reading.
        let flooding = async { while stream.write_all(&many).await.is_ok() {} };
        let _ = tokio::time::timeout(Duration::from_secs(1), flooding).await;
        world.pay(&name.replace(' ', "-")).await.assert_executed(201);
    }
    let grown = world.proxy().resident_memory().saturating_sub(before);
    assert!(grown < 24 << 20, "it grew by {} KiB", grown >> 10);
    crate::support::eventually("every connection to be gone", async || {
        (world.proxy().metric("onceproxy_connections", &[]).await == 0.0).then_some(())
    })
    .await;
}

/// Streams that give no room for their answers: what waits is held by the upstream and not by the proxy, others are served,
/// and the connection ends.
#[tokio::test]
async fn windows_of_zero_take_no_memory_and_end_the_connection() {
    const STREAMS: u32 = 64;
    let limits = "[limits]\nidle_timeout = \"2s\"\nheader_timeout = \"2s\"\n";
    let world = World::build(Store::memory()).top("h2c = true").more(limits).start().await;
    world.upstream.always(|request| match request.target.as_str() {
        "/big" => reply(200).body(vec![b'x'; 1 << 20]).into(),
        _ => reply(201).into(),
    });
    world.pay("warm").await.assert_executed(201);
    let before = world.proxy().resident_memory();
    let mut stream = TcpStream::connect(world.address()).await.unwrap();
    let big: [Field<'_>; 4] =
        [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"shop.test"), (b":path", b"/big")];
    let requests = (0..STREAMS).map(|n| frame(HEADERS, WHOLE, 2 * n + 1, &block(&big)));
    let closed_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let start = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &closed_window].concat();
    stream.write_all(&[start, requests.collect::<Vec<_>>().concat()].concat()).await.unwrap();
    world.upstream.reached(1 + STREAMS as usize).await;
    world.pay("meanwhile").await.assert_executed(201);
    let grown = world.proxy().resident_memory().saturating_sub(before);
    println!("{STREAMS} answers of 1 MiB that have no room: {} KiB", grown >> 10);
    assert!(grown < 32 << 20, "it holds {} KiB of 64 MiB", grown >> 10);
    crate::support::eventually("the connection to be gone", async || {
        (world.proxy().metric("onceproxy_connections", &[]).await == 0.0).then_some(())
    })
    .await;
    assert_eq!(world.proxy().metric("onceproxy_http2_abused_connections_total", &[]).await, 1.0);
}
