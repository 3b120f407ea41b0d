//! An error with everything behind it, in one line: for the log, and for whoever runs a command.
//!
//! Separate because the proxy, the listeners and the commands tell of failures alike, and know nothing of each other.

use std::error::Error;
use std::fmt;

/// Displays an error, and behind it each of its causes.
pub struct Chain<'a>(pub &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        for cause in std::iter::successors(self.0.source(), |&cause| cause.source()) {
            let cause = cause.to_string();
            // Some errors print their cause themselves.
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer: {0}")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("inner: innermost")]
    struct Inner(#[source] fmt::Error);

    #[test]
    fn each_cause_is_told_once() {
        assert_eq!(Chain(&Outer(Inner(fmt::Error))).to_string(), format!("outer: inner: innermost: {}", fmt::Error));
        assert_eq!(Chain(&fmt::Error).to_string(), fmt::Error.to_string());
    }
}
