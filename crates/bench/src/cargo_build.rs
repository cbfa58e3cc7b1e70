//! The job: a program is built by cargo, sources and target directory on the filesystem.
//!
//! `build`: all of a workspace of crates that depend on the first of them; `rebuild`: once more
//! when the first has changed, behind a remount. Sources are the same on each target and in each
//! round, depend on nobody, and cargo is kept from the network and from anybody's settings. The
//! program that is built runs at the end. What counts is mostly the compiler's time: how far the
//! filesystem is in its way.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use copyhold_harness::Interrupt;

use crate::error::{BenchError, On};
use crate::job::{Job, on_fresh};
use crate::sample::Sample;
use crate::target::{Kind, Site, run};

/// What objects and their debug information take, generously.
const BYTES_A_CRATE: u64 = 8 << 20;
/// Functions in each crate.
const FUNCTIONS: u32 = 200;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CargoBuild {
    /// How many crates
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    crates: u32,
}

impl Job for CargoBuild {
    fn name(&self) -> &'static str {
        "cargo-build"
    }

    fn data_bytes(&self) -> u64 {
        u64::from(self.crates) * BYTES_A_CRATE
    }

    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        let mut version = Command::new("cargo");
        version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        match (kind.keeps_data(), version.status()) {
            (false, _) => Some("a compiler needs what it wrote"),
            (true, Ok(status)) if status.success() => None,
            (true, _) => Some("there is no cargo here"),
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
            let workspace = target.directory().join("workspace");
            self.write_sources(&workspace)?;
            let built = build(&workspace)?;
            interrupt.check()?;
            target.cool()?;
            write_source(&workspace, 0, 1)?;
            let rebuilt = build(&workspace)?;
            self.verify(&workspace)?;
            Ok(vec![Sample::seconds("build", built), Sample::seconds("rebuild", rebuilt)])
        })
    }
}

impl CargoBuild {
    fn write_sources(&self, workspace: &Path) -> Result<(), BenchError> {
        write(
            &workspace.join("Cargo.toml"),
            "[workspace]\nmembers = [\"c*\"]\nresolver = \"2\"\n",
        )?;
        (0..self.crates).try_for_each(|of| {
            let needs = if of == 0 { "" } else { "c0 = { path = \"../c0\" }\n" };
            let manifest = format!(
                "[package]\nname = \"c{of}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
                 [dependencies]\n{needs}"
            );
            write(&workspace.join(format!("c{of}/Cargo.toml")), &manifest)?;
            write_source(workspace, of, 0)
        })?;
        let main = "fn main() { println!(\"{}\", c0::f0(1)); }\n";
        write(&workspace.join("c0/src/main.rs"), main)
    }

    /// The program says what the sources of the second build say.
    fn verify(&self, workspace: &Path) -> Result<(), BenchError> {
        let says = run(&mut Command::new(workspace.join("target/debug/c0")))?;
        let (expected, found) = (2, says.trim().parse().unwrap_or_default());
        match expected == found {
            true => Ok(()),
            false => Err(BenchError::Wrong { what: "what was built says", expected, found }),
        }
    }
}

/// Functions that call each other; `version` changes what all of them give.
fn write_source(workspace: &Path, of: u32, version: u32) -> Result<(), BenchError> {
    let mut source = String::new();
    for function in 0..FUNCTIONS {
        let callee = match (of, function + 1 < FUNCTIONS) {
            (_, true) if function % 10 != 0 => format!("f{}(n)", function + 1),
            (0, _) => "n".into(),
            _ => format!("c0::f{function}(n)"),
        };
        source += &format!(
            "pub fn f{function}(n: u64) -> u64 {{\n    \
             let all: Vec<String> = (0..n).map(|i| format!(\"{{i}} of {{n}}\")).collect();\n    \
             let long = all.iter().filter(|one| one.len() > {function} + 1000).count();\n    \
             {callee} + long as u64 + {version}\n}}\n"
        );
    }
    write(&workspace.join(format!("c{of}/src/lib.rs")), &source)
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    let shown = path.display().to_string();
    fs::create_dir_all(path.parent().expect("it is in a directory")).on(&shown)?;
    fs::write(path, text).on(&shown)
}

fn build(workspace: &Path) -> Result<Duration, BenchError> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--offline", "--target-dir", "target"]);
    cargo.current_dir(workspace).env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    let began = Instant::now();
    run(&mut cargo).map(|_| began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_built_and_says_which_sources_it_is_from() {
        if (CargoBuild { crates: 1 }).left_out(Kind::Plain).is_some() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let job = CargoBuild { crates: 2 };
        job.write_sources(place.path()).unwrap();
        build(place.path()).unwrap();
        assert!(job.verify(place.path()).is_err(), "these are the first sources");
        write_source(place.path(), 0, 1).unwrap();
        build(place.path()).unwrap();
        job.verify(place.path()).unwrap();
    }
}
