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
    /// that the key was used for it. The request goes its own way, from the flights on.
    ByItself,
    /// The flight is on, and cannot answer for this request: it may be another one, or it watches another process's
    /// attempt and the request will not wait. The store must be asked, without claiming.
    AskStore,
}

/// Who it is that cannot join.
enum Other {
    /// Somebody else.
    Caller,
    /// Another request.
    Request(Differences),
}

impl Other {
    /// How the join ends for one that is not to get the flight's conclusion; `None` while the store's word is awaited.
    fn ends(&self, route: &Route, id: &RecordId, stage: &Stage, was_granted: bool) -> Option<Joined> {
        let (fate, original_status) = match stage {
            Stage::Claiming => return None,
            Stage::Elsewhere => return Some(Joined::AskStore),
            Stage::Granted => (Fate::Running, None),
            // Only a claim of this process proves that the key was used for it.
            Stage::Done(conclusion) => match conclusion.fate().filter(|_| was_granted) {
                Some(fate) => fate,
                None => return Some(Joined::ByItself),
            },
        };
        Some(Joined::Refused(match self {
            Other::Caller => Problem::other_caller(id),
            Other::Request(differences) => {
                Problem::reused(id, fate, original_status, differs(&route.config, differences))
            }
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
    let other = match seat.imprint().compare(imprint) {
        Likeness::Same { other_policy } => {
            if other_policy {
                route.metrics.policy_changed.inc();
            }
            None
        }
        Likeness::OtherCaller => Some(Other::Caller),
        Likeness::Differs(differences) => Some(Other::Request(differences)),
    };
    let rejects = route.config.on_duplicate == OnDuplicate::Reject;
    let until = Instant::now() + patience;
    loop {
        let stage = seat.stage();
        if let Some(other) = &other
            && let Some(ended) = other.ends(route, id, &stage, seat.was_granted())
        {
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
