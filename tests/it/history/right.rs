//! Histories written by hand that are right: each thing that the promise allows, side by side.

use super::*;

pub(super) const PAID: Key = Key { scope: 0, number: 1 };
pub(super) const BUSY: Key = Key { scope: 0, number: 2 };
pub(super) const HELD: Key = Key { scope: 0, number: 3 };
pub(super) const FREED: Key = Key { scope: 0, number: 4 };
pub(super) const FOUND: Key = Key { scope: 0, number: 5 };
pub(super) const LOST: Key = Key { scope: 0, number: 6 };
/// The same key as the first, of somebody else.
pub(super) const OTHERS: Key = Key { scope: 1, number: 1 };

pub(super) const fn ms(milliseconds: u64) -> Moment {
    Duration::from_millis(milliseconds)
}

pub(super) fn given(status: u16, number: usize) -> Given {
    let body = format!("body {number}");
    Given { status, receipt: format!("receipt {number}"), body: body.into() }
}

/// An execution of the first request of a key, for the call of the same number.
pub(super) fn execution(number: usize, key: Key, begun: u64, ended: Option<u64>, status: u16) -> Execution {
    let (begun, ended) = (ms(begun), ended.map(ms));
    Execution { number, key, request: 0, call: number, begun, ended, broken: None, gave: given(status, number) }
}

pub(super) fn call(number: usize, key: Key, sent: u64, ended: u64, seen: Seen) -> Call {
    let proxy = number % 2;
    Call { number, key, request: 0, proxy, sent: ms(sent), ended: ms(ended), seen, last: false }
}

/// The last word about a key at a proxy.
pub(super) fn last(number: usize, key: Key, sent: u64, seen: Seen) -> Call {
    Call { last: true, ..call(number, key, sent, sent + 5, seen) }
}

pub(super) fn first(status: u16, number: usize) -> Seen {
    let kept = Meaning::of(status) == Meaning::Final;
    Seen::Answer(Answered { given: given(status, number), replayed: false, kept })
}

pub(super) fn replay(status: u16, number: usize) -> Seen {
    Seen::Answer(Answered { given: given(status, number), replayed: true, kept: true })
}

pub(super) fn problem(status: u16, kind: &str) -> Seen {
    Seen::Problem(Problem { status, kind: kind.into(), ..Problem::default() })
}

pub(super) fn unknown(key: Key, reason: &str) -> Seen {
    let record = format!("pay:{}", key.number);
    let (kind, retry, reason) = ("outcome-unknown".into(), "operator".into(), reason.into());
    Seen::Problem(Problem { status: 409, kind, retry, reason, record })
}

fn acts() -> Vec<Act> {
    let act = |key, at, what| Act { key, begun: ms(at), ended: ms(at + 5), done: true, what };
    vec![
        act(FREED, 5000, Finding::Free),
        act(FOUND, 1000, Finding::Executed(given(200, 99))),
        // Refused: it may still be running.
        Act { done: false, ..act(HELD, 1000, Finding::Free) },
    ]
}

/// A history with all that may happen.
pub(super) fn history() -> History {
    let store_gone = problem(503, "store-unavailable");
    History {
        executions: vec![
            execution(1, PAID, 10, Some(50), 201),
            execution(2, OTHERS, 12, Some(60), 201),
            execution(3, BUSY, 10, Some(20), 503),
            execution(4, BUSY, 30, Some(40), 201),
            execution(5, HELD, 10, None, 201),
            execution(6, FREED, 10, None, 201),
            execution(7, FREED, 5100, Some(5200), 201),
            execution(8, FOUND, 10, Some(20), 504),
            execution(9, LOST, 2000, Some(2010), 201),
            execution(10, LOST, 3600, Some(3700), 201),
        ],
        calls: vec![
            call(1, PAID, 0, 60, first(201, 1)),
            call(101, PAID, 5, 61, replay(201, 1)),
            call(102, PAID, 7, 9, problem(409, "request-in-progress")),
            Call { request: 1, ..call(103, PAID, 20, 25, problem(422, "key-reused")) },
            call(104, PAID, 100, 110, Seen::Nothing),
            call(105, PAID, 3100, 3700, store_gone.clone()),
            call(2, OTHERS, 0, 70, first(201, 2)),
            call(3, BUSY, 0, 25, first(503, 3)),
            call(4, BUSY, 28, 45, first(201, 4)),
            call(5, HELD, 0, 1000, Seen::Nothing),
            call(106, HELD, 1200, 1300, unknown(HELD, "reset")),
            call(6, FREED, 0, 30, Seen::Nothing),
            call(107, FREED, 4000, 4010, unknown(FREED, "lapsed")),
            call(7, FREED, 5090, 5210, first(201, 7)),
            call(8, FOUND, 0, 25, first(504, 8)),
            call(108, FOUND, 1100, 1110, replay(200, 99)),
            call(9, LOST, 1990, 2020, first(201, 9)),
            call(10, LOST, 3590, 3710, first(201, 10)),
            last(201, PAID, 9000, replay(201, 1)),
            last(202, PAID, 9010, replay(201, 1)),
            last(203, OTHERS, 9000, replay(201, 2)),
            last(204, BUSY, 9000, replay(201, 4)),
            last(205, HELD, 9000, unknown(HELD, "reset")),
            last(206, FREED, 9000, replay(201, 7)),
            last(207, FOUND, 9000, replay(200, 99)),
            last(208, LOST, 9000, replay(201, 10)),
        ],
        acts: acts(),
        left: vec![Left { record: "pay:3".into(), state: "unknown".into() }],
        terms: Terms {
            abandon_after: ms(4000),
            resend: None,
            first_line: None,
            losses: vec![Loss { since: ms(1500), when: Span { from: ms(3000), until: ms(3500) }, claims: true }],
            outages: vec![Span { from: ms(3000), until: ms(3500) }],
            away: vec![(0, Span { from: ms(7000), until: ms(7100) })],
            full: Vec::new(),
        },
    }
}

#[test]
fn what_the_promise_allows_is_right() {
    assert_right("written by hand", &history());
}

#[test]
fn an_answer_that_the_store_never_took_may_end_as_unknown() {
    let mut history = History { terms: Terms { abandon_after: ms(4000), ..Terms::default() }, ..History::default() };
    history.executions.push(execution(1, HELD, 10, Some(20), 201));
    let not_recorded = Seen::Answer(Answered { given: given(201, 1), replayed: false, kept: false });
    history.calls.push(call(1, HELD, 0, 520, not_recorded));
    history.calls.push(last(201, HELD, 9000, unknown(HELD, "lapsed")));
    history.left.push(Left { record: "pay:3".into(), state: "unknown".into() });
    // Not so if nothing was in the way.
    assert_eq!(judge(&history).iter().map(|v| v.fault).collect::<Vec<_>>(), [Fault::AnswerNotRecorded]);
    let mut hung = history.clone();
    hung.terms.outages.push(Span { from: ms(15), until: ms(3900) });
    assert_right("the store hung", &hung);
    let mut killed = history;
    killed.terms.away.push((1, Span { from: ms(21), until: ms(200) }));
    assert_right("the proxy was killed", &killed);
}

#[test]
fn an_operator_may_be_refused_what_took_effect_when_the_store_lost_its_reply() {
    let mut history = history();
    history.acts.iter_mut().for_each(|act| act.done = false);
    history.terms.outages.extend([1000, 5000].map(|at| Span { from: ms(at + 1), until: ms(at + 2) }));
    assert_right("the replies were lost", &history);
}

#[test]
fn a_full_store_may_keep_a_large_answer_without_its_body() {
    let mut history = History { terms: Terms { abandon_after: ms(4000), ..Terms::default() }, ..History::default() };
    history.executions.push(execution(1, PAID, 10, Some(20), 201));
    history.executions[0].gave.body = vec![b'x'; 5000].into();
    history.calls.push(last(201, PAID, 9000, problem(409, "response-not-retained")));
    assert_eq!(judge(&history).iter().map(|v| v.fault).collect::<Vec<_>>(), [Fault::NoCause]);
    history.terms.full.push(Span { from: ms(5), until: ms(100) });
    assert_right("it was full", &history);
    history.executions[0].gave.body = vec![b'x'; 4000].into();
    assert_eq!(judge(&history).iter().map(|v| v.fault).collect::<Vec<_>>(), [Fault::NoCause]);
}

#[test]
fn what_an_operator_says_counts_from_then_on_though_a_caller_saw_more() {
    let mut history = history();
    // The upstream answered, the store did not take it, and the operator knew no better.
    history.executions.push(execution(11, FOUND, 8500, Some(8510), 201));
    history.executions.retain(|execution| execution.number != 8);
    history.calls.retain(|call| call.key != FOUND);
    history.acts.retain(|act| act.key != FOUND);
    let not_recorded = Seen::Answer(Answered { given: given(201, 11), replayed: false, kept: false });
    history.calls.push(call(11, FOUND, 8490, 8520, not_recorded));
    history.calls.push(last(201, FOUND, 9000, replay(200, 99)));
    let what = Finding::Executed(given(200, 99));
    history.acts.push(Act { key: FOUND, begun: ms(8600), ended: ms(8605), done: true, what });
    assert_right("resolved", &history);
    // Not so if the answer was in the store.
    let call = history.calls.iter_mut().find(|call| call.number == 11).unwrap();
    call.seen = first(201, 11);
    assert_eq!(judge(&history).iter().map(|v| v.fault).collect::<Vec<_>>(), [Fault::TwoAnswers]);
}

#[test]
fn an_answer_that_came_after_the_snapshot_may_be_overruled_once_it_is_gone() {
    let mut history = history();
    // Claimed before the snapshot, which is therefore what a restart finds: a claim that runs out.
    history.executions.push(execution(11, HELD, 1400, Some(1600), 201));
    history.executions.retain(|execution| execution.number != 5);
    history.calls.retain(|call| call.key != HELD);
    history.acts.retain(|act| act.key != HELD);
    history.left.clear();
    history.calls.push(call(11, HELD, 1390, 1620, first(201, 11)));
    history.calls.push(last(201, HELD, 9000, replay(200, 99)));
    let what = Finding::Executed(given(200, 99));
    history.acts.push(Act { key: HELD, begun: ms(5000), ended: ms(5005), done: true, what });
    assert_right("resolved", &history);
    // Not so before the loss.
    history.terms.losses[0].when = Span { from: ms(6000), until: ms(6100) };
    let faults: Vec<Fault> = judge(&history).iter().map(|v| v.fault).collect();
    assert!(faults.contains(&Fault::TwoAnswers), "{faults:?}");
}

#[test]
fn a_claim_that_was_lost_may_be_executed_after_the_loss_by_a_proxy_that_stood_still() {
    let mut history = history();
    history.executions.iter_mut().find(|e| e.number == 9).unwrap().begun = ms(3550);
    history.executions.iter_mut().find(|e| e.number == 9).unwrap().ended = Some(ms(3560));
    history.calls.iter_mut().find(|call| call.number == 9).unwrap().seen = Seen::Nothing;
    assert_right("paused", &history);
    // Not so if it was asked for after the loss.
    history.calls.iter_mut().find(|call| call.number == 9).unwrap().sent = ms(3510);
    assert_eq!(judge(&history).iter().map(|v| v.fault).collect::<Vec<_>>(), [Fault::SecondExecution]);
}

#[test]
fn a_lost_claim_may_also_be_executed_after_the_one_that_took_its_place() {
    let losses = vec![Loss { since: ms(0), when: Span { from: ms(2300), until: ms(2550) }, claims: true }];
    let terms = Terms {
        abandon_after: ms(4000),
        losses,
        away: vec![(1, Span { from: ms(2280), until: ms(3290) })],
        ..Terms::default()
    };
    let mut history = History { terms, ..History::default() };
    history.executions.push(execution(2, HELD, 2980, Some(2985), 201));
    history.calls.push(call(2, HELD, 2970, 2990, first(201, 2)));
    // Claimed before the loss; its proxy stood still until now.
    history.executions.push(execution(1, HELD, 3310, Some(3315), 201));
    let not_recorded = Seen::Answer(Answered { given: given(201, 1), replayed: false, kept: false });
    history.calls.push(call(1, HELD, 1690, 3320, not_recorded));
    history.calls.push(last(201, HELD, 9000, replay(201, 2)));
    assert_right("overtaken", &history);
    // Not so if it was asked for after the loss.
    history.calls.iter_mut().find(|call| call.number == 1).unwrap().sent = ms(2600);
    let faults: Vec<Fault> = judge(&history).iter().map(|v| v.fault).collect();
    assert_eq!(faults, [Fault::SecondExecution, Fault::TwoAnswers]);
}

/// As a run with a second line shows it: Postgres was away until the attempt gave up, and Redis was emptied later.
fn missed_by_the_second_line() -> History {
    let outage = Span { from: ms(15), until: ms(4100) };
    let first_line = Some(vec![Span { from: ms(5000), until: ms(5100) }]);
    let terms = Terms { abandon_after: ms(4000), first_line, outages: vec![outage], ..Terms::default() };
    let mut history = History { terms, ..History::default() };
    history.executions.push(execution(1, HELD, 10, Some(20), 201));
    history.calls.push(call(
        1,
        HELD,
        0,
        520,
        Seen::Answer(Answered { given: given(201, 1), replayed: false, kept: false }),
    ));
    history.calls.push(call(101, HELD, 2000, 2010, replay(201, 1)));
    history
}

#[test]
fn an_answer_that_the_second_line_missed_goes_with_the_first_and_the_key_is_held() {
    let mut history = missed_by_the_second_line();
    history.calls.push(last(201, HELD, 9000, unknown(HELD, "lapsed")));
    history.left.push(Left { record: "pay:3".into(), state: "unknown".into() });
    assert_right("held", &history);
    let found = |history: &History| judge(history).iter().map(|v| v.fault).collect::<Vec<_>>();
    // Not so before the first line forgot, nor if the second had the time to take it, nor without one.
    let mut early = history.clone();
    early.terms.first_line = Some(vec![Span { from: ms(9500), until: ms(9600) }]);
    assert_eq!(found(&early), [Fault::RecordLost]);
    let mut taken = history.clone();
    taken.terms.outages[0].until = ms(1000);
    assert_eq!(found(&taken), [Fault::RecordLost, Fault::AnswerNotRecorded]);
    history.terms.first_line = None;
    assert_eq!(found(&history), [Fault::RecordLost]);
    // It is never run again.
    let mut again = missed_by_the_second_line();
    again.executions.push(execution(2, HELD, 6000, Some(6010), 201));
    again.calls.push(call(2, HELD, 5990, 6020, first(201, 2)));
    assert_eq!(found(&again), [Fault::SecondExecution, Fault::TwoAnswers]);
}

#[test]
fn what_the_second_line_missed_is_listed_as_unknown_while_the_first_replays_it() {
    let mut history = missed_by_the_second_line();
    history.calls.push(last(201, HELD, 9000, replay(201, 1)));
    history.left.push(Left { record: "pay:3".into(), state: "unknown".into() });
    assert_right("listed", &history);
    history.terms.outages[0].until = ms(1000);
    assert_eq!(judge(&history).iter().map(|v| v.fault).collect::<Vec<_>>(), [Fault::WronglyListed]);
}

#[test]
fn whoever_joins_an_attempt_that_runs_on_gets_what_becomes_of_it_though_an_operator_has_spoken() {
    let mut history = History { terms: Terms { abandon_after: ms(4000), ..Terms::default() }, ..History::default() };
    history.executions.push(execution(1, FOUND, 10, None, 201));
    let what = Finding::Executed(given(200, 99));
    history.acts.push(Act { key: FOUND, begun: ms(2000), ended: ms(2005), done: true, what });
    history.calls.push(call(1, FOUND, 0, 1000, Seen::Nothing));
    history.calls.push(call(100, FOUND, 2100, 2110, replay(200, 99)));
    history.calls.push(call(101, FOUND, 2200, 4010, unknown(FOUND, "timeout")));
    history.calls.push(last(201, FOUND, 9000, replay(200, 99)));
    history.calls.push(last(202, FOUND, 9000, replay(200, 99)));
    assert_right("joined", &history);
    // Not so at another proxy, or when it runs no more.
    let found = |change: &dyn Fn(&mut Call)| {
        let mut wrong = history.clone();
        change(wrong.calls.iter_mut().find(|call| call.number == 101).unwrap());
        judge(&wrong).iter().map(|v| v.fault).collect::<Vec<_>>()
    };
    assert_eq!(found(&|call| call.proxy = 0), [Fault::RecordLost]);
    assert_eq!(found(&|call| (call.sent, call.ended) = (ms(4100), ms(4110))), [Fault::RecordLost]);
}
