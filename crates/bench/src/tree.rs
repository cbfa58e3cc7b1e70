//! The job: a tree of source files, as programs of every day treat it.
//!
//! `untar`: it comes out of an archive that is written beside the filesystem; until all is durable,
//! `untar_durable`. `git_add`: `git init` and `git add --all`; `git_status` behind a remount, and
//! `git_status_warm` once more. `grep`: `grep -r` over all files, behind a remount. `rm`: `rm -rf`
//! of these files.
//!
//! Files are the same on each target and in each round (`archive`). git needs what it wrote, so the
//! null store has no part in that.

mod archive;

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use copyhold_harness::Interrupt;

use crate::error::{BenchError, On};
use crate::job::{Job, on_fresh};
use crate::sample::Sample;
use crate::target::{Kind, Site, Target, run};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Tree {
    /// How many source files, of 14 KiB in the mean
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
}

impl Job for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    /// Files, and git's objects of them.
    fn data_bytes(&self) -> u64 {
        2 * u64::from(self.files) * archive::BYTES_A_FILE
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        on_fresh(site, kind, |target| self.run(target, interrupt))
    }
}

impl Tree {
    /// For the core list.
    pub(crate) fn bounded(files: u32) -> Tree {
        Tree { files }
    }

    fn run(&self, target: &Target<'_>, interrupt: &Interrupt) -> Result<Vec<Sample>, BenchError> {
        let tar = target.beside().join("tree.tar");
        archive::write(&tar, self.files)?;
        let root = target.directory();
        let tree = root.join(archive::ROOT);

        let began = Instant::now();
        let untar = timed(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(&root))?;
        target.sync()?;
        let mut samples = vec![
            Sample::seconds("untar", untar),
            Sample::seconds("untar_durable", began.elapsed()),
        ];
        interrupt.check()?;
        if let Some(why) = no_git(target.kind()) {
            target.site().note(self.name(), target.kind(), why);
        } else {
            samples.extend(git(target, &tree)?);
        }
        interrupt.check()?;
        target.cool()?;
        samples.push(Sample::seconds("grep", grep(&tree, target.kind(), self.files)?));
        // git's files, which not every target has.
        match std::fs::remove_dir_all(tree.join(".git")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).on("removing what git has made");
            }
            _ => target.sync()?,
        }
        samples.push(Sample::seconds("rm", timed(Command::new("rm").arg("-rf").arg(&tree))?));
        Ok(samples)
    }
}

fn no_git(kind: Kind) -> Option<&'static str> {
    let mut version = Command::new("git");
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    match (kind.keeps_data(), version.status()) {
        (false, _) => Some("git needs what it wrote"),
        (true, Ok(status)) if status.success() => None,
        (true, _) => Some("there is no git here"),
    }
}

fn git(target: &Target<'_>, tree: &Path) -> Result<Vec<Sample>, BenchError> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        // Nobody's own settings.
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        git.arg("-C").arg(tree).args(arguments);
        git
    };
    let began = Instant::now();
    run(&mut git(&["init", "--quiet"]))?;
    run(&mut git(&["add", "--all"]))?;
    let added = began.elapsed();
    target.cool()?;
    let status = || timed(&mut git(&["status", "--short"]));
    Ok(vec![
        Sample::seconds("git_add", added),
        Sample::seconds("git_status", status()?),
        Sample::seconds("git_status_warm", status()?),
    ])
}

/// Looks for a word that one file in `archive::RARE` has.
fn grep(tree: &Path, kind: Kind, files: u32) -> Result<Duration, BenchError> {
    let began = Instant::now();
    let mut grep = Command::new("grep");
    grep.args(["-r", "-l", "--exclude-dir=.git", archive::NEEDLE]).arg(tree);
    let output = grep.stdin(Stdio::null()).output().on("grep")?;
    let took = began.elapsed();
    let found = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    let expected = files.div_ceil(archive::RARE) as usize;
    if kind.keeps_data() && found != expected {
        return Err(BenchError::Wrong {
            what: "files that grep finds",
            expected: expected as u64,
            found: found as u64,
        });
    }
    Ok(took)
}

fn timed(command: &mut Command) -> Result<Duration, BenchError> {
    let began = Instant::now();
    run(command).map(|_| began.elapsed())
}
