//! A lock for many readers or one writer, with a place in the order.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::Ranked;
use crate::held::Held;

/// A lock of rank `R` that many threads hold to read, or one to write. A thread that reads must not
/// read again: a writer that waits between the two would stop both.
pub struct RwLock<T: ?Sized, R> {
    rank: PhantomData<fn() -> R>,
    inner: parking_lot::RwLock<T>,
}

pub struct RwLockReadGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held,
}

pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T, R: Ranked> RwLock<T, R> {
    pub const fn new(value: T) -> Self {
        RwLock { rank: PhantomData, inner: parking_lot::RwLock::new(value) }
    }
}

impl<T: ?Sized, R: Ranked> RwLock<T, R> {
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.read_at(0)
    }

    /// As [`Self::read`], where a thread holds several locks of this rank: it takes them by
    /// ascending `key` (RANK-L1).
    #[track_caller]
    pub fn read_at(&self, key: u64) -> RwLockReadGuard<'_, T> {
        let held = Held::waiting(R::RANK, key);
        RwLockReadGuard { inner: self.inner.read(), _held: held }
    }

    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.write_at(0)
    }

    /// As [`Self::read_at`], to write.
    #[track_caller]
    pub fn write_at(&self, key: u64) -> RwLockWriteGuard<'_, T> {
        let held = Held::waiting(R::RANK, key);
        RwLockWriteGuard { inner: self.inner.write(), _held: held }
    }

    /// Never waits (RANK-L2).
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _held: Held::taken(R::RANK, 0) })
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: Default, R: Ranked> Default for RwLock<T, R> {
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R> fmt::Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
