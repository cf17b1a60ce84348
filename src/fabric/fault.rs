//! Faults at chosen packets: rules, and how a packet is corrupted.
//!
//! The probabilities of a [`Link`](super::Link) make weather. A [`Rule`] hits the third acknowledgement
//! from b to a, or every hundredth first packet of a READ response.
//!
//! *Rules.* Rules are asked in the order in which they were added. One that selects a packet decides about
//! it, and the others do not see it. A packet that a rule describes but does not select (the first two of
//! `nth(3)`) goes on to the next rule.

use std::fmt;

use rand_chacha::ChaCha8Rng;

use crate::seed::{Seeds, below, chance};
use crate::time::Duration;
use crate::wire::opcode::{Opcode, Operation, Position};

use super::link::check_probability;
use super::tap::{Syndrome, acknowledge};
use super::{FabricError, HostId};

/// Kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// All, even what is no RoCE packet.
    Any,
    /// Whatever asks the receiver to do something.
    Request,
    /// Whatever answers: ACK, NAK, READ response, atomic response.
    Response,
    /// Packets of one operation: SEND, READ response, ...
    Operation(Operation),
    /// Packets of one operation at one place in their message: the last one of a READ response.
    Part(Operation, Position),
    /// One opcode byte, known or not.
    Opcode(u8),
    /// Positive acknowledgements.
    Ack,
    /// Negative ones, whatever the reason.
    Nak,
    /// Negative ones that say "sequence error".
    SequenceNak,
    /// "Receiver not ready".
    RnrNak,
}

impl Class {
    /// Whether a datagram is of this kind.
    pub fn matches(self, datagram: &[u8]) -> bool {
        let byte = datagram.first().copied();
        let info = || byte.and_then(Opcode::from_u8).map(Opcode::info);
        match self {
            Self::Any => true,
            Self::Request => info().is_some_and(|i| i.is_request()),
            Self::Response => info().is_some_and(|i| i.is_response()),
            Self::Operation(op) => info().is_some_and(|i| i.operation == op),
            Self::Part(op, at) => info().is_some_and(|i| i.operation == op && i.position == at),
            Self::Opcode(op) => byte == Some(op),
            Self::Ack => acknowledge(datagram) == Some(Syndrome::Ack),
            Self::Nak => matches!(acknowledge(datagram), Some(Syndrome::Nak(_))),
            Self::SequenceNak => acknowledge(datagram) == Some(Syndrome::Nak(0)),
            Self::RnrNak => acknowledge(datagram) == Some(Syndrome::Rnr),
        }
    }
}

/// Which of the packets that a rule describes it selects. Counts start at 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// All.
    Always,
    /// The first `n`.
    First(u64),
    /// The `n`th, once.
    Nth(u64),
    /// The `n`th, `2n`th, `3n`th, ...
    Every(u64),
    /// Each with this probability, from a random stream of the rule's own.
    Chance(f64),
}

impl When {
    /// Whether it can be.
    ///
    /// # Errors
    /// A probability that is none; a count from 0.
    pub fn check(self) -> Result<(), FabricError> {
        match self {
            Self::Chance(p) => check_probability("chance", p),
            Self::Nth(0) | Self::Every(0) => Err(FabricError::Ordinal),
            _ => Ok(()),
        }
    }

    /// Whether the `seen`th is one of them.
    pub(crate) fn selects(self, seen: u64, rng: &mut ChaCha8Rng) -> bool {
        match self {
            Self::Always => true,
            Self::First(n) => seen <= n,
            Self::Nth(n) => seen == n,
            Self::Every(n) => seen.is_multiple_of(n),
            Self::Chance(p) => chance(rng, p),
        }
    }
}

/// What a rule does to a packet that it selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Lets it through: shields it from later rules.
    Pass,
    /// Drops it.
    Drop,
    /// Holds it back for this long; later ones overtake it.
    Delay(Duration),
    /// Delivers it twice, the copy right behind.
    Duplicate,
    /// Flips one to three bits, so that the ICRC is wrong.
    Corrupt,
    /// Marks it "congestion experienced", ECN-capable or not.
    Mark,
}

/// A fault at chosen packets.
///
/// ```
/// use softroce::internals::fabric::{Action, Class, Rule};
/// use softroce::wire::opcode::{Operation, Position};
/// let third_ack = Rule::new(Class::Ack, Action::Drop).nth(3);
/// let ends = Rule::new(Class::Part(Operation::ReadResponse, Position::Last), Action::Drop).chance(0.1);
/// # let _ = (third_ack, ends);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a rule does nothing until it is added to a fabric"]
pub struct Rule {
    class: Class,
    action: Action,
    from: Option<HostId>,
    to: Option<HostId>,
    when: When,
}

impl Rule {
    /// Does `action` to each packet of `class`, between any hosts.
    pub const fn new(class: Class, action: Action) -> Self {
        Self { class, action, from: None, to: None, when: When::Always }
    }

    /// Only packets that this host sends.
    pub const fn from(mut self, host: HostId) -> Self {
        self.from = Some(host);
        self
    }

    /// Only packets to this host.
    pub const fn to(mut self, host: HostId) -> Self {
        self.to = Some(host);
        self
    }

    /// Only some of them.
    pub const fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Only the first `n`.
    pub const fn first(self, n: u64) -> Self {
        self.when(When::First(n))
    }

    /// Only the `n`th, counted from 1.
    pub const fn nth(self, n: u64) -> Self {
        self.when(When::Nth(n))
    }

    /// Only each `n`th.
    pub const fn every(self, n: u64) -> Self {
        self.when(When::Every(n))
    }

    /// Each with probability `p`.
    pub const fn chance(self, p: f64) -> Self {
        self.when(When::Chance(p))
    }

    fn describes(&self, from: HostId, to: HostId, datagram: &[u8]) -> bool {
        self.from.is_none_or(|h| h == from)
            && self.to.is_none_or(|h| h == to)
            && self.class.matches(datagram)
    }
}

/// Names a rule in its fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId(u64);

/// How often a rule applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleHits {
    /// Packets that it describes and no earlier rule took.
    pub seen: u64,
    /// Packets that it selected.
    pub hits: u64,
}

/// The rules of a fabric, in order.
pub(super) struct Rules {
    entries: Vec<Entry>,
    added: u64,
}

struct Entry {
    id: RuleId,
    rule: Rule,
    count: RuleHits,
    rng: ChaCha8Rng,
}

impl Rules {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), added: 0 }
    }

    pub(super) fn add(&mut self, rule: Rule, seeds: &Seeds) -> Result<RuleId, FabricError> {
        rule.when.check()?;
        let id = RuleId(self.added);
        self.added += 1;
        let rng = seeds.derive("rule", id.0).rng();
        self.entries.push(Entry { id, rule, count: RuleHits::default(), rng });
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: RuleId) -> Option<RuleHits> {
        let index = self.entries.iter().position(|e| e.id == id)?;
        Some(self.entries.remove(index).count)
    }

    pub(super) fn hits(&self, id: RuleId) -> Option<RuleHits> {
        self.entries.iter().find(|e| e.id == id).map(|e| e.count)
    }

    /// What the first rule that selects this packet wants, and the rule's random stream.
    pub(super) fn decide(
        &mut self,
        from: HostId,
        to: HostId,
        datagram: &[u8],
    ) -> Option<(Action, &mut ChaCha8Rng)> {
        for Entry { rule, count, rng, .. } in &mut self.entries {
            if !rule.describes(from, to, datagram) {
                continue;
            }
            count.seen += 1;
            if rule.when.selects(count.seen, rng) {
                count.hits += 1;
                return Some((rule.action, rng));
            }
        }
        None
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|e| (e.id, e.rule, e.count))).finish()
    }
}

/// Flips one to three bits of a datagram; whether there was any to flip.
///
/// Byte 4 is spared, for the ICRC does not cover it: every error is one that the receiver can find.
pub(super) fn corrupt(datagram: &mut [u8], rng: &mut ChaCha8Rng) -> bool {
    const UNCOVERED: u64 = 4;
    let len = datagram.len() as u64;
    let covered = if len > UNCOVERED { len - 1 } else { len };
    if covered == 0 {
        return false;
    }
    let mut flipped = [None; 3];
    let flips = 1 + below(rng, 3);
    for slot in flipped.iter_mut().take(usize::try_from(flips).unwrap_or(1)) {
        *slot = Some(below(rng, covered * 8));
    }
    for (i, bit) in flipped.iter().enumerate() {
        // A bit drawn twice flips once.
        let Some(bit) = bit.filter(|_| !flipped[..i].contains(bit)) else { continue };
        let byte = bit / 8 + u64::from(bit / 8 >= UNCOVERED);
        if let Some(b) = usize::try_from(byte).ok().and_then(|i| datagram.get_mut(i)) {
            *b ^= 1 << (bit % 8);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::tap::tests::datagram;
    use super::*;
    use proptest::prelude::*;

    const A: HostId = HostId(0);
    const B: HostId = HostId(1);

    fn ack(syndrome: u8) -> Vec<u8> {
        datagram(0x11, 1, &[syndrome, 0, 0, 1])
    }

    fn rules(list: &[Rule]) -> (Rules, Vec<RuleId>) {
        let seeds = Seeds::new(1);
        let mut rules = Rules::new();
        let ids = list.iter().map(|&r| rules.add(r, &seeds).unwrap()).collect();
        (rules, ids)
    }

    /// Which of `n` like packets are selected, counted from 1.
    fn selected(rule: Rule, n: u64) -> Vec<u64> {
        let (mut rules, _) = rules(&[rule]);
        (1..=n).filter(|_| rules.decide(A, B, &ack(0x1f)).is_some()).collect()
    }

    #[test]
    fn classes_of_every_kind() {
        let is = |class: Class, d: &[u8]| class.matches(d);
        let request = datagram(0x0c, 0, &[0; 16]);
        let last = datagram(0x0f, 0, &[0x1f, 0, 0, 1]);
        let read = Class::Operation(Operation::ReadResponse);
        let read_last = Class::Part(Operation::ReadResponse, Position::Last);
        assert!(is(Class::Request, &request) && !is(Class::Response, &request));
        assert!(is(Class::Operation(Operation::Read), &request));
        assert!(is(Class::Response, &last) && is(read, &last) && is(read_last, &last));
        assert!(!is(Class::Part(Operation::ReadResponse, Position::First), &last));
        assert!(!is(Class::Ack, &last));

        for (syndrome, kinds) in [
            (0x1f, [true, false, false, false]),
            (0x60, [false, true, true, false]),
            (0x62, [false, true, false, false]),
            (0x21, [false, false, false, true]),
        ] {
            let d = ack(syndrome);
            assert!(is(Class::Response, &d));
            let classes = [Class::Ack, Class::Nak, Class::SequenceNak, Class::RnrNak];
            assert_eq!(classes.map(|c| is(c, &d)), kinds, "{syndrome:#x}");
        }

        let cnp = datagram(0x81, 0, &[0; 16]);
        assert!(is(Class::Operation(Operation::Cnp), &cnp));
        assert!(!is(Class::Request, &cnp) && !is(Class::Response, &cnp));
        assert!(is(Class::Any, &[]) && !is(Class::Request, &[]) && !is(Class::Opcode(0), &[]));
        assert!(is(Class::Opcode(0xff), &[0xff]) && !is(Class::Request, &[0xff]));
    }

    #[test]
    fn counting() {
        let rule = Rule::new(Class::Ack, Action::Drop);
        assert_eq!(selected(rule, 4), [1, 2, 3, 4]);
        assert_eq!(selected(rule.first(2), 4), [1, 2]);
        assert_eq!(selected(rule.nth(3), 9), [3]);
        assert_eq!(selected(rule.every(3), 9), [3, 6, 9]);
        let some = selected(rule.chance(0.3), 1000);
        assert!((250..350).contains(&some.len()), "{}", some.len());
        assert_eq!(some, selected(rule.chance(0.3), 1000), "the same draws again");
    }

    #[test]
    fn the_first_that_selects_decides() {
        let any = |action| Rule::new(Class::Any, action);
        let (mut rules, ids) = rules(&[
            any(Action::Pass).to(A),
            any(Action::Corrupt).from(A).nth(2),
            any(Action::Drop),
        ]);
        let mut decide = |from, to| rules.decide(from, to, &ack(0x1f)).map(|(action, _)| action);
        assert_eq!(decide(B, A), Some(Action::Pass));
        assert_eq!(decide(A, B), Some(Action::Drop));
        assert_eq!(decide(A, B), Some(Action::Corrupt));
        assert_eq!(decide(A, B), Some(Action::Drop));
        let hits = |i: usize| rules.hits(ids[i]).map(|h| (h.seen, h.hits));
        assert_eq!((hits(0), hits(1), hits(2)), (Some((1, 1)), Some((3, 1)), Some((2, 2))));

        assert_eq!(rules.remove(ids[2]), Some(RuleHits { seen: 2, hits: 2 }));
        assert_eq!(rules.remove(ids[2]), None);
        assert!(rules.decide(A, B, &ack(0x1f)).is_none());
    }

    #[test]
    fn rules_that_cannot_be() {
        let mut rules = Rules::new();
        let rule = Rule::new(Class::Any, Action::Drop);
        for (rule, error) in [
            (rule.nth(0), FabricError::Ordinal),
            (rule.every(0), FabricError::Ordinal),
            (rule.chance(1.1), FabricError::Probability { field: "chance", value: 1.1 }),
        ] {
            assert_eq!(rules.add(rule, &Seeds::new(0)), Err(error));
        }
    }

    proptest! {
        #[test]
        fn corruption_is_such_that_a_crc_finds_it(
            original in prop::collection::vec(any::<u8>(), 0..5000),
            seed: u64,
        ) {
            let mut bytes = original.clone();
            let flipped = corrupt(&mut bytes, &mut Seeds::new(seed).rng());
            prop_assert_eq!(flipped, !original.is_empty());
            let bits: u32 = original.iter().zip(&bytes).map(|(a, b)| (a ^ b).count_ones()).sum();
            prop_assert!((u32::from(flipped)..=3 * u32::from(flipped)).contains(&bits));
            prop_assert_eq!(original.get(4), bytes.get(4));
            // The ICRC covers all but byte 4, which is the same: any difference shows in the CRC.
            prop_assert_eq!(flipped, crc32fast::hash(&original) != crc32fast::hash(&bytes));
        }
    }
}
