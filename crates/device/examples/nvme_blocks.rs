//! Blocks of an NVMe namespace with protection information: written in each way by a guest, and
//! compared in the image of the drive by the host. `scripts/nvme.sh` runs it.
//!
//! ```text
//! nvme_blocks write NODE             in the guest: writes, reads, and requests to be refused
//! nvme_blocks damaged NODE           in the guest: the damage below is found, and only there
//! nvme_blocks compare FORMAT IMAGE   on the host: tuples of the drive are those of this crate
//! nvme_blocks damage FORMAT IMAGE    on the host: flips a bit of a block, and one of a tuple
//! nvme_blocks flip TEXT IMAGE        on the host: flips a bit of each block that begins with TEXT
//! ```

#![allow(clippy::disallowed_methods, reason = "a program for the machine")]

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use copyhold_device::nvme::MOST_BLOCKS;
use copyhold_device::pi::{Format, Kind, Tags, Tuple, Type};
use copyhold_device::{Device, DeviceError, Expect, NvmeDevice, OpenMode, Protect, Verifier};
use copyhold_runtime::Executors;
use copyhold_runtime::executors::Config;
use copyhold_types::{BLOCK_BYTES, Buf, DeviceId, Purpose};

type Outcome = Result<(), Box<dyn Error>>;

const WHY: Purpose = Purpose::Data;
/// Births with the same remainder, see `docs/integrity.md`.
const BIRTH: u32 = 7;
const LATER: u32 = BIRTH + 65_534;
/// Blocks of each way: more than one command of any format has.
const COUNT: u64 = 100;

/// The name, first block and birth of the blocks that are written in one way.
type Way = (&'static str, u64, Option<u32>);
const PLAIN: Way = ("plain", 8, None);
const GUARD: Way = ("guard", 8 + COUNT, Some(BIRTH));
const OFFLOAD: Way = ("offload", 8 + 2 * COUNT, Some(LATER));
/// Blocks that are never written, and some that are deallocated.
const UNWRITTEN: u64 = 8 + 3 * COUNT;
const DISCARDED: u64 = UNWRITTEN + 10;
const END: u64 = DISCARDED + 10;

/// The block of [`GUARD`] whose data is damaged, and the one of [`OFFLOAD`] whose tuple is.
const BAD_DATA: u64 = GUARD.1 + 93;
const BAD_TUPLE: u64 = OFFLOAD.1 + 5;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["write", node] => with_device(node, write),
        ["damaged", node] => with_device(node, find_damage),
        ["compare", format, image] => compare(format.parse()?, &File::open(image)?),
        ["damage", format, image] => damage(format.parse()?, &open_image(image)?),
        ["flip", text, image] => flip_blocks(text.as_bytes(), &open_image(image)?),
        _ => Err("usage: nvme_blocks write|damaged NODE, compare|damage FORMAT IMAGE, \
                  flip TEXT IMAGE"
            .into()),
    }
}

/// The blocks of a way: each begins with its name and number.
fn content((name, ..): Way) -> Buf {
    let block = |nth: u64| {
        let mut block = format!("{name} {nth}\n").into_bytes();
        block.extend((block.len()..BLOCK_BYTES).map(|at| ((at as u64 * (nth + 3)) >> 3) as u8));
        block
    };
    Buf::from_bytes(&(0..COUNT).flat_map(block).collect::<Vec<u8>>())
}

// In the guest

struct Guest {
    executors: Arc<Executors>,
    device: Arc<NvmeDevice>,
    format: Format,
}

fn with_device(node: &str, run: impl FnOnce(&Guest)) -> Outcome {
    let executors = Executors::start(Config::default())?;
    let open = |mode| NvmeDevice::open(executors.reactor(), DeviceId(0), Path::new(node), mode);
    let device = open(OpenMode::ReadWrite)?;
    for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly] {
        let second = open(mode).map(drop);
        assert!(matches!(second, Err(DeviceError::Locked { .. })), "NVME-N1: {second:?}");
    }
    let format = device.identified().format;
    println!("{node}: {format}, {:?}", device.identified());
    run(&Guest { executors: executors.clone(), device, format });
    executors.shutdown();
    Ok(())
}

impl Guest {
    fn write(
        &self,
        (_, block, birth): Way,
        data: &Buf,
        with_guards: bool,
    ) -> Result<(), DeviceError> {
        let protect = match birth {
            None => Protect::Plain,
            Some(birth) if with_guards => {
                Protect::Guard { birth, guards: self.format.guards(data) }
            }
            Some(birth) => Protect::Offload { birth },
        };
        self.write_as(block, data, protect)
    }

    fn write_as(&self, block: u64, data: &Buf, protect: Protect) -> Result<(), DeviceError> {
        let write = self.device.write_protected(block, data.clone().into(), WHY, protect);
        self.executors.block_on(write)
    }

    fn read(&self, block: u64, blocks: u64, expect: Expect) -> Result<Buf, DeviceError> {
        self.executors.block_on(self.device.read_expecting(block, blocks as u32, WHY, expect))
    }

    /// Those that blocks of this way meet.
    fn expectations(&self, way: Way) -> Vec<Expect> {
        match way.2 {
            None => vec![Expect::Plain],
            // A drive gives all blocks of a command the same reference tag of type 3.
            Some(birth) if way == OFFLOAD && self.format.kind() == Type::Three => {
                vec![Expect::Plain, Expect::Offload { birth }]
            }
            Some(birth) => vec![Expect::Plain, Expect::Guard { birth }, Expect::Offload { birth }],
        }
    }

    /// Reads the blocks of a way without expectation, with both verifiers, and with the drive's.
    fn expect_content(&self, way: Way) {
        let (name, block, _) = way;
        for expect in self.expectations(way) {
            let read = self.read(block, COUNT, expect).unwrap();
            assert!(*read == *content(way), "{name} blocks differ, {expect:?}");
        }
    }
}

fn write(guest: &Guest) {
    for way in [PLAIN, GUARD, OFFLOAD] {
        guest.write(way, &content(way), way == GUARD).unwrap();
    }
    let gone = guest.format.guards(&content(GUARD)[..10 * BLOCK_BYTES]);
    let gone = Protect::Guard { birth: BIRTH, guards: gone };
    let some = Buf::from_bytes(&content(GUARD)[..10 * BLOCK_BYTES]);
    guest.write_as(DISCARDED, &some, gone).unwrap();
    guest.executors.block_on(guest.device.flush()).unwrap();
    [PLAIN, GUARD, OFFLOAD].into_iter().for_each(|way| guest.expect_content(way));

    // Requests that the drive or the host must refuse.
    let mut guards = guest.format.guards(&some);
    guards[3 * guest.format.parts()] ^= 1;
    let wrong = Protect::Guard { birth: BIRTH, guards };
    let refused = guest.write_as(UNWRITTEN, &some, wrong);
    expect_mismatch(
        "write of a wrong guard",
        refused,
        UNWRITTEN + 3,
        Kind::Guard,
        Verifier::Device,
    );
    let stale = guest.read(GUARD.1, COUNT, Expect::Guard { birth: BIRTH + 1 });
    expect_mismatch("stale block", stale.map(drop), GUARD.1, Kind::App, Verifier::Device);
    let unwritten = guest.read(UNWRITTEN, 1, Expect::Guard { birth: BIRTH });
    expect_mismatch("unwritten", unwritten.map(drop), UNWRITTEN, Kind::Escape, Verifier::Host);
    guest.read(UNWRITTEN, 1, Expect::Offload { birth: BIRTH }).expect("an escape stops all checks");
    let elsewhere = guest.write_as(UNWRITTEN, &some, Protect::Offload { birth: BIRTH });
    elsewhere.unwrap();
    guest.executors.block_on(guest.device.discard(DISCARDED, 10)).unwrap();
    let discarded = guest.read(DISCARDED, 10, Expect::Guard { birth: BIRTH });
    match discarded {
        Err(DeviceError::Integrity { kind: Kind::Escape, .. }) => println!("deallocated: escape"),
        Ok(_) => println!("deallocated: the drive keeps the content"),
        Err(error) => panic!("{error}"),
    }
    guest.executors.block_on(guest.device.flush()).unwrap();
}

fn find_damage(guest: &Guest) {
    guest.expect_content(PLAIN);
    for (bad, way) in [(BAD_DATA, GUARD), (BAD_TUPLE, OFFLOAD)] {
        let first = way.1;
        for expect in guest.expectations(way).into_iter().filter(|one| *one != Expect::Plain) {
            let whole = guest.read(first, COUNT, expect).map(drop);
            expect_mismatch("damage", whole, bad, Kind::Guard, Verifier::Device);
            guest.read(first, bad - first, expect).unwrap();
            guest.read(bad + 1, first + COUNT - bad - 1, expect).unwrap();
        }
        guest.read(first, COUNT, Expect::Plain).expect("nothing is compared");
    }
}

fn expect_mismatch(
    event: &str,
    answer: Result<(), DeviceError>,
    wanted: u64,
    kind_wanted: Kind,
    by_wanted: Verifier,
) {
    match answer {
        Err(DeviceError::Integrity { block, kind, by, .. })
            if (block, kind, by) == (wanted, kind_wanted, by_wanted) =>
        {
            println!("{event}: {by} finds {kind} at {block}");
        }
        other => panic!("{event}: {other:?}, not {kind_wanted:?} at {wanted} by {by_wanted:?}"),
    }
}

// On the host

fn open_image(image: &str) -> std::io::Result<File> {
    File::options().read(true).write(true).open(image)
}

/// Where the image has the data and the metadata of a drive's block: first all data, then all
/// metadata.
fn places(format: &Format, image: &File, block: u64) -> std::io::Result<(u64, u64)> {
    let (data, metadata) = (format.data_bytes() as u64, format.metadata_bytes() as u64);
    let blocks = image.metadata()?.len() / (data + metadata);
    Ok((block * data, blocks * data + block * metadata))
}

fn compare(format: Format, image: &File) -> Outcome {
    let mut compared = 0;
    for way in [PLAIN, GUARD, OFFLOAD] {
        let (name, first, birth) = way;
        let first = first * format.parts() as u64;
        let tags = Tags::of_birth(&format, first, birth);
        let content = content(way);
        for (nth, wanted) in (0..).zip(content.chunks(format.data_bytes())) {
            let (at, metadata_at) = places(&format, image, first + nth)?;
            let mut data = vec![0; format.data_bytes()];
            let mut metadata = vec![0; format.metadata_bytes()];
            image.read_exact_at(&mut data, at)?;
            image.read_exact_at(&mut metadata, metadata_at)?;
            assert!(data == wanted, "{name}: the image has other data in {}", first + nth);
            let tuple = Tuple::decode(&format, &metadata[format.tuple_range()]);
            let guard = format.guard_of(&data, &metadata);
            let mut wanted = tags.at(&format, nth).tuple(&format, guard);
            if format.kind() == Type::Three && way != GUARD {
                // Of the first block of its command.
                wanted.reference = tags
                    .at(&format, nth - nth % u64::from(MOST_BLOCKS))
                    .tuple(&format, 0)
                    .reference;
            }
            assert_eq!(tuple, wanted, "{name}: the tuple of {}", first + nth);
            compared += 1;
        }
    }
    println!("{format}: {compared} tuples of the drive are right");
    Ok(())
}

fn damage(format: Format, image: &File) -> Outcome {
    let parts = format.parts() as u64;
    let (at, _) = places(&format, image, BAD_DATA * parts)?;
    flip(image, at + 100)?;
    let (_, at) = places(&format, image, BAD_TUPLE * parts)?;
    flip(image, at + format.tuple_range().start as u64)
}

fn flip(image: &File, at: u64) -> Outcome {
    let mut byte = [0];
    image.read_exact_at(&mut byte, at)?;
    image.write_all_at(&[byte[0] ^ 0x10], at)?;
    Ok(())
}

fn flip_blocks(text: &[u8], image: &File) -> Outcome {
    let (mut begin, mut flipped) = (vec![0; text.len()], 0);
    for at in (0..image.metadata()?.len() - BLOCK_BYTES as u64).step_by(BLOCK_BYTES) {
        image.read_exact_at(&mut begin, at)?;
        if begin == text {
            flip(image, at + 2000)?;
            flipped += 1;
        }
    }
    println!("a bit flipped in {flipped} blocks");
    if flipped > 0 { Ok(()) } else { Err("no block begins with this text".into()) }
}

const _: () = assert!(END * BLOCK_BYTES as u64 <= 2 << 20);
