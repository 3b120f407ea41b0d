//! See `onceproxy_fuzz::multipart`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onceproxy_fuzz::multipart::run(data));
