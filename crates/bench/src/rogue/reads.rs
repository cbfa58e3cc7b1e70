//! Read: threads that read a large file directly, at random.

use std::os::unix::fs::FileExt;

use super::setting::{Setting, Step, threads};
use crate::direct::{self, Page, Way};
use crate::error::{BenchError, On};
use crate::places::{BLOCK, Places, fill_file};

pub(super) fn of_a_large_file<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    let (path, blocks) = (setting.path("read"), setting.sizes.mapping / BLOCK as u64);
    fill_file(&path, blocks, 1, setting.stop)?;
    threads(setting.sizes.threads, |number| {
        let file = direct::open(&path, Way::Read)?;
        let mut page = Box::new(Page([0; BLOCK]));
        let mut places = Places::random(blocks, number.into());
        Ok(move || {
            file.read_exact_at(&mut page.0, places.next_offset()).on("direct read")?;
            Ok(1)
        })
    })
}
