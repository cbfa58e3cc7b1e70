//! A whole pool, damaged: read by the second reader, checked, opened to read and to write, walked,
//! changed, checked again, twice.
//!
//! An input contains the damage. It has three kinds: bytes of the device, after which the digests
//! of labels and uberblocks are corrected; bytes of nodes, maps and the log before their digests
//! are made, so that all references to them are valid; and items, put and deleted by transactions,
//! as a program of another version, or a wrong one, would have written them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use copyhold_device::sim::SimImage;
use copyhold_format::label::{AREA_BLOCKS, Label};
use copyhold_pool::{Pool, PoolError, Scribble, Tier, Transaction};
use copyhold_table::Value;
use copyhold_types::{Key, Purpose, TableId};

use crate::base::{Base, CRASHED, SETTLED, close};
use crate::formats::set_digest;
use crate::input::Input;
use crate::machine::{How, Machine};
use crate::rescue;
use crate::walk::{change, look};

/// More changes in one input show nothing new.
const CHANGES_MAX: usize = 24;
/// Writes that are told apart; about as many are made.
const WRITES: usize = 64;

/// The effect of an input on a pool.
#[derive(Default)]
struct Damage {
    crashed: bool,
    /// The number of the used block, the place in it, the bits to flip.
    blocks: Vec<(usize, usize, Vec<u8>)>,
    /// The number of the write, the place in it, the bits to flip.
    writes: Vec<(usize, usize, Vec<u8>)>,
    items: Vec<ItemChange>,
}

struct ItemChange {
    table: usize,
    item: usize,
    /// Xored to the key's offset.
    offset: u64,
    /// From the value's end.
    cut: usize,
    at: usize,
    xor: Vec<u8>,
    is_deleted: bool,
}

impl Damage {
    fn parse(input: &mut Input<'_>) -> Damage {
        let mut damage = Damage { crashed: input.byte() & 1 == 1, ..Damage::default() };
        for _ in 0..CHANGES_MAX {
            if input.is_empty() {
                break;
            }
            let kind = input.byte();
            let (which, at) = (input.word(), input.word());
            let len = usize::from(kind >> 4) % 9;
            match kind % 4 {
                0 => damage.blocks.push((which, at, input.take(len.max(1)).to_vec())),
                1 => damage.writes.push((which, at, input.take(len.max(1)).to_vec())),
                _ => damage.items.push(ItemChange {
                    table: usize::from(input.byte()),
                    item: which,
                    offset: item_offset(input.byte()),
                    cut: usize::from(kind & 4 != 0 && kind & 3 == 3) * (at / 7 % 40),
                    at,
                    xor: input.take(len).to_vec(),
                    is_deleted: kind & 8 != 0 && kind & 3 == 3,
                }),
            }
        }
        damage
    }
}

/// A bit of an offset, or none.
fn item_offset(choice: u8) -> u64 {
    match choice {
        128.. => 1 << (choice % 64),
        _ => 0,
    }
}

pub(crate) fn run(input: &[u8]) {
    let mut damage = Damage::parse(&mut Input::new(input));
    let blocks = std::mem::take(&mut damage.blocks);
    let base: &Base = if damage.crashed { &CRASHED } else { &SETTLED };
    let mut image = base.image.clone();
    if !damage.items.is_empty() || !damage.writes.is_empty() {
        image = rewritten(image, damage);
    }
    for (which, at, xor) in &blocks {
        damage_block(&mut image, base.used[which % base.used.len()], *at, xor);
    }
    exercise(image);
}

fn damage_block(image: &mut SimImage, block: u64, at: usize, xor: &[u8]) {
    let areas = Label::areas(image.blocks());
    let is_label = areas.iter().any(|area| (*area..area + AREA_BLOCKS).contains(&block));
    image.corrupt(block, |bytes| {
        for (n, byte) in xor.iter().enumerate() {
            let len = bytes.len();
            bytes[(at + n) % len] ^= byte;
        }
        if is_label {
            set_digest(bytes);
        }
    });
}

/// A pool after a program has written the requested bytes, successfully or not.
fn rewritten(image: SimImage, damage: Damage) -> SimImage {
    let machine = Machine::on(image);
    let Damage { writes, items, .. } = damage;
    let pool = machine.open_pool(How { scribble: Some(scribble(writes)), read_only: false });
    let Ok(pool) = pool else { return machine.device.image() };
    machine.run("rewrite", async move {
        let _ = change_items(&pool, &items).await;
        let _ = pool.flush_all().await;
        let _ = pool.close().await;
    });
    machine.device.image()
}

fn scribble(writes: Vec<(usize, usize, Vec<u8>)>) -> Scribble {
    let count = AtomicUsize::new(0);
    Scribble(Arc::new(move |_: Purpose, bytes: &mut [u8]| {
        let this = count.fetch_add(1, Ordering::Relaxed);
        let len = bytes.len().max(1);
        for (_, at, xor) in writes.iter().filter(|(which, ..)| which % WRITES == this) {
            for (n, byte) in xor.iter().enumerate() {
                bytes.get_mut((at + n) % len).into_iter().for_each(|found| *found ^= byte);
            }
        }
    }))
}

/// Changes items, and puts one of each table as it is, so that each writes nodes.
async fn change_items(pool: &Arc<Pool>, changes: &[ItemChange]) -> Result<(), PoolError> {
    let mut tx = Transaction::new();
    let mut tables: Vec<(TableId, Vec<(Key, Value)>)> = Vec::new();
    for table in pool.tables() {
        let items = pool.range(table.id(), Key::MIN, Key::MAX, usize::MAX).await?;
        let Some((key, value)) = items.get(items.len() / 2) else { continue };
        tx.put(table.id(), *key, &value.to_vec()[..]);
        tables.push((table.id(), items));
    }
    for change in changes {
        let (table, items) = &tables[change.table % tables.len()];
        let (key, value) = &items[change.item % items.len()];
        let key = Key { offset: key.offset ^ change.offset, ..*key };
        if change.is_deleted {
            tx.delete(*table, key);
        } else {
            tx.put(*table, key, change.value(value.to_vec()));
        }
    }
    let credit = pool.admit(Tier::Write, tx.len(), 1 << 16).await?;
    let txg = pool.apply(credit, tx)?;
    pool.commit(txg).await
}

impl ItemChange {
    fn value(&self, mut value: Vec<u8>) -> Vec<u8> {
        value.truncate(value.len().saturating_sub(self.cut));
        let len = value.len().max(1);
        for (n, byte) in self.xor.iter().enumerate() {
            value.get_mut((self.at + n) % len).into_iter().for_each(|found| *found ^= byte);
        }
        value
    }
}

/// Everything that is done with a pool, on this one.
fn exercise(image: SimImage) {
    rescue::read_all(&image);
    let machine = Machine::on(image);
    let _ = machine.check();
    if let Ok(fs) = machine.open(How { read_only: true, scribble: None }) {
        machine.run("look", async move {
            look(&fs).await;
            let _ = close(&fs).await;
        });
    }
    // The second mount finds what the first one has made of the damage.
    for _ in 0..2 {
        let Ok(fs) = machine.open(How::default()) else { return };
        machine.run("change", async move {
            let seen = look(&fs).await;
            change(&fs, &seen).await;
            // Merges read leaves that no look-up has read.
            let _ = fs.pool().flush_all().await;
            look(&fs).await;
            let _ = close(&fs).await;
        });
        let _ = machine.check();
    }
}

pub(crate) fn begin() -> Vec<Vec<u8>> {
    let mut inputs = vec![vec![0], vec![1]];
    for kind in [0x10, 0x21, 0x12, 0x23, 0x0b, 0x07, 0x42] {
        for which in [3u8, 40, 90] {
            let mut input = vec![which & 1];
            for n in 0..3 {
                input.extend([kind, which + 7 * n, 0, 20 * n + which, n, 0x81 + n, 0x10, 1, 0x80]);
            }
            inputs.push(input);
        }
    }
    inputs
}
