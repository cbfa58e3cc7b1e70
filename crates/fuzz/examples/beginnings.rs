//! Writes the good inputs of all targets to a directory for each in DIR, for libFuzzer to begin
//! with: `cargo run -p copyhold-fuzz --example beginnings -- DIR`.

#![allow(clippy::disallowed_methods)] // a program's arguments

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let dir = PathBuf::from(env::args_os().nth(1).expect("a directory to write to"));
    for target in &copyhold_fuzz::TARGETS {
        let dir = dir.join(target.name);
        fs::create_dir_all(&dir)?;
        for (n, input) in (target.begin)().iter().enumerate() {
            fs::write(dir.join(format!("beginning-{n}")), input)?;
        }
    }
    Ok(())
}
