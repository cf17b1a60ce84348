//! Makes a plan smaller that fails: leaves out faults and requests as long as it still does.

use super::plan::Plan;

/// Runs that a plan is worth.
const RUNS: u32 = 400;

/// The smallest plan found that fails, beginning with one that does.
pub fn shrink(plan: &Plan, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    let mut best = plan.clone();
    let mut left = RUNS;
    loop {
        let before = size(&best);
        for what in [without_fault, without_requests, shorter_fault] {
            let mut at = 0;
            while let Some(candidate) = what(&best, at) {
                if left == 0 {
                    return best;
                }
                left -= 1;
                if fails(&candidate) {
                    best = candidate;
                } else {
                    at += 1;
                }
            }
        }
        if size(&best) == before {
            return best;
        }
    }
}

fn size(plan: &Plan) -> (usize, usize) {
    (plan.faults.len(), plan.requests())
}

fn without_fault(plan: &Plan, at: usize) -> Option<Plan> {
    let mut smaller = plan.clone();
    (at < smaller.faults.len()).then(|| smaller.faults.remove(at))?;
    Some(smaller)
}

/// Without the requests of one end or station, or without the later half of them.
fn without_requests(plan: &Plan, at: usize) -> Option<Plan> {
    let mut smaller = plan.clone();
    let left = |n: usize| if at.is_multiple_of(2) { 0 } else { n / 2 };
    let ends = smaller.conns.iter().flat_map(|c| &c.ends);
    let ends = ends.filter(|e| !e.ops.is_empty()).count();
    // Nobody would hear of the last one otherwise.
    if let Some(station) = (at / 2).checked_sub(ends) {
        let mut stations = smaller.stations.iter_mut().filter(|s| !s.datagrams.is_empty());
        let datagrams = &mut stations.nth(station)?.datagrams;
        datagrams.truncate(left(datagrams.len()));
        if let Some(last) = datagrams.last_mut() {
            last.signaled = true;
        }
    } else {
        let ends = smaller.conns.iter_mut().flat_map(|c| &mut c.ends);
        let ops = &mut ends.filter(|e| !e.ops.is_empty()).nth(at / 2)?.ops;
        ops.truncate(left(ops.len()));
        if let Some(last) = ops.last_mut() {
            last.signaled = true;
        }
    }
    Some(smaller)
}

fn shorter_fault(plan: &Plan, at: usize) -> Option<Plan> {
    let mut smaller = plan.clone();
    let fault = smaller.faults.get_mut(at)?;
    let long = fault.until - fault.from;
    fault.until = fault.from + long / 2;
    (long.as_nanos() > 2000).then_some(smaller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_goes() {
        let is_rich = |p: &Plan| p.faults.len() > 3 && p.requests() > 200 && p.stations.len() > 2;
        let plan = (1..).map(Plan::new).find(is_rich).unwrap();
        let wanted = plan.faults[2].what;
        let fails = |p: &Plan| p.faults.iter().any(|f| f.what == wanted) && p.requests() >= 10;
        let small = shrink(&plan, fails);
        assert!(fails(&small), "it still fails");
        assert_eq!(small.faults.len(), 1);
        assert!(small.requests() < 40, "{}", small.requests());
        assert!(
            small.faults[0].until - small.faults[0].from <= std::time::Duration::from_micros(2)
        );
    }

    #[test]
    fn it_ends_also_when_everything_fails() {
        let small = shrink(&Plan::new(3), |_| true);
        assert_eq!(size(&small), (0, 0));
    }
}
