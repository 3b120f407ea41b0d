//! The objects of the admin calls: a record as JSON, and an operator's finding read from JSON and checked.
//!
//! The names of members are part of the contract with operators' scripts; nothing in the store depends on them.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::record::{Finding, Record, RecordId, Response, State, Timestamp, Token};

/// The last millisecond of the year 9999: RFC 3339 has no later times.
const LAST_TIME: u64 = 253_402_300_799_999;
/// The longest note. It is to fit in a log line.
const MAX_NOTE: usize = 1000;
/// The most bytes of names and values of an operator's response: what a replay's head can carry.
const MAX_FIELDS: usize = 64 * 1024;

/// Fields of one connection or of a message's framing. A replay makes its own (RFC 9110 section 7.6.1).
const CONNECTION_FIELDS: [&str; 10] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Fields that are meant for the first caller alone: recorded only where the route lists them.
const PERSONAL_FIELDS: [&str; 2] = ["set-cookie", "www-authenticate"];

/// A record as operators see it; members that do not apply are null.
pub(super) fn record(id: &RecordId, record: &Record) -> Map<String, Value> {
    let lease_until = match record.state {
        State::Claimed { lease_until } => Some(lease_until),
        _ => None,
    };
    let reason = match record.state {
        State::Unknown { reason, .. } => Some(reason.as_str()),
        _ => None,
    };
    let members = [
        ("id", json!(id.to_string())),
        ("route", json!(id.route())),
        ("state", json!(record.state.as_str())),
        ("token", json!(record.token.to_string())),
        ("attempts", json!(record.attempts)),
        ("claimed_at", json!(time(record.claimed_at))),
        ("lease_until", json!(lease_until.map(time))),
        // Once the answer is known, nothing is being listened for.
        ("abandon_at", json!(record.is_open().then(|| time(record.abandon_at)))),
        ("expires_at", json!(record.expires_at().map(time))),
        ("reason", json!(reason)),
        ("original_status", json!(record.original_status())),
    ];
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A moment in RFC 3339, in UTC with milliseconds.
pub(super) fn time(moment: Timestamp) -> String {
    humantime::format_rfc3339_millis(Timestamp(moment.0.min(LAST_TIME)).to_system_time()).to_string()
}

/// What an operator says about an unknown record: the body of `resolve`, checked but for the retention.
#[derive(Debug, PartialEq)]
pub(super) struct Resolution {
    /// The attempt whose record it is.
    pub(super) token: Token,
    /// The answer to replay, `None` for not-executed.
    pub(super) executed: Option<Response>,
    /// Whether not-executed is said although the attempt may still be running.
    pub(super) force: bool,
    /// Why, for the log.
    pub(super) note: Option<String>,
}

impl Resolution {
    /// Reads and checks the body; the error says what would be right.
    pub(super) fn parse(body: &[u8]) -> Result<Resolution, String> {
        let body: ResolveBody = serde_json::from_slice(body).map_err(|error| {
            format!(
                "The body is not as expected: {error}. Right would be {{\"token\": \"…\", \"outcome\": \"not-executed\"}} \
                 or {{\"token\": \"…\", \"outcome\": \"executed\", \"response\": {{\"status\": 201, \"headers\": \
                 [[\"content-type\", \"application/json\"]], \"body\": \"…\"}}}}."
            )
        })?;
        let executed = match (body.outcome, body.response) {
            (Outcome::Executed, Some(response)) => Some(response.check()?),
            (Outcome::NotExecuted, None) => None,
            (Outcome::Executed, None) => {
                return Err("The outcome executed needs a response: duplicates are answered with it.".to_owned());
            }
            (Outcome::NotExecuted, Some(_)) => {
                return Err("The outcome not-executed takes no response: the key is free again.".to_owned());
            }
        };
        let token = parse_token(&body.token)?;
        let note = body.note.map(check_note).transpose()?;
        Ok(Resolution { token, executed, force: body.force, note })
    }

    /// Refuses fields that say who the first caller was, unless the record's route keeps them: whoever repeats the request
    /// would be given the cookie that an operator copied from a log.
    pub(super) fn check_kept(&self, kept: &[HeaderName]) -> Result<(), String> {
        let names = self.executed.iter().flat_map(Response::headers).map(|(name, _)| name);
        let personal = |name: &&[u8]| PERSONAL_FIELDS.iter().any(|field| field.as_bytes() == *name);
        let is_kept = |name: &[u8]| kept.iter().any(|kept| kept.as_str().as_bytes() == name);
        match names.filter(personal).find(|name| !is_kept(name)) {
            None => Ok(()),
            Some(name) => Err(format!(
                "The header {} is not recorded: the route does not list it under keep_headers. Leave it out.",
                String::from_utf8_lossy(name)
            )),
        }
    }

    /// The finding for the store, with how long a response is kept.
    pub(super) fn finding(&self, retention: Duration) -> Finding {
        match &self.executed {
            Some(response) => Finding::Executed { response: response.clone(), retention },
            None => Finding::NotExecuted,
        }
    }
}

/// The token as shown with the record.
pub(super) fn parse_token(text: &str) -> Result<Token, String> {
    text.parse().map_err(|_| "The token must be the UUID that the record shows as token.".to_owned())
}

/// A note that can stand in a log line.
pub(super) fn check_note(note: String) -> Result<String, String> {
    if note.len() > MAX_NOTE || note.chars().any(char::is_control) {
        return Err(format!("The note must be one line of at most {MAX_NOTE} bytes."));
    }
    Ok(note)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResolveBody {
    token: String,
    outcome: Outcome,
    response: Option<GivenResponse>,
    #[serde(default)]
    force: bool,
    note: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    Executed,
    NotExecuted,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenResponse {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    body: Option<String>,
    body_base64: Option<String>,
}

impl GivenResponse {
    fn check(self) -> Result<Response, String> {
        if !(200..=599).contains(&self.status) {
            return Err(format!("The status of the response must be 200 to 599, not {}.", self.status));
        }
        let body = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => {
                return Err("Give the response's body as body or as body_base64, not both.".to_owned());
            }
            (Some(text), None) => Bytes::from(text),
            (None, Some(text)) => STANDARD
                .decode(&text)
                .map(Bytes::from)
                .map_err(|error| format!("body_base64 is not base64: {error}."))?,
            (None, None) => Bytes::new(),
        };
        if matches!(self.status, 204 | 205 | 304) && !body.is_empty() {
            return Err(format!("A response with status {} has no body (RFC 9110 section 6.4).", self.status));
        }
        let fields = self.headers.iter().map(check_field).collect::<Result<Vec<_>, _>>()?;
        if fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() > MAX_FIELDS {
            return Err(format!("The response's headers may have {MAX_FIELDS} bytes together."));
        }
        let lines = fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
        // An empty body is a body: None would say that it was too large to keep.
        Ok(Response::new(self.status, lines, [], Some(body)))
    }
}

fn check_field((name, value): &(String, String)) -> Result<(HeaderName, HeaderValue), String> {
    let parsed =
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is not the name of a header."))?;
    if CONNECTION_FIELDS.contains(&parsed.as_str()) {
        return Err(format!("The header {parsed} is not recorded: a replay makes its own. Leave it out."));
    }
    let value = HeaderValue::from_bytes(value.trim_matches([' ', '\t']).as_bytes())
        .map_err(|_| format!("The value of the header {parsed} has a character that no header value may have."))?;
    Ok((parsed, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "6f2c1d1e-6a3b-4c59-9c61-0d8e7d0f4a11";

    fn parse(body: &Value) -> Result<Resolution, String> {
        Resolution::parse(body.to_string().as_bytes())
    }

    fn executed(response: &Value) -> Value {
        json!({"token": TOKEN, "outcome": "executed", "response": response})
    }

    #[test]
    fn reads_both_outcomes() {
        let not =
            parse(&json!({"token": TOKEN, "outcome": "not-executed", "force": true, "note": "asked them"})).unwrap();
        assert_eq!(not.finding(Duration::ZERO), Finding::NotExecuted);
        assert_eq!((not.token.to_string().as_str(), not.force, not.note.as_deref()), (TOKEN, true, Some("asked them")));

        let body = executed(&json!({"status": 201, "headers": [["Content-Type", " a/b "], ["x", "ä"], ["x", "2"]],
            "body_base64": "AP8="}));
        let Finding::Executed { response, retention } = parse(&body).unwrap().finding(Duration::from_secs(5)) else {
            panic!("not executed");
        };
        assert_eq!((response.status(), retention), (201, Duration::from_secs(5)));
        let lines: Vec<_> = response.headers().collect();
        assert_eq!(lines, [(&b"content-type"[..], &b"a/b"[..]), (b"x", "ä".as_bytes()), (b"x", b"2")]);
        assert_eq!(response.body().unwrap().as_ref(), b"\x00\xff");
        assert_eq!(response.trailers().count(), 0);
    }

    #[test]
    fn no_body_is_an_empty_one_not_one_that_was_not_kept() {
        let response = parse(&executed(&json!({"status": 204}))).unwrap().executed.unwrap();
        assert_eq!(response.body(), Some(&Bytes::new()));
    }

    #[test]
    fn says_what_would_be_right() {
        for (body, says) in [
            (json!([]), "Right would be"),
            (json!({"token": TOKEN}), "missing field `outcome`"),
            (json!({"token": TOKEN, "outcome": "maybe"}), "expected `executed` or `not-executed`"),
            (json!({"token": TOKEN, "outcome": "not-executed", "forced": true}), "unknown field `forced`"),
            (json!({"token": "x", "outcome": "not-executed"}), "must be the UUID"),
            (json!({"token": TOKEN, "outcome": "executed"}), "needs a response"),
            (json!({"token": TOKEN, "outcome": "not-executed", "response": {"status": 200}}), "takes no response"),
            (json!({"token": TOKEN, "outcome": "not-executed", "note": "a\nb"}), "one line"),
            (json!({"token": TOKEN, "outcome": "not-executed", "note": "n".repeat(1001)}), "one line"),
            (executed(&json!({"status": 199})), "must be 200 to 599, not 199"),
            (executed(&json!({"status": 600})), "must be 200 to 599, not 600"),
            (executed(&json!({"status": 204, "body": "x"})), "has no body"),
            (executed(&json!({"status": 200, "body": "x", "body_base64": "eA=="})), "not both"),
            (executed(&json!({"status": 200, "body_base64": "*"})), "not base64"),
            (executed(&json!({"status": 200, "headers": [["Content-Length", "3"]]})), "content-length is not recorded"),
            (executed(&json!({"status": 200, "headers": [["TE", "trailers"]]})), "te is not recorded"),
            (executed(&json!({"status": 200, "headers": [["a b", "3"]]})), "not the name of a header"),
            (executed(&json!({"status": 200, "headers": [["a", "x\r\ny: z"]]})), "no header value may have"),
            (executed(&json!({"status": 200, "headers": [["a", "x".repeat(70_000)]]})), "65536 bytes together"),
        ] {
            let error = parse(&body).expect_err(&body.to_string());
            assert!(error.contains(says), "{error:?} does not say {says:?}");
        }
    }

    #[test]
    fn times_are_rfc_3339_however_late() {
        assert_eq!(time(Timestamp(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
        assert_eq!(time(Timestamp(u64::MAX)), "9999-12-31T23:59:59.999Z");
    }
}
