//! Why a datagram is no packet.

/// What is wrong with a datagram. Receivers drop it without an answer, and count why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shorter than a BTH and an ICRC.
    #[error("shorter than a BTH and an ICRC")]
    Truncated,
    /// A transport version other than 0.
    #[error("the transport version is not 0")]
    BadVersion,
    /// An opcode that the table does not have.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// Too short for the headers of its opcode, its pad, and an ICRC.
    #[error("too short for the headers of its opcode, its pad and an ICRC")]
    BadLength,
    /// Payload where the opcode allows none.
    #[error("payload behind an opcode that allows none")]
    UnexpectedPayload,
}
