//! Records of quotas: what parses is encoded again as it was.

#![no_main]

use copyhold_format::item::{
    GroupId, GroupItem, InodesItem, QuotaItem, UsageItem, encode_heir, parse_heir,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(item) = QuotaItem::parse(data) {
        assert_eq!(&item.encode()[..], data);
    }
    if let Ok(item) = UsageItem::parse(data) {
        assert_eq!(&item.encode()[..], data);
    }
    if let Ok(item) = GroupItem::parse(data) {
        assert_eq!(&item.encode()[..], data);
    }
    if let Ok(item) = InodesItem::parse(data) {
        assert_eq!(&item.encode()[..], data);
    }
    if let Ok(heir) = parse_heir(data) {
        assert_eq!(&encode_heir(heir)[..], data);
    }
    if let Ok(Ok(id)) = std::str::from_utf8(data).map(str::parse::<GroupId>) {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
});
