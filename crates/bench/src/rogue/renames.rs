//! Rename: many threads, each of which makes a file and renames it over the same name.

use std::fs::{self, File};

use super::setting::{Setting, Step, threads};
use crate::error::{BenchError, On};

pub(super) fn over_one_name<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    drop(setting.file("over")?);
    threads(setting.sizes.threads, |number| {
        let (made, over) = (setting.path(&format!("made.{number}")), setting.path("over"));
        Ok(move || {
            File::create(&made).on("create")?;
            fs::rename(&made, &over).on("rename")?;
            Ok(2)
        })
    })
}
