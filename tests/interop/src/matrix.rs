//! What is run: rows (operations) and columns (who begins, over what, how much, and what goes wrong).
//!
//! The full product is too large for an emulated machine. What is run of it is three lists: every row, initiator, IP
//! version and fault at one size and path MTU; every row, initiator, path MTU and size over IPv4; and for the pairs that
//! these leave out, the list in `pairs.txt`.

use std::collections::BTreeSet;
use std::fmt;

use softroce::verbs::QpType;
use softroce::wire::opcode::Position;

use crate::relay::{Class, Dir, Faults, Rule};

/// Which operation, on which kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Row {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    Cas,
    Faa,
    AtomicWrite,
    Flush,
    Zero,
    Srq,
    Window,
    UcSend,
    UcWrite,
    UdSend,
    UdImm,
    Multicast,
}

impl Row {
    pub(crate) const ALL: [Self; 18] = [
        Self::Send,
        Self::SendImm,
        Self::SendInv,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::Cas,
        Self::Faa,
        Self::AtomicWrite,
        Self::Flush,
        Self::Zero,
        Self::Srq,
        Self::Window,
        Self::UcSend,
        Self::UcWrite,
        Self::UdSend,
        Self::UdImm,
        Self::Multicast,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "rc-send",
            Self::SendImm => "rc-send-imm",
            Self::SendInv => "rc-send-inv",
            Self::Write => "rc-write",
            Self::WriteImm => "rc-write-imm",
            Self::Read => "rc-read",
            Self::Cas => "rc-cas",
            Self::Faa => "rc-faa",
            Self::AtomicWrite => "rc-atomic-write",
            Self::Flush => "rc-flush",
            Self::Zero => "rc-zero",
            Self::Srq => "rc-srq",
            Self::Window => "rc-window",
            Self::UcSend => "uc-send",
            Self::UcWrite => "uc-write",
            Self::UdSend => "ud-send",
            Self::UdImm => "ud-imm",
            Self::Multicast => "ud-multicast",
        }
    }

    pub(crate) fn kind(self) -> QpType {
        match self {
            Self::UcSend | Self::UcWrite => QpType::Uc,
            Self::UdSend | Self::UdImm | Self::Multicast => QpType::Ud,
            _ => QpType::Rc,
        }
    }

    /// Messages are of a length that can be chosen.
    pub(crate) fn has_length(self) -> bool {
        !matches!(self, Self::Cas | Self::Faa | Self::AtomicWrite | Self::Zero)
    }

    /// Only kernels from 6.2 on know it.
    pub(crate) fn is_new(self) -> bool {
        matches!(self, Self::AtomicWrite | Self::Flush)
    }

    /// What may go wrong so that this row notices.
    pub(crate) fn faults(self, by: By) -> &'static [Fault] {
        use Fault::{
            Ack, Answer, AtomicAck, Clean, First, Last, Loss, Middle, Nak, Reorder, Request,
        };
        match self {
            // Where rdma_rxe repeats these, or answers a repetition, it does so wrongly: see `deviation`.
            Self::AtomicWrite | Self::Flush if by == By::Kernel => &[Clean, Request, Answer],
            Self::Flush => &[Clean, Reorder, Request, Answer],
            Self::Send
            | Self::SendImm
            | Self::SendInv
            | Self::Write
            | Self::WriteImm
            | Self::Srq
            | Self::Window => &[Clean, Loss, Reorder, Request, Ack, Nak],
            Self::Read => &[Clean, Loss, Reorder, Request, First, Middle, Last],
            Self::Cas | Self::Faa => &[Clean, Loss, Reorder, Request, AtomicAck],
            Self::AtomicWrite => &[Clean, Loss, Reorder, Request, Answer],
            Self::Zero => &[Clean, Loss, Reorder, Request, Ack, Answer],
            Self::UcSend | Self::UcWrite | Self::UdSend | Self::UdImm | Self::Multicast => {
                &[Clean, Loss, Reorder, Request]
            }
        }
    }
}

/// What goes wrong on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Clean,
    /// One packet in a hundred is lost, in both directions.
    Loss,
    /// Packets overtake each other.
    Reorder,
    // One packet is lost once.
    Request,
    Ack,
    /// A request, and the NAK for it.
    Nak,
    /// A READ response at this place.
    First,
    Middle,
    Last,
    /// The only READ response.
    Answer,
    AtomicAck,
}

impl Fault {
    pub(crate) const ALL: [Self; 11] = [
        Self::Clean,
        Self::Loss,
        Self::Reorder,
        Self::Request,
        Self::Ack,
        Self::Nak,
        Self::First,
        Self::Middle,
        Self::Last,
        Self::Answer,
        Self::AtomicAck,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Loss => "loss",
            Self::Reorder => "reorder",
            Self::Request => "lose-request",
            Self::Ack => "lose-ack",
            Self::Nak => "lose-nak",
            Self::First => "lose-first",
            Self::Middle => "lose-middle",
            Self::Last => "lose-last",
            Self::Answer => "lose-answer",
            Self::AtomicAck => "lose-atomic-ack",
        }
    }
}

/// Who posts the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum By {
    Us,
    Kernel,
}

impl By {
    pub(crate) const ALL: [Self; 2] = [Self::Us, Self::Kernel];

    pub(crate) fn dir(self) -> Dir {
        match self {
            Self::Us => Dir::Us,
            Self::Kernel => Dir::Kernel,
        }
    }
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) row: Row,
    pub(crate) by: By,
    pub(crate) v6: bool,
    pub(crate) mtu: usize,
    pub(crate) size: usize,
    pub(crate) fault: Fault,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            By::Us => "us",
            By::Kernel => "kernel",
        };
        let ip = if self.v6 { "v6" } else { "v4" };
        write!(
            f,
            "{} {by} {ip} mtu={} size={} {}",
            self.row.name(),
            self.mtu,
            self.size,
            self.fault.name()
        )
    }
}

/// The path MTU of the first list.
pub(crate) const MTU: usize = 1024;
/// Path MTUs.
pub(crate) const MTUS: [usize; 3] = [256, 1024, 4096];

/// Sizes where something changes.
pub(crate) fn sizes(row: Row, mtu: usize) -> Vec<usize> {
    if !row.has_length() {
        return vec![natural_size(row)];
    }
    let mut sizes = vec![0, 1, mtu - 1, mtu];
    if row.kind() != QpType::Ud {
        sizes.extend([mtu + 1, (64 << 10) + 3, 1 << 20]);
    }
    sizes
}

/// The size of the first list: five packets, or what the row has.
pub(crate) fn natural_size(row: Row) -> usize {
    match row {
        Row::Cas | Row::Faa | Row::AtomicWrite => 8,
        Row::Zero => 0,
        _ if row.kind() == QpType::Ud => 1021,
        _ => 4 * MTU + 5,
    }
}

/// Every row, initiator, IP version and fault.
pub(crate) fn faults() -> Vec<Cell> {
    let mut cells = Vec::new();
    for row in Row::ALL {
        for by in By::ALL {
            for v6 in [false, true] {
                for &fault in row.faults(by) {
                    cells.push(Cell { row, by, v6, mtu: MTU, size: natural_size(row), fault });
                }
            }
        }
    }
    cells
}

/// Every row, initiator, path MTU and size.
pub(crate) fn lengths() -> Vec<Cell> {
    let mut cells = Vec::new();
    for row in Row::ALL {
        for by in By::ALL {
            for mtu in MTUS {
                for size in sizes(row, mtu) {
                    cells.push(Cell { row, by, v6: false, mtu, size, fault: Fault::Clean });
                }
            }
        }
    }
    cells
}

/// How many cells the full product has.
pub(crate) fn product() -> usize {
    let of = |row: Row, by| {
        MTUS.iter().map(|&mtu| sizes(row, mtu).len()).sum::<usize>() * row.faults(by).len() * 2
    };
    Row::ALL.iter().map(|&row| of(row, By::Us) + of(row, By::Kernel)).sum()
}

/// The pairs that the two lists above leave out.
pub(crate) fn pairs() -> Vec<Cell> {
    include_str!("../pairs.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(parse)
        .collect()
}

/// Reads what `Display` prints.
fn parse(line: &str) -> Option<Cell> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[row, by, ip, mtu, size, fault] = words.as_slice() else { return None };
    Some(Cell {
        row: Row::ALL.into_iter().find(|r| r.name() == row)?,
        by: if by == "us" { By::Us } else { By::Kernel },
        v6: ip == "v6",
        mtu: mtu.strip_prefix("mtu=")?.parse().ok()?,
        size: size.strip_prefix("size=")?.parse().ok()?,
        fault: Fault::ALL.into_iter().find(|f| f.name() == fault)?,
    })
}

/// Values of two columns that stand in one cell.
type Pair = [(&'static str, usize); 2];

/// All pairs in a cell. Sizes count by their place in the list, so that MTU + 1 is one column whatever the MTU.
fn pairs_in(cell: &Cell) -> Vec<Pair> {
    let place = sizes(cell.row, cell.mtu).iter().position(|&size| size == cell.size);
    let size = match place {
        Some(place) if cell.row.has_length() => place,
        // What a row has without choice.
        _ => 100,
    };
    let values = [
        ("row", cell.row as usize),
        ("by", cell.by as usize),
        ("ip", usize::from(cell.v6)),
        ("mtu", cell.mtu),
        ("size", size),
        ("fault", cell.fault as usize),
    ];
    let mut pairs = Vec::new();
    for (i, &a) in values.iter().enumerate() {
        pairs.extend(values[i + 1..].iter().map(|&b| [a, b]));
    }
    pairs
}

/// Whether there are packets that the fault can meet, and no more losses than can be waited for.
fn makes_sense(cell: &Cell) -> bool {
    let packets = cell.size.div_ceil(cell.mtu);
    match cell.fault {
        Fault::Nak | Fault::Middle => packets >= 4,
        Fault::First | Fault::Last => packets >= 2,
        Fault::Answer if cell.row == Row::Read => packets <= 1,
        Fault::Loss | Fault::Reorder => packets <= 300,
        _ => true,
    }
}

/// Every cell that could be run.
fn everything() -> Vec<Cell> {
    let mut cells = Vec::new();
    for row in Row::ALL {
        for by in By::ALL {
            for &fault in row.faults(by) {
                for mtu in MTUS {
                    for size in sizes(row, mtu) {
                        cells.extend([false, true].map(|v6| Cell {
                            row,
                            by,
                            v6,
                            mtu,
                            size,
                            fault,
                        }));
                    }
                }
            }
        }
    }
    cells.retain(makes_sense);
    cells
}

/// The list of pairs made anew: as few cells as a greedy choice needs.
pub(crate) fn choose_pairs() -> Vec<Cell> {
    let all = everything();
    let covered: BTreeSet<Pair> = faults().iter().chain(&lengths()).flat_map(pairs_in).collect();
    let mut missing: BTreeSet<Pair> =
        all.iter().flat_map(pairs_in).filter(|pair| !covered.contains(pair)).collect();
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let news =
            |cell: &&Cell| pairs_in(cell).iter().filter(|pair| missing.contains(*pair)).count();
        // Of equals the first.
        let Some(best) = all.iter().rev().max_by_key(news) else { break };
        for pair in pairs_in(best) {
            missing.remove(&pair);
        }
        chosen.push(*best);
    }
    chosen
}

/// Of the first list, each row and initiator once clean, and each row's fault once; who begins and over what
/// alternates.
pub(crate) fn quick_faults() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (r, row) in Row::ALL.into_iter().enumerate() {
        for by in By::ALL {
            for (f, &fault) in row.faults(by).iter().enumerate() {
                let turn = r + f + usize::from(by == By::Kernel);
                cells.push(Cell {
                    row,
                    by,
                    v6: turn % 2 == 1,
                    mtu: MTU,
                    size: natural_size(row),
                    fault,
                });
            }
        }
    }
    cells
}

/// Of the second list, each row and size once; who begins and the path MTU alternate.
pub(crate) fn quick_lengths() -> Vec<Cell> {
    let mut turn = 0;
    let mut cells = Vec::new();
    for row in Row::ALL {
        for size in 0..sizes(row, MTU).len() {
            turn += 1;
            let (mtu, by) = (MTUS[turn % 3], By::ALL[turn / 3 % 2]);
            cells.push(Cell {
                row,
                by,
                v6: false,
                mtu,
                size: sizes(row, mtu)[size],
                fault: Fault::Clean,
            });
        }
    }
    cells
}

/// Where rdma_rxe is known to do other than the standard says: the status that a request must end with, and why.
/// `old` is a kernel before 6.2.
pub(crate) fn deviation(cell: &Cell, old: bool) -> Option<(u32, &'static str)> {
    match (cell.row, cell.by, cell.fault) {
        (Row::AtomicWrite | Row::Flush, By::Kernel, Fault::Request) => {
            Some((10, "rdma_rxe sends ATOMIC WRITE and FLUSH again with the address 0"))
        }
        (Row::Flush, By::Us, Fault::Answer) => {
            Some((12, "rdma_rxe does not answer a FLUSH a second time"))
        }
        (Row::Zero, By::Us, Fault::Answer) if !old => {
            Some((12, "rdma_rxe does not answer a READ of no bytes a second time"))
        }
        _ => None,
    }
}

/// What the link does for a fault, once the requests come.
pub(crate) fn link_faults(cell: &Cell, seed: u64) -> Faults {
    let requests = cell.by.dir();
    let answers = requests.other();
    let lose =
        |from, class, skip| Faults { rules: vec![Rule { from, class, skip }], ..Faults::default() };
    // In the middle of the message, if it has one.
    let middle = match (cell.row, cell.by) {
        (Row::Read, _) => 0,
        // The FLUSH itself, behind the WRITE.
        (Row::Flush, By::Kernel) => cell.size.div_ceil(cell.mtu).max(1),
        _ if cell.size > 2 * cell.mtu => 2,
        _ => 0,
    };
    let middle = u32::try_from(middle).unwrap_or(u32::MAX);
    match cell.fault {
        Fault::Clean => Faults::default(),
        Fault::Loss => Faults { loss: Some(seed), ..Faults::default() },
        Fault::Reorder => {
            let from = if cell.row == Row::Read { answers } else { requests };
            Faults { reorder: Some(from), ..Faults::default() }
        }
        Fault::Request => lose(requests, Class::Request, middle),
        Fault::Ack => lose(answers, Class::Ack, 0),
        Fault::Nak => Faults {
            rules: vec![
                Rule { from: requests, class: Class::Request, skip: middle },
                Rule { from: answers, class: Class::Nak, skip: 0 },
            ],
            ..Faults::default()
        },
        Fault::First => lose(answers, Class::Response(Position::First), 0),
        Fault::Middle => lose(answers, Class::Response(Position::Middle), 1),
        Fault::Last => lose(answers, Class::Response(Position::Last), 0),
        Fault::Answer => lose(answers, Class::Response(Position::Only), 0),
        Fault::AtomicAck => lose(answers, Class::AtomicAck, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_in_one_of_the_lists() {
        let listed = pairs();
        assert_eq!(listed, choose_pairs(), "softroce-interop --pairs prints the list anew");
        assert!(listed.iter().all(makes_sense));
        let covered: BTreeSet<Pair> =
            [faults(), lengths(), listed].concat().iter().flat_map(pairs_in).collect();
        let missing: Vec<Pair> =
            everything().iter().flat_map(pairs_in).filter(|pair| !covered.contains(pair)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn names_are_read_as_they_are_printed() {
        for cell in everything() {
            assert_eq!(parse(&cell.to_string()), Some(cell));
        }
    }

    #[test]
    fn the_quick_run_has_every_row_initiator_and_fault() {
        let quick = quick_faults();
        for row in Row::ALL {
            for by in By::ALL {
                for &fault in row.faults(by) {
                    assert!(quick.iter().any(|c| (c.row, c.by, c.fault) == (row, by, fault)));
                }
            }
        }
    }
}
