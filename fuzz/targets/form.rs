//! See `onceproxy_fuzz::form`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onceproxy_fuzz::form::run(data));
