//! Sections of runfiles → groups of scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::runfile::{Options, Runfile, Section};

/// A script, and the user that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Below the directory of the suite; reports show it.
    pub(crate) name: String,
    pub(crate) script: PathBuf,
    /// Empty: the runner's own.
    pub(crate) user: String,
}

/// A setup, tests and a cleanup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) identifier: Option<String>,
    pub(crate) setup: Option<Step>,
    pub(crate) tests: Vec<Step>,
    pub(crate) cleanup: Option<Step>,
    pub(crate) failsafe: Option<Step>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) quiet: bool,
    pub(crate) tags: Vec<String>,
}

/// All groups of runfiles whose paths are those below `root`.
pub(crate) fn groups(runfile: &Runfile, root: &Path) -> Vec<Group> {
    runfile.sections.iter().map(|section| group(section, root)).collect()
}

/// A group for one script that no runfile names, with setup and cleanup if its directory has them.
pub(crate) fn group_of_script(name: &str, root: &Path, defaults: &Options) -> Option<Group> {
    const TIMEOUT: Duration = Duration::from_secs(600);
    let script = root.join(name);
    if !script.is_file() {
        return None;
    }
    let has = |beside: &str| match script.with_file_name(beside).is_file() {
        true => beside.to_owned(),
        false => String::new(),
    };
    let options = Options {
        pre: has("setup"),
        post: has("cleanup"),
        timeout: Some(TIMEOUT),
        ..defaults.clone()
    };
    let section = Section { path: name.to_owned(), identifier: None, tests: None, options };
    Some(group(&section, root))
}

fn group(section: &Section, root: &Path) -> Group {
    let options = &section.options;
    let path = Path::new(&section.path);
    let (directory, tests) = match &section.tests {
        Some(tests) => (path, tests.clone()),
        None => {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (path.parent().unwrap_or(Path::new("")), vec![file])
        }
    };
    let beside = |script: &str, user: &str| step(directory, script, user, root);
    let optional = |script: &str, user| (!script.is_empty()).then(|| beside(script, user));
    Group {
        name: section.path.clone(),
        identifier: section.identifier.clone(),
        setup: optional(&options.pre, &options.pre_user),
        tests: tests.iter().map(|test| beside(test, &options.user)).collect(),
        cleanup: optional(&options.post, &options.post_user),
        failsafe: (!options.failsafe.is_empty())
            .then(|| step(Path::new(""), &options.failsafe, &options.failsafe_user, root)),
        timeout: options.timeout,
        quiet: options.quiet,
        tags: options.tags.clone(),
    }
}

fn step(directory: &Path, script: &str, user: &str, root: &Path) -> Step {
    let name = directory.join(script);
    Step {
        script: root.join(&name),
        name: name.to_string_lossy().into_owned(),
        user: user.to_owned(),
    }
}

impl Group {
    /// The scripts of results, in their order.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.setup.iter().chain(&self.tests).chain(&self.cleanup)
    }

    /// As the section of the runfile.
    pub(crate) fn title(&self) -> String {
        match &self.identifier {
            Some(identifier) => format!("{}:{identifier}", self.name),
            None => self.name.clone(),
        }
    }

    /// The reasons why scripts cannot be started.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.steps().chain(&self.failsafe).filter_map(Step::problem).collect()
    }

    /// Without its failsafe, a test that is killed leaves mounts to all tests behind it.
    pub(crate) fn problem_of_failsafe(&self) -> Option<String> {
        self.failsafe.as_ref().and_then(Step::problem)
    }
}

impl Step {
    fn problem(&self) -> Option<String> {
        use std::os::unix::fs::PermissionsExt;
        let reason = match fs::metadata(&self.script) {
            Err(error) => error.to_string(),
            Ok(file) if !file.is_file() => "is no file".to_owned(),
            Ok(file) if file.permissions().mode() & 0o111 == 0 => "is not executable".to_owned(),
            Ok(_) => return None,
        };
        Some(format!("{}: {reason}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(path: &str, tests: Option<&[&str]>) -> Section {
        let options = Options {
            pre: "setup".into(),
            post: "cleanup".into(),
            post_user: "nobody".into(),
            failsafe: "callbacks/failsafe".into(),
            user: "games".into(),
            ..Options::default()
        };
        let tests = tests.map(|tests| tests.iter().map(|test| test.to_string()).collect());
        Section { path: path.into(), identifier: None, tests, options }
    }

    fn named(name: &str, user: &str) -> Step {
        Step { name: name.into(), script: Path::new("/suite").join(name), user: user.into() }
    }

    #[test]
    fn setup_and_cleanup_are_beside_the_tests_and_failsafe_is_of_the_suite() {
        let group = group(&section("mount", Some(&["a", "b"])), Path::new("/suite"));
        assert_eq!(group.setup, Some(named("mount/setup", "")));
        assert_eq!(group.tests, [named("mount/a", "games"), named("mount/b", "games")]);
        assert_eq!(group.cleanup, Some(named("mount/cleanup", "nobody")));
        assert_eq!(group.failsafe, Some(named("callbacks/failsafe", "")));
        let single = super::group(&section("mount/a", None), Path::new("/suite"));
        assert_eq!(single.tests, [named("mount/a", "games")]);
        assert_eq!(single.setup, Some(named("mount/setup", "")));
    }

    #[test]
    fn a_script_outside_runfiles_has_the_setup_of_its_directory() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        for file in ["d/a", "d/setup"] {
            fs::write(root.path().join(file), "").unwrap();
        }
        let group = group_of_script("d/a", root.path(), &Options::default()).unwrap();
        assert_eq!(group.setup.as_ref().unwrap().name, "d/setup");
        assert_eq!((group.cleanup.as_ref(), group.tests.len()), (None, 1));
        assert_eq!(group.timeout, Some(Duration::from_secs(600)));
        let problems = group.problems();
        assert_eq!(problems, ["d/setup: is not executable", "d/a: is not executable"]);
        assert_eq!(group_of_script("d/b", root.path(), &Options::default()), None);
    }

    /// Each script of the functional suite is in its runfile and can be started.
    #[test]
    fn the_suite_lists_all_of_its_scripts() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/functional");
        let runfile = Runfile::read(&[root.join("functional.run")]).unwrap();
        let groups = groups(&runfile, &root);
        for group in &groups {
            assert_eq!(group.problems(), [""; 0]);
            assert!(group.tags.len() > 1, "{} has no tag of its own", group.title());
        }
        let helpers = ["long/acceptance_part"];
        for group in &groups {
            for script in fs::read_dir(root.join(&group.name)).unwrap() {
                let script = script.unwrap().file_name().into_string().unwrap();
                let name = format!("{}/{script}", group.name);
                let mut steps = groups.iter().flat_map(Group::steps);
                let is_listed = steps.any(|step| step.name == name);
                assert!(is_listed || helpers.contains(&name.as_str()), "no group has {name}");
            }
        }
    }
}
