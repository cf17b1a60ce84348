//! Multicast: which queue pairs are in which group, and what arrives for them.
//!
//! *Rules* (IBTA 10.5). Only datagram queue pairs are in groups. Each member gets a copy of its own, and what is
//! wrong with one does not keep it from the others. A sender that is a member does not get its own datagram
//! back; other queue pairs of its device do, by way of the network, which brings a device what it sends to a
//! group that it is in. So there is one way in for all datagrams.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Engine;
use super::cause::Cause;
use super::config::{MAX_GROUP_MEMBERS, MAX_GROUPS};
use super::control::gone;
use super::counters::Counter;
use super::qp::QpHandle;
use super::qp::attr::QpType;
use crate::net::RxMeta;
use crate::wire::num::Gid;
use crate::wire::packet::Packet;

/// The groups of a device and their members, in the order in which they came. None is empty.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<IpAddr, Vec<QpHandle>>);

impl Groups {
    /// Whether anybody is in the group.
    pub(crate) fn has(&self, group: &IpAddr) -> bool {
        self.0.contains_key(group)
    }

    fn member(&self, group: &IpAddr, at: usize) -> Option<QpHandle> {
        self.0.get(group)?.get(at).copied()
    }

    /// Takes a member out. `None`: it is not in; `Some(true)`: it was the last.
    fn leave(&mut self, group: &IpAddr, qp: QpHandle) -> Option<bool> {
        let members = self.0.get_mut(group)?;
        let at = members.iter().position(|&m| m == qp)?;
        members.remove(at);
        let is_empty = members.is_empty();
        if is_empty {
            self.0.remove(group);
        }
        Some(is_empty)
    }

    /// Takes a queue pair out of all its groups. Gives those that nobody is in any more.
    pub(crate) fn leave_all(&mut self, qp: QpHandle) -> Vec<IpAddr> {
        let mut emptied = Vec::new();
        self.0.retain(|&group, members| {
            members.retain(|&m| m != qp);
            if members.is_empty() {
                emptied.push(group);
            }
            !members.is_empty()
        });
        emptied
    }
}

impl Engine {
    /// Puts a queue pair into a multicast group; again, if it is in it. Gives the group's address if it is new
    /// to the device: then its port has to join.
    ///
    /// # Errors
    /// `EINVAL`: not a datagram queue pair, not a multicast address, too many groups, or too many queue pairs in
    /// this one.
    pub fn attach_mcast(&mut self, handle: QpHandle, gid: Gid) -> Result<Option<IpAddr>, Cause> {
        let group = self.check_group(handle, gid)?;
        if let Some(members) = self.groups.0.get_mut(&group) {
            if members.contains(&handle) {
                return Ok(None);
            }
            if members.len() >= MAX_GROUP_MEMBERS as usize {
                let max = u64::from(MAX_GROUP_MEMBERS);
                return Err(Cause::table_full("queue pairs in a multicast group", max));
            }
            members.push(handle);
            return Ok(None);
        }
        if self.groups.0.len() >= MAX_GROUPS as usize {
            return Err(Cause::table_full("multicast groups", u64::from(MAX_GROUPS)));
        }
        self.groups.0.insert(group, vec![handle]);
        Ok(Some(group))
    }

    /// Takes a queue pair out of a multicast group. Gives the group's address if nobody is left in it: then the
    /// port has to leave.
    ///
    /// # Errors
    /// `EINVAL`: it is not in it.
    pub fn detach_mcast(&mut self, handle: QpHandle, gid: Gid) -> Result<Option<IpAddr>, Cause> {
        let group = self.check_group(handle, gid)?;
        match self.groups.leave(&group, handle) {
            Some(last) => Ok(last.then_some(group)),
            None => {
                let what = format!("the queue pair is not in the group {group}");
                Err(Cause::Invalid { what: what.into() })
            }
        }
    }

    /// Takes a queue pair out of all its groups, because it goes. Gives those that the port has to leave.
    pub fn leave_groups(&mut self, handle: QpHandle) -> Vec<IpAddr> {
        self.groups.leave_all(handle)
    }

    fn check_group(&mut self, handle: QpHandle, gid: Gid) -> Result<IpAddr, Cause> {
        let qp = self.qps.get(handle).ok_or_else(|| gone("queue pair"))?;
        if qp.kind != QpType::Ud {
            let what = "only a datagram queue pair can be in a multicast group";
            return Err(Cause::Invalid { what: what.into() });
        }
        gid.ip().filter(IpAddr::is_multicast).ok_or_else(|| Cause::Invalid {
            what: format!(
                "{gid} is no multicast group: those are ff00::/8, and ::ffff:224.0.0.0/100 for IPv4"
            )
            .into(),
        })
    }

    /// A datagram for a group, its ICRC checked.
    pub(super) fn deliver_to_group(&mut self, meta: &RxMeta, packet: &Packet<'_>) {
        let group = meta.path.dst;
        let is_ours = self.gids.iter().any(|gid| gid.ip == meta.path.src);
        let sender = packet.deth().map(|deth| deth.src_qp);
        for at in 0.. {
            let Some(member) = self.groups.member(&group, at) else { break };
            let Some(qp) = self.qps.get(member) else { continue };
            if is_ours && sender == Some(qp.qpn) {
                self.common.count(Counter::DropEcho);
            } else if !qp.is_reachable() {
                self.common.count(Counter::DropState);
            } else {
                qp.handle_datagram(&mut self.common, meta, packet);
                self.settle();
                self.schedule(member.slot);
            }
        }
    }
}
