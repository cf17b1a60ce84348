//! What threads share: atomics, locks and cells, from std and parking_lot, or from loom while it checks
//! models.
//!
//! *Rules.* Code that a loom model runs takes its atomics, its locks and its shared cells from here and from
//! nowhere else. The names are parking_lot's: no poisoning, `try_lock` gives an `Option`; cells are entered
//! through a closure.

#[cfg(not(loom))]
pub(crate) use self::real::*;

#[cfg(loom)]
pub(crate) use self::model::*;

#[cfg(not(loom))]
mod real {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    /// Shared storage that is entered through a raw pointer.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Enters for reading.
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Enters for writing.
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(loom)]
mod model {
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;

    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    /// loom's mutex with parking_lot's face, and with a `try_lock` that is as weak as the real one.
    ///
    /// A failed `try_lock` of parking_lot is a relaxed load: it may see a lock that was released long ago.
    /// loom's own mutex always knows the truth and would hide mistakes that rest on that.
    #[derive(Debug)]
    pub(crate) struct Mutex<T> {
        locked: AtomicBool,
        inner: loom::sync::Mutex<T>,
    }

    /// Releases the lock when dropped.
    #[derive(Debug)]
    #[expect(
        unnameable_types,
        reason = "what `lock` of a public queue gives, in place of parking_lot's"
    )]
    pub struct MutexGuard<'a, T> {
        locked: &'a AtomicBool,
        inner: loom::sync::MutexGuard<'a, T>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { locked: AtomicBool::new(false), inner: loom::sync::Mutex::new(value) }
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            self.locked.store(true, Ordering::Relaxed);
            MutexGuard { locked: &self.locked, inner }
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            if self.locked.load(Ordering::Relaxed) {
                return None;
            }
            let inner = self.inner.try_lock().ok()?;
            self.locked.store(true, Ordering::Relaxed);
            Some(MutexGuard { locked: &self.locked, inner })
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.locked.store(false, Ordering::Release);
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.inner
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.inner
        }
    }
}
