//! The reference model: what one end of a reliable connection may see of its own requests, and what they may
//! have done at the other end.
//!
//! It does not predict. It accepts histories: whatever the network did, a history that it accepts could have
//! come from a peer that executes requests in the order of posting, each once, packet by packet. A peer's
//! memory is accepted if it is what some number of packets leave behind, at least those whose effect has been
//! confirmed, and never fewer than before. A READ may see what later requests have done, up to the next fence,
//! because a repeated READ is executed again.

use crate::verbs::{WcOpcode, WcStatus, WorkCompletion};

/// What a request does to the peer's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// Bytes land, packet by packet.
    Bytes {
        /// Where.
        at: usize,
        /// What.
        data: Vec<u8>,
    },
    /// A word becomes this.
    Word {
        /// Where.
        at: usize,
        /// What.
        value: u64,
    },
}

/// What a request brings back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// Bytes of the peer's memory.
    Bytes {
        /// From where.
        at: usize,
        /// What was there when all before it was done.
        data: Vec<u8>,
    },
    /// The value before an atomic.
    Word(u64),
    /// A value of a counter that others count with too.
    Count,
}

/// A message that uses up a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `Recv` or `RecvWriteImm`.
    pub opcode: WcOpcode,
    /// Bytes that it brings.
    pub data: Vec<u8>,
    /// Bytes that the completion tells.
    pub len: usize,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key that it invalidates.
    pub invalidates: Option<u32>,
}

/// A request as it was posted.
#[derive(Clone, Debug)]
pub struct Posted {
    /// Its number.
    pub id: u64,
    /// What its completion says that it is.
    pub opcode: WcOpcode,
    /// Makes a completion on success.
    pub signaled: bool,
    /// Waits for READs and atomics before it.
    pub fence: bool,
    /// How it must fail, if it must.
    pub fails: Option<WcStatus>,
    /// What it does.
    pub effect: Effect,
    /// What it brings back.
    pub answer: Answer,
    /// What the peer is told.
    pub message: Option<Message>,
}

/// How a completion was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// A success of this request.
    Done(usize),
    /// The first failure, of this request.
    Failed(usize),
    /// A request behind a failure.
    Flushed,
}

/// The requests of one end in one life of its connection.
#[derive(Debug)]
pub struct Stream {
    mtu: usize,
    posted: Vec<Posted>,
    /// Requests of which it is settled how they ended.
    settled: usize,
    /// The first that failed.
    failed: Option<usize>,
    /// Nothing from this request on is executed.
    cap: Option<usize>,
    /// The peer's memory when everything is done.
    ahead: Vec<u8>,
    /// The peer's memory as it was seen last: after so many requests, and bytes of the next.
    seen: Vec<u8>,
    seen_ops: usize,
    seen_bytes: usize,
    messages: Vec<usize>,
    received: usize,
}

impl Stream {
    /// No request yet, and the peer's memory as it is.
    pub fn new(mtu: usize, memory: Vec<u8>) -> Self {
        Self {
            mtu,
            posted: Vec::new(),
            settled: 0,
            failed: None,
            cap: None,
            ahead: memory.clone(),
            seen: memory,
            seen_ops: 0,
            seen_bytes: 0,
            messages: Vec::new(),
            received: 0,
        }
    }

    /// Requests in the queue.
    pub fn outstanding(&self) -> usize {
        self.posted.len() - self.settled
    }

    /// Requests of which it is settled how they ended.
    pub fn settled(&self) -> usize {
        self.settled
    }

    /// Requests posted.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// The request that failed first.
    pub fn failed(&self) -> Option<&Posted> {
        self.failed.map(|i| &self.posted[i])
    }

    /// Request number `index`.
    pub fn get(&self, index: usize) -> &Posted {
        &self.posted[index]
    }

    /// Messages that the peer has received.
    pub fn received(&self) -> usize {
        self.received
    }

    /// The peer's memory, `len` bytes from `at`, after everything posted.
    pub fn ahead(&self, at: usize, len: usize) -> &[u8] {
        &self.ahead[at..at + len]
    }

    /// The word at `at` after everything posted.
    pub fn word(&self, at: usize) -> u64 {
        word_of(&self.ahead, at)
    }

    /// A request was posted.
    pub fn post(&mut self, p: Posted) {
        if p.fails.is_some() && self.cap.is_none() {
            self.cap = Some(self.posted.len());
        }
        if self.cap.is_none() {
            apply(&mut self.ahead, &p.effect, 0, usize::MAX);
        }
        if p.message.is_some() {
            self.messages.push(self.posted.len());
        }
        self.posted.push(p);
    }

    /// Requests that the peer may have executed.
    fn end(&self) -> usize {
        self.cap.unwrap_or(self.posted.len())
    }

    /// The first `n` requests were executed.
    fn confirm(&mut self, n: usize) {
        while self.seen_ops < n {
            self.step(usize::MAX);
        }
    }

    /// The next packet was executed, or up to `bytes` of its request. Whether memory may have changed.
    fn step(&mut self, bytes: usize) -> bool {
        let effect = &self.posted[self.seen_ops].effect;
        let len = match effect {
            Effect::Bytes { data, .. } => data.len(),
            _ => 0,
        };
        let to = self.seen_bytes.saturating_add(bytes).min(len);
        apply(&mut self.seen, effect, self.seen_bytes, to);
        let changed = *effect != Effect::Nothing;
        self.seen_bytes = to;
        if to == len {
            self.seen_ops += 1;
            self.seen_bytes = 0;
        }
        changed
    }

    /// A completion of the send queue. `excused` says which failures have a reason.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn completed(
        &mut self,
        wc: &WorkCompletion,
        excused: impl FnOnce(&Posted, WcStatus) -> bool,
    ) -> Result<Accepted, String> {
        if self.failed.is_some() {
            let Some(next) = self.posted.get(self.settled) else {
                return Err(format!("{wc:?}: nothing was left to complete"));
            };
            if wc.wr_id != next.id || wc.status != WcStatus::WrFlush {
                return Err(format!("{wc:?}: expected request {} to be flushed", next.id));
            }
            self.settled += 1;
            return Ok(Accepted::Flushed);
        }
        let success = wc.status == WcStatus::Success;
        let mut index = self.settled;
        loop {
            let Some(p) = self.posted.get(index) else {
                return Err(format!("{wc:?}: no such request is in the queue"));
            };
            if p.id == wc.wr_id {
                break;
            }
            if p.signaled {
                return Err(format!("{wc:?}: request {} completes before it", p.id));
            }
            if p.fails.is_some() {
                return Err(format!("{wc:?}: request {} must fail before it", p.id));
            }
            index += 1;
        }
        let p = &self.posted[index];
        if success && !p.signaled {
            return Err(format!("{wc:?}: it was not signaled"));
        }
        let explained = match (success, p.fails) {
            (true, fails) => fails.is_none(),
            (false, fails) => fails == Some(wc.status) || excused(p, wc.status),
        };
        if !explained {
            let want = p.fails.unwrap_or_default();
            return Err(format!(
                "{wc:?}: expected {want:?}, and nothing that happened explains this"
            ));
        }
        self.settled = index + 1;
        if success {
            if wc.opcode != p.opcode {
                return Err(format!("{wc:?}: it was a {:?}", p.opcode));
            }
            let len = match &p.answer {
                Answer::Bytes { data, .. } => data.len(),
                Answer::Word(_) | Answer::Count => 8,
                Answer::Nothing => wc.byte_len as usize,
            };
            if wc.byte_len as usize != len {
                return Err(format!("{wc:?}: it asked for {len} bytes"));
            }
            self.confirm(index + 1);
            Ok(Accepted::Done(index))
        } else {
            self.failed = Some(index);
            self.confirm(index);
            Ok(Accepted::Failed(index))
        }
    }

    /// What failed and what was behind it has completed; the send queue works again. For services whose requests
    /// leave no trace here.
    pub fn go_on(&mut self) {
        (self.failed, self.cap) = (None, None);
    }

    /// Whether no completion of a success is to come.
    pub fn is_silent(&self) -> bool {
        self.posted[self.settled..].iter().all(|p| !p.signaled)
    }

    /// No completion will come any more: whatever is left, unsignaled, was done before the queue pair failed.
    pub fn settle_silent(&mut self) {
        if self.failed.is_none() && self.is_silent() {
            self.settled = self.posted.len();
            self.confirm(self.settled);
        }
    }

    /// What the READ at `index` has brought.
    ///
    /// # Errors
    /// Memory has never been like that.
    pub fn check_read(&self, index: usize, got: &[u8]) -> Result<(), String> {
        let Answer::Bytes { at, data } = &self.posted[index].answer else { return Ok(()) };
        if got == &data[..] {
            return Ok(());
        }
        let later = &self.posted[index + 1..self.end().max(index + 1)];
        let until = later.iter().position(|p| p.fence).unwrap_or(later.len());
        let mut state = data.clone();
        let mut open: Vec<usize> = (0..data.len()).step_by(self.mtu).collect();
        let end = |from: usize| (from + self.mtu).min(data.len());
        open.retain(|&from| got[from..end(from)] != state[from..end(from)]);
        for p in &later[..until] {
            let len = if let Effect::Bytes { data, .. } = &p.effect { data.len() } else { 1 };
            for from in (0..len).step_by(self.mtu) {
                apply_window(&mut state, *at, &p.effect, from, from + self.mtu);
                open.retain(|&from| got[from..end(from)] != state[from..end(from)]);
            }
        }
        match open.first() {
            None => Ok(()),
            Some(&from) => Err(format!(
                "READ {} of {} bytes from {at}: what came at {from} was never there",
                self.posted[index].id,
                data.len()
            )),
        }
    }

    /// A message arrived at the peer.
    ///
    /// # Errors
    /// It is not the one whose turn it is, or not as it was sent.
    pub fn message(&mut self, wc: &WorkCompletion, data: &[u8]) -> Result<(), String> {
        let index = self.messages.get(self.received).copied().filter(|&i| i < self.end());
        let Some(index) = index else {
            return Err(format!("{wc:?}: a message that was never sent, or a second time"));
        };
        let p = &self.posted[index];
        let Some(m) = &p.message else { return Ok(()) };
        let told = (wc.opcode, wc.byte_len as usize, wc.imm, wc.invalidated_rkey);
        let sent = (m.opcode, m.len, m.imm, m.invalidates);
        if told != sent {
            return Err(format!("{wc:?}: request {} sent {sent:?}", p.id));
        }
        if data != m.data {
            let at = data.iter().zip(&m.data).position(|(a, b)| a != b);
            return Err(format!("{wc:?}: request {} sent other bytes, from {at:?} on", p.id));
        }
        self.received += 1;
        self.confirm(index + 1);
        Ok(())
    }

    /// Messages that must have arrived, because they are acknowledged.
    pub fn acknowledged_messages(&self) -> usize {
        let done = self.failed.unwrap_or(self.settled);
        self.messages.partition_point(|&i| i < done)
    }

    /// Looks at the peer's memory.
    ///
    /// # Errors
    /// No number of packets leaves it like that.
    pub fn check_memory(&mut self, actual: &[u8]) -> Result<(), String> {
        if self.seen == actual {
            return Ok(());
        }
        let confirmed = (self.seen_ops, self.seen_bytes);
        let was = self.seen.clone();
        while self.seen_ops < self.end() {
            if self.step(self.mtu) && self.seen == actual {
                return Ok(());
            }
        }
        let at = was.iter().zip(actual).position(|(a, b)| a != b);
        Err(format!(
            "memory at the peer is as no request has left it: after {confirmed:?} of {} (request, bytes) it \
             differs at {at:?}",
            self.posted.len()
        ))
    }

    /// All is done: the peer's memory is exactly this.
    ///
    /// # Errors
    /// It is not.
    pub fn check_final(&mut self, actual: &[u8]) -> Result<(), String> {
        if self.failed.is_none() {
            self.confirm(self.posted.len());
        }
        self.check_memory(actual)
    }
}

fn word_of(memory: &[u8], at: usize) -> u64 {
    memory[at..].first_chunk().map_or(0, |b| u64::from_ne_bytes(*b))
}

/// Bytes `from..to` of an effect.
fn apply(memory: &mut [u8], effect: &Effect, from: usize, to: usize) {
    match effect {
        Effect::Nothing => {}
        Effect::Bytes { at, data } => {
            let to = to.min(data.len());
            memory[at + from..at + to].copy_from_slice(&data[from..to]);
        }
        Effect::Word { at, value } => {
            memory[*at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
    }
}

/// Bytes `from..to` of an effect, on a piece of memory that begins at `base`.
fn apply_window(piece: &mut [u8], base: usize, effect: &Effect, from: usize, to: usize) {
    let word;
    let (at, data) = match effect {
        Effect::Nothing => return,
        Effect::Bytes { at, data } => (at + from, &data[from..to.min(data.len())]),
        Effect::Word { at, value } => {
            word = value.to_ne_bytes();
            (*at, &word[..])
        }
    };
    for (i, &byte) in data.iter().enumerate() {
        if let Some(slot) = (at + i).checked_sub(base).and_then(|k| piece.get_mut(k)) {
            *slot = byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(id: u64, at: usize, data: &[u8]) -> Posted {
        Posted {
            id,
            opcode: WcOpcode::Write,
            signaled: true,
            fence: false,
            fails: None,
            effect: Effect::Bytes { at, data: data.to_vec() },
            answer: Answer::Nothing,
            message: None,
        }
    }

    fn send(id: u64, data: &[u8]) -> Posted {
        let message = Message {
            opcode: WcOpcode::Recv,
            data: data.to_vec(),
            len: data.len(),
            imm: None,
            invalidates: None,
        };
        Posted {
            opcode: WcOpcode::Send,
            effect: Effect::Nothing,
            message: Some(message),
            ..write(id, 0, &[])
        }
    }

    fn read(s: &Stream, id: u64, at: usize, len: usize) -> Posted {
        Posted {
            opcode: WcOpcode::Read,
            effect: Effect::Nothing,
            answer: Answer::Bytes { at, data: s.ahead(at, len).to_vec() },
            ..write(id, 0, &[])
        }
    }

    fn done(id: u64, opcode: WcOpcode) -> WorkCompletion {
        WorkCompletion { wr_id: id, opcode, ..WorkCompletion::default() }
    }

    fn failed(id: u64, status: WcStatus) -> WorkCompletion {
        WorkCompletion { wr_id: id, status, ..WorkCompletion::default() }
    }

    const NO: fn(&Posted, WcStatus) -> bool = |_, _| false;
    const YES: fn(&Posted, WcStatus) -> bool = |_, _| true;

    #[test]
    fn completions_come_in_order_and_once() {
        let mut s = Stream::new(4, vec![0; 16]);
        for id in 0..4 {
            s.post(Posted { signaled: id != 1, ..write(id, 0, &[1]) });
        }
        assert_eq!(s.completed(&done(0, WcOpcode::Write), NO), Ok(Accepted::Done(0)));
        for id in [0, 1, 3, 4] {
            assert!(s.completed(&done(id, WcOpcode::Write), NO).is_err(), "{id}");
        }
        assert_eq!(s.completed(&done(2, WcOpcode::Write), NO), Ok(Accepted::Done(2)));
        assert!(s.completed(&failed(3, WcStatus::RetryExc), NO).is_err());
        assert_eq!(s.completed(&failed(3, WcStatus::RetryExc), YES), Ok(Accepted::Failed(3)));
        assert_eq!(s.outstanding(), 0);
        assert!(s.completed(&failed(4, WcStatus::WrFlush), YES).is_err());
    }

    #[test]
    fn behind_a_failure_all_is_flushed_in_order() {
        let mut s = Stream::new(4, vec![0; 16]);
        s.post(Posted { fails: Some(WcStatus::RemAccess), ..write(0, 0, &[1]) });
        (1..3).for_each(|id| s.post(write(id, 0, &[1])));
        assert!(s.completed(&done(0, WcOpcode::Write), YES).is_err());
        assert!(s.completed(&failed(1, WcStatus::WrFlush), YES).is_err());
        let refused = failed(0, WcStatus::RemAccess);
        assert_eq!(s.completed(&refused, NO), Ok(Accepted::Failed(0)));
        assert!(s.completed(&failed(2, WcStatus::WrFlush), NO).is_err());
        assert_eq!(s.completed(&failed(1, WcStatus::WrFlush), NO), Ok(Accepted::Flushed));
        // Nothing of it was executed.
        assert!(s.check_memory(&[0; 16]).is_ok());
        assert!(s.check_memory(&[[1].as_slice(), &[0; 15]].concat()).is_err());
    }

    #[test]
    fn memory_goes_forward_packet_by_packet() {
        let mut s = Stream::new(4, vec![0; 8]);
        s.post(write(0, 0, &[1, 1, 1, 1, 1, 1]));
        s.post(write(1, 6, &[2, 2]));
        assert!(s.check_memory(&[1, 1, 1, 1, 0, 0, 0, 0]).is_ok());
        let mut back = Stream::new(4, vec![0; 8]);
        back.post(write(0, 0, &[1, 1, 1, 1, 1, 1]));
        assert!(back.check_memory(&[1, 1, 0, 0, 0, 0, 0, 0]).is_err(), "half a packet");
        assert!(s.check_memory(&[1, 1, 1, 1, 1, 1, 2, 2]).is_ok());
        assert!(s.check_memory(&[1, 1, 1, 1, 0, 0, 0, 0]).is_err(), "not back");
    }

    #[test]
    fn what_is_acknowledged_has_happened() {
        let mut s = Stream::new(4, vec![0; 4]);
        s.post(write(0, 0, &[1]));
        assert!(s.completed(&done(0, WcOpcode::Write), NO).is_ok());
        assert!(s.check_memory(&[0; 4]).is_err());
        let mut s = Stream::new(4, vec![0; 4]);
        s.post(write(0, 0, &[1]));
        s.post(send(1, b"x"));
        let wc = WorkCompletion { opcode: WcOpcode::Recv, byte_len: 1, ..done(7, WcOpcode::Recv) };
        assert!(s.message(&wc, b"y").is_err());
        assert!(s.message(&wc, b"x").is_ok());
        assert!(s.message(&wc, b"x").is_err(), "twice");
        assert!(s.check_memory(&[0; 4]).is_err(), "the WRITE before it must be there");
    }

    #[test]
    fn a_read_sees_its_turn_or_later_up_to_a_fence() {
        let mut s = Stream::new(2, vec![0; 4]);
        s.post(write(0, 0, &[1, 1, 1, 1]));
        s.post(read(&s, 1, 0, 4));
        s.post(write(2, 0, &[2, 2, 2, 2]));
        s.post(Posted { fence: true, ..write(3, 0, &[3, 3, 3, 3]) });
        for good in [[1, 1, 1, 1], [2, 2, 2, 2], [1, 1, 2, 2], [2, 2, 1, 1]] {
            assert!(s.check_read(1, &good).is_ok(), "{good:?}");
        }
        for bad in [[0, 0, 1, 1], [1, 2, 2, 2], [3, 3, 3, 3]] {
            assert!(s.check_read(1, &bad).is_err(), "{bad:?}");
        }
    }
}
