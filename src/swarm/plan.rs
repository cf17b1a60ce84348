//! What a run does: drawn from the seed before anything happens, so that a part of it can be left out without
//! changing the rest.

use super::draw::Draw;
use crate::fabric::{Link, Rule};
use crate::seed::Seeds;
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
    /// ATOMIC WRITE of a word of one's own, or of 8 bytes that WRITEs go to as well.
    AtomicWrite,
    /// FLUSH of what earlier requests have written.
    Flush,
    /// Binds the own window, for the peer.
    BindMw,
    /// Invalidates the own window, or unbinds it if it is of type 1.
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
    /// An ATOMIC WRITE to an address that is no multiple of 8.
    MisalignedWrite,
    /// A FLUSH of memory that is not lent for it.
    FlushRight,
}

/// The service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable.
    Rc,
    /// Unreliable.
    Uc,
}

/// A row of the table of requests.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What.
    pub kind: Kind,
    /// How often on a reliable connection, relative to the others.
    pub rc: u64,
    /// How often on an unreliable one.
    pub uc: u64,
}

impl Row {
    /// How often on a connection of this service.
    pub const fn weight(&self, service: Service) -> u64 {
        match service {
            Service::Rc => self.rc,
            Service::Uc => self.uc,
        }
    }
}

const fn row(kind: Kind, rc: u64, uc: u64) -> Row {
    Row { kind, rc, uc }
}

/// The requests that a connection draws from.
pub const KINDS: &[Row] = &[
    row(Kind::Send, 12, 20),
    row(Kind::SendImm, 8, 15),
    row(Kind::SendInv, 6, 0),
    row(Kind::Write, 24, 30),
    row(Kind::WriteImm, 8, 20),
    row(Kind::Read, 18, 0),
    row(Kind::CompareSwap, 5, 0),
    row(Kind::FetchAdd, 7, 0),
    row(Kind::Count, 5, 0),
    row(Kind::AtomicWrite, 8, 0),
    row(Kind::Flush, 6, 0),
    row(Kind::BindMw, 8, 0),
    row(Kind::LocalInv, 3, 0),
];

/// The requests that end a reliable connection. An unreliable one loses most of them, and does not do the others.
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
    Bad::MisalignedWrite,
    Bad::FlushRight,
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
    /// Reliable or not.
    pub service: Service,
    /// Its two hosts, which may be one.
    pub hosts: [usize; 2],
    /// Whether each end takes its receives from the shared queue of its host, if that has one.
    pub shared: [bool; 2],
    /// By IPv6.
    pub v6: bool,
    /// The windows are of type 1 instead of 2.
    pub type1: bool,
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
    /// Losses have only what is missing sent again.
    pub selective: bool,
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

/// A shared receive queue of a host.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Its slots.
    pub depth: u32,
    /// Bytes of each receive.
    pub room: usize,
    /// Receives are posted anew when so few have not come back.
    pub low: u32,
    /// At most so many at a time.
    pub batch: usize,
    /// Time between two calls.
    pub gap: Duration,
    /// Tells when fewer are left; 0: never.
    pub limit: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To a station, by its number.
    Station(usize),
    /// To a multicast group.
    Group(usize),
}

/// The Q_Key of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// One of [`QKEYS`].
    Number(usize),
    /// That of the queue pair that sends it.
    Own,
}

/// A datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Where it goes.
    pub to: To,
    /// With which Q_Key.
    pub key: Key,
    /// Bytes. [`TOO_LONG`]: one more than the path MTU.
    pub len: usize,
    /// Where in the source.
    pub src: usize,
    /// Pieces of local memory.
    pub pieces: usize,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Makes a completion on success.
    pub signaled: bool,
    /// The bytes are copied when posting.
    pub inline: bool,
}

/// A queue pair for datagrams.
#[derive(Clone, Debug)]
pub struct Station {
    /// Its host.
    pub host: usize,
    /// Sends by IPv6, but for groups, which have a family of their own.
    pub v6: bool,
    /// Which of [`QKEYS`] it has.
    pub key: usize,
    /// The groups that it is in.
    pub groups: [bool; 2],
    /// Traffic class of what it sends.
    pub traffic_class: u8,
    /// Takes its receives from the shared queue of its host, if that has one.
    pub shared: bool,
    /// Slots of the send queue.
    pub sends: u32,
    /// Slots of the receive queue.
    pub receives: u32,
    /// Bytes of each receive.
    pub room: usize,
    /// Receives are posted anew when so few are left.
    pub low: u32,
    /// What it sends.
    pub datagrams: Vec<Datagram>,
    /// Datagrams posted with one call, at most.
    pub batch: usize,
    /// Time between two calls.
    pub gap: Duration,
}

/// The Q_Keys of stations.
pub const QKEYS: [u32; 2] = [0x1ee7, 0x0bad];
/// Stands for the length of a datagram that does not fit.
pub const TOO_LONG: usize = usize::MAX;

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
    /// A station posts no receives.
    Deaf {
        /// Which.
        station: usize,
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
    /// The shared receive queue of each host.
    pub shared: Vec<Option<Shared>>,
    /// The connections.
    pub conns: Vec<Conn>,
    /// Queue pairs for datagrams.
    pub stations: Vec<Station>,
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
        let mut conns: Vec<_> = (0..1 + d.below(6)).map(|_| d.conn(hosts, calm)).collect();
        let mut d = Draw(seeds.derive("datagrams", 0).rng());
        let stations = d.stations(hosts);
        let mut d = Draw(seeds.derive("shared", 0).rng());
        let shared = d.shared(hosts, &mut conns, &stations);
        let mut d = Draw(seeds.derive("faults", 0).rng());
        let faults = d.faults(hosts, &conns, stations.len(), calm);
        let (shared_cq, watched) = (d.chance(0.4), d.chance(0.5));
        Self { seed, links, windows, shared_cq, shared, conns, stations, faults, watched }
    }

    /// Requests of all ends together.
    pub fn requests(&self) -> usize {
        let ops: usize = self.conns.iter().flat_map(|c| &c.ends).map(|e| e.ops.len()).sum();
        ops + self.stations.iter().map(|s| s.datagrams.len()).sum::<usize>()
    }

    /// The shared receive queue that an end of a connection takes its receives from.
    pub fn shared_of(&self, conn: &Conn, end: usize) -> Option<&Shared> {
        if conn.shared[end] { self.shared[conn.hosts[end]].as_ref() } else { None }
    }

    /// Ends and stations that take receives from the shared queue of a host.
    pub fn sharers(&self, host: usize) -> usize {
        let ends = self
            .conns
            .iter()
            .flat_map(|c| (0..2).filter(|&end| c.shared[end] && c.hosts[end] == host));
        ends.count() + self.stations.iter().filter(|s| s.shared && s.host == host).count()
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
