//! The command line, as clap reads it: one verb, one file, one struct of arguments.
//!
//! Help, man pages and completions all come from these definitions (`generate.rs`).

use clap::{Parser, Subcommand};

use crate::failure::{Failure, exit_codes_text};
use crate::report::Report;
use crate::{
    check, create, debug, df, generate, info, memory, mount, names, property, qgroup, quota,
    report, resize, subvolume, sync, umount, version,
};

const ABOUT: &str = "Copy-on-write filesystem in user space for hosts with many tenants";

const LONG_ABOUT: &str = "\
Copyhold keeps a filesystem in a pool: a file, or a block device. `create` makes a pool, `mount` \
shows it as a directory through FUSE, `umount` closes it again. Files on it are checksummed, every \
piece of metadata is kept twice, and after a crash or a power cut the pool simply mounts again.";

const EXAMPLES: &str = "\
Examples:
  copyhold create /srv/pool.img --size 10G    a sparse file that grows up to 10 GiB
  copyhold mount /srv/pool.img /mnt           returns when /mnt is usable
  copyhold sync /mnt                          everything written so far is durable
  copyhold subvolume snapshot /mnt/a /mnt/b   a clone of /mnt/a, at once
  copyhold qgroup limit 10G 0/2 /mnt          no more than that for subvolume 2
  copyhold memory set /mnt/a low=340M         so much of its caches is protected
  copyhold resize /mnt 20G                    the mounted pool becomes larger
  copyhold info /mnt                          space, state and device traffic
  copyhold umount /mnt                        returns when the pool is closed
  copyhold check /srv/pool.img                verifies every pointer and digest

`copyhold help VERB` describes each verb, `copyhold help exit-codes` the exit codes for scripts.";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "copyhold",
    version,
    about = ABOUT,
    long_about = LONG_ABOUT,
    after_help = EXAMPLES,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct CommandLine {
    /// Print JSON: results on standard output, a failure as one object on standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// The level of messages on standard error or, in the background, in the system log
    #[arg(
        long,
        global = true,
        env = "COPYHOLD_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub(crate) log: String,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Create(create::Create),
    Mount(mount::Mount),
    Umount(umount::Umount),
    Sync(sync::Sync),
    Resize(resize::Resize),
    Info(info::Info),
    Subvolume(subvolume::Verb),
    Property(property::Verb),
    Quota(quota::Verb),
    Qgroup(qgroup::Verb),
    Memory(memory::Verb),
    Names(names::Verb),
    Df(df::Df),
    Check(check::Check),
    Debug(debug::Debug),
    Version(version::Version),
    /// The meaning of the exit codes
    ///
    /// Helpers that other programs call (mount.fuse.copyhold, fsck.copyhold and the like) exit with
    /// the codes of mount(8) and fsck(8) instead.
    #[command(after_help = exit_codes_text())]
    ExitCodes,
    #[command(hide = true)]
    Generate(generate::Generate),
}

impl CommandLine {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let report = Report { json: self.json };
        match self.verb {
            Verb::Create(verb) => verb.run(report),
            Verb::Mount(verb) => verb.run(&self.log),
            Verb::Umount(verb) => verb.run(report),
            Verb::Sync(verb) => verb.run(),
            Verb::Resize(verb) => verb.run(report),
            Verb::Info(verb) => verb.run(report),
            Verb::Subvolume(verb) => verb.run(report),
            Verb::Property(verb) => verb.run(report),
            Verb::Quota(verb) => verb.run(report),
            Verb::Qgroup(verb) => verb.run(report),
            Verb::Memory(verb) => verb.run(report),
            Verb::Names(verb) => verb.run(report),
            Verb::Df(verb) => verb.run(report),
            Verb::Check(verb) => verb.run(report),
            Verb::Debug(verb) => verb.run(report),
            Verb::Version(verb) => verb.run(report),
            Verb::ExitCodes => report::print(&exit_codes_text()),
            Verb::Generate(verb) => verb.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn verbs_of_tenants_take_their_arguments_as_btrfs_does() {
        for line in [
            "subvolume create -i 1/1 -i 1/2 /m/a",
            "subvolume delete --heir /m/b /m/a /m/c",
            "subvolume list /m",
            "subvolume show /m/a --json",
            "subvolume snapshot -r -i 1/1 /m/a /m/b",
            "subvolume sync /m 5 6",
            "property get /m/a ro",
            "property set /m/a ro true",
            "quota enable --simple /m",
            "quota enable /m",
            "quota disable /m",
            "quota status /m",
            "quota rescan /m",
            "qgroup show --json --raw --sort used --sync /m",
            "qgroup create 1/100 /m",
            "qgroup destroy 1/100 /m",
            "qgroup assign 0/5 1/100 /m",
            "qgroup remove 0/5 1/100 /m",
            "qgroup limit -e 16M 0/5 /m",
            "qgroup limit none 0/5 /m",
            "qgroup limit --inodes 100 0/5 /m",
            "qgroup reserve 1G 0/5 /m",
            "qgroup clear-stale /m",
            "memory show --json --raw /m",
            "memory set /m/a low=340M max=1G",
            "memory set --shared /m weight=7",
            "memory events /m/a",
            "memory stat --shared /m",
            "memory pressure --json /m/a",
            "memory reclaim 64M /m/a",
            "names show --json /m",
            "names set /m limit=2%",
            "names drop /m/a",
            "df /m/a",
            "resize /m +5G",
            "resize --json /srv/pool.img max",
        ] {
            let words = std::iter::once("copyhold").chain(line.split(' '));
            assert!(CommandLine::try_parse_from(words).is_ok(), "{line}");
        }
        for line in [
            "subvolume create -i 100 /m/a",
            "subvolume create",
            "subvolume delete",
            "subvolume snapshot /m/a",
            "subvolume sync /m alice",
            "property set /m/a color true",
            "qgroup limit lots 0/5 /m",
            "qgroup limit -e --inodes 5 0/5 /m",
            "qgroup assign 0/5 /m",
            "qgroup show --sort beauty /m",
            "memory set /m/a",
            "memory set low=340M",
            "memory set /m/a color=red",
            "memory reclaim /m/a",
            "names set /m",
            "names set /m 2%",
            "names set /m limit=11%",
            "memory reclaim lots /m/a",
            "resize /m",
            "resize /m lots",
        ] {
            let words = std::iter::once("copyhold").chain(line.split(' '));
            assert!(CommandLine::try_parse_from(words).is_err(), "{line}");
        }
    }

    #[test]
    fn every_verb_explains_itself_and_gives_examples() {
        for verb in CommandLine::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            assert!(verb.get_about().is_some(), "{} has no summary", verb.get_name());
            let teaches = verb.get_after_help().is_some() || verb.has_subcommands();
            assert!(teaches || verb.get_name() == "version", "{} has no example", verb.get_name());
        }
    }
}
