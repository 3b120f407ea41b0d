//! See `onceproxy::server::fuzzing`, which is public for this alone.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onceproxy::server::fuzzing::run(data));
