//! Makes a plan smaller that fails: leaves out faults, connections and requests as long as it still does.

use super::plan::Plan;
use super::run::{Options, run};

/// Runs that a plan is worth.
const RUNS: u32 = 400;

/// The smallest plan found that fails, beginning with one that does.
pub fn shrink(plan: &Plan) -> Plan {
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
                if run(&candidate, &Options::default()).failure.is_some() {
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
    let ops = plan.conns.iter().flat_map(|c| &c.ends).map(|e| e.ops.len()).sum();
    (plan.faults.len(), ops)
}

fn without_fault(plan: &Plan, at: usize) -> Option<Plan> {
    let mut smaller = plan.clone();
    (at < smaller.faults.len()).then(|| smaller.faults.remove(at))?;
    Some(smaller)
}

/// Without the requests of one end, or without the later half of them.
fn without_requests(plan: &Plan, at: usize) -> Option<Plan> {
    let mut smaller = plan.clone();
    let ends = smaller.conns.iter_mut().flat_map(|c| &mut c.ends);
    let end = ends.filter(|e| !e.ops.is_empty()).nth(at / 2)?;
    end.ops.truncate(if at % 2 == 0 { 0 } else { end.ops.len() / 2 });
    if let Some(last) = end.ops.last_mut() {
        last.signaled = true;
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
