//! Records of the log: they end, and what is read is written again alike.

#![no_main]

use copyhold_format::log::{Record, RecordWriter, Records};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let records: Vec<Record<'_>> = Records::new(data).map_while(Result::ok).collect();
    let mut writer = RecordWriter::default();
    records.iter().for_each(|record| writer.push(*record));
    let bytes = writer.finish();
    let again: Vec<_> = Records::new(&bytes).map(Result::unwrap).collect();
    assert_eq!(records, again);
});
