//! Whether this process is the one that something was made in, or a child that inherited a copy of it.
//!
//! A child of `fork(2)` has the memory of its parent as it was, and one thread. Locks that others held stay locked,
//! the NIC's thread is missing, the sockets are those of the parent, and registered pages are not there. So
//! everything that was made before is refused, and left alone by destructors.
//!
//! *Rules.* Asking costs one load: a handler that `pthread_atfork(3)` calls in children counts. Children that
//! are made without it (`clone(2)` as a system call, `vfork(3)`) are not noticed; those of `posix_spawn(3)`, and so
//! of `std::process`, run another program at once.
#![cfg_attr(
    target_os = "linux",
    allow(unsafe_code, reason = "the C library calls a function of ours in children")
)]

use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between the process that loaded the program and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process that something was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u32);

impl Origin {
    /// This process. From now on forks are noticed.
    pub(crate) fn here() -> Self {
        watch();
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this is still that process.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        GENERATION.load(Ordering::Relaxed) == self.0
    }

    /// Whether that process is a child of one that had used the library.
    #[cfg(all(feature = "udp", target_os = "linux"))]
    pub(crate) fn is_child(self) -> bool {
        self.0 > 0
    }
}

#[cfg(target_os = "linux")]
fn watch() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this program and does nothing but count. The call fails only for want of
        // memory; then forks are not noticed, as without this module.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

#[cfg(not(target_os = "linux"))]
fn watch() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_here_is_here() {
        let origin = Origin::here();
        assert!(origin.is_here());
        #[cfg(all(feature = "udp", target_os = "linux"))]
        assert!(!origin.is_child());
        assert!(!Origin(origin.0 + 1).is_here());
    }
}
