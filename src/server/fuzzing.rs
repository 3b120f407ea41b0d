//! What the fuzz target `head` does with its input, and the test that does the same with the kept inputs.
//!
//! Here and not in `fuzz/`, because the checks of heads and framing have no public door. It is no part of an ordinary
//! build.

use std::str::FromStr;

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};

use super::fault::MAX_FIELDS;
use super::framing::Follower;
use super::head::{address, adopt};

/// Runs one input, the bytes of a connection. Panics where a head or a body is let through that can be read in two ways.
pub fn run(input: &[u8]) {
    let (mut whole, mut single, mut halves) = (Follower::default(), Follower::default(), Follower::default());
    let sound = whole.follow(input).is_ok();
    assert_eq!(sound, input.chunks(1).try_for_each(|byte| single.follow(byte)).is_ok(), "byte by byte it is another");
    let (first, second) = input.split_at(input.len() / 2);
    assert_eq!(sound, halves.follow(first).and_then(|()| halves.follow(second)).is_ok(), "in halves it is another");
    if sound {
        let states = [&whole, &single, &halves].map(|f| (f.heads(), f.is_between(), f.is_in_head(), f.is_in_body()));
        assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
        let (heads, is_between) = messages(input);
        assert_eq!((whole.heads(), whole.is_between()), (heads, is_between), "read plainly it is another");
        if let Some(request) = request(input) {
            addressed(request);
        }
    }
}

/// Complete heads of a stream that was found sound, and whether it ends between two messages: read message by message,
/// each with one framing.
fn messages(mut rest: &[u8]) -> (u64, bool) {
    let mut heads = 0;
    loop {
        while let Some(after) = rest.strip_prefix(b"\r\n") {
            rest = after;
        }
        if rest.is_empty() {
            return (heads, true);
        }
        let Some((head, after)) = split(rest, b"\r\n\r\n") else { return (heads, false) };
        heads += 1;
        let connects = head.starts_with(b"CONNECT ");
        let fields = lines(head).skip(1).filter_map(|line| line.split_once(':'));
        let named = |wanted: &str| -> Vec<String> {
            let values = fields.clone().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
            values.map(|(_, value)| value.trim_ascii().to_ascii_lowercase()).collect()
        };
        let (lengths, codings) = (named("content-length"), named("transfer-encoding"));
        assert!(lengths.len() + codings.len() <= 1, "two framings: {lengths:?} {codings:?}");
        let body = match (lengths.first(), codings.first()) {
            (Some(length), _) => {
                let length: u64 = length.parse().expect("a length that was let through is a number");
                usize::try_from(length).ok().and_then(|length| after.get(length..))
            }
            (_, Some(coding)) => {
                assert_eq!(coding, "chunked");
                chunks(after)
            }
            (None, None) => Some(after),
        };
        let Some(after) = body.filter(|_| !connects) else {
            // What follows CONNECT is no message, and it may have no body.
            assert!(!connects || (codings.is_empty() && lengths.iter().all(|length| length.parse() == Ok(0))));
            return (heads, false);
        };
        rest = after;
    }
}

/// What stands behind a chunked body, `None` if it is not complete.
fn chunks(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        let (line, after) = split(rest, b"\r\n")?;
        let size = String::from_utf8_lossy(line);
        let size = size.split(';').next().unwrap_or_default().trim_ascii_end().to_owned();
        match usize::from_str_radix(&size, 16).expect("a size that was let through is a number") {
            0 => {
                rest = after;
                break;
            }
            size => rest = after.get(size..)?.strip_prefix(b"\r\n")?,
        }
    }
    loop {
        let (line, after) = split(rest, b"\r\n")?;
        rest = after;
        if line.is_empty() {
            return Some(rest);
        }
    }
}

fn split<'a>(text: &'a [u8], end: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = text.windows(end.len()).position(|window| window == end)?;
    Some((&text[..at], &text[at + end.len()..]))
}

/// The lines of a head as text; bytes beyond ASCII have no part in what is looked at.
fn lines(head: &[u8]) -> impl Iterator<Item = &str> + Clone {
    head.split(|byte| *byte == b'\n')
        .map(|line| std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)).unwrap_or_default())
}

/// The first request of the stream, as a parser of heads would give it to the checks.
fn request(input: &[u8]) -> Option<Request<()>> {
    let (head, _) = split(input, b"\r\n\r\n")?;
    let mut lines = lines(head).skip_while(|line| line.is_empty());
    let mut words = lines.next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let mut request = Request::new(());
    *request.method_mut() = Method::from_str(method).ok()?;
    *request.uri_mut() = Uri::from_str(target).ok()?;
    *request.version_mut() = if version == "HTTP/1.0" { Version::HTTP_10 } else { Version::HTTP_11 };
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let (name, value) = (HeaderName::from_str(name).ok()?, HeaderValue::from_str(value.trim_ascii()).ok()?);
        request.headers_mut().append(name, value);
    }
    Some(request)
}

/// What is let through has one addressee, in HTTP/1 and in HTTP/2.
fn addressed(request: Request<()>) {
    let mut of_http1 = request.clone();
    if address(&mut of_http1).is_ok() {
        one_addressee(&of_http1);
    }
    let mut request = request;
    *request.version_mut() = Version::HTTP_2;
    if adopt(&mut request).is_ok() {
        one_addressee(&request);
        let fields = request.headers();
        assert!(request.uri().authority().is_none() && request.uri().scheme().is_none());
        assert!(fields.contains_key(HOST) && fields.len() <= MAX_FIELDS);
        assert!(!fields.contains_key(CONNECTION) && !fields.contains_key(TRANSFER_ENCODING));
        assert!(fields.get_all(CONTENT_LENGTH).iter().count() <= 1);
    }
}

fn one_addressee(request: &Request<()>) {
    let (uri, hosts) = (request.uri(), request.headers().get_all(HOST));
    let hosts: Vec<&[u8]> = hosts.iter().map(HeaderValue::as_bytes).collect();
    assert!(hosts.len() == 1 || (hosts.is_empty() && request.version() == Version::HTTP_10), "{hosts:?}");
    let host = hosts.first().map(|host| String::from_utf8_lossy(host).to_ascii_lowercase());
    if let Some(host) = &host {
        assert!(!host.contains(|c: char| c.is_whitespace() || c.is_control() || "@/,?#\\\"<>".contains(c)), "{host:?}");
    }
    match uri.authority() {
        Some(authority) if request.method() == Method::CONNECT => {
            assert!(authority.port_u16() != Some(0) && uri.scheme().is_none() && uri.path_and_query().is_none());
            assert!(authority.as_str().contains(':') && !authority.as_str().contains('@'));
            let named = authority.as_str().to_ascii_lowercase();
            let is_named = |host: String| {
                host == named
                    || named.rsplit_once(':').is_some_and(|(name, _)| host.strip_suffix(':').unwrap_or(&host) == name)
            };
            assert!(host.is_none_or(is_named), "{authority} is not the Host");
        }
        None => assert!(uri.path().starts_with('/') || (uri.path() == "*" && request.method() == Method::OPTIONS)),
        Some(authority) => {
            let port = if uri.scheme_str() == Some("https") { ":443" } else { ":80" };
            let plain = |text: &str| {
                let text = text.to_ascii_lowercase();
                text.strip_suffix(port).or(text.strip_suffix(':')).unwrap_or(&text).to_owned()
            };
            assert!(!authority.as_str().contains('@'));
            assert!(host.is_none_or(|host| plain(&host) == plain(authority.as_str())), "{authority} is not the Host");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_inputs_show_no_fault() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/head");
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(files.len() > 20, "{folder} has {} inputs", files.len());
        for file in files {
            println!("{}", file.display());
            run(&std::fs::read(file).unwrap());
        }
    }
}
