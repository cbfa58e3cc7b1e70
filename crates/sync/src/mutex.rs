//! A mutex with a place in the order, and its condition variable.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::Ranked;
use crate::held::Held;

/// A lock of rank `R` that one thread holds at a time.
pub struct Mutex<T: ?Sized, R> {
    rank: PhantomData<fn() -> R>,
    inner: parking_lot::Mutex<T>,
}

pub struct MutexGuard<'a, T: ?Sized> {
    inner: parking_lot::MutexGuard<'a, T>,
    held: Held,
}

impl<T, R: Ranked> Mutex<T, R> {
    pub const fn new(value: T) -> Self {
        Mutex { rank: PhantomData, inner: parking_lot::Mutex::new(value) }
    }

    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized, R: Ranked> Mutex<T, R> {
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.lock_at(0)
    }

    /// As [`Self::lock`], where a thread holds several locks of this rank: it takes them by
    /// ascending `key` (RANK-L1).
    #[track_caller]
    pub fn lock_at(&self, key: u64) -> MutexGuard<'_, T> {
        let held = Held::waiting(R::RANK, key);
        MutexGuard { inner: self.inner.lock(), held }
    }

    /// The lock, if it is free. Never waits (RANK-L2).
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, held: Held::taken(R::RANK, 0) })
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: Default, R: Ranked> Default for Mutex<T, R> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R> fmt::Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Wakes threads that wait for a change of the value in a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Waits without the lock of `guard`, and has it again when this returns: so the thread holds
    /// no lock of a later place (RANK-L1).
    #[track_caller]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.held.waiting_again();
        self.0.wait(&mut guard.inner);
    }

    pub fn notify_one(&self) -> bool {
        self.0.notify_one()
    }

    pub fn notify_all(&self) -> usize {
        self.0.notify_all()
    }
}
