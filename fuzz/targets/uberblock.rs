//! An uberblock, as read and with its digest set right.

#![no_main]

use copyhold_format::uberblock::Uberblock;
use copyhold_types::PoolId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let pool =
        |bytes: &[u8]| PoolId(std::array::from_fn(|n| bytes.get(16 + n).copied().unwrap_or(0)));
    let _ = Uberblock::parse(data, pool(data));
    let mut block = copyhold_fuzz::block(data);
    copyhold_fuzz::set_digest(&mut block);
    if let Ok(uberblock) = Uberblock::parse(&block, pool(&block)) {
        assert_eq!(Uberblock::parse(&uberblock.encode(), pool(&block)), Ok(uberblock));
    }
});
