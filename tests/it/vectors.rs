//! Quoted keys against the public test vectors for structured-field strings.
//!
//! The essential ones are a fixture of this repository; where the whole set lies beside it, that is run too.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::support::{Request, Store, World};

const FIXTURE: &str = include_str!("../fixtures/structured-field-strings.json");

/// What a run of vectors did, so that a run of nothing is seen.
#[derive(Default)]
struct Tally {
    accepted: usize,
    refused: usize,
    unsendable: usize,
}

#[tokio::test]
async fn quoted_keys_follow_the_essential_vectors() {
    let tally = run(FIXTURE).await;
    assert!(tally.accepted >= 8 && tally.refused >= 10, "{} and {}", tally.accepted, tally.refused);
}

#[tokio::test]
async fn quoted_keys_follow_the_whole_set_of_vectors_where_it_is_at_hand() {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|p| p.join("shared/structured-field-tests"));
    let Some(folder) = folders.into_iter().find(|folder| folder.is_dir()) else {
        println!("not at hand; the essential vectors are run by the other test");
        return;
    };
    for file in ["string.json", "string-generated.json", "item.json"] {
        let tally = run(&std::fs::read_to_string(folder.join(file)).unwrap()).await;
        if file.starts_with("string") {
            assert!(tally.accepted > 2 && tally.refused > 5, "{file}");
        }
    }
}

async fn run(vectors: &str) -> Tally {
    let world = World::with(Store::Memory, "max_key_length = 1024").await;
    let vectors: Vec<Value> = serde_json::from_str(vectors).unwrap();
    let mut tally = Tally::default();
    let mut keys = BTreeSet::new();
    for vector in &vectors {
        let lines: Vec<&str> = vector["raw"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        // Other items are not quoted keys; and a line end would end the field, not stand in it.
        if !lines[0].trim().starts_with('"') || lines.iter().any(|line| line.contains(['\r', '\n'])) {
            tally.unsendable += 1;
            continue;
        }
        let request = lines.iter().fold(Request::pay(), |request, line| request.key(line));
        let answer = world.send(&request).await;
        let expected = vector["expected"][0].as_str();
        let valid = expected.filter(|key| !key.is_empty() && lines.len() == 1);
        match valid {
            None => {
                assert_eq!(answer.status, 400, "{vector}: {}", answer.shown());
                tally.refused += 1;
            }
            Some(key) => {
                assert_eq!((answer.status, answer.is_replay()), (201, !keys.insert(key.to_owned())), "{vector}");
                tally.accepted += 1;
                let bare = key.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b',');
                if bare {
                    world.pay(key).await.assert_replay(201);
                }
            }
        }
    }
    assert_eq!(world.executions(), keys.len());
    tally
}
