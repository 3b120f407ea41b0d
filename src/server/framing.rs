//! Follows the bytes of a connection from message to message: where heads begin and end, and how bodies are framed.
//!
//! hyper parses the same bytes and is what the service sees. But it hides what a proxy must refuse (it takes the length
//! away when a transfer coding is there too, and accepts lines that end with LF alone), and it cannot say whether a
//! quiet connection is between two messages or in the middle of one. This reader is stricter than hyper, so whatever
//! passes it means the same to both. It keeps no bytes but those of an unfinished line.

use std::io::BufRead as _;

use super::fault::HeadFault;

/// The longest line of chunk size or trailer, in bytes. Lines of heads are bounded by hyper, which stops reading.
const MAX_BODY_LINE: usize = 16 * 1024;

/// Where in the stream the last byte followed has led.
#[derive(Debug, Default)]
pub(super) struct Follower {
    part: Part,
    /// The unfinished line.
    line: Vec<u8>,
    /// Heads that are complete.
    heads: u64,
    head: Framing,
    /// The numbers of heads that ask a server as a whole, as long as nobody has taken them.
    asterisks: Vec<u64>,
    /// Where in the bytes given last a minor version newer than 1 stands, as long as nobody has taken these.
    newer: Vec<usize>,
}

/// The part of a message that the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    /// Before the first byte of a message.
    #[default]
    Between,
    RequestLine,
    Fields,
    /// So many bytes of a body that has a length.
    Body(u64),
    ChunkSize,
    /// So many bytes of a chunk.
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// Behind the head of a `CONNECT`: what follows belongs to the tunnel, and never is a request.
    Tunnel,
    /// Behind a fault, where nobody can say what the bytes are.
    Lost,
}

/// What the fields of a head have said of the body so far.
#[derive(Debug, Default)]
struct Framing {
    lengths: u32,
    length: Option<u64>,
    codings: u32,
    chunked: bool,
    connects: bool,
}

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The head of the request with this number, counted from 0, is at fault.
    Head(u64, HeadFault),
    /// The framing of a body is; only so many of the bytes given may be read.
    Body(usize),
}

impl Follower {
    /// Whether the last message is complete and the next has not begun.
    pub(super) fn is_between(&self) -> bool {
        self.part == Part::Between
    }

    /// Whether a head has begun and is not complete.
    pub(super) fn is_in_head(&self) -> bool {
        matches!(self.part, Part::RequestLine | Part::Fields)
    }

    /// Whether a head is complete and the body behind it is not.
    pub(super) fn is_in_body(&self) -> bool {
        !self.is_between() && !self.is_in_head() && self.part != Part::Tunnel
    }

    /// Heads that were completed.
    pub(super) fn heads(&self) -> u64 {
        self.heads
    }

    /// The numbers, counted from 0, of new heads that ask a server as a whole: `OPTIONS http://HOST`, without so much as a
    /// slash (RFC 9112, section 3.2.4). hyper adds the slash.
    pub(super) fn take_asterisks(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.asterisks)
    }

    /// Where in the bytes followed last the digit of a minor version stands that is newer than 1.1: such a request is read as
    /// one of 1.1 (RFC 9110, section 2.5), which hyper does not do by itself.
    pub(super) fn take_newer_versions(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.newer)
    }

    /// Follows the bytes that come next. After a fault it follows nothing any more.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = match self.part {
                Part::Lost | Part::Tunnel => return Ok(()),
                Part::Body(left) => self.skip(rest, left, Part::Body, Part::Between),
                Part::Chunk(left) => self.skip(rest, left, Part::Chunk, Part::ChunkEnd),
                _ => {
                    let taken = bytes.len() - rest.len();
                    let (line, after) = first_line(rest);
                    if line.last() != Some(&b'\n') {
                        return self.keep(rest, taken);
                    }
                    self.take_line(line, taken).map_err(|fault| self.broken(fault, taken))?;
                    after
                }
            };
        }
        Ok(())
    }

    fn skip<'a>(&mut self, bytes: &'a [u8], left: u64, same: fn(u64) -> Part, next: Part) -> &'a [u8] {
        let step = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let left = left - step as u64;
        self.part = if left == 0 { next } else { same(left) };
        &bytes[step..]
    }

    /// Keeps the beginning of a line until the rest of it comes.
    fn keep(&mut self, bytes: &[u8], taken: usize) -> Result<(), Broken> {
        if self.part == Part::Between {
            self.part = Part::RequestLine;
        }
        if !self.is_in_head() && self.line.len() + bytes.len() > MAX_BODY_LINE {
            return Err(self.broken(None, taken));
        }
        let mut line = std::mem::take(&mut self.line);
        let before = line.len();
        line.extend_from_slice(bytes);
        self.note_version(&line, before, taken);
        self.line = line;
        Ok(())
    }

    fn take_line(&mut self, end: &[u8], taken: usize) -> Result<(), Option<HeadFault>> {
        if self.line.is_empty() {
            self.note_version(end, 0, taken);
            return self.read_line(end);
        }
        let mut line = std::mem::take(&mut self.line);
        let before = line.len();
        line.extend_from_slice(end);
        self.note_version(&line, before, taken);
        self.read_line(&line)
    }

    /// Notes a version that is newer than 1.1, if this is a request line. So many bytes of it came `before` those that were
    /// given now, and these begin at `taken`.
    fn note_version(&mut self, line: &[u8], before: usize, taken: usize) {
        if matches!(self.part, Part::Between | Part::RequestLine)
            && let Some(place) = newer_minor(line).and_then(|place| place.checked_sub(before))
        {
            self.newer.push(taken + place);
        }
    }

    /// Reads one line with its end. The error is the fault if the line belongs to a head.
    fn read_line(&mut self, line: &[u8]) -> Result<(), Option<HeadFault>> {
        let in_head = matches!(self.part, Part::Between | Part::RequestLine | Part::Fields);
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(in_head.then_some(HeadFault::BareLf));
        };
        self.part = match (self.part, line) {
            // Empty lines before a request are ignored (RFC 9112, section 2.2).
            (Part::Between | Part::RequestLine, []) => Part::Between,
            (Part::Between | Part::RequestLine, line) if has_fragment(line) => return Err(Some(HeadFault::Fragment)),
            (Part::Between | Part::RequestLine, line) => {
                self.head.connects = line.starts_with(b"CONNECT ");
                if asks_a_server(line) {
                    self.asterisks.push(self.heads);
                }
                Part::Fields
            }
            (Part::Fields, []) => {
                let body = std::mem::take(&mut self.head).decide().map_err(Some)?;
                self.heads += 1;
                body
            }
            (Part::Fields, [b' ' | b'\t', ..]) => return Err(Some(HeadFault::FoldedField)),
            (Part::Fields, field) => {
                self.head.read(field);
                Part::Fields
            }
            (Part::ChunkSize, size) => match chunk_size(size).ok_or(None)? {
                0 => Part::Trailers,
                size => Part::Chunk(size),
            },
            (Part::ChunkEnd, []) => Part::ChunkSize,
            (Part::Trailers, []) => Part::Between,
            (Part::Trailers, [first, ..]) if !first.is_ascii_whitespace() => Part::Trailers,
            _ => return Err(None),
        };
        Ok(())
    }

    fn broken(&mut self, fault: Option<HeadFault>, taken: usize) -> Broken {
        self.part = Part::Lost;
        self.line = Vec::new();
        fault.map_or(Broken::Body(taken), |fault| Broken::Head(self.heads, fault))
    }
}

impl Framing {
    fn read(&mut self, field: &[u8]) {
        // Most fields are neither.
        if !matches!(field.first(), Some(b'c' | b'C' | b't' | b'T')) {
            return;
        }
        if let Some(value) = value_of(field, b"content-length:") {
            self.lengths += 1;
            self.length = number(value);
        } else if let Some(value) = value_of(field, b"transfer-encoding:") {
            self.codings += 1;
            self.chunked = value.eq_ignore_ascii_case(b"chunked");
        }
    }

    /// The part that comes behind the head.
    fn decide(self) -> Result<Part, HeadFault> {
        match (self.codings, self.lengths) {
            (0, 0) if self.connects => Ok(Part::Tunnel),
            // Two readers could see the first bytes of the tunnel as a body, or not.
            (0, 1) if self.connects && self.length == Some(0) => Ok(Part::Tunnel),
            _ if self.connects => Err(HeadFault::TunnelBody),
            (0, 0) => Ok(Part::Between),
            (0, 1) => match self.length.ok_or(HeadFault::ContentLength)? {
                0 => Ok(Part::Between),
                length => Ok(Part::Body(length)),
            },
            (0, _) => Err(HeadFault::ContentLength),
            (1, 0) if self.chunked => Ok(Part::ChunkSize),
            (_, 0) => Err(HeadFault::TransferEncoding),
            _ => Err(HeadFault::BothFramings),
        }
    }
}

/// The first line with its end, or all bytes if they are none, and what follows.
fn first_line(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut after = bytes;
    // The library's own search, which looks at many bytes at a time. Reading from memory does not fail.
    let length = after.skip_until(b'\n').unwrap_or(bytes.len());
    (&bytes[..length], after)
}

/// Where in a request line that may still grow the minor version stands, if that is newer than 1.
fn newer_minor(line: &[u8]) -> Option<usize> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (minor, start) = line.split_last()?;
    let is_whole = matches!(minor, b'2'..=b'9')
        && start.ends_with(b" HTTP/1.")
        && start.iter().filter(|byte| **byte == b' ').count() == 2;
    is_whole.then_some(start.len())
}

/// Whether the target of a request line has a fragment. hyper takes it off, and forwards another target than it got.
fn has_fragment(line: &[u8]) -> bool {
    // A method may have the character.
    line.iter().skip_while(|byte| **byte != b' ').any(|byte| *byte == b'#')
}

/// Whether a request line is that of `OPTIONS` for a URL that has neither a path nor a query.
fn asks_a_server(line: &[u8]) -> bool {
    let Some(target) = line.strip_prefix(b"OPTIONS ").and_then(|rest| rest.split(|byte| *byte == b' ').next()) else {
        return false;
    };
    let behind = |scheme: &[u8]| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    behind(b"http://")
        .or_else(|| behind(b"https://"))
        .is_some_and(|rest| !rest.iter().any(|b| matches!(b, b'/' | b'?')))
}

/// The value of a field line if it has this name (lower-case, with the colon).
fn value_of<'a>(field: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = field.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

/// Digits only: no sign, no list.
fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// The size that opens a chunk. Extensions are checked and skipped (RFC 9112, section 7.1.1).
fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (digits, mut rest) = line.split_at(end);
    rest = trim_start(rest);
    while let [b';', extension @ ..] = rest {
        rest = trim_start(behind_extension(trim_start(extension))?);
    }
    let size = std::str::from_utf8(digits).ok().filter(|_| rest.is_empty())?;
    u64::from_str_radix(size, 16).ok()
}

/// What follows the name of an extension and its value, if it has one: a token or a quoted string.
fn behind_extension(text: &[u8]) -> Option<&[u8]> {
    let behind_name = behind_token(text)?;
    let [b'=', value @ ..] = trim_start(behind_name) else { return Some(behind_name) };
    match trim_start(value) {
        [b'"', quoted @ ..] => behind_quoted(quoted),
        value => behind_token(value),
    }
}

fn behind_token(text: &[u8]) -> Option<&[u8]> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let length = text.iter().take_while(|byte| is_token(byte)).count();
    (length > 0).then(|| &text[length..])
}

fn behind_quoted(mut text: &[u8]) -> Option<&[u8]> {
    loop {
        text = match text {
            [b'"', rest @ ..] => return Some(rest),
            [b'\\', b'\t' | b' '..=b'~' | 0x80.., rest @ ..] => rest,
            [b'\\', ..] => return None,
            [b'\t' | b' '..=b'~' | 0x80.., rest @ ..] => rest,
            _ => return None,
        }
    }
}

/// Without the spaces and tabs in front.
fn trim_start(text: &[u8]) -> &[u8] {
    let blank = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &text[blank..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\n";

    /// Follows the bytes in one piece and byte by byte, and asserts that both come to the same.
    fn follow(bytes: &[u8]) -> (Follower, Result<(), Broken>) {
        let (mut whole, mut single) = (Follower::default(), Follower::default());
        let verdict = whole.follow(bytes);
        let piecewise = bytes.chunks(1).try_for_each(|byte| single.follow(byte));
        assert_eq!(whole.part, single.part);
        assert_eq!(whole.heads, single.heads);
        assert_eq!(verdict.is_err(), piecewise.is_err());
        (whole, verdict)
    }

    fn after_head(rest: &[u8]) -> (Follower, Result<(), Broken>) {
        follow(&[HEAD, rest].concat())
    }

    #[test]
    fn finds_the_end_of_every_message() {
        for (rest, heads) in [
            (&b"\r\n"[..], 1),
            (b"Content-Length: 0\r\n\r\n", 1),
            (b"content-length:5\r\n\r\nab\ncd", 1),
            (b"Transfer-Encoding:  Chunked \r\n\r\n5\r\nab\ncd\r\nA ;x=\"y;\\\"\xff\" ; z\t= 1;w\r\n0123456789\r\n00\r\n\r\n", 1),
            (b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\nX: 2\r\n\r\n", 1),
            (b"Content-Length: 1\r\n\r\nx\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 2),
        ] {
            let (follower, verdict) = after_head(rest);
            assert_eq!(verdict, Ok(()), "{:?}", rest.escape_ascii().to_string());
            assert!(follower.is_between(), "{:?}", rest.escape_ascii().to_string());
            assert_eq!(follower.heads(), heads);
        }
    }

    #[test]
    fn tells_the_middle_of_a_head_from_the_middle_of_a_body() {
        assert!(after_head(b"X: 1").0.is_in_head());
        let (follower, _) = after_head(b"Content-Length: 2\r\n\r\nx");
        assert!(follower.is_in_body());
    }

    #[test]
    fn refuses_heads_that_can_be_read_in_two_ways() {
        use HeadFault::{BareLf, BothFramings, ContentLength, FoldedField, TransferEncoding};
        for (rest, fault) in [
            (&b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"[..], BothFramings),
            (b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", BothFramings),
            (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", TransferEncoding),
            (b"Transfer-Encoding: chunked, identity\r\n\r\n", TransferEncoding),
            (b"Transfer-Encoding: gzip, chunked\r\n\r\n", TransferEncoding),
            (b"Transfer-Encoding: xchunked\r\n\r\n", TransferEncoding),
            (b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", ContentLength),
            (b"Content-Length: 1, 1\r\n\r\n", ContentLength),
            (b"Content-Length: +1\r\n\r\n", ContentLength),
            (b"Content-Length: \r\n\r\n", ContentLength),
            (b"Content-Length: 99999999999999999999\r\n\r\n", ContentLength),
            (b"X: 1\n\r\n", BareLf),
            (b"\n", BareLf),
            (b"X: 1\r\n y\r\n\r\n", FoldedField),
        ] {
            let (follower, verdict) = after_head(rest);
            assert_eq!(verdict, Err(Broken::Head(0, fault)), "{:?}", rest.escape_ascii().to_string());
            assert!(!follower.is_between());
        }
    }

    #[test]
    fn refuses_targets_with_a_fragment_and_leaves_methods_alone() {
        for line in [&b"GET /a#b HTTP/1.1\r\n"[..], b"GET # HTTP/1.1\r\n", b"GET http://a#@b/ HTTP/1.1\r\n"] {
            assert_eq!(follow(line).1, Err(Broken::Head(0, HeadFault::Fragment)));
        }
        assert_eq!(follow(b"G#T /a%23b HTTP/1.1\r\n").1, Ok(()));
    }

    #[test]
    fn finds_newer_versions_however_their_bytes_come() {
        let bytes =
            b"POST /p HTTP/1.2\r\nX: HTTP/1.3\r\n\r\nGET HTTP/1.4 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.9\r\n";
        let expected: Vec<_> = [b'2', b'9'].map(|digit| bytes.iter().rposition(|byte| *byte == digit).unwrap()).into();
        for size in 1..=bytes.len() {
            let mut follower = Follower::default();
            let mut found = Vec::new();
            for (number, piece) in bytes.chunks(size).enumerate() {
                follower.follow(piece).unwrap();
                found.extend(follower.take_newer_versions().into_iter().map(|place| number * size + place));
            }
            found.dedup();
            assert_eq!(found, expected, "in pieces of {size} bytes");
        }
    }

    #[test]
    fn names_the_request_whose_head_is_at_fault() {
        let (_, verdict) = after_head(b"\r\nGET / HTTP/1.1\nHost: a\r\n\r\n");
        assert_eq!(verdict, Err(Broken::Head(1, HeadFault::BareLf)));
    }

    #[test]
    fn lets_only_the_sound_part_of_a_body_through() {
        for chunks in [
            &b"0x2\r\nab\r\n0\r\n\r\n"[..],
            b"-1\r\n",
            b"\r\n",
            b" 2\r\n",
            b"2 2\r\n",
            b"2;a\0b\r\nab\r\n0\r\n\r\n",
            b"2;\r\n",
            b"2;=b\r\n",
            b"2;a=\r\n",
            b"2;a=\"b\r\n",
            b"2;a=\"\\\x7f\"\r\n",
            b"2;a=\"b\"c\r\n",
            b"2;a b\r\n",
            b"2\n",
            b"fffffffffffffffff\r\n",
            b"0\r\n folded: 1\r\n\r\n",
            b"0\r\n\n",
        ] {
            let (_, verdict) = after_head(&[b"Transfer-Encoding: chunked\r\n\r\n", chunks].concat());
            assert!(matches!(verdict, Err(Broken::Body(_))), "{:?}", chunks.escape_ascii().to_string());
        }
        let sound = [HEAD, b"Transfer-Encoding: chunked\r\n\r\n2\r\nab"].concat();
        let (_, verdict) = follow(&[&sound[..], b"c\r\n0\r\n\r\n"].concat());
        assert_eq!(verdict, Err(Broken::Body(sound.len())));
    }

    #[test]
    fn what_follows_connect_is_never_a_request() {
        let connect = b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n";
        for (rest, verdict) in [
            (&b"\r\nPOST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\n"[..], Ok(())),
            (b"Content-Length: 0\r\n\r\n\x16\x03\x01", Ok(())),
            (b"Content-Length: 3\r\n\r\nabc", Err(Broken::Head(0, HeadFault::TunnelBody))),
            (b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Err(Broken::Head(0, HeadFault::TunnelBody))),
        ] {
            let (follower, seen) = follow(&[&connect[..], rest].concat());
            assert_eq!(seen, verdict);
            assert!(!follower.is_between() && follower.heads() <= 1);
        }
    }

    #[test]
    fn does_not_hoard_a_line_that_never_ends() {
        let mut follower = Follower::default();
        follower.follow(&[HEAD, b"Transfer-Encoding: chunked\r\n\r\n2;"].concat()).unwrap();
        let verdict = (0..100).try_for_each(|_| follower.follow(&[b'x'; 1000]));
        assert_eq!(verdict, Err(Broken::Body(0)));
        assert!(follower.line.is_empty());
    }
}
