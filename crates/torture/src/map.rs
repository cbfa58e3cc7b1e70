//! A file mapped into memory, read and written as memory, without ever being touched.
//!
//! Problem.  Whoever touches a page of a mapping whose filesystem is gone gets SIGBUS.
//! Idea.     The kernel does it instead: `/proc/self/mem` takes the same page faults, marks the
//!           same pages dirty, and answers with an error where there is nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping of the beginning of a file, for reading and writing.
pub(crate) struct Map {
    address: usize,
    len: usize,
    memory: File,
}

impl Map {
    #[allow(unsafe_code)]
    pub(crate) fn of(file: &File, len: usize) -> io::Result<Map> {
        let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so nothing else is there, and nobody makes a
        // reference from it.
        let address = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) }?;
        Ok(Map { address: address as usize, len, memory })
    }

    pub(crate) fn read(&self, bytes: &mut [u8], offset: usize) -> io::Result<()> {
        self.memory.read_exact_at(bytes, self.at(offset, bytes.len()))
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: usize) -> io::Result<()> {
        self.memory.write_all_at(bytes, self.at(offset, bytes.len()))
    }

    fn at(&self, offset: usize, len: usize) -> u64 {
        assert!(offset + len <= self.len, "within the mapping");
        (self.address + offset) as u64
    }
}

impl Drop for Map {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it is this mapping, and nobody has a reference into it.
        let unmapped = unsafe { munmap(self.address as *mut _, self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
