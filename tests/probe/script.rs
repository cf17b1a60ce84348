//! The probes: which odd packets go to a queue pair, one after another.

use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use softroce::net::flow_port;
use softroce::prelude::{Access, CompletionQueue, Context, MemoryRegion, ProtectionDomain, RecvWr};
use softroce::verbs::{Gid, QpEndpoint, QpType, QueuePair};

use crate::cable::{Around, Cable, Came, Checksum, frame};
use crate::seal;

/// Number and first PSN of the host's queue pair.
const HOST_QPN: u32 = 0x77;
const FIRST_PSN: u32 = 0x100;
/// Those of the one whose ACKs say that everything before is answered.
const MARK_QPN: u32 = 0x78;
/// What an atomic goes to.
const WORD: u64 = 131_072;
const MEMORY: usize = 1 << 20;

/// A probe and what was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) answer: String,
}

/// Header of a packet, by hand. Fields that are not named are as usual.
#[derive(Clone, Copy, Debug)]
struct Bth {
    opcode: u8,
    ack: bool,
    pad: u8,
    pkey: u16,
    mig: bool,
    tver: u8,
    /// Byte 4: FECN, BECN, reserved bits.
    reserved: u8,
    /// The seven bits behind AckReq.
    reserved_b: u8,
}

const WRITE_ONLY: Bth = Bth {
    opcode: 0x0a,
    ack: true,
    pad: 0,
    pkey: 0xffff,
    mig: false,
    tver: 0,
    reserved: 0,
    reserved_b: 0,
};

impl Bth {
    const fn of(opcode: u8) -> Self {
        Self { opcode, ..WRITE_ONLY }
    }

    fn emit(&self, qpn: u32, psn: u32) -> Vec<u8> {
        let mut b = vec![self.opcode, u8::from(self.mig) << 6 | self.pad << 4 | self.tver];
        b.extend(self.pkey.to_be_bytes());
        b.extend((u32::from(self.reserved) << 24 | qpn).to_be_bytes());
        let ack = u8::from(self.ack) << 7 | self.reserved_b;
        b.extend((u32::from(ack) << 24 | psn).to_be_bytes());
        b
    }
}

fn reth(va: u64, rkey: u32, len: u32) -> Vec<u8> {
    [&va.to_be_bytes()[..], &rkey.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// The NIC under test, with what the probes go to. Dropped in this order.
struct Target {
    qp: QueuePair,
    mr: MemoryRegion,
    _cq: CompletionQueue,
    _pd: ProtectionDomain,
}

impl Target {
    /// A queue pair that is connected to `host_qpn` of the host.
    fn new(ctx: &Context, ends: [IpAddr; 2], host_qpn: u32) -> Self {
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
        let access = Access::REMOTE | Access::FLUSH_GLOBAL;
        let mr = pd.alloc_mr(MEMORY, access).unwrap();
        let gids = ctx.gids().unwrap();
        let index = gids.iter().find(|g| g.gid.ip() == Some(ends[1])).unwrap().index;
        let qp = pd.create_qp(QpType::Rc, &cq).gid_index(index).access(access).build().unwrap();
        for id in 0..32 {
            qp.post_recv(RecvWr::new(id, mr.sge(MEMORY - 4096..))).unwrap();
        }
        let host = format!("[{}]/{host_qpn:x}/{FIRST_PSN:x}/0/1024/16", ends[0]);
        let host: QpEndpoint = host.parse().unwrap();
        assert_eq!(host.gid, Gid::from(ends[0]));
        qp.connect(&host).unwrap();
        Self { qp, mr, _cq: cq, _pd: pd }
    }
}

/// Somebody who probes a NIC over a cable.
pub(crate) struct Prober<'c> {
    cable: &'c Cable,
    ctx: &'c Context,
    ends: [IpAddr; 2],
    target: Target,
    mark: Target,
    marks: u32,
    psn: u32,
    lines: Vec<Line>,
}

impl<'c> Prober<'c> {
    pub(crate) fn new(cable: &'c Cable, ctx: &'c Context, ends: [IpAddr; 2]) -> Self {
        let target = Target::new(ctx, ends, HOST_QPN);
        let mark = Target::new(ctx, ends, MARK_QPN);
        Self { cable, ctx, ends, target, mark, marks: 0, psn: FIRST_PSN, lines: Vec::new() }
    }

    fn renew(&mut self) {
        self.target = Target::new(self.ctx, self.ends, HOST_QPN);
        self.psn = FIRST_PSN;
    }

    /// Sends a probe; what is answered before the ACK of a packet to another queue pair that follows it.
    fn ask(&mut self, name: &str, sealed: &[u8], around: &Around) -> bool {
        self.cable.send(&frame(self.ends, sealed, around));
        let (qpn, psn) = (self.mark.qp.number(), FIRST_PSN + self.marks);
        let remote = self.mark.mr.remote();
        let mark = [Bth::of(0x0a).emit(qpn, psn), reth(remote.addr, remote.rkey, 0)].concat();
        self.cable.send(&frame(self.ends, &mark, &Around::default()));
        self.marks += 1;
        let mut answers = Vec::new();
        loop {
            let came = self.cable.next();
            let to = u32::from_be_bytes(came.datagram[4..8].try_into().unwrap());
            if to == MARK_QPN {
                assert_eq!(came.datagram[8..12], psn.to_be_bytes(), "a mark is acknowledged once");
                break;
            }
            answers.push(self.describe(&came));
        }
        let answered = !answers.is_empty();
        let answer = if answered { answers.join(" || ") } else { "no answer".to_owned() };
        let family = if self.ends[0].is_ipv4() { "v4" } else { "v6" };
        self.lines.push(Line { name: format!("{family} {name}"), answer });
        answered
    }

    /// An answer in the words in which the kernel's are written down.
    fn describe(&self, came: &Came) -> String {
        let (d, around) = (&came.datagram, &came.around);
        let (sealed, icrc) = d.split_last_chunk().unwrap();
        assert_eq!(*icrc, seal::icrc(&came.outer, sealed), "ICRC");
        assert!(came.checksum_fits, "UDP checksum");
        assert_eq!(came.src_port, flow_port(0, self.target.qp.number(), HOST_QPN));
        assert_eq!([came.outer.src, came.outer.dst], [self.ends[1], self.ends[0]]);
        let name = match d[0] {
            0x0d => "RC_READ_RESP_FIRST",
            0x0e => "RC_READ_RESP_MIDDLE",
            0x0f => "RC_READ_RESP_LAST",
            0x10 => "RC_READ_RESP_ONLY",
            0x11 => "RC_ACK",
            0x12 => "RC_ATOMIC_ACK",
            0x81 => "CNP",
            other => panic!("opcode {other:#x}"),
        };
        let word = |at: usize| u32::from_be_bytes(d[at..at + 4].try_into().unwrap());
        let mut text =
            format!("{name} qpn={:06x} psn={:06x}", word(4) & 0xff_ffff, word(8) & 0xff_ffff);
        for (set, letter) in
            [(word(8) >> 31 == 1, " A"), (d[1] & 0x80 != 0, " S"), (d[1] & 0x40 != 0, " M")]
        {
            text += if set { letter } else { "" };
        }
        text += &format!(" pad={} pkey={:02x}{:02x}", d[1] >> 4 & 3, d[2], d[3]);
        // Those that have an AETH.
        if !matches!(d[0], 0x0e | 0x81) {
            text += &format!(" syndrome={:02x} msn={}", d[12], word(12) & 0xff_ffff);
        }
        format!("{text} | {around}")
    }

    /// A WRITE of 8 bytes at the expected PSN.
    fn write(&self, bth: Bth) -> Vec<u8> {
        self.write_as(bth, &[0, 1, 2, 3, 4, 5, 6, 7])
    }

    /// A packet with a RETH that says 8 bytes, and this payload.
    fn write_as(&self, bth: Bth, payload: &[u8]) -> Vec<u8> {
        self.with_reth(bth, (self.va(), self.rkey(), 8), payload)
    }

    fn with_reth(&self, bth: Bth, (va, rkey, len): (u64, u32, u32), payload: &[u8]) -> Vec<u8> {
        [bth.emit(self.target.qp.number(), self.psn), reth(va, rkey, len), payload.to_vec()]
            .concat()
    }

    fn va(&self) -> u64 {
        self.target.mr.remote().addr
    }

    fn rkey(&self) -> u32 {
        self.target.mr.remote().rkey
    }

    /// All probes, in the order in which the kernel got them. `flush`: with those of FLUSH.
    pub(crate) fn probe(mut self, flush: bool) -> Vec<Line> {
        self.taken();
        self.dropped();
        self.out_of_order();
        self.reads_and_atomics();
        if flush {
            self.flushes();
        }
        let pad = Bth { pad: 2, ..WRITE_ONLY };
        let packet = self.write_as(pad, &[0; 8]);
        self.ask("WRITE of 8 with wrong BTH pad (pad=2)", &packet, &Around::default());
        self.fatal();
        self.lines
    }

    /// What a NIC should take.
    fn taken(&mut self) {
        let plain = Around::default();
        let w = WRITE_ONLY;
        for (name, bth, around) in [
            ("plain WRITE_ONLY", w, plain),
            ("ip id 0x1234, DF clear", w, Around { ident: 0x1234, df: false, ..plain }),
            ("source port 1024", w, Around { src_port: 1024, ..plain }),
            ("source port 4791", w, Around { src_port: 4791, ..plain }),
            ("right UDP checksum", w, Around { checksum: Checksum::Right, ..plain }),
            ("tos/tc 0x02 (ECT0)", w, Around { tos: 2, ..plain }),
            ("tos/tc 0x03 (CE)", w, Around { tos: 3, ..plain }),
            ("ttl/hop 1", w, Around { ttl: 1, ..plain }),
            ("flow label 0x54321", w, Around { flow: 0x54321, ..plain }),
            ("FECN+BECN bits set", Bth { reserved: 0xc0, ..w }, plain),
            ("resv8a bits set", Bth { reserved: 0x3f, ..w }, plain),
            ("resv8b bits after AckReq set", Bth { reserved_b: 0x7f, ..w }, plain),
            ("MigReq set", Bth { mig: true, ..w }, plain),
            ("AckReq clear", Bth { ack: false, ..w }, plain),
            ("pkey 0x7fff (limited)", Bth { pkey: 0x7fff, ..w }, plain),
            (
                "4 trailing Ethernet bytes",
                w,
                Around { trailer: &[0xde, 0xad, 0xbe, 0xef], ..plain },
            ),
        ] {
            let packet = self.write(bth);
            self.ask(name, &packet, &around);
            self.psn += 1;
        }
    }

    /// What it should drop.
    fn dropped(&mut self) {
        let plain = Around::default();
        let w = WRITE_ONLY;
        for (name, bth, around) in [
            ("ICRC wrong", w, Around { spoil: 1, ..plain }),
            ("UDP checksum wrong", w, Around { checksum: Checksum::Wrong, ..plain }),
            ("pkey 0x8001", Bth { pkey: 0x8001, ..w }, plain),
            ("pkey 0x0000", Bth { pkey: 0, ..w }, plain),
            ("TVer 1", Bth { tver: 1, ..w }, plain),
            ("opcode 0x1f (unknown RC)", Bth::of(0x1f), plain),
            ("opcode UC WRITE_ONLY on RC QP", Bth::of(0x2a), plain),
            ("plain again: is the PSN still expected?", w, plain),
        ] {
            let packet = self.write(bth);
            self.ask(name, &packet, &around);
        }
    }

    fn out_of_order(&mut self) {
        // The last one has been taken, and is the expected one no more.
        let last = self.psn;
        for (name, psn) in [
            ("duplicate WRITE", last),
            ("PSN ahead by 4", last + 5),
            ("PSN ahead again (2nd time)", last + 5),
            ("expected PSN closes the gap", last + 1),
        ] {
            if name.contains("2nd time") {
                // The kernel was left alone for longer than it takes us to say it again.
                let (nobody, _other) = UnixDatagram::pair().unwrap();
                nobody.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                assert!(nobody.recv(&mut [0]).is_err());
            }
            self.psn = psn;
            let packet = self.write(WRITE_ONLY);
            self.ask(name, &packet, &Around::default());
        }
        self.psn = last + 2;
    }

    fn reads_and_atomics(&mut self) {
        let read = self.with_reth(Bth::of(0x0c), (self.va(), self.rkey(), 2500), &[]);
        self.ask("READ 2500", &read, &Around::default());
        self.ask("the same READ again", &read, &Around::default());
        self.psn += 3;
        let mut atomic = Bth::of(0x14).emit(self.target.qp.number(), self.psn);
        atomic.extend((self.va() + WORD).to_be_bytes());
        atomic.extend(self.rkey().to_be_bytes());
        atomic.extend([1u64.to_be_bytes(), 0u64.to_be_bytes()].concat());
        self.ask("FETCH_ADD", &atomic, &Around::default());
        self.ask("the same FETCH_ADD again", &atomic, &Around::default());
        let word = usize::try_from(WORD).unwrap();
        let sum = u64::from_ne_bytes(self.target.mr.to_vec(word..word + 8).try_into().unwrap());
        assert_eq!(sum, 1, "it is done once");
        self.psn += 1;
    }

    fn flushes(&mut self) {
        let mut flush = Bth::of(0x1c).emit(self.target.qp.number(), self.psn);
        flush.extend(1u32.to_be_bytes());
        flush.extend(reth(self.va(), self.rkey(), 64));
        self.ask("FLUSH with the ICRC by the book", &flush, &Around::default());
        let twice = Around { twice: true, ..Around::default() };
        self.ask("FLUSH with the ICRC as rxe makes it", &flush, &twice);
        self.psn += 1;
    }

    /// What ends a connection: each on one of its own, with a good packet behind it.
    fn fatal(&mut self) {
        for (name, opcode, payload) in [
            ("WRITE_ONLY longer than its RETH length", 0x0a, 64),
            ("WRITE_FIRST of 512 on a 1024 path", 0x06, 512),
            ("WRITE_MIDDLE without FIRST", 0x07, 1024),
            ("SEND_ONLY of 1400 on a 1024 path", 0x04, 1400),
            ("WRITE with rkey 0", 0x0a, 8),
            ("READ with bad va", 0x0c, 0),
        ] {
            self.renew();
            let (bth, payload) = (Bth::of(opcode), vec![0; payload]);
            let good = (self.va(), self.rkey(), 8);
            let packet = match name {
                _ if matches!(opcode, 0x04 | 0x07) => {
                    [bth.emit(self.target.qp.number(), self.psn), payload].concat()
                }
                _ if opcode == 0x06 => self.with_reth(bth, (good.0, good.1, 1024), &payload),
                "WRITE with rkey 0" => self.with_reth(bth, (good.0, 0, 8), &payload),
                "READ with bad va" => self.with_reth(bth, (16, good.1, 8), &payload),
                _ => self.with_reth(bth, good, &payload),
            };
            self.ask(name, &packet, &Around::default());
            self.psn += 1;
            let next = self.write_as(WRITE_ONLY, &[0; 8]);
            self.ask("  next packet on that QP", &next, &Around::default());
        }
    }
}
