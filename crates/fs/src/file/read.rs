//! Reading: dirty blocks first, then extents.
//!
//! The pool verifies each block of an extent (VERIFY-V1, VERIFY-V5): a read never returns bytes
//! that do not match their checksum. It fails, and says where. The blocks of one request have one
//! checksum mode and one birth.

use std::ops::Range;

use copyhold_format::item::{Extent, ExtentState, inline_key, parse_inline};
use copyhold_pool::{Condition, Pin};
use copyhold_types::{BLOCK_BYTES, Buf, Purpose, Run};
use futures_util::future::join_all;
use smallvec::SmallVec;

use super::batch::REQUEST_BLOCKS_MAX;
use super::slot::Slot;
use crate::clean::{Keep, KeepRule};
use crate::foreground::note_wait;
use crate::inode::{Inode, InodeState};
use crate::{Filesystem, NodeId, Result, Sabotage};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Flags of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadFlags {
    /// The access time stays (`O_NOATIME`).
    pub no_atime: bool,
    /// The front end keeps nothing of it (`O_DIRECT`).
    pub direct: bool,
}

/// The result of a read: slices of buffers that are not copied.
#[derive(Clone, Debug, Default)]
pub struct ReadData {
    pieces: Pieces,
    len: usize,
}

/// Buffers, and which bytes of each.
type Pieces = SmallVec<[(Buf, Range<usize>); 1]>;

impl ReadData {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|(buf, range)| &buf[range.clone()])
    }

    /// The buffers, and which bytes of each, in order: for passing on without a copy.
    pub fn pieces(&self) -> impl Iterator<Item = &(Buf, Range<usize>)> {
        self.pieces.iter()
    }

    /// The bytes, in order, with the buffers that they are in.
    pub fn into_pieces(self) -> impl Iterator<Item = (Buf, Range<usize>)> {
        self.pieces.into_iter()
    }

    /// Copies everything.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len);
        self.slices().for_each(|slice| all.extend_from_slice(slice));
        all
    }

    fn push(&mut self, buf: &Buf, range: Range<usize>) {
        self.len += range.len();
        match self.pieces.last_mut() {
            Some((last, before)) if last.as_ptr() == buf.as_ptr() && before.end == range.start => {
                before.end = range.end;
            }
            _ => self.pieces.push((buf.clone(), range)),
        }
    }
}

/// Where consecutive blocks of a file come from.
enum Source {
    Memory(Slot),
    Zero,
    Inline,
    /// To be looked up.
    Table,
    /// Some of the blocks of a request.
    Device {
        request: usize,
        skip: u32,
    },
}

/// Consecutive blocks of a file and where their bytes are: a buffer and a block of it, or `None`
/// for zeros.
type Located = (Range<u64>, Option<(Buf, u32)>);

struct Part {
    blocks: Range<u64>,
    source: Source,
}

// Most reads are of one part.
type Parts = SmallVec<[Part; 1]>;
type Requests = SmallVec<[Request; 1]>;
type Bufs = SmallVec<[Buf; 1]>;

/// A run to be read, for blocks of the file from `at`.
struct Request {
    at: u64,
    run: Run,
    content: ExtentState,
    keep: Keep,
}

impl Filesystem {
    /// At most `len` bytes; fewer only at the end of the file.
    pub async fn read(&self, node: NodeId, offset: u64, len: usize) -> Result<ReadData> {
        self.read_with(node, offset, len, ReadFlags::default()).await
    }

    pub async fn read_with(
        &self,
        node: NodeId,
        offset: u64,
        len: usize,
        flags: ReadFlags,
    ) -> Result<ReadData> {
        let inode = self.inode(node).await?;
        inode.expect_file()?;
        let _shared = inode.lock.read().await;
        let size = inode.state().shown.size;
        let end = size.min(offset.saturating_add(len as u64));
        if offset >= end {
            return Ok(ReadData::default());
        }
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        let parts = self.read_blocks(&inode, blocks, flags.direct).await?;
        if !flags.no_atime || self.breaks(Sabotage::AtimeAnyway) {
            self.touch_atime(&inode);
        }
        Ok(assemble(&parts, offset..end, &self.zeros))
    }

    /// The content of one block, as it is now; zeros where nothing is. The caller holds the data
    /// lock.
    pub(super) async fn read_block(&self, inode: &Inode, block: u64) -> Result<Slot> {
        let parts = self.read_blocks(inode, block..block + 1, false).await?;
        let Some((buf, index)) = &parts[0].1 else {
            return Ok(Slot { buf: Buf::zeroed(1), index: 0 });
        };
        Ok(Slot { buf: buf.clone(), index: *index })
    }

    /// Where the bytes of `blocks` are, in order.
    async fn read_blocks(
        &self,
        inode: &Inode,
        blocks: Range<u64>,
        direct: bool,
    ) -> Result<SmallVec<[Located; 1]>> {
        let mut parts = plan(&inode.state(), blocks);
        let mut bufs = Bufs::new();
        if parts.iter().any(|part| matches!(part.source, Source::Table | Source::Inline)) {
            // From the look-up to the end of the last request (R3).
            let (_pin, requests) = self.look_up(inode, direct, &mut parts, &mut bufs).await?;
            if !requests.is_empty() {
                note_wait(self, inode.node.subvol);
                let fetched = self.fetch(inode, &requests).await;
                note_wait(self, inode.node.subvol);
                bufs.extend(fetched?);
            }
        }
        let resolve = |part: Part| {
            let place = match part.source {
                Source::Memory(slot) => Some((slot.buf, slot.index)),
                Source::Device { request, skip } => Some((bufs[request].clone(), skip)),
                Source::Zero | Source::Inline | Source::Table => None,
            };
            (part.blocks, place)
        };
        Ok(parts.into_iter().map(resolve).collect())
    }

    /// Turns parts to be looked up into zeros and requests; inline data goes into `bufs` at once.
    ///
    /// Under the map's lock nothing is installed. So dirty blocks are looked at once more: with
    /// the extents that the table has now they make the file of one moment, although others
    /// overwrite it.
    ///
    /// The pin comes behind the lock: the lock's owner may wait for space that a pin keeps (R22).
    async fn look_up(
        &self,
        inode: &Inode,
        direct: bool,
        parts: &mut Parts,
        bufs: &mut Bufs,
    ) -> Result<(Pin, Requests)> {
        let _map = inode.map.read().await;
        let pin = self.pool.pin();
        let blocks = parts.first().map_or(0, |part| part.blocks.start)
            ..parts.last().map_or(0, |part| part.blocks.end);
        *parts = plan(&inode.state(), blocks);
        let mut requests = Requests::new();
        let mut done = Parts::with_capacity(parts.len());
        for part in parts.drain(..) {
            match part.source {
                Source::Inline => {
                    bufs.push(self.inline_block(inode).await?);
                    done.push(Part { source: Source::Device { request: 0, skip: 0 }, ..part });
                }
                Source::Table => {
                    let first = bufs.len();
                    let count = (part.blocks.end - part.blocks.start) as usize;
                    let extents = self.extents(inode, part.blocks.clone(), count).await?;
                    let rule = KeepRule::of(self.options.data_cache, inode, direct);
                    resolve(part.blocks, &extents, rule, first, &mut requests, &mut done);
                }
                _ => done.push(part),
            }
        }
        *parts = done;
        Ok((pin, requests))
    }

    async fn inline_block(&self, inode: &Inode) -> Result<Buf> {
        let value = self.get(&inode.subvol, inline_key(inode.node.ino)).await?;
        let bytes = match &value {
            Some(value) => parse_inline(value)
                .map_err(|source| self.damaged_record("the inline data", inode.node, source))?,
            None => &[],
        };
        let mut block = Buf::zeroed(1);
        block.make_mut()[..bytes.len()].copy_from_slice(bytes);
        Ok(block)
    }

    async fn fetch(&self, inode: &Inode, requests: &[Request]) -> Result<Bufs> {
        if let [one] = requests {
            return Ok(Bufs::from_elem(self.fetch_one(inode, one).await?, 1));
        }
        let all = requests.iter().map(|request| self.fetch_one(inode, request));
        join_all(all).await.into_iter().collect()
    }

    async fn fetch_one(&self, inode: &Inode, request: &Request) -> Result<Buf> {
        let keep = request.keep.owner(self, inode);
        let Some(condition) = Condition::of_extent(&request.content) else {
            return Ok(Buf::zeroed(request.run.blocks as usize));
        };
        let read = self.pool.read(request.run, condition, Purpose::Data, keep);
        read.await.map_err(|problem| {
            let block = request.at + u64::from(problem.block);
            inode.damaged(block * BLOCK, problem.to_string())
        })
    }
}

/// Cuts `blocks` into those in memory and those to be looked up.
fn plan(state: &InodeState, blocks: Range<u64>) -> Parts {
    let mut parts = Parts::new();
    let data = &state.data;
    let mut at = blocks.start;
    for (&block, entry) in data.blocks.range(blocks.clone()) {
        plan_gap(state, at..block, &mut parts);
        let source = Source::Memory(entry.slot.clone());
        parts.push(Part { blocks: block..block + 1, source });
        at = block + 1;
    }
    plan_gap(state, at..blocks.end, &mut parts);
    parts
}

fn plan_gap(state: &InodeState, gap: Range<u64>, parts: &mut Parts) {
    let mut push = |blocks: Range<u64>, source| {
        if !blocks.is_empty() {
            parts.push(Part { blocks, source });
        }
    };
    let cut = state.data.cut.block().clamp(gap.start, gap.end);
    let inline = if state.is_inline() { 1.clamp(gap.start, cut) } else { gap.start };
    // Block 0 of a tiny file is nowhere else.
    push(gap.start..inline, Source::Inline);
    let empty = state.item.allocated == 0;
    push(inline..cut, if empty { Source::Zero } else { Source::Table });
    push(cut..gap.end, Source::Zero);
}

/// Lays `extents` over `blocks`: runs that join on the device become one request.
fn resolve(
    blocks: Range<u64>,
    extents: &[(u64, Extent)],
    rule: KeepRule,
    first: usize,
    requests: &mut Requests,
    parts: &mut Parts,
) {
    let mut at = blocks.start;
    for (start, extent) in extents {
        let from = blocks.start.max(*start);
        let to = blocks.end.min(start + u64::from(extent.blocks()));
        if at < from {
            parts.push(Part { blocks: at..from, source: Source::Zero });
        }
        at = to;
        if extent.state == ExtentState::Unwritten {
            parts.push(Part { blocks: from..to, source: Source::Zero });
            continue;
        }
        let (skip, count) = ((from - start) as u32, (to - from) as u32);
        let run = extent.pointer.run.slice(skip, count);
        let keep = rule.keep(&extent.pointer);
        match requests.last_mut() {
            Some(last) if last.takes(from, run, keep, &extent.state) => {
                last.join(skip, count, &extent.state);
            }
            _ => {
                let content = extent.slice(skip, count).state;
                requests.push(Request { at: from, run, content, keep });
            }
        }
        let last = requests.last().expect("pushed or joined above");
        let skip = (from - last.at) as u32;
        let source = Source::Device { request: first + requests.len() - 1, skip };
        parts.push(Part { blocks: from..to, source });
    }
    if at < blocks.end {
        parts.push(Part { blocks: at..blocks.end, source: Source::Zero });
    }
}

impl Request {
    /// Whether `run`, for file blocks from `at`, continues this request.
    fn takes(&self, at: u64, run: Run, keep: Keep, content: &ExtentState) -> bool {
        self.at + u64::from(self.run.blocks) == at
            && self.run.addr.offset(self.run.blocks.into()) == run.addr
            && self.run.blocks + run.blocks <= REQUEST_BLOCKS_MAX
            // KEEP-S2.
            && self.keep == keep
            && self.content.checksum_mode() == content.checksum_mode()
            && self.content.birth() == content.birth()
    }

    /// Continues with `count` blocks of an extent from its `skip`th.
    fn join(&mut self, skip: u32, count: u32, extent: &ExtentState) {
        self.run.blocks += count;
        if let (ExtentState::Written(sums), ExtentState::Written(more)) =
            (&mut self.content, extent)
        {
            sums.extend_from_slice(&more[skip as usize..(skip + count) as usize]);
        }
    }
}

/// The bytes of `range` out of whole blocks.
fn assemble(parts: &[Located], range: Range<u64>, zeros: &Buf) -> ReadData {
    let mut data = ReadData::default();
    for (blocks, place) in parts {
        let from = range.start.max(blocks.start * BLOCK);
        let to = range.end.min(blocks.end * BLOCK);
        let (skip, len) = ((from - blocks.start * BLOCK) as usize, (to - from) as usize);
        match place {
            Some((buf, index)) => {
                let start = *index as usize * BLOCK_BYTES + skip;
                data.push(buf, start..start + len);
            }
            None => {
                let mut left = len;
                while left > 0 {
                    let some = left.min(zeros.len());
                    data.push(zeros, 0..some);
                    left -= some;
                }
            }
        }
    }
    debug_assert_eq!(data.len as u64, range.end - range.start);
    data
}
