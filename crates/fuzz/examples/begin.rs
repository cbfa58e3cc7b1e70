//! Writes what each target begins with, for libFuzzer: `begin DIR`, DIR/TARGET/begin0 and so on.

#![allow(clippy::disallowed_methods, reason = "a program's arguments and files")]

use std::path::Path;
use std::{env, fs, io};

use copyhold_fuzz::TARGETS;

fn main() -> io::Result<()> {
    let dir = env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: begin DIR"))?;
    for target in &TARGETS {
        let dir = Path::new(&dir).join(target.name);
        fs::create_dir_all(&dir)?;
        for (n, input) in (target.begin)().iter().enumerate() {
            fs::write(dir.join(format!("begin{n}")), input)?;
        }
    }
    Ok(())
}
