//! Address handles, of datagram queue pairs.

use crate::engine::cause::Cause;
use crate::net::Ecn;
use crate::wire::grh::Grh;
use crate::wire::num::Gid;

use super::attr::AhAttr;
use super::error::{Error, Named, Result};
use super::pd::ProtectionDomain;
use super::wc::WorkCompletion;

/// Where datagrams go: [`SendWr::to`](super::SendWr::to) names it, and a queue pair and a Q_Key there.
///
/// Dropped, it is destroyed; a request that names it and has not been sent by then completes with `LocQpOp`.
#[doc(alias = "ibv_ah")]
#[derive(Debug)]
pub struct AddressHandle {
    pd: ProtectionDomain,
    number: u32,
    attr: AhAttr,
}

impl AddressHandle {
    pub(crate) fn new(pd: &ProtectionDomain, attr: &AhAttr) -> Result<Self> {
        let nic = pd.nic();
        nic.enter().of("ibv_create_ah")?;
        let number =
            nic.control(|engine, _| engine.create_ah(pd.id(), attr)).of("ibv_create_ah")?;
        Ok(Self { pd: pd.clone(), number, attr: attr.clone() })
    }

    /// Its protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// What it was made with.
    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }

    /// How the engine names it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        self.pd.nic().destroy_ah(self.number);
    }
}

/// The way back to the sender of a datagram, by its completion and the header in front of it.
pub(crate) fn answer_to(
    pd: &ProtectionDomain,
    wc: &WorkCompletion,
    grh: &[u8; Grh::LEN],
) -> Result<AhAttr> {
    let refused = |what: &'static str| {
        Error::verb("ibv_create_ah_from_wc", Cause::Invalid { what: what.into() })
    };
    if !wc.has_grh {
        return Err(refused(
            "the completion is not that of a datagram: only those tell who has sent them",
        ));
    }
    let grh = Grh::parse(grh).ok_or_else(|| {
        refused("the bytes are no header of a datagram: give the first 40 of its receive buffer")
    })?;
    let gids = pd.context().gids()?;
    let ours = gids.iter().find(|entry| entry.gid == Gid::from(grh.dst)).or_else(|| {
        let same_family = |gid: &Gid| gid.ip().is_some_and(|ip| ip.is_ipv4() == grh.dst.is_ipv4());
        gids.iter().find(|entry| grh.dst.is_multicast() && same_family(&entry.gid))
    });
    let sgid_index = ours
        .ok_or_else(|| refused("the datagram was sent to an address that is not this device's"))?
        .index;
    // Congestion that was met on the way here says nothing of the way back.
    let is_marked = Ecn::of(grh.traffic_class) == Ecn::Ce;
    let ecn = if is_marked { Ecn::Ect0 } else { Ecn::of(grh.traffic_class) };
    Ok(AhAttr {
        dgid: Gid::from(grh.src),
        sgid_index,
        traffic_class: grh.traffic_class & !3 | ecn as u8,
        flow_label: grh.flow_label,
        ..AhAttr::default()
    })
}
