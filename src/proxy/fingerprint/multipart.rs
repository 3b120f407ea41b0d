//! The canonical form of a multipart body (RFC 2046): its parts, headers and bodies, without the boundary.
//!
//! Strict on purpose: a preamble, an epilogue or a line that only begins like the boundary is read differently by
//! different upstreams, so such a body counts byte by byte.

use http::HeaderMap;

use super::super::key::transcript::Transcript;
use super::{content_type, tag};

const CRLF: &[u8] = b"\r\n";

/// Adds the parts; says no, adding nothing, if the body is not well-formed multipart with a declared boundary.
pub(super) fn add(transcript: &mut Transcript, headers: &HeaderMap, body: &[u8]) -> bool {
    let Some(boundary) = content_type(headers).and_then(boundary) else {
        return false;
    };
    let delimiter = [CRLF, b"--", &boundary].concat();
    let mut trial = transcript.clone();
    trial.tag(tag::MULTIPART);
    let whole = add_parts(&mut trial, &delimiter, body).is_some();
    if whole {
        *transcript = trial;
    }
    whole
}

/// `None` if something other than parts and their delimiters stands in the body.
fn add_parts(transcript: &mut Transcript, delimiter: &[u8], body: &[u8]) -> Option<()> {
    // The first delimiter needs no line end before it.
    let mut rest = body.strip_prefix(&delimiter[CRLF.len()..])?;
    while !matches!(rest, b"--" | b"--\r\n") {
        let part = rest.strip_prefix(CRLF)?;
        let end = find(part, delimiter)?;
        let (headers, content) = split(&part[..end])?;
        transcript.tag(1);
        transcript.part(headers);
        transcript.part(content);
        rest = &part[end + delimiter.len()..];
    }
    transcript.tag(0);
    Some(())
}

/// A part's header lines and its content, which an empty line separates.
fn split(part: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(content) = part.strip_prefix(CRLF) {
        return Some((b"", content));
    }
    let at = find(part, b"\r\n\r\n")?;
    Some((&part[..at], &part[at + 4..]))
}

/// Where `needle`, which begins with the only carriage return that matters, stands first. Linear: no two tries at a
/// delimiter overlap, since nothing in it but its first byte is a carriage return.
fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text[from..].iter().position(|byte| *byte == b'\r')?;
        if text[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// The boundary that a `Content-Type` declares, if it is a multipart type with exactly one (RFC 2046 section 5.1.1).
fn boundary(content_type: &[u8]) -> Option<Vec<u8>> {
    let at = content_type.iter().position(|byte| *byte == b';')?;
    let (essence, mut rest) = (content_type[..at].trim_ascii(), &content_type[at..]);
    if !essence.get(..10)?.eq_ignore_ascii_case(b"multipart/") {
        return None;
    }
    let mut found = None;
    while let Some(parameter) = rest.strip_prefix(b";") {
        let parameter = parameter.trim_ascii_start();
        if parameter.is_empty() {
            break;
        }
        let equals = parameter.iter().position(|byte| *byte == b'=')?;
        let (value, after) = value(&parameter[equals + 1..])?;
        if parameter[..equals].eq_ignore_ascii_case(b"boundary") && found.replace(value).is_some() {
            return None;
        }
        rest = after.trim_ascii_start();
    }
    // Nothing may be left over but the lone semicolon that ends some lists.
    let all_read = matches!(rest.trim_ascii(), b"" | b";");
    found.filter(|boundary| all_read && (1..=70).contains(&boundary.len()))
}

/// A parameter's value, a token or a quoted string (RFC 9110 section 5.6.6), and what stands behind it.
fn value(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let Some(mut rest) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| matches!(byte, b';' | b' ' | b'\t')).unwrap_or(text.len());
        return Some((text[..end].to_vec(), &text[end..]));
    };
    let mut value = Vec::new();
    loop {
        match rest {
            [b'"', after @ ..] => return Some((value, after)),
            [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                value.push(*byte);
                rest = after;
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;
    use proptest::prelude::*;

    use super::*;

    fn fingerprint(content_type: &str, body: &str) -> Option<[u8; 32]> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap());
        let mut transcript = Transcript::new();
        add(&mut transcript, &headers, body.as_bytes()).then(|| transcript.finish())
    }

    fn upload(boundary: &str, content: &str) -> String {
        let disposition = "Content-Disposition: form-data; name=\"file\"";
        format!("--{boundary}\r\n{disposition}\r\n\r\n{content}\r\n--{boundary}\r\n\r\nb\r\n--{boundary}--\r\n")
    }

    #[test]
    fn the_boundary_does_not_count_and_everything_else_does() {
        let form = "multipart/form-data; boundary=";
        let first = fingerprint(&format!("{form}one"), &upload("one", "a\r\nb")).unwrap();
        assert_eq!(fingerprint(&format!("{form}\"t w\\o\""), &upload("t wo", "a\r\nb")), Some(first));
        assert_eq!(fingerprint(&format!("{form}one; charset=utf-8;"), upload("one", "a\r\nb").trim_end()), Some(first));
        for changed in [upload("one", "a\nb"), upload("one", "a\r\nb").replace("file", "File"), upload("one", "")] {
            let other = fingerprint(&format!("{form}one"), &changed);
            assert!(other.is_some_and(|other| other != first), "{changed}");
        }
    }

    #[test]
    fn what_is_not_strictly_multipart_is_not_taken_for_it() {
        let good = upload("b", "x");
        let form = "multipart/form-data; boundary=b";
        assert!(fingerprint(form, &good).is_some());
        for body in [
            format!("preamble\r\n{good}"),
            format!("{good}epilogue"),
            good.replace("--b--\r\n", ""),
            good.replace("\r\n--b\r\n", "\r\n--bb\r\n"),
            good.replace("\r\n", "\n"),
            "--b\r\nno empty line\r\n--b--".to_owned(),
            String::new(),
        ] {
            assert_eq!(fingerprint(form, &body), None, "{body:?}");
        }
        for kind in [
            "text/plain; boundary=b",
            "multipart/form-data",
            "multipart/x; boundary=b; boundary=b",
            "multipart/x; boundary=\"b",
            "multipart/x; boundary=b c",
        ] {
            assert_eq!(fingerprint(kind, &good), None, "{kind}");
        }
        assert_eq!(
            fingerprint(&format!("multipart/x; boundary={}", "b".repeat(71)), &upload(&"b".repeat(71), "x")),
            None
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(kind in "(multipart/[a-z]; ?)?[boundary=;\"\\\\ b-]{0,30}", body in "[b\r\n-]{0,40}") {
            let _ = fingerprint(&kind, &body);
        }

        #[test]
        fn another_boundary_is_the_same_upload(a in "[a-z]{1,9}", b in "[0-9]{1,9}", content in "[A-Z\r\n-]{0,20}") {
            let read = |name: &str| fingerprint(&format!("multipart/form-data; boundary={name}"), &upload(name, &content));
            prop_assert!(read(&a).is_some());
            prop_assert_eq!(read(&a), read(&b));
        }
    }
}
