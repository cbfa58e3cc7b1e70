//! The pool of a run: quotas are on, and its daemon writes a log beside it.

use std::path::PathBuf;
use std::process::Command;

use copyhold_harness::{LoopDevice, Place, Pool, Program, run};

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

/// On a loop device of `size` over the image of the pool.
pub fn on_loop_device(pool: Pool, size: &str) -> Result<Pool, TortureError> {
    let image = pool.place().image();
    run(Command::new("truncate").args(["--size", size]).arg(&image))?;
    let device = LoopDevice::over(&image, &[])?;
    Ok(pool.on(device))
}

/// Makes the pool with these arguments of `copyhold create`, and mounts it.
pub fn create_and_mount(pool: &Pool, create: &[&str]) -> Result<(), TortureError> {
    pool.create(create)?;
    pool.mount()?;
    pool.run(&["quota", "enable", "--simple"], &[&pool.mount_point()])?;
    Ok(())
}
