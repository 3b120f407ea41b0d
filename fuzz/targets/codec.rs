//! See `onceproxy_fuzz::codec`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onceproxy_fuzz::codec::run(data));
