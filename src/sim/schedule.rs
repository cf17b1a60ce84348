//! Faults of the network with a beginning and an end, as data: to be printed, stored, shrunk.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Action, Class, HostId, Link, Rule, RuleGuard, Sim, refused};
use crate::fabric::Direction;
use crate::time::Duration;
use crate::verbs::{Context, Result};

/// What is wrong with the network for a while: a list of [`Phase`]s, which may overlap.
///
/// ```
/// use softroce::prelude::*;
/// use softroce::sim::{FaultSchedule, Link, NetFault, Phase, Sim};
///
/// # fn main() -> Result<()> {
/// let sim = Sim::new(1);
/// let [a, b] = sim.hosts(Link::default());
/// let ms = Duration::from_millis;
/// let schedule = FaultSchedule::from_iter([
///     Phase { host: 1, from: ms(0), lasts: ms(20), fault: NetFault::Loss(0.1) },
///     Phase { host: 0, from: ms(5), lasts: ms(1), fault: NetFault::Unplugged },
/// ]);
/// schedule.apply(&sim, &[&a, &b])?;
/// assert_eq!(schedule.end(), ms(20));
/// assert_eq!(a.wait_event(ms(10))?, Event::PortErr { port: 1 });
/// assert_eq!(sim.now(), ms(5));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultSchedule {
    /// In any order.
    pub phases: Vec<Phase>,
}

/// A fault for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Whose cable: place in the list that [`FaultSchedule::apply`] gets.
    pub host: usize,
    /// When it begins, from when the schedule is applied.
    pub from: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// What is wrong.
    pub fault: NetFault,
}

impl Phase {
    fn end(&self) -> Duration {
        self.from + self.lasts
    }
}

/// What may be wrong with the way to a host.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum NetFault {
    /// Packets are lost with at least this probability.
    Loss(f64),
    /// Packets come twice with at least this probability.
    Duplicate(f64),
    /// Packets are held back, so that others overtake them, with at least this probability.
    Reorder(f64),
    /// Packets are damaged with at least this probability.
    Corrupt(f64),
    /// All packets take at least this long on the cable, each way.
    Delay(Duration),
    /// The cable is pulled.
    Unplugged,
    /// The `nth` packet of this kind is dropped.
    Drop {
        /// Which kind.
        class: Class,
        /// Counted from 1, from the beginning of the phase.
        nth: u64,
    },
}

impl NetFault {
    fn worsen(self, link: &mut Link) {
        match self {
            Self::Loss(p) => link.loss = link.loss.max(p),
            Self::Duplicate(p) => link.duplicate = link.duplicate.max(p),
            Self::Reorder(p) => link.reorder = link.reorder.max(p),
            Self::Corrupt(p) => link.corrupt = link.corrupt.max(p),
            Self::Delay(d) => link.delay = link.delay.max(d),
            Self::Unplugged | Self::Drop { .. } => {}
        }
    }
}

impl FromIterator<Phase> for FaultSchedule {
    fn from_iter<I: IntoIterator<Item = Phase>>(phases: I) -> Self {
        Self { phases: phases.into_iter().collect() }
    }
}

impl FaultSchedule {
    /// When the last fault is over, from when it is applied.
    pub fn end(&self) -> Duration {
        self.phases.iter().map(Phase::end).max().unwrap_or_default()
    }

    /// Has all this happen from now on, to the cables of these hosts. What they are like now they are again when a
    /// phase is over. A phase of a host that is not in the list is left out, as is what happens to a host that was
    /// killed meanwhile.
    ///
    /// Setting a link by hand while a schedule runs is undone by its next step.
    ///
    /// # Errors
    /// `EINVAL`: not hosts of this simulation, or a phase makes no sense; then nothing happens.
    pub fn apply(&self, sim: &Sim, hosts: &[&Context]) -> Result<()> {
        let start = sim.now();
        let ids: Vec<HostId> = hosts.iter().map(|h| sim.host_of(h)).collect::<Result<_>>()?;
        let mut lists = Vec::new();
        for (index, &id) in ids.iter().enumerate() {
            let of_host = |p: &&Phase| p.host == index;
            let phases: Vec<Phase> = self.phases.iter().filter(of_host).copied().collect();
            let link = sim.0.fabric.lock().link(id, Direction::Down).map_err(refused)?;
            let mut worst = link;
            for Phase { fault, .. } in &phases {
                fault.worsen(&mut worst);
                if let NetFault::Drop { nth, .. } = fault {
                    super::When::Nth(*nth).check().map_err(refused)?;
                }
                // `max` takes no notice of what is no number.
                if let NetFault::Loss(p)
                | NetFault::Duplicate(p)
                | NetFault::Reorder(p)
                | NetFault::Corrupt(p) = *fault
                {
                    Link { loss: p, ..link }.check().map_err(refused)?;
                }
            }
            worst.check().map_err(refused)?;
            lists.push((id, link, phases));
        }
        for (id, link, phases) in lists {
            let ways = Arc::new(Ways { id, link, phases });
            let mut steps: Vec<Duration> =
                ways.phases.iter().flat_map(|p| [p.from, p.end()]).collect();
            steps.sort_unstable();
            steps.dedup();
            for at in steps {
                let ways = Arc::clone(&ways);
                sim.at(start + at, move |sim| ways.step(sim, at));
            }
            for phase in &ways.phases {
                if let NetFault::Drop { class, nth } = phase.fault {
                    drop_one(sim, id, class, nth, start + phase.from, start + phase.end());
                }
            }
        }
        Ok(())
    }
}

/// What happens to one cable.
#[derive(Debug)]
struct Ways {
    id: HostId,
    /// As it is without faults.
    link: Link,
    phases: Vec<Phase>,
}

impl Ways {
    /// Some phase begins or ends.
    fn step(&self, sim: &Sim, at: Duration) {
        let now = self.phases.iter().filter(|p| p.from <= at && at < p.end());
        let (mut link, mut up) = (self.link, true);
        for phase in now {
            phase.fault.worsen(&mut link);
            up &= phase.fault != NetFault::Unplugged;
        }
        let pulled = self.phases.iter().any(|p| p.fault == NetFault::Unplugged);
        let nics = sim.0.time.nics();
        let nic = nics.iter().find(|(host, nic)| *host == self.id.index() && !nic.is_dead());
        let Some((_, nic)) = nic else { return };
        // Both were checked before: the host exists, and the link makes sense.
        let _ = sim.0.fabric.lock().set_link(self.id, link);
        if pulled {
            let _ = sim.plug(self.id, nic, up);
        }
    }
}

/// A rule from one time to another.
fn drop_one(sim: &Sim, to: HostId, class: Class, nth: u64, from: Duration, end: Duration) {
    let guard: Arc<Mutex<Option<RuleGuard>>> = Arc::default();
    let place = Arc::clone(&guard);
    let rule = Rule::new(class, Action::Drop).to(to).nth(nth);
    sim.at(from, move |sim| *place.lock() = sim.rule_while(rule).ok());
    sim.at(end, move |_| drop(guard.lock().take()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn phases_overlap_and_leave_no_trace() {
        let sim = Sim::new(1);
        let [a, b] = sim.hosts(Link { loss: 0.01, ..Link::default() });
        let phase =
            |from, lasts, fault| Phase { host: 1, from: from * MS, lasts: lasts * MS, fault };
        let schedule = FaultSchedule::from_iter([
            phase(2, 4, NetFault::Loss(0.5)),
            phase(4, 4, NetFault::Loss(0.2)),
            phase(4, 1, NetFault::Delay(MS)),
            phase(6, 1, NetFault::Unplugged),
            Phase { host: 7, ..phase(0, 50, NetFault::Loss(1.0)) },
        ]);
        schedule.apply(&sim, &[&a, &b]).unwrap();
        let id = sim.host_of(&b).unwrap();
        let mut seen = Vec::new();
        for _ in 0..9 {
            let link = sim.0.fabric.lock().link(id, Direction::Down).unwrap();
            let up = sim.0.fabric.lock().is_up(id).unwrap();
            seen.push((link.loss, link.delay == MS, up));
            sim.run_for(MS);
        }
        let fine = (0.01, false, true);
        let half = (0.5, false, true);
        let slow = (0.5, true, true);
        let last = [half, (0.2, false, false), (0.2, false, true), fine];
        assert_eq!(seen, [&[fine, fine, half, half, slow], &last[..]].concat());
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_nothing_happens() {
        let sim = Sim::new(1);
        let [a] = sim.hosts(Link::default());
        let bad = [
            NetFault::Loss(1.5),
            NetFault::Corrupt(f64::NAN),
            NetFault::Drop { class: Class::Any, nth: 0 },
        ];
        for fault in bad {
            let phase = Phase { host: 0, from: Duration::ZERO, lasts: MS, fault };
            let e = FaultSchedule::from_iter([phase]).apply(&sim, &[&a]).unwrap_err();
            assert_eq!(e.errno(), Some(22), "{fault:?}: {e}");
        }
        let [foreign] = Sim::new(2).hosts(Link::default());
        assert!(FaultSchedule::default().apply(&sim, &[&foreign]).is_err());
        sim.settle();
        assert_eq!(sim.now(), Duration::ZERO);
    }
}
