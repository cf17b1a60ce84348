//! The RoCEv2 codec: bytes on one side, meaning on the other. No state, no I/O, no `unsafe`.
//!
//! A *datagram* is what UDP carries: BTH, extended headers, payload, pad, ICRC.
//! [`Packet::parse`] checks its lengths once and then answers any question about it; [`PacketBuilder`]
//! writes one into a buffer; [`icrc`] seals and checks it; [`frame`] wraps it into Ethernet, IP and UDP
//! where bytes leave as whole frames; [`grh`] is what a datagram tells its receiver of its IP header.
//!
//! *Rules.* Parsing never panics, whatever the bytes. Building a known opcode never panics on a
//! buffer of the stated length. Everything that depends on an opcode is read from the table in [`opcode`].

pub mod aeth;
pub mod bth;
pub mod error;
pub mod frame;
pub mod grh;
pub mod headers;
pub mod icrc;
pub mod num;
pub mod opcode;
pub mod packet;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use bth::Bth;
pub use error::Error;
pub use headers::{AtomicAckEth, AtomicEth, Deth, Ext, Feth, Ieth, ImmDt, Rdeth, Reth, Xrceth};
pub use opcode::Opcode;
pub use packet::{Packet, PacketBuilder};
