//! Single values: durations, sizes, numbers, names. Each is parsed here and printed here, so that the two agree.
//!
//! Every refusal says what would be right. Addresses and URLs have files of their own.

use std::time::Duration;

use http::Method;
use http::header::HeaderName;
use toml::de::DeValue;

use super::mistakes::{Wrong, nearest, nearest_within, wrong};
use super::tree::shown;

/// The longest duration: ten years. Beyond it, arithmetic on clocks might overflow, and nobody means it.
pub(super) const LONGEST: Duration = Duration::from_secs(3650 * 24 * 3600);

const DURATION_UNITS: [(&str, u64); 5] =
    [("d", 24 * 3_600_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Parses `"250ms"`, `"30s"`, `"5m"`, `"24h"`, `"30d"`: whole numbers, one unit.
pub(super) fn duration(text: &str) -> Result<Duration, Wrong> {
    let right = "write a whole number and one of ms, s, m, h, d, such as \"250ms\", \"30s\" or \"24h\"";
    let millis = quantity(text, &DURATION_UNITS).ok_or_else(|| wrong(format!("{text:?} is not a duration"), right))?;
    let duration = Duration::from_millis(millis);
    if duration > LONGEST {
        return Err(wrong(format!("{text:?} is too long"), "at most \"3650d\""));
    }
    Ok(duration)
}

/// Parses a duration of at least `least`.
pub(super) fn at_least(least: Duration) -> impl Fn(&str) -> Result<Duration, Wrong> {
    move |text| match duration(text)? {
        short if short < least => {
            Err(wrong(format!("{text:?} is too short"), format!("at least \"{}\"", print_duration(least))))
        }
        long => Ok(long),
    }
}

/// Parses a duration or `"never"`.
pub(super) fn duration_or_never(text: &str) -> Result<Option<Duration>, Wrong> {
    if text == "never" {
        return Ok(None);
    }
    let parsed = at_least(Duration::from_secs(1))(text);
    parsed.map(Some).map_err(|what| Wrong { right: format!("{}, or \"never\"", what.right), ..what })
}

/// A duration as it is written in a file: the largest unit that leaves no fraction.
pub(super) fn print_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 { "0s".to_owned() } else { print_quantity(millis, &DURATION_UNITS) }
}

/// Parses `"64KiB"`, `"8MiB"`: whole numbers, one unit, from `least` to `most` bytes.
pub(super) fn size(least: u64, most: u64) -> impl Fn(&str) -> Result<usize, Wrong> {
    move |text| {
        let right = "write a whole number and one of B, KiB, MiB, GiB, such as \"64KiB\" or \"8MiB\"";
        let bytes = quantity(text, &SIZE_UNITS).ok_or_else(|| wrong(format!("{text:?} is not a size"), right))?;
        match usize::try_from(bytes) {
            Ok(size) if (least..=most).contains(&bytes) => Ok(size),
            _ => Err(wrong(
                format!("{text:?} is out of range"),
                format!("from \"{}\" to \"{}\"", print_size(least), print_size(most)),
            )),
        }
    }
}

/// A size as it is written in a file.
pub fn print_size(bytes: u64) -> String {
    if bytes == 0 { "0B".to_owned() } else { print_quantity(bytes, &SIZE_UNITS) }
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn print_quantity(amount: u64, units: &[(&str, u64)]) -> String {
    let unit = units.iter().find(|(_, factor)| amount.is_multiple_of(*factor));
    unit.map_or_else(|| amount.to_string(), |(name, factor)| format!("{}{name}", amount / factor))
}

/// Parses a whole number from `least` to `most`.
pub(super) fn count(least: usize, most: usize) -> impl Fn(&DeValue<'_>) -> Result<usize, Wrong> {
    move |value| {
        let right = format!("write a whole number from {least} to {most}, without quotes");
        let number = value.as_integer().and_then(|number| usize::from_str_radix(number.as_str(), number.radix()).ok());
        match number {
            Some(number) if (least..=most).contains(&number) => Ok(number),
            Some(number) => Err(wrong(format!("{number} is out of range"), right)),
            None => Err(wrong(format!("{} is not a whole number", shown(value)), right)),
        }
    }
}

/// Parses a part of a whole, from 0 to 1.
pub(super) fn part(value: &DeValue<'_>) -> Result<f64, Wrong> {
    let right = "write a number from 0 to 1, such as 0.1, without quotes";
    let text = value.as_float().map(|number| number.as_str()).or(value.as_integer().map(|number| number.as_str()));
    match text.and_then(|text| text.replace('_', "").parse::<f64>().ok()) {
        Some(part) if (0.0..=1.0).contains(&part) => Ok(part),
        Some(part) => Err(wrong(format!("{part} is out of range"), right)),
        None => Err(wrong(format!("{} is not a number", shown(value)), right)),
    }
}

/// Parses the name of a service, as collectors show it.
pub(super) fn service_name(text: &str) -> Result<String, Wrong> {
    if (1..=255).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(wrong(format!("{text:?} is not a name"), "write 1 to 255 bytes without control characters"))
}

/// Parses one of several words.
pub(super) fn choice<T: Copy>(words: &[(&str, T)]) -> impl Fn(&str) -> Result<T, Wrong> {
    move |text| chosen(words, text, nearest(text, words.iter().map(|(word, _)| *word)))
}

/// Parses one of several names. One that differs in more than a letter may be another's name: gitlab is not github.
pub(super) fn choice_of_names<T: Copy>(names: &[(&str, T)]) -> impl Fn(&str) -> Result<T, Wrong> {
    move |text| chosen(names, text, nearest_within(1, text, names.iter().map(|(name, _)| *name)))
}

fn chosen<T: Copy>(words: &[(&str, T)], text: &str, near: Option<&str>) -> Result<T, Wrong> {
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
        let right = match near {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => one_of(words.iter().map(|(word, _)| *word)),
        };
        wrong(format!("{text:?} is not a choice"), right)
    })
}

/// The word for a value that [`choice`] parses.
pub(super) fn word<T: PartialEq>(words: &'static [(&'static str, T)], value: &T) -> &'static str {
    words.iter().find(|(_, candidate)| candidate == value).map_or("", |(word, _)| word)
}

fn one_of<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.map(|word| format!("\"{word}\"")).collect();
    format!("write one of {}", quoted.join(", "))
}

/// Parses a route's name.
pub(super) fn route_name(text: &str) -> Result<String, Wrong> {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(wrong(format!("{text:?} is not a name"), "1 to 64 characters of a-z, 0-9, - and _"))
}

/// Parses the host that a route takes; lower-case, without port, and without the root's dot at its end.
pub(super) fn route_host(text: &str) -> Result<String, Wrong> {
    let right = "write a host without scheme and port, such as \"api.example.com\"";
    match super::address::host_and_port(text) {
        Ok((host, None)) if host.contains(':') => Ok(format!("[{host}]")),
        Ok((host, None)) => Ok(host.trim_end_matches('.').to_owned()),
        _ => Err(wrong(format!("{text:?} is not a host"), right)),
    }
}

/// Parses the path prefix that a route takes.
pub(super) fn route_path(text: &str) -> Result<String, Wrong> {
    let right = "write a path that begins with /, such as \"/v1/\", as it stands in requests";
    let dotted = text.split('/').any(|segment| segment == "." || segment == "..");
    let visible = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#');
    if text.starts_with('/') && visible && !dotted && !text.contains("//") {
        return Ok(text.to_owned());
    }
    Err(wrong(format!("{text:?} is not a path prefix"), right))
}

/// Parses a method that can be protected. CONNECT has no response to record, TRACE must have no effect (RFC 9110, 9.3.8).
pub(super) fn method(text: &str) -> Result<Method, Wrong> {
    let upper = text.to_ascii_uppercase();
    if matches!(upper.as_str(), "CONNECT" | "TRACE") {
        return Err(wrong(format!("{upper} cannot be protected"), "take it out"));
    }
    match Method::from_bytes(text.as_bytes()) {
        Ok(method) if text == upper => Ok(method),
        Ok(_) => Err(wrong(format!("{text:?} is not a method"), format!("did you mean \"{upper}\"?"))),
        Err(_) => Err(wrong(format!("{text:?} is not a method"), "write a method such as \"POST\"")),
    }
}

/// Parses the name of a field that belongs to the request itself, not to its connection (RFC 9110, 7.6.1).
pub(super) fn field_name(text: &str) -> Result<HeaderName, Wrong> {
    let name = HeaderName::from_bytes(text.as_bytes())
        .map_err(|_| wrong(format!("{text:?} is not a field name"), "write a name such as \"X-Account-Id\""))?;
    let of_connection = matches!(
        name.as_str(),
        "connection"
            | "content-length"
            | "expect"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    );
    if of_connection {
        let wrong_ = format!("{text:?} belongs to the connection and changes between retries");
        return Err(wrong(wrong_, "name a field that the sender sets for the request"));
    }
    Ok(name)
}

/// Parses the name of a field that is recorded only when it is listed.
pub(super) fn kept_field(text: &str) -> Result<HeaderName, Wrong> {
    let name = field_name(text)?;
    if matches!(name.as_str(), "set-cookie" | "www-authenticate" | "proxy-authenticate") {
        return Ok(name);
    }
    Err(wrong(
        format!("{text:?} is recorded without being listed"),
        "take it out; only Set-Cookie, WWW-Authenticate and Proxy-Authenticate need it",
    ))
}

/// Parses a media type, which is written without parameters and compared in lower case (RFC 9110 section 8.3.1).
pub(super) fn media_type(text: &str) -> Result<String, Wrong> {
    let right = "write a media type such as \"text/event-stream\", without parameters";
    let is_token = |part: &str| {
        let takes = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte);
        !part.is_empty() && part.bytes().all(takes)
    };
    match text.split_once('/') {
        Some((kind, subtype)) if is_token(kind) && is_token(subtype) => Ok(text.to_ascii_lowercase()),
        _ => Err(wrong(format!("{text:?} is not a media type"), right)),
    }
}

/// Parses a JSON pointer to a member (RFC 6901).
pub(super) fn json_pointer(text: &str) -> Result<String, Wrong> {
    let right = "write a JSON pointer such as \"/data/id\", with ~1 for / and ~0 for ~ inside a name";
    let escaped = text.split('~').skip(1).all(|rest| rest.starts_with('0') || rest.starts_with('1'));
    if text.len() > 1 && text.starts_with('/') && escaped {
        return Ok(text.to_owned());
    }
    Err(wrong(format!("{text:?} is not a JSON pointer"), right))
}
