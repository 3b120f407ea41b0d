//! The template of what a sender signs: text with `{body}`, `{timestamp}` and `{id}` in it.

use super::mistakes::{Wrong, wrong};
use super::verify::SignedPart;

const PARTS: [(&str, SignedPart); 3] =
    [("{body}", SignedPart::Body), ("{timestamp}", SignedPart::Timestamp), ("{id}", SignedPart::Id)];

/// Parses a template. The body must be in it: whoever sees one signature could otherwise send another body with it.
pub(super) fn template(text: &str) -> Result<Vec<SignedPart>, Wrong> {
    let right = "write what is signed with {body}, {timestamp} and {id} in it, such as \"{timestamp}.{body}\"";
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(open) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(open);
        let Some((name, part)) = PARTS.iter().find(|(name, _)| from.starts_with(name)) else {
            return Err(wrong(format!("{text:?} has a brace that begins or ends no part of a delivery"), right));
        };
        if !before.is_empty() {
            parts.push(SignedPart::Text(before.to_owned()));
        }
        parts.push(part.clone());
        rest = &from[name.len()..];
    }
    if !rest.is_empty() {
        parts.push(SignedPart::Text(rest.to_owned()));
    }
    match parts.contains(&SignedPart::Body) {
        true => Ok(parts),
        false => Err(wrong(format!("{text:?} leaves the body out, so any body would pass"), right)),
    }
}

/// A template as it is written in a file.
pub(super) fn print_template(parts: &[SignedPart]) -> String {
    let text = |part: &SignedPart| match part {
        SignedPart::Text(text) => text.clone(),
        part => PARTS.iter().find(|(_, known)| known == part).map_or_else(String::new, |(name, _)| (*name).to_owned()),
    };
    parts.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_reads_back() {
        for text in ["{body}", "v0:{timestamp}:{body}", "{id}.{timestamp}.{body}", "{body}{body}x"] {
            assert_eq!(print_template(&template(text).unwrap()), text);
        }
        for text in ["", "{timestamp}", "{body", "body}", "{bodies}", "{body}{}", "{body}}"] {
            assert!(template(text).is_err(), "{text}");
        }
    }
}
