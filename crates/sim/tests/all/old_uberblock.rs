//! The reader of `copyhold debug export` says that files may be old where so many uberblocks are
//! lost that a mount refuses the pool (R6), and says nothing where a mount goes on.

use std::io;

use copyhold_device::sim::SimImage;
use copyhold_format::label::{Label, RING_SLOTS, RING_START};
use copyhold_fs::{FsError, Options};
use copyhold_pool::{read_labels, read_uberblocks};
use copyhold_rescue::{Pool, Source};
use copyhold_sim::Machine;
use copyhold_types::BLOCK_BYTES;

const BLOCKS: u64 = 4096;
/// As many uberblocks come round their ring.
const FLUSHES: u64 = 40;

struct Image(SimImage);

impl Source for Image {
    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        for (place, nth) in bytes.chunks_exact_mut(BLOCK_BYTES).zip(0..) {
            place.copy_from_slice(&self.0.read_block(block + nth));
        }
        Ok(())
    }
}

/// A pool, and the number of its newest uberblock.
fn with_uberblocks() -> (SimImage, u64) {
    let machine = Machine::on(1, SimImage::empty(BLOCKS));
    let made = machine.run(async {
        let fs = machine.mount_new(Options::default()).await?;
        for _ in 0..FLUSHES {
            fs.sync().await?;
            fs.pool().flush_all().await?;
        }
        fs.close().await?;
        fs.pool().close().await?;
        let label = read_labels(&machine.device()).await?.label;
        let found = read_uberblocks(&machine.device(), &label).await?;
        Ok::<_, FsError>(found.last().expect("one at least").number)
    });
    let newest = made.expect("the power is on").expect("nothing fails");
    (machine.crash(1), newest)
}

#[test]
fn files_may_be_old_where_a_mount_refuses_the_pool() {
    let (image, newest) = with_uberblocks();
    for lost in 0..5 {
        let mut image = image.clone();
        for number in newest + 1 - lost..=newest {
            for area in Label::areas(BLOCKS) {
                let block = area + RING_START + number % RING_SLOTS;
                image.corrupt(block, |bytes| bytes[9] ^= 1);
            }
        }
        let machine = Machine::on(2, image.clone());
        let mounted = machine.run(machine.mount(Options::default())).expect("the power is on");
        assert_eq!(mounted.is_err(), lost > 2, "{lost} lost");
        let rescued = Pool::open(Image(image)).unwrap_or_else(|damage| panic!("{damage}"));
        let told = rescued.damage().iter().any(|damage| damage.to_string().contains("may be lost"));
        assert_eq!(told, lost > 2, "{lost} lost");
    }
}
