//! Histories written by hand that are wrong, at least one for each fault: the right one, and one thing that was not so.

use super::right::*;
use super::*;

/// The faults that are found once the right history was changed like this.
fn faults(change: impl FnOnce(&mut History)) -> Vec<Fault> {
    let mut history = history();
    change(&mut history);
    let mut faults: Vec<Fault> = judge(&history).into_iter().map(|verdict| verdict.fault).collect();
    faults.dedup();
    faults
}

fn call_of(history: &mut History, number: usize) -> &mut Call {
    history.calls.iter_mut().find(|call| call.number == number).unwrap()
}

fn execution_of(history: &mut History, number: usize) -> &mut Execution {
    history.executions.iter_mut().find(|execution| execution.number == number).unwrap()
}

fn see(history: &mut History, number: usize, seen: Seen) {
    call_of(history, number).seen = seen;
}

#[test]
fn a_second_execution() {
    let again = |key, begun| move |h: &mut History| h.executions.push(execution(50, key, begun, None, 201));
    // After the answer, while the first one runs, after it was held, after it was freed and executed.
    for (key, begun) in [(PAID, 8000), (PAID, 40), (HELD, 8000), (FREED, 8000), (BUSY, 8000)] {
        assert_eq!(faults(again(key, begun)), [Fault::SecondExecution], "{key} at {begun}");
    }
    // "Not executed" counts once it is said.
    assert_eq!(faults(again(BUSY, 15)), [Fault::SecondExecution]);
    // What the operator was refused frees nothing.
    assert_eq!(faults(|h| h.acts[0].done = false), [Fault::SecondExecution]);
}

#[test]
fn a_second_execution_that_no_loss_explains() {
    // Not told of the loss, it sees what the loss did, and the answer that was lost with it.
    assert_eq!(faults(|h| h.terms.losses.clear()), [Fault::SecondExecution, Fault::TwoAnswers]);
    // The first one was there before the part that was lost.
    let older = faults(|h| h.terms.losses[0].since = ms(2015));
    assert_eq!(older, [Fault::SecondExecution, Fault::TwoAnswers]);
    // Claims survived it.
    assert_eq!(faults(|h| h.terms.losses[0].claims = false), [Fault::SecondExecution, Fault::TwoAnswers]);
    // The second one came before the loss.
    let sooner = faults(|h| h.terms.losses[0].when = Span { from: ms(3800), until: ms(3900) });
    assert_eq!(sooner, [Fault::SecondExecution, Fault::TwoAnswers]);
    // Once more after it.
    let again = faults(|h| h.executions.push(execution(50, LOST, 8000, None, 201)));
    assert_eq!(again, [Fault::SecondExecution]);
    // The store knew of it again, and then it was executed.
    let known = faults(|h| h.calls.push(call(150, LOST, 3510, 3520, replay(201, 9))));
    assert_eq!(known, [Fault::SecondExecution, Fault::TwoAnswers]);
}

#[test]
fn an_unknown_that_was_not_held() {
    let told = call(150, OTHERS, 1, 5, unknown(OTHERS, "timeout"));
    let found = faults(|h| {
        h.calls.push(told);
        call_of(h, 2).sent = ms(6);
    });
    assert_eq!(found, [Fault::UnknownNotHeld]);
}

#[test]
fn an_answer_that_nobody_gave() {
    let mut other = given(201, 1);
    other.body = "body".into();
    let half = Seen::Answer(Answered { given: other, replayed: true, kept: true });
    assert_eq!(faults(|h| see(h, 101, half)), [Fault::NobodyGaveIt, Fault::TwoAnswers]);
    let mut other = given(201, 1);
    other.receipt.push('0');
    let changed = Seen::Answer(Answered { given: other, replayed: true, kept: true });
    assert_eq!(faults(|h| see(h, 101, changed)), [Fault::NobodyGaveIt]);
    assert_eq!(faults(|h| see(h, 101, replay(200, 1))), [Fault::NobodyGaveIt]);
    assert_eq!(faults(|h| h.executions.retain(|e| e.number != 2)), [Fault::NobodyGaveIt]);
    // The operator was refused, or had not said it yet, or said another status.
    assert_eq!(faults(|h| h.acts[1].done = false), [Fault::NobodyGaveIt]);
    assert_eq!(faults(|h| h.acts[1].begun = ms(1200)), [Fault::NobodyGaveIt]);
    assert_eq!(faults(|h| see(h, 207, replay(201, 99))), [Fault::NobodyGaveIt]);
}

#[test]
fn the_answer_of_another_key_or_scope() {
    let found = faults(|h| see(h, 101, replay(201, 4)));
    assert_eq!(found, [Fault::AnswerOfAnotherKey, Fault::TwoAnswers]);
    // Nothing but the scope is another one.
    let found = faults(|h| see(h, 203, replay(201, 1)));
    assert_eq!(found, [Fault::AnswerOfAnotherKey, Fault::TwoAnswers]);
}

#[test]
fn the_answer_to_another_request() {
    assert_eq!(faults(|h| see(h, 103, replay(201, 1))), [Fault::AnswerToAnotherRequest]);
}

#[test]
fn two_answers_of_one_key() {
    let found = faults(|h| {
        h.executions.push(execution(50, PAID, 70, Some(80), 201));
        h.calls.push(call(50, PAID, 65, 90, first(201, 50)));
    });
    assert_eq!(found, [Fault::SecondExecution, Fault::TwoAnswers]);
    // One proxy replays it, the other cannot tell.
    let found = faults(|h| {
        call_of(h, 1).seen = Seen::Nothing;
        h.calls.retain(|call| call.number != 101 && call.number != 201);
        h.calls.insert(0, last(210, PAID, 8990, unknown(PAID, "lapsed")));
        h.left.push(Left { record: "pay:1".into(), state: "unknown".into() });
        h.terms.away.push((1, Span { from: ms(20), until: ms(30) }));
    });
    assert_eq!(found, [Fault::TwoAnswers]);
}

#[test]
fn an_answer_before_it_was_given() {
    assert_eq!(faults(|h| call_of(h, 101).ended = ms(45)), [Fault::AnsweredTooEarly]);
    assert_eq!(faults(|h| execution_of(h, 2).ended = None), [Fault::AnsweredTooEarly]);
}

#[test]
fn not_sent_was_said_and_it_was_executed() {
    for (status, kind) in [(503, "store-unavailable"), (502, "upstream-unreachable"), (503, "overloaded")] {
        assert_eq!(faults(|h| see(h, 5, problem(status, kind))), [Fault::SaidNotSent], "{kind}");
    }
}

#[test]
fn a_replay_that_is_not_marked_and_a_first_answer_that_is() {
    assert_eq!(faults(|h| see(h, 101, first(201, 1))), [Fault::WronglyMarked]);
    assert_eq!(faults(|h| see(h, 1, replay(201, 1))), [Fault::WronglyMarked]);
    // A status that frees the key comes from no record.
    assert_eq!(faults(|h| h.calls.push(call(150, BUSY, 21, 27, replay(503, 3)))), [Fault::WronglyMarked]);
}

#[test]
fn a_record_that_a_later_caller_does_not_get() {
    for seen in [unknown(PAID, "lapsed"), problem(409, "request-in-progress"), problem(409, "response-not-retained")] {
        let found = faults(|h| h.calls.push(call(150, PAID, 1000, 1010, seen)));
        assert!(found.contains(&Fault::RecordLost), "{found:?}");
    }
    // An answer that frees the key proves that it was forwarded.
    let found = faults(|h| {
        h.executions.push(execution(50, PAID, 1000, Some(1001), 503));
        h.calls.push(call(50, PAID, 995, 1010, first(503, 50)));
    });
    assert_eq!(found, [Fault::SecondExecution, Fault::RecordLost]);
    // Another request under the key may be told so, the same may not.
    let found = faults(|h| see(h, 202, problem(422, "key-reused")));
    assert_eq!(found, [Fault::RecordLost]);
}

#[test]
fn an_answer_that_was_not_recorded() {
    let key = Key { scope: 0, number: 13 };
    let found = faults(|h| {
        h.executions.push(execution(13, key, 3600, Some(3700), 201));
        h.calls.push(call(13, key, 3590, 3710, Seen::Nothing));
        h.calls.push(last(213, key, 9000, unknown(key, "lapsed")));
        h.left.push(Left { record: "pay:13".into(), state: "unknown".into() });
    });
    assert_eq!(found, [Fault::AnswerNotRecorded]);
}

#[test]
fn a_key_that_is_held_although_nothing_was_sent() {
    let key = Key { scope: 0, number: 13 };
    let burn = |sent| {
        move |h: &mut History| {
            h.calls.push(call(13, key, sent, sent + 500, problem(503, "store-unavailable")));
            h.calls.push(last(213, key, 9000, unknown(key, "lapsed")));
            h.left.push(Left { record: "pay:13".into(), state: "unknown".into() });
        }
    };
    assert_eq!(faults(burn(3000)), [Fault::KeyBurnt]);
    // Redis was away for too long to take it back, or the proxy was.
    assert_eq!(faults(burn(1700)), []);
    let killed = |h: &mut History| {
        burn(3000)(h);
        h.terms.away.push((1, Span { from: ms(3200), until: ms(3300) }));
    };
    assert_eq!(faults(killed), []);
}

#[test]
fn another_request_that_never_was() {
    assert_eq!(faults(|h| see(h, 102, problem(422, "key-reused"))), [Fault::FalselyReused]);
    assert_eq!(faults(|h| see(h, 206, problem(422, "key-reused"))), [Fault::RecordLost, Fault::FalselyReused]);
}

#[test]
fn a_refusal_without_a_cause() {
    for (status, kind) in [(500, ""), (409, "store-unavailable"), (400, "key-invalid"), (404, "no-route")] {
        assert_eq!(faults(|h| see(h, 104, problem(status, kind))).last(), Some(&Fault::NoCause), "{status} {kind}");
    }
    assert!(faults(|h| see(h, 106, problem(409, "response-not-retained"))).contains(&Fault::NoCause));
}

#[test]
fn a_key_that_comes_to_no_end() {
    for seen in [problem(409, "request-in-progress"), problem(503, "store-unavailable"), Seen::Nothing] {
        let found = faults(|h| {
            see(h, 205, seen);
            h.left.clear();
        });
        assert_eq!(found, [Fault::Stuck]);
    }
}

#[test]
fn a_claim_that_outlived_its_lease() {
    let claimed = Left { record: "pay:9".into(), state: "claimed".into() };
    assert_eq!(faults(|h| h.left.push(claimed)), [Fault::StillClaimed]);
}

#[test]
fn a_list_that_does_not_agree_with_the_answers() {
    assert_eq!(faults(|h| h.left.clear()), [Fault::WronglyListed]);
    let orphan = Left { record: "pay:9".into(), state: "unknown".into() };
    assert_eq!(faults(|h| h.left.push(orphan)), [Fault::WronglyListed]);
}

#[test]
fn the_right_history_made_wrong_at_random() {
    for seed in 0..50 {
        mutations::assert_all_are_found(&history(), seed);
    }
}
