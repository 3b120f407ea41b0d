//! `config.schema.json`, by which editors complete and check settings: made from `config.toml` and the parser.
//!
//! The sample has every key with its default and a comment; a test holds it to the parser. What a key may be is asked of
//! the parser itself: each key gets a value that nothing takes, and the refusal says what would be right.

use serde_json::{Map, Value, json};

use super::sample::{CHOSEN, Line, SAMPLE, changed, lines};
use super::*;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config.schema.json");

/// The refusal of a key, if the sample is not taken with this value for it.
fn refusal(line: &Line, value: &str) -> Option<Mistake> {
    let key = line.key.rsplit_once('.').map_or(&*line.key, |(_, key)| key);
    let written = SAMPLE.lines().nth(line.number).unwrap().trim_start_matches('#').split(" = ").next().unwrap();
    let text = changed(|number, old| match number {
        _ if number == line.number => format!("{written} = {value}"),
        _ if line.key.starts_with("route.when.") && old == "#[[route.when]]" => old.trim_start_matches('#').to_owned(),
        _ => old.to_owned(),
    });
    let Mistakes(mistakes) = load(&Sources::text(text)).err()?;
    mistakes.into_iter().find(|mistake| mistake.key == key || mistake.key.ends_with(&format!(".{key}")))
}

/// The text between two others.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(found, _)| found)
}

fn whole_number(right: &str) -> Option<Value> {
    let (least, rest) = right.split_once("a whole number from ")?.1.split_once(" to ")?;
    let most: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let (least, most): (u64, u64) = (least.parse().unwrap(), most.parse().unwrap());
    Some(json!({ "type": "integer", "minimum": least, "maximum": most }))
}

/// What a key may be, by what the parser says against a text that is never right.
fn shape(line: &Line) -> Value {
    let Some(Mistake { wrong, right, .. }) = refusal(line, "\"?!\"") else { return text_or_list(line) };
    let words = |right: &str| right.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    if right.contains("{ file = ") {
        let place = |key: &str| json!({ "type": "object", "additionalProperties": false, "required": [key], "properties": { key: { "type": "string" } } });
        return json!({ "type": "array", "minItems": 1, "items": { "anyOf": [place("file"), place("env")] } });
    }
    if wrong.contains("is not a list") {
        let text = json!({ "type": "string" });
        let joins = refusal(line, "[[\"header:a\", \"header:b\"]]").is_none();
        let list = json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 });
        if refusal(line, "[1]").is_none() {
            return json!({ "type": "array", "items": { "type": ["string", "number", "boolean"] } });
        }
        let items = if joins { json!({ "anyOf": [text, list] }) } else { text };
        return json!({ "type": "array", "items": items });
    }
    if right.contains("true or false") {
        return json!({ "type": "boolean" });
    }
    if right.starts_with("write true,") {
        return json!({ "const": true });
    }
    if right.contains("a number from 0 to 1") {
        return json!({ "type": "number", "minimum": 0, "maximum": 1 });
    }
    if right.contains("ms, s, m, h, d") {
        let never = if right.contains("\"never\"") { "never|" } else { "" };
        return json!({ "type": "string", "pattern": format!("^({never}[0-9]+(ms|s|m|h|d))$") });
    }
    if right.contains("B, KiB, MiB, GiB") {
        return json!({ "type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)$" });
    }
    if right.starts_with("write one of ") {
        return json!({ "type": "string", "enum": words(&right) });
    }
    match (whole_number(&right), between(&right, "write \"", "\", or a whole number")) {
        (Some(number), Some(word)) => json!({ "anyOf": [number, { "const": word }] }),
        (Some(number), None) => number,
        (None, _) => text_or_list(line),
    }
}

/// A text, or also a list of texts where the parser takes the default in brackets.
fn text_or_list(line: &Line) -> Value {
    let written = SAMPLE.lines().nth(line.number).unwrap().split_once(" = ").unwrap().1;
    let takes_list = refusal(line, &format!("[{written}]")).is_none();
    let text = json!({ "type": "string" });
    if takes_list { json!({ "anyOf": [text, { "type": "array", "items": text }] }) } else { text }
}

/// The comment above a setting, in one line.
fn comment(line: &Line) -> String {
    let above: Vec<_> = SAMPLE.lines().take(line.number).collect();
    // Two settings that belong together share a comment.
    let settings = above.iter().rev().take_while(|text| text.starts_with('#') && !text.starts_with("# ")).count();
    let above = &above[..above.len() - settings];
    let first = above.iter().rposition(|text| !text.starts_with("# ")).map_or(0, |last| last + 1);
    above[first..].iter().map(|text| text.trim_start_matches("# ")).collect::<Vec<_>>().join(" ")
}

fn default(line: &Line) -> Option<Value> {
    let required = CHOSEN.contains(&line.key.as_str());
    let (_, value) = SAMPLE.lines().nth(line.number)?.split_once(" = ")?;
    let table: Map<String, Value> = toml::from_str(&format!("value = {value}")).unwrap();
    (!line.commented && !required).then(|| table["value"].clone())
}

fn object() -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

/// The schema of the section that a path leads to, made on the way.
fn section<'a>(schema: &'a mut Value, path: &[&str]) -> &'a mut Value {
    let Some((first, rest)) = path.split_first() else { return schema };
    let list = |line: &str| {
        line.strip_prefix("[[").is_some_and(|head| head.rsplit('.').next().unwrap() == format!("{first}]]"))
    };
    let is_list = SAMPLE.lines().any(|line| list(line.trim_start_matches('#')));
    let made = || if is_list { json!({ "type": "array", "items": object() }) } else { object() };
    let properties = schema["properties"].as_object_mut().unwrap();
    let entry = properties.entry((*first).to_owned()).or_insert_with(made);
    section(if is_list { &mut entry["items"] } else { entry }, rest)
}

fn generated() -> String {
    let mut schema = object();
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["title"] = json!("Settings of onceproxy");
    for line in lines() {
        let path: Vec<_> = line.key.split('.').collect();
        let (key, sections) = path.split_last().unwrap();
        let section = section(&mut schema, sections);
        let mut setting = shape(&line);
        setting["description"] = json!(comment(&line));
        if let Some(default) = default(&line) {
            setting["default"] = default;
        }
        section["properties"][*key] = setting;
        if CHOSEN.contains(&line.key.as_str()) {
            section
                .as_object_mut()
                .unwrap()
                .entry("required")
                .or_insert(json!([]))
                .as_array_mut()
                .unwrap()
                .push(json!(key));
        }
    }
    serde_json::to_string_pretty(&schema).unwrap() + "\n"
}

#[test]
fn the_schema_for_editors_is_what_the_parser_takes() {
    let written = std::fs::read_to_string(FILE).unwrap();
    assert!(written == generated(), "the settings changed: run make schema");
}

#[test]
#[ignore = "writes config.schema.json: make schema"]
fn write_the_schema_for_editors() {
    std::fs::write(FILE, generated()).unwrap();
}
