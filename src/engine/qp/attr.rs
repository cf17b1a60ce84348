//! Attributes of a queue pair: what `modify` sets and `query` tells.

use crate::mem::Access;
use crate::queue::SendOp;
use crate::wire::num::{Gid, Mtu};
use crate::wire::opcode::Transport;

/// Type of a queue pair. Values are those of `enum ibv_qp_type`.
#[doc(alias = "ibv_qp_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Extended reliable connection, sending side.
    XrcSend = 9,
    /// Extended reliable connection, receiving side.
    XrcRecv = 10,
}

impl QpType {
    /// Whether its requests are acknowledged, and sent again until they are.
    pub(crate) const fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc)
    }

    pub(crate) const fn is_reliable(self) -> bool {
        !matches!(self, Self::Uc | Self::Ud)
    }

    /// The service that its packets belong to.
    pub(crate) const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
            Self::XrcSend | Self::XrcRecv => Transport::Xrc,
        }
    }

    /// Whether the service has this operation (IBTA 9.4, `ibv_post_send(3)`). A SEND with invalidation has no
    /// opcode outside of RC.
    pub(crate) const fn has(self, op: SendOp) -> bool {
        match self {
            Self::Uc => matches!(
                op,
                SendOp::Send
                    | SendOp::SendImm
                    | SendOp::Write
                    | SendOp::WriteImm
                    | SendOp::BindMw
                    | SendOp::LocalInv
            ),
            Self::Ud => matches!(op, SendOp::Send | SendOp::SendImm),
            Self::Rc | Self::XrcSend => true,
            Self::XrcRecv => false,
        }
    }
}

/// What reliable connections (RC) send again when something was lost. All but the first need two ends that were both
/// told; between others it is go-back-N.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
#[repr(u8)]
pub enum Recovery {
    /// All from the first packet on that is missing: what the standard has (IBTA 9.7.5.2.1), and all others do.
    #[default]
    GoBackN = 0,
    /// Only what is missing. The receiver's memory for it is 512 packets.
    Selective = 1,
    /// The whole message to which the missing packet belongs, as the first NICs for RoCE did. **To show what that does to a network,
    /// and for nothing else**: of long messages on a line that loses packets none may ever complete, while the line is
    /// busy (Guo et al., SIGCOMM 2016). Only SENDs and WRITEs begin anew; of READs what is missing is asked for, and all
    /// others are one packet.
    GoBack0 = 2,
}

/// Why a queue pair of another type than RC is refused that asks for one.
pub(crate) const NO_RECOVERY: &str =
    "only RC sends again what is lost: other types have no recovery to choose";

impl Recovery {
    /// What two ends do that would do these.
    pub(crate) fn agreed(ours: Self, theirs: Self) -> Self {
        if ours == theirs { ours } else { Self::GoBackN }
    }
}

/// State of a queue pair. Values are those of `enum ibv_qp_state`.
#[doc(alias = "ibv_qp_state")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Created; nothing works yet.
    Reset = 0,
    /// Receives can be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains: nothing new is started.
    Sqd = 4,
    /// The send queue stopped on an error (UC and UD).
    Sqe = 5,
    /// Everything posted is flushed.
    Err = 6,
}

impl QpState {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// From the number of `enum ibv_qp_state`.
    pub const fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::Reset),
            1 => Some(Self::Init),
            2 => Some(Self::Rtr),
            3 => Some(Self::Rts),
            4 => Some(Self::Sqd),
            5 => Some(Self::Sqe),
            6 => Some(Self::Err),
            _ => None,
        }
    }
}

/// Path migration state. Only `Migrated` exists here: there is no alternate path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MigState {
    /// The primary path is in use.
    Migrated = 0,
    /// Waiting for a new alternate path.
    Rearm = 1,
    /// Ready to migrate.
    Armed = 2,
}

/// Where packets of a queue pair or of one datagram go.
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// Address of the peer.
    pub dgid: Gid,
    /// Which of our addresses to send from: index into the GID table.
    pub sgid_index: u16,
    /// Port of the device, 1. (0 means the same.)
    pub port: u8,
    /// TTL or hop limit; 0 means 64.
    pub hop_limit: u8,
    /// TOS byte or traffic class: DSCP above, ECN in the two low bits.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits; also chooses the UDP source port where that is free.
    pub flow_label: u32,
    /// Service level; no effect over IP.
    pub sl: u8,
    /// LID of the peer; no effect on RoCE.
    pub dlid: u16,
    /// Static rate; no effect.
    pub static_rate: u8,
    /// Scope of a link-local `dgid` (interface index); 0 takes that of the source address.
    pub scope_id: u32,
}

/// Alternate path. Refused with `EOPNOTSUPP`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AltPath {
    /// Where it leads.
    pub ah: AhAttr,
    /// Partition.
    pub pkey_index: u16,
    /// Local ACK timeout of the path.
    pub timeout: u8,
}

/// Sizes of the queues of a queue pair.
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Slots of the send queue.
    pub send_wr: u32,
    /// Slots of the receive queue.
    pub recv_wr: u32,
    /// Pieces of memory in one send request.
    pub send_sge: u32,
    /// Pieces of memory in one receive request.
    pub recv_sge: u32,
    /// Bytes of inline data in one send request.
    pub inline: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { send_wr: 128, recv_wr: 128, send_sge: 4, recv_sge: 4, inline: 64 }
    }
}

macro_rules! qp_attr {
    ($($(#[$doc:meta])* $name:ident: $ty:ty, $bit:literal, $label:literal;)+) => {
        /// Every attribute that `modify` can set. `Some` is the attribute mask: what is `None` is left
        /// alone.
        ///
        /// ```
        /// use softroce::verbs::{QpAttr, QpState};
        /// let attr = QpAttr::to(QpState::Init).port(1).pkey_index(0);
        /// assert_eq!(attr.state, Some(QpState::Init));
        /// assert_eq!(attr.dest_qpn, None);
        /// ```
        #[doc(alias("ibv_qp_attr", "ibv_qp_attr_mask"))]
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct QpAttr {
            /// State to go to.
            pub state: Option<QpState>,
            $($(#[$doc])* pub $name: Option<$ty>,)+
        }

        impl QpAttr {
            /// The attributes that are set, as bits of `enum ibv_qp_attr_mask` (without the state's).
            pub(crate) fn mask(&self) -> Mask {
                let mut mask = Mask::empty();
                $(if self.$name.is_some() {
                    mask |= Mask::from_bits_retain($bit);
                })+
                mask
            }

            $($(#[$doc])*
            #[must_use]
            pub fn $name(mut self, value: $ty) -> Self {
                self.$name = Some(value);
                self
            })+
        }

        /// Name of the lowest attribute of a mask.
        pub(crate) fn attr_name(mask: Mask) -> &'static str {
            $(if mask.contains(Mask::from_bits_retain($bit)) {
                return $label;
            })+
            "an unknown attribute"
        }
    };
}

bitflags::bitflags! {
    /// Attribute mask, bits of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Mask: u32 {
        const CUR_STATE = 1 << 1;
        const SQD_NOTIFY = 1 << 2;
        const ACCESS = 1 << 3;
        const PKEY_INDEX = 1 << 4;
        const PORT = 1 << 5;
        const QKEY = 1 << 6;
        const AV = 1 << 7;
        const PATH_MTU = 1 << 8;
        const TIMEOUT = 1 << 9;
        const RETRY_CNT = 1 << 10;
        const RNR_RETRY = 1 << 11;
        const RQ_PSN = 1 << 12;
        const MAX_RD_ATOMIC = 1 << 13;
        const ALT_PATH = 1 << 14;
        const MIN_RNR_TIMER = 1 << 15;
        const SQ_PSN = 1 << 16;
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        const PATH_MIG = 1 << 18;
        const CAP = 1 << 19;
        const DEST_QPN = 1 << 20;
        const RATE_LIMIT = 1 << 25;
    }
}

qp_attr! {
    /// The state it is assumed to be in; refused if it is in another.
    cur_state: QpState, 0x2, "cur_state";
    /// Whether draining the send queue raises an event.
    sqd_notify: bool, 0x4, "sqd_notify";
    /// What peers may do through this queue pair, on top of what their keys allow.
    access: Access, 0x8, "access";
    /// Index into the partition table.
    pkey_index: u16, 0x10, "pkey_index";
    /// Port of the device, 1.
    port: u8, 0x20, "port";
    /// Queue key of a datagram queue pair.
    qkey: u32, 0x40, "qkey";
    /// Where the peer is.
    ah: AhAttr, 0x80, "ah";
    /// Most payload bytes in one packet. The same on both sides.
    path_mtu: Mtu, 0x100, "path_mtu";
    /// Local ACK timeout: 4.096 us times 2 to this power, 0 to 31; 0 never times out.
    timeout: u8, 0x200, "timeout";
    /// Retries after timeouts and sequence errors, 0 to 7. Progress and an RNR NAK, both signs of a peer that
    /// lives, begin the count anew.
    retry_cnt: u8, 0x400, "retry_cnt";
    /// Retries after "receiver not ready", 0 to 6; 7 retries for ever.
    rnr_retry: u8, 0x800, "rnr_retry";
    /// First PSN that the peer will send.
    rq_psn: u32, 0x1000, "rq_psn";
    /// READs and atomics of ours in flight, 0 to 128.
    max_rd_atomic: u8, 0x2000, "max_rd_atomic";
    /// Alternate path. Refused.
    alt: Box<AltPath>, 0x4000, "alt";
    /// Code of the wait that we ask of a peer that finds no receive, 0 to 31 (0 is the longest: 655 ms).
    min_rnr_timer: u8, 0x8000, "min_rnr_timer";
    /// First PSN that we send.
    sq_psn: u32, 0x1_0000, "sq_psn";
    /// READs and atomics of the peer in flight, 0 to 128.
    max_dest_rd_atomic: u8, 0x2_0000, "max_dest_rd_atomic";
    /// Path migration state.
    path_mig: MigState, 0x4_0000, "path_mig";
    /// Sizes of the queues; they cannot be changed.
    cap: QpCap, 0x8_0000, "cap";
    /// Number of the peer's queue pair.
    dest_qpn: u32, 0x10_0000, "dest_qpn";
    /// Most that the queue pair sends, requests and READ responses, in kbit/s of what an Ethernet carries, headers, preamble
    /// and gap included; 0: no limit.
    rate_limit: u32, 0x200_0000, "rate_limit";
}

impl QpAttr {
    /// Attributes of a transition to `state`.
    pub fn to(state: QpState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    /// These attributes, with those of `over` in place of ours where it has them.
    #[must_use]
    pub(crate) fn overridden(mut self, over: &Self, takes: Mask) -> Self {
        macro_rules! take {
            ($($name:ident $bit:ident),+) => {
                $(if over.$name.is_some() && takes.contains(Mask::$bit) {
                    self.$name = over.$name.clone();
                })+
            };
        }
        take!(
            sqd_notify SQD_NOTIFY, access ACCESS, pkey_index PKEY_INDEX, port PORT, qkey QKEY, ah AV,
            path_mtu PATH_MTU, timeout TIMEOUT, retry_cnt RETRY_CNT, rnr_retry RNR_RETRY, rq_psn RQ_PSN,
            max_rd_atomic MAX_RD_ATOMIC, alt ALT_PATH, min_rnr_timer MIN_RNR_TIMER, sq_psn SQ_PSN,
            max_dest_rd_atomic MAX_DEST_RD_ATOMIC, path_mig PATH_MIG, cap CAP, dest_qpn DEST_QPN,
            rate_limit RATE_LIMIT
        );
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_has_its_bit_and_its_name() {
        let all = QpAttr::to(QpState::Rts)
            .cur_state(QpState::Rtr)
            .sqd_notify(true)
            .access(Access::REMOTE)
            .pkey_index(0)
            .port(1)
            .qkey(1)
            .ah(AhAttr::default())
            .path_mtu(Mtu::B1024)
            .timeout(14)
            .retry_cnt(7)
            .rnr_retry(7)
            .rq_psn(1)
            .max_rd_atomic(1)
            .alt(Box::default())
            .min_rnr_timer(12)
            .sq_psn(1)
            .max_dest_rd_atomic(1)
            .path_mig(MigState::Migrated)
            .cap(QpCap::default())
            .dest_qpn(1)
            .rate_limit(1);
        assert_eq!(all.mask(), Mask::all());
        for bit in Mask::all().iter() {
            assert_ne!(attr_name(bit), "an unknown attribute", "{bit:?}");
        }
        assert_eq!(attr_name(Mask::DEST_QPN), "dest_qpn");
        assert_eq!(
            QpAttr::default().overridden(&all, Mask::all()).mask(),
            Mask::all() - Mask::CUR_STATE
        );
    }
}
