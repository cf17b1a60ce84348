//! Draws a plan from random numbers.

use rand_chacha::ChaCha8Rng;

use super::plan::{
    BAD, Conn, Datagram, End, Fault, KINDS, Key, Kind, Op, QKEYS, SOURCE, Service, Shared, Station,
    TOO_LONG, To, WORDS, What,
};
use crate::fabric::{Action, Class, HostId, Link, Rule, When};
use crate::seed::{below, chance};
use crate::time::Duration;
use crate::wire::grh::Grh;
use crate::wire::num::Mtu;

/// Bytes that an unreliable end sends about: nothing slows it down, and others share the queues that it fills.
const UNPACED: usize = 60_000;

/// Random choices.
pub(super) struct Draw(pub(super) ChaCha8Rng);

#[expect(clippy::cast_possible_truncation, reason = "numbers below the one given")]
impl Draw {
    pub(super) fn below(&mut self, n: usize) -> usize {
        below(&mut self.0, n as u64) as usize
    }

    fn range(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to + 1 - from)
    }

    pub(super) fn chance(&mut self, p: f64) -> bool {
        chance(&mut self.0, p)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn micros(&mut self, from: usize, to: usize) -> Duration {
        Duration::from_micros(self.range(from, to) as u64)
    }

    pub(super) fn link(&mut self) -> Link {
        Link {
            delay: self.micros(0, 1) + self.micros(0, 12),
            bits_per_s: self.pick(&[10, 25, 100, 100, 400]) * 1_000_000_000,
            mtu: self.pick(&[1500, 9000, 9000, 4200]),
            queue: self.pick(&[1 << 20, 4 << 20, 4 << 20]),
            ..Link::default()
        }
    }

    /// Small ones, so that queue pairs must wait for each other.
    pub(super) fn window(&mut self) -> Option<u32> {
        let small = self.range(6000, 46_000) as u32;
        self.chance(0.4).then_some(small)
    }

    pub(super) fn conn(&mut self, hosts: usize, calm: bool) -> Conn {
        let a = self.below(hosts);
        // Now and then a host talks to itself.
        let b = if self.chance(0.05) { a } else { (a + 1 + self.below(hosts - 1)) % hosts };
        let service = if self.chance(0.25) { Service::Uc } else { Service::Rc };
        let mtu = self.pick(&[Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B1024, Mtu::B4096]);
        let max_len = match self.below(4) {
            0 => 64,
            1 => mtu.bytes() + 1,
            2 => 4 * mtu.bytes() + 100,
            _ if service == Service::Uc => 8 * mtu.bytes(),
            _ => 20_000.min(20 * mtu.bytes()),
        };
        let sends = self.pick(&[2, 4, 8, 16, 64]);
        let receives = self.pick(&[1, 2, 8, 32]);
        let n = match service {
            Service::Uc => (2 * UNPACED / max_len).clamp(4, 300),
            Service::Rc if max_len > 2000 => 100,
            Service::Rc => 300,
        };
        let signals = self.pick(&[0.2, 0.6, 1.0]);
        let fails = self.chance(0.25);
        let mut ends =
            [(); 2].map(|()| self.end(service, n, max_len, [sends, receives], signals, fails));
        if service == Service::Uc {
            for end in &mut ends {
                end.gap += Duration::from_micros(2);
            }
        }
        Conn {
            service,
            hosts: [a, b],
            shared: [self.chance(0.5), self.chance(0.5)],
            v6: self.chance(0.3),
            type1: self.chance(0.3),
            mtu,
            timeout: if calm { 11 } else { self.pick(&[7, 8, 9, 10]) as u8 },
            retry_cnt: self.pick(&[7, 7, 7, 3, 1]),
            rnr_retry: self.pick(&[7, 7, 7, 3]),
            min_rnr_timer: self.pick(&[1, 4, 7, 10, 12]),
            rd_atomic: self.pick(&[1, 2, 4, 16]),
            // By what was drawn already: the plans of seeds that somebody has noted stay what they are.
            selective: service == Service::Rc && matches!(sends, 4 | 16),
            sends,
            receives,
            max_len,
            target: WORDS + max_len.max(256).next_multiple_of(8) + self.below(3) * 1000,
            lives: if service == Service::Uc { 0 } else { self.pick(&[0, 1, 2]) },
            ends,
        }
    }

    /// The shared receive queues. Connections to a host without one have their own.
    pub(super) fn shared(
        &mut self,
        hosts: usize,
        conns: &mut [Conn],
        stations: &[Station],
    ) -> Vec<Option<Shared>> {
        let mut all = Vec::with_capacity(hosts);
        for host in 0..hosts {
            let has = self.chance(0.4);
            let (mut room, mut holders) = (0, 0);
            for conn in &mut *conns {
                for end in (0..2).filter(|&end| conn.hosts[end] == host) {
                    conn.shared[end] &= has;
                    if conn.shared[end] {
                        room = room.max(conn.max_len);
                        // It keeps a receive of a message that broke off until the next one comes.
                        holders += u32::from(conn.service == Service::Uc);
                    }
                }
            }
            let datagrams = stations.iter().filter(|s| s.shared && s.host == host);
            room = datagrams.map(|s| s.room).max().unwrap_or(0).max(room);
            let low = holders + self.pick(&[0, 1, 4]);
            let depth = low + self.pick(&[1, 2, 8, 32]);
            let shared = Shared {
                depth,
                room,
                low,
                batch: self.pick(&[1, 4, 64]),
                gap: Duration::from_micros(self.pick(&[0, 5, 30])),
                limit: if self.chance(0.7) {
                    1 + below(&mut self.0, depth.into()) as u32
                } else {
                    0
                },
            };
            all.push((has && room > 0).then_some(shared));
        }
        all
    }

    pub(super) fn stations(&mut self, hosts: usize) -> Vec<Station> {
        let n = self.pick(&[0, 0, 0, 2, 3, 5]);
        (0..n).map(|_| self.station(hosts, n)).collect()
    }

    fn station(&mut self, hosts: usize, stations: usize) -> Station {
        let longest = self.pick(&[16, 200, 1000]);
        let n = if self.chance(0.2) { 0 } else { 1 + self.below(UNPACED / longest.max(500)) };
        let sends = self.pick(&[2, 8, 32]);
        let receives = self.pick(&[1, 4, 32, 256]);
        let (key, signals) = (self.below(QKEYS.len()), self.pick(&[0.2, 1.0]));
        let room = if self.chance(0.8) { 1000 } else { 100 };
        let mut silent = 0;
        let mut datagrams = Vec::with_capacity(n);
        for i in 0..n {
            let mut datagram = self.datagram(longest, stations);
            datagram.signaled = self.chance(signals) || silent + 1 >= sends / 2 || i + 1 == n;
            silent = if datagram.signaled { 0 } else { silent + 1 };
            datagrams.push(datagram);
        }
        Station {
            host: self.below(hosts),
            v6: self.chance(0.3),
            key,
            groups: [self.chance(0.5), self.chance(0.5)],
            traffic_class: self.pick(&[0, 0, 0x68]),
            shared: self.chance(0.3),
            sends,
            receives,
            room: Grh::LEN + room,
            low: self.below(receives as usize) as u32,
            datagrams,
            batch: self.pick(&[1, 3, 16]),
            gap: Duration::from_micros(self.pick(&[2, 5, 40])),
        }
    }

    fn datagram(&mut self, longest: usize, stations: usize) -> Datagram {
        let to = match self.chance(0.25) {
            true => To::Group(self.below(2)),
            false => To::Station(self.below(stations)),
        };
        let len = match self.below(100) {
            0 => TOO_LONG,
            1..10 => 0,
            10..30 => longest,
            _ => self.below(longest + 1),
        };
        Datagram {
            to,
            key: if self.chance(0.2) { Key::Own } else { Key::Number(self.below(QKEYS.len())) },
            len,
            src: self.below(SOURCE),
            pieces: self.pick(&[1, 1, 2, 3]),
            imm: self.chance(0.4).then_some(below(&mut self.0, 1 << 32) as u32),
            signaled: true,
            inline: len <= 64 && self.chance(0.4),
        }
    }

    fn end(
        &mut self,
        service: Service,
        most: usize,
        max_len: usize,
        [sends, receives]: [u32; 2],
        signals: f64,
        fails: bool,
    ) -> End {
        let n = if self.chance(0.1) { 0 } else { 1 + self.below(most) };
        let mut silent = 0;
        let mut ops = Vec::with_capacity(n);
        for i in 0..n {
            let mut op = self.op(service, max_len);
            if fails && self.chance(1.5 / n as f64) {
                op.kind = Kind::Bad(self.pick(BAD));
            }
            op.signaled = self.chance(signals) || silent + 1 >= sends / 2 || i + 1 == n;
            silent = if op.signaled { 0 } else { silent + 1 };
            ops.push(op);
        }
        let gap = self.pick(&[0, 0, 5, 40]);
        let low = self.below(receives as usize) as u32;
        End { ops, batch: self.pick(&[1, 3, 16]), gap: Duration::from_micros(gap), low }
    }

    fn op(&mut self, service: Service, max_len: usize) -> Op {
        let total = KINDS.iter().map(|r| r.weight(service)).sum();
        let mut at = below(&mut self.0, total);
        let row = KINDS.iter().find(|r| {
            let weight = r.weight(service);
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        });
        let len = match self.below(8) {
            0 => 0,
            1 | 2 => self.range(1, 16),
            3 => max_len,
            _ => self.below(max_len + 1),
        };
        Op {
            kind: row.map_or(Kind::Send, |r| r.kind),
            len,
            at: below(&mut self.0, u64::MAX),
            src: self.below(SOURCE),
            pieces: self.pick(&[1, 1, 2, 3]),
            value: below(&mut self.0, u64::MAX),
            signaled: true,
            fence: self.chance(0.15),
            inline: len <= 64 && self.chance(0.4),
            window: self.chance(0.6),
        }
    }

    pub(super) fn faults(
        &mut self,
        hosts: usize,
        conns: &[Conn],
        stations: usize,
        calm: bool,
    ) -> Vec<Fault> {
        let n = if calm { self.below(3) } else { 1 + self.below(6) };
        let mild = self.chance(0.5);
        let mut faults: Vec<_> =
            (0..n).map(|_| self.fault(hosts, conns.len(), calm, mild)).collect();
        if stations > 0 && self.chance(0.3) {
            let from = self.micros(0, 200);
            let what = What::Deaf { station: self.below(stations) };
            faults.push(Fault { from, until: from + self.micros(5, 400), what });
        }
        let ends = |(conn, c): (usize, &Conn)| {
            let shared = c.shared;
            (0..2).filter(move |&end| shared[end]).map(move |end| What::Error { conn, end })
        };
        let sharers: Vec<What> = conns.iter().enumerate().flat_map(ends).collect();
        // Fails in the middle of a message that holds a receive: its end has not come for a while.
        if !calm && !sharers.is_empty() && self.chance(0.3) {
            use crate::wire::opcode::{Operation, Position};
            let (from, at) = (self.micros(0, 200), self.micros(5, 100));
            let ends = Class::Part(Operation::Send, Position::Last);
            let what = What::Rule(Rule::new(ends, Action::Drop));
            faults.push(Fault { from, until: from + at, what });
            let what = self.pick(&sharers);
            faults.push(Fault { from: from + at, until: from + at, what });
        }
        faults.sort_by_key(|f| f.from);
        faults
    }

    fn fault(&mut self, hosts: usize, conns: usize, calm: bool, mild: bool) -> Fault {
        let from = self.micros(0, 400);
        let long = if self.chance(0.3) { 4000 } else { 400 };
        let until = from + self.micros(5, long);
        let (host, conn, end) = (self.below(hosts), self.below(conns), self.below(2));
        let choice = if calm { 14 + self.below(6) } else { self.below(25) };
        let what = match choice {
            0..7 => self.weather(host, mild),
            7..12 if !mild => self.rule(hosts),
            7..12 => self.weather(host, mild),
            12 if !mild => What::Down { host },
            12..17 => What::NoReceives { conn, end },
            17..19 => What::NoPolls { conn, end },
            19..21 => What::Drain { conn, end },
            21 => What::Error { conn, end },
            22 => What::Deregister { conn, end },
            23 => What::Death { host },
            _ => self.weather(host, mild),
        };
        Fault { from, until, what }
    }

    fn weather(&mut self, host: usize, mild: bool) -> What {
        let most = if mild { 0.015 } else { 0.3 };
        let mut some = |p: f64| match chance(&mut self.0, 0.5) {
            true => p * below(&mut self.0, 1000) as f64 / 1000.0,
            false => 0.0,
        };
        let (loss, corrupt) = (some(most), some(most));
        let (reorder, duplicate) = (some(0.2), some(0.3));
        let (jitter, delay) = match self.below(4) {
            0 => (self.micros(1, 100), Duration::ZERO),
            1 => (Duration::ZERO, self.micros(1, if mild { 100 } else { 3000 })),
            _ => (Duration::ZERO, Duration::ZERO),
        };
        What::Weather { host, loss, reorder, duplicate, corrupt, jitter, delay }
    }

    fn rule(&mut self, hosts: usize) -> What {
        use crate::wire::opcode::{Operation as O, Position as P};
        let class = self.pick(&[
            Class::Any,
            Class::Request,
            Class::Response,
            Class::Ack,
            Class::Nak,
            Class::SequenceNak,
            Class::RnrNak,
            Class::Operation(O::Send),
            Class::Operation(O::Write),
            Class::Operation(O::Read),
            Class::Operation(O::ReadResponse),
            Class::Operation(O::FetchAdd),
            Class::Operation(O::AtomicAcknowledge),
            Class::Operation(O::AtomicWrite),
            Class::Operation(O::Flush),
            Class::Part(O::ReadResponse, P::First),
            Class::Part(O::ReadResponse, P::Last),
            Class::Part(O::Send, P::Last),
            Class::Part(O::Write, P::Last),
        ]);
        let late = self.micros(1, 2000);
        let action = self.pick(&[
            Action::Drop,
            Action::Drop,
            Action::Drop,
            Action::Duplicate,
            Action::Corrupt,
            Action::Delay(late),
        ]);
        let n = 1 + self.below(8) as u64;
        let p = [0.05, 0.2, 0.5][self.below(3)];
        let when = self.pick(&[When::First(n), When::Nth(n), When::Every(n + 1), When::Chance(p)]);
        let mut rule = Rule::new(class, action).when(when);
        if self.chance(0.5) {
            rule = rule.to(HostId(self.below(hosts) as u32));
        }
        What::Rule(rule)
    }
}
