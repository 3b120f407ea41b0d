//! What an attempt came to, and the one verdict on it.
//!
//! Forward returns the facts, record asks for the verdict and makes the write that it means, respond tells the caller. No
//! other file judges a status, so that an answer means the same however it came: whole, flowing, or over-long.

use bytes::Bytes;
use http::StatusCode;
use http::header::HeaderMap;

use super::body::{self, Body};
use super::budget::Share;
use super::error::Problem;
use crate::config::{Route, Verdict};
use crate::record::Reason;

mod grpc;
mod rules;

pub use self::grpc::is_grpc;

/// What is known of an attempt.
#[derive(Debug)]
pub enum Outcome {
    /// Certainly not executed: not one byte was sent, or a TLS stack refused it unread.
    NotSent(Problem),
    /// An answer came to its end.
    Answered(Box<Arrived>),
    /// Nobody can tell; with the head of the answer, if that came.
    Unknown(Reason, Option<Box<Head>>),
}

/// The head of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// The status.
    pub status: StatusCode,
    /// The fields as the caller gets them.
    pub fields: HeaderMap,
}

/// An answer that came to its end.
#[derive(Debug)]
pub struct Arrived {
    /// Its head.
    pub head: Head,
    /// The trailers, if there were any.
    pub trailers: Option<HeaderMap>,
    /// The body; `None` if it was longer than is kept.
    pub body: Option<Kept>,
    /// Whether it is of a kind that flows to the caller while it arrives.
    pub is_stream: bool,
}

/// A whole body.
#[derive(Debug)]
pub struct Kept {
    /// For the caller: it counts against the budget for as long as somebody has it.
    pub counted: Bytes,
    /// The same, for the store.
    pub uncounted: Bytes,
}

impl Kept {
    /// Keeps a body that this share was taken for.
    pub fn new(bytes: Bytes, share: Share) -> Kept {
        Kept { uncounted: bytes.clone(), counted: body::counted(bytes, share) }
    }
}

/// An answer whose head goes to the caller while its body still arrives.
#[derive(Debug)]
pub struct Flowing {
    /// Its head.
    pub head: Head,
    /// Its body, as it comes.
    pub body: Body,
    /// What is known by now of its end.
    pub foreseen: Foreseen,
}

/// What can be said of an answer before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreseen {
    /// It is not recorded, whatever comes: there is no claim.
    Unprotected,
    /// It is final if it comes to its end, and too long to be replayed.
    NotRetained,
    /// Its status cannot tell, whatever comes.
    Unknown,
    /// That depends on what is still to come.
    Open,
}

/// The verdict on an answer: what it means for the key.
///
/// The route's rules on bodies come first. What flows matches none, be it of such a kind or too long to be held; so that
/// an answer means the same whether it came in one piece or in many.
pub fn verdict(route: &Route, arrived: &Arrived) -> Verdict {
    if let (false, false, Some(body)) = (route.when.is_empty(), arrived.is_stream, &arrived.body)
        && let Some(verdict) = rules::verdict(route, &arrived.head, &body.uncounted)
    {
        return verdict;
    }
    by_status(route, &arrived.head, arrived.trailers.as_ref())
}

/// What is known of an answer by its head. `is_kept` says whether its body is, should it come to its end in time.
pub fn foresee(route: &Route, head: &Head, is_kept: bool) -> Foreseen {
    if grpc::judges(head) {
        return Foreseen::Open;
    }
    match by_status(route, head, None) {
        Verdict::Unknown => Foreseen::Unknown,
        Verdict::Record if !is_kept => Foreseen::NotRetained,
        Verdict::Record | Verdict::Release => Foreseen::Open,
    }
}

fn by_status(route: &Route, head: &Head, trailers: Option<&HeaderMap>) -> Verdict {
    route.statuses.verdict(grpc::judged_status(head, trailers))
}
