//! What a duplicate gets that differs from the first request in exactly one thing: the table of docs/configuration.md,
//! made by real requests through a real proxy.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{Answer, Request, Store, World};

/// The heading in docs/configuration.md under which the table stands.
const HEADING: &str = "### What counts as the same";
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");

const PRESETS: [&str; 3] = ["api", "payment", "webhook"];

/// A session, long enough to be one.
const SESSION: &str = "sid=0123456789abcdef0123456789abcdef; lb=a";

/// One thing in which the duplicate differs, and how.
type Difference = (&'static str, fn(Request) -> Request);

const DIFFERENCES: [Difference; 18] = [
    ("nothing", |request| request),
    ("its method: `PUT`", |request| request.method("PUT")),
    ("its method: `GET`", |request| request.method("GET")),
    ("its path", |request| request.target("/refund?a=1")),
    ("its query", |request| request.target("/pay?a=2")),
    ("its host", |request| request.set("Host", "other.test")),
    ("a byte of its body", |request| request.body(r#"{"amount":11,"currency":"EUR"}"#)),
    ("the order of JSON members", |request| request.body(r#"{"currency":"EUR","amount":10}"#)),
    ("compression of its body (`Content-Encoding: gzip`)", |request| {
        request.field("Content-Encoding", "gzip").body(gzip(BODY.as_bytes()))
    }),
    ("chunks in place of a length", |request| request.chunked(7)),
    ("`Content-Type`", |request| request.set("Content-Type", "application/json; charset=utf-8")),
    ("a header that chooses the operation (`X-Amz-Target`)", |request| request.set("X-Amz-Target", "Refund")),
    ("any other header (`User-Agent`)", |request| request.set("User-Agent", "second")),
    ("the credential in `Authorization`", |request| request.set("Authorization", "Bearer bob")),
    ("the credential in `X-Api-Key`", |request| request.set("X-Api-Key", "bob")),
    ("its session cookie (16 bytes or more)", |request| {
        request.set("Cookie", "sid=fedcba9876543210fedcba9876543210; lb=a")
    }),
    ("a small cookie (under 16 bytes)", |request| request.set("Cookie", "sid=0123456789abcdef0123456789abcdef; lb=b")),
    ("no cookies at all", |request| request.without("Cookie")),
];

const BODY: &str = r#"{"amount":10,"currency":"EUR"}"#;

/// Compressed by the program that everybody has.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip =
        Command::new("gzip").args(["-n", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    gzip.stdin.take().unwrap().write_all(bytes).unwrap();
    gzip.wait_with_output().unwrap().stdout
}

/// The first request, with one of everything.
fn first(preset: &str, key: &str) -> Request {
    let name = if preset == "webhook" { "webhook-id" } else { "Idempotency-Key" };
    Request::new("POST", "/pay?a=1")
        .field(name, key)
        .field("Authorization", "Bearer alice")
        .field("X-Api-Key", "alice")
        .field("Cookie", SESSION)
        .field("X-Amz-Target", "Charge")
        .field("User-Agent", "first")
        .json(BODY)
}

/// What the answer to a duplicate means, in the words of the table.
fn meaning(answer: &Answer, ran: bool) -> String {
    let passed = answer.field("Cache-Status").is_some_and(|status| status.contains("detail=unprotected"));
    match (answer.is_replay(), answer.status, ran) {
        (true, _, false) => "replay".to_owned(),
        (false, 201, true) if passed => "passed on, unprotected".to_owned(),
        (false, 201, true) => "its own operation".to_owned(),
        (false, 422, false) => {
            let differs = answer.json()["differs"].as_array().cloned().unwrap_or_default();
            let differs: Vec<_> = differs.iter().filter_map(|part| Some(format!("`{}`", part.as_str()?))).collect();
            format!("422, {}", differs.join(" "))
        }
        (false, status, false) => format!("{status} `{}`", answer.problem()),
        _ => panic!("no such meaning, ran: {ran}: {}", answer.shown()),
    }
}

/// The table, as it is.
async fn table() -> String {
    let mut worlds = Vec::new();
    for preset in PRESETS {
        worlds.push((preset, World::with(Store::Memory, &format!("preset = \"{preset}\"")).await));
    }
    let mut lines = vec![
        format!("| the duplicate differs in | `{}` |", PRESETS.join("` | `")),
        "| --- | --- | --- | --- |".to_owned(),
    ];
    for (number, (what, differ)) in DIFFERENCES.into_iter().enumerate() {
        let mut cells = vec![what.to_owned()];
        for (preset, world) in &worlds {
            let request = first(preset, &format!("k-{number}"));
            let before = world.executions();
            world.send(&request).await.assert_executed(201);
            assert_eq!(world.executions(), before + 1, "{preset}: {what}");
            let answer = world.send(&differ(request)).await;
            cells.push(meaning(&answer, world.executions() > before + 1));
        }
        lines.push(format!("| {} |", cells.join(" | ")));
    }
    lines.join("\n")
}

/// What stands under the heading: the page before its table, the table, and the page after.
fn page() -> (String, String, String) {
    let text = std::fs::read_to_string(PAGE).unwrap();
    let heading = text.find(&format!("\n{HEADING}\n")).expect("the heading");
    let start = heading + text[heading..].find("\n| ").expect("a table under the heading") + 1;
    let end = start + text[start..].find("\n\n").expect("an end of the table");
    (text[..start].to_owned(), text[start..end].to_owned(), text[end..].to_owned())
}

#[tokio::test]
async fn the_table_of_the_documentation_is_what_duplicates_get() {
    let (_, written, _) = page();
    let right = table().await;
    assert!(written == right, "docs/configuration.md, {HEADING}: it should be\n{right}\n(make duplicates)");
}

#[tokio::test]
#[ignore = "writes the table of docs/configuration.md: make duplicates"]
async fn write_the_table_of_the_documentation() {
    let (before, _, after) = page();
    std::fs::write(PAGE, format!("{before}{}{after}", table().await)).unwrap();
}
