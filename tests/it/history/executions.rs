//! What the upstream executed: at most once, unless the key was freed in between, and never again once it is held.

use super::{Answered, Case, Execution, Fault, Finding, Meaning, Moment, Seen, Verdict};

/// Judges one key's executions.
pub(super) fn judge(case: &Case<'_>, verdicts: &mut Vec<Verdict>) {
    if let Some((first, second)) = second_execution(case) {
        let evidence = format!("{} was executed as {first}, and again as {second}", case.key);
        verdicts.push(Verdict { fault: Fault::SecondExecution, evidence });
    }
    unknown_not_held(case, verdicts);
}

fn second_execution<'a>(case: &Case<'a>) -> Option<(&'a Execution, &'a Execution)> {
    case.executions.iter().enumerate().find_map(|(n, second)| {
        let first = case.executions[..n].iter().find(|first| !may_follow(case, first, second.begun))?;
        Some((*first, *second))
    })
}

/// Whether something freed the key between the execution and that later moment.
pub(super) fn may_follow(case: &Case<'_>, first: &Execution, later: Moment) -> bool {
    let said_so = Meaning::of(first.gave.status) == Meaning::Frees && first.ended.is_some_and(|ended| ended <= later);
    said_so || freed_by_operator(case, first.begun, later) || forgotten(case, first, later)
}

/// Whether an operator may have freed the key between the two.
pub(super) fn freed_by_operator(case: &Case<'_>, from: Moment, until: Moment) -> bool {
    let frees = |what: &Finding| matches!(what, Finding::Free);
    case.acts.iter().any(|act| act.done && frees(&act.what) && from <= act.ended && act.begun <= until)
}

/// Whether the store was made to forget the execution, and nobody saw that it knew of it again before that moment.
pub(super) fn forgotten(case: &Case<'_>, execution: &Execution, later: Moment) -> bool {
    // Claimed before the loss, it may be sent after it: by a proxy that stood still in between.
    let claimed_since = case.whole.claimed_since(execution);
    case.whole.terms().losses.iter().any(|loss| {
        let lost =
            loss.claims && loss.since <= execution.begun && claimed_since <= loss.when.until && loss.when.from <= later;
        lost && !known_again(case, execution, loss.when.until, later)
    })
}

/// Whether an answer between the two shows that the store holds the execution's record.
fn known_again(case: &Case<'_>, execution: &Execution, from: Moment, until: Moment) -> bool {
    case.calls.iter().any(|call| {
        let Seen::Answer(Answered { given, replayed, kept: true }) = &call.seen else { return false };
        let written_since = if *replayed { call.sent >= from } else { execution.ended.is_some_and(|at| at >= from) };
        given.body == execution.gave.body && written_since && call.ended <= until
    })
}

/// "Nobody can tell, ask the operator" is for good: no later request may be executed. A lapse alone is not: an attempt
/// that has sent nothing may still say so.
fn unknown_not_held(case: &Case<'_>, verdicts: &mut Vec<Verdict>) {
    for told in &case.calls {
        let Seen::Problem(problem) = &told.seen else { continue };
        if problem.kind != "outcome-unknown" || problem.retry != "operator" || problem.reason == "lapsed" {
            continue;
        }
        let later = case.executions.iter().find(|execution| {
            let sent = case.calls.iter().find(|call| call.number == execution.call).map(|call| call.sent);
            let after = sent.is_some_and(|sent| sent > told.ended);
            let may = freed_by_operator(case, told.sent, execution.begun)
                || case.whole.terms().may_have_forgotten_claim(told.ended, execution.begun)
                || case.executions.iter().any(|first| forgotten(case, first, execution.begun));
            after && !may
        });
        if let Some(execution) = later {
            let evidence = format!("{}: {told}, and after that it was executed as {execution}", case.key);
            verdicts.push(Verdict { fault: Fault::UnknownNotHeld, evidence });
            return;
        }
    }
}
