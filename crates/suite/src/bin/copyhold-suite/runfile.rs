//! Runfiles → sections, each with its tests and options.
//!
//! Problem.  A suite has hundreds of scripts. One text must define which of them run, in which
//!           groups, as which user and for how long, and two texts must be joined into one run.
//! Idea.     INI, as the test runner of OpenZFS reads it. `[DEFAULT]` sets options for all
//!           sections; `[DIRECTORY]` is a group with a list `tests`; `[FILE]` is one test. A
//!           section may be `[PATH:IDENTIFIER]`, so a directory can be several groups.
//!
//! RUNFILE-F1  An unknown option or a value that has no meaning is an error before any test runs.
//! RUNFILE-F2  An option of a section replaces that of DEFAULT; an empty value disables it.
//! RUNFILE-F3  No two sections have the same name, in one file or in several.
//! RUNFILE-F4  Paths of tests stay below the directory of the suite.
//! RUNFILE-F5  No option is twice in one section of a file.
//!
//! `outline.rs` finds lines, `plan.rs` the files that sections name, and `select.rs` chooses them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use configparser::ini::{Ini, IniDefault};

use crate::error::{On, RunnerError};
use crate::list;
use crate::outline::{self, Entry};

const DEFAULT: &str = "DEFAULT";
/// Seconds for a script, unless the runfile sets them.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Scripts are as written; an empty one is disabled. An empty user is the runner's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) pre: String,
    pub(crate) pre_user: String,
    pub(crate) post: String,
    pub(crate) post_user: String,
    pub(crate) user: String,
    /// `None` is no limit.
    pub(crate) timeout: Option<Duration>,
    pub(crate) outputdir: Option<PathBuf>,
    pub(crate) quiet: bool,
    pub(crate) failsafe: String,
    pub(crate) failsafe_user: String,
    pub(crate) tags: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            pre: String::new(),
            pre_user: String::new(),
            post: String::new(),
            post_user: String::new(),
            user: String::new(),
            timeout: Some(TIMEOUT),
            outputdir: None,
            quiet: false,
            failsafe: String::new(),
            failsafe_user: String::new(),
            tags: Vec::new(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) path: String,
    pub(crate) identifier: Option<String>,
    /// `None` where the section is one test.
    pub(crate) tests: Option<Vec<String>>,
    pub(crate) options: Options,
}

/// All runfiles of a run.
#[derive(Debug, Default)]
pub(crate) struct Runfile {
    pub(crate) defaults: Options,
    pub(crate) sections: Vec<Section>,
}

impl Runfile {
    /// Options of DEFAULT of a later file replace those of an earlier one, for all sections.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Runfile, RunnerError> {
        let texts: Vec<_> = files
            .iter()
            .map(|file| fs::read_to_string(file).on(file.display()))
            .collect::<Result<_, _>>()?;
        let texts = files.iter().map(PathBuf::as_path).zip(texts.iter().map(String::as_str));
        Runfile::parse(&texts.collect::<Vec<_>>())
    }

    fn parse(texts: &[(&Path, &str)]) -> Result<Runfile, RunnerError> {
        let mut files = Vec::new();
        let mut names = BTreeSet::new();
        for &(file, text) in texts {
            let entries = outline::entries(text, DEFAULT);
            refuse_repeats(&entries, &mut names).map_err(|(line, message)| RunnerError::Line {
                file: file.to_owned(),
                line,
                message,
            })?;
            let sections = ini().read(text.to_owned());
            let sections = sections
                .map_err(|message| RunnerError::Runfile { file: file.to_owned(), message })?;
            files.push((file, entries, sections));
        }
        let mut runfile = Runfile::default();
        for (file, entries, sections) in &files {
            for (key, value) in sections.get(DEFAULT).into_iter().flatten() {
                runfile.defaults.set(key, value.as_deref()).map_err(|message| {
                    let line = outline::line(entries, DEFAULT, Some(key));
                    RunnerError::Line { file: file.to_path_buf(), line, message }
                })?;
            }
        }
        for (file, entries, sections) in &files {
            for (name, options) in sections.iter().filter(|(name, _)| *name != DEFAULT) {
                let wrong = |key: Option<&str>, message: String| RunnerError::Line {
                    file: file.to_path_buf(),
                    line: outline::line(entries, name, key),
                    message: format!("[{name}]: {message}"),
                };
                let section = Section::new(name, &runfile.defaults);
                let mut section = section.map_err(|message| wrong(None, message))?;
                for (key, value) in options {
                    let set = section.set(key, value.as_deref());
                    set.map_err(|message| wrong(Some(key), message))?;
                }
                runfile.sections.push(section);
            }
        }
        Ok(runfile)
    }
}

impl Section {
    fn new(name: &str, defaults: &Options) -> Result<Section, String> {
        let (path, identifier) = match name.split_once(':') {
            Some((path, identifier)) => (path, Some(identifier.to_owned())),
            None => (name, None),
        };
        let path = stays_below(path)?.to_owned();
        Ok(Section { path, identifier, tests: None, options: defaults.clone() })
    }

    fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        match (key, value) {
            ("tests", Some(value)) => self.tests = Some(tests(value)?),
            (key, value) => self.options.set(key, value)?,
        }
        Ok(())
    }
}

impl Options {
    fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        let value = value.ok_or_else(|| format!("'{key}' has no value"))?.trim();
        let text = value.to_owned();
        match key {
            "pre" => self.pre = text,
            "pre_user" => self.pre_user = text,
            "post" => self.post = text,
            "post_user" => self.post_user = text,
            "user" => self.user = text,
            "timeout" => self.timeout = timeout(value)?,
            "outputdir" => self.outputdir = (!text.is_empty()).then(|| text.into()),
            "quiet" => self.quiet = truth(value)?,
            "failsafe" => self.failsafe = text,
            "failsafe_user" => self.failsafe_user = text,
            "tags" => self.tags = list::parse(value).map_err(|error| format!("tags: {error}"))?,
            "tests" => return Err("tests are those of a section, not of DEFAULT".to_owned()),
            _ => return Err(format!("'{key}' is no option of a runfile")),
        }
        Ok(())
    }
}

fn ini() -> Ini {
    let mut rules = IniDefault::default();
    rules.default_section = DEFAULT.to_owned();
    rules.delimiters = vec!['='];
    rules.case_sensitive = true;
    rules.multiline = true;
    rules.enable_inline_comments = false;
    Ini::new_from_defaults(rules)
}

/// RUNFILE-F3 and RUNFILE-F5, for one file; `names` are the sections of all. An error has a line.
fn refuse_repeats<'a>(
    entries: &[Entry<'a>],
    names: &mut BTreeSet<&'a str>,
) -> Result<(), (usize, String)> {
    let mut options = BTreeSet::new();
    for &Entry { line, section, key } in entries {
        let message = match key {
            None if section != DEFAULT && !names.insert(section) => {
                format!("[{section}] is there twice; use [{section}:IDENTIFIER]")
            }
            Some(key) if !options.insert((section, key)) => {
                format!("[{section}]: '{key}' is there twice")
            }
            _ => continue,
        };
        return Err((line, message));
    }
    Ok(())
}

fn tests(value: &str) -> Result<Vec<String>, String> {
    let tests = list::parse(value).map_err(|error| format!("tests: {error}"))?;
    match tests.iter().find(|test| test.is_empty()) {
        Some(_) => Err("tests: a test has no name".to_owned()),
        None => tests.iter().try_for_each(|test| stays_below(test).map(drop)).map(|()| tests),
    }
}

fn stays_below(path: &str) -> Result<&str, String> {
    let leaves = Path::new(path).components().any(|part| part == Component::ParentDir);
    if leaves { Err(format!("'{path}' leaves the suite")) } else { Ok(path) }
}

fn timeout(value: &str) -> Result<Option<Duration>, String> {
    match value.parse() {
        Ok(0) => Ok(None),
        Ok(seconds) => Ok(Some(Duration::from_secs(seconds))),
        Err(_) => Err(format!("timeout: '{value}' is no number of seconds")),
    }
}

fn truth(value: &str) -> Result<bool, String> {
    match value {
        "True" | "true" => Ok(true),
        "False" | "false" | "" => Ok(false),
        _ => Err(format!("quiet: '{value}' is neither True nor False")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Runfile, String> {
        Runfile::parse(&[(Path::new("a.run"), text)]).map_err(|error| error.to_string())
    }

    const RUNFILE: &str = "\
# A comment.
[DEFAULT]
pre = setup
post = cleanup
user = root
timeout = 600
outputdir = /var/tmp/results
tags = ['functional']

[tests/acl]
tests = ['one', 'two',
    'three']
pre =
post_user = nobody
tags = ['functional', 'acl']

[tests/acl:again]
tests = ['one']
timeout = 0

[tests/single.sh]
quiet = True
";

    #[test]
    fn sections_replace_options_of_default() {
        let runfile = parse(RUNFILE).unwrap();
        let [acl, again, single] = &runfile.sections[..] else { panic!("three sections") };
        assert_eq!(acl.path, "tests/acl");
        assert_eq!(acl.tests.as_deref().unwrap(), ["one", "two", "three"]);
        assert_eq!((acl.options.pre.as_str(), acl.options.post.as_str()), ("", "cleanup"));
        assert_eq!((acl.options.user.as_str(), acl.options.post_user.as_str()), ("root", "nobody"));
        assert_eq!(acl.options.timeout, Some(Duration::from_secs(600)));
        assert_eq!(acl.options.tags, ["functional", "acl"]);
        assert_eq!(
            (again.path.as_str(), again.identifier.as_deref()),
            ("tests/acl", Some("again"))
        );
        assert_eq!((again.options.timeout, again.options.pre.as_str()), (None, "setup"));
        assert_eq!(again.options.tags, ["functional"]);
        assert_eq!((single.tests.as_deref(), single.options.quiet), (None, true));
        assert_eq!(runfile.defaults.outputdir.as_deref(), Some(Path::new("/var/tmp/results")));
    }

    #[test]
    fn a_script_has_a_minute_unless_the_runfile_sets_its_time() {
        let runfile = parse("[a]\ntests = ['x']\n").unwrap();
        assert_eq!(runfile.sections[0].options.timeout, Some(Duration::from_secs(60)));
    }

    #[test]
    fn several_runfiles_are_joined() {
        let common = "[DEFAULT]\nuser = root\ntimeout = 5\n[a]\ntests = ['x']\n";
        let own = "[DEFAULT]\ntimeout = 7\n[b]\ntests = ['y']\n";
        let files = [(Path::new("common"), common), (Path::new("own"), own)];
        let runfile = Runfile::parse(&files).unwrap();
        let names: Vec<_> = runfile.sections.iter().map(|it| it.path.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        for section in &runfile.sections {
            assert_eq!(section.options.timeout, Some(Duration::from_secs(7)));
            assert_eq!(section.options.user, "root");
        }
        let twice = Runfile::parse(&[(Path::new("one"), own), (Path::new("two"), own)]);
        let says = "two:3: [b] is there twice; use [b:IDENTIFIER]";
        assert_eq!(twice.unwrap_err().to_string(), says);
    }

    #[test]
    fn bad_runfiles_are_refused_with_the_reason() {
        for (text, says) in [
            ("[a]\ntests = ['x']\ncolour = red\n", "a.run:3: [a]: 'colour' is no option"),
            ("[DEFAULT]\ntime = 5\n", "a.run:2: 'time' is no option of a runfile"),
            ("[DEFAULT]\ntests = ['x']\n", "tests are those of a section"),
            ("colour = red\n", "'colour' is no option"),
            ("[a]\ntests = x\n", "a.run:2: [a]: tests: 'x' is no list"),
            ("[a]\ntests = ['../x']\n", "'../x' leaves the suite"),
            ("\n[../a]\ntests = ['x']\n", "a.run:2: [../a]: '../a' leaves the suite"),
            ("[a]\ntests = ['']\n", "a test has no name"),
            ("[a]\ntests\n", "'tests' has no value"),
            ("[a]\ntimeout = soon\n", "timeout: 'soon' is no number of seconds"),
            ("[a]\ntimeout = -1\n", "timeout: '-1' is no number"),
            ("[a]\nquiet = maybe\n", "quiet: 'maybe' is neither"),
            ("[a]\ntags = 'functional'\n", "tags: ''functional'' is no list"),
            ("[a]\ntests = ['x']\n[a]\ntests = ['y']\n", "a.run:3: [a] is there twice"),
            ("[a]\ntests = ['x']\n [a]\ntests = ['y']\n", "a.run:3: [a] is there twice"),
            ("[a]\ntests = ['x']\ntests = ['y']\n", "a.run:3: [a]: 'tests' is there twice"),
            ("[DEFAULT]\nuser=a\n[DEFAULT]\nuser=b\n", "a.run:4: [DEFAULT]: 'user' is there"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
