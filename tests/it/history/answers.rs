//! What the clients saw: answers that were given, marked for what they are, the same for all, and for good.

use std::collections::BTreeSet;

use super::executions::{forgotten, freed_by_operator, may_count, may_follow};
use super::{Act, Answered, Call, Case, Execution, Fault, Finding, Index, Meaning, Moment, Problem, Seen, Verdict};

/// Judges what one key's callers saw.
pub(super) fn judge(case: &Case<'_>, verdicts: &mut Vec<Verdict>) {
    for call in &case.calls {
        let verdict = match &call.seen {
            Seen::Nothing => None,
            Seen::Problem(problem) => judge_problem(case, call, problem),
            Seen::Answer(answer) => judge_answer(case, call, answer),
        };
        verdicts.extend(verdict.map(|(fault, why)| of_call(case, call, fault, &why)));
    }
    verdicts.extend(two_answers(case));
    verdicts.extend(record_lost(case));
    verdicts.extend(answer_not_recorded(case));
    verdicts.extend(key_burnt(case));
    verdicts.extend(last_words(case));
}

fn of_call(case: &Case<'_>, call: &Call, fault: Fault, why: &str) -> Verdict {
    Verdict { fault, evidence: format!("{}: {call}, but {why}", case.key) }
}

type Wrong = Option<(Fault, String)>;

fn judge_problem(case: &Case<'_>, call: &Call, problem: &Problem) -> Wrong {
    let own = case.executions.iter().find(|execution| execution.call == call.number);
    let others = case.calls.iter().any(|other| other.request != call.request && other.sent < call.ended);
    match (problem.kind.as_str(), problem.status) {
        ("store-unavailable" | "overloaded", 503) | ("upstream-unreachable", 502) => {
            own.map(|execution| (Fault::SaidNotSent, format!("its request was executed as {execution}")))
        }
        ("key-reused", 422) if own.is_some() => Some((Fault::SaidNotSent, "its request was executed".to_owned())),
        ("key-reused", 422) if !others => {
            Some((Fault::FalselyReused, "all requests with the key were the same".to_owned()))
        }
        ("response-not-retained", 409) => {
            let may = |e: &&Execution| case.whole.terms().may_lack_body(e.gave.body.len(), e.begun, call.ended);
            let why = "no body of this key may be left out of its record";
            (!case.executions.iter().any(may)).then(|| (Fault::NoCause, why.to_owned()))
        }
        ("outcome-unknown", _) if case.whole.terms().resend.is_some() && problem.retry != "same-key" => {
            Some((Fault::NoCause, "a repeat would be sent again".to_owned()))
        }
        ("request-in-progress", 409) | ("key-reused", 422) | ("outcome-unknown", 409 | 502 | 504) => None,
        _ => Some((Fault::NoCause, "nothing in this run leads to that".to_owned())),
    }
}

/// What an answer is the answer of.
enum Source<'a> {
    Execution(&'a Execution),
    Operator(&'a Act),
}

fn source<'a>(case: &Case<'a>, answer: &Answered) -> Option<Source<'a>> {
    let by_operator = |act: &&&Act| matches!(&act.what, Finding::Executed(given) if given.body == answer.given.body);
    case.acts
        .iter()
        .find(by_operator)
        .map(|act| Source::Operator(act))
        .or_else(|| case.whole.given.get(answer.given.body.as_ref()).map(|execution| Source::Execution(execution)))
}

fn judge_answer(case: &Case<'_>, call: &Call, answer: &Answered) -> Wrong {
    let execution = match source(case, answer) {
        None => return Some((Fault::NobodyGaveIt, "nobody gave that answer".to_owned())),
        Some(Source::Operator(act)) if !may_count(case, act) || call.ended < act.begun => {
            return Some((Fault::NobodyGaveIt, format!("{act}")));
        }
        Some(Source::Operator(act)) => {
            let same = matches!(&act.what, Finding::Executed(given) if given.status == answer.given.status);
            return (!same).then(|| (Fault::NobodyGaveIt, format!("{act}")));
        }
        Some(Source::Execution(execution)) => execution,
    };
    if execution.key != call.key {
        return Some((Fault::AnswerOfAnotherKey, format!("that is the answer of {}: {execution}", execution.key)));
    }
    if execution.request != call.request {
        return Some((Fault::AnswerToAnotherRequest, format!("{execution} was another request")));
    }
    if execution.gave != answer.given {
        return Some((Fault::NobodyGaveIt, format!("the upstream gave it otherwise, as {execution}")));
    }
    match execution.ended {
        Some(ended) if ended <= call.ended => {}
        _ => return Some((Fault::AnsweredTooEarly, format!("it was not given by then: {execution}"))),
    }
    marked(call, answer, execution)
}

fn marked(call: &Call, answer: &Answered, execution: &Execution) -> Wrong {
    let own = execution.call == call.number;
    let is_final = Meaning::of(execution.gave.status) == Meaning::Final;
    let why = match (answer.replayed, own) {
        (true, true) => "it is the first answer of its own request",
        (true, false) if !is_final => "such an answer is never recorded",
        (false, false) if is_final => "its own request was not executed, so this is a replay",
        _ if answer.kept && !is_final => "such an answer is never recorded",
        _ => return None,
    };
    Some((Fault::WronglyMarked, format!("{why}: {execution}")))
}

/// The final answers that callers saw, each with whoever saw it first, in the order of time.
fn finals<'a>(case: &Case<'a>) -> Vec<(&'a Call, &'a Answered)> {
    let mut finals: Vec<(&Call, &Answered)> = Vec::new();
    for call in &case.calls {
        if let Seen::Answer(answer) = &call.seen
            && Meaning::of(answer.given.status) == Meaning::Final
        {
            finals.push((call, answer));
        }
    }
    finals.sort_by_key(|(call, _)| call.ended);
    finals
}

fn two_answers(case: &Case<'_>) -> Option<Verdict> {
    let finals = finals(case);
    let mut seen = BTreeSet::new();
    let different: Vec<_> = finals.iter().filter(|(_, answer)| seen.insert(answer.given.body.clone())).collect();
    let pair = different.iter().enumerate().find_map(|(n, second)| {
        let first = different[..n].iter().find(|first| !both_may_be_seen(case, first.1, second.1))?;
        Some((first.0, second.0))
    });
    let disagree = || {
        // When all is at rest, two proxies must say the same.
        let lasts: Vec<_> = case.calls.iter().filter(|call| call.last).collect();
        let answered = lasts.iter().find(|call| matches!(&call.seen, Seen::Answer(_)))?;
        let unknown = |call: &Call| matches!(&call.seen, Seen::Problem(problem) if problem.kind == "outcome-unknown");
        let other = lasts.iter().find(|call| call.request == answered.request && unknown(call))?;
        Some((**answered, **other))
    };
    let (one, other) = pair.or_else(disagree)?;
    let evidence = format!("{}: {one}, but {other}", case.key);
    Some(Verdict { fault: Fault::TwoAnswers, evidence })
}

/// Whether something explains that one caller saw the one, and another the other.
fn both_may_be_seen(case: &Case<'_>, one: &Answered, other: &Answered) -> bool {
    let terms = case.whole.terms();
    // What an attempt could not write, its own callers saw all the same; the operator's word counts from then on.
    let overruled = |answer: &Answered, execution: &Execution, act: &Act| {
        let finals = finals(case);
        let written = finals.iter().find(|(_, seen)| seen.kept && seen.given.body == answer.given.body);
        let gone = |told| {
            terms.may_have_forgotten(execution.begun, told, act.ended)
                || gone_with_first_line(case, execution, act.ended)
        };
        may_count(case, act) && written.is_none_or(|(call, _)| gone(call.ended))
    };
    match (source(case, one), source(case, other)) {
        (Some(Source::Execution(one)), Some(Source::Execution(other))) => {
            let (first, second) = if one.begun <= other.begun { (one, other) } else { (other, one) };
            may_follow(case, first, second)
        }
        (Some(Source::Execution(execution)), Some(Source::Operator(act))) => {
            overruled(one, execution, act) || terms.may_have_forgotten(act.begun, act.ended, execution.begun)
        }
        (Some(Source::Operator(act)), Some(Source::Execution(execution))) => {
            overruled(other, execution, act) || terms.may_have_forgotten(act.begun, act.ended, execution.begun)
        }
        (Some(Source::Operator(one)), Some(Source::Operator(other))) => {
            let (first, second) = if one.begun <= other.begun { (one, other) } else { (other, one) };
            terms.may_have_forgotten(first.begun, first.ended, second.ended)
        }
        _ => false,
    }
}

/// What was in the store is what every later caller gets.
fn record_lost(case: &Case<'_>) -> Option<Verdict> {
    let finals = finals(case);
    let (told, answer) = finals.iter().find(|(_, answer)| answer.kept)?;
    let known = match source(case, answer)? {
        Source::Execution(execution) => execution.begun,
        Source::Operator(act) => act.begun,
    };
    let later = case.calls.iter().filter(|call| call.sent > told.ended).find(|call| {
        let kept = match &call.seen {
            Seen::Nothing => true,
            // Another answer is for the rule of two answers; one that is not final cannot come from a record.
            Seen::Answer(answer) => Meaning::of(answer.given.status) == Meaning::Final,
            Seen::Problem(problem) => match problem.kind.as_str() {
                "store-unavailable" | "overloaded" => true,
                "key-reused" => call.request != told.request,
                // A duplicate that waits for another process may not have heard the news.
                "request-in-progress" => case.whole.terms().troubled(told.sent, call.ended),
                _ => false,
            },
        };
        let may_be_gone = case.whole.terms().may_have_forgotten(known, told.ended, call.ended)
            || freed_by_operator(case, told.sent, call.ended)
            // An attempt that the store had forgotten may still run, and say how it ended to those who wait for it.
            || case.executions.iter().any(|execution| forgotten(case, execution, told.ended))
            || held_without_first_line(case, answer, call)
            || joined_another_attempt(case, answer, told, call);
        !kept && !may_be_gone
    })?;
    let evidence = format!("{}: {told}, but later {later}", case.key);
    Some(Verdict { fault: Fault::RecordLost, evidence })
}

/// Whether the answer may have been in the first line alone, and that have forgotten it by then: the key is held.
fn gone_with_first_line(case: &Case<'_>, execution: &Execution, later: Moment) -> bool {
    let terms = case.whole.terms();
    may_be_in_first_line_alone(case, execution) && terms.first_line_may_have_forgotten(execution.begun, later)
}

/// Whether the call was told that the key is held, because the answer was in the first line alone and is gone with it.
fn held_without_first_line(case: &Case<'_>, answer: &Answered, call: &Call) -> bool {
    let Seen::Problem(problem) = &call.seen else { return false };
    let Some(Source::Execution(execution)) = source(case, answer) else { return false };
    matches!(problem.kind.as_str(), "outcome-unknown" | "request-in-progress")
        && gone_with_first_line(case, execution, call.ended)
}

fn may_be_in_first_line_alone(case: &Case<'_>, execution: &Execution) -> bool {
    let (Some(ended), Some(own)) = (execution.ended, case.whole.calls.get(&execution.call)) else { return false };
    case.whole.terms().may_be_in_first_line_alone(own.proxy, execution.begun, ended)
}

/// Whether the call may have joined an attempt that runs on although its key was decided: an operator said what became
/// of it, or, where unknowns are sent again, another took it over. Those who join it get what becomes of it.
fn joined_another_attempt(case: &Case<'_>, answer: &Answered, told: &Call, later: &Call) -> bool {
    let terms = case.whole.terms();
    let by_operator = matches!(source(case, answer), Some(Source::Operator(_)));
    (by_operator || terms.resend.is_some())
        && case.executions.iter().any(|other| {
            let proxy = case.whole.calls.get(&other.call).map(|call| call.proxy);
            let until = other.begun + terms.abandon_after;
            other.gave.body != answer.given.body
                && proxy.is_none_or(|proxy| proxy == later.proxy)
                && other.begun <= told.ended
                && later.sent <= until
        })
}

/// Where nothing stood in the way, a whole final answer is recorded.
fn answer_not_recorded(case: &Case<'_>) -> Option<Verdict> {
    let terms = case.whole.terms();
    let unknown = case
        .calls
        .iter()
        .find(|call| call.last && matches!(&call.seen, Seen::Problem(problem) if problem.kind == "outcome-unknown"))?;
    let execution = case.executions.iter().find(|execution| {
        let (Some(ended), Some(own)) = (execution.ended, case.whole.calls.get(&execution.call)) else {
            return false;
        };
        Meaning::of(execution.gave.status) == Meaning::Final
            && terms.must_be_recorded(own.proxy, execution.begun, ended)
            && !forgotten(case, execution, unknown.ended)
            && !freed_by_operator(case, execution.begun, unknown.ended)
    })?;
    let evidence = format!("{}: {execution} was answered and nothing stood in the way, but {unknown}", case.key);
    Some(Verdict { fault: Fault::AnswerNotRecorded, evidence })
}

/// What was never sent is not unknown, unless the attempt could not say so.
fn key_burnt(case: &Case<'_>) -> Option<Verdict> {
    let terms = case.whole.terms();
    let unknown = case
        .calls
        .iter()
        .find(|call| call.last && matches!(&call.seen, Seen::Problem(problem) if problem.kind == "outcome-unknown"))?;
    let handed_back = |call: &Call| terms.must_be_handed_back(call.proxy, call.sent, call.ended);
    let burnt = case.executions.is_empty() && case.acts.is_empty() && case.calls.iter().all(|call| handed_back(call));
    let evidence = format!("{}: it was never executed and could be handed back, but {unknown}", case.key);
    burnt.then_some(Verdict { fault: Fault::KeyBurnt, evidence })
}

/// When all is well again, every key comes to an end.
fn last_words(case: &Case<'_>) -> Option<Verdict> {
    let stuck = case.calls.iter().find(|call| {
        let at_rest = match &call.seen {
            Seen::Nothing => false,
            Seen::Answer(answer) => Meaning::of(answer.given.status) == Meaning::Final,
            // Where unknowns are sent again, a repeat ends them.
            Seen::Problem(problem) if problem.kind == "outcome-unknown" => case.whole.terms().resend.is_none(),
            Seen::Problem(problem) => matches!(problem.kind.as_str(), "response-not-retained" | "key-reused"),
        };
        call.last && !at_rest
    })?;
    let evidence = format!("{}: when all was well again, the last try to end it was {stuck}", case.key);
    Some(Verdict { fault: Fault::Stuck, evidence })
}

/// Judges the operator's list against what the callers are told.
pub(super) fn judge_what_is_left(index: &Index<'_>, verdicts: &mut Vec<Verdict>) {
    let history = index.history;
    let end: Option<Moment> = history.calls.iter().map(|call| call.ended).max();
    let last_told = |kind: &str| -> BTreeSet<&str> {
        let problems = history.calls.iter().filter(|call| call.last).filter_map(|call| match &call.seen {
            Seen::Problem(problem) if problem.kind == kind => Some(problem.record.as_str()),
            _ => None,
        });
        problems.collect()
    };
    // Whoever sent another request is not told more about the record than that.
    let (told, told_other) = (last_told("outcome-unknown"), last_told("key-reused"));
    let listed = |record: &str| history.left.iter().any(|left| left.record == record && left.state == "unknown");
    for record in told.iter().filter(|record| !listed(record)) {
        let evidence = format!("callers are told that {record} is unknown, and it is not in the operator's list");
        verdicts.push(Verdict { fault: Fault::WronglyListed, evidence });
    }
    for left in &history.left {
        let (fault, why) = match left.state.as_str() {
            "unknown" if told.contains(left.record.as_str()) || told_other.contains(left.record.as_str()) => continue,
            "unknown" if answered_by_first_line(index, &left.record) => continue,
            "unknown" => (Fault::WronglyListed, "no caller is told so"),
            _ => (Fault::StillClaimed, "nothing ran any more"),
        };
        let evidence = format!("{} is listed as {} at {end:?}, and {why}", left.record, left.state);
        verdicts.push(Verdict { fault, evidence });
    }
}

/// Whether callers may get an answer from the first line although the second, which missed it, holds the record as
/// unknown: the list shows the records of both.
fn answered_by_first_line(index: &Index<'_>, record: &str) -> bool {
    let history = index.history;
    let of_record = |call: &&Call| matches!(&call.seen, Seen::Problem(problem) if problem.record == record);
    let key = history.calls.iter().find(of_record).map(|call| call.key);
    let may_be_it = |call: &Call| key.is_none_or(|key| key == call.key);
    history.calls.iter().filter(|call| call.last && may_be_it(call)).any(|call| {
        let Seen::Answer(answer) = &call.seen else { return false };
        let Some(execution) = index.given.get(answer.given.body.as_ref()) else { return false };
        let (Some(ended), Some(own)) = (execution.ended, index.calls.get(&execution.call)) else { return false };
        index.terms().may_be_in_first_line_alone(own.proxy, execution.begun, ended)
    })
}
