//! What a gRPC answer says of the execution. HTTP says 200 to every call that got an answer; whether it worked stands in
//! `grpc-status`, in the trailers or, where there is no message, in the headers.
//!
//! Separate because it is another protocol's vocabulary: it is put into HTTP's, in which the route's status lists speak.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName};

use super::Head;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// What gRPC's documentation (`google.rpc.Code`) gives as the HTTP status of each code, with two exceptions: CANCELLED and
/// UNAVAILABLE say nothing of whether the call ran (a handler that lost its own database answers so), and so they are put
/// where every route cannot tell.
const STATUSES: [u16; 17] = [200, 504, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 502, 500, 401];
/// Of an answer without a readable code: it is cut off or not gRPC.
const NO_CODE: u16 = 502;

/// The HTTP status by which an answer is judged: its own, unless it is a gRPC answer.
pub(super) fn judged_status(head: &Head, trailers: Option<&HeaderMap>) -> u16 {
    if !judges(head) {
        return head.status.as_u16();
    }
    let trailers = trailers.into_iter().flat_map(|fields| fields.get_all(GRPC_STATUS));
    let mut codes = trailers.chain(head.fields.get_all(GRPC_STATUS));
    match (codes.next(), codes.next()) {
        (Some(code), None) => {
            let code = code.to_str().ok().and_then(|code| code.parse::<usize>().ok());
            code.and_then(|code| STATUSES.get(code).copied()).unwrap_or(NO_CODE)
        }
        // Two codes could be read differently by two readers.
        _ => NO_CODE,
    }
}

/// Whether a code decides, and not the status.
pub(super) fn judges(head: &Head) -> bool {
    let lines = || head.fields.get_all(CONTENT_TYPE).iter();
    head.status == 200 && lines().any(|line| is_grpc(line.as_bytes()))
}

/// Whether a content type is `application/grpc`, or that and what follows a plus. Not gRPC-Web, whose code is inside the
/// body.
pub fn is_grpc(content_type: &[u8]) -> bool {
    const NAME: &[u8] = b"application/grpc";
    let Some((start, rest)) = content_type.split_at_checked(NAME.len()) else { return false };
    start.eq_ignore_ascii_case(NAME) && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http::header::HeaderValue;

    use super::*;

    type Field = (&'static str, &'static str);

    fn judged(status: u16, headers: &[Field], trailers: &[Field]) -> u16 {
        let map = |fields: &[Field]| {
            fields.iter().fold(HeaderMap::new(), |mut map, (name, value)| {
                map.append(*name, HeaderValue::from_static(value));
                map
            })
        };
        let head = Head { status: StatusCode::from_u16(status).unwrap(), fields: map(headers) };
        judged_status(&head, Some(&map(trailers)))
    }

    const GRPC: Field = ("content-type", "application/grpc+proto");

    #[test]
    fn judges_a_grpc_answer_by_its_code() {
        for (code, status) in
            [("0", 200), ("3", 400), ("4", 504), ("7", 403), ("8", 429), ("13", 500), ("14", 502), ("1", 504)]
        {
            assert_eq!(judged(200, &[GRPC], &[("grpc-status", code)]), status, "{code} in the trailers");
            assert_eq!(judged(200, &[GRPC, ("grpc-status", code)], &[]), status, "{code} in the headers");
        }
        for odd in ["", "17", "-1", "ok", "999999999999999999999"] {
            assert_eq!(judged(200, &[GRPC], &[("grpc-status", odd)]), 502, "{odd:?}");
        }
        assert_eq!(judged(200, &[("content-type", "Application/GRPC; x=y")], &[]), 502, "there is no code");
        assert_eq!(judged(200, &[GRPC], &[("grpc-status", "0"), ("grpc-status", "14")]), 502, "there are two codes");
    }

    #[test]
    fn leaves_all_else_to_http() {
        assert_eq!(judged(503, &[GRPC], &[("grpc-status", "0")]), 503);
        for other in ["application/json", "application/grpc-web+proto", "application/grpcish", ""] {
            assert_eq!(judged(200, &[("content-type", other)], &[("grpc-status", "14")]), 200, "{other}");
        }
        assert_eq!(judged(200, &[], &[("grpc-status", "14")]), 200);
    }
}
