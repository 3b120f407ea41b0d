//! A place in a trace: its id, a span's id and the flags, as the field `traceparent` carries them (W3C Trace Context).
//!
//! `tracestate` and `baggage` are not read: they are passed on as they are.

use std::fmt;

/// Bytes of a context in the form of a field's value.
pub const TEXT: usize = 55;

const SAMPLED: u8 = 0x01;
/// The trace id is random (level 2); to be passed on.
const RANDOM: u8 = 0x02;

/// A place in a trace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Context {
    trace: [u8; 16],
    span: [u8; 8],
    flags: u8,
}

impl Context {
    /// The beginning of a new trace, sampled with this probability.
    pub fn root(sample: f64) -> Context {
        let mut trace = [0; 16];
        fill(&mut trace);
        // The last 7 bytes are those that other samplers decide by too (level 2, section 4.2.3.3).
        let mut low = [0; 8];
        low[1..].copy_from_slice(&trace[9..]);
        let position = u64::from_be_bytes(low) as f64 / (1_u64 << 56) as f64;
        let flags = if position < sample { SAMPLED } else { 0 };
        Context { trace, span: fresh_span(), flags }
    }

    /// A new span of the same trace.
    pub fn child(&self) -> Context {
        Context { span: fresh_span(), ..*self }
    }

    /// Reads a field's value. `None` if it is malformed, or of the version that there will never be: then the trace
    /// begins anew. Later versions are read as far as this one goes (section 4.3).
    pub fn parse(text: &[u8]) -> Option<Context> {
        let (head, rest) = text.split_at_checked(TEXT)?;
        let version = byte(&head[..2])?;
        let ends = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        if !ends || [head[2], head[35], head[52]] != *b"---" {
            return None;
        }
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        bytes(&head[3..35], &mut trace)?;
        bytes(&head[36..52], &mut span)?;
        let flags = byte(&head[53..])? & (SAMPLED | RANDOM);
        (trace != [0; 16] && span != [0; 8]).then_some(Context { trace, span, flags })
    }

    /// The value of the field.
    pub fn to_text(&self) -> [u8; TEXT] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        for (bytes, at) in [(&self.trace[..], 3), (&self.span[..], 36), (&[self.flags][..], 53)] {
            for (byte, place) in bytes.iter().zip(text[at..].chunks_exact_mut(2)) {
                place.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
            }
        }
        text
    }

    /// The trace's id.
    pub fn trace_id(&self) -> &[u8; 16] {
        &self.trace
    }

    /// The span's id.
    pub fn span_id(&self) -> &[u8; 8] {
        &self.span
    }

    /// The flags: 1 is sampled, 2 is a random trace id.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Whether its spans are sent to the collector.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The trace's id as logs and collectors show it.
    pub fn shown_trace(&self) -> impl fmt::Display + fmt::Debug + use<> {
        let text = self.to_text();
        String::from_utf8_lossy(&text[3..35]).into_owned()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.to_text()))
    }
}

fn fresh_span() -> [u8; 8] {
    let mut span = [0; 8];
    fill(&mut span);
    span
}

/// All zeros would be no id, and is as likely as never.
fn fill(id: &mut [u8]) {
    getrandom::fill(id).expect("the system has random bytes once it is up");
}

fn digit(value: u8) -> u8 {
    b"0123456789abcdef"[usize::from(value)]
}

/// Lower case only, as the standard has it.
fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

fn byte(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else { return None };
    Some(value(*high)? << 4 | value(*low)?)
}

fn bytes(digits: &[u8], into: &mut [u8]) -> Option<()> {
    for (pair, place) in digits.chunks_exact(2).zip(into) {
        *place = byte(pair)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_written_is_what_was_read() {
        let read = Context::parse(USUAL.as_bytes()).unwrap();
        assert_eq!(&read.to_text()[..], USUAL.as_bytes());
        assert_eq!(read.shown_trace().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert!(read.is_sampled());
        let made = Context::root(0.5);
        assert_eq!(Context::parse(&made.to_text()), Some(made));
    }

    #[test]
    fn later_versions_are_read_and_passed_on_as_this_one() {
        for later in ["cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", &USUAL.replacen("00", "01", 1)] {
            for rest in ["", "-", "-what-the-future-will-be-like"] {
                let read = Context::parse(format!("{later}{rest}").as_bytes()).unwrap();
                assert_eq!(&read.to_text()[..2], b"00");
                assert!(read.flags() <= 3);
            }
        }
    }

    #[test]
    fn malformed_ones_are_none() {
        let zero_trace = USUAL.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        let zero_span = USUAL.replace("b7ad6b7169203331", &"0".repeat(16));
        for text in [
            "",
            &USUAL[..54],
            &format!("{USUAL}-"),
            &format!("{USUAL} "),
            &format!("ff{}", &USUAL[2..]),
            &format!("01{}.", &USUAL[2..]),
            &USUAL.to_uppercase(),
            &USUAL.replace('-', "_"),
            &USUAL.replace("b7ad", "b7xd"),
            &zero_trace,
            &zero_span,
        ] {
            assert_eq!(Context::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn the_part_that_is_sampled_is_the_part_that_was_asked_for() {
        let sampled = |part: f64| (0..4000).filter(|_| Context::root(part).is_sampled()).count();
        assert_eq!((sampled(0.0), sampled(1.0)), (0, 4000));
        // 20 standard deviations to either side.
        assert!((400..1600).contains(&sampled(0.25)));
    }
}
