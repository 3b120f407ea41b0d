//! See `onceproxy_fuzz::values`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onceproxy_fuzz::values::run(data));
