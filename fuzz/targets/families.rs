//! Records of epochs, deadlists, shares and pending releases, under any key: what parses is encoded
//! again as it was.

#![no_main]

use copyhold_format::item::{
    DeadItem, EpochItem, PendingItem, ShareItem, dead_key, epoch_key, share_key,
};
use copyhold_types::{BlockAddr, EpochId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((object, rest)) = data.split_first_chunk() else { return };
    let Some((offset, value)) = rest.split_first_chunk() else { return };
    let epoch = EpochId(u64::from_le_bytes(*object));
    let addr = BlockAddr::from_raw(u64::from_le_bytes(*offset));
    if let Ok(item) = EpochItem::parse(epoch_key(epoch), value) {
        assert_eq!(item.encode(), value);
    }
    if let Ok(item) = DeadItem::parse(dead_key(epoch, addr), value) {
        assert_eq!(item.encode(), value);
    }
    if let Ok(item) = ShareItem::parse(share_key(addr), value) {
        assert_eq!(item.encode(), value);
    }
    if let Ok(item) = PendingItem::parse(value) {
        assert_eq!(item.encode(), value);
    }
});
