//! Completion statuses and opcodes, with the numbers of verbs.

/// How a work request ended. Values are those of `enum ibv_wc_status`.
#[doc(alias = "ibv_wc_status")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum WcStatus {
    /// It did what it was asked to.
    #[default]
    Success = 0,
    /// A message did not fit the buffers posted for it here.
    LocLen = 1,
    /// The request could not be executed by this queue pair.
    LocQpOp = 2,
    /// Not used.
    LocEecOp = 3,
    /// A local buffer is not what its key stands for: unknown key, wrong protection domain, out of
    /// range, or not writable.
    LocProt = 4,
    /// The queue pair was in ERR, or went there, before the request was carried out.
    WrFlush = 5,
    /// A memory window could not be bound.
    MwBind = 6,
    /// The peer answered something that does not fit the request.
    BadResp = 7,
    /// A protection error on incoming data.
    LocAccess = 8,
    /// The peer found the request invalid.
    RemInvReq = 9,
    /// The peer does not grant access to that memory.
    RemAccess = 10,
    /// The peer failed to carry the request out.
    RemOp = 11,
    /// The peer did not answer, however often we tried.
    RetryExc = 12,
    /// The peer had no receive posted, however often we tried.
    RnrRetryExc = 13,
    /// Not used.
    LocRddViol = 14,
    /// Not used.
    RemInvRd = 15,
    /// The peer aborted the operation.
    RemAbort = 16,
    /// Not used.
    InvEecn = 17,
    /// Not used.
    InvEecState = 18,
    /// The device failed.
    Fatal = 19,
    /// The response timed out.
    RespTimeout = 20,
    /// Something else.
    General = 21,
    /// Tag matching failed.
    TmErr = 22,
    /// A tag matching rendezvous was not completed.
    TmRndvIncomplete = 23,
}

impl WcStatus {
    /// From the number; one that is not known becomes [`General`](Self::General).
    pub const fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Success,
            1 => Self::LocLen,
            2 => Self::LocQpOp,
            3 => Self::LocEecOp,
            4 => Self::LocProt,
            5 => Self::WrFlush,
            6 => Self::MwBind,
            7 => Self::BadResp,
            8 => Self::LocAccess,
            9 => Self::RemInvReq,
            10 => Self::RemAccess,
            11 => Self::RemOp,
            12 => Self::RetryExc,
            13 => Self::RnrRetryExc,
            14 => Self::LocRddViol,
            15 => Self::RemInvRd,
            16 => Self::RemAbort,
            17 => Self::InvEecn,
            18 => Self::InvEecState,
            19 => Self::Fatal,
            20 => Self::RespTimeout,
            22 => Self::TmErr,
            23 => Self::TmRndvIncomplete,
            _ => Self::General,
        }
    }
}

/// What a completed work request was. Values are those of `enum ibv_wc_opcode`.
#[doc(alias = "ibv_wc_opcode")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum WcOpcode {
    /// A SEND, with or without immediate data or invalidation.
    #[default]
    Send = 0,
    /// A WRITE, with or without immediate data.
    Write = 1,
    /// A READ.
    Read = 2,
    /// A compare and swap.
    CompSwap = 3,
    /// A fetch and add.
    FetchAdd = 4,
    /// Binding of a memory window.
    BindMw = 5,
    /// Local invalidation.
    LocalInv = 6,
    /// A FLUSH.
    Flush = 8,
    /// An ATOMIC WRITE.
    AtomicWrite = 9,
    /// A receive that a SEND has filled.
    Recv = 128,
    /// A receive that a WRITE with immediate data has used up.
    RecvWriteImm = 129,
}

impl WcOpcode {
    /// From the number, if it is one that exists here.
    pub const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Send,
            1 => Self::Write,
            2 => Self::Read,
            3 => Self::CompSwap,
            4 => Self::FetchAdd,
            5 => Self::BindMw,
            6 => Self::LocalInv,
            8 => Self::Flush,
            9 => Self::AtomicWrite,
            128 => Self::Recv,
            129 => Self::RecvWriteImm,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for raw in 0..=23 {
            assert_eq!(WcStatus::from_raw(raw) as u32, raw);
        }
        assert_eq!(WcStatus::from_raw(24), WcStatus::General);
        let known: Vec<u8> = (0..=255)
            .filter(|&raw| WcOpcode::from_raw(raw).is_some_and(|op| op as u8 == raw))
            .collect();
        assert_eq!(known, [0, 1, 2, 3, 4, 5, 6, 8, 9, 128, 129]);
    }
}
