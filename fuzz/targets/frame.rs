//! A frame of the log as read, and what its payload may be, whatever wraps it.

#![no_main]

use copyhold_format::log::{Batch, Frame, Records};
use copyhold_types::{PoolId, Txg};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let pool = PoolId(std::array::from_fn(|n| data.get(8 + n).copied().unwrap_or(0)));
    let position = data.get(48..56).map_or(0, |at| u64::from_le_bytes(at.try_into().unwrap()));
    let claimed = Frame::claimed_blocks(data, pool, position);
    if let Ok(frame) = Frame::parse(data, pool, 0, position) {
        assert_eq!(claimed, Some(frame.blocks));
    }
    let txg = Txg::new(1 + position % 1000).unwrap();
    if let Ok(batch) = Batch::parse(data, txg) {
        assert_eq!(Batch::parse(&batch.encode(), txg).as_ref(), Ok(&batch));
        Records::new(&batch.records).for_each(|_| ());
    }
});
