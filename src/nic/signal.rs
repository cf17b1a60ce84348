//! A count that a file descriptor shows: readable while it is above zero.

use std::fmt;

/// Counts events; whoever wants to sleep on them in `poll` or an event loop gets a descriptor.
///
/// The descriptor is made at its first use: a program that never asks for it pays no system call.
#[derive(Default)]
pub struct Signal(imp::Signal);

impl Signal {
    /// One more.
    pub fn raise(&self) {
        self.0.add();
    }

    /// One less.
    pub fn lower(&self) {
        self.0.sub();
    }

    /// Whether somebody has the descriptor, and may sleep on it without our knowing.
    pub fn is_watched(&self) -> bool {
        self.0.is_open()
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signal")
    }
}

#[cfg(all(feature = "udp", target_os = "linux"))]
mod imp {
    use std::os::fd::{AsFd, BorrowedFd};

    use nix::sys::eventfd::{EfdFlags, EventFd};
    use parking_lot::Mutex;
    use std::sync::OnceLock;

    #[derive(Default)]
    pub(super) struct Signal {
        /// Events so far, as the descriptor must show them when it is made.
        count: Mutex<u64>,
        fd: OnceLock<EventFd>,
    }

    impl Signal {
        pub(super) fn add(&self) {
            let mut count = self.count.lock();
            *count += 1;
            if let Some(fd) = self.fd.get() {
                // Cannot fill up: it would take 2^64 events.
                let _ = fd.write(1);
            }
        }

        pub(super) fn sub(&self) {
            let mut count = self.count.lock();
            *count = count.saturating_sub(1);
            if let Some(fd) = self.fd.get() {
                // A semaphore: takes one. Empty only if the count was.
                let _ = fd.read();
            }
        }

        pub(super) fn is_open(&self) -> bool {
            self.fd.get().is_some()
        }

        pub(super) fn fd(&self) -> std::io::Result<BorrowedFd<'_>> {
            let count = self.count.lock();
            if self.fd.get().is_none() {
                let flags =
                    EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
                let fd = EventFd::from_flags(flags)?;
                if *count > 0 {
                    let _ = fd.write(*count);
                }
                let _ = self.fd.set(fd);
            }
            drop(count);
            self.fd.get().map(EventFd::as_fd).ok_or_else(|| std::io::Error::other("no descriptor"))
        }
    }
}

#[cfg(all(feature = "udp", target_os = "linux"))]
impl Signal {
    /// The descriptor, an eventfd in semaphore mode. For sleeping only: reading it is this type's task.
    ///
    /// # Errors
    /// The process has no descriptors left (`EMFILE`).
    pub fn fd(&self) -> std::io::Result<std::os::fd::BorrowedFd<'_>> {
        self.0.fd()
    }
}

#[cfg(not(all(feature = "udp", target_os = "linux")))]
mod imp {
    #[derive(Default)]
    pub(super) struct Signal;

    impl Signal {
        pub(super) fn add(&self) {}
        pub(super) fn sub(&self) {}
        pub(super) fn is_open(&self) -> bool {
            false
        }
    }
}

#[cfg(all(test, feature = "udp", target_os = "linux"))]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn readable(s: &Signal) -> bool {
        let mut fds = [PollFd::new(s.fd().expect("there is one"), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).expect("a descriptor that is open") == 1
    }

    #[test]
    fn readable_while_anything_is_left() {
        let s = Signal::default();
        s.raise();
        s.raise();
        assert!(!s.is_watched());
        assert!(readable(&s), "what came before the descriptor counts");
        s.lower();
        assert!(readable(&s));
        s.lower();
        assert!(!readable(&s));
        s.raise();
        assert!(readable(&s));
        assert!(s.is_watched());
    }
}
