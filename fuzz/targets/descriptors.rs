//! Descriptors of partitions and metaslabs, and node pointers.

#![no_main]

use copyhold_format::node::{PartitionDescriptor, decode_ptr, encode_ptr};
use copyhold_format::space_map::Descriptor;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(Some(ptr)) = decode_ptr(data) {
        assert_eq!(decode_ptr(&encode_ptr(&ptr)), Ok(Some(ptr)));
    }
    if let Ok(descriptor) = PartitionDescriptor::parse(data) {
        assert_eq!(PartitionDescriptor::parse(&descriptor.encode()), Ok(descriptor));
    }
    if let Ok(descriptor) = Descriptor::parse(data) {
        assert_eq!(descriptor.encode(), data);
    }
});
