//! Xattr: extended attributes of the largest size, set again and again.

use rustix::fs::{XattrFlags, fsetxattr};

use super::setting::{Setting, Step, threads};
use super::writes::content;
use crate::error::{BenchError, On};

/// `XATTR_SIZE_MAX` of Linux.
const LARGEST: usize = 64 << 10;

pub(super) fn large<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    threads(setting.sizes.workers, |number| {
        let file = setting.file(&format!("xattr.{number}"))?;
        let mut value = content(LARGEST);
        Ok(move || {
            // Each value differs from the one before.
            value[0] = value[0].wrapping_add(1);
            fsetxattr(&file, "user.rogue", &value, XattrFlags::empty()).on("setxattr")?;
            Ok(1)
        })
    })
}
