//! The program `copyhold`; all of it is in the library, where tests without a mount reach it.

#![deny(unsafe_code)]

mod allocator;

fn main() -> std::process::ExitCode {
    allocator::settle();
    copyhold_cli::run()
}
