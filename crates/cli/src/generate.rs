//! `copyhold generate`, hidden: man pages and completions out of the definitions of the command
//! line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::command_line::CommandLine;
use crate::failure::{EXIT_CODES, Failure};

/// Write man pages or shell completions
#[derive(Debug, clap::Args)]
pub(crate) struct Generate {
    what: What,
    /// Where to write them; made if it is not there
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    Man,
    Completions,
}

impl Generate {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let directory = &self.directory;
        let made = fs::create_dir_all(directory).and_then(|()| match self.what {
            What::Man => man_pages(directory),
            What::Completions => completions(directory),
        });
        made.map_err(|error| Failure::system(directory.display(), &error))
    }
}

/// `copyhold.1` and one page a verb: `copyhold-mount.1`, `copyhold-debug-log.1`.
fn man_pages(directory: &Path) -> io::Result<()> {
    // `--log` shows the variable it falls back to, not its value here.
    let root = CommandLine::command().disable_help_subcommand(true);
    man_page(root, "copyhold", directory)
}

fn man_page(command: clap::Command, name: &str, directory: &Path) -> io::Result<()> {
    let title: &'static str = name.to_owned().leak();
    let mut command = command.name(title).version(env!("CARGO_PKG_VERSION"));
    command.build();
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    if name == "copyhold" {
        text.extend_from_slice(b".SH EXIT STATUS\n");
        for (status, meaning) in EXIT_CODES {
            text.extend_from_slice(format!(".TP\n{status}\n{meaning}\n").as_bytes());
        }
    }
    fs::write(directory.join(format!("{name}.1")), text)?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        man_page(verb.clone(), &format!("{name}-{}", verb.get_name()), directory)?;
    }
    Ok(())
}

fn completions(directory: &Path) -> io::Result<()> {
    for (shell, file) in
        [(Shell::Bash, "copyhold.bash"), (Shell::Zsh, "_copyhold"), (Shell::Fish, "copyhold.fish")]
    {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut CommandLine::command(), "copyhold", &mut text);
        fs::write(directory.join(file), text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verb_has_a_page_and_each_shell_a_file() {
        let directory = tempfile::tempdir().unwrap();
        man_pages(directory.path()).unwrap();
        completions(directory.path()).unwrap();
        for file in [
            "copyhold.1",
            "copyhold-mount.1",
            "copyhold-debug-log.1",
            "copyhold-subvolume-snapshot.1",
            "copyhold-property-set.1",
            "copyhold-quota-enable.1",
            "copyhold-qgroup-limit.1",
            "copyhold-memory-set.1",
            "copyhold-df.1",
            "_copyhold",
        ] {
            assert!(directory.path().join(file).is_file(), "{file}");
        }
        assert!(!directory.path().join("copyhold-generate.1").exists());
        let bash = fs::read_to_string(directory.path().join("copyhold.bash")).unwrap();
        assert!(bash.contains("clear-stale") && bash.contains("--heir"));
        let page = fs::read_to_string(directory.path().join("copyhold.1")).unwrap();
        assert!(page.contains(".SH EXIT STATUS"));
        assert!(page.contains("copy-on-write") || page.contains("Copy\\-on\\-write"));
    }
}
