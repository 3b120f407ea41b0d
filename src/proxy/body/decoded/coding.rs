//! The codings that can be taken off (RFC 9110 section 8.4.1, RFC 7932, RFC 8878), each as a stream that goes on in steps.
//!
//! Strict: a body that ends too early, or goes on behind its end, is not what it says. Readers differ in what they make
//! of such bytes.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::bufread::GzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::io::Read;

/// A body in several pieces of its coding has at most so many of them. Each costs work, and may hold nothing.
const MOST_PIECES: usize = 1024;
/// The largest window of zstd over HTTP (RFC 9659 section 3).
const ZSTD_WINDOW: u64 = 8 << 20;

/// A coding by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy::body) enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// The body is not what its coding says.
#[derive(Debug)]
pub(in crate::proxy::body) struct Malformed;

/// What a step came to.
#[derive(Debug)]
pub(in crate::proxy::body) enum Step {
    /// So many bytes were taken, as far as known, and so many given.
    Read { taken: usize, given: usize },
    /// There is no more.
    Ended,
}

/// A body from which a coding is being taken off.
pub(in crate::proxy::body) trait Stream {
    /// Writes some more of what is inside; `into` has room for at least a byte.
    fn next(&mut self, into: &mut [u8]) -> Result<Step, Malformed>;
}

impl Coding {
    pub(in crate::proxy::body) fn named(name: &[u8]) -> Option<Coding> {
        const NAMES: [(&str, Coding); 5] = [
            ("gzip", Coding::Gzip),
            ("x-gzip", Coding::Gzip),
            ("deflate", Coding::Deflate),
            ("br", Coding::Brotli),
            ("zstd", Coding::Zstd),
        ];
        NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes())).map(|(_, coding)| *coding)
    }

    pub(in crate::proxy::body) fn open(self, body: &[u8]) -> Box<dyn Stream + Send + '_> {
        match self {
            Coding::Gzip => Box::new(Gzip { rest: body, member: None, pieces: 0 }),
            // Meant is the format of zlib, and some send the bare one. The first byte tells them apart: what is 8 in zlib's
            // is nothing that a compressor writes in the other.
            Coding::Deflate => {
                let is_zlib = body.first().is_some_and(|first| first & 15 == 8);
                Box::new(Inflate { rest: body, state: Decompress::new(is_zlib), has_ended: false })
            }
            Coding::Brotli => Box::new(Brotli { body, at: 0, total: 0, state: brotli_state(), has_ended: false }),
            Coding::Zstd => Box::new(Zstd { rest: body, frame: None, idle: Some(zstd_decoder()), pieces: 0 }),
        }
    }
}

fn one_more(pieces: &mut usize) -> Result<(), Malformed> {
    *pieces += 1;
    if *pieces > MOST_PIECES { Err(Malformed) } else { Ok(()) }
}

/// One or several members in a row (RFC 1952 section 2.2).
struct Gzip<'a> {
    rest: &'a [u8],
    member: Option<GzDecoder<&'a [u8]>>,
    pieces: usize,
}

impl Stream for Gzip<'_> {
    fn next(&mut self, into: &mut [u8]) -> Result<Step, Malformed> {
        let Some(member) = &mut self.member else {
            if self.rest.is_empty() && self.pieces > 0 {
                return Ok(Step::Ended);
            }
            one_more(&mut self.pieces)?;
            self.member = Some(GzDecoder::new(self.rest));
            return Ok(Step::Read { taken: 0, given: 0 });
        };
        let before = member.get_ref().len();
        let given = member.read(into).map_err(|_| Malformed)?;
        let taken = before - member.get_ref().len();
        if given == 0 {
            self.rest = member.get_ref();
            self.member = None;
        }
        Ok(Step::Read { taken, given })
    }
}

struct Inflate<'a> {
    rest: &'a [u8],
    state: Decompress,
    has_ended: bool,
}

impl Stream for Inflate<'_> {
    fn next(&mut self, into: &mut [u8]) -> Result<Step, Malformed> {
        if self.has_ended {
            return if self.rest.is_empty() { Ok(Step::Ended) } else { Err(Malformed) };
        }
        let before = (self.state.total_in(), self.state.total_out());
        let status = self.state.decompress(self.rest, into, FlushDecompress::None).map_err(|_| Malformed)?;
        // Both are at most the lengths of slices.
        let taken = (self.state.total_in() - before.0) as usize;
        let given = (self.state.total_out() - before.1) as usize;
        self.rest = &self.rest[taken..];
        self.has_ended = status == Status::StreamEnd;
        // It wants more than there is.
        if taken + given == 0 && !self.has_ended { Err(Malformed) } else { Ok(Step::Read { taken, given }) }
    }
}

type BrotliDecoder = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

/// Without the large windows that no RFC has.
fn brotli_state() -> Box<BrotliDecoder> {
    Box::new(BrotliState::new_strict(StandardAlloc::default(), StandardAlloc::default(), StandardAlloc::default()))
}

struct Brotli<'a> {
    body: &'a [u8],
    at: usize,
    total: usize,
    state: Box<BrotliDecoder>,
    has_ended: bool,
}

impl Stream for Brotli<'_> {
    fn next(&mut self, into: &mut [u8]) -> Result<Step, Malformed> {
        if self.has_ended {
            return if self.at == self.body.len() { Ok(Step::Ended) } else { Err(Malformed) };
        }
        let before = self.at;
        let (mut left, mut free, mut given) = (self.body.len() - self.at, into.len(), 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut self.at,
            self.body,
            &mut free,
            &mut given,
            into,
            &mut self.total,
            &mut self.state,
        );
        match result {
            BrotliResult::ResultSuccess => self.has_ended = true,
            BrotliResult::NeedsMoreOutput => {}
            BrotliResult::NeedsMoreInput if given > 0 => {}
            BrotliResult::NeedsMoreInput | BrotliResult::ResultFailure => return Err(Malformed),
        }
        Ok(Step::Read { taken: self.at - before, given })
    }
}

fn zstd_decoder() -> FrameDecoder {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(ZSTD_WINDOW);
    decoder
}

/// One or several frames in a row (RFC 8878 section 3.1).
struct Zstd<'a> {
    rest: &'a [u8],
    frame: Option<StreamingDecoder<&'a [u8], FrameDecoder>>,
    /// The decoder between two frames: making one anew costs more than a small frame.
    idle: Option<FrameDecoder>,
    pieces: usize,
}

impl Zstd<'_> {
    fn begin(&mut self) -> Result<Step, Malformed> {
        if self.rest.is_empty() && self.pieces > 0 {
            return Ok(Step::Ended);
        }
        one_more(&mut self.pieces)?;
        let decoder = self.idle.take().unwrap_or_else(zstd_decoder);
        match StreamingDecoder::new_with_decoder(self.rest, decoder) {
            Ok(frame) => self.frame = Some(frame),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                // Behind its number and its length.
                let behind = usize::try_from(length).ok().and_then(|length| length.checked_add(8));
                self.rest = behind.and_then(|behind| self.rest.get(behind..)).ok_or(Malformed)?;
            }
            Err(_) => return Err(Malformed),
        }
        Ok(Step::Read { taken: 0, given: 0 })
    }
}

impl Stream for Zstd<'_> {
    fn next(&mut self, into: &mut [u8]) -> Result<Step, Malformed> {
        let Some(frame) = &mut self.frame else { return self.begin() };
        let before = frame.get_ref().len();
        let given = frame.read(into).map_err(|_| Malformed)?;
        let taken = before - frame.get_ref().len();
        if given == 0
            && let Some(frame) = self.frame.take()
        {
            let (rest, decoder) = frame.into_parts();
            (self.rest, self.idle) = (rest, Some(decoder));
        }
        Ok(Step::Read { taken, given })
    }
}
