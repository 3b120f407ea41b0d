//! Whose key it is: the parts of a request that a route's scope names, each of them one value or none.
//!
//! A part that is missing is not an empty one. A part that stands there twice is one if both say the same; if they
//! differ, nobody can tell which of them counts further on, and the request is refused.

use http::HeaderMap;
use http::header::COOKIE;
use http::request::Parts;

use super::super::host::host;
use super::pairs;
use super::transcript::Transcript;
use super::{ClientName, place_of_scope};
use crate::config::ScopePart;

/// A part of the scope stands there more than once, with different values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}, which stands there more than once, with different values; send one of them")]
pub struct ScopeFault {
    /// The part, as in the settings.
    pub place: String,
}

/// Adds a part of the scope. `tls` says by which scheme the request came.
pub(super) fn add(
    transcript: &mut Transcript<Vec<u8>>,
    part: &ScopePart,
    head: &Parts,
    tls: bool,
) -> Result<(), ScopeFault> {
    match part {
        ScopePart::Header(name) => {
            let lines = head.headers.get_all(name).iter();
            add_value(transcript, part, only(lines.map(|line| line.as_bytes())))
        }
        ScopePart::Query(name) => add_parameter(transcript, part, head.uri.query().unwrap_or_default(), name),
        ScopePart::Cookie(name) => add_value(transcript, part, only(cookies(&head.headers, name))),
        ScopePart::Host => {
            let host = host(head, tls);
            add_value(transcript, part, Ok(host.as_deref().map(str::as_bytes)))
        }
        ScopePart::Path => add_value(transcript, part, Ok(Some(head.uri.path().as_bytes()))),
        ScopePart::ClientCert => {
            let name = head.extensions.get::<ClientName>();
            add_value(transcript, part, Ok(name.map(|ClientName(name)| &**name)))
        }
        ScopePart::Constant(text) => {
            transcript.part(text.as_bytes());
            Ok(())
        }
    }
}

/// Two values of one part differ.
struct Differ;

fn add_value(
    transcript: &mut Transcript<Vec<u8>>,
    part: &ScopePart,
    value: Result<Option<&[u8]>, Differ>,
) -> Result<(), ScopeFault> {
    let value = value.map_err(|Differ| ScopeFault { place: place_of_scope(part) })?;
    transcript.count(usize::from(value.is_some()));
    if let Some(value) = value {
        transcript.part(value);
    }
    Ok(())
}

/// The value on which all of them agree.
fn only<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Result<Option<T>, Differ> {
    let Some(first) = values.next() else { return Ok(None) };
    if values.all(|other| other == first) { Ok(Some(first)) } else { Err(Differ) }
}

/// A broken percent-encoding means different things to different upstreams, so it counts as it stands, under another tag.
fn add_parameter(
    transcript: &mut Transcript<Vec<u8>>,
    part: &ScopePart,
    query: &str,
    name: &str,
) -> Result<(), ScopeFault> {
    let read = |value: pairs::Encoded<'_>| -> (u8, Vec<u8>) {
        match value.is_sound() {
            true => (b'd', value.decoded().collect()),
            false => (b'r', value.0.to_vec()),
        }
    };
    let value = only(pairs::parameter(query, name).map(read));
    let value = value.map_err(|Differ| ScopeFault { place: place_of_scope(part) })?;
    transcript.count(usize::from(value.is_some()));
    if let Some((tag, value)) = value {
        transcript.tag(tag);
        transcript.part(&value);
    }
    Ok(())
}

/// The values of a cookie over all `Cookie` lines (RFC 6265 section 4.2.1). One in quotation marks is the one without:
/// readers take them off.
fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let pairs = headers.get_all(COOKIE).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let value = pair[equals + 1..].trim_ascii();
        let inside = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        (pair[..equals].trim_ascii() == name.as_bytes()).then_some(inside.unwrap_or(value))
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    /// What a part adds, or `None` where it is refused.
    fn added(part: &ScopePart, target: &str, fields: &[(&'static str, &str)]) -> Option<Vec<u8>> {
        let mut head = Request::post(target).body(()).unwrap().into_parts().0;
        for (name, value) in fields {
            head.headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let mut transcript = Transcript::kept();
        add(&mut transcript, part, &head, false).ok().map(|()| transcript.text().to_vec())
    }

    #[test]
    fn equal_lines_count_once_and_different_ones_are_refused() {
        let part = ScopePart::Header("x-api-key".parse().unwrap());
        let of = |values: &[&str]| {
            let fields: Vec<_> = values.iter().map(|value| ("x-api-key", *value)).collect();
            added(&part, "/", &fields)
        };
        assert_eq!(of(&["a", "a", "a"]), of(&["a"]));
        assert_ne!(of(&[]), of(&[""]));
        assert_ne!(of(&["a"]), of(&["A"]));
        for different in [&["a", "b"][..], &["a", "a", "b"], &["a", ""], &["a", "A"]] {
            assert_eq!(of(different), None, "{different:?}");
        }
    }

    #[test]
    fn a_parameter_counts_once_too() {
        let part = ScopePart::Query("account".to_owned());
        let of = |target: &str| added(&part, target, &[]);
        assert_eq!(of("/?account=a&account=%61&x"), of("/?account=a"));
        assert_eq!(of("/?account=%zz&account=%zz"), of("/?account=%zz"));
        assert!(of("/?account=a&account=b").is_none() && of("/?account=%zz&account=%25zz").is_none());
        assert_ne!(of("/"), of("/?account="));
    }

    #[test]
    fn a_cookie_is_its_value_over_all_lines() {
        let part = ScopePart::Cookie("sid".to_owned());
        let of = |lines: &[&str]| {
            let fields: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
            added(&part, "/", &fields)
        };
        let one = of(&["sid=abc"]);
        for same in [
            &["lb=1; sid=abc"][..],
            &["sid=abc;lb=2"],
            &["lb=1", "sid=abc"],
            &[" sid = abc ; x"],
            &["sid=\"abc\""],
            &["sid=abc; sid=abc", "sid=\"abc\""],
            &["xsid=1; sid=abc; SID=other"],
        ] {
            assert_eq!(of(same), one, "{same:?}");
        }
        let missing = of(&[]);
        for none in [&["lb=1"][..], &["sid"], &["Sid=abc"], &["sid2=abc"], &[""]] {
            assert_eq!(of(none), missing, "{none:?}");
        }
        let empty = of(&["sid="]);
        assert!(empty.is_some() && empty != missing && empty != one);
        assert_eq!(of(&["sid=\"\""]), empty);
        assert_ne!(of(&["sid=\""]), empty);
        assert_ne!(of(&["sid=a=b"]), of(&["sid=a"]));
        for different in [&["sid=a; sid=b"][..], &["sid=a", "sid=b"], &["sid=a; sid="]] {
            assert_eq!(of(different), None, "{different:?}");
        }
    }

    #[test]
    fn host_and_path_are_where_the_request_goes() {
        let host = |name: &str| added(&ScopePart::Host, "/", &[("host", name)]);
        assert_eq!(host("A.test:80"), host("a.test"));
        assert_ne!(host("a.test:8080"), host("a.test"));
        assert_ne!(host("b.test"), host("a.test"));
        let path = |target: &str| added(&ScopePart::Path, target, &[]);
        assert_eq!(path("/hooks/a?x=1"), path("/hooks/a"));
        assert_ne!(path("/hooks/a/"), path("/hooks/a"));
        assert_ne!(path("/hooks/%61"), path("/hooks/a"));
    }
}
