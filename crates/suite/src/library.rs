//! The files that hold scenarios.

use std::fs;
use std::path::PathBuf;

use crate::error::{On, SuiteError};
use crate::parse::parse;
use crate::scenario::Scenario;

/// A scenario and where it is written.
pub(crate) struct Entry {
    pub(crate) file: PathBuf,
    pub(crate) scenario: Scenario,
}

impl Entry {
    /// The file's name without its ending.
    pub(crate) fn name(&self) -> String {
        self.file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Reads all of them; a mistake in one is told before any is played.
pub(crate) fn load(paths: &[PathBuf]) -> Result<Vec<Entry>, SuiteError> {
    let load = |file: PathBuf| {
        let text = fs::read_to_string(&file).on(file.display())?;
        match parse(&text) {
            Ok(scenario) => Ok(Entry { file, scenario }),
            Err(source) => Err(SuiteError::Scenario { file, source }),
        }
    };
    files(paths)?.into_iter().map(load).collect()
}

/// Of a directory all that ends in `.scenario`, in order of their names.
pub(crate) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, SuiteError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = fs::read_dir(path).on(path.display())?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path()));
        let mut found: Vec<_> = entries.collect::<Result<_, _>>().on(path.display())?;
        found.retain(|path| path.extension().is_some_and(|ending| ending == "scenario"));
        found.sort();
        if found.is_empty() {
            return Err(SuiteError::NoScenarios(path.clone()));
        }
        files.append(&mut found);
    }
    Ok(files)
}
