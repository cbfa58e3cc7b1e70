//! Items of files: what parses is encoded again as it was.

#![no_main]

use copyhold_format::item::{
    DirBucket, Extent, InodeItem, SubvolItem, XattrBucket, parse_inline, parse_symlink,
    parse_truncate,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(item) = InodeItem::parse(data) {
        assert_eq!(item.encode(), data);
    }
    if let Ok(item) = Extent::parse(data) {
        assert_eq!(&item.encode()[..], data);
    }
    if let Ok(item) = SubvolItem::parse(data) {
        assert_eq!(item.encode(), data);
    }
    if let Ok(bucket) = DirBucket::parse(data) {
        bucket.iter().for_each(|entry| assert!(bucket.find(entry.name).is_some()));
        let _ = bucket
            .find(b"name")
            .is_none()
            .then(|| bucket.with(8, copyhold_types::InodeNo(5), b"name"));
    }
    if let Ok(bucket) = XattrBucket::parse(data) {
        bucket.iter().for_each(|entry| assert!(bucket.find(entry.name).is_some()));
        bucket.iter().for_each(|entry| drop(bucket.without(entry.name)));
    }
    let _ = (parse_inline(data), parse_symlink(data), parse_truncate(data));
});
