//! The binary: arguments in, exit code out. Everything else is the library's.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A request makes some 70 allocations, four of them for buffers of 8 KiB. musl's own allocator, which the image would have
/// otherwise, takes as long for them as the whole rest (docs/performance.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    onceproxy::cli::main()
}
