//! Many direct writes in flight, through one io_uring.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};

use crate::error::{BenchError, On};
use crate::random_overwrite::{BLOCK, Meter, Places};

/// A buffer as direct I/O wants it.
#[derive(Clone)]
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

/// Writes blocks with `depth` in flight until the meter says that it is enough.
pub(crate) fn overwrite(
    file: &File,
    depth: usize,
    places: &mut Places,
    meter: &mut Meter<'_>,
) -> Result<(), BenchError> {
    let mut ring = IoUring::new(depth.next_power_of_two() as u32).on("io_uring")?;
    let mut buffers = vec![Aligned([0; BLOCK]); depth];
    let mut began = vec![Instant::now(); depth];
    let mut idle: Vec<usize> = (0..depth).collect();
    let mut failure = None;
    // What is in flight points into `buffers`, so this loop ends only when nothing is.
    loop {
        let go_on = failure.is_none() && meter.go_on(depth - idle.len());
        if go_on {
            while let Some(slot) = idle.pop() {
                places.fill(&mut buffers[slot].0);
                began[slot] = Instant::now();
                let write = opcode::Write::new(
                    types::Fd(file.as_raw_fd()),
                    buffers[slot].0.as_ptr(),
                    BLOCK as u32,
                )
                .offset(places.next_offset())
                .build()
                .user_data(slot as u64);
                // SAFETY: `file` and `buffers[slot]` outlive the request: the slot is not idle
                // until its completion was seen, and the loop is not left before every slot is
                // idle.
                unsafe { ring.submission().push(&write) }.expect("one entry a slot");
                if !meter.go_on(depth - idle.len()) {
                    break;
                }
            }
        } else if idle.len() == depth {
            break;
        }
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                // The kernel may still write from the buffers; they must not be freed.
                std::mem::forget(buffers);
                return Err(error).on("io_uring");
            }
            _ => {}
        }
        for completion in ring.completion() {
            let slot = completion.user_data() as usize;
            if completion.result() != BLOCK as i32 {
                let error = io::Error::from_raw_os_error(-completion.result().min(-1));
                failure.get_or_insert(error);
            }
            meter.done(began[slot]);
            idle.push(slot);
        }
    }
    failure.map_or(Ok(()), Err::<(), _>).on("direct write")
}
