//! The upstream of a storm: it fails in every way it can, and takes down what it executed.

use std::sync::Arc;

use super::log::Log;
use crate::history::{Execution, Given, Key};
use crate::support::dice::Dice;
use crate::support::upstream::{Note, Received};
use crate::support::{Script, Step, ms, reply};

/// Keys from here on are always answered at once.
pub(super) const PLAIN: u64 = 1000;

/// What the upstream does with a request: follows from the seed, the key, and how often it was executed before. Once
/// the storm is over it answers at once.
pub(super) fn behave(seed: u64, log: &Log, request: &Received) -> Script {
    let number = |name: &str| -> u64 { request.field(name).and_then(|value| value.parse().ok()).expect(name) };
    let part = |name: &str, before: &str| -> u64 {
        let value = request.field(name).expect(name);
        value.strip_prefix(before).and_then(|value| value.parse().ok()).expect(name)
    };
    let key = Key { scope: part("Authorization", "Bearer "), number: part("Idempotency-Key", "key-") };
    let mut behaviour = None;
    let execution = log.note_execution(key, |number_of_all, before| {
        let mut dice = Dice::new(seed ^ (key.number << 20) ^ (key.scope << 40) ^ before as u64);
        let plain = log.is_calm() || key.number >= PLAIN;
        let roll = if plain { 0 } else { dice.roll(24) };
        let gave = given(roll, key, number_of_all, &mut dice);
        behaviour = Some((roll, dice));
        let (call, request) = (number("X-Call") as usize, number("X-Request"));
        Execution { number: number_of_all, key, request, call, begun: log.now(), ended: None, broken: None, gave }
    });
    let (roll, dice) = behaviour.expect("it was just made");
    script(roll, dice, log, &execution)
}

fn given(roll: u64, key: Key, number: usize, dice: &mut Dice) -> Given {
    let status = match roll {
        10 | 12 => 503,
        11 => 429,
        13 => 504,
        14 => 422,
        _ => 201,
    };
    // Over 4 KiB a full Redis may leave it out, over 64 KiB a replay costs a second trip.
    let size = match dice.roll(20) {
        0 => 80 * 1024,
        1 | 2 => 6 * 1024,
        _ => 0,
    };
    let Key { scope, number: key } = key;
    let body = format!(r#"{{"scope":{scope},"key":{key},"execution":{number},"pad":"{}"}}"#, "x".repeat(size));
    Given { status, receipt: format!("receipt-{number}"), body: body.into() }
}

fn script(roll: u64, mut dice: Dice, log: &Log, execution: &Execution) -> Script {
    let Given { status, receipt, body } = &execution.gave;
    let whole = reply(*status).field("Content-Type", "application/json").field("X-Receipt", receipt).body(body);
    let (log, number) = (log.clone(), execution.number);
    let of_break = log.clone();
    let broken = Step::Note(Note(Arc::new(move || of_break.note_break(number))));
    let note = Step::Note(Note(Arc::new(move || log.note_end(number))));
    let whole = Script(vec![note.clone(), Step::Reply(whole)]);
    match roll {
        0..=4 => whole,
        5..=9 | 14 => whole.delayed(dice.time(ms(600))),
        10 => whole,
        11 | 12 => whole.delayed(dice.time(ms(300))),
        13 => whole,
        15 => Script(vec![broken, Step::Close]).delayed(dice.time(ms(200))),
        16 => Script(vec![broken, Step::Reset]),
        17 => {
            let half = b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf".to_vec();
            Script(vec![broken, Step::Bytes(half), Step::Close])
        }
        18 => Script::never(),
        // Later than the caller listens.
        19 => whole.delayed(ms(1000) + dice.time(ms(900))),
        20 => Script([whole.0, vec![Step::Close]].concat()),
        _ => {
            let head = format!(
                "HTTP/1.1 {status} Scripted\r\nX-Receipt: {receipt}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n",
                body.len()
            );
            let (begun, ended) = body.split_at(body.len() / 2);
            let begun = [head.as_bytes(), begun].concat();
            let ended = [ended, b"\r\n0\r\n\r\n"].concat();
            let pause = Step::Pause(dice.time(ms(200)));
            Script(vec![Step::Bytes(begun), pause, note, Step::Bytes(ended)])
        }
    }
}
