//! What can be wrong with the head of a request: each fault is a way to make two readers of the same bytes disagree.

use http::StatusCode;
use thiserror::Error;

/// Why a request was refused by its head, before the service saw it. Its text is what the client gets.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum HeadFault {
    /// RFC 9112, section 6.1: a way to smuggle requests.
    #[error("the request has both Content-Length and Transfer-Encoding")]
    BothFramings,
    /// RFC 9112, section 6.1. Other codings could be decoded, but never are by clients of an HTTP API.
    #[error("Transfer-Encoding must be exactly one field that says chunked")]
    TransferEncoding,
    /// RFC 9110, section 8.6.
    #[error("Content-Length must be exactly one number")]
    ContentLength,
    /// RFC 9112, section 2.2 allows to accept it; two readers may disagree.
    #[error("a line of the head does not end with CR LF")]
    BareLf,
    /// RFC 9112, section 5.2.
    #[error("a field is folded over several lines")]
    FoldedField,
    /// RFC 9112, section 3.2.
    #[error("the request has no Host")]
    NoHost,
    /// RFC 9112, section 3.2.
    #[error("the request has more than one Host")]
    SeveralHosts,
    /// RFC 9110, section 7.2.
    #[error("Host is not a host with an optional port")]
    MalformedHost,
    /// RFC 9112, section 3.2: what this server can be asked for is a path, or `*` with OPTIONS.
    #[error("the request target must be a path, or an http or https URL without user information")]
    Target,
    /// RFC 9110, section 9.3.6.
    #[error("the target of CONNECT must be HOST:PORT, and nothing else")]
    TunnelTarget,
    /// RFC 9110, section 9.3.6: the content of CONNECT has no meaning.
    #[error("CONNECT has no body")]
    TunnelBody,
    /// RFC 9113, section 8.5. A tunnel would be one of many streams, and end with the connection that they share.
    #[error("tunnels are opened by HTTP/1.1")]
    TunnelVersion,
    /// RFC 9112, section 3.2: no form of a target has one.
    #[error("the request target has a fragment")]
    Fragment,
    /// RFC 9112, section 3.2.2.
    #[error("Host names another authority than the request target")]
    OtherAuthority,
    /// RFC 9113, section 8.2.1: one reader takes the spaces off and another does not.
    #[error("the value of a field begins or ends with a space or tab")]
    PaddedValue,
    /// RFC 9113, section 8.2.2: it belongs to a connection of HTTP/1.
    #[error("HTTP/2 has no Transfer-Encoding, Connection, Keep-Alive, Proxy-Connection or Upgrade")]
    ConnectionField,
    /// RFC 6585, section 5.
    #[error("the request has more than {MAX_FIELDS} header fields")]
    TooManyFields,
}

/// How many header fields a request may have; hyper's own limit for HTTP/1.
pub(super) const MAX_FIELDS: usize = 100;

impl HeadFault {
    /// The status of the refusal.
    pub(super) fn status(self) -> StatusCode {
        match self {
            HeadFault::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            HeadFault::TunnelVersion => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}
