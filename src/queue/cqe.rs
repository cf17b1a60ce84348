//! What the engine puts into completion queues: plain data.

bitflags::bitflags! {
    /// Flags of a completion. Bits are those of `enum ibv_wc_flags`.
    #[doc(alias = "ibv_wc_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CqeFlags: u8 {
        /// The first 40 bytes of the buffer are a GRH.
        const GRH = 1;
        /// There is immediate data.
        const WITH_IMM = 2;
        /// A window was invalidated.
        const WITH_INV = 8;
    }
}

/// Which queue a completion belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CqeKind {
    /// The send queue: polling it frees slots.
    #[default]
    Send,
    /// A receive queue.
    Recv,
}

/// A completion in the queue, one cache line. On errors only `wr_id`, `status`, `qpn` and `vendor_err` mean
/// something to the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub struct Cqe {
    /// The application's.
    pub wr_id: u64,
    /// Nanoseconds of the device's clock.
    pub timestamp: u64,
    /// Slot of the queue pair's [`QpTag`](super::completion::QpTag) in this completion queue.
    pub qp_slot: u32,
    /// Stamp of that tag.
    pub stamp: u32,
    /// Sends: counter of the request in its queue. Polling frees it and all before it.
    pub wqe_index: u32,
    /// Bytes received, read or fetched.
    pub byte_len: u32,
    /// Immediate data as a number, or the key that was invalidated.
    pub imm_or_inv: u32,
    /// The queue pair's number.
    pub qpn: u32,
    /// Datagrams: the sender's.
    pub src_qpn: u32,
    /// More about an error.
    pub vendor_err: u32,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// A number of `enum ibv_wc_status`; 0 is success.
    pub status: u8,
    /// A number of `enum ibv_wc_opcode`.
    pub opcode: u8,
    /// What there is beside the data.
    pub flags: CqeFlags,
    /// Which queue.
    pub kind: CqeKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size() {
        assert_eq!(size_of::<Cqe>(), 64);
    }
}
