//! Cables as a testbed: two devices of this process that exchange Ethernet frames over UNIX sockets.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use softroce::prelude::*;

use super::testbed::Testbed;
use super::udp;

mod annex;
mod atomics;
mod causes;
mod clean;
mod completions;
mod datagrams;
mod events;
mod failures;
mod lifetimes;
mod limits;
mod memory;
mod ops;
mod requests;
mod shared;
mod states;
mod threads;
mod unreliable;
mod windows;

/// A file name that nobody else has.
pub(crate) fn fresh(what: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("softroce-{}-{n}.{what}", std::process::id()))
}

/// Both ends of a cable of datagrams. The options stand behind those of each.
pub(crate) fn cable(options: &str) -> [Context; 2] {
    let [a, b] = [fresh("sock"), fresh("sock")].map(|path| path.display().to_string());
    let first = format!("soft:frames={a},peer={b},ip=10.99.0.1/24,ip=fd99::1/64{options}");
    let second = format!("soft:frames={b},peer={a},ip=10.99.0.2/24,ip=fd99::2/64{options}");
    [first, second].map(|name| Context::open(&name).unwrap())
}

/// Two devices on a cable of datagrams.
pub(crate) struct Bed(udp::Bed);

impl Testbed for Bed {
    fn try_new() -> Result<Self, String> {
        Ok(Self(udp::Bed::of(cable(""))))
    }

    fn hosts(&self) -> [&Context; 2] {
        self.0.hosts()
    }

    fn into_hosts(self) -> [Context; 2] {
        self.0.into_hosts()
    }

    fn share(&self) {}

    fn pass_time(&self) {
        self.0.pass_time();
    }

    fn block_on<T>(&self, f: impl Future<Output = T>) -> T {
        self.0.block_on(f)
    }
}
