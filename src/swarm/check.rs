//! The accounts at the end of a run: shared counters, and what the devices and the network have counted.

use super::end::End;
use super::loose::Loose;
use super::run::{Run, Verdict, look_at_memory, refused};
use crate::fabric::HostCounters;
use crate::verbs::QpState;

impl Run<'_> {
    /// The words that all count with.
    pub(super) fn check_counts(&self) -> Verdict {
        for (index, host) in self.hosts.iter().enumerate() {
            let Some(host) = host else { continue };
            let mut seen = Vec::new();
            let mut most = 0;
            for (plan, conn) in self.plan.conns.iter().zip(&self.conns) {
                for end in (0..2).filter(|&end| plan.hosts[1 - end] == index) {
                    most += conn.ends[end].counts_posted;
                    let counts = &conn.ends[end].counts;
                    if !counts.is_sorted() {
                        return Err(format!("a shared counter went back for one end: {counts:?}"));
                    }
                    seen.extend_from_slice(counts);
                }
            }
            seen.sort_unstable();
            let value = host.counter.load(0, std::sync::atomic::Ordering::Acquire);
            let unique = seen.windows(2).all(|w| w[0] < w[1]);
            let within = seen.last().is_none_or(|&last| last < value);
            if !unique || !within || value > most || value < seen.len() as u64 {
                return Err(format!(
                    "the shared counter of host {index} is {value} of {most}: {seen:?}"
                ));
            }
        }
        Ok(())
    }

    /// What the devices counted.
    pub(super) fn check_devices(&mut self, network: &HostCounters) -> Verdict {
        // A group that nobody is in is no loss.
        let lost = network.dropped() - network.no_route;
        let harmless = self.plan.is_clean() && lost == 0 && !self.died;
        for (index, host) in self.hosts.iter().enumerate() {
            let Some(host) = host else { continue };
            let counters = host.ctx.counters(1).map_err(refused)?;
            let link = self.sim.link_counters(&host.ctx).map_err(refused)?;
            let get = |name: &str| counters.get(name).copied().unwrap_or_default();
            if get("sent_pkts") != link.sent + get("drop_destroyed") {
                return Err(format!(
                    "host {index} sent {} packets and counted {}",
                    link.sent,
                    get("sent_pkts")
                ));
            }
            let bad = get("rx_icrc_encapsulated");
            let headers = ["drop_malformed", "drop_version", "drop_unknown_opcode", "drop_no_qp"];
            let headers = headers.iter().map(|n| get(n)).sum::<u64>() + get("bad_pkey_cntr");
            let other = ["drop_unsupported", "drop_transport", "drop_address"];
            let other = other.iter().map(|n| get(n)).sum::<u64>();
            // Packets that a state forbids are dropped before they count as received, or after.
            let told = get("rcvd_pkts") + bad + headers + other;
            if !(told..=told + get("drop_state")).contains(&link.delivered) {
                return Err(format!(
                    "host {index} got {} packets and counted {told}",
                    link.delivered
                ));
            }
            if network.corrupted == 0 && bad > 0 {
                return Err(format!("host {index} found {bad} packets damaged that were not"));
            }
            if get("cq_overrun") > 0 || get("send_err") > 0 {
                return Err(format!("host {index}: {counters:?}"));
            }
            let never = [
                "rcvd_seq_err",
                "local_ack_timeout_err",
                "implied_nak_seq_err",
                "duplicate_request",
            ];
            let failed = self.has_failed();
            for name in never.into_iter().filter(|_| harmless && !failed) {
                if get(name) > 0 {
                    return Err(format!(
                        "nothing was lost, and host {index} counts {name} {}",
                        get(name)
                    ));
                }
            }
        }
        if harmless && !self.has_failed() && !self.deregistered {
            self.check_unreliable()?;
        }
        Ok(())
    }

    /// Whether a queue pair has gone to ERR.
    fn has_failed(&self) -> bool {
        let err = |e: &End| e.state() == Some(QpState::Err);
        let mut conns = self.conns.iter().zip(&self.plan.conns);
        conns.any(|(c, p)| c.ends.iter().any(err) || c.lives < p.lives)
    }

    /// Nothing was lost: what has not arrived on unreliable services had no receive to go to, and memory is as
    /// all WRITEs have left it.
    fn check_unreliable(&mut self) -> Verdict {
        for (index, conn) in self.conns.iter_mut().enumerate() {
            for end in &mut conn.ends {
                if let Some(loose) = &mut end.loose {
                    loose.confirm_all();
                }
            }
            look_at_memory(index, conn, true)?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let Some(host) = host else { continue };
            let counters = host.ctx.counters(1).map_err(refused)?;
            let get = |name: &str| counters.get(name).copied().unwrap_or_default();
            let [mut missing, keys, echoes] = self.datagram_balance(index);
            for (plan, conn) in self.plan.conns.iter().zip(&self.conns) {
                let to_us = (0..2).filter(|&end| plan.hosts[1 - end] == index);
                for (sent, received) in
                    to_us.filter_map(|end| conn.ends[end].loose.as_ref()).map(Loose::balance)
                {
                    missing += sent - received.min(sent);
                }
            }
            let is_any = missing + keys + echoes > 0;
            self.seen.balanced += u64::from(is_any);
            let unwanted = get("out_of_buffer") - get("send_rnr_err");
            let counted = [
                unwanted + get("resp_local_length_error"),
                get("qkey_viol_cntr"),
                get("drop_echo"),
            ];
            if [missing, keys, echoes].map(|n| n as u64) != counted {
                return Err(format!(
                    "nothing was lost, and of what was for host {index} {missing} did not arrive, {keys} had \
                     another Q_Key, {echoes} came back; it counts {counted:?}"
                ));
            }
        }
        Ok(())
    }
}
