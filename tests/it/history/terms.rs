//! The terms of a run: what was done to it, as far as the documents let that show in the answers.

use std::time::Duration;

use super::Moment;

/// From one moment to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: Moment,
    pub(crate) until: Moment,
}

impl Span {
    pub(crate) fn overlaps(&self, from: Moment, until: Moment) -> bool {
        self.from <= until && from <= self.until
    }
}

/// The store was made to forget: at some moment in `when`, what it had been told after `since`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    pub(crate) since: Moment,
    pub(crate) when: Span,
    /// All of it, claims too; or only what comes after a claim, since a claim did not count before replicas had it.
    pub(crate) claims: bool,
}

/// What was done to the run, and what it may therefore show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    /// How long an attempt listens for its answer.
    pub(crate) abandon_after: Duration,
    /// Where an unknown outcome is sent again (`on_unknown = "resend"`): the lease, which is the least time after which
    /// one that nobody decides counts as unknown.
    pub(crate) resend: Option<Duration>,
    /// With a second line: when the first one was made to forget. What the second has is kept; an answer that it may have
    /// missed is gone then, and the key is held.
    pub(crate) first_line: Option<Vec<Span>>,
    /// What the store was made to forget. Empty for all that the documents say survives.
    pub(crate) losses: Vec<Loss>,
    /// When the store could not be relied on to answer.
    pub(crate) outages: Vec<Span>,
    /// When a proxy was killed, stood still, or was not up again.
    pub(crate) away: Vec<(usize, Span)>,
    /// When the store had no room for a body.
    pub(crate) full: Vec<Span>,
}

/// What a store of the documents keeps without its body only if there is no room, and never below this size.
const ALWAYS_KEPT: usize = 4096;
/// So long without any trouble is enough for a write that is repeated at least every second.
const CALM: Duration = Duration::from_secs(2);

/// A grant that nobody uses is handed back by tries that become rarer. One of those after this time …
const SOON: Duration = Duration::from_millis(700);
/// … and before this one is certain, whatever the tries before it cost.
const LATE: Duration = Duration::from_secs(5);

impl Terms {
    /// Whether the store may have forgotten, before `later`, what it was told at `told` about an attempt of `begun`.
    pub(crate) fn may_have_forgotten(&self, begun: Moment, told: Moment, later: Moment) -> bool {
        self.losses.iter().any(|loss| loss.since <= told && begun <= loss.when.until && loss.when.from <= later)
    }

    /// The same of all that it was told about the key, the claim too.
    pub(crate) fn may_have_forgotten_claim(&self, told: Moment, later: Moment) -> bool {
        let claims = |loss: &&Loss| loss.claims;
        self.losses
            .iter()
            .filter(claims)
            .any(|loss| loss.since <= told && told <= loss.when.until && loss.when.from <= later)
    }

    /// Whether a second line may have missed the answer that was there at `ended`, so that the first alone has it.
    pub(crate) fn may_be_in_first_line_alone(&self, proxy: usize, begun: Moment, ended: Moment) -> bool {
        self.first_line.is_some() && !self.must_be_recorded(proxy, begun, ended)
    }

    /// Whether the first line may have forgotten, before `later`, an attempt of `begun`.
    pub(crate) fn first_line_may_have_forgotten(&self, begun: Moment, later: Moment) -> bool {
        self.first_line.iter().flatten().any(|span| begun <= span.until && span.from <= later)
    }

    /// Whether the store was in trouble at some time between the two.
    pub(crate) fn troubled(&self, from: Moment, until: Moment) -> bool {
        self.outages.iter().any(|span| span.overlaps(from, until))
            || self.losses.iter().any(|loss| loss.when.overlaps(from, until))
    }

    /// Whether this proxy was away at some time between the two.
    pub(crate) fn was_away(&self, proxy: usize, from: Moment, until: Moment) -> bool {
        self.away.iter().any(|(away, span)| *away == proxy && span.overlaps(from, until))
    }

    /// Whether a body of this size may have been left out of a record that was written between the two.
    pub(crate) fn may_lack_body(&self, size: usize, from: Moment, until: Moment) -> bool {
        size > ALWAYS_KEPT && self.full.iter().any(|span| span.overlaps(from, until))
    }

    /// Whether a key that this caller asked for was certainly handed back, if it was refused for lack of a store.
    pub(crate) fn must_be_handed_back(&self, proxy: usize, sent: Moment, ended: Moment) -> bool {
        !self.was_away(proxy, sent, ended + LATE) && !self.troubled(ended + SOON, ended + LATE)
    }

    /// Whether an answer that was there at `ended`, to an attempt of `begun` by a proxy that lived, is certainly
    /// recorded: the store answered for long enough before the attempt gave up on it.
    pub(crate) fn must_be_recorded(&self, proxy: usize, begun: Moment, ended: Moment) -> bool {
        let until = begun + self.abandon_after;
        let clear = |from: Moment| !self.troubled(from, from + CALM);
        let mut starts = std::iter::once(ended).chain(self.outages.iter().map(|span| span.until));
        !self.was_away(proxy, begun, until)
            && !self.losses.iter().any(|loss| loss.since <= until && begun <= loss.when.until)
            && starts.any(|start| start >= ended && start + CALM < until && clear(start + Duration::from_millis(1)))
    }
}
