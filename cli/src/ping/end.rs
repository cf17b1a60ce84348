//! One end: a queue pair, and messages to and from it.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use softroce::verbs::{
    Access, CompletionQueue, Context, Error, MemoryRegion, Mtu, ProtectionDomain, QpAttr,
    QpEndpoint, QpType, QueuePair, RecvWr, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};

use super::{Failure, Result, Step};
use crate::perf::now;

/// Places for messages: while one is being sent the next may arrive.
const SLOTS: usize = 4;
/// ACK timeout: 268 ms, so that silence is noticed in seconds and a busy machine is not taken for it.
const TIMEOUT: u8 = 16;
/// How long a message may take there and back before it is given up; longer than all retries.
const PATIENCE: Duration = Duration::from_secs(5);

/// A queue pair. Dropped in this order: it before what it stands on.
#[derive(Debug)]
pub(super) struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    mr: MemoryRegion,
    _pd: ProtectionDomain,
    /// Bytes of a place.
    slot: usize,
    pub(super) ip: IpAddr,
    /// The other side sends back what it was sent.
    echoes: bool,
}

/// How a message ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It came back, after this time; so many bytes.
    Came { after: Duration, bytes: u32 },
    /// The other NIC has taken it, and no message came back.
    Taken,
    /// Nothing says that it has arrived.
    Lost,
    /// The other NIC has no place for it.
    NotReady,
    /// It ended in another way.
    Failed(WcStatus),
}

impl End {
    /// Makes one at this entry of the GID table, for messages of up to `longest` bytes.
    pub(super) fn new(
        ctx: &Context,
        (index, ip): (u16, IpAddr),
        longest: usize,
        echoes: bool,
    ) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        let depth = u32::try_from(SLOTS).map_err(|e| Failure::new(Step::Device, e))?;
        let cq = ctx.create_cq(4 * depth)?;
        let slot = longest.next_multiple_of(64);
        // The last place is what goes out first.
        let mr = pd.alloc_mr((SLOTS + 1) * slot, Access::LOCAL)?;
        let qp = pd.create_qp(QpType::Rc, &cq).depth(2 * depth, depth).gid_index(index).build()?;
        Ok(Self { qp, cq, mr, _pd: pd, slot, ip, echoes })
    }

    pub(super) fn endpoint(&self) -> QpEndpoint {
        self.qp.endpoint()
    }

    /// Connects it, with this path MTU or the largest that both ports have. Receives are posted before.
    pub(super) fn connect(&self, peer: &QpEndpoint, mtu: Option<Mtu>) -> Result<Mtu> {
        let most = self.endpoint().mtu.min(peer.mtu);
        let mtu = mtu.unwrap_or(most);
        if mtu > most {
            let (asked, most) = (mtu.bytes(), most.bytes());
            let what = format_args!("--mtu {asked}: the ports of both sides take {most} at most")
                .to_string();
            return Err(Failure::usage(Step::Mtu, what));
        }
        for slot in 0..SLOTS {
            self.post_receive(slot)?;
        }
        let over = QpAttr::default().timeout(TIMEOUT);
        self.qp.connect_with(&QpEndpoint { mtu, ..*peer }, over)?;
        Ok(mtu)
    }

    fn place(&self, slot: usize, len: usize) -> Sge {
        let at = slot * self.slot;
        self.mr.sge(at..at + len)
    }

    fn post_receive(&self, slot: usize) -> Result<()> {
        Ok(self.qp.post_recv(RecvWr::new(slot as u64, self.place(slot, self.slot)))?)
    }

    fn post_send(&self, slot: usize, len: usize) -> Result<()> {
        Ok(self.qp.post_send(SendWr::send(slot as u64, self.place(slot, len)))?)
    }

    /// The next completion, if there is one within this time.
    fn wait(&self, patience: Duration) -> Result<Option<WorkCompletion>> {
        match self.cq.wait(patience) {
            Ok(wc) => Ok(Some(wc)),
            Err(Error::Timeout) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends a message of `len` bytes and waits for one.
    pub(super) fn ping(&self, seq: u32, len: usize) -> Result<Answer> {
        let message = pattern(seq, len);
        self.mr.write(SLOTS * self.slot, &message);
        let begun = now();
        self.post_send(SLOTS, len)?;
        let mut sent = false;
        let mut answer = None;
        let until = begun + PATIENCE;
        while !sent || answer.is_none() {
            let left = until.saturating_duration_since(now());
            let Some(wc) = self.wait(left)? else {
                return Ok(if sent { Answer::Taken } else { Answer::NotReady });
            };
            match wc.status {
                WcStatus::Success => {}
                WcStatus::RetryExc => return Ok(Answer::Lost),
                WcStatus::RnrRetryExc => return Ok(Answer::NotReady),
                status => return Ok(Answer::Failed(status)),
            }
            if wc.opcode == WcOpcode::Recv {
                answer = Some(self.answered(&wc, begun, &message)?);
            } else {
                sent = true;
            }
        }
        answer.ok_or_else(|| Failure::new(Step::Answer, "no answer"))
    }

    /// Looks at what came back, and makes its place free.
    fn answered(&self, wc: &WorkCompletion, begun: Instant, message: &[u8]) -> Result<Answer> {
        let after = now() - begun;
        let slot = usize::try_from(wc.wr_id).unwrap_or(0);
        let bytes = (wc.byte_len as usize).min(self.slot);
        let got = self.mr.to_vec(slot * self.slot..slot * self.slot + bytes);
        self.post_receive(slot)?;
        if self.echoes {
            check(&got, message)?;
        }
        Ok(Answer::Came { after, bytes: wc.byte_len })
    }

    /// Sends back the next message, if one comes within this time. `Some`: something happened, and whether it
    /// was that.
    pub(super) fn echo(&self, patience: Duration) -> Result<Option<bool>> {
        let Some(wc) = self.wait(patience)? else { return Ok(None) };
        let slot = usize::try_from(wc.wr_id).unwrap_or(0);
        match (wc.status, wc.opcode) {
            (WcStatus::Success, WcOpcode::Recv) => {
                self.post_send(slot, wc.byte_len as usize)?;
                return Ok(Some(true));
            }
            (WcStatus::Success, _) => self.post_receive(slot)?,
            // The client has gone, or what comes back is lost; it will say so.
            _ => {}
        }
        Ok(Some(false))
    }
}

/// A message that differs from the one before. It does not begin with zeros, as fresh memory does.
fn pattern(seq: u32, len: usize) -> Vec<u8> {
    let byte =
        |i: u32| (i.wrapping_mul(31) ^ seq.wrapping_mul(97)).wrapping_add(0x51).to_le_bytes()[0];
    (0u32..).take(len).map(byte).collect()
}

/// Whether what came back is what was sent.
fn check(got: &[u8], sent: &[u8]) -> Result<()> {
    let (come, gone) = (got.len(), sent.len());
    if come != gone {
        let what = format_args!("{come} bytes came back of {gone}").to_string();
        return Err(Failure::new(Step::Data, what));
    }
    match got.iter().zip(sent).position(|(a, b)| a != b) {
        Some(at) => Err(Failure::new(
            Step::Data,
            format_args!("byte {at} of {gone} came back as another one"),
        )),
        None => Ok(()),
    }
}
