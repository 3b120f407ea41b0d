//! A recorded response: status, header and trailer fields as bytes, and the body if it was kept.
//!
//! The fields are held in their stored form, so that a response is encoded once when it arrives and never again:
//! the store writes and reads these bytes as they are, and a replay walks over them.

use bytes::{BufMut, Bytes, BytesMut};

/// An upstream's response as it is stored and replayed. Cloning shares the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    status: u16,
    fields: Bytes,
    body: Option<Bytes>,
}

/// Field bytes that do not follow their own lengths.
#[derive(Debug, thiserror::Error)]
#[error("the stored header fields are damaged")]
pub struct MalformedFields;

impl Response {
    /// Makes a response. `body` is `None` when it was too large to keep. Fields keep their order and repeats.
    pub fn new<'a>(
        status: u16,
        headers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        trailers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        body: Option<Bytes>,
    ) -> Response {
        let mut fields = BytesMut::with_capacity(512);
        put_section(&mut fields, headers);
        put_section(&mut fields, trailers);
        Response { status, fields: fields.freeze(), body }
    }

    /// Takes stored bytes back in, after checking that they can be walked.
    pub fn from_parts(status: u16, fields: Bytes, body: Option<Bytes>) -> Result<Response, MalformedFields> {
        let rest = skip_section(&fields).and_then(skip_section).ok_or(MalformedFields)?;
        if !rest.is_empty() {
            return Err(MalformedFields);
        }
        Ok(Response { status, fields, body })
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Header and trailer fields in their stored form, for [`Response::from_parts`].
    pub fn fields(&self) -> &Bytes {
        &self.fields
    }

    /// The body, `None` when it was not kept.
    pub fn body(&self) -> Option<&Bytes> {
        self.body.as_ref()
    }

    /// The same response without its body.
    pub fn without_body(&self) -> Response {
        Response { status: self.status, fields: self.fields.clone(), body: None }
    }

    /// The same response with this body.
    #[must_use]
    pub fn with_body(&self, body: Bytes) -> Response {
        Response { status: self.status, fields: self.fields.clone(), body: Some(body) }
    }

    /// The same response, with its fields in just as much memory as they need: for a store that keeps it for days, where
    /// the room that was taken for fields of any size would be most of a small record.
    #[must_use]
    pub fn compact(&self) -> Response {
        Response { status: self.status, fields: Bytes::copy_from_slice(&self.fields), body: self.body.clone() }
    }

    /// Header fields in order, repeats included.
    pub fn headers(&self) -> Fields<'_> {
        Fields { rest: section(&self.fields) }
    }

    /// Trailer fields in order, repeats included.
    pub fn trailers(&self) -> Fields<'_> {
        Fields { rest: skip_section(&self.fields).map(section).unwrap_or_default() }
    }
}

impl std::fmt::Debug for Response {
    /// Prints no field values and no body: they may hold what must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("fields", &self.fields.len())
            .field("body", &self.body.as_ref().map(Bytes::len))
            .finish()
    }
}

/// Iterates over the name and value of each field line.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = take(self.rest)?;
        let (value, rest) = take(rest)?;
        self.rest = rest;
        Some((name, value))
    }
}

// A section is the length of what follows, then name and value of each line, each with its length before it. All
// lengths are 32 bits, big-endian.
fn put_section<'a>(out: &mut BytesMut, lines: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) {
    let start = out.len();
    out.put_u32(0);
    for (name, value) in lines {
        for part in [name, value] {
            out.put_u32(len32(part.len()));
            out.put_slice(part);
        }
    }
    let length = len32(out.len() - start - 4);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn len32(length: usize) -> u32 {
    u32::try_from(length).expect("a field section is bounded far below 4 GiB by the head limit of the connection")
}

fn take(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

fn section(bytes: &[u8]) -> &[u8] {
    take(bytes).map(|(section, _)| section).unwrap_or_default()
}

/// What follows the first section, if that section holds whole fields.
fn skip_section(bytes: &[u8]) -> Option<&[u8]> {
    let (mut section, rest) = take(bytes)?;
    while !section.is_empty() {
        section = take(take(section)?.1)?.1;
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_repeats_and_odd_bytes() {
        let headers: Vec<(&[u8], &[u8])> = vec![(b"b", b"2"), (b"a", b"\xff\x00"), (b"b", b"")];
        let trailers: Vec<(&[u8], &[u8])> = vec![(b"t", b"1")];
        let made = Response::new(201, headers.clone(), trailers.clone(), Some(Bytes::from_static(b"x")));
        let back = Response::from_parts(201, made.fields().clone(), made.body().cloned()).unwrap();
        assert_eq!(back.headers().collect::<Vec<_>>(), headers);
        assert_eq!(back.trailers().collect::<Vec<_>>(), trailers);
        assert_eq!(back, made);
    }

    #[test]
    fn refuses_damaged_fields() {
        let made = Response::new(200, [(&b"name"[..], &b"value"[..])], [], None);
        for cut in 0..made.fields().len() {
            assert!(Response::from_parts(200, made.fields().slice(..cut), None).is_err(), "cut at {cut}");
        }
        let mut longer = made.fields().to_vec();
        longer.push(0);
        assert!(Response::from_parts(200, longer.into(), None).is_err());
        let mut wrong = made.fields().to_vec();
        wrong[7] = 200;
        assert!(Response::from_parts(200, wrong.into(), None).is_err());
    }

    #[test]
    fn a_compact_response_is_the_same_and_keeps_no_room() {
        let made = Response::new(201, [(&b"location"[..], &b"/1"[..])], [], Some(Bytes::from_static(b"body")));
        let compact = made.compact();
        assert_eq!(compact, made);
        let room = |fields: Bytes| fields.try_into_mut().expect("nobody else has it").capacity();
        let length = made.fields.len();
        assert!(room(made.fields) > length, "without room to begin with this test shows nothing");
        assert_eq!(room(compact.fields), length);
    }
}
