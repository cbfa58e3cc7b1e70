//! Many direct reads or writes in flight, through one io_uring.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::OFlags;

use crate::error::{BenchError, On};
use crate::meter::Meter;
use crate::places::{BLOCK, Places};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

/// A piece of a buffer as direct I/O wants it.
#[derive(Clone)]
#[repr(align(4096))]
pub(crate) struct Page(pub(crate) [u8; BLOCK]);

/// Opens a file past the page cache.
pub(crate) fn open(path: &Path, way: Way) -> Result<File, BenchError> {
    let mut options = OpenOptions::new();
    options.read(way == Way::Read).write(way == Way::Write);
    options.custom_flags(OFlags::DIRECT.bits() as i32).open(path).on(path.display())
}

/// Reads or writes with `depth` in flight until the meter says that it is enough.
pub(crate) fn transfer(
    file: &File,
    way: Way,
    depth: usize,
    places: &mut Places,
    meter: &mut Meter<'_>,
) -> Result<(), BenchError> {
    Queue::new(depth, places.unit())?.transfer(file, way, places, meter).map(drop)
}

/// The ring and the buffers of so many requests.
pub(crate) struct Queue {
    ring: IoUring,
    depth: usize,
    buffers: Vec<Page>,
}

impl Queue {
    /// For requests of `unit` bytes.
    pub(crate) fn new(depth: usize, unit: usize) -> Result<Queue, BenchError> {
        let ring = IoUring::new(depth.next_power_of_two() as u32).on("io_uring")?;
        let buffers = vec![Page([0; BLOCK]); depth * (unit / BLOCK)];
        Ok(Queue { ring, depth, buffers })
    }

    /// Returns the queue, when the meter says that it is enough and nothing is in flight.
    pub(crate) fn transfer(
        self,
        file: &File,
        way: Way,
        places: &mut Places,
        meter: &mut Meter<'_>,
    ) -> Result<Queue, BenchError> {
        let Queue { mut ring, depth, mut buffers } = self;
        let pages = places.unit() / BLOCK;
        let mut began = vec![Instant::now(); depth];
        let mut idle: Vec<usize> = (0..depth).collect();
        let mut failure = None;
        // Requests in flight point into `buffers`, so this loop ends only when none is left.
        loop {
            let go_on = failure.is_none() && meter.go_on(depth - idle.len());
            if go_on {
                while let Some(slot) = idle.pop() {
                    let buffer = &mut buffers[slot * pages..][..pages];
                    let request = request(file, way, places, buffer).user_data(slot as u64);
                    began[slot] = Instant::now();
                    // SAFETY: `file` and the slot's part of `buffers` outlive the request: the slot
                    // is not idle until its completion was seen, and the loop is not left before
                    // every slot is idle.
                    unsafe { ring.submission().push(&request) }.expect("one entry a slot");
                    if !meter.go_on(depth - idle.len()) {
                        break;
                    }
                }
            } else if idle.len() == depth {
                break;
            }
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    // The kernel may still use the buffers; they must not be freed.
                    std::mem::forget(buffers);
                    return Err(error).on("io_uring");
                }
                _ => {}
            }
            for completion in ring.completion() {
                let slot = completion.user_data() as usize;
                if completion.result() != places.unit() as i32 {
                    let error = io::Error::from_raw_os_error(-completion.result().min(-1));
                    failure.get_or_insert(error);
                }
                meter.done(began[slot]);
                idle.push(slot);
            }
        }
        failure.map_or(Ok(Queue { ring, depth, buffers }), Err).on("direct I/O")
    }
}

/// The next one, of a unit, from or into `buffer`.
fn request(file: &File, way: Way, places: &mut Places, buffer: &mut [Page]) -> squeue::Entry {
    let (fd, len, at) = (types::Fd(file.as_raw_fd()), places.unit() as u32, places.next_offset());
    if way == Way::Write {
        buffer.iter_mut().for_each(|page| places.fill(&mut page.0));
    }
    let start = buffer.as_mut_ptr().cast::<u8>();
    match way {
        Way::Read => opcode::Read::new(fd, start, len).offset(at).build(),
        Way::Write => opcode::Write::new(fd, start, len).offset(at).build(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use copyhold_harness::Interrupt;

    use super::*;
    use crate::meter::Bounds;

    #[test]
    fn both_ways_do_as_many_as_asked() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * BLOCK as u64).unwrap();
        let interrupt = Interrupt::never();
        for way in [Way::Write, Way::Read] {
            for mut places in [Places::random(64, 1), Places::sequential(4 * BLOCK, 16, 1)] {
                let bounds = Bounds { ops: 100, time: Duration::from_secs(600) };
                let mut meter = Meter::start(bounds, &interrupt);
                match transfer(&file, way, 32, &mut places, &mut meter) {
                    Ok(()) => assert_eq!(meter.end().unwrap().ops(), 100),
                    // Containers may refuse io_uring.
                    Err(error) => assert!(error.to_string().starts_with("io_uring"), "{error}"),
                }
            }
        }
    }

    #[test]
    fn a_short_read_is_a_failure() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BLOCK as u64 / 2).unwrap();
        let interrupt = Interrupt::never();
        let mut meter = Meter::start(Bounds::ops(4), &interrupt);
        let mut places = Places::random(1, 1);
        assert!(transfer(&file, Way::Read, 2, &mut places, &mut meter).is_err());
    }
}
