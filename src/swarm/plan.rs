//! What a run does: drawn from the seed before anything happens, so that a part of it can be left out without
//! changing the rest.

use rand_chacha::ChaCha8Rng;

use crate::fabric::{Action, Class, HostId, Link, Rule, When};
use crate::seed::{Seeds, below, chance};
use crate::time::Duration;
use crate::wire::num::Mtu;

/// A kind of request. [`KINDS`] says how often each is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// SEND that invalidates the peer's window.
    SendInv,
    /// WRITE.
    Write,
    /// WRITE with immediate data.
    WriteImm,
    /// READ.
    Read,
    /// Compare and swap on a word of one's own.
    CompareSwap,
    /// Fetch and add on a word of one's own.
    FetchAdd,
    /// Fetch and add on a word that all connections to that host share.
    Count,
    /// Binds the own window, for the peer.
    BindMw,
    /// Invalidates the own window.
    LocalInv,
    /// A request that must fail.
    Bad(Bad),
}

/// Why a request must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// A key that nobody has.
    Key,
    /// A WRITE whose last byte is one beyond the region.
    WriteBeyond,
    /// A READ whose last byte is one beyond the region.
    ReadBeyond,
    /// A WRITE whose last byte is one beyond the window.
    WindowBeyond,
    /// A WRITE into memory that is lent for reading.
    Right,
    /// An atomic on an address that is no multiple of 8.
    Misaligned,
    /// A SEND longer than the receive.
    TooLong,
    /// A WRITE through a window that is not bound any more.
    DeadWindow,
    /// A local buffer whose region is gone.
    Local,
}

/// A row of the table of requests.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What.
    pub kind: Kind,
    /// How often, relative to the others.
    pub weight: u64,
}

const fn row(kind: Kind, weight: u64) -> Row {
    Row { kind, weight }
}

/// The requests that a connection draws from.
pub const KINDS: &[Row] = &[
    row(Kind::Send, 12),
    row(Kind::SendImm, 8),
    row(Kind::SendInv, 6),
    row(Kind::Write, 24),
    row(Kind::WriteImm, 8),
    row(Kind::Read, 18),
    row(Kind::CompareSwap, 5),
    row(Kind::FetchAdd, 7),
    row(Kind::Count, 5),
    row(Kind::BindMw, 8),
    row(Kind::LocalInv, 3),
];

/// The requests that end a connection.
pub const BAD: &[Bad] = &[
    Bad::Key,
    Bad::WriteBeyond,
    Bad::ReadBeyond,
    Bad::WindowBeyond,
    Bad::Right,
    Bad::Misaligned,
    Bad::TooLong,
    Bad::DeadWindow,
    Bad::Local,
];

/// Bytes of a host's source pattern, which all messages are cut from.
pub const SOURCE: usize = 64 << 10;
/// Bytes at the end of a target that atomics use.
pub const WORDS: usize = 64;

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// What.
    pub kind: Kind,
    /// Bytes of the message.
    pub len: usize,
    /// Where in the target, before it is fitted in.
    pub at: u64,
    /// Where in the source.
    pub src: usize,
    /// Pieces of local memory.
    pub pieces: usize,
    /// Operand of an atomic, or immediate data.
    pub value: u64,
    /// Makes a completion on success.
    pub signaled: bool,
    /// Waits for earlier READs and atomics.
    pub fence: bool,
    /// The bytes are copied when posting.
    pub inline: bool,
    /// By the window instead of the region, if there is one.
    pub window: bool,
}

/// How one end of a connection behaves.
#[derive(Clone, Debug)]
pub struct End {
    /// Its requests, in order.
    pub ops: Vec<Op>,
    /// Requests posted with one call, at most.
    pub batch: usize,
    /// Time between two calls.
    pub gap: Duration,
    /// Receives are posted anew when so few are left.
    pub low: u32,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Conn {
    /// Its two hosts, which may be one.
    pub hosts: [usize; 2],
    /// By IPv6.
    pub v6: bool,
    /// Path MTU, if the link has it.
    pub mtu: Mtu,
    /// Code of the ACK timeout.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// Retries for a receiver that is not ready; 7 is for ever.
    pub rnr_retry: u8,
    /// Code of the wait that a receiver asks for.
    pub min_rnr_timer: u8,
    /// READs and atomics at a time.
    pub rd_atomic: u8,
    /// Slots of the send queues.
    pub sends: u32,
    /// Slots of the receive queues.
    pub receives: u32,
    /// Longest message.
    pub max_len: usize,
    /// Bytes of each target.
    pub target: usize,
    /// How often it is connected anew after it has failed.
    pub lives: u32,
    /// Both ends.
    pub ends: [End; 2],
}

/// A fault, from one moment to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// When it begins.
    pub from: Duration,
    /// When it ends, if it is one that ends.
    pub until: Duration,
    /// What.
    pub what: What,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// A link loses, holds back, doubles, damages, or takes longer.
    Weather {
        /// Whose.
        host: usize,
        /// Probability of each.
        loss: f64,
        /// Probability of each.
        reorder: f64,
        /// Probability of each.
        duplicate: f64,
        /// Probability of each.
        corrupt: f64,
        /// At most so much more delay, at random.
        jitter: Duration,
        /// So much more delay.
        delay: Duration,
    },
    /// Some packets of a kind are dropped, doubled, damaged or held back.
    Rule(Rule),
    /// A cable is pulled.
    Down {
        /// Whose.
        host: usize,
    },
    /// An end posts no receives.
    NoReceives {
        /// Connection.
        conn: usize,
        /// Its end.
        end: usize,
    },
    /// An end does not look at its completions.
    NoPolls {
        /// Connection.
        conn: usize,
        /// Its end.
        end: usize,
    },
    /// An end goes to SQD, and back.
    Drain {
        /// Connection.
        conn: usize,
        /// Its end.
        end: usize,
    },
    /// An end goes to ERR.
    Error {
        /// Connection.
        conn: usize,
        /// Its end.
        end: usize,
    },
    /// An end deregisters what its peer writes to.
    Deregister {
        /// Connection.
        conn: usize,
        /// Its end.
        end: usize,
    },
    /// A host is gone, with everything that it has.
    Death {
        /// Which.
        host: usize,
    },
}

impl What {
    /// Whether it happens to packets.
    pub fn is_network(&self) -> bool {
        matches!(self, Self::Weather { .. } | Self::Rule(_) | Self::Down { .. })
    }

    /// Whether seven retries may not be enough for it.
    pub fn is_severe(&self) -> bool {
        match self {
            Self::Weather { loss, corrupt, delay, jitter, .. } => {
                loss + corrupt > 0.03 || *delay + *jitter > Duration::from_micros(300)
            }
            Self::Rule(_) | Self::Down { .. } => true,
            _ => false,
        }
    }
}

/// Everything that a run does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it comes from.
    pub seed: u64,
    /// The cables of the hosts.
    pub links: Vec<Link>,
    /// Bytes in flight that each host allows for a peer, if not the ordinary number.
    pub windows: Vec<Option<u32>>,
    /// One completion queue per host instead of two for each queue pair.
    pub shared_cq: bool,
    /// The connections.
    pub conns: Vec<Conn>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// All packets are looked at on the wire.
    pub watched: bool,
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn new(seed: u64) -> Self {
        let seeds = Seeds::new(seed).derive("swarm", 0);
        let mut d = Draw(seeds.derive("plan", 0).rng());
        let hosts = 2 + d.below(3);
        let base = d.link();
        let links = (0..hosts).map(|_| if d.chance(0.7) { base } else { d.link() }).collect();
        let windows = (0..hosts).map(|_| d.window()).collect();
        let calm = d.chance(0.2);
        let conns = (0..1 + d.below(6)).map(|_| d.conn(hosts, calm)).collect::<Vec<_>>();
        let mut d = Draw(seeds.derive("faults", 0).rng());
        let faults = d.faults(hosts, &conns, calm);
        let (shared_cq, watched) = (d.chance(0.4), d.chance(0.5));
        Self { seed, links, windows, shared_cq, conns, faults, watched }
    }

    /// Requests of all ends together.
    pub fn requests(&self) -> usize {
        self.conns.iter().flat_map(|c| &c.ends).map(|e| e.ops.len()).sum()
    }

    /// When the last fault has ended.
    pub fn quiet(&self) -> Duration {
        self.faults.iter().map(|f| f.until).max().unwrap_or_default()
    }

    /// Whether nothing happens to packets, as far as it is planned.
    pub fn is_clean(&self) -> bool {
        !self.faults.iter().any(|f| f.what.is_network())
    }

    /// Whether what happens to packets may be too much for a connection.
    pub fn is_severe(&self) -> bool {
        self.faults.iter().any(|f| f.what.is_severe())
    }
}

/// Random choices.
struct Draw(ChaCha8Rng);

#[expect(clippy::cast_possible_truncation, reason = "numbers below the one given")]
impl Draw {
    fn below(&mut self, n: usize) -> usize {
        below(&mut self.0, n as u64) as usize
    }

    fn range(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to + 1 - from)
    }

    fn chance(&mut self, p: f64) -> bool {
        chance(&mut self.0, p)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn micros(&mut self, from: usize, to: usize) -> Duration {
        Duration::from_micros(self.range(from, to) as u64)
    }

    fn link(&mut self) -> Link {
        Link {
            delay: self.micros(0, 1) + self.micros(0, 12),
            bits_per_s: self.pick(&[10, 25, 100, 100, 400]) * 1_000_000_000,
            mtu: self.pick(&[1500, 9000, 9000, 4200]),
            queue: self.pick(&[1 << 20, 4 << 20, 4 << 20]),
            ..Link::default()
        }
    }

    /// Small ones, so that queue pairs must wait for each other.
    fn window(&mut self) -> Option<u32> {
        let small = self.range(6000, 46_000) as u32;
        self.chance(0.4).then_some(small)
    }

    fn conn(&mut self, hosts: usize, calm: bool) -> Conn {
        let a = self.below(hosts);
        // Now and then a host talks to itself.
        let b = if self.chance(0.05) { a } else { (a + 1 + self.below(hosts - 1)) % hosts };
        let mtu = self.pick(&[Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B1024, Mtu::B4096]);
        let max_len = match self.below(4) {
            0 => 64,
            1 => mtu.bytes() + 1,
            2 => 4 * mtu.bytes() + 100,
            _ => 20_000.min(20 * mtu.bytes()),
        };
        let sends = self.pick(&[2, 4, 8, 16, 64]);
        let receives = self.pick(&[1, 2, 8, 32]);
        let n = if max_len > 2000 { 100 } else { 300 };
        let signals = self.pick(&[0.2, 0.6, 1.0]);
        let fails = self.chance(0.25);
        let ends = std::array::from_fn(|_| self.end(n, max_len, sends, receives, signals, fails));
        Conn {
            hosts: [a, b],
            v6: self.chance(0.3),
            mtu,
            timeout: if calm { 11 } else { self.pick(&[7, 8, 9, 10]) as u8 },
            retry_cnt: self.pick(&[7, 7, 7, 3, 1]),
            rnr_retry: self.pick(&[7, 7, 7, 3]),
            min_rnr_timer: self.pick(&[1, 4, 7, 10, 12]),
            rd_atomic: self.pick(&[1, 2, 4, 16]),
            sends,
            receives,
            max_len,
            target: WORDS + max_len.max(256).next_multiple_of(8) + self.below(3) * 1000,
            lives: self.pick(&[0, 1, 2]),
            ends,
        }
    }

    fn end(
        &mut self,
        most: usize,
        max_len: usize,
        sends: u32,
        receives: u32,
        signals: f64,
        fails: bool,
    ) -> End {
        let n = if self.chance(0.1) { 0 } else { 1 + self.below(most) };
        let mut silent = 0;
        let mut ops = Vec::with_capacity(n);
        for i in 0..n {
            let mut op = self.op(max_len);
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

    fn op(&mut self, max_len: usize) -> Op {
        let total = KINDS.iter().map(|r| r.weight).sum();
        let mut at = below(&mut self.0, total);
        let row = KINDS.iter().find(|r| {
            let here = at < r.weight;
            at = at.saturating_sub(r.weight);
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

    fn faults(&mut self, hosts: usize, conns: &[Conn], calm: bool) -> Vec<Fault> {
        let n = if calm { self.below(3) } else { 1 + self.below(6) };
        let mild = self.chance(0.5);
        let mut faults: Vec<_> =
            (0..n).map(|_| self.fault(hosts, conns.len(), calm, mild)).collect();
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
