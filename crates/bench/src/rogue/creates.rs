//! Create: threads that make files under new names, and unlink each when so many came after it.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;

use super::setting::{Setting, Step, threads};
use crate::error::{BenchError, On};

/// Names in a directory: a thread takes another directory then.
const NAMES: u64 = 10_000;

pub(super) fn of_new_names<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    let most = (setting.sizes.entries / setting.sizes.workers).max(1) as usize;
    threads(setting.sizes.workers, |number| {
        let root = setting.path(&format!("create.{number}"));
        fs::create_dir(&root).on(root.display())?;
        let (mut made, mut next) = (VecDeque::new(), 0);
        Ok(move || {
            let directory = root.join((next / NAMES).to_string());
            if next % NAMES == 0 {
                fs::create_dir(&directory).on("mkdir")?;
            }
            let path: PathBuf = directory.join(next.to_string());
            next += 1;
            fs::File::create_new(&path).on("create")?;
            made.push_back(path);
            if made.len() <= most {
                return Ok(1);
            }
            let oldest = made.pop_front().expect("there are more than none");
            fs::remove_file(&oldest).on("unlink")?;
            Ok(2)
        })
    })
}
