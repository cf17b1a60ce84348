//! What an engine tells an observer: each thing that it does, as it does it.
//!
//! An [`Observer`] is for explaining and for looking at failures; nothing in the engine depends on one, and
//! what it is told is what happened, not what should have. Without an observer the cost is one branch at
//! each of these places, always taken the same way. With one it is told in the order of events, and called
//! from inside the engine: it must be quick, and cannot call back.

use std::fmt;
use std::net::IpAddr;

use super::cc::Loss;
use super::status::WcStatus;
pub use crate::mem::{Access, AccessError};
use crate::queue::wqe::sges;
pub use crate::queue::{CqeKind, SendOp};
use crate::queue::{SendFlags, SendWqe};
use crate::time::{Duration, Instant};
use crate::wire::packet::Packet;
use crate::wire::{Opcode, Syndrome};

/// Is told what an engine does.
pub trait Observer: Send + fmt::Debug {
    /// Something happened at `at`.
    fn observe(&mut self, at: Instant, event: NicEvent);
}

/// The fields of a packet that say what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketBrief {
    /// What it is.
    pub opcode: Opcode,
    /// Queue pair at the receiver.
    pub dest_qpn: u32,
    /// Packet sequence number.
    pub psn: u32,
    /// Whether it asks for an ACK.
    pub ack_req: bool,
    /// What it acknowledges or refuses with.
    pub syndrome: Option<Syndrome>,
    /// Bytes of payload.
    pub payload: usize,
    /// Bytes of the datagram, BTH to ICRC.
    pub len: usize,
}

impl PacketBrief {
    /// The fields of a datagram. `None` if it is no packet.
    pub fn of(datagram: &[u8]) -> Option<Self> {
        Packet::parse(datagram).ok().map(|packet| Self::from_packet(&packet, datagram.len()))
    }

    pub(super) fn from_packet(packet: &Packet<'_>, len: usize) -> Self {
        Self {
            opcode: packet.opcode(),
            dest_qpn: packet.dest_qp().raw(),
            psn: packet.psn().raw(),
            ack_req: packet.ack_req(),
            syndrome: packet.aeth().map(|aeth| aeth.syndrome),
            payload: packet.payload().len(),
            len,
        }
    }
}

/// A request of the send queue, as the NIC found it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WqeBrief {
    /// Its place in the queue: requests are counted from 0.
    pub index: u32,
    /// The application's number.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Bytes of payload, or of local buffers for the result.
    pub length: u32,
    /// The bytes to send are in the WQE itself.
    pub inline: bool,
    /// Success makes a completion.
    pub signaled: bool,
    /// Pieces of local memory.
    pub num_sge: u16,
    /// Where the first of them begins; 0 without one.
    pub local_addr: u64,
    /// Its key; 0 without one.
    pub lkey: u32,
    /// Address at the peer.
    pub remote_addr: u64,
    /// Key at the peer.
    pub rkey: u32,
    /// Compare-and-swap: compares with this. Fetch-and-add: adds this.
    pub compare_add: u64,
    /// Compare-and-swap: stores this.
    pub swap: u64,
}

impl WqeBrief {
    pub(super) fn new(index: u32, wqe: &SendWqe, words: &[u64]) -> Self {
        let inline = wqe.flags.contains(SendFlags::INLINE);
        let local = sges(words, if inline { 0 } else { wqe.num_sge }).next().unwrap_or_default();
        Self {
            index,
            wr_id: wqe.wr_id,
            op: wqe.op,
            length: wqe.length,
            inline,
            signaled: wqe.flags.contains(SendFlags::SIGNALED),
            num_sge: wqe.num_sge,
            local_addr: local.addr,
            lkey: local.lkey.0,
            remote_addr: wqe.remote_addr,
            rkey: wqe.rkey.0,
            compare_add: wqe.compare_add,
            swap: wqe.swap,
        }
    }
}

/// Something that a NIC did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NicEvent {
    /// A queue pair was connected: it can receive from now on.
    Connected {
        /// Its number.
        qpn: u32,
        /// That of its peer.
        dest_qpn: u32,
        /// Where that is.
        peer: IpAddr,
    },
    /// It learnt that there is something in a send queue.
    Doorbell {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// It began a request: fetched its WQE and gave it PSNs.
    Fetched {
        /// Number of the queue pair.
        qpn: u32,
        /// The WQE.
        wqe: WqeBrief,
        /// The first of its PSNs.
        first_psn: u32,
        /// PSNs that it takes: packets of a SEND or WRITE, responses of a READ; 0 for a local request.
        psns: u32,
        /// A READ: responses that one request packet asks for. Else 1.
        per_request: u32,
    },
    /// It read local memory, or the WQE, for the payload of a request.
    Gathered {
        /// Number of the queue pair.
        qpn: u32,
        /// PSN of the packet.
        psn: u32,
        /// Where in the message.
        offset: usize,
        /// Bytes.
        bytes: usize,
    },
    /// It wrote what arrived into local memory: of a request (READ, atomic) or of a receive (SEND).
    Scattered {
        /// Number of the queue pair.
        qpn: u32,
        /// PSN of the packet.
        psn: u32,
        /// Where in the message.
        offset: usize,
        /// Bytes.
        bytes: usize,
    },
    /// It handed a packet to the network.
    Sent(PacketBrief),
    /// It accepted a packet for one of its queue pairs: header, addresses and ICRC are right.
    Arrived(PacketBrief),
    /// It looked memory up for a peer, by key.
    Checked {
        /// Number of the queue pair.
        qpn: u32,
        /// Protection domain of the queue pair, which must be that of the key.
        pd: u32,
        /// The key.
        rkey: u32,
        /// First address.
        va: u64,
        /// Bytes.
        len: u64,
        /// The right that is needed.
        need: Access,
        /// Why it was refused, if it was.
        refused: Option<AccessError>,
    },
    /// A request came a second time.
    Duplicate {
        /// Number of the queue pair.
        qpn: u32,
        /// Its PSN.
        psn: u32,
        /// The PSN that is expected next.
        expected: u32,
    },
    /// A request came ahead of one that is missing, and is dropped.
    Ahead {
        /// Number of the queue pair.
        qpn: u32,
        /// Its PSN.
        psn: u32,
        /// The PSN that is expected next.
        expected: u32,
    },
    /// It decided to refuse a request. The NAK itself is another event, [`Sent`](Self::Sent).
    Refused {
        /// Number of the queue pair.
        qpn: u32,
        /// PSN that the NAK names.
        psn: u32,
        /// The reason.
        syndrome: Syndrome,
    },
    /// Something was lost: it goes back, and sends again from there.
    WentBack {
        /// Number of the queue pair.
        qpn: u32,
        /// How the loss was noticed.
        loss: Loss,
        /// The first PSN that is sent again.
        psn: u32,
    },
    /// The receiver is not ready: it waits, and sends again from there.
    WaitsForReceiver {
        /// Number of the queue pair.
        qpn: u32,
        /// The first PSN that is sent again.
        psn: u32,
        /// How long it waits.
        wait: Duration,
    },
    /// The wait for the receiver is over.
    WaitOver {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A request of the send queue is done, and its slot free once that is polled.
    Retired {
        /// Number of the queue pair.
        qpn: u32,
        /// Its place in the queue.
        index: u32,
        /// The application's number.
        wr_id: u64,
    },
    /// It wrote a completion.
    Completed {
        /// Number of the queue pair.
        qpn: u32,
        /// Number of the completion queue.
        cq: u32,
        /// Of which queue.
        kind: CqeKind,
        /// The application's number.
        wr_id: u64,
        /// How it ended.
        status: WcStatus,
        /// Bytes received, read or fetched.
        byte_len: u32,
    },
}
