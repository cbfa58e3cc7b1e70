//! `fsck.copyhold [-apynrfvV] POOL`, as fsck(8) calls it at boot.
//!
//! A pool needs no check after a crash: mounting recovers it. The options of boot (-a, -p) verify
//! all metadata, everything else the contents of files, too. Nothing is repaired here: damage with
//! a good copy is repaired when it is read on a mount. Exit codes are those of fsck(8): 4 damage
//! was found, 8 the check itself failed, 16 usage.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::check;
use crate::engine;
use crate::failure::{Failure, Kind};
use crate::getopt::Parsed;
use crate::report;

const DAMAGED: u8 = 4;
const FAILED: u8 = 8;
const USAGE: u8 = 16;

pub(crate) fn run(arguments: Vec<OsString>) -> u8 {
    match verify(arguments) {
        Ok(()) => 0,
        Err(failure) => {
            failure.report(false);
            match failure.kind {
                Kind::Damaged => DAMAGED,
                Kind::Usage => USAGE,
                _ => FAILED,
            }
        }
    }
}

fn verify(arguments: Vec<OsString>) -> Result<(), Failure> {
    // -C has an optional value, the descriptor for progress; there is none to show.
    let plain = arguments.into_iter().filter(|text| !text.as_bytes().starts_with(b"-C")).collect();
    let parsed = Parsed::new(plain, "t")?;
    let unknown = parsed.flags.iter().find(|(flag, _)| !"apynrfvVTMNt".contains(*flag));
    if let Some((flag, _)) = unknown {
        return Err(Failure::usage(format!(
            "unknown flag -{flag}; fsck.copyhold takes -a -y -n -f"
        )));
    }
    let [pool] = &parsed.operands[..] else {
        return Err(Failure::usage("usage: fsck.copyhold [-apynf] POOL"));
    };
    let pool = Path::new(pool);
    let at_boot = (parsed.has('a') || parsed.has('p')) && !parsed.has('f');
    let found = engine::patiently(pool, || engine::check(pool, !at_boot))?;
    report::print(&check::text(pool, &found))?;
    check::verdict(pool, &found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_errors_have_the_code_of_fsck() {
        assert_eq!(run(vec![]), USAGE);
        assert_eq!(run(vec!["-Z".into(), "x.img".into()]), USAGE);
    }
}
