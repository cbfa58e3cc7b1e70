//! The job: commits of SQLite, one row each, with its log in each of the two ways.
//!
//! `wal`: a write-ahead log, with `synchronous=FULL`, so an fsync for each commit. `rollback`: a
//! journal that is made and removed for each, with several fsyncs. The client is `sqlite3`, or the
//! module of python3; where there is neither, the job is left out. At the end the rows are counted.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use copyhold_harness::{HarnessError, Interrupt};

use crate::error::{BenchError, On};
use crate::job::{Job, on_fresh};
use crate::sample::Sample;
use crate::target::{Kind, Site, Target};

/// Does what the program does with statements on standard input.
const PYTHON: &str = "\
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.stdin:
    for row in database.execute(statement):
        print(row[0])
";

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Sqlite {
    /// How many commits
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    commits: u32,
}

impl Job for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn data_bytes(&self) -> u64 {
        u64::from(self.commits) * 4096
    }

    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        match (kind.keeps_data(), client(Path::new(":memory:"))) {
            (false, _) => Some("a database needs what it wrote"),
            (true, None) => Some("there is neither sqlite3 nor a python3 with its module here"),
            (true, Some(_)) => None,
        }
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        on_fresh(site, kind, |target| {
            let mut samples = Vec::new();
            for (variant, journal) in [("wal", "WAL"), ("rollback", "DELETE")] {
                interrupt.check()?;
                let took = self.commit(target, variant, journal)?;
                let rate = f64::from(self.commits) / took.as_secs_f64();
                samples.push(Sample::new(variant, "commits", "commits/s", rate));
            }
            Ok(samples)
        })
    }
}

impl Sqlite {
    /// For the core list.
    pub(crate) fn bounded(commits: u32) -> Sqlite {
        Sqlite { commits }
    }

    /// How long all commits took, the start of the program and its end included.
    fn commit(
        &self,
        target: &Target<'_>,
        variant: &str,
        journal: &str,
    ) -> Result<Duration, BenchError> {
        let path = target.directory().join(format!("{variant}.db"));
        let create = format!("PRAGMA journal_mode={journal};\nCREATE TABLE t(a, b);\n");
        ask(&path, &create)?;
        let mut statements = String::from("PRAGMA synchronous=FULL;\n");
        for number in 0..self.commits {
            statements += &format!("INSERT INTO t VALUES({number}, '{number:0100}');\n");
        }
        let began = Instant::now();
        ask(&path, &statements)?;
        let took = began.elapsed();
        let rows = ask(&path, "SELECT count(*) FROM t;\n")?;
        let (expected, found) = (u64::from(self.commits), rows.trim().parse().unwrap_or_default());
        match expected == found {
            true => Ok(took),
            false => Err(BenchError::Wrong { what: "rows in the database", expected, found }),
        }
    }
}

/// Has a client do the statements, one a line; what it prints.
fn ask(path: &Path, statements: &str) -> Result<String, BenchError> {
    let mut client = client(path).expect("the job is left out where there is none");
    let shown = format!("{:?}", client.get_program());
    client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut asked = client.spawn().on(&shown)?;
    let mut input = asked.stdin.take().expect("it is a pipe");
    // One that has failed reads no more, and says why below.
    drop(input.write_all(statements.as_bytes()));
    drop(input);
    let output = asked.wait_with_output().on(&shown)?;
    let says = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !output.status.success() || !says.is_empty() {
        let status = output.status.to_string();
        return Err(HarnessError::Failed { command: shown, status, says }.into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A program that reads statements, if there is one.
fn client(path: &Path) -> Option<Command> {
    let works = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let mut command;
    if works("sqlite3", &["-version"]) {
        command = Command::new("sqlite3");
        command.args(["-batch", "-init", "/dev/null"]);
    } else if works("python3", &["-c", "import sqlite3"]) {
        command = Command::new("python3");
        command.args(["-c", PYTHON]);
    } else {
        return None;
    }
    command.arg(path);
    Some(command)
}
