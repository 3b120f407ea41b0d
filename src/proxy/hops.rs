//! How many hops a request may take: `Max-Forwards` of OPTIONS and TRACE (RFC 9110 section 7.6.2).

use bytes::Bytes;
use http::header::{ALLOW, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};

use super::body::Body;

const MAX_FORWARDS: HeaderName = HeaderName::from_static("max-forwards");
/// What this hop can be asked for, whatever lies behind it.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// Counts this hop; the answer, if the request may go no further. Any other method may have the field, and it means nothing.
pub fn count(head: &mut Parts) -> Option<Response<Body>> {
    if !matches!(head.method, Method::OPTIONS | Method::TRACE) {
        return None;
    }
    let mut lines = head.headers.get_all(MAX_FORWARDS).iter();
    let (Some(only), None) = (lines.next(), lines.next()) else { return None };
    let left: u64 = only.to_str().ok()?.parse().ok()?;
    match left.checked_sub(1) {
        Some(left) => {
            head.headers.insert(MAX_FORWARDS, left.into());
            None
        }
        None => Some(last_hop(&head.method)),
    }
}

/// The answer of the last hop. It does not reflect a TRACE: what the hops before have added to it is nobody's affair.
pub fn last_hop(method: &Method) -> Response<Body> {
    let mut response = Response::new(Body::full(Bytes::new()));
    *response.status_mut() =
        if *method == Method::OPTIONS { StatusCode::NO_CONTENT } else { StatusCode::METHOD_NOT_ALLOWED };
    response.headers_mut().insert(ALLOW, METHODS);
    response
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// The status of the answer, and the field as it goes on.
    fn counted(method: &str, value: &'static str) -> (Option<u16>, HeaderValue) {
        let request = Request::builder().method(method).uri("/").header(MAX_FORWARDS, value).body(()).unwrap();
        let mut head = request.into_parts().0;
        let answer = count(&mut head);
        (answer.map(|response| response.status().as_u16()), head.headers[MAX_FORWARDS].clone())
    }

    #[test]
    fn each_hop_counts_and_the_last_one_answers() {
        for (method, value, status, left) in [
            ("OPTIONS", "0", Some(204), "0"),
            ("TRACE", "0", Some(405), "0"),
            ("OPTIONS", "1", None, "0"),
            ("TRACE", "10", None, "9"),
            ("TRACE", "18446744073709551615", None, "18446744073709551614"),
            ("GET", "0", None, "0"),
            ("POST", "5", None, "5"),
            ("OPTIONS", "many", None, "many"),
            ("OPTIONS", "-1", None, "-1"),
            ("OPTIONS", "99999999999999999999", None, "99999999999999999999"),
        ] {
            assert_eq!(counted(method, value), (status, HeaderValue::from_static(left)), "{method} {value}");
        }
    }
}
