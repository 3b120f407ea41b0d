//! See `onceproxy_fuzz::json`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onceproxy_fuzz::json::run(data));
