//! `copyhold`: makes, mounts, checks and explains pools.
//!
//! Each verb is a file with its arguments, its help and its work; `command_line.rs` lists them.
//! `failure.rs` is how they fail and `report.rs` how they answer. They know the engine through
//! `engine.rs`. Under other names the program plays the helpers of mount(8), mkfs(8) and fsck(8)
//! (`personality.rs`).

#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "this is where the machine is asked and passed in")]

mod check;
mod command_line;
mod confinement;
mod control;
mod create;
mod debug;
mod df;
mod engine;
mod failure;
mod fsck_helper;
mod generate;
mod getopt;
mod info;
mod logging;
mod memory;
mod mkfs_helper;
mod mount;
mod mount_again;
mod mount_helper;
mod mount_options;
mod mount_request;
mod mount_table;
mod names;
mod option_value;
mod personality;
mod property;
mod qgroup;
mod quota;
mod report;
mod resize;
mod shown_subvolume;
mod size;
mod subvolume;
mod sync;
mod umount;
mod version;
mod view;

use std::env;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use command_line::CommandLine;
use failure::Failure;

/// The whole program, with the arguments of this process.
pub fn run() -> ExitCode {
    // Without it a write beyond `ulimit -f` still fails, but ends the process.
    let _ = copyhold_fuse::fail_writes_beyond_limits();
    let mut arguments = env::args_os();
    if let Some(personality) = personality::named(arguments.next().as_deref()) {
        return personality.run(arguments.collect());
    }
    match CommandLine::try_parse() {
        Ok(command_line) => {
            let json = command_line.json;
            match command_line.run() {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => failure.report(json),
            }
        }
        Err(error) => refused(&error),
    }
}

/// Help and version are answers; everything else is a usage failure, reported as all failures are.
fn refused(error: &clap::Error) -> ExitCode {
    let is_answer = !error.use_stderr();
    if is_answer || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return if is_answer { ExitCode::SUCCESS } else { ExitCode::from(2) };
    }
    let text = error.render().to_string();
    let json = env::args_os().any(|argument| argument == "--json");
    let text = text.trim_end().strip_prefix("error: ").unwrap_or(&text);
    Failure::usage(text).report(json)
}
