//! A small key-value store over one-sided READs, wrong in its first form. The simulated network finds the torn
//! read and shows its packets; the second form holds for as many seeds as one likes: `kv_store --seeds 10000`.
//!
//! The server lends a table and does nothing more. One client WRITEs entries, another READs them. Both move as
//! packets, and a packet is all that arrives at once: a READ may meet the first half of a WRITE.
#![expect(clippy::print_stdout, reason = "a program that says what it did")]

use std::fmt;

use softroce::prelude::*;
use softroce::sim::{Link, Sim};

/// Keys of the table.
const KEYS: u32 = 2;
/// Bytes of a value: three packets and a bit.
const VALUE: usize = 3 * 1024 + 100;
/// Version, value, checksum.
const ENTRY: usize = 8 + VALUE + 8;
const PUTS: u64 = 60;
const GETS: u64 = 60;

/// How an entry is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As it comes: wrong.
    Plain,
    /// Again, as long as the checksum does not fit.
    Checked,
}

/// Why a run is no good.
#[derive(Debug)]
enum Wrong {
    Verbs(Error),
    /// An entry was read that nobody has ever put, or an old one after a new one.
    Torn(String),
}

impl From<Error> for Wrong {
    fn from(e: Error) -> Self {
        Self::Verbs(e)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(e) => e.fmt(f),
            Self::Torn(what) => write!(f, "a get reads {what}"),
        }
    }
}

/// The entry that put number `version` makes.
fn entry(version: u64) -> Vec<u8> {
    let mut bytes = version.to_le_bytes().to_vec();
    let mut state = version;
    bytes.extend(
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()[0]
        })
        .take(VALUE),
    );
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes
}

/// FNV-1a. A table in earnest would take a better one.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &b| (sum ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

/// Somebody who uses the table.
struct Client {
    cq: CompletionQueue,
    qp: QueuePair,
    buffer: MemoryRegion,
    table: RemoteMr,
}

impl Client {
    /// Connects a host to the server's table.
    fn new(host: &Context, server: &mut Server) -> Result<Self> {
        let (pd, cq) = (host.alloc_pd()?, host.create_cq(16)?);
        let qp = pd.create_qp(QpType::Rc, &cq).build()?;
        let over = QpAttr::default().path_mtu(Mtu::B1024).timeout(8);
        let theirs = server.pd.create_qp(QpType::Rc, &server.cq).build()?;
        qp.connect_with(&theirs.endpoint(), over.clone())?;
        theirs.connect_with(&qp.endpoint(), over)?;
        server.qps.push(theirs);
        let buffer = pd.alloc_mr(ENTRY, Access::LOCAL)?;
        Ok(Self { cq, qp, buffer, table: server.table.remote() })
    }

    fn at(&self, key: u64) -> RemoteSlice {
        self.table.at(key * ENTRY as u64)
    }

    async fn put(&self, key: u64, version: u64) -> Result<()> {
        self.buffer.write(0, &entry(version));
        self.qp.post_send(SendWr::write(version, self.buffer.sge(..), self.at(key)))?;
        self.cq.next().await?.ok().map(drop)
    }

    async fn get(&self, key: u64, form: Form) -> Result<Vec<u8>> {
        loop {
            self.qp.post_send(SendWr::read(key, self.buffer.sge(..), self.at(key)))?;
            self.cq.next().await?.ok()?;
            let bytes = self.buffer.to_vec(0..ENTRY);
            let (body, sum) = bytes.split_at(ENTRY - 8);
            if form == Form::Plain || checksum(body) == number(sum) {
                return Ok(bytes);
            }
        }
    }
}

/// Who lends the table.
struct Server {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    table: MemoryRegion,
    qps: Vec<QueuePair>,
}

/// One run.
fn run(sim: &Sim, form: Form) -> Result<(), Wrong> {
    let us = Duration::from_micros;
    let link = Link { loss: 0.01, jitter: us(3), bits_per_s: 10_000_000_000, ..Link::default() };
    let [a, b, c] = sim.hosts(link);
    let (pd, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    let table = pd.alloc_mr(ENTRY * KEYS as usize, Access::REMOTE)?;
    (0..table.len()).step_by(ENTRY).for_each(|at| table.write(at, &entry(0)));
    let mut server = Server { pd, cq, table, qps: Vec::new() };
    let (writer, reader) = (Client::new(&b, &mut server)?, Client::new(&c, &mut server)?);

    sim.spawn(async move {
        for version in 1..=PUTS {
            writer.put(version % u64::from(KEYS), version).await?;
        }
        Ok(())
    });
    sim.block_on(async {
        let mut newest = [0; KEYS as usize];
        for i in 0..GETS {
            let key = i % u64::from(KEYS);
            let got = reader.get(key, form).await?;
            let version = number(&got);
            if let Some(at) = got.iter().zip(entry(version)).position(|(a, b)| *a != b) {
                let what = format!("version {version}, and another from byte {at} on");
                return Err(Wrong::Torn(what));
            }
            let newest = &mut newest[usize::try_from(key).unwrap_or(0)];
            if version < *newest {
                return Err(Wrong::Torn(format!("version {version} after version {newest}")));
            }
            *newest = version;
        }
        Ok(())
    })
}

fn main() {
    // `--seeds 10000`, or just `10000`.
    let seeds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(200);
    match Sim::try_seeds(1..=seeds, |sim| run(sim, Form::Plain)) {
        Err(torn) => println!("as it comes: {torn}"),
        Ok(runs) => println!("as it comes: nothing found by {runs} seeds"),
    }
    match Sim::try_seeds(1..=seeds, |sim| run(sim, Form::Checked)) {
        Err(torn) => println!("with a checksum: {torn}"),
        Ok(runs) => {
            println!("with a checksum: {runs} seeds, and every entry was put by somebody");
        }
    }
}
