//! Attributes of devices and ports, their GID tables, and what queue pairs are made with.

pub use crate::engine::qp::attr::{AhAttr, AltPath, MigState};
use crate::engine::qp::attr::{QpCap, QpType};
use crate::wire::num::{Gid, Mtu};

/// What a device offers.
#[doc(alias = "ibv_device_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Firmware version; here that of the crate.
    pub fw_ver: String,
    /// Identifier of the device.
    pub node_guid: u64,
    /// Identifier of the system.
    pub sys_image_guid: u64,
    /// Vendor; 0xffffff, as rxe has it: none.
    pub vendor_id: u32,
    /// Part of the vendor.
    pub vendor_part_id: u32,
    /// Version of the hardware.
    pub hw_ver: u32,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Page sizes, as bits.
    pub page_size_cap: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Slots of a send or receive queue.
    pub max_qp_wr: u32,
    /// Pieces of memory in a request.
    pub max_sge: u32,
    /// Pieces of memory in a READ.
    pub max_sge_rd: u32,
    /// Inline bytes in a request.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions, windows included.
    pub max_mr: u32,
    /// Memory windows, regions included.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs in a multicast group.
    pub max_mcast_qp_attach: u32,
    /// READs and atomics of peers in flight to a queue pair.
    pub max_qp_rd_atom: u32,
    /// READs and atomics of a queue pair in flight.
    pub max_qp_init_rd_atom: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Slots of a shared receive queue.
    pub max_srq_wr: u32,
    /// Pieces of memory in a receive of a shared queue.
    pub max_srq_sge: u32,
    /// Partitions.
    pub max_pkeys: u16,
    /// How atomic atomics are.
    pub atomic_cap: AtomicCap,
    /// Ports.
    pub ports: u8,
    /// On-demand paging: registration pins nothing.
    pub odp: bool,
    /// Memory windows of type 2B.
    pub memory_windows: bool,
    /// Extended reliable connections.
    pub xrc: bool,
    /// Completions can carry the time.
    pub timestamps: bool,
    /// Time from an arriving request to its ACK leaving: 4.096 us times 2 to this power.
    pub local_ca_ack_delay: u8,
}

/// How atomic atomics are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AtomicCap {
    /// There are none.
    None = 0,
    /// Among those of this device.
    Hca = 1,
    /// Also against the CPU.
    Global = 2,
}

/// State and limits of a port.
#[doc(alias = "ibv_port_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// Whether it works.
    pub state: PortState,
    /// Largest path MTU of any port of this kind.
    pub max_mtu: Mtu,
    /// Largest path MTU that the interface carries.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_len: u32,
    /// Entries of the partition table.
    pub pkey_len: u16,
    /// LID; 0 on RoCE.
    pub lid: u16,
    /// Bytes of a message.
    pub max_msg_size: u32,
    /// Speed, as far as it is known.
    pub speed_mbps: u64,
}

/// State of a port. Values are those of `enum ibv_port_state`.
#[doc(alias = "ibv_port_state")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum PortState {
    /// It does not work.
    Down = 1,
    /// It is being set up.
    Init = 2,
    /// It is set up.
    Armed = 3,
    /// It works.
    Active = 4,
}

/// An entry of the GID table.
#[doc(alias = "ibv_gid_entry")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Its index.
    pub index: u16,
    /// Port of the device.
    pub port: u8,
    /// What it is an address of.
    pub kind: GidKind,
    /// The interface that has it.
    pub netdev: Option<String>,
}

/// What a GID is an address of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RoCE over Ethernet.
    RoceV1,
    /// RoCE over UDP.
    RoceV2,
}

/// What a queue pair was made with.
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpInitAttr {
    /// Its type.
    pub kind: QpType,
    /// Sizes of its queues.
    pub cap: QpCap,
    /// Every request makes a completion.
    pub sig_all: bool,
    /// Number of the shared receive queue that it takes its receives from.
    pub srq: Option<u32>,
}
