//! The reference model of an unreliable connection: what requests of one end may have done at the other.
//!
//! Messages arrive in order, each at most once, whole or not at all; a WRITE may leave a part of itself. So every
//! byte of the peer's memory is what it was, or what some WRITE has put there; and once a WRITE is known to have
//! arrived whole, what that one or a later one has. Where the network has made copies or let packets overtake
//! each other, they are as good as new ones to this service: then a message may come again, or late.

use super::model::Message;
use crate::verbs::WorkCompletion;

/// What the network has done to the order of packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disorder {
    /// Packets that came twice.
    pub copies: bool,
    /// Packets that were held back.
    pub late: bool,
}

impl Disorder {
    fn any(self) -> bool {
        self.copies || self.late
    }
}

/// A request that may reach the peer.
#[derive(Debug)]
struct Sent {
    id: u64,
    message: Option<Message>,
    /// Where a WRITE goes, and with what.
    write: Option<(usize, Vec<u8>)>,
    arrived: bool,
    /// It was handed over.
    left: bool,
}

/// The values that a byte may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Values([u64; 4]);

impl Values {
    fn of(byte: u8) -> Self {
        let mut values = Self::default();
        values.add(byte);
        values
    }

    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    fn has(self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }
}

/// One direction of an unreliable connection.
#[derive(Debug)]
pub struct Loose {
    memory: Vec<Values>,
    sent: Vec<Sent>,
    /// In order, the next message is this one or a later one.
    next: usize,
    received: usize,
}

impl Loose {
    /// Nothing was sent yet, and the peer's memory is as it is.
    pub fn new(memory: &[u8]) -> Self {
        let memory = memory.iter().map(|&b| Values::of(b)).collect();
        Self { memory, sent: Vec::new(), next: 0, received: 0 }
    }

    /// A request was posted: what the peer is told if it arrives, and what it writes where.
    pub fn post(&mut self, id: u64, message: Option<Message>, write: Option<(usize, Vec<u8>)>) {
        if let Some((at, data)) = &write {
            for (values, &byte) in self.memory[*at..].iter_mut().zip(data) {
                values.add(byte);
            }
        }
        self.sent.push(Sent { id, message, write, arrived: false, left: true });
    }

    /// A request was not handed over, not as a whole.
    pub fn kept(&mut self, id: u64) {
        if let Some(sent) = self.sent.iter_mut().rev().find(|s| s.id == id) {
            sent.left = false;
        }
    }

    /// Messages that were handed over, and those of them, copies included, that have arrived.
    pub fn balance(&self) -> (usize, usize) {
        let left = self.sent.iter().filter(|s| s.left && s.message.is_some()).count();
        (left, self.received)
    }

    /// A message arrived at the peer.
    ///
    /// # Errors
    /// No such message was sent, or it was not its turn.
    pub fn message(
        &mut self,
        wc: &WorkCompletion,
        data: &[u8],
        disorder: Disorder,
    ) -> Result<(), String> {
        let told = (wc.opcode, wc.byte_len as usize, wc.imm, wc.invalidated_rkey);
        let is_it = |s: &Sent| {
            let m = s.message.as_ref().filter(|_| s.left);
            m.is_some_and(|m| {
                told == (m.opcode, m.len, m.imm, m.invalidates) && data == &m.data[..]
            })
        };
        let later = self.sent.iter().enumerate().skip(self.next);
        let mut found = later.into_iter().find(|(_, s)| is_it(s)).map(|(i, _)| i);
        if found.is_none() && disorder.any() {
            found = self.sent.iter().position(|s| !s.arrived && is_it(s));
        }
        if found.is_none() && disorder.copies {
            found = self.sent.iter().position(is_it);
        }
        let Some(index) = found else {
            let when = if self.sent.iter().any(is_it) { "twice, or late" } else { "never sent so" };
            return Err(format!("{wc:?}: a message that was {when}, behind number {}", self.next));
        };
        self.sent[index].arrived = true;
        self.received += 1;
        self.next = self.next.max(index + 1);
        if !disorder.any() {
            self.confirm(index);
        }
        Ok(())
    }

    /// The WRITE of a request has arrived whole, and nothing that came before it can come after it.
    fn confirm(&mut self, index: usize) {
        let Some((at, data)) = &self.sent[index].write else { return };
        let range = *at..at + data.len();
        for (values, &byte) in self.memory[range.clone()].iter_mut().zip(data) {
            *values = Values::of(byte);
        }
        for (at, data) in self.sent[index + 1..].iter().filter_map(|s| s.write.as_ref()) {
            for i in range.start.max(*at)..range.end.min(at + data.len()) {
                self.memory[i].add(data[i - at]);
            }
        }
    }

    /// Nothing was lost, and nothing is under way: every WRITE that needs no receive has arrived.
    pub fn confirm_all(&mut self) {
        for index in 0..self.sent.len() {
            let sent = &self.sent[index];
            if sent.left && (sent.message.is_none() || sent.arrived) {
                self.confirm(index);
            }
        }
    }

    /// Looks at the peer's memory.
    ///
    /// # Errors
    /// A byte is as nothing has left it.
    pub fn check_memory(&self, actual: &[u8]) -> Result<(), String> {
        let wrong = self.memory.iter().zip(actual).position(|(values, &byte)| !values.has(byte));
        match wrong {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} of memory is as no WRITE has left it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::WcOpcode;

    const ORDER: Disorder = Disorder { copies: false, late: false };

    fn send(data: &[u8]) -> Option<Message> {
        let (opcode, data) = (WcOpcode::Recv, data.to_vec());
        Some(Message { opcode, len: data.len(), data, imm: None, invalidates: None })
    }

    fn came(data: &[u8]) -> WorkCompletion {
        let byte_len = u32::try_from(data.len()).unwrap();
        WorkCompletion { opcode: WcOpcode::Recv, byte_len, ..WorkCompletion::default() }
    }

    #[test]
    fn messages_come_whole_in_order_and_once() {
        let mut l = Loose::new(&[]);
        for (id, data) in (0..).zip([b"one", b"two", b"six"]) {
            l.post(id, send(data), None);
        }
        let mut arrives = |data: &[u8], disorder| l.message(&came(data), data, disorder).is_ok();
        assert!(arrives(b"two", ORDER), "one may be lost");
        assert!(!arrives(b"two", ORDER) && !arrives(b"one", ORDER));
        assert!(!arrives(b"si", ORDER) && !arrives(b"sox", ORDER));
        let (copies, late) =
            (Disorder { copies: true, late: false }, Disorder { copies: false, late: true });
        assert!(!arrives(b"two", late));
        assert!(arrives(b"two", copies) && arrives(b"one", late));
        assert!(arrives(b"six", ORDER) && !arrives(b"sox", copies));
        assert_eq!(l.balance(), (3, 4));
    }

    #[test]
    fn what_was_not_handed_over_does_not_arrive() {
        let mut l = Loose::new(&[]);
        l.post(7, send(b"one"), None);
        l.kept(7);
        assert!(l.message(&came(b"one"), b"one", ORDER).is_err());
        assert_eq!(l.balance(), (0, 0));
    }

    #[test]
    fn a_write_may_leave_a_part_until_it_is_known_to_be_whole() {
        let mut l = Loose::new(&[0; 4]);
        l.post(0, None, Some((0, vec![1; 4])));
        l.post(1, send(b""), Some((1, vec![2; 2])));
        l.post(2, None, Some((2, vec![3; 2])));
        for good in [[0; 4], [1, 1, 0, 0], [1, 2, 0, 3], [0, 2, 3, 1]] {
            assert!(l.check_memory(&good).is_ok(), "{good:?}");
        }
        assert!(l.check_memory(&[2, 0, 0, 0]).is_err() && l.check_memory(&[0, 3, 0, 0]).is_err());
        l.message(&came(b""), b"", ORDER).unwrap();
        for good in [[0, 2, 2, 0], [1, 2, 3, 0]] {
            assert!(l.check_memory(&good).is_ok(), "{good:?}");
        }
        assert!(l.check_memory(&[0, 1, 2, 0]).is_err() && l.check_memory(&[0, 2, 0, 3]).is_err());
        l.confirm_all();
        assert!(l.check_memory(&[1, 2, 3, 3]).is_ok());
        assert!(l.check_memory(&[1, 2, 2, 3]).is_err());
    }

    #[test]
    fn a_late_write_may_win() {
        let mut l = Loose::new(&[0]);
        l.post(0, None, Some((0, vec![1])));
        l.post(1, send(b""), Some((0, vec![2])));
        l.message(&came(b""), b"", Disorder { copies: false, late: true }).unwrap();
        assert!(l.check_memory(&[1]).is_ok() && l.check_memory(&[3]).is_err());
    }
}
