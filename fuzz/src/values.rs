//! Single settings: durations, sizes, status lists, names, addresses, URLs, key sources and the like.
//!
//! The first byte of the input names the setting, the rest is the text that it is set to. So an input reaches the parser
//! of one value without having to be a whole file first.

use onceproxy::config::{self, Sources};

use super::settings::{accepted, refused};

/// Settings of the whole file. `@` stands for the value.
const OUTER: [&str; 12] = [
    "listen = @",
    "drain_timeout = @",
    "drain_delay = @",
    "[store]\nurl = @",
    "[store]\nprefix = @",
    "[store]\ntimeout = @",
    "[limits]\nbuffered = @",
    "[limits]\nheader_bytes = @",
    "[limits]\nidle_timeout = @",
    "[admin]\nlisten = @\ntoken = \"0123456789abcdef0123456789abcdef\"",
    "[admin]\ntoken = @",
    "[egress]\nallow = [@]",
];

/// Settings of a route.
const OF_ROUTE: [&str; 30] = [
    "host = @",
    "path = @",
    "methods = [@]",
    "key = [@]",
    "key = [[\"header:a\", @]]",
    "scope = [@]",
    "fingerprint.headers = [@]",
    "fingerprint.body = \"json\"\nfingerprint.ignore = [@]",
    "record = [\"2xx\", @]",
    "release = [@]",
    "unknown = [@, \"5xx\"]",
    "keep_headers = [@]",
    "forward_key = @",
    "timeout = @",
    "lease = @",
    "retention = @",
    "unknown_retention = @",
    "max_request_body = @",
    "upstream_proxy = @",
    "preset = @",
    "key_preset = @",
    "idle_timeout = @",
    "replay_to = @",
    "authorize = @",
    "cors_origins = [@]",
    "stream_types = [@]",
    "scope = [\"host\", @, \"path\"]",
    "fingerprint.ignore_query = [@]",
    "verify.preset = @\nverify.secrets = [{ file = \"secret\" }]",
    "verify.hmac.header = \"X-Signature\"\nverify.hmac.signed = @\nverify.secrets = [{ file = \"secret\" }]",
];

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((first, value)) = input.split_first() else { return };
    let Ok(value) = std::str::from_utf8(value) else { return };
    let (number, value) = (usize::from(*first) % (OUTER.len() + OF_ROUTE.len() + 2), quoted(value));
    let route = "[[route]]\nname = \"r\"\n";
    let text = if let Some(line) = OUTER.get(number) {
        format!("{}\n{route}upstream = \"http://u.example\"\n", line.replace('@', &value))
    } else if let Some(line) = OF_ROUTE.get(number - OUTER.len()) {
        format!("{route}upstream = \"http://u.example\"\n{}\n", line.replace('@', &value))
    } else if number % 2 == 0 {
        format!("[egress]\nallow = [\"*.example\"]\n{route}upstream = {value}\n")
    } else {
        format!(
            "[[route]]\nupstream = \"https://u.example\"\nname = {value}\nserver_name = {value}\nca_file = {value}\n"
        )
    };
    match config::load(&Sources::text(text.as_str())) {
        Ok(loaded) => accepted(&text, &loaded),
        Err(mistakes) => refused(&text, &mistakes),
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|character| match character {
            '"' | '\\' => format!("\\{character}"),
            control if control.is_control() => format!("\\u{:04X}", u32::from(control)),
            plain => plain.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}
