//! The command line of the runner.

use std::path::{Path, PathBuf};

use clap::Parser;

use crate::error::{On, RunnerError};
use crate::plan::Group;
use crate::runfile::Options;
use crate::select::Tags;

const OUTPUTDIR: &str = "/var/tmp/copyhold-suite";

const LONG_ABOUT: &str = "\
Runs groups of scripts that runfiles list, each group with its setup and cleanup, and reports in \
the form of OpenZFS's test runner. Each script runs in a directory of its own below \
OUTPUTDIR/DATE/, with COPYHOLD (the program), SUITE_DIR (a directory for pools and mounts) and \
SUITE_ROOT (the suite) in its environment. Exit code 0 of a script is PASS, 4 is SKIP, any other \
is FAIL; a script that exceeds its time is KILLED, with all that it started.";

const EXAMPLES: &str = "\
Runfile:
  [DEFAULT]
  pre = setup                   runs first in each group; if it does not pass, tests are skipped
  post = cleanup                runs last, always
  user = root                   also pre_user, post_user
  timeout = 60                  seconds for each script; 0 is no limit
  failsafe = failsafe           runs after a script that was killed; below the suite; must exist
  outputdir = /var/tmp/results
  quiet = False
  tags = ['functional']

  [mount]                       a directory of the suite; [mount:AGAIN] is another group of it
  tests = ['create', 'remount']
  tags = ['functional', 'mount']

Known failures (--known), one a line, each must stay true:
  space/full FAIL the reserve is not counted yet

Exit codes:
  0    no test failed
  1    a test failed or was killed, or a known failure did not come; with -d: a script cannot start
  2    nothing ran
  3    a test ran twice since the machine slept, and none failed
  255  the runner failed

Examples:
  copyhold-suite                             the groups with the tag functional
  copyhold-suite -T mount,quotas -q          two areas; lines only for tests that do not pass
  copyhold-suite -T functional,2/3           the second third of the areas
  copyhold-suite -t quotas/limit -I 20       one test, with its setup and cleanup, 20 times
  copyhold-suite --seed 7 --junit out.xml    in another order; results for a server, too
  copyhold-suite -T long -d                  the scripts that would run";

/// Run the functional suite
#[derive(Debug, Parser)]
#[command(
    name = "copyhold-suite",
    version,
    long_about = LONG_ABOUT,
    after_help = EXAMPLES,
    max_term_width = 100
)]
pub(crate) struct CommandLine {
    /// Runfiles, joined; sections are below the directory of the first
    #[arg(
        short,
        long = "runfiles",
        value_name = "FILE",
        value_delimiter = ',',
        default_value = "tests/functional/functional.run"
    )]
    pub(crate) runfiles: Vec<PathBuf>,
    /// Groups with one of these tags, or a part of the areas such as 2/3
    #[arg(short = 'T', long, default_value = "functional")]
    pub(crate) tags: Tags,
    /// A test by its path, or by its name in any group
    #[arg(short, long = "test", value_name = "TEST", conflicts_with = "tags")]
    pub(crate) tests: Vec<String>,
    /// The user of the tests that -t names
    #[arg(short, long, requires = "tests")]
    user: Option<String>,
    /// Print only results that are not PASS, and the summary
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print the scripts, and run none
    #[arg(short, long)]
    pub(crate) dry_run: bool,
    /// How often all of it runs
    #[arg(short = 'I', long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: u64,
    /// First remove mounts, loop devices and files of runs that were killed
    #[arg(short = 'x', long)]
    pub(crate) clean: bool,
    /// Run groups, and the tests of each, in an order that the seed gives
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// The suite [default: the directory of the first runfile]
    #[arg(short = 'i', long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Where results go [default: the runfile's, or /var/tmp/copyhold-suite]
    #[arg(short, long, value_name = "DIR")]
    outputdir: Option<PathBuf>,
    /// Where pools and mounts are made, in a directory that is removed at the end
    #[arg(long = "dir", value_name = "DIR", default_value = "/var/tmp")]
    pub(crate) directory: PathBuf,
    /// The program [default: `copyhold` beside this one]
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
    /// Tests that are known not to pass
    #[arg(long, value_name = "FILE")]
    pub(crate) known: Option<PathBuf>,
    /// One JSON object a line for each result: {test, user, result, seconds, log}
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the results as XML in the form of JUnit
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// Seconds between SIGTERM and SIGKILL for a script whose time is over
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u64,
}

impl CommandLine {
    pub(crate) fn root(&self) -> Result<PathBuf, RunnerError> {
        let beside = || self.runfiles.first().and_then(|file| file.parent());
        let root = self.root.as_deref().or_else(beside).unwrap_or(Path::new(""));
        let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
        root.canonicalize().on(root.display())
    }

    pub(crate) fn outputdir(&self, defaults: &Options) -> PathBuf {
        let chosen = self.outputdir.as_ref().or(defaults.outputdir.as_ref());
        chosen.cloned().unwrap_or_else(|| OUTPUTDIR.into())
    }

    /// With the user of the command line for tests.
    pub(crate) fn as_user(&self, mut groups: Vec<Group>) -> Vec<Group> {
        let tests = groups.iter_mut().flat_map(|group| &mut group.tests);
        for (test, user) in tests.flat_map(|test| Some((test, self.user.as_ref()?))) {
            test.user.clone_from(user);
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
        let given = |words: &[&str]| CommandLine::try_parse_from([&["x"], words].concat());
        assert_eq!(given(&["-r", "a.run,b.run"]).unwrap().runfiles.len(), 2);
        assert_eq!(given(&["-I", "3", "-qdx"]).unwrap().iterations, 3);
        for wrong in [&["-I", "0"][..], &["-T", "0/2"], &["-t", "a", "-T", "b"], &["-u", "root"]] {
            assert!(given(wrong).is_err(), "{wrong:?}");
        }
    }
}
