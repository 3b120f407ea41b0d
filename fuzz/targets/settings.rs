//! See `onceproxy_fuzz::settings`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onceproxy_fuzz::settings::run(data));
