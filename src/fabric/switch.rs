//! Switches: what they can do, what lies in them, and what they let in.
//!
//! A managed switch stores packets in one buffer that all its ports share. A packet is charged to the port and the
//! priority that it came in by, from the moment it is in until its last bit has left. What comes in by a port that
//! has more than its share is kept in the headroom of that port while it is asked to pause (IEEE 802.1Qbb), or
//! dropped where nobody is asked.
//!
//! *Bytes* are frame bytes: Ethernet header to FCS, no preamble, no gap.

use crate::net::Ecn;
use crate::time::Duration;

use super::FabricError;

/// Priorities of a port: 802.1p has eight.
pub const PRIORITIES: usize = 8;

/// Names a switch of a fabric: switches are numbered from 0. Switch 0 is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchId(pub u32);

impl SwitchId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a switch can do.
///
/// The default is a switch with 12 MB that pauses what is lossless and marks nothing.
///
/// ```
/// use softroce::sim::{Marking, SwitchConfig, Threshold};
/// let config = SwitchConfig {
///     threshold: Threshold::Dynamic(8.0),
///     ecn: Some(Marking::red(5_000, 200_000, 0.01)),
///     ..SwitchConfig::default()
/// };
/// assert!(config.check(32).is_ok());
/// assert!(config.check(1000).is_err(), "no room for the headroom of a thousand ports");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchConfig {
    /// Bytes that all ports share, headroom included.
    pub buffer: usize,
    /// Bytes of each port and lossless priority that are kept for what is on its way while the other end learns that it
    /// must pause: at least what the line carries in twice its delay, and two of the longest frames.
    pub headroom: usize,
    /// How much one port and priority may hold before its other end is asked to pause, or, where nobody is
    /// asked, before packets are dropped.
    pub threshold: Threshold,
    /// How far below the threshold it must fall before the other end may go on.
    pub xon_offset: usize,
    /// Priority flow control; `None`: nobody is asked to pause.
    pub pfc: Option<Pfc>,
    /// When packets are marked; `None`: never.
    pub ecn: Option<Marking>,
    /// Which packet belongs to which priority, by its DSCP.
    pub priorities: PriorityMap,
    /// Whether the DSCP or the VLAN tag tells the priority.
    pub trust: Trust,
    /// In which order the priorities of a port are served.
    pub scheduler: Scheduler,
    /// Ends pauses that last too long.
    pub watchdog: Option<Watchdog>,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            buffer: 12_000_000,
            headroom: 25_000,
            threshold: Threshold::Fixed(100_000),
            xon_offset: 2 * 1086,
            pfc: Some(Pfc::default()),
            ecn: None,
            priorities: PriorityMap::default(),
            trust: Trust::default(),
            scheduler: Scheduler::default(),
            watchdog: None,
        }
    }
}

/// How much of the buffer a port and priority may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// These bytes.
    Fixed(usize),
    /// This many times what is free of the buffer, headroom not counted (alpha of the dynamic threshold of switch
    /// chips).
    Dynamic(f64),
}

/// When the other end may send again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Xon {
    /// When it is told so, or the pause is over.
    #[default]
    Explicit,
    /// When the pause is over.
    Timer,
}

/// Priority flow control (IEEE 802.1Qbb).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pfc {
    /// Priorities that lose nothing, a bit each.
    pub priorities: u8,
    /// How long the other end is asked to pause, in units of 512 bit times. It is asked again when half of that is
    /// over.
    pub quanta: u16,
    /// When it may go on.
    pub xon: Xon,
}

impl Default for Pfc {
    /// Priorities 0 to 5, the longest pause that there is, explicit end.
    fn default() -> Self {
        Self { priorities: 0b0011_1111, quanta: u16::MAX, xon: Xon::Explicit }
    }
}

/// When a queue marks packets "congestion experienced".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// Bytes up to which nothing is marked.
    pub kmin: usize,
    /// Bytes above which everything is marked.
    pub kmax: usize,
    /// Probability of a mark at `kmax`; from `kmin` on it grows in proportion.
    pub pmax: f64,
    /// Priorities that are marked, a bit each.
    pub priorities: u8,
    /// Which queue length decides.
    pub at: MarkAt,
    /// Packets that cannot be marked are dropped instead, as random early detection does.
    pub drop_not_ect: bool,
}

/// Which length of the queue decides about a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MarkAt {
    /// When the packet leaves, itself included: the mark tells of the queue as it is now.
    #[default]
    Dequeue,
    /// When it leaves, itself not included.
    AfterDequeue,
    /// When it comes: the mark is as old as the queue is long, by the time that it is seen.
    Enqueue,
}

impl Marking {
    /// Marks with a probability that grows from 0 at `kmin` to `pmax` at `kmax`, and everything above.
    pub const fn red(kmin: usize, kmax: usize, pmax: f64) -> Self {
        let (priorities, at) = (0b0011_1111, MarkAt::Dequeue);
        Self { kmin, kmax, pmax, priorities, at, drop_not_ect: false }
    }

    /// Marks everything above `at` bytes.
    pub const fn step(at: usize) -> Self {
        Self::red(at, at, 1.0)
    }

    /// The probability of a mark at this length.
    pub(super) fn chance(&self, queued: usize) -> f64 {
        if queued > self.kmax {
            1.0
        } else if queued > self.kmin {
            #[expect(clippy::cast_precision_loss, reason = "bytes of a queue are below 2^52")]
            let share = (queued - self.kmin) as f64 / (self.kmax - self.kmin) as f64;
            share * self.pmax
        } else {
            0.0
        }
    }
}

/// What tells a switch the priority of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The DSCP.
    #[default]
    Dscp,
    /// The priority in the VLAN tag (PCP, IEEE 802.1Q); what has no tag is of priority 0.
    Pcp,
}

/// Which priority a packet belongs to, by its DSCP (RFC 2474).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityMap {
    by_dscp: [u8; 64],
}

impl Default for PriorityMap {
    /// The upper three bits of the DSCP (the class selectors of RFC 2474): 0 is priority 0, 26 priority 3, 48 (CNPs)
    /// priority 6.
    fn default() -> Self {
        let mut by_dscp = [0; 64];
        for (dscp, priority) in (0u8..).zip(&mut by_dscp) {
            *priority = dscp >> 3;
        }
        Self { by_dscp }
    }
}

impl PriorityMap {
    /// Everything in one priority.
    ///
    /// # Errors
    /// If there is no such priority.
    pub fn all(priority: u8) -> Result<Self, FabricError> {
        let mut map = Self::default();
        for dscp in 0..64 {
            map = map.with(dscp, priority)?;
        }
        Ok(map)
    }

    /// The same map, with one DSCP in another priority.
    ///
    /// # Errors
    /// If there is no such DSCP or priority.
    pub fn with(mut self, dscp: u8, priority: u8) -> Result<Self, FabricError> {
        let slot = self.by_dscp.get_mut(usize::from(dscp));
        match slot {
            Some(slot) if usize::from(priority) < PRIORITIES => *slot = priority,
            Some(_) => return Err(FabricError::NoSuchPriority(priority)),
            None => return Err(FabricError::NoSuchDscp(dscp)),
        }
        Ok(self)
    }

    /// The priority of a packet with this traffic class byte.
    pub const fn of(&self, traffic_class: u8) -> u8 {
        self.by_dscp[traffic_class as usize >> 2]
    }
}

/// In which order a port serves its priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduler {
    /// Priorities that come before all others, the highest number first, a bit each.
    pub strict: u8,
    /// Bytes that each of the others may send per round (deficit weighted round robin).
    pub quantum: [u32; PRIORITIES],
}

impl Default for Scheduler {
    /// 6 and 7 strictly first; the others share alike.
    fn default() -> Self {
        Self { strict: 0b1100_0000, quantum: [9216; PRIORITIES] }
    }
}

/// Ends a pause that has lasted too long, as switches guard themselves against a NIC that pauses for ever.
///
/// A queue that has packets, is paused all the time and sends nothing is given up after `detect`: what is in it and what
/// comes for it is dropped, until it has not been paused for `restore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// How long a queue may be stuck.
    pub detect: Duration,
    /// How long it must be free of pauses before it is used again.
    pub restore: Duration,
}

impl SwitchConfig {
    /// Whether a switch with so many ports can be built like this.
    ///
    /// # Errors
    /// Names what contradicts what.
    pub fn check(&self, ports: usize) -> Result<(), FabricError> {
        let lossless = self.pfc.map_or(0, |pfc| pfc.priorities.count_ones() as usize);
        // Of the priorities of a port, the one that is in use.
        let headroom = self.headroom.saturating_mul(ports).saturating_mul(lossless.min(1));
        if self.buffer <= headroom {
            return Err(FabricError::Headroom { buffer: self.buffer, headroom, ports });
        }
        match self.threshold {
            Threshold::Fixed(xoff) if xoff < self.xon_offset => {
                let xon_offset = self.xon_offset;
                return Err(FabricError::Xon { xoff, xon_offset });
            }
            Threshold::Fixed(xoff) if xoff > self.buffer - headroom => {
                return Err(FabricError::Xoff { xoff, shared: self.buffer - headroom });
            }
            Threshold::Dynamic(alpha) if !(alpha > 0.0 && alpha <= 1024.0) => {
                return Err(FabricError::Alpha(alpha));
            }
            _ => {}
        }
        if let Some(watchdog) = self.watchdog
            && watchdog.detect < Duration::from_micros(1)
        {
            return Err(FabricError::Watchdog(watchdog.detect));
        }
        if self.pfc.is_some_and(|pfc| pfc.quanta == 0) {
            return Err(FabricError::Quanta);
        }
        if let Some(m) = self.ecn {
            super::link::check_probability("pmax", m.pmax)?;
            if m.kmin > m.kmax {
                return Err(FabricError::Marking { kmin: m.kmin, kmax: m.kmax });
            }
        }
        let weightless = (0..PRIORITIES)
            .find(|&p| self.scheduler.strict & 1 << p == 0 && self.scheduler.quantum[p] == 0);
        if let Some(priority) = weightless {
            return Err(FabricError::Quantum { priority });
        }
        Ok(())
    }

    /// The priority of a packet with this traffic class byte and this priority in its tag, if it has one.
    pub(super) fn priority_of(&self, traffic_class: u8, pcp: Option<u8>) -> u8 {
        match self.trust {
            Trust::Dscp => self.priorities.of(traffic_class),
            Trust::Pcp => pcp.unwrap_or(0),
        }
    }

    /// Whether a priority loses nothing.
    pub(super) const fn is_lossless(&self, priority: u8) -> bool {
        match self.pfc {
            Some(pfc) => pfc.priorities & 1 << priority != 0,
            None => false,
        }
    }
}

/// What came in by one port and has not left.
#[derive(Debug, Default)]
pub(super) struct Ingress {
    /// All of it.
    pub(super) held: [usize; PRIORITIES],
    /// The part that lies in the headroom.
    pub(super) headroom: [usize; PRIORITIES],
    /// Priorities that were asked to pause.
    pub(super) xoff: u8,
}

/// A switch.
#[derive(Debug)]
pub(super) struct Switch {
    /// `None`: it has room for everything, as far as the links have.
    pub(super) config: Option<SwitchConfig>,
    /// Pipes that lead out of it, one for each port.
    pub(super) out: Vec<usize>,
    /// Bytes in it.
    pub(super) used: usize,
    /// Most bytes that were in it.
    pub(super) peak: usize,
    /// Distinguishes its choices among equal paths from those of other switches.
    pub(super) salt: u64,
    /// Pipes towards each switch, all equally short.
    pub(super) next: Vec<Vec<usize>>,
}

/// What a switch does with a packet that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It has room; `true`: the port must be asked to pause.
    Stored(bool),
    /// The buffer is full. `true`: the port must be asked to pause.
    Full(bool),
    /// Its port holds too much: a lossless one has used up its headroom. `true`: it must be asked to pause.
    OverShare(bool),
}

impl Switch {
    pub(super) const fn new(config: Option<SwitchConfig>, salt: u64) -> Self {
        Self { config, out: Vec::new(), used: 0, peak: 0, salt, next: Vec::new() }
    }

    /// What a port and priority may hold at this moment.
    fn threshold(&self, config: &SwitchConfig) -> usize {
        match config.threshold {
            Threshold::Fixed(bytes) => bytes,
            Threshold::Dynamic(alpha) => {
                let reserved = config.headroom.saturating_mul(self.out.len());
                let free = config.buffer.saturating_sub(reserved.saturating_add(self.used));
                #[expect(clippy::cast_precision_loss, reason = "bytes of a buffer are below 2^52")]
                #[expect(clippy::cast_possible_truncation, reason = "saturates")]
                #[expect(clippy::cast_sign_loss, reason = "alpha is positive")]
                let bytes = (alpha * free as f64) as usize;
                bytes
            }
        }
    }

    /// Takes a frame in that came by `ingress`, if there is room.
    pub(super) fn admit(&mut self, ingress: &mut Ingress, priority: u8, frame: usize) -> Admission {
        let Some(config) = &self.config else { return Admission::Stored(false) };
        let p = usize::from(priority);
        let may_ask = config.is_lossless(priority) && ingress.xoff & 1 << p == 0;
        if self.used + frame > config.buffer {
            return Admission::Full(may_ask);
        }
        let limit = self.threshold(config);
        if ingress.held[p] + frame > limit {
            // Priorities that pause nobody may use what is left over of nobody's headroom alike.
            if ingress.headroom[p].saturating_add(frame) > config.headroom {
                return Admission::OverShare(may_ask);
            }
            ingress.headroom[p] += frame;
        }
        ingress.held[p] += frame;
        self.used += frame;
        self.peak = self.peak.max(self.used);
        let over = ingress.held[p] > self.threshold(config);
        Admission::Stored(may_ask && over)
    }

    /// A frame that came by `ingress` has left. Whether the port may go on.
    pub(super) fn release(&mut self, ingress: &mut Ingress, priority: u8, frame: usize) -> bool {
        let Some(config) = &self.config else { return false };
        let p = usize::from(priority);
        self.used -= frame;
        ingress.held[p] -= frame;
        ingress.headroom[p] = ingress.headroom[p].saturating_sub(frame).min(ingress.held[p]);
        // A dynamic threshold may rise while the headroom is in use: whoever goes on then would find none the next time.
        ingress.xoff & 1 << p != 0
            && ingress.headroom[p] == 0
            && ingress.held[p] <= self.threshold(config).saturating_sub(config.xon_offset)
    }

    /// Whether a packet in a queue of this length is marked, for a random number below 2^53.
    pub(super) fn marks(
        &self,
        priority: u8,
        queued: usize,
        at: MarkAt,
        dice: impl FnOnce(f64) -> bool,
    ) -> Option<Marking> {
        let marking = self.config.as_ref()?.ecn?;
        let applies = marking.at == at && marking.priorities & 1 << priority != 0;
        let p = if applies { marking.chance(queued) } else { 0.0 };
        (p > 0.0 && (p >= 1.0 || dice(p))).then_some(marking)
    }
}

/// Whether a packet may be marked.
pub(super) const fn can_be_marked(ecn: Ecn) -> bool {
    matches!(ecn, Ecn::Ect0 | Ecn::Ect1 | Ecn::Ce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_goes_on_while_its_headroom_is_in_use() {
        let config = SwitchConfig {
            buffer: 110_000,
            headroom: 5_000,
            threshold: Threshold::Dynamic(1.0),
            xon_offset: 0,
            ..SwitchConfig::default()
        };
        let mut switch = Switch::new(Some(config), 0);
        switch.out = vec![0, 1];
        let (mut a, mut b) = (Ingress::default(), Ingress::default());
        // Of the 100000 shared bytes each may hold what the other one and itself leave free.
        for _ in 0..33 {
            assert_eq!(switch.admit(&mut a, 0, 1_000), Admission::Stored(false));
            assert_eq!(switch.admit(&mut b, 0, 1_000), Admission::Stored(false));
        }
        assert_eq!(switch.admit(&mut b, 0, 1_000), Admission::Stored(true));
        b.xoff = 1;
        while b.headroom[0] < 4_000 {
            assert_eq!(switch.admit(&mut b, 0, 1_000), Admission::Stored(false));
        }
        // The other one leaves: by the threshold alone this one could go on, with its headroom all but full.
        for _ in 0..33 {
            switch.release(&mut a, 0, 1_000);
        }
        assert!(b.held[0] < switch.threshold(switch.config.as_ref().unwrap()));
        let ends = (0..4).map(|_| switch.release(&mut b, 0, 1_000)).collect::<Vec<_>>();
        assert_eq!(ends, [false, false, false, true]);
        assert_eq!(b.headroom[0], 0);
    }
}
