//! The short digests that were made last on this core: of a target, of a host, of a content type.
//!
//! They are the same in request after request, and comparing them costs far less than hashing them again.

use std::cell::RefCell;

/// Longer ones are hashed each time, so that a core remembers little.
const LONGEST: usize = 512;

/// Which part of a request it is.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Target,
    Host,
    ContentType,
}

#[derive(Default)]
struct Remembered {
    first: Vec<u8>,
    second: Vec<u8>,
    digest: Option<[u8; 16]>,
}

thread_local! {
    static LAST: RefCell<[Remembered; 3]> = RefCell::default();
}

/// The digest that `make` makes of exactly these two byte strings, or made of them the last time.
pub(super) fn digest(part: Part, first: &[u8], second: &[u8], make: impl FnOnce() -> [u8; 16]) -> [u8; 16] {
    if first.len() + second.len() > LONGEST {
        return make();
    }
    LAST.with_borrow_mut(|last| {
        let last = &mut last[part as usize];
        if let Some(digest) = last.digest
            && last.first == first
            && last.second == second
        {
            return digest;
        }
        let digest = make();
        for (kept, bytes) in [(&mut last.first, first), (&mut last.second, second)] {
            kept.clear();
            kept.extend_from_slice(bytes);
        }
        last.digest = Some(digest);
        digest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_something_else_is_never_given_out() {
        let of = |part, first: &str, second: &str, made: u8| {
            digest(part, first.as_bytes(), second.as_bytes(), || [made; 16])[0]
        };
        assert_eq!(of(Part::Target, "POST", "/a", 1), 1);
        assert_eq!(of(Part::Target, "POST", "/a", 2), 1, "it was remembered");
        // Another end of the first, another part, another second; and what was there before is made again.
        assert_eq!(of(Part::Target, "POST/", "a", 3), 3);
        assert_eq!(of(Part::Host, "POST/", "a", 4), 4);
        assert_eq!(of(Part::Target, "POST", "/ab", 5), 5);
        assert_eq!(of(Part::Target, "POST", "/a", 6), 6);
        assert_eq!(of(Part::Target, "POST", "/b", 7), 7, "the second alone is another");
        assert_eq!(of(Part::Target, "PUSH", "/b", 8), 8, "the first alone is another");
        assert_eq!(of(Part::Target, "", "", 9), 9);
        let long = "x".repeat(LONGEST);
        assert_eq!((of(Part::Host, &long, "y", 10), of(Part::Host, &long, "y", 11)), (10, 11), "too long to remember");
    }
}
