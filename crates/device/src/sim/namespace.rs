//! Namespaces with protection information on simulated disks, as tests make them.

use std::sync::Arc;

use copyhold_runtime::SeededRuntime;

use super::SimDevice;
use crate::pi::Emulated;

/// A new emulated namespace of this format on the whole disk.
///
/// # Panics
/// The format is none, the disk is too small, or it fails a request.
pub fn make_namespace(
    rt: &Arc<SeededRuntime>,
    disk: &Arc<SimDevice>,
    format: &str,
) -> Arc<Emulated> {
    let format = format.parse().expect("it is a format");
    let made = Emulated::create(rt.clone(), disk.clone(), format);
    rt.block_on(made).expect("a namespace is made")
}
