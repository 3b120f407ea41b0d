//! Properties of the rules that hold whatever is done in whatever order and however much time passes between.

use std::num::NonZeroU64;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const TOKENS: u8 = 5;

/// One operation on the record, by one of a few tokens.
#[derive(Clone, Debug)]
enum Operation {
    Claim(Claim),
    Look(Imprint),
    Renew(Claim),
    Complete(Claim, u16, Duration),
    Release(Claim),
    Doubt(Claim, Reason, Option<u16>),
    Resolve(Token, Option<u16>, bool),
    Forget(Token, bool),
    Lapse,
    Orphan,
}

fn token() -> impl Strategy<Value = Token> {
    (0..TOKENS).prop_map(|n| Token::from_bytes([n; 16]))
}

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

/// Mostly the same request of the same caller, so that sequences get somewhere.
pub(crate) fn imprint() -> BoxedStrategy<Imprint> {
    let print = prop_oneof![8 => Just((0, 0)), 1 => Just((0, 1)), 1 => Just((1, 0))];
    let part = || prop_oneof![12 => Just(0_u8), 1 => Just(1)];
    let parts = [part(), part(), part(), part(), part()].prop_map(|parts| Parts::new(parts.map(|part| [part; 16])));
    let header = || prop_oneof![8 => Just(None), 1 => Just(NonZeroU64::new(7)), 1 => Just(NonZeroU64::new(8))];
    let cookies = prop_oneof![2 => Just(Vec::new()), 4 => vec(1..4_u64, 0..4)];
    let credentials = ([header(), header(), header()], cookies).prop_map(|(h, c)| Credentials::new(h, c));
    let credentials = prop_oneof![2 => Just(None), 1 => credentials.prop_map(Some)];
    let details = (parts, credentials).prop_map(|(parts, credentials)| Arc::new(Details { parts, credentials }));
    let details = prop_oneof![6 => details.prop_map(Some), 1 => Just(None)];
    (print, details)
        .prop_map(|((policy, digest), details)| Imprint {
            fingerprint: Fingerprint { policy: [policy; 4], digest: [digest; 32] },
            details,
        })
        .boxed()
}

fn claim_of_any() -> impl Strategy<Value = Claim> {
    let on_unknown = prop_oneof![Just(OnUnknown::Hold), Just(OnUnknown::Resend)];
    let unknown_retention = prop_oneof![3 => Just(None), 1 => millis(0..40).prop_map(Some)];
    (token(), imprint(), any::<bool>(), millis(1..30), millis(1..60), on_unknown, unknown_retention).prop_map(
        |(token, imprint, quoted, lease, abandon_after, on_unknown, unknown_retention)| Claim {
            id: RecordId::new("r".into(), [0; 16]),
            token,
            imprint,
            quoted,
            lease,
            abandon_after,
            on_unknown,
            unknown_retention,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let status = || 200_u16..600;
    let reason = (0..Reason::ALL.len()).prop_map(|n| Reason::ALL[n]);
    prop_oneof![
        6 => claim_of_any().prop_map(Operation::Claim),
        1 => imprint().prop_map(Operation::Look),
        2 => claim_of_any().prop_map(Operation::Renew),
        3 => (claim_of_any(), status(), millis(1..60)).prop_map(|(c, s, r)| Operation::Complete(c, s, r)),
        3 => claim_of_any().prop_map(Operation::Release),
        3 => (claim_of_any(), reason, proptest::option::of(status())).prop_map(|(c, r, s)| Operation::Doubt(c, r, s)),
        2 => (token(), proptest::option::of(status()), any::<bool>()).prop_map(|(t, s, f)| Operation::Resolve(t, s, f)),
        1 => (token(), any::<bool>()).prop_map(|(t, f)| Operation::Forget(t, f)),
        1 => Just(Operation::Lapse),
        1 => Just(Operation::Orphan),
    ]
}

/// Operations, each some milliseconds after the one before.
fn history() -> impl Strategy<Value = Vec<(u64, Operation)>> {
    vec((prop_oneof![3 => 0..5_u64, 1 => 5..80_u64], operation()), 1..40)
}

fn response(status: u16) -> Response {
    Response::new(status, [], [], Some(Bytes::new()))
}

/// A store of one record: the record and the tokens that have a tombstone.
#[derive(Default)]
struct Store {
    record: Option<Record>,
    buried: Vec<Token>,
    elapsed: u64,
}

/// What one operation did.
struct Step {
    before: Option<Record>,
    after: Option<Record>,
    now: Timestamp,
    granted: Option<Token>,
}

impl Store {
    fn apply(&mut self, pause: u64, operation: &Operation) -> Step {
        self.elapsed += pause;
        let now = Timestamp(1_000_000 + self.elapsed);
        let before = self.record.clone();
        let mut granted = None;
        let mut on_slot = |token: Option<Token>, rule: &mut dyn FnMut(&mut Slot)| {
            let is_buried = token.is_some_and(|token| self.buried.contains(&token));
            let mut slot = Slot::new(self.record.take(), is_buried);
            rule(&mut slot);
            self.record = slot.record;
            if let Some(token) = token.filter(|_| slot.tombstone && !is_buried) {
                self.buried.push(token);
            }
        };
        match operation {
            Operation::Claim(c) => on_slot(Some(c.token), &mut |slot| {
                let reply = claim(slot, c, now);
                granted = matches!(reply, ClaimReply::Granted { .. }).then_some(c.token);
            }),
            Operation::Look(asking) => on_slot(None, &mut |slot| drop(look(slot, asking, now))),
            Operation::Renew(c) => on_slot(Some(c.token), &mut |slot| {
                let _ = renew(slot, c, now);
            }),
            Operation::Complete(c, status, retention) => {
                on_slot(Some(c.token), &mut |slot| drop(complete(slot, c, response(*status), *retention, now)));
            }
            Operation::Release(c) => on_slot(Some(c.token), &mut |slot| {
                let _ = release(slot, c, now);
            }),
            Operation::Doubt(c, reason, status) => on_slot(Some(c.token), &mut |slot| {
                let _ = doubt(slot, c, *reason, status.map(response), now);
            }),
            Operation::Resolve(token, status, force) => on_slot(Some(*token), &mut |slot| {
                let retention = Duration::from_millis(50);
                let executed = status.map(|status| Finding::Executed { response: response(status), retention });
                let _ = resolve(slot, *token, executed.unwrap_or(Finding::NotExecuted), *force, now);
            }),
            Operation::Forget(token, force) => on_slot(Some(*token), &mut |slot| {
                let _ = forget(slot, *token, *force, now);
            }),
            Operation::Lapse => on_slot(None, &mut |slot| {
                let _ = slot.record.as_mut().map(|r| lapse(r, now));
            }),
            Operation::Orphan => on_slot(None, &mut |slot| {
                let _ = slot.record.as_mut().map(|r| orphan(r, now));
            }),
        }
        Step { before, after: self.record.clone(), now, granted }
    }
}

fn is_expired(record: &Record, now: Timestamp) -> bool {
    record.expires_at().is_some_and(|at| at <= now)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_completed_record_stays_as_it_is_until_it_expires_or_is_forgotten(history in history()) {
        let mut store = Store::default();
        for (pause, operation) in &history {
            let step = store.apply(*pause, operation);
            let Some(before) = step.before.filter(|r| !r.is_open() && !is_expired(r, step.now)) else { continue };
            let is_forgotten = matches!(operation, Operation::Forget(token, _) if *token == before.token);
            prop_assert!(
                step.after.as_ref() == Some(&before) || (is_forgotten && step.after.is_none()),
                "{operation:?} made {:?} of {before:?}", step.after
            );
        }
    }

    #[test]
    fn an_open_record_ends_only_by_its_owner_a_person_or_a_setting(history in history()) {
        let mut store = Store::default();
        for (pause, operation) in &history {
            let step = store.apply(*pause, operation);
            let Some(before) = step.before.filter(|r| r.is_open() && !is_expired(r, step.now)) else { continue };
            if step.after.is_some() {
                continue;
            }
            let may_end = match operation {
                // Only the first attempt may say that nothing was sent, and only while it has not said otherwise.
                Operation::Release(c) => {
                    let undecided = matches!(
                        before.state,
                        State::Claimed { .. } | State::Unknown { reason: Reason::Lapsed, .. }
                    );
                    c.token == before.token && before.attempts == 1 && undecided
                }
                Operation::Resolve(token, executed, force) => {
                    *token == before.token && executed.is_none() && (*force || before.abandon_at <= step.now)
                }
                Operation::Forget(token, force) => *token == before.token && *force,
                _ => false,
            };
            prop_assert!(may_end, "{operation:?} removed {before:?}");
        }
    }

    #[test]
    fn only_one_token_is_granted_until_the_record_is_absent_or_unknown_and_sent_again(history in history()) {
        let mut store = Store::default();
        for (pause, operation) in &history {
            let step = store.apply(*pause, operation);
            let Some(granted) = step.granted else { continue };
            let Some(before) = step.before.filter(|r| !is_expired(r, step.now)) else { continue };
            if before.token == granted {
                continue;
            }
            let Operation::Claim(c) = operation else { unreachable!("only a claim grants") };
            let has_lapsed = match before.state {
                State::Claimed { lease_until } => lease_until <= step.now,
                State::Unknown { .. } => true,
                State::Completed { .. } => false,
            };
            prop_assert!(has_lapsed && c.on_unknown == OnUnknown::Resend, "{c:?} was granted over {before:?}");
            let after = step.after.expect("what was granted is recorded");
            prop_assert_eq!(after.attempts, before.attempts + 1);
            prop_assert!(after.prior.is_some_and(|prior| prior.token == before.token));
            prop_assert!(after.abandon_at >= before.abandon_at);
        }
    }

    #[test]
    fn nothing_is_given_to_another_request_or_to_another_caller(history in history()) {
        let mut store = Store::default();
        for (pause, operation) in &history {
            let step = store.apply(*pause, operation);
            let Some(before) = step.before.filter(|r| !is_expired(r, step.now)) else { continue };
            let (Operation::Claim(Claim { imprint: asking, .. }) | Operation::Look(asking)) = operation else { continue };
            let slot = &mut Slot::new(Some(before.clone()), false);
            let LookReply::Taken(told) = look(slot, asking, step.now) else { unreachable!("it has not expired") };
            let (shown, first) = (asking.details.as_deref(), before.imprint.details.as_deref());
            let asks = shown.and_then(|details| details.credentials.as_ref());
            let made = first.and_then(|details| details.credentials.as_ref());
            // Said in other words than the rule's.
            let is_caller = asks.is_none_or(|asks| made.is_some_and(|made| {
                let shares = made.cookies().iter().filter(|cookie| asks.cookies().contains(cookie)).count() > 0;
                made.headers == asks.headers && (made.cookies().is_empty() || shares)
            }));
            let (one, other) = (before.imprint.fingerprint, asking.fingerprint);
            let as_they_came = first.is_some() && first.map(|d| d.parts) == shown.map(|d| d.parts);
            let is_same = one == other || (one.policy != other.policy && as_they_came);
            match told {
                Taken::OtherCaller => prop_assert!(!is_caller),
                Taken::Reused(_) => prop_assert!(is_caller && !is_same),
                _ => prop_assert!(is_caller && is_same, "{told:?} for {asking:?} of {before:?}"),
            }
            prop_assert!(step.granted.is_none() || (is_caller && is_same), "{operation:?} was granted over {before:?}");
        }
    }

    #[test]
    fn a_buried_token_is_never_granted_and_never_writes(history in history()) {
        let mut store = Store::default();
        for (pause, operation) in &history {
            let buried = store.buried.clone();
            let step = store.apply(*pause, operation);
            prop_assert!(step.granted.is_none_or(|token| !buried.contains(&token)), "{operation:?} was granted");
            let is_absent = step.before.as_ref().is_none_or(|r| is_expired(r, step.now));
            if let Some(after) = step.after.filter(|after| is_absent && step.before.as_ref() != Some(after)) {
                prop_assert!(!buried.contains(&after.token), "{operation:?} of a buried token wrote {after:?}");
            }
        }
    }

    #[test]
    fn what_was_taken_over_is_never_nested_and_comes_back_when_nothing_was_sent(history in history()) {
        let mut store = Store::default();
        for (pause, operation) in &history {
            let step = store.apply(*pause, operation);
            if let Some(after) = &step.after {
                let prior = after.prior.as_deref();
                let is_flat = prior.is_none_or(|p| p.prior.is_none() && matches!(p.state, State::Unknown { .. }));
                prop_assert!(is_flat, "{prior:?}");
                prop_assert!(prior.is_none() || after.is_undecided(), "{after:?} still has what it took over");
            }
            let before = step.before.filter(|r| !is_expired(r, step.now));
            if let (Operation::Release(c), Some(before)) = (operation, before)
                && c.token == before.token
                && let Some(prior) = before.prior
            {
                prop_assert_eq!(step.after, Some(*prior));
            }
        }
    }

    #[test]
    fn an_unknown_record_is_claimed_again_only_by_a_claim(history in history()) {
        let mut store = Store::default();
        for (pause, operation) in &history {
            let step = store.apply(*pause, operation);
            let (Some(before), Some(after)) = (step.before, step.after) else { continue };
            let was_over = match before.state {
                State::Claimed { lease_until } => lease_until <= step.now,
                State::Unknown { .. } => !is_expired(&before, step.now),
                State::Completed { .. } => false,
            };
            if was_over && matches!(after.state, State::Claimed { .. }) && after != before {
                prop_assert!(matches!(operation, Operation::Claim(_)), "{operation:?} revived {before:?}");
            }
        }
    }
}

#[test]
fn a_record_id_reads_back_and_nothing_else_is_one() {
    let id = RecordId::new("payments".into(), [0x0f; 16]);
    assert_eq!(id.to_string(), "payments:0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f");
    assert_eq!(id.to_string().parse::<RecordId>().unwrap(), id);
    for text in [
        "",
        ":",
        "payments",
        ":0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
        "payments:0F0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
        "p:+f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
    ] {
        assert!(text.parse::<RecordId>().is_err(), "{text:?} was taken for a record id");
    }
}

#[test]
fn a_caller_with_more_cookies_than_are_kept_is_known_by_those_that_are() {
    let all: Vec<u64> = (0..200).rev().collect();
    let credentials = Credentials::new([None; Credentials::HEADERS], all);
    assert_eq!(credentials.cookies(), (0..Credentials::MOST_COOKIES as u64).collect::<Vec<_>>());
}
