//! Makes a pool, serves it at a directory from this very process, and uses it as any program does.
//!
//! `cargo run -p copyhold --example mount POOL DIRECTORY`

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use copyhold::{CreateOptions, MountOptions, Pool};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(pool), Some(directory)) = (arguments.next(), arguments.next()) else {
        return Err("usage: mount POOL DIRECTORY".into());
    };
    Pool::create(&pool, &CreateOptions::sized(256 << 20))?;
    fs::create_dir_all(&directory)?;

    let options = MountOptions::parse("nosuid,nodev")?;
    let mut mounted = Pool::mount(&pool, &directory, &options)?;
    fs::write(directory.join("greeting"), "hello from a mount\n")?;
    print!("{}", fs::read_to_string(directory.join("greeting"))?);
    mounted.unmount()?;

    assert!(!directory.join("greeting").exists(), "it is unmounted");
    let pool = Pool::open(&pool, Default::default())?;
    assert_eq!(pool.root().read("greeting")?, b"hello from a mount\n");
    Ok(pool.close()?)
}
