//! A right history, made wrong at random: each change must be found. Storms do this to their own histories.

use std::collections::BTreeSet;

use super::*;
use crate::support::dice::Dice;

/// Makes one thing wrong, and says which faults would show it; `None` where the history has nothing of the kind.
type Change = fn(&mut History, &mut Dice) -> Option<&'static [Fault]>;

const CHANGES: [(&str, Change); 19] = [
    ("a key is executed once more", execute_again),
    ("what is recorded is executed for a later call", execute_recorded),
    ("two executions, two answers", answer_twice),
    ("an execution that was answered never was", drop_execution),
    ("a byte of an answer is another one", spoil_body),
    ("a field of an answer is another one", spoil_receipt),
    ("the status of an answer is another one", spoil_status),
    ("an answer is that of another key", swap_answers),
    ("a caller of another scope gets an answer", change_scope),
    ("the caller had sent another request", change_request),
    ("an answer comes before it was given", answer_too_early),
    ("an executed request is said not to be sent", say_not_sent),
    ("the mark of a replay is wrong", mark_wrongly),
    ("a recorded answer is gone later", lose_record),
    ("an unknown is executed later", execute_unknown),
    ("a caller is told of another request", reuse_falsely),
    ("a caller gets a refusal that has no cause", refuse),
    ("a key does not come to an end", get_stuck),
    ("the operator's list is another one", change_list),
];

/// Changes the history in every way there is, several times, and panics if a change is not found.
pub(crate) fn assert_all_are_found(right: &History, seed: u64) -> usize {
    let mut dice = Dice::new(seed);
    let mut made = 0;
    for (what, change) in CHANGES {
        for _ in 0..3 {
            let mut wrong = right.clone();
            let Some(faults) = change(&mut wrong, &mut dice) else { continue };
            let verdicts = judge(&wrong);
            let found = verdicts.iter().any(|verdict| faults.contains(&verdict.fault));
            let list: Vec<String> = verdicts.iter().map(Verdict::to_string).collect();
            assert!(found, "seed {seed}: {what}: none of {faults:?} was found, but {list:#?}");
            made += 1;
        }
    }
    made
}

/// Whether nothing but the caller's own requests ever freed the key, and it was never sent again for lack of an outcome.
fn is_plain(history: &History, key: Key) -> bool {
    let executed = || history.executions.iter().filter(|execution| execution.key == key);
    let sent_again = history.terms.resend.is_some() && executed().count() > 1;
    history.terms.losses.is_empty() && !sent_again && !history.acts.iter().any(|act| act.key == key)
}

fn end(history: &History) -> Moment {
    history.calls.iter().map(|call| call.ended).max().unwrap_or_default()
}

/// The places of the executions for which this holds, and one of them.
fn some_execution(history: &History, dice: &mut Dice, fits: impl Fn(&Execution) -> bool) -> Option<usize> {
    let places: Vec<usize> = (0..history.executions.len()).filter(|n| fits(&history.executions[*n])).collect();
    dice.one_of(&places).copied()
}

fn some_call(history: &History, dice: &mut Dice, fits: impl Fn(&Call) -> bool) -> Option<usize> {
    let places: Vec<usize> = (0..history.calls.len()).filter(|n| fits(&history.calls[*n])).collect();
    dice.one_of(&places).copied()
}

fn of<'a>(history: &'a History, call: &Call) -> Option<&'a Execution> {
    let Seen::Answer(answer) = &call.seen else { return None };
    history.executions.iter().find(|execution| execution.gave.body == answer.given.body)
}

/// A call that saw an execution's answer.
fn some_answer(history: &History, dice: &mut Dice, fits: impl Fn(&Call, &Execution) -> bool) -> Option<usize> {
    some_call(history, dice, |call| of(history, call).is_some_and(|execution| fits(call, execution)))
}

fn answer_of(call: &mut Call) -> &mut Answered {
    match &mut call.seen {
        Seen::Answer(answer) => answer,
        seen => panic!("no answer: {seen:?}"),
    }
}

fn is_final(execution: &Execution) -> bool {
    Meaning::of(execution.gave.status) == Meaning::Final
}

fn again(history: &History, place: usize, begun: Moment) -> Execution {
    let first = &history.executions[place];
    let number = history.executions.len() + 1_000_000;
    let gave = Given { body: format!("a second time {number}").into(), ..first.gave.clone() };
    Execution { number, begun, ended: Some(begun), gave, ..first.clone() }
}

fn execute_again(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let holds = |e: &Execution| is_plain(history, e.key) && Meaning::of(e.gave.status) != Meaning::Frees;
    let place = some_execution(history, dice, holds)?;
    let begun = history.executions[place].begun;
    let at = begun + dice.time(end(history) + Duration::from_secs(1) - begun);
    history.executions.push(again(history, place, at));
    Some(&[Fault::SecondExecution])
}

/// By a request of its own, as a resend would be, but after somebody saw that the answer is recorded.
fn execute_recorded(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let kept = |call: &Call| matches!(&call.seen, Seen::Answer(answer) if answer.kept);
    let told = some_answer(history, dice, |call, e| kept(call) && is_final(e) && is_plain(history, e.key))?;
    let told = &history.calls[told];
    let number = of(history, told)?.number;
    let place = history.executions.iter().position(|execution| execution.number == number)?;
    let sent = told.ended + Duration::from_millis(1);
    let later = Call { number: usize::MAX, sent, ended: sent, seen: Seen::Nothing, last: false, ..told.clone() };
    let second = Execution { call: later.number, ..again(history, place, sent) };
    history.calls.push(later);
    history.executions.push(second);
    Some(&[Fault::SecondExecution])
}

fn answer_twice(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_answer(history, dice, |call, e| call.last && is_final(e) && is_plain(history, e.key))?;
    // Somebody else must still see the first one.
    let (key, number) = (history.calls[place].key, history.calls[place].number);
    history
        .calls
        .iter()
        .find(|call| call.key == key && call.number != number && of(history, call).is_some_and(is_final))?;
    let execution = of(history, &history.calls[place])?;
    let executed = history.executions.iter().position(|e| e.number == execution.number)?;
    let second = again(history, executed, history.calls[place].sent);
    answer_of(&mut history.calls[place]).given = second.gave.clone();
    history.executions.push(second);
    Some(&[Fault::TwoAnswers])
}

fn drop_execution(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_answer(history, dice, |_, _| true)?;
    let number = of(history, &history.calls[place])?.number;
    history.executions.retain(|execution| execution.number != number);
    Some(&[Fault::NobodyGaveIt])
}

fn spoil_body(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_answer(history, dice, |_, _| true)?;
    let answer = answer_of(&mut history.calls[place]);
    let mut body = answer.given.body.to_vec();
    let byte = dice.roll(body.len() as u64) as usize;
    match dice.roll(3) {
        0 => body.truncate(byte),
        1 => body.insert(byte, b'~'),
        _ => body[byte] ^= 0x80,
    }
    answer.given.body = body.into();
    Some(&[Fault::NobodyGaveIt])
}

fn spoil_receipt(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_answer(history, dice, |_, _| true)?;
    answer_of(&mut history.calls[place]).given.receipt.push('~');
    Some(&[Fault::NobodyGaveIt])
}

fn spoil_status(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_answer(history, dice, |_, _| true)?;
    answer_of(&mut history.calls[place]).given.status += 1;
    Some(&[Fault::NobodyGaveIt])
}

fn swap_answers(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let (one, other) = (some_answer(history, dice, |_, _| true)?, some_answer(history, dice, |_, _| true)?);
    if history.calls[one].key == history.calls[other].key {
        return None;
    }
    history.calls[one].seen = history.calls[other].seen.clone();
    Some(&[Fault::AnswerOfAnotherKey])
}

fn change_scope(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_answer(history, dice, |_, _| true)?;
    history.calls[place].key.scope += 100;
    Some(&[Fault::AnswerOfAnotherKey])
}

fn change_request(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_answer(history, dice, |_, _| true)?;
    history.calls[place].request += 100;
    Some(&[Fault::AnswerToAnotherRequest])
}

fn answer_too_early(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_answer(history, dice, |_, _| true)?;
    let (number, seen) = (of(history, &history.calls[place])?.number, history.calls[place].ended);
    let execution = history.executions.iter_mut().find(|execution| execution.number == number)?;
    let late = seen + Duration::from_millis(1) + dice.time(Duration::from_secs(1));
    execution.ended = if dice.one_in(4) { None } else { Some(late) };
    Some(&[Fault::AnsweredTooEarly])
}

fn say_not_sent(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let number = history.executions[some_execution(history, dice, |_| true)?].call;
    let call = history.calls.iter_mut().find(|call| call.number == number)?;
    let refusals =
        [(503, "store-unavailable"), (502, "upstream-unreachable"), (503, "overloaded"), (422, "key-reused")];
    let (status, kind) = *dice.one_of(&refusals)?;
    call.seen = Seen::Problem(Problem { status, kind: kind.into(), ..Problem::default() });
    Some(&[Fault::SaidNotSent])
}

fn mark_wrongly(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_answer(history, dice, |_, execution| is_final(execution))?;
    let answer = answer_of(&mut history.calls[place]);
    answer.replayed = !answer.replayed;
    Some(&[Fault::WronglyMarked])
}

fn lose_record(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let kept = |call: &Call| matches!(&call.seen, Seen::Answer(answer) if answer.kept);
    let told = some_call(history, dice, |call| kept(call) && is_plain(history, call.key))?;
    let (key, ended) = (history.calls[told].key, history.calls[told].ended);
    let later = some_call(history, dice, |call| call.key == key && call.sent > ended)?;
    // A second line may hold what only the first had the answer to.
    let unknown = history.terms.first_line.is_none() && dice.one_in(2);
    let (status, kind) = if unknown { (409, "outcome-unknown") } else { (502, "upstream-unreachable") };
    history.calls[later].seen = Seen::Problem(Problem { status, kind: kind.into(), ..Problem::default() });
    Some(&[Fault::RecordLost])
}

fn execute_unknown(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    if history.terms.resend.is_some() {
        return None;
    }
    let place = some_execution(history, dice, |execution| is_plain(history, execution.key))?;
    let number = history.executions[place].call;
    let call = history.calls.iter().find(|call| call.number == number)?.clone();
    let ended = call.sent.checked_sub(Duration::from_millis(1))?;
    let (kind, retry) = ("outcome-unknown".into(), "operator".into());
    let reason = dice.one_of(&["timeout", "reset", "truncated", "status", "drained"])?.to_string();
    let seen = Seen::Problem(Problem { status: 409, kind, retry, reason, record: String::new() });
    history.calls.push(Call { number: usize::MAX, sent: ended, ended, seen, last: false, ..call });
    Some(&[Fault::UnknownNotHeld])
}

fn reuse_falsely(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let alike = |call: &Call| !history.calls.iter().any(|o| o.key == call.key && o.request != call.request);
    let executed: BTreeSet<usize> = history.executions.iter().map(|execution| execution.call).collect();
    let place = some_call(history, dice, |call| alike(call) && !executed.contains(&call.number))?;
    history.calls[place].seen = Seen::Problem(Problem { status: 422, kind: "key-reused".into(), ..Problem::default() });
    Some(&[Fault::FalselyReused])
}

fn refuse(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_call(history, dice, |_| true)?;
    let refusals =
        [(500, ""), (404, "no-route"), (400, "key-invalid"), (502, "store-unavailable"), (413, "body-too-large")];
    let (status, kind) = *dice.one_of(&refusals)?;
    history.calls[place].seen = Seen::Problem(Problem { status, kind: kind.into(), ..Problem::default() });
    Some(&[Fault::NoCause])
}

fn get_stuck(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let place = some_call(history, dice, |call| call.last)?;
    let stuck = [(409, "request-in-progress"), (503, "store-unavailable"), (502, "upstream-unreachable")];
    history.calls[place].seen = match dice.one_of(&stuck) {
        Some((status, kind)) if !dice.one_in(4) => {
            Seen::Problem(Problem { status: *status, kind: (*kind).into(), ..Problem::default() })
        }
        _ => Seen::Nothing,
    };
    Some(&[Fault::Stuck])
}

fn change_list(history: &mut History, dice: &mut Dice) -> Option<&'static [Fault]> {
    let record = || "pay:none".to_owned();
    // The list shows the records of both lines, of which callers are told what the first has.
    let kind = if history.terms.first_line.is_some() { 2 } else { dice.roll(3) };
    match kind {
        0 => {
            let place = (!history.left.is_empty()).then(|| dice.roll(history.left.len() as u64) as usize)?;
            history.left.remove(place);
            Some(&[Fault::WronglyListed])
        }
        1 => {
            history.left.push(Left { record: record(), state: "unknown".into() });
            Some(&[Fault::WronglyListed])
        }
        _ => {
            history.left.push(Left { record: record(), state: "claimed".into() });
            Some(&[Fault::StillClaimed])
        }
    }
}
