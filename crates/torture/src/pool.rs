//! The pool of a run: quotas are on, and its daemon writes a log beside it.

use std::path::PathBuf;

use copyhold_harness::{Place, Pool, Program};

use crate::error::TortureError;

/// In a new directory of `parent`, by default of that for temporary files. `options` are those of
/// `copyhold mount -o`, and `program` is by default `copyhold` beside this one.
pub fn in_new_directory(
    parent: Option<PathBuf>,
    prefix: &str,
    program: Option<PathBuf>,
    options: Option<String>,
) -> Result<Pool, TortureError> {
    let place = Place::new(&parent.unwrap_or_else(std::env::temp_dir), prefix)?;
    let log = place.path().join("daemon.log").to_string_lossy().into_owned();
    let mut arguments = vec!["--log-file".to_owned(), log];
    arguments.extend(options.into_iter().flat_map(|options| ["-o".to_owned(), options]));
    Ok(Pool::new(Program::given_or_beside(program)?, place).mounted_with(arguments))
}

/// Makes the pool of `size`, as `copyhold create` understands it, and mounts it.
pub fn create_and_mount(pool: &Pool, size: &str) -> Result<(), TortureError> {
    pool.create(&["--size", size])?;
    pool.mount()?;
    pool.run(&["quota", "enable", "--simple"], &[&pool.mount_point()])?;
    Ok(())
}
