//! Requests on their way into a send queue, and those that must fail.

use super::end::{Gear, Lent, Told};
use super::model::Posted;
use super::plan::{Bad, Kind, Op};
use crate::verbs::{
    Access, MwType, Placement, RemoteSlice, SendWr, Sge, Source, WcOpcode, WcStatus, inline,
};

/// A request on its way into the queue.
pub(super) struct Ready {
    pub(super) id: u64,
    pub(super) op: Op,
    pub(super) kind: Kind,
    pub(super) sges: Vec<Sge>,
    pub(super) bytes: Option<Vec<u8>>,
    pub(super) remote: RemoteSlice,
    pub(super) imm: u32,
    pub(super) compare: u64,
    pub(super) range: (usize, usize),
    pub(super) fence: bool,
}

impl Ready {
    /// Whether it is posted by a verb of its own: binds of windows of type 1 are.
    pub(super) fn is_verb(&self, gear: &Gear) -> bool {
        matches!(self.kind, Kind::BindMw | Kind::LocalInv) && gear.window.kind() == MwType::Type1
    }

    pub(super) fn wr<'a>(&'a self, gear: &'a Gear) -> SendWr<'a> {
        let id = self.id;
        let from = match &self.bytes {
            Some(bytes) => inline(bytes),
            None => Source::from(&self.sges[..]),
        };
        let one = || self.sges.first().copied().unwrap_or(gear.gone);
        let wr = match self.kind {
            Kind::Send | Kind::Bad(Bad::TooLong) => SendWr::send(id, from),
            Kind::SendImm => SendWr::send(id, from).imm(self.imm),
            Kind::SendInv => SendWr::send(id, from).invalidate(self.imm),
            Kind::WriteImm => SendWr::write(id, from, self.remote).imm(self.imm),
            Kind::Read | Kind::Bad(Bad::ReadBeyond) => {
                SendWr::read(id, &self.sges[..], self.remote)
            }
            Kind::CompareSwap => {
                SendWr::compare_swap(id, one(), self.remote, self.compare, self.op.value)
            }
            Kind::FetchAdd | Kind::Bad(Bad::Misaligned) => {
                SendWr::fetch_add(id, one(), self.remote, self.op.value)
            }
            Kind::Count => SendWr::fetch_add(id, one(), self.remote, 1),
            Kind::BindMw => {
                let (from, len) = self.range;
                match &gear.target {
                    Some(t) => SendWr::bind_mw(id, &gear.window, t, from..from + len, RIGHTS),
                    None => SendWr::send(id, ()),
                }
            }
            Kind::LocalInv => match &gear.target {
                Some(t) if self.is_verb(gear) => {
                    SendWr::bind_mw(id, &gear.window, t, 0..0, Access::empty())
                }
                _ => SendWr::local_inv(id, gear.window.rkey()),
            },
            Kind::AtomicWrite | Kind::Bad(Bad::MisalignedWrite) => {
                SendWr::atomic_write(id, from, self.remote)
            }
            Kind::Flush | Kind::Bad(Bad::FlushRight) => self.flush(),
            Kind::Write | Kind::Bad(_) => SendWr::write(id, from, self.remote),
        };
        let wr = if self.op.signaled { wr } else { wr.unsignaled() };
        if self.fence { wr.fence() } else { wr }
    }

    /// A range, or everything.
    fn flush<'a>(&self) -> SendWr<'a> {
        let len = u32::try_from(self.op.len).unwrap_or(0);
        if self.op.at & 32 == 0 {
            SendWr::flush(self.id, self.remote, len, Placement::GLOBAL)
        } else {
            SendWr::flush_all(self.id, self.remote, Placement::GLOBAL)
        }
    }
}

/// Requests that must fail.
pub(super) fn prepare_bad(
    gear: &Gear,
    peer: &Told,
    bad: Bad,
    ready: &mut Ready,
    posted: &mut Posted,
) {
    let len = ready.op.len.clamp(1, 64);
    let target = peer.target;
    let beyond = |end: usize| target.at((end + 1 - len) as u64);
    let size = usize::try_from(target.len).unwrap_or(0);
    posted.opcode = WcOpcode::Write;
    ready.sges = vec![gear.source.sge(..len)];
    let (remote, fails) = match bad {
        Bad::Key => {
            (RemoteSlice { rkey: target.rkey ^ 0x5a_5a00, ..target.at(0) }, WcStatus::RemAccess)
        }
        Bad::WriteBeyond => (beyond(size), WcStatus::RemAccess),
        Bad::ReadBeyond => {
            posted.opcode = WcOpcode::Read;
            // It lands where nothing else does.
            ready.sges = vec![gear.limited.sge(..len)];
            (beyond(size), WcStatus::RemAccess)
        }
        Bad::WindowBeyond | Bad::DeadWindow => match peer.lent {
            Lent::Bound(k) => {
                (RemoteSlice { rkey: k.rkey, ..beyond(k.from + k.len) }, WcStatus::RemAccess)
            }
            Lent::Dead(k) => {
                (RemoteSlice { rkey: k.rkey, ..target.at(k.from as u64) }, WcStatus::RemAccess)
            }
            _ => (RemoteSlice { rkey: 0, ..target.at(0) }, WcStatus::RemAccess),
        },
        Bad::Right => (peer.limited.at(0), WcStatus::RemAccess),
        Bad::Misaligned => {
            posted.opcode = WcOpcode::FetchAdd;
            (target.at(size as u64 - 12), WcStatus::RemInvReq)
        }
        Bad::TooLong => {
            posted.opcode = WcOpcode::Send;
            ready.sges = vec![gear.source.sge(..peer.room + 1)];
            (target.at(0), WcStatus::RemInvReq)
        }
        Bad::MisalignedWrite => {
            posted.opcode = WcOpcode::AtomicWrite;
            ready.sges = vec![gear.source.sge(..8)];
            ready.bytes = None;
            (target.at(size as u64 - 12), WcStatus::RemInvReq)
        }
        Bad::FlushRight => {
            posted.opcode = WcOpcode::Flush;
            ready.sges.clear();
            (peer.limited.at(0), WcStatus::RemAccess)
        }
        Bad::Local => {
            ready.sges = vec![gear.gone];
            (target.at(0), WcStatus::LocProt)
        }
    };
    ready.remote = remote;
    posted.fails = Some(fails);
}

/// Rights of a window.
const RIGHTS: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL);
