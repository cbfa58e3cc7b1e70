//! The chain of batches (`docs/format.md`, 5.2 and 6.3 to 6.5): which transaction groups count.
//!
//! From the digest in an uberblock each batch leads to the next. The last one may be cut, if
//! neither an uberblock nor a mark calls it durable and the data that it introduces is not there;
//! nothing else is cut. If later txgs were durable the log is damaged, and the chain ends early.

use crate::batch::Batch;
use crate::bytes::Bytes;
use crate::damage::{Damage, Parse, demand};
use crate::frames::{Frame, FrameKind, Frames};
use crate::label::{Label, Uberblock};
use crate::source::Source;
use crate::tail;

/// The txgs that recovery replays.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) batches: Vec<Batch>,
    /// The partition descriptor of the table of tables behind them.
    pub(crate) tables: Vec<u8>,
    /// The txg that they lead to.
    pub(crate) last_txg: u64,
    /// The first position behind all frames.
    pub(crate) end: u64,
    pub(crate) damage: Vec<Damage>,
}

/// The head of a batch's payload.
struct Head {
    before: u128,
    data_flushed: bool,
    pieces: Vec<(u64, u128)>,
    tables: Vec<u8>,
    records: usize,
}

impl Head {
    fn parse(payload: &[u8]) -> Parse<Head> {
        let mut bytes = Bytes(payload);
        let before = bytes.u128()?;
        bytes.varint()?;
        let data_flushed = match bytes.u8()? {
            0 => false,
            1 => true,
            _ => return Err("neither flushed nor not".into()),
        };
        let count = bytes.varint()?;
        let mut pieces = Vec::new();
        for _ in 0..count {
            let (position, _blocks) = (bytes.varint()?, bytes.varint()?);
            pieces.push((position, bytes.u128()?));
        }
        let length = bytes.varint()?;
        demand(length <= 1024, "its descriptor is too long")?;
        let tables = bytes.take(length as usize)?.to_vec();
        let records = payload.len() - bytes.0.len();
        Ok(Head { before, data_flushed, pieces, tables, records })
    }
}

impl Chain {
    pub(crate) fn follow(source: &dyn Source, label: &Label, from: &Uberblock) -> Chain {
        let frames = Frames::scan(source, label, from.head);
        let end = frames.found.iter().map(|((position, _), frame)| position + frame.blocks);
        let mut chain = Chain {
            batches: Vec::new(),
            tables: from.tables.clone(),
            last_txg: 0,
            end: end.max().unwrap_or(from.head),
            damage: Vec::new(),
        };
        let open = chain.batches_of(source, &frames);
        chain.link(&frames, &open, from);
        let is_damaged = chain.find_damage(&frames, &open, from);
        if !is_damaged {
            chain.cut_tail(source, &frames, from);
        }
        if let Some(last) = chain.batches.last() {
            chain.tables = last.tables.clone();
        }
        chain.last_txg = chain.last(from).0;
        chain
    }

    /// Txg, digest and incarnation of the last batch.
    fn last(&self, from: &Uberblock) -> (u64, u128, u64) {
        let last = self.batches.last().map(|last| (last.txg, last.digest, last.incarnation));
        last.unwrap_or((from.before_txg, from.before_digest, 0))
    }

    fn batches_of<'a>(
        &mut self,
        source: &dyn Source,
        frames: &'a Frames,
    ) -> Vec<(Head, &'a Frame)> {
        let mut open = Vec::new();
        for frame in frames.found.values().filter(|frame| frame.kind == FrameKind::Batch) {
            let wrong = |why| Damage::new(format!("the batch of txg {}", frame.txg), why);
            let payload = frame.payload(source);
            match payload.and_then(|payload| Head::parse(&payload).map_err(wrong)) {
                Ok(head) => open.push((head, frame)),
                Err(damage) => self.damage.push(damage),
            }
        }
        open
    }

    /// Follows the digests, as far as no piece is missing.
    fn link(&mut self, frames: &Frames, open: &[(Head, &Frame)], from: &Uberblock) {
        loop {
            let (txg, digest, incarnation) = self.last(from);
            let follows = |(head, frame): &&(Head, &Frame)| {
                head.before == digest && frame.txg > txg && frame.incarnation >= incarnation
            };
            let next = open.iter().filter(follows).max_by_key(|(_, frame)| frame.incarnation);
            let Some((head, frame)) = next else { return };
            let piece = |(position, digest): &(u64, u128)| {
                let found = frames.found.get(&(*position, *digest)).cloned();
                found.filter(|piece| piece.kind == FrameKind::Piece)
            };
            let pieces: Option<Vec<Frame>> = head.pieces.iter().map(piece).collect();
            let Some(pieces) = pieces else { return };
            self.batches.push(Batch {
                txg: frame.txg,
                digest: frame.digest,
                incarnation: frame.incarnation,
                data_flushed: head.data_flushed,
                tables: head.tables.clone(),
                pieces,
                frame: (*frame).clone(),
                records: head.records,
            });
        }
    }

    /// Whether later txgs were durable than the chain leads to: an uberblock or a mark says so, or
    /// a batch that comes behind another than the last of the chain.
    fn find_damage(&mut self, frames: &Frames, open: &[(Head, &Frame)], from: &Uberblock) -> bool {
        let (last, digest, incarnation) = self.last(from);
        let marks = frames.found.values().filter(|frame| frame.kind == FrameKind::Mark);
        let batches = open.iter().filter(|(head, _)| head.before != digest);
        let proofs = marks.chain(batches.map(|(_, frame)| *frame));
        let proofs = proofs.filter(|frame| frame.incarnation >= incarnation);
        let newest = proofs.map(|frame| frame.txg).chain([from.durable]).max().unwrap_or(0);
        if newest > last {
            let why = format!("it can be followed to txg {last}, but txg {newest} was there");
            self.damage.push(Damage::new("the log", why));
        }
        for positions in &frames.unreadable {
            let what = format!("positions {}..{} of the log", positions.start, positions.end);
            self.damage.push(Damage::new(what, "neither copy can be read"));
        }
        let are_unreadable = |at: &u64| frames.unreadable.iter().any(|run| run.contains(at));
        for position in frames.unverified.iter().filter(|at| !are_unreadable(at)) {
            let what = format!("position {position} of the log");
            let why = "a transaction group may begin there that cannot be read";
            self.damage.push(Damage::new(what, why));
        }
        newest > last
    }

    /// Takes the last batch away if the power failed before its data was there.
    fn cut_tail(&mut self, source: &dyn Source, frames: &Frames, from: &Uberblock) {
        let Some(last) = self.batches.last() else { return };
        let is_marked = frames.found.values().any(|frame| {
            let is_mark = frame.kind == FrameKind::Mark && frame.txg == last.txg;
            is_mark && frame.incarnation >= last.incarnation
        });
        if is_marked || last.txg <= from.durable || last.data_flushed {
            return;
        }
        match tail::is_whole(source, last) {
            Ok(true) => {}
            Ok(false) => drop(self.batches.pop()),
            Err(damage) => self.damage.push(damage),
        }
    }
}
