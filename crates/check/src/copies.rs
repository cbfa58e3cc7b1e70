//! Reading every copy of what a node pointer refers to.
//!
//! A reader stops at the first copy that is good; a check must not, and reads past the cache.

use copyhold_device::DynDevice;
use copyhold_format::digest;
use copyhold_types::{Buf, NodePtr, Purpose, Run};
use futures_util::future::join_all;

/// What the copies of a node are worth.
pub(crate) struct Copies {
    pub(crate) good: Option<Buf>,
    pub(crate) bad: Vec<(Run, String)>,
    /// How many were read.
    pub(crate) count: u64,
}

impl Copies {
    pub(crate) async fn read(device: &DynDevice, ptr: NodePtr, why: Purpose) -> Copies {
        let runs: Vec<Run> = ptr.runs().collect();
        let reads = runs.iter().map(|run| read(device, *run, &ptr, why));
        let mut copies = Copies { good: None, bad: Vec::new(), count: runs.len() as u64 };
        for (run, read) in runs.iter().zip(join_all(reads).await) {
            match read {
                Ok(buf) => copies.good = Some(buf),
                Err(problem) => copies.bad.push((*run, problem)),
            }
        }
        copies
    }

    /// What is wrong with the bad ones, in one line.
    pub(crate) fn complaints(&self) -> String {
        let each: Vec<String> =
            self.bad.iter().map(|(run, why)| format!("{run:?}: {why}")).collect();
        each.join("; ")
    }
}

async fn read(device: &DynDevice, run: Run, ptr: &NodePtr, why: Purpose) -> Result<Buf, String> {
    if run.addr.device() != device.id() {
        return Err("it is on no device of the pool".into());
    }
    let read = device.read(run.addr.block(), run.blocks, why).await;
    let buf = read.map_err(|error| error.to_string())?;
    if digest(&buf) == ptr.digest { Ok(buf) } else { Err("its digest does not match".into()) }
}
