//! The kernel's side: the same verbs, said to the peer in the guest.

use std::time::Duration;

use softroce::prelude::*;

use crate::Res;
use crate::end::{Address, Conn, Done, End, Lent, MARK, Op, Post};
use crate::guest::{Answer, Guest};

/// The peer, and what its objects are called.
pub(crate) struct Kernel {
    pub(crate) guest: Guest,
    memory: Lent,
    gids: [Gid; 2],
    kinds: [QpType; 4],
    handles: usize,
    windows: usize,
    regions: usize,
    srq: bool,
}

fn hex(gid: Gid) -> String {
    gid.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(hex: &str) -> Res<Vec<u8>> {
    let digits = |at: usize| hex.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    (0..hex.len())
        .step_by(2)
        .map(|at| digits(at).ok_or_else(|| format!("{hex:?} is no hex")))
        .collect()
}

fn gid(answer: &Answer, name: &str) -> Res<Gid> {
    let bytes = bytes_of(answer.text(name)?)?;
    Ok(Gid(bytes.try_into().map_err(|_| format!("{name} is no GID"))?))
}

fn type_of(kind: QpType) -> &'static str {
    match kind {
        QpType::Ud => "ud",
        QpType::Uc => "uc",
        _ => "rc",
    }
}

impl Kernel {
    pub(crate) fn new(guest: Guest) -> Res<Self> {
        let none = Lent { addr: 0, rkey: 0 };
        let mut kernel = Self {
            guest,
            memory: none,
            gids: [Gid([0; 16]); 2],
            kinds: [QpType::Rc; 4],
            handles: 0,
            windows: 0,
            regions: 0,
            srq: false,
        };
        kernel.hello()?;
        Ok(kernel)
    }

    fn hello(&mut self) -> Res<()> {
        let answer = self.guest.ask("hello")?;
        self.memory = Lent { addr: answer.number("addr")?, rkey: answer.short("rkey")? };
        self.gids = [gid(&answer, "gid1")?, gid(&answer, "gid2")?];
        (self.handles, self.windows, self.regions, self.srq) = (0, 0, 0, false);
        Ok(())
    }

    fn next(&mut self, cq: usize, limit: Duration) -> Res<Option<Done>> {
        let answer =
            self.guest.ask_within(&format!("wait cq={cq} ms={}", limit.as_millis()), limit)?;
        if answer.number("none").is_ok() {
            return Ok(None);
        }
        let flags = answer.number("flags")?;
        let given = |bits: u64, name: &str| {
            if flags & bits != 0 { answer.short(name).map(Some) } else { Ok(None) }
        };
        let opcode = answer.short("opcode")?;
        Ok(Some(Done {
            id: answer.number("id")?,
            status: answer.short("status")?,
            opcode,
            len: answer.short("len")?,
            imm: given(2, "imm")?,
            // The driver's flag of an invalidation is not that of the library (4 and not 8).
            inv: given(4 | 8, "inv")?,
            src_qpn: answer.short("src")?,
            grh: flags & 1 != 0,
        }))
    }

    fn say(&mut self, line: &str) -> Res<()> {
        self.guest.ask(line).map(drop)
    }
}

impl End for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn gid(&self, v6: bool) -> Gid {
        self.gids[usize::from(v6)]
    }

    fn lent(&self) -> Lent {
        self.memory
    }

    fn fill(&mut self, off: usize, len: usize, seed: u64) -> Res<()> {
        self.say(&format!("fill off={off} len={len} seed={seed}"))
    }

    fn mark(&mut self, off: usize, len: usize) -> Res<()> {
        self.say(&format!("fill off={off} len={len} byte={MARK}"))
    }

    fn check(&mut self, off: usize, len: usize, seed: u64, guard: usize) -> Res<()> {
        self.say(&format!("check off={off} len={len} seed={seed} guard={guard}"))
    }

    fn word(&mut self, off: usize) -> Res<u64> {
        self.guest.ask(&format!("word off={off}"))?.number("v")
    }

    fn set_word(&mut self, off: usize, v: u64) -> Res<()> {
        self.say(&format!("word off={off} v={v}"))
    }

    fn bytes(&mut self, off: usize, len: usize) -> Res<Vec<u8>> {
        bytes_of(self.guest.ask(&format!("bytes off={off} len={len}"))?.text("hex")?)
    }

    fn register(&mut self, off: usize, len: usize, access: u32, apart: bool) -> Res<Lent> {
        self.regions += 1;
        let n = self.regions;
        if apart {
            self.say(&format!("pd n={n}"))?;
        }
        let pd = if apart { n } else { 0 };
        let answer =
            self.guest.ask(&format!("mr n={n} pd={pd} off={off} len={len} acc={access}"))?;
        Ok(Lent { addr: answer.number("addr")?, rkey: answer.short("rkey")? })
    }

    fn create(&mut self, slot: usize, kind: QpType, srq: bool, v6: bool) -> Res<u32> {
        let (scq, rcq) = (2 * slot, 2 * slot + 1);
        self.say(&format!("cq n={scq}"))?;
        self.say(&format!("cq n={rcq}"))?;
        let mut shared = "";
        if srq {
            if !self.srq {
                self.say("srq n=0")?;
                self.srq = true;
            }
            shared = " srq=0";
        }
        self.kinds[slot] = kind;
        let kind = type_of(kind);
        let ex = u8::from(kind == "rc");
        let answer = self
            .guest
            .ask(&format!("qp n={slot} type={kind} scq={scq} rcq={rcq} ex={ex}{shared}"))?;
        let access = crate::end::REMOTE | 1 << 8;
        let init = |access: u32| format!("modify n={slot} type={kind} to=init acc={access} qkey=0");
        // Only kernels with FLUSH take its right.
        if self.say(&init(access)).is_err() {
            self.say(&init(crate::end::REMOTE))?;
        }
        let _ = v6;
        answer.short("qpn")
    }

    fn connect(
        &mut self,
        slot: usize,
        kind: QpType,
        psn: u32,
        peer: &Address,
        conn: &Conn,
    ) -> Res<()> {
        let v6 = peer.gid.ip().is_some_and(|ip| ip.is_ipv6());
        let kind = type_of(kind);
        self.say(&format!(
            "modify n={slot} type={kind} to=rtr gid={} sgid={} dqpn={} psn={} mtu={} rd={} rnrtimer={}",
            hex(peer.gid),
            1 + u8::from(v6),
            peer.qpn,
            peer.psn,
            conn.mtu as u8,
            conn.depth,
            conn.rnr_timer,
        ))?;
        self.say(&format!(
            "modify n={slot} type={kind} to=rts psn={psn} timeout={} retry={} rnr={} rd={}",
            conn.timeout, conn.retries, conn.rnr_retries, conn.depth,
        ))
    }

    fn activate(&mut self, slot: usize, psn: u32, qkey: u32) -> Res<()> {
        // The key goes with the step to INIT, which is taken again.
        self.say(&format!("modify n={slot} type=ud to=init qkey={qkey}"))?;
        self.say(&format!("modify n={slot} type=ud to=rtr"))?;
        self.say(&format!("modify n={slot} type=ud to=rts psn={psn}"))
    }

    fn kill(&mut self) -> Res<()> {
        self.guest.tell("die")?;
        // Another one is started.
        self.guest.ready(Duration::from_secs(30))?;
        self.hello()
    }

    fn failed(&mut self, slot: usize) -> Res<bool> {
        Ok(self.guest.ask(&format!("query n={slot}"))?.number("state")? == 6)
    }

    fn address_handle(&mut self, gid: Gid, v6: bool) -> Res<usize> {
        let n = self.handles;
        self.handles += 1;
        self.say(&format!("ah n={n} gid={} sgid={}", hex(gid), 1 + u8::from(v6)))?;
        Ok(n)
    }

    fn join(&mut self, slot: usize, group: Gid) -> Res<()> {
        self.say(&format!("join qp={slot} gid={}", hex(group)))
    }

    fn bind(&mut self, slot: usize, kind: u8, off: usize, len: usize, access: u32) -> Res<Lent> {
        // The peer frees what it had under this number.
        let n = self.windows;
        self.windows = (n + 1) % 16;
        self.say(&format!("mw n={n} kind={kind}"))?;
        let line = format!("bind mw={n} qp={slot} id=77 off={off} len={len} acc={access}");
        let rkey = self.guest.ask(&line)?.short("rkey")?;
        match self.sent(slot, Duration::from_secs(10))? {
            Some(Done { id: 77, status: 0, .. }) => {}
            other => return Err(format!("kernel: the bind ends with {other:?}")),
        }
        Ok(Lent { addr: self.memory.addr + off as u64, rkey })
    }

    fn recv(&mut self, slot: usize, srq: bool, id: u64, off: usize, len: usize) -> Res<()> {
        let queue = if srq { "srq=0".to_owned() } else { format!("qp={slot}") };
        self.say(&format!("recv {queue} id={id} off={off} len={len}"))
    }

    fn post(&mut self, slot: usize, post: &Post) -> Res<()> {
        let Post { id, op, off, len, remote, dest } = *post;
        let op = match op {
            Op::Send => "send".to_owned(),
            Op::SendImm(imm) => format!("send_imm imm={imm}"),
            Op::SendInv(key) => format!("send_inv inv={key}"),
            Op::Write => "write".to_owned(),
            Op::WriteImm(imm) => format!("write_imm imm={imm}"),
            Op::Read => "read".to_owned(),
            Op::Cas { expect, new } => format!("cas cmp={expect} swp={new}"),
            Op::Faa { add } => format!("faa cmp={add}"),
            Op::AtomicWrite => "atomic_write".to_owned(),
            Op::Flush(len) => format!("flush rlen={len}"),
        };
        let to = dest
            .map_or_else(String::new, |d| format!(" ah={} dqpn={} qkey={}", d.ah, d.qpn, d.qkey));
        let Lent { addr, rkey } = remote;
        self.say(&format!(
            "send qp={slot} op={op} id={id} off={off} len={len} raddr={addr} rkey={rkey}{to}"
        ))
    }

    fn sent(&mut self, slot: usize, limit: Duration) -> Res<Option<Done>> {
        self.next(2 * slot, limit)
    }

    fn received(&mut self, slot: usize, limit: Duration) -> Res<Option<Done>> {
        self.next(2 * slot + 1, limit)
    }

    fn counter(&mut self, name: &str) -> Res<u64> {
        // The kernel shows what it has shown before, for 12 ms.
        std::thread::sleep(Duration::from_millis(25));
        Ok(self.guest.ask("counters")?.numbers().get(name).copied().unwrap_or(0))
    }

    fn reset(&mut self) -> Res<()> {
        (self.handles, self.windows, self.regions, self.srq) = (0, 0, 0, false);
        self.say("reset")
    }
}
