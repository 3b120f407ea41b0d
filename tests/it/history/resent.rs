//! Histories of routes that send unknowns again, written by hand: what that allows, and what it does not.

use super::right::*;
use super::*;

/// A run in which unknowns are sent again: one broke off, one timed out, one was cut off by the death of its proxy.
fn sent_again() -> History {
    let away = vec![(1, Span { from: ms(20), until: ms(300) })];
    let terms = Terms { abandon_after: ms(4000), resend: Some(ms(1000)), away, ..Terms::default() };
    let mut history = History { terms, ..History::default() };
    let broken =
        |number, key, begun: u64| Execution { broken: Some(ms(begun + 5)), ..execution(number, key, begun, None, 201) };
    history.executions = vec![
        broken(1, PAID, 10),
        execution(2, PAID, 60, Some(70), 201),
        execution(3, BUSY, 10, None, 201),
        execution(4, BUSY, 4100, Some(4110), 201),
        execution(5, HELD, 10, Some(400), 201),
        execution(6, HELD, 1100, Some(1110), 201),
    ];
    let told = Seen::Problem(Problem {
        status: 502,
        kind: "outcome-unknown".into(),
        retry: "same-key".into(),
        ..Problem::default()
    });
    history.calls = vec![
        call(1, PAID, 0, 20, told),
        call(2, PAID, 50, 80, first(201, 2)),
        Call { proxy: 0, ..call(3, BUSY, 0, 1000, Seen::Nothing) },
        call(4, BUSY, 4050, 4120, first(201, 4)),
        call(5, HELD, 0, 20, Seen::Nothing),
        call(6, HELD, 1050, 1120, first(201, 6)),
        last(201, PAID, 9000, replay(201, 2)),
        last(202, BUSY, 9000, replay(201, 4)),
        last(203, HELD, 9000, replay(201, 6)),
    ];
    history
}

#[test]
fn what_is_unknown_may_be_sent_again_where_the_route_says_so() {
    assert_right("sent again", &sent_again());
    for seed in 0..50 {
        mutations::assert_all_are_found(&sent_again(), seed);
    }
}

#[test]
fn nothing_else_may_be_sent_again() {
    let found = |change: &dyn Fn(&mut History)| {
        let mut history = sent_again();
        change(&mut history);
        let mut faults: Vec<Fault> = judge(&history).iter().map(|verdict| verdict.fault).collect();
        faults.dedup();
        faults
    };
    // On a route that holds.
    assert!(found(&|h| h.terms.resend = None).contains(&Fault::SecondExecution));
    // Before it broke off; while it still listened; before its lease was over; without a death.
    assert_eq!(found(&|h| h.executions[0].broken = Some(ms(65))), [Fault::SecondExecution]);
    assert_eq!(found(&|h| h.executions[3].begun = ms(3900)), [Fault::SecondExecution]);
    assert_eq!(found(&|h| h.executions[5].begun = ms(900)), [Fault::SecondExecution]);
    assert!(found(&|h| h.terms.away.clear()).contains(&Fault::SecondExecution));
    // One request, sent twice.
    assert_eq!(found(&|h| h.executions[1].call = 1)[0], Fault::SecondExecution);
    // After an answer that somebody saw in the store: whoever gave it.
    let third = |h: &mut History| {
        h.executions.push(execution(7, PAID, 9100, Some(9110), 201));
        h.calls.push(call(7, PAID, 9090, 9120, first(201, 7)));
    };
    assert_eq!(found(&third), [Fault::SecondExecution, Fault::TwoAnswers]);
    // An answer that nothing kept from being recorded, though nobody saw it there.
    let calm = |h: &mut History| {
        h.terms.away.clear();
        h.executions.retain(|e| e.number != 6);
        h.calls.retain(|c| c.number != 6 && c.number != 203);
        h.executions.push(execution(6, HELD, 6000, Some(6010), 201));
        h.calls.push(call(6, HELD, 5990, 6020, first(201, 6)));
        h.calls.push(last(203, HELD, 9000, replay(201, 6)));
    };
    assert_eq!(found(&calm), [Fault::SecondExecution]);
    // A key that is left to a person.
    let left = |h: &mut History| {
        h.calls.iter_mut().find(|c| c.number == 201).unwrap().seen = unknown(PAID, "reset");
        h.left.push(Left { record: "pay:1".into(), state: "unknown".into() });
    };
    assert!(found(&left).contains(&Fault::Stuck));
}
