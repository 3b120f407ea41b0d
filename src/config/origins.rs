//! The origins of pages: `scheme://host[:port]`, as browsers write them in the field `Origin` (RFC 6454 section 6.2).
//!
//! They are compared byte for byte, so a spelling that no browser sends is a mistake here and not a page that reads nothing.

use super::address::host_and_port;
use super::mistakes::{Wrong, wrong};

/// Parses an entry of `cors_origins`.
pub(super) fn origin(text: &str) -> Result<String, Wrong> {
    let right = "write scheme://host, with :port if it is not the scheme's own, such as \"https://shop.example\"";
    match text {
        "*" => {
            let why = "\"*\" would let the pages of every site read these answers with their visitors' credentials";
            return Err(wrong(why, "name the origins of your pages, such as \"https://shop.example\""));
        }
        "null" => {
            let why = "\"null\" is the origin of every sandboxed frame and local file, whoever made it";
            return Err(wrong(why, "name the origins of your pages, such as \"https://shop.example\""));
        }
        _ => {}
    }
    let no_origin = || wrong(format!("{text:?} is not an origin"), right);
    let (scheme, authority) = text.split_once("://").ok_or_else(no_origin)?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    if !is_scheme || authority.is_empty() {
        return Err(no_origin());
    }
    if let Some(end) = authority.find(['/', '?', '#']) {
        let what = format!("{text:?} has something behind its host");
        return Err(wrong(what, format!("an origin ends there: write \"{scheme}://{}\"", &authority[..end])));
    }
    if !text.is_ascii() {
        return Err(wrong(format!("{text:?} is not as browsers send it"), "write the host in ASCII (xn--…)"));
    }
    let (_, port) = host_and_port(authority).map_err(|()| no_origin())?;
    let own_port = match (scheme.to_ascii_lowercase().as_str(), port) {
        ("http", Some(80)) => ":80",
        ("https", Some(443)) => ":443",
        _ => "",
    };
    let sent = text.to_ascii_lowercase();
    let sent = sent.strip_suffix(own_port).unwrap_or(&sent);
    if sent == text {
        return Ok(sent.to_owned());
    }
    Err(wrong(
        format!("{text:?} is not as browsers send it, and would never be found equal"),
        format!("write {sent:?}"),
    ))
}
