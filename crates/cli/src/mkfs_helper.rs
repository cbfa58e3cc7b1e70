//! `mkfs.copyhold [-qvfF] [--force] [-L LABEL] [-P|--pi FORMAT] POOL [SIZE]`, as mkfs(8) and test
//! suites call it.
//!
//! It refuses what `copyhold create` refuses. `-f` of mkfs.xfs and mkfs.btrfs, `-F` of mkfs.ext4
//! and `--force` overwrite any content, old labels at the device's far end included, unless it is
//! in use. A size without a suffix is in bytes.

use std::ffi::OsString;
use std::path::Path;

use copyhold::{CreateOptions, FormatError, Pool};

use crate::engine;
use crate::failure::Failure;
use crate::getopt::Parsed;
use crate::size::Size;

pub(crate) fn run(arguments: Vec<OsString>) -> u8 {
    match make(arguments) {
        Ok(()) => 0,
        Err(failure) => {
            failure.report(false);
            1
        }
    }
}

fn make(arguments: Vec<OsString>) -> Result<(), Failure> {
    let parsed = Parsed::with_long(arguments, "LPt", &[("force", 'f'), ("pi", 'P')])?;
    if parsed.has('V') {
        return crate::report::print(concat!("mkfs.copyhold ", env!("CARGO_PKG_VERSION"), "\n"));
    }
    let (pool, size) = match &parsed.operands[..] {
        [pool] => (pool, None),
        [pool, size] => (pool, Some(size)),
        _ => {
            return Err(Failure::usage(
                "usage: mkfs.copyhold [-qvfF] [--force] [-L LABEL] [-P|--pi FORMAT] POOL [SIZE]",
            ));
        }
    };
    let size: Option<Size> = size
        .map(|size| size.to_string_lossy().parse())
        .transpose()
        .map_err(|why: String| Failure::usage(why))?;
    let name = parsed.values('L').last().unwrap_or_default();
    let bytes = size.map(|size| size.0);
    let force = parsed.has('f') || parsed.has('F');
    let protection = parsed.values('P').last().map(|format| format.parse()).transpose();
    let protection = protection.map_err(|why: FormatError| Failure::usage(why.to_string()))?;
    let options = CreateOptions { bytes, name, force, protection, ..CreateOptions::default() };
    engine::patiently(Path::new(pool), || Ok(Pool::create(pool, &options)?)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_pool_or_with_nonsense_fails() {
        assert_eq!(run(vec![]), 1);
        assert_eq!(run(vec!["/tmp/no-such.img".into(), "large".into()]), 1);
        assert_eq!(run(vec!["-V".into()]), 0);
    }
}
