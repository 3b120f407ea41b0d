//! A model of attempts, a bad network, crashes, pauses and an operator, around the real rules of `onceproxy::record`.
//!
//! Every message may be lost, delivered late, or delivered many times: once sent it stays in the network for good.
//! Time is not counted: a lease may run out at any moment (a pause of any length), and an operator comes when nobody
//! who could still send is alive, which is what `abandon_at` stands for. The checker then visits every order of events.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;
use onceproxy::record::{
    self, Claim, ClaimReply, Finding, Fingerprint, OnUnknown, Reason, Record, RecordId, RenewReply, Response, Slot,
    State, Timestamp, Token,
};
use onceproxy::store::codec;
use stateright::{Checker, Model, Property};

const NOW: Timestamp = Timestamp(1_000_000);
const LEASE: Duration = Duration::from_secs(10);
const MOST_ATTEMPTS: u32 = 3;
const ABANDON_AFTER: Duration = Duration::from_secs(60);

/// How far an attempt is, by its own knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Claiming,
    /// It believes that the key is its own: it may send at any later moment, however long it pauses before.
    Granted,
    Renewing,
    Sent,
    Completing,
    Completed,
    Doubting,
    Doubted,
    Releasing,
    Released,
    Dead,
}

/// A message to the store from the attempt with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Claim(usize),
    Renew(usize),
    Complete(usize),
    Doubt(usize),
    Release(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Begin(usize),
    Renew(usize),
    Send(usize),
    Answer(usize),
    Doubt(usize),
    GiveUp(usize),
    Crash(usize),
    /// The store gets a message; its reply may be lost.
    Deliver(Message, bool),
    LeaseRunsOut,
    OperatorFinds,
}

/// The record, comparable and hashable by its stored form.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept(Option<Record>);

impl Hash for Kept {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.as_ref().map(codec::encode).hash(hasher);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    record: Kept,
    buried: BTreeSet<usize>,
    attempts: Vec<Phase>,
    network: BTreeSet<Message>,
    sends: u8,
}

/// The whole: so many attempts at one key, under one setting of `on_unknown`.
struct Attempts {
    count: usize,
    on_unknown: OnUnknown,
    /// Whether attempts also renew, and answer after they doubted: left out to keep three of them small.
    is_full: bool,
}

impl Attempts {
    fn claim(&self, number: usize) -> Claim {
        Claim {
            id: RecordId::new("model".into(), [0; 16]),
            token: token(number),
            imprint: Fingerprint { policy: [0; 4], digest: [0; 32] }.into(),
            quoted: false,
            lease: LEASE,
            abandon_after: ABANDON_AFTER,
            on_unknown: self.on_unknown,
            unknown_retention: None,
        }
    }

    /// The store gets a message. The attempt learns of the reply if that arrives, and if it still waits for it.
    fn deliver(&self, world: &mut World, message: Message, reply_arrives: bool) {
        use Phase::{Claiming, Completed, Completing, Doubted, Doubting, Granted, Released, Releasing, Renewing};
        let (Message::Claim(number)
        | Message::Renew(number)
        | Message::Complete(number)
        | Message::Doubt(number)
        | Message::Release(number)) = message;
        let claim = self.claim(number);
        let slot = &mut Slot::new(world.record.0.take(), world.buried.contains(&number));
        let (waits, next) = match message {
            Message::Claim(_) => match record::claim(slot, &claim, NOW) {
                ClaimReply::Granted { .. } => (Claiming, Granted),
                // Its claim may have been granted before, without its knowledge: it must hand that back.
                _ => (Claiming, Releasing),
            },
            Message::Renew(_) => match record::renew(slot, &claim, NOW) {
                RenewReply::Extended => (Renewing, Granted),
                _ => (Renewing, Releasing),
            },
            Message::Complete(_) => {
                record::complete(slot, &claim, response(), Duration::MAX, NOW);
                (Completing, Completed)
            }
            Message::Doubt(_) => {
                record::doubt(slot, &claim, Reason::Timeout, None, NOW);
                (Doubting, Doubted)
            }
            Message::Release(_) => {
                record::release(slot, &claim, NOW);
                (Releasing, Released)
            }
        };
        world.record.0 = slot.record.take();
        if slot.tombstone {
            world.buried.insert(number);
        }
        if reply_arrives && world.attempts[number] == waits {
            world.go(number, next);
        }
    }

    fn operator_finds(world: &mut World) {
        let Some(record) = &world.record.0 else { return };
        let holder = record.token;
        let number = (0..world.attempts.len()).find(|n| token(*n) == holder).expect("only attempts own records");
        let finding = if world.sends > 0 {
            Finding::Executed { response: response(), retention: Duration::MAX }
        } else {
            Finding::NotExecuted
        };
        let slot = &mut Slot::new(world.record.0.take(), world.buried.contains(&number));
        record::resolve(slot, holder, finding, false, NOW + ABANDON_AFTER);
        world.record.0 = slot.record.take();
        if slot.tombstone {
            world.buried.insert(number);
        }
    }
}

impl World {
    /// Takes the attempt to its next phase; entering one that waits for the store sends the message.
    fn go(&mut self, number: usize, next: Phase) {
        self.attempts[number] = next;
        let message = match next {
            Phase::Claiming => Message::Claim(number),
            Phase::Renewing => Message::Renew(number),
            Phase::Completing => Message::Complete(number),
            Phase::Doubting => Message::Doubt(number),
            Phase::Releasing => Message::Release(number),
            _ => return,
        };
        self.network.insert(message);
    }

    fn state(&self) -> Option<&State> {
        self.record.0.as_ref().map(|record| &record.state)
    }

    fn is_unknown(&self) -> bool {
        matches!(self.state(), Some(State::Unknown { .. }))
    }

    /// Completed; or nothing was sent and the key is free.
    fn is_settled(&self) -> bool {
        matches!(self.state(), Some(State::Completed { .. })) || (self.record.0.is_none() && self.sends == 0)
    }

    /// Whether someone is alive who may send, or has sent and may still say how it ended: until its `abandon_at`.
    fn may_be_running(&self) -> bool {
        self.attempts.iter().any(|phase| {
            matches!(phase, Phase::Granted | Phase::Renewing | Phase::Sent | Phase::Completing | Phase::Doubting)
        })
    }
}

impl Model for Attempts {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            record: Kept(None),
            buried: BTreeSet::new(),
            attempts: vec![Phase::Idle; self.count],
            network: BTreeSet::new(),
            sends: 0,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        for (number, phase) in world.attempts.iter().enumerate() {
            match phase {
                Phase::Idle => events.push(Event::Begin(number)),
                Phase::Claiming | Phase::Renewing => events.push(Event::GiveUp(number)),
                Phase::Granted => {
                    events.extend([Event::Send(number), Event::GiveUp(number)]);
                    events.extend(self.is_full.then_some(Event::Renew(number)));
                }
                Phase::Sent => events.extend([Event::Answer(number), Event::Doubt(number)]),
                Phase::Doubting | Phase::Doubted if self.is_full => events.push(Event::Answer(number)),
                _ => {}
            }
            if !matches!(phase, Phase::Idle | Phase::Completed | Phase::Released | Phase::Dead) {
                events.push(Event::Crash(number));
            }
        }
        for message in &world.network {
            events.extend([Event::Deliver(*message, true), Event::Deliver(*message, false)]);
        }
        if matches!(world.state(), Some(State::Claimed { .. })) {
            events.push(Event::LeaseRunsOut);
        }
        if world.is_unknown() && !world.may_be_running() {
            events.push(Event::OperatorFinds);
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        match event {
            Event::Begin(number) => next.go(number, Phase::Claiming),
            Event::Renew(number) => next.go(number, Phase::Renewing),
            Event::Answer(number) => next.go(number, Phase::Completing),
            Event::Doubt(number) => next.go(number, Phase::Doubting),
            Event::GiveUp(number) => next.go(number, Phase::Releasing),
            Event::Crash(number) => next.go(number, Phase::Dead),
            Event::Send(number) => {
                next.sends += 1;
                next.go(number, Phase::Sent);
            }
            Event::Deliver(message, reply_arrives) => self.deliver(&mut next, message, reply_arrives),
            Event::LeaseRunsOut => {
                let record = next.record.0.as_mut()?;
                record::lapse(record, NOW + LEASE);
            }
            Event::OperatorFinds => Attempts::operator_finds(&mut next),
        }
        // Old claims that arrive again and again may take a lapsed record from each other for ever.
        let is_bounded = next.record.0.as_ref().is_none_or(|record| record.attempts <= MOST_ATTEMPTS);
        (next != *world && is_bounded).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Attempts>> {
        vec![
            Property::always(
                "at most one execution where unknown records are held",
                |model: &Attempts, world: &World| model.on_unknown == OnUnknown::Resend || world.sends <= 1,
            ),
            Property::always("never absent after something was sent", |_, world: &World| {
                world.sends == 0 || world.record.0.is_some()
            }),
            // Under resend an old claim that arrives again may take an unknown record over; it lapses, and that is all.
            Property::always(
                "an attempt that said how it ended owns no living claim",
                |model: &Attempts, world: &World| {
                    let ended = |phase: &Phase| matches!(phase, Phase::Completed | Phase::Doubted | Phase::Released);
                    let Some(record) = &world.record.0 else { return true };
                    let owner = (0..world.attempts.len()).find(|n| token(*n) == record.token);
                    model.on_unknown == OnUnknown::Resend
                        || !matches!(record.state, State::Claimed { .. })
                        || !owner.is_some_and(|n| ended(&world.attempts[n]))
                },
            ),
            Property::always("what was taken over is never nested", |_, world: &World| {
                let prior = world.record.0.as_ref().and_then(|record| record.prior.as_ref());
                prior.is_none_or(|prior| prior.prior.is_none())
            }),
            Property::sometimes("completed", |_, world: &World| matches!(world.state(), Some(State::Completed { .. }))),
            Property::sometimes("unknown although nobody sent", |_, world: &World| {
                world.is_unknown() && world.sends == 0
            }),
            Property::sometimes("sent by the second after the first released", |_, world: &World| {
                world.attempts[0] == Phase::Released && world.attempts[1] == Phase::Sent
            }),
        ]
    }
}

fn token(number: usize) -> Token {
    Token::from_bytes([u8::try_from(number + 1).expect("a handful of attempts"); 16])
}

fn response() -> Response {
    Response::new(201, [], [], Some(Bytes::new()))
}

/// Checks every property in every reachable world, and that a settled one can be reached from each.
fn check(model: Attempts) {
    assert_each_can_be_settled(&model);
    let checker = model.checker().spawn_bfs().join();
    println!("{} worlds", checker.unique_state_count());
    checker.assert_properties();
}

fn assert_each_can_be_settled(model: &Attempts) {
    let mut numbers: HashMap<World, usize> = HashMap::new();
    let mut came_from: Vec<Vec<usize>> = Vec::new();
    let mut settled = Vec::new();
    let mut open: VecDeque<World> = model.init_states().into();
    for world in &open {
        numbers.insert(world.clone(), came_from.len());
        came_from.push(Vec::new());
    }
    while let Some(world) = open.pop_front() {
        let number = numbers[&world];
        if world.is_settled() {
            settled.push(number);
        }
        for next in model.next_states(&world) {
            let known = numbers.get(&next).copied();
            let next_number = known.unwrap_or(came_from.len());
            if known.is_none() {
                numbers.insert(next.clone(), next_number);
                came_from.push(Vec::new());
                open.push_back(next);
            }
            came_from[next_number].push(number);
        }
    }
    let mut can_be_settled = vec![false; came_from.len()];
    while let Some(number) = settled.pop() {
        if !std::mem::replace(&mut can_be_settled[number], true) {
            settled.extend(&came_from[number]);
        }
    }
    let stuck = numbers.into_iter().find(|(_, number)| !can_be_settled[*number]);
    assert!(stuck.is_none(), "can never be settled: {stuck:?}");
}

#[test]
fn three_attempts_under_hold() {
    check(Attempts { count: 3, on_unknown: OnUnknown::Hold, is_full: false });
}

#[test]
fn two_attempts_under_hold() {
    check(Attempts { count: 2, on_unknown: OnUnknown::Hold, is_full: true });
}

#[test]
fn two_attempts_under_resend() {
    check(Attempts { count: 2, on_unknown: OnUnknown::Resend, is_full: true });
}
