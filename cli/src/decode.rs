//! `softroce decode`: what is in a capture, packet by packet, and whether the ICRCs are right.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use softroce::capture::{Analysis, Icrc, Inspected, Note, ReadError, Reader, Record, inspect};
use softroce::time::Instant;
use softroce::wire::frame::{NotRoce, dissect};
use softroce::wire::opcode;

use crate::output::{self, count};

/// Decode the RoCEv2 packets of captures (pcap or pcapng) and check their ICRCs.
///
/// Prints one line per packet and a summary per file. Ethernet (with VLAN tags), Linux cooked and raw IP
/// captures are read.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 0 if all files were read, 1 if an ICRC is wrong in one of them, 2 if one could not be read.

An ICRC counts as \"other\" if it cannot be judged or is wrong for a known reason: packets cut by the \
capture, sends that the kernel had not split yet (captures of a loopback interface), and FLUSH packets of \
Linux rdma_rxe.")]
pub(crate) struct Args {
    /// Print one JSON object per file instead of text
    #[arg(long)]
    json: bool,
    /// Print the summaries only
    #[arg(short, long)]
    quiet: bool,
    /// Capture files; "-" is the standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// What is counted in a file. The JSON object, in this order.
#[derive(Debug, Default, Serialize)]
struct Summary {
    file: String,
    /// All frames.
    packets: u64,
    /// Those that carry RoCEv2: the sum of the next three, and of the opcodes.
    rocev2: u64,
    icrc_ok: u64,
    icrc_bad: u64,
    icrc_other: u64,
    opcodes: BTreeMap<String, u64>,
    /// Why the other frames are not RoCEv2.
    #[serde(skip)]
    others: BTreeMap<String, u64>,
    /// What was noted, by kind.
    #[serde(skip)]
    notes: BTreeMap<&'static str, u64>,
    /// How many frames have a link type that is not understood, and the last such type.
    #[serde(skip)]
    unknown_link: (u64, u16),
}

/// Why decoding stops.
enum Stop {
    /// The file is bad from here on.
    Input(ReadError),
    /// Nobody takes the output.
    Output(io::Error),
}

impl From<ReadError> for Stop {
    fn from(e: ReadError) -> Self {
        Self::Input(e)
    }
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Self {
        Self::Output(e)
    }
}

/// Decodes all files and says how it went.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut status = 0;
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = files(args, &mut out, &mut status).and_then(|()| out.flush());
    output::printed(printed, status)
}

/// Decodes one file after the other. An error is one of writing the output.
fn files(args: &Args, out: &mut dyn Write, status: &mut u8) -> io::Result<()> {
    for path in &args.files {
        let mut summary = Summary { file: path.display().to_string(), ..Summary::default() };
        let lines = !args.quiet && !args.json;
        let bad = match file(path, lines, &mut summary, out) {
            Ok(()) => summary.complaint(),
            Err(Stop::Input(e)) => Some(format!("{} {e}", path.display())),
            Err(Stop::Output(e)) => return Err(e),
        };
        *status = match (&bad, summary.icrc_bad) {
            (Some(_), _) => output::BAD_INPUT,
            (None, 0) => *status,
            (None, _) => 1.max(*status),
        };
        if !args.json {
            // Of a bad file, what there is.
            if bad.is_none() || summary.packets > 0 {
                summary.print(out)?;
            }
        } else if bad.is_none() {
            // Programs read figures of whole files only.
            serde_json::to_writer(&mut *out, &summary)?;
            writeln!(out)?;
        }
        if let Some(bad) = bad {
            out.flush()?;
            output::complain(format_args!("{bad}"));
        }
    }
    Ok(())
}

fn file(path: &Path, lines: bool, summary: &mut Summary, out: &mut dyn Write) -> Result<(), Stop> {
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(ReadError::from)?)
    };
    let mut reader = Reader::new(BufReader::new(input))?;
    let mut analysis = Analysis::new();
    let mut first = None;
    while let Some(record) = reader.next_record()? {
        summary.packets += 1;
        let Some(packet) = find(&record, summary) else { continue };
        summary.count(&packet);
        let notes = analysis.observe(&packet);
        summary.note(&notes);
        if lines {
            let began = *first.get_or_insert(record.time);
            write!(out, "{:>6} ", record.number)?;
            print_time(out, began, record.time)?;
            print_packet(out, &packet, &notes)?;
        }
        for segment in packet.segments() {
            let Some(packet) = inspect(&segment) else { continue };
            let notes = analysis.observe(&packet);
            summary.note(&notes);
            if lines {
                write!(out, "       | ")?;
                print_packet(out, &packet, &notes)?;
            }
        }
    }
    Ok(())
}

/// The RoCEv2 datagram of a frame. Why there is none is counted.
fn find<'r>(record: &Record<'r>, summary: &mut Summary) -> Option<Inspected<'r>> {
    let why = match dissect(record.link, record.bytes) {
        Ok(datagram) => match inspect(&datagram) {
            Some(packet) => return Some(packet),
            None if datagram.is_cut() => "UDP port 4791, cut before the end of the BTH".to_owned(),
            None => "UDP port 4791, too short for a BTH and an ICRC".to_owned(),
        },
        Err(why) => {
            if let NotRoce::LinkType(raw) = why {
                summary.unknown_link = (summary.unknown_link.0 + 1, raw);
            }
            why.to_string()
        }
    };
    *summary.others.entry(why).or_default() += 1;
    None
}

/// Seconds since the first RoCEv2 packet of the file.
fn print_time(
    out: &mut dyn Write,
    began: Option<Instant>,
    time: Option<Instant>,
) -> io::Result<()> {
    match began.zip(time) {
        Some((began, time)) => {
            let passed = time.saturating_since(began);
            write!(out, "{:>5}.{:09} ", passed.as_secs(), passed.subsec_nanos())
        }
        None => write!(out, "{:>16}", "- "),
    }
}

fn print_packet(out: &mut dyn Write, packet: &Inspected<'_>, notes: &[Note]) -> io::Result<()> {
    write!(out, "{packet}")?;
    for note in notes {
        write!(out, " [{note}]")?;
    }
    writeln!(out)
}

impl Summary {
    fn count(&mut self, packet: &Inspected<'_>) {
        self.rocev2 += 1;
        *self.opcodes.entry(opcode::name_of(packet.bth.opcode)).or_default() += 1;
        match packet.icrc {
            Icrc::Ok => self.icrc_ok += 1,
            Icrc::Bad { .. } => self.icrc_bad += 1,
            Icrc::RxeFlush | Icrc::Cut | Icrc::Unsplit { .. } => self.icrc_other += 1,
        }
    }

    fn note(&mut self, notes: &[Note]) {
        for note in notes {
            *self.notes.entry(note.name()).or_default() += 1;
        }
    }

    /// A file of which nothing is understood is a bad one.
    fn complaint(&self) -> Option<String> {
        let (frames, raw) = self.unknown_link;
        (frames > 0 && frames == self.packets).then(|| {
            format!(
                "{} has link type {raw}: only Ethernet, Linux cooked and raw IP are understood",
                self.file
            )
        })
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{}: {}, {} of them RoCEv2; ICRC: {} ok, {} bad, {} other",
            self.file,
            count(self.packets, "packet"),
            self.rocev2,
            self.icrc_ok,
            self.icrc_bad,
            self.icrc_other
        )?;
        for (name, count) in &self.opcodes {
            writeln!(out, "{count:>9} {name}")?;
        }
        for (heading, counts) in [
            ("noted", self.notes.iter().map(|(n, c)| (*n, *c)).collect::<Vec<_>>()),
            ("other frames", self.others.iter().map(|(n, c)| (n.as_str(), *c)).collect()),
        ] {
            if !counts.is_empty() {
                writeln!(out, "  {heading}:")?;
            }
            for (name, count) in counts {
                writeln!(out, "{count:>9} {name}")?;
            }
        }
        Ok(())
    }
}
