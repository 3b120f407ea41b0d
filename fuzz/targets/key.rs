//! See `onceproxy_fuzz::key`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onceproxy_fuzz::key::run(data));
