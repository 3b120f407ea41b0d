//! See `onceproxy_fuzz::names`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onceproxy_fuzz::names::run(data));
