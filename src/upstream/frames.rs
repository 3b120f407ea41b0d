//! The frames that an upstream of HTTP/2 sends, as far as `h2` does not say what is in them: up to which stream it has
//! processed requests, when it goes away (RFC 9113 section 6.8).
//!
//! `h2` reports a GOAWAY to all streams alike. Only those above the last one that it names have certainly not run.

/// The length of a frame's header (RFC 9113 section 4.1).
const HEADER: usize = 9;
const GOAWAY: u8 = 7;

/// Follows the frames, however their bytes come.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The frame's header, and of a GOAWAY the stream that it names; as much of both as has come.
    begun: Vec<u8>,
    /// So many bytes of the frame are still to be passed over.
    skip: usize,
}

impl Frames {
    /// Follows the bytes that come next. The last stream that a GOAWAY names, if there is one; the lowest, if there are more.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> Option<u32> {
        let mut last = None;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let passed = self.skip.min(bytes.len());
                self.skip -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let needed = if self.begun.get(3) == Some(&GOAWAY) { HEADER + 4 } else { HEADER };
            let taken = (needed - self.begun.len()).min(bytes.len());
            self.begun.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            last = last.into_iter().chain(self.frame()).min();
        }
        last
    }

    /// Ends the beginning of a frame, if all that is looked at is there.
    fn frame(&mut self) -> Option<u32> {
        let header: &[u8; HEADER] = self.begun.first_chunk()?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let stream = if header[3] == GOAWAY && length >= 4 {
            let named = self.begun.get(HEADER..HEADER + 4)?;
            // The first bit is reserved.
            Some(u32::from_be_bytes(named.try_into().ok()?) & (u32::MAX >> 1))
        } else {
            None
        };
        self.skip = length + HEADER - self.begun.len();
        self.begun.clear();
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn finds_the_last_stream_however_the_bytes_come() {
        let going = |stream: u32| frame(GOAWAY, &[&stream.to_be_bytes()[..], &[0; 4], b"bye"].concat());
        let data = frame(0, &[GOAWAY; 100]);
        let bytes =
            [frame(4, &[]), data.clone(), going(1 << 31 | 0x7fff_ffff), data.clone(), going(5), frame(6, &[7; 8])]
                .concat();
        for size in 1..=bytes.len() {
            let mut frames = Frames::default();
            let last = bytes.chunks(size).filter_map(|piece| frames.follow(piece)).min();
            assert_eq!(last, Some(5), "in pieces of {size} bytes");
            assert_eq!(frames.follow(&frame(1, b"headers")), None, "it is between two frames again");
        }
        assert_eq!(Frames::default().follow(&[data, frame(GOAWAY, &[0; 3])].concat()), None, "too short to name one");
    }
}
