//! What threads share: atomics and locks, from std and parking_lot, or from loom while it checks models.
//!
//! *Rules.* Code that a loom model runs takes its atomics and locks from here and from nowhere else. The
//! names and signatures are parking_lot's: no poisoning, `try_lock` gives an `Option`.

#[cfg(not(loom))]
pub(crate) use self::real::*;

#[cfg(loom)]
pub(crate) use self::model::*;

#[cfg(not(loom))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    pub(crate) use parking_lot::Mutex;
}

#[cfg(loom)]
mod model {
    use std::ops::{Deref, DerefMut};

    use loom::sync::atomic::AtomicBool;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    pub(crate) struct MutexGuard<'a, T> {
        locked: &'a AtomicBool,
        inner: loom::sync::MutexGuard<'a, T>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { locked: AtomicBool::new(false), inner: loom::sync::Mutex::new(value) }
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            let inner = self.inner.lock().expect("a panic ends the model");
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
