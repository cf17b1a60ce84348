//! An open device.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::cause::Cause;
use crate::nic::device::Limits;
use crate::nic::notify::EventQueue;
use crate::nic::{Nic, OpenNic};
use crate::time::Duration;
use crate::wire::num::{Gid, Mtu};

use super::Event;
use super::attr::{AtomicCap, DeviceAttr, GidEntry, GidKind, PortAttr, PortState};
use super::cq::{CompChannel, CompletionQueue, CqBuilder};
use super::device::{Backend, Device};
use super::error::{Error, Named, Result};
use super::pd::ProtectionDomain;

#[derive(Debug)]
struct Inner {
    device: Device,
    nic: Arc<OpenNic>,
    events: Arc<EventQueue>,
}

/// An open device. A cheap handle: clones are the same opening, with one list of asynchronous events.
///
/// The device works as long as anything made on it lives.
#[doc(alias = "ibv_context")]
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

impl Context {
    /// Opens a device by name: `soft:lo`, `soft:eth0`, `soft:udp=10.0.0.1`, or a bare name looked for in
    /// every backend.
    ///
    /// `soft:lo` is 127.0.0.2 for the first process that opens it, 127.0.0.3 for the next, and so on.
    /// `soft:IFACE` has all addresses of the interface. `soft:udp=ADDR` has one. Within a process a device
    /// is opened once and shared.
    ///
    /// Options follow, each behind a comma. `gso=on`, `gso=off`, `gso=auto`: whether the kernel may split
    /// sends (`auto`: where it is known to do it right). `pcap=FILE`: every packet that the device sends or
    /// receives is written to a pcapng file, which is readable at any time. `rcvbuf=BYTES`: the receive buffer to ask the
    /// kernel for (up to `net.core.rmem_max` it is granted; default 4 MiB). `pkeys=8001:7ffe`: further entries of the
    /// partition table, in hex, from index 1 on. `quirk=rxe-flush`: FLUSHes leave with the ICRC that Linux rdma_rxe expects,
    /// which is not that of the standard: without it rxe does not answer them, with it nobody else does. `cc=dcqcn`: the congestion
    /// control of connected queue pairs that are given none of their own, by what [`Algorithm::parse`](crate::cc::Algorithm::parse) knows (`dcqcn:nvidia-fw`,
    /// `swift`, `timely`, `none`), for the speed of the interface where the system tells it, else for 100 Gbit/s, unless it
    /// stands behind the name: `cc=dcqcn:paper:25g`. `retry=selective`: reliable queue pairs send again only what is missing,
    /// towards peers that do so, too. (A comma or backslash in the
    /// name stands behind a backslash.) With other options it is another device: `soft:lo,pcap=a` and
    /// `soft:lo,pcap=b` have different addresses.
    ///
    /// *Cables.* `soft:frames=/path/ours.sock,peer=/path/theirs.sock,ip=10.99.0.1/24` is a station on an Ethernet cable of
    /// two UNIX datagram sockets, as QEMU's `-netdev dgram` has it: `ours` is its `remote.path`, `theirs` its `local.path`.
    /// `soft:frames=/path/sock,stream=listen,ip=...` waits for a connection (`-netdev stream,server=off`), `stream=connect`
    /// makes one. No privilege, and nothing of the kernel's network. `ip=` may be repeated; `gw=ADDRESS` is a gateway,
    /// `mac=AA:BB:CC:DD:EE:FF` the hardware address (without it one is made from the first IP address, locally administered),
    /// `vlan=5` and `pcp=3` tag its frames, `mtu=BYTES` is the largest IP packet: 9000 without it, because a path MTU of
    /// 4096 needs 4192, and both ends must have the same. `pcap=`, `pkeys=`, `cc=`, `retry=` and `quirk=` as above. The other end may come
    /// and go: meanwhile the port is down. The socket's file is removed with the device; a dead one is replaced.
    ///
    /// *Interfaces.* `soft:raw=eth0,ip=10.0.0.5/24` is a station on the network of an interface, past the kernel's own
    /// network: all of a frame is the device's. It needs the feature `raw` and `CAP_NET_RAW` (root, or `setcap
    /// cap_net_raw+ep PROGRAM`). `ip=`, `gw=`, `mac=`, `vlan=`, `pcp=`, `pcap=`, `pkeys=`, `cc=` and `retry=` are those of a cable. `ip=` is an
    /// address that the kernel of this host does not have, for it would answer too. `mtu=BYTES` is at most the interface's, which it is
    /// without; link and MTU follow the interface. As long as the device is open the interface is promiscuous: the hardware
    /// address is the device's own. On networks that know no other than the interface's, `mac=` names that one. Two devices on one
    /// interface do not hear each other, nor the host; on the two ends of a virtual pair (`ip link add type veth`) they do. What
    /// the kernel of this host sends over such a pair in segments is dropped and counted (`port_merged`), unless `ip link set
    /// dev PEER gso_max_segs 1` has it taken apart.
    ///
    /// *Fork.* A device belongs to the process that opened it. In a child of `fork(2)` every verb on it fails with
    /// `ENODEV`, dropping its objects does nothing, memory that was allocated by the library is not there, and the child
    /// may open devices of its own. Its copies of the parent's sockets stay open until it ends or runs another program:
    /// as long the address is taken. (`std::process::Command` runs another program, and nothing of this matters.)
    ///
    /// # Errors
    /// [`Error::NoDevice`] with what there is; `EADDRINUSE` with the likely owner and what to do;
    /// `EADDRNOTAVAIL`; `EINVAL`: a name or option that cannot be one; `EPERM`: `soft:raw=` without `CAP_NET_RAW`; `ENETDOWN`:
    /// its interface is down; `EOPNOTSUPP`: the library was built without it; what the system says to the file of `pcap`,
    /// `EBUSY`: another device captures to it.
    #[doc(alias = "ibv_open_device")]
    pub fn open(spec: &str) -> Result<Self> {
        super::device::open_spec(spec)
    }

    pub(crate) fn from_nic(device: Device, nic: Arc<OpenNic>) -> Self {
        let events = Arc::default();
        nic.nic().add_opener(&events);
        Self(Arc::new(Inner { device, nic, events }))
    }

    pub(crate) fn nic(&self) -> &Arc<Nic> {
        self.0.nic.nic()
    }

    pub(crate) fn events(&self) -> &Arc<EventQueue> {
        &self.0.events
    }

    /// Whether both are on the same device.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.nic(), other.nic())
    }

    pub(crate) fn active_mtu(&self) -> Mtu {
        self.nic().path_mtu().unwrap_or(Mtu::B256)
    }

    pub(crate) fn rx_buffer(&self) -> u32 {
        let bytes = self.nic().control(|engine, _| engine.caps().rx_buffer).unwrap_or(0);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    pub(crate) fn scope_of(&self, gid_index: u16) -> u32 {
        self.nic().addresses().get(usize::from(gid_index)).map_or(0, |a| a.scope_id)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// What the device offers. Every limit is enforced as it is told.
    ///
    /// # Errors
    /// `EDEADLK` inside a tap of a simulation.
    #[doc(alias("ibv_query_device", "ibv_query_device_ex"))]
    pub fn attr(&self) -> Result<DeviceAttr> {
        self.nic().enter().of("ibv_query_device")?;
        let l = Limits::ALL;
        Ok(DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
            node_guid: self.nic().guid(),
            sys_image_guid: self.nic().guid(),
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            hw_ver: 0,
            max_mr_size: isize::MAX as u64,
            page_size_cap: 0xffff_f000,
            max_qp: l.max_qp,
            max_qp_wr: l.max_qp_wr,
            max_sge: l.max_sge,
            max_sge_rd: l.max_sge,
            max_inline: l.max_inline,
            max_cq: l.max_cq,
            max_cqe: l.max_cqe,
            max_mr: l.max_mr,
            max_mw: l.max_mr,
            max_pd: l.max_pd,
            max_ah: l.max_ah,
            max_mcast_grp: l.max_mcast_grp,
            max_mcast_qp_attach: l.max_mcast_qp_attach,
            max_qp_rd_atom: u32::from(l.max_rd_atomic),
            max_qp_init_rd_atom: u32::from(l.max_rd_atomic),
            max_srq: l.max_srq,
            max_srq_wr: l.max_srq_wr,
            max_srq_sge: l.max_sge,
            max_pkeys: self.nic().pkey_count(),
            atomic_cap: AtomicCap::Global,
            ports: 1,
            odp: true,
            memory_windows: true,
            xrc: false,
            timestamps: true,
            local_ca_ack_delay: 9,
        })
    }

    /// State and limits of a port.
    ///
    /// # Errors
    /// `EINVAL`: there is only port 1.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self, port: u8) -> Result<PortAttr> {
        let verb = "ibv_query_port";
        self.nic().enter().of(verb)?;
        check_port(verb, port)?;
        Ok(PortAttr {
            state: if self.nic().is_up() { PortState::Active } else { PortState::Down },
            max_mtu: Mtu::B4096,
            active_mtu: self.active_mtu(),
            gid_len: u32::try_from(self.nic().addresses().len()).unwrap_or(u32::MAX),
            pkey_len: self.nic().pkey_count(),
            lid: 0,
            max_msg_size: Limits::ALL.max_msg,
            speed_mbps: self.0.device.speed_mbps.unwrap_or(10_000),
        })
    }

    /// The GID table: one entry for each address.
    ///
    /// # Errors
    /// None here; other backends may fail.
    #[doc(alias("ibv_query_gid_table", "ibv_query_gid_ex", "ibv_query_gid"))]
    pub fn gids(&self) -> Result<Vec<GidEntry>> {
        let entry = |(index, a): (usize, &crate::port::PortAddress)| GidEntry {
            gid: Gid::from(a.ip),
            index: u16::try_from(index).unwrap_or(u16::MAX),
            port: 1,
            kind: GidKind::RoceV2,
            netdev: (!a.interface.is_empty()).then(|| a.interface.clone()),
        };
        Ok(self.nic().addresses().iter().enumerate().map(entry).collect())
    }

    /// An entry of the partition table: 0xffff at index 0, the default partition. More are there if the device was
    /// opened with them.
    ///
    /// # Errors
    /// `EINVAL`: another port or index.
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        let verb = "ibv_query_pkey";
        check_port(verb, port)?;
        self.nic().enter().of(verb)?;
        self.nic().control(|engine, _| engine.pkey(index)).map(|key| key.0).of(verb)
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// `EINVAL`: too many.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        self.nic().enter().of("ibv_alloc_pd")?;
        ProtectionDomain::new(self)
    }

    /// Makes a completion queue with room for `depth` completions.
    ///
    /// # Errors
    /// `EINVAL`: none, or too many.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue> {
        self.cq_builder(depth).build()
    }

    /// Makes a completion queue with a channel or timestamps.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn cq_builder(&self, depth: u32) -> CqBuilder {
        CqBuilder::new(self, depth)
    }

    /// Makes a completion channel.
    ///
    /// # Errors
    /// None here; other backends may fail.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        Ok(CompChannel::new(self))
    }

    /// The next asynchronous event. It is acknowledged before it is handed out. 4096 are kept for who does not fetch
    /// them, the oldest, which tell the cause; the rest is counted (`events_lost`).
    ///
    /// # Errors
    /// [`Error::Timeout`]. `EDEADLK` inside a tap of a simulation.
    #[doc(alias("ibv_get_async_event", "ibv_ack_async_event"))]
    pub fn wait_event(&self, timeout: Duration) -> Result<Event> {
        let verb = "ibv_get_async_event";
        self.nic().enter().of(verb)?;
        let events = &self.0.events;
        let mut event = events.take();
        if event.is_none() {
            // Without queue pairs nobody may have looked for long.
            self.nic().look_at_port();
            let ready = || {
                event = events.take();
                event.is_some()
            };
            self.nic().wait(&events.waiters, ready, timeout).of(verb)?;
        }
        event.ok_or(Error::Timeout)
    }

    /// Counters of the device and its port, by name: rxe's where it has one, mlx5's where not.
    ///
    /// # Errors
    /// `EINVAL`: there is only port 1.
    pub fn counters(&self, port: u8) -> Result<BTreeMap<String, u64>> {
        let verb = "counters";
        self.nic().enter().of(verb)?;
        check_port(verb, port)?;
        let (counters, stats) = self.nic().counters();
        let mut all: BTreeMap<String, u64> =
            counters.iter().map(|(c, n)| (c.name().to_owned(), n)).collect();
        for (name, n) in [
            ("port_sent_datagrams", stats.sent_datagrams),
            ("port_send_calls", stats.send_calls),
            ("port_send_errors", stats.send_errors),
            ("port_send_busy", stats.send_busy),
            ("port_received_datagrams", stats.received_datagrams),
            ("port_receive_calls", stats.receive_calls),
            ("port_receive_errors", stats.receive_errors),
            ("port_receive_calls_in_vain", stats.receive_calls_in_vain),
            ("port_overruns", stats.overruns),
            ("port_wrong_interface", stats.wrong_interface),
            ("port_truncated", stats.truncated),
            ("port_malformed", stats.malformed),
            ("port_gso_refused", stats.gso_refused),
            ("port_other_station", stats.other_station),
            ("port_wrong_vlan", stats.wrong_vlan),
            ("port_wrong_address", stats.wrong_address),
            ("port_fragments", stats.fragments),
            ("port_bad_checksum", stats.bad_checksum),
            ("port_other_traffic", stats.other_traffic),
            ("port_unresolved", stats.unresolved),
            ("port_unanswered", stats.unanswered),
            ("port_merged", stats.merged),
            ("port_bad_framing", stats.bad_framing),
            ("port_uncaptured", stats.uncaptured),
        ] {
            all.insert(name.to_owned(), n);
        }
        Ok(all)
    }

    /// Packets that the device has sent and received so far, without a lock: what a call has moved is the
    /// difference. For measuring.
    #[cfg(feature = "unstable-internals")]
    #[doc(hidden)]
    pub fn moved(&self) -> (u64, u64) {
        self.nic().moved()
    }

    /// Whether this device belongs to a backend that runs in this process.
    pub fn backend(&self) -> Backend {
        self.0.device.backend
    }
}

#[cfg(all(feature = "udp", target_os = "linux"))]
impl Context {
    /// The file descriptor of asynchronous events: readable while there are some. From the first call on the
    /// device's thread looks after the port, also where there are no queue pairs.
    ///
    /// # Errors
    /// The process has no descriptors (`EMFILE`) or threads (`EAGAIN`) left.
    pub fn events_fd(&self) -> Result<std::os::fd::BorrowedFd<'_>> {
        self.nic().follow_port().of("ibv_get_async_event")?;
        Ok(self.0.events.signal.fd()?)
    }
}

#[cfg(all(feature = "udp", target_os = "linux"))]
impl std::os::fd::AsFd for Context {
    /// The file descriptor of asynchronous events: readable while there are some.
    ///
    /// # Panics
    /// The process has no descriptors left. [`Context::events_fd`] gives an error instead.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.events_fd().expect("a file descriptor for asynchronous events")
    }
}

fn check_port(verb: &'static str, port: u8) -> Result<()> {
    if port == 1 {
        return Ok(());
    }
    Err(Error::verb(verb, Cause::AttrValue { attr: "port", got: port.into(), want: "1" }))
}
