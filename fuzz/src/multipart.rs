//! The `multipart` fingerprint: parts count, the boundary between them does not.
//!
//! The input is the value of `Content-Type` up to the first line end, and behind it a body. Its bytes are also taken for
//! the parts of an upload that is well formed, each ending at a zero byte.

use std::sync::LazyLock;

use onceproxy::proxy::fingerprint::Policy;

use super::request::{digest, head_of, policy};

static MULTIPART: LazyLock<Policy> = LazyLock::new(|| policy("fingerprint.body = \"multipart\""));

/// Runs one input.
pub fn run(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let body = input.get(end + 1..).unwrap_or_default();
    if let Some(head) = head_of(&input[..end]) {
        let own = digest(&MULTIPART, &head, body).expect("an upload has no fault");
        assert_eq!(own, digest(&MULTIPART, &head, body).expect("as before"), "not the same twice");
        // Behind the last delimiter nothing else may stand, and in a body read byte by byte everything counts.
        assert_ne!(own, digest(&MULTIPART, &head, &[body, b"x"].concat()).expect("as before"));
    }
    let parts: Vec<&[u8]> = body.split(|byte| *byte == 0).collect();
    if parts.len() <= 16 && !contains(body, b"--one") && !contains(body, b"--a \"b\\") {
        uploads(&parts);
    }
}

fn uploads(parts: &[&[u8]]) {
    let own = upload(b"one", b"multipart/form-data; boundary=one", parts);
    let types: [(&[u8], &[u8]); 3] = [
        (b"one", b"Multipart/Mixed; charset=x; BOUNDARY=\"one\" ;"),
        (b"a \"b\\", b"multipart/form-data; boundary=\"a \\\"b\\\\\""),
        (b"one", b"multipart/related;boundary=one;type=\"text/xml\""),
    ];
    for (boundary, content_type) in types {
        assert_eq!(own, upload(boundary, content_type, parts), "the boundary counts");
    }
    for at in 0..parts.len() {
        let longer = [parts[at], b"x"].concat();
        let mut changed = parts.to_vec();
        changed[at] = &longer;
        assert_ne!(own, upload(b"one", types[0].1, &changed), "a part does not count");
        let mut fewer = parts.to_vec();
        fewer.remove(at);
        assert_ne!(own, upload(b"one", types[0].1, &fewer), "the number of parts does not count");
    }
}

fn upload(boundary: &[u8], content_type: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut body = Vec::new();
    for part in parts {
        body.extend(
            [b"--", boundary, b"\r\nContent-Disposition: form-data; name=\"p\"\r\n\r\n", part, b"\r\n"].concat(),
        );
    }
    body.extend([b"--", boundary, b"--\r\n"].concat());
    digest(&MULTIPART, &head_of(content_type).expect("a plain type"), &body).expect("an upload has no fault")
}

fn contains(text: &[u8], needle: &[u8]) -> bool {
    text.windows(needle.len()).any(|window| window == needle)
}
