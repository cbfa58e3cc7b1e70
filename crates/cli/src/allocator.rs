//! The allocator of the daemon.
//!
//! Problem.  A write-back makes small objects on one thread and frees them on another, which the C
//!           library's allocator does behind locks, and it keeps much of the memory freed in
//!           between.
//! Idea.     mimalloc: a free on another thread is one atomic exchange.
//! Order.    [`settle`] comes first in `main`, before there are threads. Left to itself mimalloc
//!           keeps freed pages for a second, and until it is asked for more; and huge pages make
//!           resident memory that is not in use. A daemon has a budget, so it does neither.

#![allow(unsafe_code)]

use std::ffi::c_int;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay` of mimalloc.h, milliseconds.
const PURGE_DELAY: c_int = 15;

/// Freed memory goes back to the system at once, and no huge page is made of the rest. That the
/// kernel does not know of huge pages is no failure.
pub(crate) fn settle() {
    // SAFETY: it stores a number in a table of the allocator, as one does at the start.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 0) };
    let _unknown_to_the_kernel = rustix::thread::disable_transparent_huge_pages(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_the_delay_of_purges() {
        // The number that mimalloc has for it, and for no option beside it.
        // SAFETY: it reads a number from a table of the allocator.
        let before = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(before, 1000);
        settle();
        // SAFETY: as above.
        assert_eq!(unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) }, 0);
    }
}
