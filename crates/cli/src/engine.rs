//! The engine, as the verbs use it.

use std::path::Path;

use serde_json::Value;

use crate::check::Verdict;
use crate::failure::{Failure, Kind};
use crate::mount::Request;
use crate::size::Size;

/// What `create` allocates on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Preallocate {
    /// Nothing; a full host may fail commits
    None,
    /// What commits need: log, labels, reserve
    Log,
    /// Everything: the pool never grows
    Written,
}

fn not_yet() -> Failure {
    Failure::new(Kind::Failed, "this build has no engine")
}

pub(crate) fn create(
    _pool: &Path,
    _size: Option<Size>,
    _preallocate: Preallocate,
    _label: &str,
) -> Result<Value, Failure> {
    Err(not_yet())
}

pub(crate) fn serve(_request: Request, _ready: impl FnOnce()) -> Result<(), Failure> {
    Err(not_yet())
}

pub(crate) fn is_locked(_pool: &Path) -> Result<bool, Failure> {
    Ok(false)
}

pub(crate) fn looks_like_a_pool(_pool: &Path) -> bool {
    false
}

pub(crate) fn info(_pool: &Path) -> Result<Value, Failure> {
    Err(not_yet())
}

pub(crate) fn check(_pool: &Path, _data: bool) -> Result<Verdict, Failure> {
    Err(not_yet())
}

pub(crate) fn debug_labels(_pool: &Path) -> Result<Value, Failure> {
    Err(not_yet())
}

pub(crate) fn debug_log(_pool: &Path) -> Result<Value, Failure> {
    Err(not_yet())
}

pub(crate) fn debug_tables(_pool: &Path) -> Result<Value, Failure> {
    Err(not_yet())
}

pub(crate) fn debug_nodes(_pool: &Path, _table: Option<u64>) -> Result<Value, Failure> {
    Err(not_yet())
}

pub(crate) fn debug_space(_pool: &Path) -> Result<Value, Failure> {
    Err(not_yet())
}
