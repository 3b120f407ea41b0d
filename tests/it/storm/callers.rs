//! The callers of a storm: a few hot keys that everybody wants at once, a long tail, clients that repeat and hang up.

use std::time::Duration;

use tokio::task::JoinSet;

use super::log::{Log, Wish};
use super::upstream::PLAIN;
use crate::history::{Act, Finding, Given, Key, Moment, Seen};
use crate::support::dice::Dice;
use crate::support::ms;
use crate::support::proxy::try_admin;

const HOT_KEYS: u64 = 6;
const TAIL_KEYS: u64 = 60;
/// Keys whose upstream never fails. They are called one after the other, so that at any time some were just recorded.
const PLAIN_KEYS: u64 = 24;
const PLAIN_EVERY: Duration = ms(120);

/// One client: when it begins, and what it asks for, again and again.
pub(super) struct Client {
    at: Moment,
    wish: Wish,
    /// The pauses before its repeats.
    repeats: Vec<Duration>,
}

/// All keys of a storm.
pub(super) fn keys() -> Vec<Key> {
    let tail = (HOT_KEYS..HOT_KEYS + TAIL_KEYS).flat_map(|number| [0, 1].map(|scope| Key { scope, number }));
    let hot = (0..HOT_KEYS).map(|number| Key { scope: 0, number });
    hot.chain(tail).chain((PLAIN..PLAIN + PLAIN_KEYS).map(|number| Key { scope: 0, number })).collect()
}

/// Rolls the clients of a storm of this length.
pub(super) fn plan(dice: &mut Dice, proxies: usize, length: Duration) -> Vec<Client> {
    let mut clients = Vec::new();
    for key in keys() {
        let hot = key.number < HOT_KEYS;
        let plain = key.number >= PLAIN;
        let (waves, calls) = if hot { (3, 10) } else { (1, 1 + dice.roll(3)) };
        for _ in 0..waves {
            let first = if plain { PLAIN_EVERY * (key.number - PLAIN) as u32 } else { dice.time(length - ms(1200)) };
            for n in 0..calls {
                let spread = if hot { ms(60) } else { ms(1500) };
                let at = if n == 0 { first } else { first + dice.time(spread) };
                clients.push(client(dice, key, at, proxies));
            }
        }
    }
    clients
}

fn client(dice: &mut Dice, key: Key, at: Moment, proxies: usize) -> Client {
    let plain = key.number >= PLAIN;
    let wish = Wish {
        key,
        request: u64::from(!plain && dice.one_in(15)),
        proxy: dice.roll(proxies as u64) as usize,
        patience: (!plain && dice.one_in(6)).then(|| dice.time(ms(600))),
    };
    let repeats = (0..dice.roll(3)).map(|_| ms(50) + dice.time(ms(400))).collect();
    Client { at, wish, repeats }
}

/// Sends them all on their way. A client repeats when it is told to, or was told nothing.
pub(super) fn send(clients: Vec<Client>, log: &Log, proxies: usize) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for client in clients {
        let log = log.clone();
        all.spawn(async move {
            tokio::time::sleep_until(log.at(client.at)).await;
            let mut wish = client.wish;
            let mut call = log.call(wish).await;
            for pause in client.repeats {
                let again = match &call.seen {
                    Seen::Nothing => true,
                    Seen::Problem(problem) => problem.retry == "same-key",
                    Seen::Answer(_) => false,
                };
                if !again {
                    return;
                }
                tokio::time::sleep(pause).await;
                wish.proxy = (wish.proxy + 1) % proxies;
                call = log.call(wish).await;
            }
        });
    }
    all
}

/// An operator who looks at unknown records while the storm lasts, and says what they were, without force: some were
/// not executed, some were, and some can wait.
pub(super) async fn operate(mut dice: Dice, log: Log, proxies: usize) {
    let mut number = 0;
    while !log.is_calm() {
        tokio::time::sleep(ms(100) + dice.time(ms(300))).await;
        let admin = log.proxy(dice.roll(proxies as u64) as usize).admin;
        let Some(list) = try_admin(admin, "GET", "/records?state=unknown", None).await else { continue };
        if list.status != 200 {
            continue;
        }
        let records = list.json()["records"].as_array().cloned().unwrap_or_default();
        let Some(record) = dice.one_of(&records) else { continue };
        let id = record["id"].as_str().expect("an id").to_owned();
        let Some(key) = log.key_of(&id) else { continue };
        number += 1;
        let body = format!("the operator's answer {number}");
        let given = Given { status: 200, receipt: String::new(), body: body.clone().into() };
        let (what, mut finding) = if dice.one_in(2) {
            (Finding::Free, serde_json::json!({ "outcome": "not-executed" }))
        } else {
            let response = serde_json::json!({ "status": 200, "headers": [], "body": body });
            (Finding::Executed(given), serde_json::json!({ "outcome": "executed", "response": response }))
        };
        finding["token"] = record["token"].clone();
        finding["note"] = "a storm".into();
        let begun = log.now();
        let answer = try_admin(admin, "POST", &format!("/records/{id}/resolve"), Some(finding)).await;
        // Only a refusal for what the record is says for certain that nothing was done.
        let done = !answer.is_some_and(|answer| matches!(answer.status, 400 | 404 | 409));
        log.note_act(Act { key, begun, ended: log.now(), done, what });
    }
}
