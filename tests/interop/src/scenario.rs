//! A cell: two connected queue pairs, the row's operation between them, and what must come of it.

use std::time::Duration;

use softroce::prelude::*;

use crate::Res;
use crate::end::{Address, Conn, Dest, Done, End, Lent, MARK, Op, Post, REMOTE};
use crate::matrix::{By, Cell, Fault, Row, deviation, link_faults};
use crate::relay::Relay;

/// Longer than anything takes that succeeds.
pub(crate) const LONG: Duration = Duration::from_secs(40);
/// How long something that must not come is waited for.
const SILENCE: Duration = Duration::from_millis(400);

/// Where the initiator's messages are.
const SOURCE: usize = 0x04_0000;
/// Where they arrive. Odd, so that no copy is of whole words.
const TARGET: usize = 0x20_0000 + 61;
const GUARD: usize = 61;
/// Words that atomics work on.
const WORDS: usize = 0x1000;
/// Where their results go.
const RESULTS: usize = 0x2000;
/// What stands in front of a datagram in its receive.
const GRH: usize = 40;

pub(crate) const QKEY: u32 = 0x1122_3344;

/// Two sides with a connection between them.
pub(crate) struct Bench<'a> {
    /// Who posts requests.
    pub(crate) a: &'a mut dyn End,
    /// Who executes them.
    pub(crate) b: &'a mut dyn End,
    pub(crate) relay: &'a Relay,
    pub(crate) cell: Cell,
    /// Numbers messages, and makes their bytes.
    seed: u64,
    a_qpn: u32,
    dest: Option<Dest>,
    group: Option<Gid>,
    /// How the initiator's last request ended.
    pub(crate) status: Option<u32>,
}

pub(crate) fn mtu(bytes: usize) -> Res<Mtu> {
    Mtu::from_bytes(bytes).ok_or_else(|| format!("no path MTU is {bytes}"))
}

/// Timers that emulation does not run out by itself.
pub(crate) fn patient(path_mtu: Mtu) -> Conn {
    Conn { mtu: path_mtu, timeout: 17, retries: 7, rnr_retries: 7, rnr_timer: 12, depth: 4 }
}

/// The outcome of a request that must succeed.
pub(crate) fn ok(who: &str, done: Option<Done>) -> Res<Done> {
    match done {
        Some(done) if done.status == 0 => Ok(done),
        Some(done) => Err(format!("{who}: request {} ends with status {}", done.id, done.status)),
        None => Err(format!("{who}: no completion comes")),
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Res<()> {
    if got == wanted { Ok(()) } else { Err(format!("{what}: {got:?}, wanted {wanted:?}")) }
}

impl<'a> Bench<'a> {
    /// Connects. PSNs begin with these, the initiator's first.
    pub(crate) fn connect(
        a: &'a mut dyn End,
        b: &'a mut dyn End,
        relay: &'a Relay,
        cell: Cell,
        psns: [u32; 2],
        conn: &Conn,
    ) -> Res<Self> {
        let (kind, v6) = (cell.row.kind(), cell.v6);
        let a_qpn = a.create(0, kind, false, v6)?;
        let b_qpn = b.create(0, kind, cell.row == Row::Srq, v6)?;
        let mut bench =
            Self { a, b, relay, cell, seed: 1, a_qpn, dest: None, group: None, status: None };
        let Self { a, b, .. } = &mut bench;
        if kind == QpType::Ud {
            a.activate(0, psns[0], QKEY)?;
            b.activate(0, psns[1], QKEY)?;
            if cell.row == Row::Multicast {
                let group: std::net::IpAddr = if v6 {
                    std::net::Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x77, 1).into()
                } else {
                    [239, 77, 1, 1].into()
                };
                b.join(0, group.into())?;
                let ah = a.address_handle(group.into(), v6)?;
                bench.dest = Some(Dest { ah, qpn: 0xff_ffff, qkey: QKEY });
                bench.group = Some(group.into());
            } else {
                let ah = a.address_handle(b.gid(v6), v6)?;
                bench.dest = Some(Dest { ah, qpn: b_qpn, qkey: QKEY });
            }
        } else {
            let at_a = Address { gid: a.gid(v6), qpn: a_qpn, psn: psns[0] };
            let at_b = Address { gid: b.gid(v6), qpn: b_qpn, psn: psns[1] };
            b.connect(0, kind, psns[1], &at_a, conn)?;
            a.connect(0, kind, psns[0], &at_b, conn)?;
        }
        Ok(bench)
    }

    fn stride(&self) -> usize {
        (self.cell.size + GRH + 2 * GUARD).next_multiple_of(4096) + 4096
    }

    fn source(&self, i: usize) -> usize {
        SOURCE + i * self.stride()
    }

    fn target(&self, i: usize) -> usize {
        TARGET + i * self.stride()
    }

    /// Runs `count` messages that are posted without waiting in between, and checks what has come of them.
    pub(crate) fn burst(&mut self, count: usize) -> Res<()> {
        match self.cell.row {
            Row::Cas | Row::Faa => self.atomics(count),
            Row::AtomicWrite => self.atomic_writes(count),
            Row::Read => self.reads(count, self.cell.size),
            Row::Flush => self.flushes(count),
            Row::Zero => {
                self.sends(count, 0, Row::Send)?;
                self.writes(count, 0, Row::Write, None)?;
                // One whose answer may be lost: see `deviation`.
                let fragile = self.cell.by == By::Us
                    && matches!(self.cell.fault, Fault::Loss | Fault::Reorder);
                if fragile { Ok(()) } else { self.reads(count, 0) }
            }
            Row::Write | Row::WriteImm => self.writes(count, self.cell.size, self.cell.row, None),
            Row::Window => self.window(count),
            Row::Send | Row::SendImm | Row::SendInv | Row::Srq => {
                self.sends(count, self.cell.size, self.cell.row)
            }
            Row::UcSend | Row::UcWrite | Row::UdSend | Row::UdImm | Row::Multicast => {
                self.unreliable(count)
            }
        }
    }

    fn post(&mut self, i: usize, op: Op, off: usize, len: usize, remote: Lent) -> Res<()> {
        let dest = self.dest;
        self.a.post(0, &Post { id: i as u64, op, off, len, remote, dest })
    }

    fn remote(&self, off: usize) -> Lent {
        let lent = self.b.lent();
        Lent { addr: lent.addr + off as u64, ..lent }
    }

    /// The initiator's next completion.
    fn next_sent(&mut self) -> Res<Done> {
        let done = self.a.sent(0, LONG)?;
        self.status = done.map(|done| done.status);
        ok(self.a.name(), done)
    }

    /// The initiator's completions, in order.
    fn all_sent(&mut self, count: usize, opcode: WcOpcode) -> Res<()> {
        for i in 0..count {
            let done = self.next_sent()?;
            equal("completion of the wrong request", done.id, i as u64)?;
            equal("opcode", done.opcode, opcode as u32)?;
        }
        Ok(())
    }

    fn prepare_target(&mut self, i: usize, len: usize) -> Res<()> {
        self.b.mark(self.target(i) - GUARD, len + 2 * GUARD)
    }

    fn sends(&mut self, count: usize, len: usize, row: Row) -> Res<()> {
        let seed = self.seed;
        let shared = row == Row::Srq;
        let mut keys = Vec::new();
        for i in 0..count {
            self.prepare_target(i, len)?;
            self.a.fill(self.source(i), len, seed + i as u64)?;
            if row == Row::SendInv {
                keys.push(self.b.bind(0, 2, self.target(i), len.max(8), REMOTE & !1)?.rkey);
            }
            self.b.recv(0, shared, i as u64, self.target(i), len)?;
        }
        for i in 0..count {
            let op = match row {
                Row::SendImm => Op::SendImm(0x1234_5600 + u32::try_from(i).unwrap_or(0)),
                Row::SendInv => {
                    Op::SendInv(keys.get(i).copied().ok_or("a window for each message")?)
                }
                _ => Op::Send,
            };
            self.post(i, op, self.source(i), len, Lent { addr: 0, rkey: 0 })?;
        }
        self.all_sent(count, WcOpcode::Send)?;
        for i in 0..count {
            let done = ok(self.b.name(), self.b.received(0, LONG)?)?;
            equal("receive of the wrong message", done.id, i as u64)?;
            equal("opcode of the receive", done.opcode, WcOpcode::Recv as u32)?;
            equal("length of the receive", done.len as usize, len)?;
            let imm = (row == Row::SendImm).then_some(0x1234_5600 + u32::try_from(i).unwrap_or(0));
            equal("immediate data", done.imm, imm)?;
            equal("invalidated key", done.inv, keys.get(i).copied())?;
            self.b.check(self.target(i), len, seed + i as u64, GUARD)?;
        }
        self.seed += count as u64;
        Ok(())
    }

    fn writes(&mut self, count: usize, len: usize, row: Row, through: Option<Lent>) -> Res<()> {
        let seed = self.seed;
        for i in 0..count {
            self.prepare_target(i, len)?;
            self.a.fill(self.source(i), len, seed + i as u64)?;
            if row == Row::WriteImm {
                self.b.recv(0, false, i as u64, 0, 0)?;
            }
        }
        for i in 0..count {
            let op = match row {
                Row::WriteImm => Op::WriteImm(0x8765_4300 + u32::try_from(i).unwrap_or(0)),
                _ => Op::Write,
            };
            let remote = self.remote(self.target(i));
            let remote = Lent { rkey: through.map_or(remote.rkey, |window| window.rkey), ..remote };
            self.post(i, op, self.source(i), len, remote)?;
        }
        self.all_sent(count, WcOpcode::Write)?;
        for i in 0..count {
            if row == Row::WriteImm {
                let done = ok(self.b.name(), self.b.received(0, LONG)?)?;
                equal("receive of the wrong message", done.id, i as u64)?;
                equal("opcode of the receive", done.opcode, WcOpcode::RecvWriteImm as u32)?;
                equal("length of the receive", done.len as usize, len)?;
                let imm = 0x8765_4300 + u32::try_from(i).unwrap_or(0);
                equal("immediate data", done.imm, Some(imm))?;
            }
            self.b.check(self.target(i), len, seed + i as u64, GUARD)?;
        }
        self.seed += count as u64;
        Ok(())
    }

    fn reads(&mut self, count: usize, len: usize) -> Res<()> {
        let seed = self.seed;
        for i in 0..count {
            self.b.fill(self.source(i), len, seed + i as u64)?;
            self.a.mark(self.target(i) - GUARD, len + 2 * GUARD)?;
        }
        for i in 0..count {
            let remote = self.remote(self.source(i));
            self.post(i, Op::Read, self.target(i), len, remote)?;
        }
        self.all_sent(count, WcOpcode::Read)?;
        for i in 0..count {
            self.a.check(self.target(i), len, seed + i as u64, GUARD)?;
        }
        self.seed += count as u64;
        Ok(())
    }

    /// Writes through a window, and reads the first message back through it. Its type depends on the IP version, so that
    /// both have a turn.
    fn window(&mut self, count: usize) -> Res<()> {
        let kind = if self.cell.v6 { 1 } else { 2 };
        let (from, len) = (self.target(0), self.cell.size);
        let range = self.target(count - 1) + len.max(1) - from;
        let window = self.b.bind(0, kind, from, range, REMOTE & !1)?;
        let seed = self.seed;
        self.writes(count, len, Row::Window, Some(window))?;
        self.a.mark(self.target(0) - GUARD, len + 2 * GUARD)?;
        self.post(
            0,
            Op::Read,
            self.target(0),
            len,
            Lent { addr: self.b.lent().addr + from as u64, ..window },
        )?;
        self.all_sent(1, WcOpcode::Read)?;
        self.a.check(self.target(0), len, seed, GUARD)
    }

    /// All on one word, so that each result tells what was executed before it, and how often.
    fn atomics(&mut self, count: usize) -> Res<()> {
        let add = 0x0101_0101_0101_0101_u64;
        let start = self.seed << 32;
        self.b.set_word(WORDS, start)?;
        let mut value = start;
        let mut wanted = Vec::new();
        for i in 0..count {
            self.a.set_word(RESULTS + 8 * i, 0)?;
            let op = if self.cell.row == Row::Faa {
                Op::Faa { add }
            } else {
                // Every third compares with something else, and changes nothing.
                let expect = if i % 3 == 2 { !value } else { value };
                Op::Cas { expect, new: value.wrapping_add(add) }
            };
            wanted.push(value);
            if !(self.cell.row == Row::Cas && i % 3 == 2) {
                value = value.wrapping_add(add);
            }
            let remote = self.remote(WORDS);
            self.post(i, op, RESULTS + 8 * i, 8, remote)?;
        }
        let opcode =
            if self.cell.row == Row::Faa { WcOpcode::FetchAdd } else { WcOpcode::CompSwap };
        self.all_sent(count, opcode)?;
        for (i, wanted) in wanted.into_iter().enumerate() {
            let got = self.a.word(RESULTS + 8 * i)?;
            equal("the value before the atomic", got, wanted)?;
        }
        let left = self.b.word(WORDS)?;
        equal("the word after the atomics", left, value)?;
        self.seed += 1;
        Ok(())
    }

    fn atomic_writes(&mut self, count: usize) -> Res<()> {
        let word = |i: usize, seed: u64| (seed << 32 | i as u64) ^ 0x5a5a_0000_0000_a5a5;
        for i in 0..count {
            self.b.set_word(WORDS + 8 * i, 0)?;
            self.a.set_word(RESULTS + 8 * i, word(i, self.seed))?;
        }
        for i in 0..count {
            let remote = self.remote(WORDS + 8 * i);
            self.post(i, Op::AtomicWrite, RESULTS + 8 * i, 8, remote)?;
        }
        self.all_sent(count, WcOpcode::AtomicWrite)?;
        for i in 0..count {
            let got = self.b.word(WORDS + 8 * i)?;
            equal("the word that was written", got, word(i, self.seed))?;
        }
        self.seed += 1;
        Ok(())
    }

    /// Each a WRITE and a FLUSH of it.
    fn flushes(&mut self, count: usize) -> Res<()> {
        let (seed, len) = (self.seed, self.cell.size);
        for i in 0..count {
            self.prepare_target(i, len)?;
            self.a.fill(self.source(i), len, seed + i as u64)?;
        }
        for i in 0..count {
            let remote = self.remote(self.target(i));
            self.post(2 * i, Op::Write, self.source(i), len, remote)?;
            let flush = Op::Flush(u32::try_from(len).unwrap_or(u32::MAX));
            self.post(2 * i + 1, flush, 0, 0, remote)?;
        }
        for i in 0..2 * count {
            let done = self.next_sent()?;
            equal("completion of the wrong request", done.id, i as u64)?;
            let opcode = if i % 2 == 0 { WcOpcode::Write } else { WcOpcode::Flush };
            equal("opcode", done.opcode, opcode as u32)?;
        }
        for i in 0..count {
            self.b.check(self.target(i), len, seed + i as u64, GUARD)?;
        }
        self.seed += count as u64;
        Ok(())
    }

    /// Messages that may be lost: those that arrive are whole, and in order; as many are missing as requests were lost.
    fn unreliable(&mut self, count: usize) -> Res<()> {
        let (seed, len, row) = (self.seed, self.cell.size, self.cell.row);
        let datagrams = row.kind() == QpType::Ud;
        let front = if datagrams { GRH } else { 0 };
        let before = self.relay.stats();
        // WRITEs go without immediate data, except for the last message, which tells that all have gone by.
        let writes = row == Row::UcWrite;
        for i in 0..count {
            self.prepare_target(i, front + len)?;
            self.a.fill(self.source(i), len, seed + i as u64)?;
            self.b.recv(0, false, i as u64, self.target(i), front + len)?;
        }
        for i in 0..count {
            let op = match row {
                Row::UcWrite => Op::WriteImm(u32::try_from(i).unwrap_or(0)),
                Row::UdSend => Op::Send,
                _ => Op::SendImm(u32::try_from(i).unwrap_or(0)),
            };
            let remote = self.remote(self.target(i));
            self.post(i, op, self.source(i), len, remote)?;
        }
        self.all_sent(count, if writes { WcOpcode::Write } else { WcOpcode::Send })?;
        let clean = matches!(self.cell.fault, Fault::Clean);
        let mut arrived = Vec::new();
        loop {
            if arrived.len() == count {
                break;
            }
            let limit = if clean { LONG } else { SILENCE };
            let Some(done) = self.b.received(0, limit)? else { break };
            let done = ok(self.b.name(), Some(done))?;
            // Receives are used in order, whichever messages are missing; a WRITE goes where it says.
            equal("receive out of order", done.id, arrived.len() as u64)?;
            equal("length of the receive", done.len as usize, front + len)?;
            let place = usize::try_from(done.id).unwrap_or(0);
            let message = match done.imm {
                Some(imm) => imm as usize,
                // Without bytes they are all alike.
                None if len == 0 => place,
                None => self.recognise(place, front, seed, count)?,
            };
            if message >= count || arrived.contains(&message) {
                return Err(format!("message {message} arrives, once more or never sent"));
            }
            let at = if writes { self.target(message) } else { self.target(place) };
            self.b.check(at + front, len, seed + message as u64, 0)?;
            let guards = self.b.bytes(at - GUARD, GUARD)?;
            equal("bytes before the target", guards, vec![MARK; GUARD])?;
            let guards = self.b.bytes(at + front + len, GUARD)?;
            equal("bytes behind the target", guards, vec![MARK; GUARD])?;
            if datagrams {
                equal("a datagram has a header in front", done.grh, true)?;
                equal("sender", done.src_qpn, self.a_qpn)?;
                self.check_grh(place)?;
            }
            arrived.push(message);
        }
        self.seed += count as u64;
        // Where something is missing, receives are left, and nothing more is sent.
        let after = self.relay.stats();
        let lost = usize::try_from(after.dropped - before.dropped).unwrap_or(usize::MAX);
        let overtaken = usize::try_from(after.overtaken - before.overtaken).unwrap_or(usize::MAX);
        let missing = count - arrived.len();
        match (datagrams, self.cell.fault) {
            (_, Fault::Clean) => equal("messages that arrive", arrived.len(), count),
            (true, Fault::Reorder) => equal("datagrams that arrive", arrived.len(), count),
            (true, _) => equal("datagrams that are missing", missing, lost),
            // After a gap the receiver of rdma_rxe does without more than the standard allows.
            (false, _) if self.cell.by == By::Us && missing > 0 && arrived.is_sorted() => Ok(()),
            (false, _) if missing > lost.saturating_add(overtaken.saturating_mul(2)) => {
                Err(format!(
                    "{missing} messages are missing, {lost} packets were lost, {overtaken} overtaken"
                ))
            }
            (false, _) if missing == 0 && lost + overtaken > 0 => {
                Err("packets are missing, and all messages have arrived".into())
            }
            _ if !arrived.is_sorted() => Err(format!("messages arrive out of order: {arrived:?}")),
            _ => Ok(()),
        }
    }

    /// Which message this receive holds.
    fn recognise(&mut self, place: usize, front: usize, seed: u64, count: usize) -> Res<usize> {
        let at = self.target(place) + front;
        let len = self.cell.size;
        let found = (0..count).find(|&i| self.b.check(at, len, seed + i as u64, 0).is_ok());
        found.ok_or_else(|| "a datagram arrives that nobody has sent".into())
    }

    fn check_grh(&mut self, place: usize) -> Res<()> {
        let grh = self.b.bytes(self.target(place), GRH)?;
        let group = self.group;
        let (from, to) =
            (self.a.gid(self.cell.v6), group.unwrap_or_else(|| self.b.gid(self.cell.v6)));
        let (src, dst) = if self.cell.v6 {
            (grh[8..24].to_vec(), grh[24..40].to_vec())
        } else {
            // The IPv4 header stands in the last 20 bytes.
            (grh[32..36].to_vec(), grh[36..40].to_vec())
        };
        let part = |gid: Gid| if self.cell.v6 { gid.0.to_vec() } else { gid.0[12..].to_vec() };
        equal("source in the header of the datagram", src, part(from))?;
        equal("destination in the header of the datagram", dst, part(to))
    }
}

/// Retries of a requester, whatever the reason. (Those after a NAK are in the first number with us, in the second with
/// rdma_rxe.)
fn retries(end: &mut dyn End) -> Res<u64> {
    Ok(end.counter("completer_retry_err")? + end.counter("rcvd_seq_err")?)
}

/// What a cell has cost.
pub(crate) struct Cost {
    pub(crate) messages: usize,
}

/// Runs one cell; `old` is a kernel before 6.2.
pub(crate) fn run(
    (us, kernel): (&mut dyn End, &mut dyn End),
    relay: &Relay,
    cell: Cell,
    seed: u64,
    old: bool,
) -> Res<Cost> {
    relay.begin(cell.mtu);
    us.reset()?;
    kernel.reset()?;
    let (a, b): (&mut dyn End, &mut dyn End) = match cell.by {
        By::Us => (us, kernel),
        By::Kernel => (kernel, us),
    };
    let path_mtu = mtu(cell.mtu)?;
    let psn = |n: u64| {
        u32::try_from(seed.wrapping_mul(0x9e37_79b9).wrapping_add(n * 0x1_0f0f) & 0xff_ffff)
            .unwrap_or(0)
    };
    let deviation = deviation(&cell, old);
    let mut conn = patient(path_mtu);
    if deviation.is_some() {
        // It is waited for in vain.
        conn.retries = 2;
    }
    let mut bench = Bench::connect(a, b, relay, cell, [psn(1), psn(2)], &conn)?;
    let reliable = cell.row.kind() == QpType::Rc;
    let before = if cell.fault == Fault::Clean { 0 } else { retries(bench.a)? };
    let room = 0x1c_0000 / bench.stride();
    let mut messages = 0;
    let mut burst = |bench: &mut Bench<'_>, count: usize| {
        messages += count;
        bench.burst(count)
    };
    match cell.fault {
        Fault::Clean => {
            burst(&mut bench, room.clamp(1, 3))?;
        }
        Fault::Loss | Fault::Reorder => {
            relay.set(link_faults(&cell, seed | 1));
            // Until it has happened.
            for turn in 0.. {
                burst(&mut bench, room.clamp(1, 6))?;
                let stats = relay.stats();
                let happened =
                    if cell.fault == Fault::Loss { stats.dropped } else { stats.overtaken };
                let noticed = !reliable || stats.again > 0;
                if happened > 0 && noticed {
                    break;
                }
                if turn > 200 {
                    return Err(format!(
                        "{happened} faults in {turn} rounds, {} packets sent again",
                        stats.again
                    ));
                }
            }
        }
        _ => {
            relay.set(link_faults(&cell, seed));
            let result = burst(&mut bench, if reliable { 1 } else { room.clamp(1, 3) });
            if relay.pending() > 0 {
                result?;
                return Err("the packet that was to be lost never came".into());
            }
            if let Some((status, why)) = deviation {
                if result.is_ok() || bench.status != Some(status) {
                    return Err(format!(
                        "ends with {:?}, wanted {status}: {why}: {result:?}",
                        bench.status
                    ));
                }
                return Ok(Cost { messages });
            }
            result?;
        }
    }
    let stats = relay.stats();
    if cell.fault != Fault::Clean && reliable {
        relay.set(crate::relay::Faults::default());
        burst(&mut bench, 1)?;
    }
    if stats.bad_icrc > 0 {
        return Err(format!("{} packets with a wrong ICRC", stats.bad_icrc));
    }
    if cell.fault == Fault::Clean {
        equal("packets lost on a good link", stats.dropped, 0)?;
    } else if reliable {
        // What was lost has been sent again, and not by chance: somebody has asked, or waited in vain.
        let retries = retries(bench.a)? - before;
        if stats.again == 0 || retries == 0 {
            return Err(format!("{} packets sent again, {retries} retries counted", stats.again));
        }
    }
    Ok(Cost { messages })
}
