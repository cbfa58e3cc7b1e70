//! The transport that tests of the mount use: `COPYHOLD_TEST_TRANSPORT` is auto, dev or uring.

use std::env;
use std::fs;

fn named() -> Option<String> {
    env::var("COPYHOLD_TEST_TRANSPORT").ok()
}

/// Arguments of `copyhold mount` that choose it.
pub fn arguments() -> Vec<String> {
    named().map_or_else(Vec::new, |name| vec!["-o".into(), format!("transport={name}")])
}

/// Whether the kernel offers FUSE over io_uring.
pub fn has_ring() -> bool {
    let enabled = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    enabled.is_ok_and(|text| text.starts_with('Y'))
}

/// Whether the kernel offers the chosen one.
pub(crate) fn is_offered() -> bool {
    named().is_none_or(|name| name != "uring") || has_ring()
}
