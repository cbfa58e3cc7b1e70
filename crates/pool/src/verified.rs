//! The reader of a pool: content that matches what is expected of it.
//!
//! Nodes, maps and file data are read here, and nothing else reads them. Each has one or more
//! copies, and a digest, checksums, or tuples beside its blocks, which the device verifies. The
//! first copy whose content matches is the result; copies that failed before it are written again.
//! `check` has a reader of its own, so that a mistake here does not hide there.
//!
//! VERIFY-V1  Content is returned only if it matches. Of data with a checksum for each block, each
//!            block may come from another copy; of content with one digest, one copy is whole.
//! VERIFY-V2  A bad copy is written again only from a good one, and only while the caller's pin
//!            prevents a reallocation of the blocks (R3).
//! VERIFY-V3  Each copy on a device that does not match, each repair and each read without a good
//!            copy is counted by device, as failed requests are (DEV-D3).
//! VERIFY-V4  A device error does not prove that content is bad (R13): after one, each block of
//!            file data is read once more alone. Nodes are not read again. A mismatch in the only
//!            copy is an error at once: a second read would hide a read that came before its write
//!            (R31).
//! VERIFY-V5  A block with a tuple is returned only if its tuple has the expected birth and place;
//!            the device returns an error otherwise, which is a mismatch. A bad copy gets the same
//!            tuple again.
//!
//! A read whose first copy is good costs one request and no allocation but the device's.

use std::collections::BTreeSet;
use std::ops::Range;

use copyhold_device::pi::Kind;
use copyhold_device::{self as device, DeviceError};
use copyhold_format::item::{ChecksumMode, ExtentState};
use copyhold_format::node::parse_fragments;
use copyhold_format::{block_checksum, digest};
use copyhold_runtime::{Rt, finishing};
use copyhold_types::{BLOCK_BYTES, Buf, Bufs, DeviceId, Digest, NodePtr, Purpose, Run};
use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::attached::{self, Found};
use crate::births::BlockMode;
use crate::copies::{Copied, Copies, join};
use crate::devices::Devices;
use crate::failures::{Failure, Failures};
use crate::guards::{GuardedWrite, explain};
use crate::pins::Pins;
use crate::{Limits, PoolError, Sabotage};

/// How often [`Reader::judge`] reads a block that returns errors.
const ATTEMPTS: usize = 3;

/// The condition that content must meet.
#[derive(Clone, Copy, Debug)]
pub enum Condition<'a> {
    /// Anything: nothing is known of it.
    Nothing,
    /// One digest over all of it.
    Digest(Digest),
    /// A list of the fragments of this node.
    Fragments(&'a NodePtr),
    /// A checksum for each block.
    Sums(&'a [u32]),
    /// A tuple beside each block, with this birth: device and host compare it.
    Guard { birth: u32 },
    /// The same, compared by the device alone.
    Offload { birth: u32 },
}

impl<'a> Condition<'a> {
    /// The tags that the device is to compare (VERIFY-V5).
    fn on_device(self) -> device::Expect {
        match self {
            Condition::Guard { birth } => device::Expect::Guard { birth },
            Condition::Offload { birth } => device::Expect::Offload { birth },
            _ => device::Expect::Plain,
        }
    }

    /// Of the content of an extent; none without content.
    pub fn of_extent(state: &'a ExtentState) -> Option<Condition<'a>> {
        Some(match state {
            ExtentState::Written(sums) => Condition::Sums(sums),
            ExtentState::Guarded { birth } => Condition::Guard { birth: *birth },
            ExtentState::Offloaded { birth } => Condition::Offload { birth: *birth },
            ExtentState::Unverified => Condition::Nothing,
            ExtentState::Unwritten => return None,
        })
    }

    /// The mode of content that meets it (VERIFY-V5).
    fn mode(self) -> BlockMode {
        match self {
            Condition::Guard { birth } => BlockMode { checksums: ChecksumMode::Guard, birth },
            Condition::Offload { birth } => BlockMode { checksums: ChecksumMode::Offload, birth },
            _ => BlockMode::PLAIN,
        }
    }

    /// Of block `n` alone, if each block can be verified alone.
    fn of_block(self, n: usize) -> Option<Condition<'a>> {
        match self {
            Condition::Sums(sums) => Some(Condition::Sums(&sums[n..=n])),
            Condition::Guard { .. } | Condition::Offload { .. } => Some(self),
            _ => None,
        }
    }
}

impl Condition<'_> {
    /// Whether content that has its place at `copy` is as expected; else its first bad block.
    pub(crate) fn judge(&self, content: &Buf, copy: &Copied) -> Result<(), Problem> {
        let whole = |why: String| Problem::new(0, Cause::Mismatch(format!("{copy} has {why}")));
        match self {
            Condition::Nothing | Condition::Guard { .. } | Condition::Offload { .. } => Ok(()),
            Condition::Digest(wanted) if digest(content) == *wanted => Ok(()),
            Condition::Digest(_) => Err(whole("another digest".into())),
            Condition::Fragments(ptr) => match parse_fragments(content, ptr) {
                Ok(_) => Ok(()),
                Err(error) => Err(whole(format!("no such list: {error}"))),
            },
            Condition::Sums(sums) => {
                let mut blocks = content.chunks(BLOCK_BYTES).zip(*sums).enumerate();
                blocks.try_for_each(|(n, (block, sum))| match block_checksum(block) {
                    found if found == *sum => Ok(()),
                    found => Err(Problem::new(n as u32, mismatch(copy, n as u32, found, *sum))),
                })
            }
        }
    }
}

fn mismatch(copy: &Copied, block: u32, found: u32, wanted: u32) -> Cause {
    let place = copy.block(block).map_or_else(String::new, |run| run.addr.to_string());
    Cause::Mismatch(format!("block {place} has checksum {found:08x} instead of {wanted:08x}"))
}

/// No copy has what is expected.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", self.text())]
pub struct Problem {
    /// The block that is wrong, counted from the start of the content; of content with one digest,
    /// the first.
    pub block: u32,
    /// Of each copy.
    pub causes: Vec<Cause>,
}

/// Why a copy is not what is expected.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// The device returns an error.
    #[error(transparent)]
    Unreadable(DeviceError),
    /// The device returns something else.
    #[error("{0}")]
    Mismatch(String),
}

impl Problem {
    fn new(block: u32, cause: Cause) -> Problem {
        Problem { block, causes: vec![cause] }
    }

    fn text(&self) -> String {
        let causes: Vec<String> = self.causes.iter().map(ToString::to_string).collect();
        causes.join("; ")
    }

    /// The first error, if no device returns any content.
    pub fn unreadable(&self) -> Option<&DeviceError> {
        let errors = self.causes.iter().map(Cause::error).collect::<Option<Vec<_>>>()?;
        errors.first().copied()
    }
}

impl Cause {
    fn error(&self) -> Option<&DeviceError> {
        match self {
            Cause::Unreadable(error) => Some(error),
            Cause::Mismatch(_) => None,
        }
    }
}

impl From<Problem> for PoolError {
    fn from(problem: Problem) -> PoolError {
        match problem.unreadable() {
            Some(error) => PoolError::Device(error.clone()),
            None => PoolError::damaged("stored content", problem),
        }
    }
}

/// Reads and judges content on the devices of a pool.
pub(crate) struct Reader {
    devices: Devices,
    repair: Option<Repair>,
    /// [`Sabotage::AcceptEscape`].
    accepts_escapes: bool,
}

/// The means to write bad copies again.
pub(crate) struct Repair {
    pub(crate) rt: Rt,
    pub(crate) pins: Pins,
}

impl Reader {
    /// Without `repair` bad copies stay as they are.
    pub(crate) fn new(devices: Devices, repair: Option<Repair>) -> Reader {
        Reader { devices, repair, accepts_escapes: false }
    }

    pub(crate) fn breaking(self, limits: &Limits) -> Reader {
        Reader { accepts_escapes: limits.breaks(Sabotage::AcceptEscape), ..self }
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    pub(crate) fn failures(&self) -> &Failures {
        self.devices.failures()
    }

    /// The content from the first of its copies that is good. The caller holds a pin (VERIFY-V2).
    pub(crate) async fn read(
        &self,
        copies: &[Copied],
        condition: Condition<'_>,
        why: Purpose,
    ) -> Result<Buf, Problem> {
        self.read_beside(copies, &Found::new(), condition, why).await
    }

    /// As [`Self::read`]; the blocks of `attached` are in memory.
    pub(crate) async fn read_beside(
        &self,
        copies: &[Copied],
        attached: &Found,
        condition: Condition<'_>,
        why: Purpose,
    ) -> Result<Buf, Problem> {
        let mut bad = Problems::new();
        for copy in copies {
            match self.read_copy(copy, attached, condition, why).await {
                Ok(content) => {
                    if !bad.is_empty() {
                        Box::pin(self.mend(copies, &bad, &content, condition, why)).await;
                    }
                    return Ok(content);
                }
                Err(problem) => bad.push(problem),
            }
        }
        let has_more = copies.len() > 1 || bad.iter().any(|one| one.unreadable().is_some());
        match copies.first() {
            Some(Copied::Whole(run)) if has_more && condition.of_block(0).is_some() => {
                let blocks = run.blocks as usize;
                Box::pin(self.read_blocks(copies, attached, condition, blocks, why)).await
            }
            _ => Err(self.lost(copies, bad)),
        }
    }

    async fn read_copy(
        &self,
        copy: &Copied,
        attached: &Found,
        condition: Condition<'_>,
        why: Purpose,
    ) -> Result<Buf, Problem> {
        let read = match copy {
            Copied::Whole(run) => {
                let read = self.devices.read_expecting(*run, why, condition.on_device()).await;
                match read {
                    Err(DeviceError::Integrity { kind: Kind::Escape, .. })
                        if self.accepts_escapes =>
                    {
                        Box::pin(self.devices.read(*run, why)).await
                    }
                    read => read,
                }
            }
            Copied::Fragments(runs) => Box::pin(self.read_fragments(runs, why)).await,
        };
        let content = read.map_err(|error| unread(copy, condition, error))?;
        let content = attached::overlay(content, attached);
        match condition.judge(&content, copy) {
            Ok(()) => Ok(content),
            Err(problem) => {
                if !covers(attached, problem.block as usize) {
                    self.failures().count(copy.device(), Failure::Mismatch);
                }
                Err(problem)
            }
        }
    }

    async fn read_fragments(&self, runs: &[Run], why: Purpose) -> Result<Buf, DeviceError> {
        let parts = join_all(runs.iter().map(|run| self.devices.read(*run, why))).await;
        let parts = parts.into_iter().collect::<Result<Vec<Buf>, DeviceError>>()?;
        Ok(join(&parts))
    }

    /// Each block from the first copy in which it is good.
    async fn read_blocks(
        &self,
        copies: &[Copied],
        attached: &Found,
        condition: Condition<'_>,
        blocks: usize,
        why: Purpose,
    ) -> Result<Buf, Problem> {
        let mut whole = attached::overlay(Buf::scratch(blocks), attached);
        for n in 0..blocks {
            let Some(condition) = condition.of_block(n).filter(|_| !covers(attached, n)) else {
                continue;
            };
            let of_block = copies.iter().filter_map(|copy| copy.block(n as u32));
            let of_block: Copies = of_block.map(Copied::Whole).collect();
            let block = self.read_block(&of_block, condition, why).await;
            let block = block.map_err(|problem| Problem { block: n as u32, ..problem })?;
            whole.make_mut()[bytes(n)].copy_from_slice(&block);
        }
        // The attached blocks, too (VERIFY-V1).
        condition.judge(&whole, &copies[0])?;
        Ok(whole)
    }

    /// One block from the first copy in which it is good, each read once more.
    async fn read_block(
        &self,
        copies: &[Copied],
        condition: Condition<'_>,
        why: Purpose,
    ) -> Result<Buf, Problem> {
        let mut bad = Problems::new();
        for copy in copies {
            match self.read_copy(copy, &Found::new(), condition, why).await {
                Ok(block) => {
                    self.mend(copies, &bad, &block, condition, why).await;
                    return Ok(block);
                }
                Err(problem) => bad.push(problem),
            }
        }
        Err(self.lost(copies, bad))
    }

    /// The error of a read without a good copy.
    fn lost(&self, copies: &[Copied], bad: Problems) -> Problem {
        let devices: BTreeSet<DeviceId> = copies.iter().map(Copied::device).collect();
        devices.into_iter().for_each(|device| self.failures().count(device, Failure::Lost));
        let block = bad.first().map_or(0, |first| first.block);
        Problem { block, causes: bad.into_iter().flat_map(|problem| problem.causes).collect() }
    }

    /// Writes good content over the bad copies, which are the first ones (VERIFY-V2). That failing
    /// is no failure of the read.
    async fn mend(
        &self,
        copies: &[Copied],
        bad: &[Problem],
        good: &Buf,
        condition: Condition<'_>,
        why: Purpose,
    ) {
        for (copy, problem) in copies.iter().zip(bad) {
            tracing::warn!("{why:?} at {copy}: {problem}; another copy is good");
            for (run, content) in copy.cut(good) {
                self.mend_run(run, content, condition, why).await;
            }
        }
    }

    async fn mend_run(&self, run: Run, good: Buf, condition: Condition<'_>, why: Purpose) {
        let Some(Repair { rt, pins }) = &self.repair else { return };
        // A pin of its own: the caller, and its pin, may be gone before the device is done.
        let pin = pins.pin_oldest();
        let good: Bufs = good.into();
        let protect = condition.mode().protect(&self.devices, run, &good);
        let guarded = GuardedWrite::of(&self.devices, run, &good, &protect);
        let write = self.devices.write(run, good, why, protect);
        let written = finishing(rt, async move { (write.await, pin) });
        let failure = match written.await {
            (Ok(()), _) => Failure::Repaired,
            (Err(error), _) => {
                let error = explain(guarded, error);
                tracing::warn!("{run:?} could not be repaired: {error}");
                Failure::Unrepaired
            }
        };
        self.failures().count(run.addr.device(), failure);
    }

    /// The blocks of `run` that are not as expected. A block that cannot be read is read again, in
    /// case that the error passes. Repairs nothing, and counts no mismatch: a crash tears the tail
    /// of the log, which is no failure of the device.
    pub(crate) async fn judge(&self, run: Run, sums: &[u32], why: Purpose) -> Vec<Problem> {
        let whole = self.devices.read(run, why).await;
        let mut problems = Vec::new();
        for (n, sum) in sums.iter().enumerate() {
            let found = match &whole {
                Ok(content) => Ok(block_checksum(&content[bytes(n)])),
                Err(_) => {
                    let block = self.read_again(run.slice(n as u32, 1), why).await;
                    block.map(|content| block_checksum(&content))
                }
            };
            let cause = match found {
                Ok(found) if found == *sum => continue,
                Ok(found) => mismatch(&Copied::Whole(run), n as u32, found, *sum),
                Err(error) => Cause::Unreadable(error),
            };
            problems.push(Problem::new(n as u32, cause));
        }
        problems
    }

    async fn read_again(&self, run: Run, why: Purpose) -> Result<Buf, DeviceError> {
        let mut found = self.devices.read(run, why).await;
        for _ in 1..ATTEMPTS {
            if found.is_ok() {
                break;
            }
            found = self.devices.read(run, why).await;
        }
        found
    }
}

type Problems = SmallVec<[Problem; 1]>;

/// Whether a block is among the attached ones.
fn covers(attached: &Found, block: usize) -> bool {
    attached.iter().any(|(first, part)| (*first..first + part.blocks()).contains(&block))
}

/// The problem of a copy that the device did not return: a tuple that is not as expected is a
/// mismatch of its block (VERIFY-V5).
fn unread(copy: &Copied, condition: Condition<'_>, error: DeviceError) -> Problem {
    match (copy, condition, &error) {
        (
            Copied::Whole(run),
            Condition::Guard { .. } | Condition::Offload { .. },
            DeviceError::Integrity { block, blocks: 1, .. },
        ) => {
            let nth = block.saturating_sub(run.addr.block()) as u32;
            Problem::new(nth, Cause::Mismatch(error.to_string()))
        }
        _ => Problem::new(0, Cause::Unreadable(error)),
    }
}

fn bytes(block: usize) -> Range<usize> {
    block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES
}

#[cfg(test)]
mod tests;
