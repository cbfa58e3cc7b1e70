//! Reads every copy of a node.
//!
//! A reader stops at the first copy that is good; a check must not, and reads past the cache. Of a
//! fragmented node it reads both lists, and then both copies of the parts in the fragments.

use copyhold_device::DynDevice;
use copyhold_format::digest;
use copyhold_format::node::{Fragment, parse_fragments, pieces_of};
use copyhold_types::{Buf, NodePtr, Purpose, Run};
use futures_util::future::join_all;

/// The state of a node's copies.
pub(crate) struct Copies {
    pub(crate) good: Option<Buf>,
    pub(crate) bad: Vec<(Run, String)>,
    /// How many were read.
    pub(crate) count: u64,
    /// The allocated runs of the node, a pointer to each.
    pub(crate) pieces: Vec<NodePtr>,
}

impl Copies {
    pub(crate) async fn read(device: &DynDevice, ptr: NodePtr, why: Purpose) -> Copies {
        let mut copies = Copies { good: None, bad: Vec::new(), count: 0, pieces: vec![ptr] };
        let lists: Vec<Vec<Run>> = ptr.runs().map(|run| vec![run]).collect();
        let contents = match ptr.fragmented {
            false => lists,
            true => {
                let parse = |buf: &Buf| parse_fragments(buf, &ptr).map_err(|e| e.to_string());
                let fragments = copies.read_all(device, &lists, why, parse).await;
                let fragments = fragments.map(|(_, fragments)| fragments).unwrap_or_default();
                copies.pieces = pieces_of(&ptr, &fragments);
                let runs = |copy: usize| {
                    let run = |of: &Fragment| Some(Run::new(of.copies[copy]?, of.blocks));
                    fragments.iter().map(run).collect::<Option<Vec<Run>>>()
                };
                (0..2).filter_map(runs).filter(|runs| !runs.is_empty()).collect()
            }
        };
        let is_good = |buf: &Buf| match digest(buf) == ptr.digest {
            true => Ok(()),
            false => Err("its digest does not match".to_owned()),
        };
        let good = copies.read_all(device, &contents, why, is_good).await;
        copies.good = good.map(|(buf, ())| buf);
        copies
    }

    /// Reads copies of the same, each in its runs; one that is good.
    async fn read_all<T>(
        &mut self,
        device: &DynDevice,
        copies: &[Vec<Run>],
        why: Purpose,
        check: impl Fn(&Buf) -> Result<T, String>,
    ) -> Option<(Buf, T)> {
        self.count += copies.len() as u64;
        let mut good = None;
        let reads = copies.iter().map(|runs| read(device, runs, why));
        for (runs, read) in copies.iter().zip(join_all(reads).await) {
            match read.and_then(|buf| Ok((check(&buf)?, buf))) {
                Ok((found, buf)) => good = Some((buf, found)),
                Err(problem) => self.bad.push((runs[0], problem)),
            }
        }
        good
    }

    /// The errors of the bad ones, in one line.
    pub(crate) fn complaints(&self) -> String {
        let each: Vec<String> =
            self.bad.iter().map(|(run, why)| format!("{run:?}: {why}")).collect();
        each.join("; ")
    }
}

async fn read(device: &DynDevice, runs: &[Run], why: Purpose) -> Result<Buf, String> {
    let mut whole = Vec::new();
    for run in runs {
        if run.addr.device() != device.id() {
            return Err("it is on no device of the pool".into());
        }
        let read = device.read(run.addr.block(), run.blocks, why).await;
        whole.extend_from_slice(&read.map_err(|error| error.to_string())?);
    }
    Ok(Buf::from_bytes(&whole))
}
