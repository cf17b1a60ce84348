//! Congestion control: how fast a queue pair may send.
//!
//! The engine tells an algorithm what happened ([`CongestionControl`]) and asks it for a rate and a
//! window; pacing itself is the engine's (`qp/pace.rs`). [`Fixed`] is the algorithm of a queue pair that nobody slows.

mod algorithm;
mod dcqcn;
mod fixed;
mod params;
mod swift;
mod timely;

pub use algorithm::Algorithm;
pub use dcqcn::Dcqcn;
pub use fixed::Fixed;
pub use params::{AlphaClock, Clamp, DcqcnConfig, ParamError, Stages};
pub use swift::{Swift, SwiftConfig};
pub use timely::{Timely, TimelyConfig};

use std::fmt;

use crate::time::{Duration, Instant};

/// What an acknowledgement says about the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AckInfo {
    /// Bytes of payload newly acknowledged; of a READ, those that have arrived.
    pub bytes: u32,
    /// Round-trip time of the newest packet acknowledged: from its leaving to the arrival of the ACK, or of the first
    /// packet of its answer. `None` if that packet did not ask for an ACK, or something was sent again meanwhile, so that
    /// nobody knows which of the two was answered.
    pub rtt: Option<Duration>,
    /// The acknowledgement itself carried "congestion experienced".
    pub ecn_echo: bool,
}

/// How a loss was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The responder reported a gap.
    SequenceNak,
    /// A response beyond an unanswered READ or atomic arrived.
    ImpliedNak,
    /// Nothing arrived in time.
    Timeout,
}

/// What an algorithm has come to, for whoever looks on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct State {
    /// Its name.
    pub algorithm: &'static str,
    /// Bits per second at which packets leave.
    pub rate: Option<u64>,
    /// Bits per second that it is on its way to.
    pub target: Option<u64>,
    /// Its estimate of congestion, 0 to 1.
    pub alpha: Option<f64>,
    /// Most unacknowledged bytes.
    pub cwnd: Option<u32>,
}

/// The reaction point of one queue pair: told what happens, asked how fast to go.
///
/// *Rules.* No clock, no randomness of its own: time is an argument. All methods must return quickly;
/// they run under the engine's lock. After any call, [`next_timer`](Self::next_timer),
/// [`pacing_rate`](Self::pacing_rate) and [`cwnd`](Self::cwnd) are asked again.
pub trait CongestionControl: fmt::Debug + Send {
    /// A packet left, whose Ethernet frame is of `bytes` bytes, from the MAC header to the check sequence: what it takes
    /// in the queue of a switch.
    fn on_send(&mut self, now: Instant, bytes: u32) {
        let _ = (now, bytes);
    }
    /// Bytes were acknowledged.
    fn on_ack(&mut self, now: Instant, ack: &AckInfo) {
        let _ = (now, ack);
    }
    /// A congestion notification packet arrived.
    fn on_cnp(&mut self, now: Instant) {
        let _ = now;
    }
    /// A loss was noticed and a retry starts.
    fn on_loss(&mut self, now: Instant, loss: Loss) {
        let _ = (now, loss);
    }
    /// The time of [`next_timer`](Self::next_timer) has come.
    fn on_timer(&mut self, now: Instant) {
        let _ = now;
    }
    /// When it wants to be called again, if at all.
    fn next_timer(&self) -> Option<Instant> {
        None
    }
    /// Bits per second at which packets leave, by what they take on an Ethernet: the frame, preamble and gap. `None`: as
    /// fast as they can.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }
    /// Most unacknowledged bytes of payload; `None`: no limit of its own. A single packet always may go, and one more to ask
    /// for an ACK where none is under way: below a packet it is [`pacing_rate`](Self::pacing_rate) that counts.
    fn cwnd(&self) -> Option<u32> {
        None
    }
    /// Whether packets with data tell switches that they may be marked (ECT(0), RFC 3168). Asked once, when the
    /// queue pair is made.
    fn wants_ecn(&self) -> bool {
        false
    }
    /// The path MTU is known, in bytes of payload: that of a full packet. Before the first packet.
    fn path_mtu(&mut self, bytes: u32) {
        let _ = bytes;
    }
    /// The queue pair goes to RESET: what is sent after that has nothing to do with what was before, and may go to another
    /// peer. Unless an algorithm does something here, it goes on as if there had been a silence: right for one that keeps
    /// no state, and for one that adds up what several queue pairs do.
    fn reset(&mut self, now: Instant) {
        let _ = now;
    }
    /// What it has come to.
    fn state(&self, now: Instant) -> State {
        let _ = now;
        let (rate, cwnd) = (self.pacing_rate(), self.cwnd());
        State { algorithm: "custom", rate, cwnd, ..State::default() }
    }
}
