//! Copies of stored content: the runs of each, and the content of each run.

use std::fmt;

use copyhold_format::node::Fragment;
use copyhold_types::{BLOCK_BYTES, Buf, DeviceId, NodePtr, Run};
use smallvec::SmallVec;

/// All copies of some content, in the order in which they are read.
pub(crate) type Copies = SmallVec<[Copied; 2]>;

/// Where one copy of some content is.
#[derive(Clone, Debug)]
pub(crate) enum Copied {
    Whole(Run),
    Fragments(Vec<Run>),
}

impl Copied {
    /// The device of its first block.
    pub(crate) fn device(&self) -> DeviceId {
        match self {
            Copied::Whole(run) => run.addr.device(),
            Copied::Fragments(runs) => runs.first().map_or(DeviceId(0), |run| run.addr.device()),
        }
    }

    /// Where its block `n` is.
    pub(crate) fn block(&self, n: u32) -> Option<Run> {
        let runs = match self {
            Copied::Whole(run) => std::slice::from_ref(run),
            Copied::Fragments(runs) => runs,
        };
        let mut before = 0;
        runs.iter().find_map(|run| {
            let skip = n - before;
            before += run.blocks;
            (n < before).then(|| run.slice(skip, 1))
        })
    }

    /// The content of each run of it.
    pub(crate) fn cut(&self, content: &Buf) -> Vec<(Run, Buf)> {
        match self {
            Copied::Whole(run) => vec![(*run, content.clone())],
            Copied::Fragments(runs) => {
                let blocks = runs.iter().map(|run| run.blocks);
                runs.iter().copied().zip(cut(content, blocks)).collect()
            }
        }
    }
}

/// The first run, for messages, and how many there are.
impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = match self {
            Copied::Whole(run) => std::slice::from_ref(run),
            Copied::Fragments(runs) => runs,
        };
        match runs {
            [] => f.write_str("no block"),
            [only] => write!(f, "{only:?}"),
            [first, rest @ ..] => write!(f, "{first:?} and {} more runs", rest.len()),
        }
    }
}

/// Consecutive pieces of so many blocks.
pub(crate) fn cut(content: &Buf, blocks: impl Iterator<Item = u32>) -> impl Iterator<Item = Buf> {
    let mut at = 0;
    blocks.map(move |blocks| {
        let from = at;
        at += blocks as usize * BLOCK_BYTES;
        Buf::from_bytes(&content[from..at])
    })
}

/// The copies that a pointer itself names.
pub(crate) fn named_by(ptr: &NodePtr) -> Copies {
    let blocks = if ptr.fragmented { 1 } else { ptr.blocks };
    ptr.copies.iter().flatten().map(|copy| Copied::Whole(Run::new(*copy, blocks))).collect()
}

/// The copies of a content in fragments.
pub(crate) fn fragmented(fragments: &[Fragment]) -> Copies {
    let of = |copy: usize| {
        let run = |of: &Fragment| Some(Run::new(of.copies[copy]?, of.blocks));
        fragments.iter().map(run).collect::<Option<_>>().map(Copied::Fragments)
    };
    [0, 1].into_iter().filter_map(of).collect()
}

/// A content whose parts were read.
pub(crate) fn join(parts: &[Buf]) -> Buf {
    let mut whole = Buf::scratch(parts.iter().map(Buf::blocks).sum());
    let mut rest = whole.make_mut();
    for part in parts {
        let (bytes, behind) = rest.split_at_mut(part.len());
        bytes.copy_from_slice(part);
        rest = behind;
    }
    whole
}
