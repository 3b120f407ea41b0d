//! The join: a duplicate that meets a flight of its own process.
//!
//! It costs no store connection. A joiner never becomes an owner: it gets what the attempt's caller got, or the news
//! that the attempt is still running.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::error::{Kind, Problem};
use super::fingerprint::differs::differs;
use super::flights::{Conclusion, Seat, Stage};
use super::route::Route;
use crate::config::OnDuplicate;
use crate::record::{Differences, Fate, Imprint, Likeness, RecordId};

/// How a join ended.
#[derive(Debug)]
pub enum Joined {
    /// With the attempt's own conclusion.
    Concluded(Arc<Conclusion>),
    /// With a refusal of this request alone.
    Refused(Problem),
    /// The flight is over, and cannot answer for this request: it was another one, and no claim of this process proves
    /// that the key was used for it; or the key is free again, and its bytes were others. The request goes its own way, from
    /// the flights on.
    ByItself,
    /// The flight is on, and cannot answer for this request: it may be another one, or it watches another process's
    /// attempt and the request will not wait. The store must be asked, without claiming.
    AskStore,
}

/// What a request is to the flight that it meets.
enum Joiner {
    /// The same in every byte of its imprint: what the flight is told goes for this one as well.
    Equal,
    /// The same as the flight's first request. Likeness is not passed on: what a record says to that one, it may not say to
    /// this one. So it has the flight's conclusion only if the record is the flight's own.
    Alike,
    /// Somebody else.
    OtherCaller,
    /// Another request.
    OtherRequest(Differences),
}

impl Joiner {
    fn at(seat: &Seat, imprint: &Imprint, route: &Route) -> Joiner {
        match seat.imprint().compare(imprint) {
            Likeness::Same { other_policy } => {
                if other_policy {
                    route.metrics.policy_changed.inc();
                }
                if seat.imprint() == imprint { Joiner::Equal } else { Joiner::Alike }
            }
            Likeness::OtherCaller => Joiner::OtherCaller,
            Likeness::Differs(differences) => Joiner::OtherRequest(differences),
        }
    }

    /// How the join ends at this stage for one that does not get the flight's conclusion; `None` if it may wait for it, or
    /// for the store's word.
    fn ends(&self, route: &Route, id: &RecordId, stage: &Stage, was_granted: bool) -> Option<Joined> {
        let (fate, original_status) = match (self, stage) {
            (Joiner::Equal, _) | (_, Stage::Claiming) => return None,
            (Joiner::Alike, Stage::Done(_)) if !was_granted => return Some(Joined::ByItself),
            // It was refused by its bytes, say, as a forged delivery of a webhook is; those of this one are others.
            (Joiner::Alike, Stage::Done(conclusion)) if conclusion.fate().is_none() => return Some(Joined::ByItself),
            (Joiner::Alike, _) => return None,
            (_, Stage::Elsewhere) => return Some(Joined::AskStore),
            (_, Stage::Granted) => (Fate::Running, None),
            // Only a claim of this process proves that the key was used for it.
            (_, Stage::Done(conclusion)) => match conclusion.fate().filter(|_| was_granted) {
                Some(fate) => fate,
                None => return Some(Joined::ByItself),
            },
        };
        Some(Joined::Refused(match self {
            Joiner::OtherRequest(differences) => {
                Problem::reused(id, fate, original_status, differs(&route.config, differences))
            }
            Joiner::OtherCaller | Joiner::Equal | Joiner::Alike => Problem::other_caller(id),
        }))
    }
}

/// Waits for the flight for at most `patience`.
///
/// `room` takes a place among those that wait; it is asked only when there is something to wait for.
pub async fn join<R>(
    route: &Route,
    id: &RecordId,
    imprint: &Imprint,
    mut seat: Seat,
    patience: Duration,
    room: impl FnOnce() -> Option<R>,
) -> Joined {
    let mut room = Some(room);
    let mut place = None;
    let joiner = Joiner::at(&seat, imprint, route);
    let rejects = route.config.on_duplicate == OnDuplicate::Reject;
    let until = Instant::now() + patience;
    loop {
        let stage = seat.stage();
        if let Some(ended) = joiner.ends(route, id, &stage, seat.was_granted()) {
            return ended;
        }
        match stage {
            Stage::Done(conclusion) => return Joined::Concluded(conclusion),
            // All that is known here is that another process was at it a while ago. It may be done by now.
            Stage::Elsewhere if rejects || patience.is_zero() => return Joined::AskStore,
            Stage::Granted if rejects => return Joined::Refused(Problem::in_progress(id)),
            // The claim's reply is awaited in any case: it may be a replay. The store bounds the time it takes.
            Stage::Claiming => seat.changed().await,
            Stage::Granted | Stage::Elsewhere => {
                if patience.is_zero() {
                    return Joined::Refused(Problem::in_progress(id));
                }
                if let Some(room) = room.take() {
                    place = room();
                }
                if place.is_none() {
                    return Joined::Refused(Problem::new(Kind::Overloaded, "Too many duplicates wait already."));
                }
                if route.alarms.bound(until, pin!(seat.changed())).await.is_none() {
                    return Joined::Refused(Problem::in_progress(id));
                }
            }
        }
    }
}
