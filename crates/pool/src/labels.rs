//! Labels on the device: read at opening; written at creation, for a repair, when features change,
//! and when the pool grows.
//!
//! Either label is enough to open a pool; a damaged one is written again from the other before
//! anything else is written.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use copyhold_device::{DeviceError, DynDevice};
use copyhold_format::FormatError;
use copyhold_format::label::{self, AREA_BLOCKS, Features, Label};
use copyhold_runtime::FifoMutex;
use copyhold_types::{Buf, Purpose};

use crate::{PoolError, protection};

/// The content of a device's labels.
#[derive(Debug)]
pub struct Labels {
    pub label: Label,
    /// The defects of the label at the start and of the one at the end.
    pub problems: [Option<String>; 2],
}

/// The label of an open pool. It changes when the pool begins to use a feature (`features`) and
/// when it grows (`grow`).
#[derive(Debug)]
pub(crate) struct OpenLabel {
    opened: Label,
    /// Held during a growth, which may be long, for it allocates.
    pub(crate) growing: FifoMutex,
    /// Held while the labels on the device change.
    pub(crate) changing: FifoMutex,
    /// As both labels on the device have them.
    ro_compat: AtomicU64,
    incompat: AtomicU64,
    generation: AtomicU64,
    blocks: AtomicU64,
}

impl OpenLabel {
    pub(crate) fn new(opened: Label) -> OpenLabel {
        let ro_compat = AtomicU64::new(opened.features.ro_compat);
        let incompat = AtomicU64::new(opened.features.incompat);
        let generation = AtomicU64::new(opened.generation);
        let blocks = AtomicU64::new(opened.blocks);
        let [growing, changing] = [FifoMutex::new(), FifoMutex::new()];
        OpenLabel { opened, growing, changing, ro_compat, incompat, generation, blocks }
    }

    /// As both labels on the device have it.
    pub(crate) fn now(&self) -> Label {
        Label {
            features: self.features(),
            generation: self.generation.load(Acquire),
            blocks: self.blocks.load(Acquire),
            ..self.opened.clone()
        }
    }

    /// The features that both labels on the device have.
    pub(crate) fn features(&self) -> Features {
        let (ro_compat, incompat) = (self.ro_compat.load(Acquire), self.incompat.load(Acquire));
        Features { ro_compat, incompat, ..self.opened.features }
    }

    /// The next label, which has these features, too; none if the present one has them.
    pub(crate) fn with(&self, more: Features) -> Option<Label> {
        let now = self.features();
        let features = now.with(more);
        (features != now).then(|| {
            let now = self.now();
            Label { features, generation: now.generation + 1, ..now }
        })
    }

    /// Both labels on the device are this one.
    pub(crate) fn written(&self, label: &Label) {
        self.generation.store(label.generation, Release);
        self.blocks.store(label.blocks, Release);
        self.ro_compat.store(label.features.ro_compat, Release);
        self.incompat.store(label.features.incompat, Release);
    }
}

/// Reads both labels. One good label is enough. Refuses a device that is not the one that the
/// pool's blocks are protected on (NEEDS-P1).
pub async fn read_labels(device: &DynDevice) -> Result<Labels, PoolError> {
    let labels = find_labels(device).await?;
    protection::check(&labels.label, device)?;
    Ok(labels)
}

/// As [`read_labels`], of any device.
pub async fn find_labels(device: &DynDevice) -> Result<Labels, PoolError> {
    let geometry = device.geometry();
    if geometry.blocks < AREA_BLOCKS {
        let why = "it is too small to be one".into();
        return Err(PoolError::NotAPool { name: geometry.name, why });
    }
    let first = read_label(device, 0).await;
    // Where the other is follows from the first; without it, from the end of the device, where the
    // other is or, in a pool that is smaller, a copy of it.
    let blocks = match &first {
        Ok(label) => label.blocks,
        Err(_) => match geometry.blocks.checked_sub(AREA_BLOCKS) {
            Some(at) => read_label(device, at).await.map_or(geometry.blocks, |label| label.blocks),
            None => geometry.blocks,
        },
    };
    if blocks > geometry.blocks {
        return Err(PoolError::Shrunk {
            name: geometry.name,
            wanted: blocks,
            found: geometry.blocks,
        });
    }
    let second = match blocks.checked_sub(AREA_BLOCKS) {
        Some(at) => read_label(device, at).await,
        None => Err(LabelProblem::Format(FormatError::Magic { what: "label" })),
    };
    let mut problems = [&first, &second].map(|l| l.as_ref().err().map(LabelProblem::to_string));
    if let (Ok(a), Ok(b)) = (&first, &second)
        && a.generation != b.generation
    {
        // The power failed between the two.
        problems[usize::from(b.generation < a.generation)] = Some("it is out of date".into());
    }
    match (first, second) {
        (Ok(a), Ok(b)) if b.generation > a.generation => Ok(Labels { label: b, problems }),
        (Ok(label), _) | (_, Ok(label)) => Ok(Labels { label, problems }),
        (Err(first), Err(second)) => Err(explain(geometry.name, first, second)),
    }
}

#[derive(Debug, thiserror::Error)]
enum LabelProblem {
    #[error(transparent)]
    Format(FormatError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

async fn read_label(device: &DynDevice, block: u64) -> Result<Label, LabelProblem> {
    let bytes = device.read(block, 1, Purpose::Label).await?;
    Label::parse(&bytes).map_err(LabelProblem::Format)
}

/// The error for two bad labels: the more specific of the two.
fn explain(name: String, first: LabelProblem, second: LabelProblem) -> PoolError {
    use FormatError::{Features, Magic, Version};
    match (first, second) {
        (LabelProblem::Format(source @ (Version { .. } | Features { .. })), _)
        | (_, LabelProblem::Format(source @ (Version { .. } | Features { .. }))) => {
            PoolError::Newer { name, source }
        }
        (LabelProblem::Device(error), _) => PoolError::Device(error),
        (LabelProblem::Format(Magic { .. }), LabelProblem::Format(Magic { .. })) => {
            PoolError::NotAPool { name, why: "it has no label at either end".into() }
        }
        (first, second) => PoolError::damaged(
            format!("{name}: both labels"),
            format!("start: {first}; end: {second}"),
        ),
    }
}

/// Writes both labels, and at the end of a device that is larger than the pool a copy of them,
/// which names the place of the second. Durable after the next flush.
pub(crate) async fn write_labels(device: &DynDevice, label: &Label) -> Result<(), PoolError> {
    for at in places(device, label) {
        write_label(device, label, at).await?;
    }
    Ok(())
}

/// Where labels are, the copy included.
pub(crate) fn places(device: &DynDevice, label: &Label) -> impl Iterator<Item = u64> + use<> {
    Label::areas(label.blocks).into_iter().chain(copy_at(device, label))
}

/// Where the copy at the end of a device is that is larger than the pool, and has room for it.
pub(crate) fn copy_at(device: &DynDevice, label: &Label) -> Option<u64> {
    let size = device.geometry().blocks;
    (size >= label.blocks + AREA_BLOCKS).then(|| Label::areas(size)[1])
}

pub(crate) async fn write_label(
    device: &DynDevice,
    label: &Label,
    at: u64,
) -> Result<(), PoolError> {
    Ok(device.write(at, Buf::from_bytes(&label.encode()).into(), Purpose::Label).await?)
}

/// Writes the damaged labels again, and the copy at the end of a larger device, if it differs: a
/// growth that a crash has interrupted leaves the label of the larger pool there (GROW-G2).
pub(crate) async fn repair_labels(device: &DynDevice, labels: &Labels) -> Result<(), PoolError> {
    for (problem, at) in labels.problems.iter().zip(Label::areas(labels.label.blocks)) {
        if let Some(problem) = problem {
            tracing::warn!("writing the label at block {at} again: {problem}");
            write_label(device, &labels.label, at).await?;
        }
    }
    repair_copy(device, &labels.label).await
}

/// A copy that cannot be written is no reason to refuse the pool, which has two labels. But a label
/// of an interrupted growth must go: it would count if the first label were damaged.
pub(crate) async fn repair_copy(device: &DynDevice, label: &Label) -> Result<(), PoolError> {
    let Some(at) = copy_at(device, label) else { return Ok(()) };
    let found = read_label(device, at).await.ok();
    if found.as_ref() == Some(label) {
        return Ok(());
    }
    tracing::warn!("writing the copy of the label at block {at} again");
    let is_later = |found: Label| found.pool == label.pool && found.generation >= label.generation;
    match write_label(device, label, at).await {
        Err(error) if !found.is_some_and(is_later) => {
            tracing::warn!("the pool has no copy of its label at the end of the device: {error}");
            Ok(())
        }
        written => written,
    }
}

/// Erases the labels by which an older pool on the first `blocks` blocks is found: the first, and
/// the second or the copy that leads to it. Each is one block, so a crash leaves a whole pool or
/// none.
pub(crate) async fn erase(device: &DynDevice, blocks: u64) -> Result<(), PoolError> {
    for at in Label::areas(blocks) {
        device.write(at, Buf::zeroed(1).into(), Purpose::Label).await?;
    }
    Ok(())
}

/// Fills both label areas with zeros: their content belonged to another owner.
pub(crate) async fn wipe_areas(device: &DynDevice, blocks: u64) -> Result<(), PoolError> {
    for at in Label::areas(blocks) {
        device.write(at, Buf::zeroed(label::AREA_BLOCKS as usize).into(), Purpose::Label).await?;
    }
    Ok(())
}
