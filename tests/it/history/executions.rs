//! What the upstream executed: at most once, unless the key was freed in between, and never again once it is held.

use std::time::Duration;

use super::{Act, Answered, Case, Execution, Fault, Finding, Meaning, Moment, Seen, Verdict};

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
        let first = case.executions[..n].iter().find(|first| !may_follow(case, first, second))?;
        Some((*first, *second))
    })
}

/// Whether something freed the key between the two executions, or allowed the second all the same.
pub(super) fn may_follow(case: &Case<'_>, first: &Execution, second: &Execution) -> bool {
    let later = second.begun;
    let said_so = Meaning::of(first.gave.status) == Meaning::Frees && first.ended.is_some_and(|ended| ended <= later);
    said_so
        || freed_by_operator(case, first.begun, later)
        || forgotten(case, first, later)
        // The loss may have freed the key for the first: the other's claim was among what it took.
        || forgotten(case, second, first.begun)
        || may_be_sent_again(case, first, second)
}

/// Whether the first outcome may have been unknown when the second was granted, on a route that sends again then. One
/// request of a caller is sent once, and what the store is known to hold is not sent again.
fn may_be_sent_again(case: &Case<'_>, first: &Execution, second: &Execution) -> bool {
    let Some(lease) = case.whole.terms().resend else { return false };
    first.call != second.call
        && may_be_unknown(case, first, second.begun, lease)
        && !is_recorded_for_certain(case, first, second)
        && !was_seen_recorded(case, second)
}

fn may_be_unknown(case: &Case<'_>, execution: &Execution, later: Moment, lease: Duration) -> bool {
    let terms = case.whole.terms();
    let since = case.whole.claimed_since(execution);
    let until = since + terms.abandon_after;
    let by_status = Meaning::of(execution.gave.status) == Meaning::CannotTell;
    let said_so = by_status && execution.ended.is_some_and(|ended| ended <= later);
    let broken = execution.broken.is_some_and(|broken| broken <= later);
    let given_up = until <= later && execution.ended.is_none_or(|ended| until <= ended);
    let proxy = case.whole.calls.get(&execution.call).map(|call| call.proxy);
    let away = proxy.is_none_or(|proxy| terms.was_away(proxy, since, later));
    let lapsed = since + lease <= later && (away || terms.troubled(since, later));
    said_so || broken || given_up || lapsed
}

/// Whether a final answer was certainly recorded, and that before the second was asked for.
fn is_recorded_for_certain(case: &Case<'_>, first: &Execution, second: &Execution) -> bool {
    let (terms, since) = (case.whole.terms(), case.whole.claimed_since(first));
    let (Some(ended), Some(own)) = (first.ended, case.whole.calls.get(&first.call)) else { return false };
    Meaning::of(first.gave.status) == Meaning::Final
        && !terms.troubled(since, ended)
        && terms.must_be_recorded(own.proxy, first.begun, ended)
        && first.begun + terms.abandon_after <= case.whole.claimed_since(second)
}

/// Whether somebody saw, before the second was asked for, that the store holds a final answer of the key.
fn was_seen_recorded(case: &Case<'_>, second: &Execution) -> bool {
    let asked = case.whole.claimed_since(second);
    case.calls.iter().filter(|call| call.ended <= asked).any(|call| {
        let Seen::Answer(Answered { given, kept: true, .. }) = &call.seen else { return false };
        let by = case.executions.iter().find(|execution| execution.gave.body == given.body);
        // What an operator said is known since it was said; the earliest that can be is when the call was sent.
        let known_since = by.map_or(call.sent, |execution| execution.begun);
        let freed = freed_by_operator(case, call.sent, second.begun);
        Meaning::of(given.status) == Meaning::Final
            && !freed
            && !case.whole.terms().may_have_forgotten(known_since, call.ended, second.begun)
    })
}

/// Whether the operator's word may count. The proxy repeats a change when the store lost its reply; the repeat finds the
/// record changed by then, so the operator is refused although it took effect.
pub(super) fn may_count(case: &Case<'_>, act: &Act) -> bool {
    act.done || case.whole.terms().troubled(act.begun, act.ended)
}

/// Whether an operator may have freed the key between the two.
pub(super) fn freed_by_operator(case: &Case<'_>, from: Moment, until: Moment) -> bool {
    let frees = |what: &Finding| matches!(what, Finding::Free);
    case.acts.iter().any(|act| may_count(case, act) && frees(&act.what) && from <= act.ended && act.begun <= until)
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
    if case.whole.terms().resend.is_some() {
        return;
    }
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
