//! Work completions.

use crate::engine::status::{WcOpcode, WcStatus};
use crate::queue::{Cqe, CqeFlags};

use super::error::{Error, Result};

/// A completion. `opcode`, `byte_len`, `imm` and the rest mean something only where `status` is
/// `Success`, as in C; `wr_id`, `status`, `qpn` and `vendor_err` always do.
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkCompletion {
    /// The number that the request was posted with.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received, read or fetched; for a WRITE with immediate, written.
    pub byte_len: u32,
    /// Immediate data, as a number.
    pub imm: Option<u32>,
    /// The key that the peer's SEND has invalidated here.
    pub invalidated_rkey: Option<u32>,
    /// Number of the queue pair.
    pub qpn: u32,
    /// Number of the sender's queue pair (datagrams).
    pub src_qpn: u32,
    /// The first 40 bytes of the buffer are a GRH (datagrams).
    pub has_grh: bool,
    /// Index of the partition key (datagrams to QP1).
    pub pkey_index: u16,
    /// Service level (datagrams; 0 on RoCE).
    pub sl: u8,
    /// LID of the sender (0 on RoCE).
    pub slid: u16,
    /// More about an error; 0 here.
    pub vendor_err: u32,
    /// When it completed: nanoseconds of the device's clock, virtual ones in a simulation.
    pub timestamp: Option<u64>,
}

impl WorkCompletion {
    /// The completion, if it is a success.
    ///
    /// # Errors
    /// [`Error::Completion`] with itself.
    pub fn ok(self) -> Result<Self> {
        if self.status == WcStatus::Success { Ok(self) } else { Err(Error::Completion(self)) }
    }

    pub(crate) fn from_cqe(cqe: &Cqe, timestamps: bool) -> Self {
        let flag = |f: CqeFlags| cqe.flags.contains(f);
        Self {
            wr_id: cqe.wr_id,
            status: WcStatus::from_raw(cqe.status.into()),
            opcode: WcOpcode::from_raw(cqe.opcode).unwrap_or_default(),
            byte_len: cqe.byte_len,
            imm: flag(CqeFlags::WITH_IMM).then_some(cqe.imm_or_inv),
            invalidated_rkey: flag(CqeFlags::WITH_INV).then_some(cqe.imm_or_inv),
            qpn: cqe.qpn,
            src_qpn: cqe.src_qpn,
            has_grh: flag(CqeFlags::GRH),
            pkey_index: cqe.pkey_index,
            sl: 0,
            slid: 0,
            vendor_err: cqe.vendor_err,
            timestamp: timestamps.then_some(cqe.timestamp),
        }
    }
}
