//! The RoCEv2 codec: bytes on one side, meaning on the other. No state, no I/O, no `unsafe`.
//!
//! A *datagram* is what UDP carries: BTH, extended headers, payload, pad, ICRC.
//! [`Packet::parse`](packet::Packet::parse) checks its lengths once and then answers any question about it;
//! [`PacketBuilder`](packet::PacketBuilder) writes one into a buffer; [`icrc`] seals and checks it;
//! [`frame`] wraps it into Ethernet, IP and UDP where bytes leave as whole frames.
//!
//! *Rules.* Parsing never panics, whatever the bytes. Building never panics on a buffer of the stated
//! length. Everything that depends on an opcode is read from the table in [`opcode`].

pub mod bth;
pub mod num;
pub mod opcode;

pub use bth::Bth;
pub use opcode::Opcode;
