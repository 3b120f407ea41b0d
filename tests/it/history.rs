//! The history checker: judges a run from what the upstream executed and what each client saw, and from nothing else.
//!
//! It knows no proxy, no store and no test: [`judge`] is a pure function from a [`History`] to [`Verdict`]s, each with
//! the least evidence that proves it, in words. What a run may show besides the promise (records that a store was made
//! to forget, answers that a full store kept without their body) is said in its [`Terms`], which follow the documents.
//! The checker is itself tested: on histories that are wrong by hand, and on right ones made wrong at random.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

mod answers;
mod executions;
pub(crate) mod mutations;
mod resent;
mod right;
mod shown;
mod terms;
mod wrong;

pub(crate) use terms::{Loss, Span, Terms};

/// Time since the run began.
pub(crate) type Moment = Duration;

/// Whose key it is, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) scope: u64,
    pub(crate) number: u64,
}

/// All that is known of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) executions: Vec<Execution>,
    pub(crate) calls: Vec<Call>,
    pub(crate) acts: Vec<Act>,
    /// The open records that the operator's list showed at the very end.
    pub(crate) left: Vec<Left>,
    pub(crate) terms: Terms,
}

/// One request that the upstream read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    pub(crate) number: usize,
    pub(crate) key: Key,
    /// Which of the requests under this key it was.
    pub(crate) request: u64,
    /// The call whose request it was.
    pub(crate) call: usize,
    pub(crate) begun: Moment,
    /// The moment just before the last byte of its answer was written; `None` if it gave no whole answer.
    pub(crate) ended: Option<Moment>,
    /// The moment just before it broke off without a whole answer; `None` also of one that stayed silent.
    pub(crate) broken: Option<Moment>,
    /// The answer that it gave, or would have given.
    pub(crate) gave: Given,
}

/// An answer as the upstream gave it. No two executions give the same body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) status: u16,
    /// A field that the upstream sends with it.
    pub(crate) receipt: String,
    pub(crate) body: Bytes,
}

/// One request of a client, and what it saw.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) number: usize,
    pub(crate) key: Key,
    pub(crate) request: u64,
    pub(crate) proxy: usize,
    pub(crate) sent: Moment,
    pub(crate) ended: Moment,
    pub(crate) seen: Seen,
    /// Whether it was the last one with its key to this proxy, when everything was at rest.
    pub(crate) last: bool,
}

/// What a client saw.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// It hung up, or the connection broke before the answer was whole.
    Nothing,
    /// The proxy's own refusal.
    Problem(Problem),
    /// An answer that claims to be the upstream's.
    Answer(Answered),
}

/// A problem document.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problem {
    pub(crate) status: u16,
    /// The last word of its type.
    pub(crate) kind: String,
    pub(crate) retry: String,
    pub(crate) reason: String,
    pub(crate) record: String,
}

/// An answer, with what the proxy says about it.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) given: Given,
    /// `Idempotent-Replayed: true`.
    pub(crate) replayed: bool,
    /// `Cache-Status` says that it is in the store: it was just stored there, or was read from there.
    pub(crate) kept: bool,
}

/// What an operator did.
#[derive(Clone, Debug)]
pub(crate) struct Act {
    pub(crate) key: Key,
    pub(crate) begun: Moment,
    pub(crate) ended: Moment,
    /// False only if it was certainly refused.
    pub(crate) done: bool,
    pub(crate) what: Finding,
}

/// What the operator said.
#[derive(Clone, Debug)]
pub(crate) enum Finding {
    /// It was not executed, or: forget it. Either way the key is free.
    Free,
    /// It was executed, and this is the answer.
    Executed(Given),
}

/// An open record in the operator's list.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    pub(crate) record: String,
    pub(crate) state: String,
}

/// What a status of the upstream means on the route of the run (preset `api`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It is recorded.
    Final,
    /// "Not executed": the key is free again.
    Frees,
    /// Nobody can tell: the key is held.
    CannotTell,
}

impl Meaning {
    pub(crate) fn of(status: u16) -> Meaning {
        match status {
            307 | 308 | 401 | 403 | 407 | 408 | 409 | 412 | 417 | 421 | 423 | 425 | 428 | 429 | 431 | 503 => {
                Meaning::Frees
            }
            502 | 504 => Meaning::CannotTell,
            _ => Meaning::Final,
        }
    }
}

/// What can be wrong with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A key was executed again, and nothing had freed it.
    SecondExecution,
    /// It was said to be unknown for good, and then a later request was executed.
    UnknownNotHeld,
    /// An answer that no execution gave, or not like this.
    NobodyGaveIt,
    /// The answer of another key or another scope.
    AnswerOfAnotherKey,
    /// The answer to another request under the same key.
    AnswerToAnotherRequest,
    /// Two different final answers under one key.
    TwoAnswers,
    /// An answer, or a replay, before the execution had given it.
    AnsweredTooEarly,
    /// "Not sent, try again" to a caller whose request was executed.
    SaidNotSent,
    /// A replay that is not marked as one, or a first answer that is, or a replay of what is never recorded.
    WronglyMarked,
    /// A recorded answer that a later caller did not get.
    RecordLost,
    /// An answer that the documents say is recorded, and was not.
    AnswerNotRecorded,
    /// A key is held as unknown although nothing was ever sent, and nothing kept its attempts from handing it back.
    KeyBurnt,
    /// "Key used for another request", and there was no other.
    FalselyReused,
    /// A refusal for which the run gave no cause.
    NoCause,
    /// A key that nobody could bring to an end when all was well again.
    Stuck,
    /// A claim that outlived its lease.
    StillClaimed,
    /// An unknown record that the operator's list does not show, or a record in the list that no caller is told of.
    WronglyListed,
}

/// One thing that is wrong, and what proves it.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) fault: Fault,
    pub(crate) evidence: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.fault, self.evidence)
    }
}

/// One key's part of a history, in the order of time.
struct Case<'a> {
    key: Key,
    executions: Vec<&'a Execution>,
    calls: Vec<&'a Call>,
    acts: Vec<&'a Act>,
    whole: &'a Index<'a>,
}

/// What the rules look up in the whole history.
struct Index<'a> {
    history: &'a History,
    /// By their body.
    given: BTreeMap<&'a [u8], &'a Execution>,
    /// By their number.
    calls: BTreeMap<usize, &'a Call>,
}

impl Index<'_> {
    fn terms(&self) -> &Terms {
        &self.history.terms
    }

    /// The earliest moment at which an execution's claim can have been made.
    fn claimed_since(&self, execution: &Execution) -> Moment {
        self.calls.get(&execution.call).map_or(execution.begun, |call| call.sent)
    }
}

/// All that is wrong with a run; empty if nothing is.
pub(crate) fn judge(history: &History) -> Vec<Verdict> {
    let given = history.executions.iter().map(|e| (e.gave.body.as_ref(), e)).collect();
    let calls = history.calls.iter().map(|call| (call.number, call)).collect();
    let index = Index { history, given, calls };
    let mut cases: BTreeMap<Key, Case<'_>> = BTreeMap::new();
    let empty = |key| Case { key, executions: Vec::new(), calls: Vec::new(), acts: Vec::new(), whole: &index };
    for execution in &history.executions {
        cases.entry(execution.key).or_insert_with(|| empty(execution.key)).executions.push(execution);
    }
    for call in &history.calls {
        cases.entry(call.key).or_insert_with(|| empty(call.key)).calls.push(call);
    }
    for act in &history.acts {
        cases.entry(act.key).or_insert_with(|| empty(act.key)).acts.push(act);
    }
    let mut verdicts = Vec::new();
    for case in cases.values_mut() {
        case.executions.sort_by_key(|execution| execution.begun);
        case.calls.sort_by_key(|call| call.sent);
        executions::judge(case, &mut verdicts);
        answers::judge(case, &mut verdicts);
    }
    answers::judge_what_is_left(&index, &mut verdicts);
    verdicts.sort_by_key(|verdict| verdict.fault);
    verdicts
}

/// Panics with all that is wrong, and with the whole story of the keys concerned.
#[track_caller]
pub(crate) fn assert_right(run: &str, history: &History) {
    let verdicts = judge(history);
    if verdicts.is_empty() {
        return;
    }
    let list: String = verdicts.iter().map(|verdict| format!("\n  {verdict}")).collect();
    let stories = shown::stories(history, &verdicts);
    panic!("{run}: {} verdicts{list}\n{stories}", verdicts.len());
}
