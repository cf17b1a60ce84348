//! What it means that nothing comes back: the counters of both sides say it.

use std::collections::BTreeMap;

use softroce::verbs::Context;

use super::{Failure, Result, Step};

/// Counters of a device by name.
pub(super) type Counters = BTreeMap<String, u64>;

/// The counters of a device that tell something here, as far as they have counted. They are few, so that they fit
/// the smallest packets: the path may not carry larger ones, and its TCP not know.
pub(super) fn counters(ctx: &Context) -> Result<Counters> {
    let all = ctx.counters(1)?.into_iter();
    Ok(all
        .filter(|(name, n)| *n > 0 && (is_drop(name) || TELLING.contains(&name.as_str())))
        .collect())
}

const TELLING: [&str; 4] = ["sent_pkts", "send_err", "rcvd_pkts", "rx_icrc_encapsulated"];

/// Whether it counts packets that arrive and are dropped.
fn is_drop(name: &str) -> bool {
    name.starts_with("drop_")
        || matches!(name, "bad_pkey_cntr" | "port_overruns" | "port_wrong_interface")
}

/// What a device has counted since a moment.
#[derive(Debug, Default)]
pub(super) struct Since(Counters);

impl Since {
    pub(super) fn new(before: &Counters, after: &Counters) -> Self {
        let moved = after.iter().filter_map(|(name, after)| {
            let by = after.saturating_sub(before.get(name).copied().unwrap_or(0));
            (by > 0).then(|| (name.clone(), by))
        });
        Self(moved.collect())
    }

    fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Packets that arrived and were dropped, with the names of the counters.
    fn dropped(&self) -> Option<String> {
        let drops = self.0.iter().filter(|(name, _)| is_drop(name));
        let text: Vec<_> = drops.map(|(name, n)| format!("{name} {n}")).collect();
        (!text.is_empty()).then(|| text.join(", "))
    }

    /// Packets that were taken, or dropped for a reason.
    fn arrived(&self) -> u64 {
        self.of("rcvd_pkts")
    }
}

/// Why nothing came back. `theirs`: as far as they tell.
pub(super) fn silence(host: &str, ours: &Since, theirs: Option<&Since>) -> Failure {
    let n = |n: u64| if n == 1 { "1 packet".to_owned() } else { format!("{n} packets") };
    let sent = n(ours.of("sent_pkts"));
    if ours.of("send_err") > 0 {
        let refused = n(ours.of("send_err"));
        return Failure::new(
            Step::Address,
            format_args!(
                "the system refuses to send {refused} to {host} (send_err): no route, or a local firewall"
            ),
        );
    }
    if let Some(bad) = theirs.map(|t| t.of("rx_icrc_encapsulated")).filter(|&bad| bad > 0) {
        return Failure::new(
            Step::Icrc,
            format_args!("{} arrived at {host} with a wrong ICRC: {CHANGED}", n(bad)),
        );
    }
    let bad = ours.of("rx_icrc_encapsulated");
    if bad > 0 {
        return Failure::new(
            Step::Icrc,
            format_args!("{} arrived here with a wrong ICRC: {CHANGED}", n(bad)),
        );
    }
    if let Some(drops) = ours.dropped() {
        return Failure::new(
            Step::Answer,
            format_args!("what arrives here is dropped ({drops}): {TOLD}"),
        );
    }
    let Some(theirs) = theirs else {
        return Failure::new(
            Step::Answer,
            format_args!(
                "{sent} left and nothing came back: does a firewall drop UDP port 4791, here, there or between?"
            ),
        );
    };
    if let Some(drops) = theirs.dropped() {
        return Failure::new(
            Step::Answer,
            format_args!("what arrives at {host} is dropped there ({drops}): {TOLD}"),
        );
    }
    match theirs.arrived() {
        0 => Failure::new(
            Step::Answer,
            format_args!(
                "{sent} left and none arrived at {host}: does a firewall drop UDP port 4791?"
            ),
        ),
        arrived => Failure::new(
            Step::Answer,
            format_args!(
                "{} arrived at {host} and its answers do not arrive here: does a firewall drop UDP port 4791 on the \
                 way back?",
                n(arrived)
            ),
        ),
    }
}

/// What a wrong ICRC comes from.
const CHANGED: &str =
    "something on the way changes them (address translation, a tunnel, a broken offload)";
/// Where to read what a counter of drops means.
const TOLD: &str = "docs/counters.md names the reasons";

#[cfg(test)]
mod tests {
    use super::*;

    fn since(moved: &[(&str, u64)]) -> Since {
        let after = moved.iter().map(|(name, n)| ((*name).to_owned(), n + 5)).collect();
        let before = moved.iter().map(|(name, _)| ((*name).to_owned(), 5)).collect();
        Since::new(&before, &after)
    }

    #[test]
    fn each_silence_has_its_step() {
        let left = [("sent_pkts", 8)];
        for (ours, theirs, step, part) in [
            (&left[..], Some(&[][..]), Step::Answer, "none arrived at b"),
            (&left, Some(&[("rcvd_pkts", 8)]), Step::Answer, "on the way back"),
            (&left, Some(&[("rcvd_pkts", 1)]), Step::Answer, "1 packet arrived at b"),
            (&left, None, Step::Answer, "8 packets left and nothing came back"),
            (&left, Some(&[("rx_icrc_encapsulated", 8)]), Step::Icrc, "8 packets arrived at b"),
            (&[("rx_icrc_encapsulated", 2)], Some(&[("rcvd_pkts", 8)]), Step::Icrc, "arrived here"),
            (&left, Some(&[("drop_address", 8)]), Step::Answer, "drop_address 8"),
            (&[("drop_no_qp", 1)], None, Step::Answer, "dropped (drop_no_qp 1)"),
            (&[("send_err", 8)], None, Step::Address, "refuses to send 8 packets"),
        ] {
            let theirs = theirs.map(since);
            let failure = silence("b", &since(ours), theirs.as_ref());
            assert_eq!(failure.step, step, "{failure}");
            assert!(failure.what.contains(part), "{failure}");
        }
    }

    #[test]
    fn what_stands_still_is_no_reason() {
        let still = BTreeMap::from([("drop_no_qp".to_owned(), 7)]);
        assert!(Since::new(&still, &still).0.is_empty());
    }
}
