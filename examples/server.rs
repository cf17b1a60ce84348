//! server [host]: 1000 connections that share one receive queue, one pool and one completion queue.
//!
//! In two shells: `cargo run --example server`, then `cargo run --example server 127.0.0.1`. The server answers each
//! message with its length, and ends when its client has gone.
#![expect(clippy::print_stdout, reason = "a program that says what it did")]
use softroce::prelude::*;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};

const CONNECTIONS: usize = 1000;
const TCP_PORT: u16 = 18516;

struct Server {
    srq: SharedReceiveQueue,
    pool: Pool,
    rx: InFlight<PoolBuf>,
    qps: BTreeMap<u32, QueuePair>,
    answered: usize,
}

impl Server {
    /// Keeps the shared queue full.
    fn refill(&mut self) -> Result<()> {
        while let Some(buf) = self.pool.try_get() {
            let sge = buf.sge();
            self.srq.post_recv(RecvWr::new(self.rx.put(buf), sge))?;
        }
        Ok(())
    }

    /// Answers with the length of what came.
    fn on_completion(&mut self, wc: WorkCompletion) -> Result<()> {
        drop(self.rx.take(wc.wr_id)); // a receive's buffer goes back to the pool; sends carry id 0
        match (wc.ok(), self.qps.get(&wc.qpn)) {
            (Ok(wc), Some(qp)) if wc.opcode == WcOpcode::Recv => {
                self.answered += 1;
                let length = wc.byte_len.to_be_bytes();
                qp.post_send(SendWr::send(0, inline(&length)).unsignaled())
            }
            // An error: that connection goes down, and an event says when it has. The others live.
            _ => Ok(()),
        }
    }

    fn poll(&mut self, cq: &CompletionQueue, patience: Duration) -> Result<usize> {
        let mut wcs = [WorkCompletion::default(); 64];
        let n = match cq.wait_many(&mut wcs, patience) {
            Err(Error::Timeout) => 0,
            r => r?,
        };
        wcs[..n].iter().try_for_each(|wc| self.on_completion(*wc))?;
        self.refill()?;
        Ok(n)
    }
}

fn serve() -> Result<()> {
    let ctx = softroce::open()?;
    let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(8192)?);
    let mut s = Server {
        srq: pd.create_srq(512, 1)?,
        pool: pd.pool(2048, 512)?, // half as many as there are connections
        rx: InFlight::new(),
        qps: BTreeMap::new(),
        answered: 0,
    };
    s.refill()?;
    // Both families, where both are there.
    let any = |host| TcpListener::bind((host, TCP_PORT));
    let (mut tcp, _) = any("::").or_else(|_| any("0.0.0.0"))?.accept()?;
    for _ in 0..CONNECTIONS {
        let qp = pd.create_qp(QpType::Rc, &cq).srq(&s.srq).depth(16, 0).build()?;
        qp.connect(&oob::exchange(&mut tcp, &qp.endpoint())?)?;
        s.qps.insert(qp.number(), qp);
    }
    oob::exchange(&mut tcp, &())?; // both are ready

    tcp.set_nonblocking(true)?;
    loop {
        s.poll(&cq, Duration::from_millis(10))?;
        match tcp.read(&mut [0]) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            _ => break, // the client has gone
        }
    }
    // Each queue pair gives back the receive that it may hold, and says when it takes no more.
    for qp in s.qps.values() {
        qp.modify(&QpAttr::to(QpState::Err))?;
    }
    while !s.qps.is_empty() {
        let event = ctx.wait_event(Duration::from_secs(5))?;
        if let Event::LastWqe { qpn } = event {
            while s.poll(&cq, Duration::ZERO)? > 0 {}
            s.qps.remove(&qpn);
        }
    }
    let posted = s.rx.len();
    println!("{} messages answered, all {posted} buffers are back in the queue", s.answered);
    Ok(())
}

fn ask(host: &str) -> Result<()> {
    let ctx = softroce::open()?;
    let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(4096)?);
    let mr = pd.alloc_mr(4 * CONNECTIONS + 2048, Access::LOCAL)?;
    let mut tcp = TcpStream::connect((host, TCP_PORT))?;
    let mut qps = Vec::new();
    for i in 0..CONNECTIONS {
        let qp = pd.create_qp(QpType::Rc, &cq).depth(1, 1).build()?;
        qp.post_recv(RecvWr::new(i as u64, mr.sge(4 * i..4 * i + 4)))?;
        qp.connect(&oob::exchange(&mut tcp, &qp.endpoint())?)?;
        qps.push(qp);
    }
    oob::exchange(&mut tcp, &())?;
    let from = 4 * CONNECTIONS;
    for (i, qp) in qps.iter().enumerate() {
        qp.post_send(SendWr::send(0, mr.sge(from..from + i)))?;
    }
    // One completion of a send and one of a receive for each, in any order.
    for _ in 0..2 * CONNECTIONS {
        cq.wait(Duration::from_secs(30))?.ok()?;
    }
    for i in 0..CONNECTIONS {
        let mut length = [0; 4];
        mr.read(4 * i, &mut length);
        assert_eq!(u32::from_be_bytes(length) as usize, i);
    }
    println!("{CONNECTIONS} connections, each with its answer");
    Ok(())
}

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        None => serve(),
        Some(host) => ask(&host),
    }
}
