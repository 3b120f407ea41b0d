//! The canonical form: equal for equal meaning, different for every change of it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn digest_without(pointers: &[&str], body: &[u8]) -> Result<Option<[u8; 32]>, JsonFault> {
    let pointers: Vec<String> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
    let mut transcript = Transcript::new();
    Ok(add(&mut transcript, body, &Ignored::new(&pointers))?.then(|| transcript.finish()))
}

fn digest(body: &str) -> [u8; 32] {
    digest_without(&[], body.as_bytes()).unwrap().expect(body)
}

#[test]
fn member_order_white_space_and_escapes_do_not_count() {
    let first = digest(r#"{"a":1,"b":{"c":[true,null,"x/é😀"],"d":{}}}"#);
    for same in [
        r#"{"b":{"d":{},"c":[true,null,"x/é😀"]},"a":1}"#,
        "\r\n{ \"a\"\t: 1 ,\n\"b\" : { \"c\" : [ true , null , \"x/é😀\" ] , \"d\" : { } } } ",
        r#"{"\u0061":1,"b":{"c":[true,null,"\u0078\/\u00e9\ud83d\ude00"],"d":{}}}"#,
    ] {
        assert_eq!(digest(same), first, "{same}");
    }
}

#[test]
fn every_difference_in_meaning_counts() {
    let bodies = [
        "9007199254740993",
        "9007199254740992",
        "1",
        "1.0",
        "1e0",
        "1E0",
        "-0",
        "0",
        "\"1\"",
        "true",
        "false",
        "null",
        "\"\"",
        "\"null\"",
        "[]",
        "{}",
        "[[]]",
        "[{}]",
        "[[],[]]",
        "[[[]]]",
        "[1,2]",
        "[2,1]",
        "[12]",
        "[\"1\",\"2\"]",
        "[\"1,2\"]",
        r#"["1\",\"2"]"#,
        r#"{"a":1}"#,
        r#"{"A":1}"#,
        r#"{"a":"1"}"#,
        r#"{"a":null}"#,
        r#"{"":1}"#,
        r#"{"a":{"b":1}}"#,
        r#"{"a":{},"b":1}"#,
        r#"["a",1]"#,
        r#"[{"a":{}},{"b":1}]"#,
        r#"[{"a":{}},{}]"#,
        r#"{"a":[{"x":1},{"y":2}]}"#,
        r#"{"a":[{"y":2},{"x":1}]}"#,
        r#"{"a":[{"x":1,"y":2}]}"#,
        r#""\ud83d""#,
        r#""\ude00""#,
        r#""\ud83d\ude00""#,
        r#""\ude00\ud83d""#,
        r#""\ufffd""#,
        r#""\u0000""#,
        r#""\n""#,
        r#""\\n""#,
    ];
    for (at, body) in bodies.iter().enumerate() {
        let twin = bodies[..at].iter().find(|other| digest(other) == digest(body));
        assert_eq!(twin, None, "{body}");
    }
}

#[test]
fn members_that_stand_twice_are_refused_at_any_depth() {
    for (body, at) in [
        (r#"{"a":1,"a":1}"#, 8),
        (r#"{"a":1,"\u0061":2}"#, 8),
        (r#"[{"b":[{"c":0,"a":1,"b":3,"c":1}]}]"#, 27),
        (r#"{"":{},"":{}}"#, 8),
        (r#"{"\ud83d\ude00":1,"😀":2}"#, 19),
    ] {
        assert_eq!(digest_without(&[], body.as_bytes()), Err(JsonFault::DuplicateMember { at }), "{body}");
    }
    digest(r#"{"a":{"a":1},"b":[{"a":1},{"a":1}]}"#);
    // Not JSON at all: its members are nobody's.
    assert_eq!(digest_without(&[], br#"{"a":1,"a":1} x"#), Ok(None));
}

#[test]
fn what_is_not_json_is_told_apart() {
    for body in [
        "",
        " ",
        "nul",
        "nulll",
        "True",
        "01",
        "1.",
        ".1",
        "+1",
        "-",
        "1e",
        "1e+",
        "0x1",
        "NaN",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[",
        "]",
        "{",
        "{}}",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{\"a\":1,}",
        "{,}",
        "{1:1}",
        "\"",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u123\"",
        "\"\n\"",
        "'a'",
        "[1]]",
        "1 1",
        "\u{feff}\u{feff}1",
        "[}",
        "{]",
        "{\"a\":1]",
        "[1}",
        "// x\n1",
    ] {
        assert_eq!(digest_without(&[], body.as_bytes()), Ok(None), "{body:?}");
    }
    assert_eq!(digest_without(&[], b"\"\xff\""), Ok(None));
    assert_eq!(digest_without(&[], b"\"\xed\xa0\xbd\""), Ok(None));
}

#[test]
fn ignored_members_do_not_count_and_their_neighbours_do() {
    let without = |pointers: &[&str], body: &str| digest_without(pointers, body.as_bytes()).unwrap().expect(body);
    let same = |pointers: &[&str], a: &str, b: &str| without(pointers, a) == without(pointers, b);
    assert!(same(&["/sent_at"], r#"{"sent_at":1,"a":2}"#, r#"{"a":2,"sent_at":[{"x":{}},"y"]}"#));
    assert!(same(&["/sent_at"], r#"{"sent_at":1,"a":2}"#, r#"{"a":2}"#));
    assert!(same(&["/sent_at"], r#"{"\u0073ent_at":1}"#, "{}"));
    assert!(!same(&["/sent_at"], r#"{"sent_at":1,"a":2}"#, r#"{"sent_at":1,"a":3}"#));
    assert!(!same(&["/sent_at"], r#"{"a":{"sent_at":1}}"#, r#"{"a":{"sent_at":2}}"#));
    assert!(same(
        &["/meta/at", "/items/1/id"],
        r#"{"meta":{"at":1},"items":[{"id":1},{"id":2,"n":3}]}"#,
        r#"{"meta":{},"items":[{"id":1},{"n":3}]}"#
    ));
    assert!(!same(&["/items/1/id"], r#"{"items":[{"id":1},{"id":2}]}"#, r#"{"items":[{"id":9},{"id":2}]}"#));
    assert!(same(&["/0"], r#"[{"a":[1,{}]},2]"#, r#"["x",2]"#));
    assert!(same(&["/0"], r#"[[{"a":{"b":{}}},"]"],{"c":2}]"#, r#"["x",{"c":2}]"#));
    assert!(!same(&["/0"], "[1,2]", "[1,3]"));
    assert!(same(&["/a~1b/m~0n"], r#"{"a/b":{"m~n":1}}"#, r#"{"a/b":{"m~n":2}}"#));
    assert!(same(&["/a", "/a/b"], r#"{"a":{"c":1}}"#, "{}"));
    assert!(same(&[""], "[1]", "{}"));
    // What does not count must still be readable in one way only.
    assert!(digest_without(&["/a"], br#"{"a":{"b":1,"b":2}}"#).is_err());
}

#[test]
fn hostile_bodies_end_in_a_fault_or_in_time() {
    let nest = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    digest(&nest(512));
    digest(&format!("{}1{}", r#"{"a":"#.repeat(512), "}".repeat(512)));
    assert_eq!(digest_without(&[], nest(513).as_bytes()), Err(JsonFault::TooDeep { at: 512 }));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(513), "}".repeat(513));
    assert_eq!(digest_without(&[], objects.as_bytes()), Err(JsonFault::TooDeep { at: 512 * 5 }));
    assert!(digest_without(&[], "[".repeat(1 << 20).as_bytes()).is_err());
    // Square time would take minutes for each of these.
    let many: Vec<String> = (0..50_000).rev().map(|number| format!("\"{number}\":{{}}")).collect();
    digest(&format!("{{{}}}", many.join(",")));
    let long = "x".repeat(1 << 18);
    digest(&format!("{{\"{long}\":0,\"{long}\\u0061\":0,{}}}", many.join(",")));
    digest(&format!("{}{}{}", "[".repeat(500), vec!["[{}]"; 50_000].join(","), "]".repeat(500)));
}

#[derive(Clone, Debug, PartialEq)]
enum Tree {
    Word(&'static str),
    Number(String),
    Text(String),
    List(Vec<Tree>),
    Object(BTreeMap<String, Tree>),
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["true", "false", "null"]).prop_map(Tree::Word),
        "-?(0|[1-9][0-9]{0,2})(\\.[0-9]{1,2})?(e-?[0-9])?".prop_map(Tree::Number),
        "[a-c\"\\\\\n/é😀]{0,3}".prop_map(Tree::Text),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::List),
            prop::collection::btree_map("[a-c\"\\\\é😀]{0,2}", inner, 0..4).prop_map(Tree::Object),
        ]
    })
}

/// Writes a tree in one of many ways; `dice` chooses.
fn write(tree: &Tree, dice: &mut impl FnMut(usize) -> usize) -> String {
    let space = |dice: &mut dyn FnMut(usize) -> usize| ["", "", " ", "\n\t"][dice(4)];
    let (before, after) = (space(dice), space(dice));
    let inside = match tree {
        Tree::Word(word) => (*word).to_owned(),
        Tree::Number(text) => text.clone(),
        Tree::Text(text) => quote(text, dice),
        Tree::List(elements) => {
            let elements: Vec<String> = elements.iter().map(|element| write(element, dice)).collect();
            format!("[{}]", elements.join(","))
        }
        Tree::Object(members) => {
            let mut members: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{before}{}{after}:{}", quote(name, dice), write(value, dice)))
                .collect();
            if !members.is_empty() {
                let by = dice(members.len());
                members.rotate_left(by);
            }
            if dice(2) == 1 {
                members.reverse();
            }
            format!("{{{}}}", members.join(","))
        }
    };
    format!("{before}{inside}{after}")
}

fn quote(text: &str, dice: &mut impl FnMut(usize) -> usize) -> String {
    let escaped: String = text
        .chars()
        .map(|character| match (character, dice(3)) {
            ('\n', 0 | 1) => "\\n".to_owned(),
            ('"' | '\\' | '/', 0 | 1) => format!("\\{character}"),
            ('"' | '\\' | '\n', _) | (_, 2) => {
                character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
            }
            _ => character.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

/// A dice that throws the same numbers for the same seed (a linear congruence is good enough here).
fn dice(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |sides| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % sides
    }
}

/// Changes one thing in a tree.
fn change(tree: &mut Tree, dice: &mut impl FnMut(usize) -> usize) {
    match tree {
        Tree::Word(word) => *word = if *word == "true" { "false" } else { "true" },
        Tree::Number(text) => text.push_str(if text.contains(['.', 'e']) { "1" } else { ".0" }),
        Tree::Text(text) => text.push('d'),
        Tree::List(elements) if elements.is_empty() || dice(3) == 0 => elements.push(Tree::Word("null")),
        Tree::List(elements) => {
            let at = dice(elements.len());
            change(&mut elements[at], dice);
        }
        Tree::Object(members) if members.is_empty() || dice(3) == 0 => {
            members.insert("new".to_owned(), Tree::Word("null"));
        }
        Tree::Object(members) => {
            let at = dice(members.len());
            if let Some(value) = members.values_mut().nth(at) {
                change(value, dice);
            }
        }
    }
}

/// The canonical form by its definition: sorted members, decoded strings, the text of numbers.
fn canonical(tree: &Tree, out: &mut Vec<u8>) {
    let text = |mark: u8, text: &str, out: &mut Vec<u8>| {
        out.push(mark);
        out.extend_from_slice(text.as_bytes());
        out.push(0xFF);
    };
    match tree {
        Tree::Word(word) => out.push(word.as_bytes()[0]),
        Tree::Number(number) => text(b'#', number, out),
        Tree::Text(string) => text(b'"', string, out),
        Tree::List(elements) => {
            out.push(b'[');
            elements.iter().for_each(|element| canonical(element, out));
            out.push(b']');
        }
        Tree::Object(members) => {
            out.push(b'{');
            for (name, value) in members {
                text(b'"', name, out);
                canonical(value, out);
            }
            out.push(b'}');
        }
    }
}

proptest! {
    #[test]
    fn the_form_is_the_one_defined(tree in tree(), seed: u64) {
        let mut form = Vec::new();
        canonical(&tree, &mut form);
        let mut transcript = Transcript::new();
        transcript.tag(tag::JSON);
        transcript.raw(&form);
        prop_assert_eq!(digest(&write(&tree, &mut dice(seed))), transcript.finish());
    }

    #[test]
    fn the_form_depends_on_the_meaning_alone(tree in tree(), one: u64, other: u64) {
        let (a, b) = (write(&tree, &mut dice(one)), write(&tree, &mut dice(other)));
        prop_assert_eq!(digest(&a), digest(&b), "{} {}", a, b);
    }

    #[test]
    fn any_change_of_a_value_shows(tree in tree(), seed: u64) {
        let mut changed = tree.clone();
        change(&mut changed, &mut dice(seed));
        prop_assert_ne!(digest(&write(&tree, &mut dice(seed))), digest(&write(&changed, &mut dice(seed))));
    }

    #[test]
    fn two_bodies_have_one_form_only_if_they_mean_the_same(a in tree(), b in tree(), seed: u64) {
        prop_assert_eq!(digest(&write(&a, &mut dice(seed))) == digest(&write(&b, &mut dice(!seed))), a == b);
    }

    #[test]
    fn it_takes_for_json_what_another_reader_does(body in "[\\[\\]{}:,\"\\\\ntruefalsu0-1.eE+ ]{0,12}") {
        let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok();
        let ours = !matches!(digest_without(&[], body.as_bytes()), Ok(None));
        prop_assert_eq!(ours, theirs, "{}", body);
    }

    #[test]
    fn a_broken_body_is_judged_as_another_reader_does(tree in tree(), seed: u64, at: usize, byte: u8) {
        let mut body = write(&tree, &mut dice(seed)).into_bytes();
        let at = at % body.len();
        body[at] = byte;
        let theirs = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok() && std::str::from_utf8(&body).is_ok();
        let ours = !matches!(digest_without(&[], &body), Ok(None));
        prop_assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(&body));
    }
}
