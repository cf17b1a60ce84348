//! Scenarios of the verbs, written once and run on every testbed: the simulated network, real sockets
//! on the loopback interface, frames on a UNIX socket, and frames on an interface. And what only one of them has:
//! devices by name, virtual time.
//!
//! *Rules.* A scenario uses the public interface and a [`Testbed`](testbed::Testbed), nothing else. It
//! never sleeps and never reads a clock: it waits for what it expects, and gives up after much longer than
//! that can take. A testbed that cannot be had here prints why and skips; with `SOFTROCE_NO_SKIP=1` that is
//! a failure.

#![expect(clippy::cast_possible_truncation, reason = "the numbers are small")]
#![expect(clippy::duplicate_mod, reason = "each scenario runs on each testbed")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[cfg(all(feature = "udp", target_os = "linux"))]
#[path = "verbs/devices.rs"]
mod devices;
#[cfg(all(feature = "udp", target_os = "linux"))]
#[path = "verbs/frames.rs"]
mod frames;
#[path = "verbs/lossy.rs"]
mod lossy;
#[cfg(all(feature = "raw", target_os = "linux"))]
#[path = "verbs/raw.rs"]
mod raw;
#[path = "verbs/sim.rs"]
mod sim;
#[path = "verbs/simulated.rs"]
mod simulated;
#[path = "common/skip.rs"]
mod skip;
#[path = "verbs/testbed.rs"]
mod testbed;
#[cfg(all(feature = "udp", target_os = "linux"))]
#[path = "verbs/udp.rs"]
mod udp;
