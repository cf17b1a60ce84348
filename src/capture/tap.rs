//! A port that writes down what passes through it.

use std::borrow::Cow;
use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::net::IpAddr;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::Writer;
use super::writer::envelope;
use crate::net::{PortCaps, RxMeta, Transmit};
use crate::port::{Health, Port, PortAddress, PortStats, RxBatch, SendError, TxBatch};
use crate::time::Instant;
use crate::wire::frame::Envelope;
use crate::wire::icrc::{self, IpFields};

/// A port around another one, with a capture of every datagram that is sent and received.
///
/// The capture is the network's view: one frame per datagram, also for what left in segments or came in
/// merged; whatever the engine makes of it. The IPv4 identification is the one the ICRC was computed with:
/// of what is sent it is known, of what is received it is found out ([`icrc::recover_ident`]) where the
/// port does not see it. A received datagram that no identification explains has a wrong ICRC in the
/// capture as well.
///
/// What the system refused to send is in the capture, with a comment that says so.
///
/// *Rules.* The file holds whole blocks at every moment between two calls, also if the process is killed:
/// each call ends with one write of all that it added. If that fails (the disk is full), the traffic goes
/// on without a capture, and [`PortStats::uncaptured`] counts what is missing.
pub struct Tap<P, W: Write = File> {
    port: P,
    /// `None` once a write has failed.
    writer: Option<Writer<Whole<W>>>,
    clock: Box<dyn Fn() -> Instant + Send>,
    staged: Staged,
    uncaptured: u64,
}

impl<P: Port> Tap<P> {
    /// Captures to a new file at `path`; one that is there is overwritten. `clock` tells the time of the
    /// frames, since 1970.
    ///
    /// # Errors
    /// The file cannot be made; [`ResourceBusy`](io::ErrorKind::ResourceBusy): somebody else captures to it.
    pub fn create(
        port: P,
        path: &Path,
        clock: impl Fn() -> Instant + Send + 'static,
    ) -> io::Result<Self> {
        // Emptied only after it is ours.
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let why = "another capture is being written to it";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            // Not every file can be locked.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Self::new(port, file, clock)
    }
}

impl<P: Port, W: Write + Send> Tap<P, W> {
    /// Captures to `out`, unbuffered: each call of the port makes one write.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(port: P, out: W, clock: impl Fn() -> Instant + Send + 'static) -> io::Result<Self> {
        let mut writer = Writer::new(Whole { out, bytes: Vec::new() })?;
        writer.flush()?;
        let staged = Staged::default();
        Ok(Self { port, writer: Some(writer), clock: Box::new(clock), staged, uncaptured: 0 })
    }
}

/// Collects whole blocks, and hands them over in one piece.
struct Whole<W> {
    out: W,
    bytes: Vec<u8>,
}

impl<W: Write> Write for Whole<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.bytes.is_empty() {
            self.out.write_all(&self.bytes)?;
            self.bytes.clear();
        }
        self.out.flush()
    }
}

/// A copy of what a batch held before it was sent: afterwards it only tells what is left.
#[derive(Default)]
struct Staged {
    entries: Vec<Transmit>,
    bytes: Vec<u8>,
}

impl Staged {
    fn take(&mut self, tx: &TxBatch) {
        self.entries.clear();
        self.bytes.clear();
        for (transmit, bytes) in tx.entries() {
            self.entries.push(*transmit);
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Datagrams that are no longer in `tx`: where they went, with which identification.
    fn gone(&self, tx: &TxBatch) -> impl Iterator<Item = (&Transmit, u16, &[u8])> {
        let (mut left, mut bytes_left) = (0, 0);
        for (transmit, _) in tx.entries() {
            left += 1;
            bytes_left += transmit.len;
        }
        // Of the first entry that is left some segments may be gone.
        let entries = &self.entries[..(self.entries.len() - left + 1).min(self.entries.len())];
        let mut gone = &self.bytes[..self.bytes.len() - bytes_left];
        entries.iter().flat_map(move |transmit| {
            let (bytes, rest) = gone.split_at(transmit.len.min(gone.len()));
            gone = rest;
            let size = transmit.segment_size.map_or(bytes.len(), usize::from).max(1);
            bytes
                .chunks(size)
                .zip(0..=u16::MAX)
                .map(move |(datagram, k)| (transmit, transmit.ident.wrapping_add(k), datagram))
        })
    }
}

/// Adds a datagram. After an error of the file there is no writer any more.
fn record<W: Write>(
    writer: &mut Option<Writer<Whole<W>>>,
    uncaptured: &mut u64,
    time: Instant,
    envelope: &Envelope,
    datagram: &[u8],
    comment: Option<&str>,
) {
    // The writer fails on what cannot be a frame: the collected bytes are in memory.
    let taken =
        writer.as_mut().is_some_and(|w| w.write_frame(time, envelope, datagram, comment).is_ok());
    *uncaptured += u64::from(!taken);
}

/// Hands over what was added since the last call.
fn settle<W: Write>(writer: &mut Option<Writer<Whole<W>>>, uncaptured: &mut u64, added: usize) {
    if writer.as_mut().is_some_and(|w| w.flush().is_err()) {
        *writer = None;
        *uncaptured += added as u64;
    }
}

/// The IP fields of a datagram that was received.
fn received(meta: &RxMeta, datagram: &[u8]) -> Envelope {
    let path = &meta.path;
    let df = meta.df.unwrap_or(true);
    let ident = meta.ident.unwrap_or_else(|| {
        let ip = IpFields::new(path.src, path.dst, 0, df, path.src_port);
        ip.and_then(|ip| icrc::recover_ident(&ip, datagram)).unwrap_or(meta.gro_index)
    });
    Envelope { df, ..envelope(path, ident) }
}

impl<P: Port, W: Write + Send> Port for Tap<P, W> {
    fn caps(&self) -> PortCaps {
        self.port.caps()
    }

    fn recv(&mut self, rx: &mut RxBatch) -> io::Result<()> {
        self.port.recv(rx)?;
        if !rx.is_empty() {
            let time = (self.clock)();
            let mut added = 0;
            for (meta, datagram) in rx.iter() {
                let envelope = received(&meta, datagram);
                record(&mut self.writer, &mut self.uncaptured, time, &envelope, datagram, None);
                added += 1;
            }
            settle(&mut self.writer, &mut self.uncaptured, added);
        }
        Ok(())
    }

    fn send(&mut self, tx: &mut TxBatch) -> io::Result<()> {
        self.staged.take(tx);
        let refused = self.port.stats().send_errors;
        // Before it leaves: the answer must not seem to be older.
        let time = (self.clock)();
        let result = self.port.send(tx);
        let refused = self.port.stats().send_errors - refused;
        let comment = (refused > 0).then(|| {
            let why = self.port.last_error();
            let why = why.map_or(Cow::Borrowed("no reason given"), |e| e.to_string().into());
            format!("{refused} of the datagrams with this time and comment were not sent: {why}")
        });
        let mut added = 0;
        for (transmit, ident, datagram) in self.staged.gone(tx) {
            let (envelope, comment) = (envelope(&transmit.path, ident), comment.as_deref());
            record(&mut self.writer, &mut self.uncaptured, time, &envelope, datagram, comment);
            added += 1;
        }
        settle(&mut self.writer, &mut self.uncaptured, added);
        result
    }

    #[cfg(unix)]
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.port.readiness()
    }

    #[cfg(unix)]
    fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        self.port.blocked_on()
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.port.join(group)
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        self.port.leave(group)
    }

    fn addresses(&self) -> &[PortAddress] {
        self.port.addresses()
    }

    fn health(&self) -> Health {
        self.port.health()
    }

    fn mtu(&self) -> u32 {
        self.port.mtu()
    }

    fn stats(&self) -> PortStats {
        PortStats { uncaptured: self.uncaptured, ..self.port.stats() }
    }

    fn last_error(&self) -> Option<SendError> {
        self.port.last_error()
    }

    fn refresh(&mut self) {
        self.port.refresh();
    }
}

impl<P: fmt::Debug, W: Write> fmt::Debug for Tap<P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap")
            .field("port", &self.port)
            .field("uncaptured", &self.uncaptured)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{Icrc, Reader, inspect};
    use crate::net::{self, Ident, SrcPort};
    use crate::wire::frame::dissect;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    /// A port that is told what to do.
    #[derive(Debug, Default)]
    struct Script {
        /// To be received: metadata, bytes, segment size.
        incoming: Vec<(RxMeta, Vec<u8>, Option<u16>)>,
        /// What each send does, in order; after that it sends all.
        sends: Vec<Act>,
        stats: PortStats,
    }

    #[derive(Debug)]
    enum Act {
        Entries(usize),
        Segments(usize),
        RefuseFirst,
    }

    impl Port for Script {
        fn caps(&self) -> PortCaps {
            PortCaps {
                src_port: SrcPort::Fixed(4791),
                ident: Ident::ZeroThenIndex,
                gso_segments_v4: 64,
                gso_segments_v6: 64,
                max_transmit: 65_507,
                mtu: 65_536,
                rx_buffer: None,
            }
        }
        fn recv(&mut self, rx: &mut RxBatch) -> io::Result<()> {
            rx.clear();
            for (meta, bytes, size) in self.incoming.drain(..) {
                rx.spare().unwrap()[..bytes.len()].copy_from_slice(&bytes);
                rx.commit(meta, bytes.len(), size);
            }
            Ok(())
        }
        fn send(&mut self, tx: &mut TxBatch) -> io::Result<()> {
            if self.sends.is_empty() {
                tx.consume(usize::MAX);
                return Ok(());
            }
            match self.sends.remove(0) {
                Act::Entries(n) => tx.consume(n),
                Act::Segments(bytes) => tx.consume_segments(bytes),
                Act::RefuseFirst => {
                    self.stats.send_errors += tx.first().unwrap().segments() as u64;
                    tx.consume(usize::MAX);
                }
            }
            Ok(())
        }
        #[cfg(unix)]
        fn readiness(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn join(&mut self, _group: IpAddr) -> io::Result<()> {
            Ok(())
        }
        fn leave(&mut self, _group: IpAddr) -> io::Result<()> {
            Ok(())
        }
        fn addresses(&self) -> &[PortAddress] {
            &[]
        }
        fn stats(&self) -> PortStats {
            self.stats
        }
        fn last_error(&self) -> Option<SendError> {
            let dst = path().dst;
            (self.stats.send_errors > 0).then_some(SendError {
                dst,
                len: 24,
                errno: 1,
                neighbour: None,
            })
        }
    }

    fn path() -> net::Path {
        net::Path {
            src: [127, 0, 0, 2].into(),
            dst: [127, 0, 0, 3].into(),
            src_port: 4791,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        }
    }

    fn v6() -> net::Path {
        net::Path { src: "fd00::1".parse().unwrap(), dst: "fd00::2".parse().unwrap(), ..path() }
    }

    /// An RC SEND ONLY with this many bytes, sealed for this identification.
    fn sealed(path: &net::Path, ident: u16, payload: usize) -> Vec<u8> {
        let mut bytes = vec![4, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 5];
        bytes.extend((0..=255).cycle().take(payload));
        let ip = IpFields::new(path.src, path.dst, ident, true, path.src_port).unwrap();
        let icrc = icrc::compute(&ip, &bytes);
        bytes.extend(icrc.to_le_bytes());
        bytes
    }

    /// What a capture holds: verdict on the ICRC, identification, bytes of payload, time.
    fn frames(file: &[u8]) -> Vec<(bool, u16, usize, u64)> {
        let mut reader = Reader::new(file).unwrap();
        let mut all = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            let frame = dissect(record.link, record.bytes).unwrap();
            let packet = inspect(&frame).unwrap();
            let time = record.time.unwrap().as_nanos();
            let payload = packet.payload_len().unwrap();
            all.push((packet.icrc == Icrc::Ok, frame.envelope.ident, payload, time));
        }
        all
    }

    /// A file that the test can look at while the tap has it, and that may fill up.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>, Option<usize>);

    impl Shared {
        fn frames(&self) -> Vec<(bool, u16, usize, u64)> {
            frames(&self.0.lock().unwrap())
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut file = self.0.lock().unwrap();
            if self.1.is_some_and(|max| file.len() + bytes.len() > max) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            file.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Counts its readings.
    fn clock() -> impl Fn() -> Instant + Send {
        let n = AtomicU64::new(0);
        move || Instant::from_nanos(n.fetch_add(1, Ordering::Relaxed))
    }

    fn stage(tx: &mut TxBatch, path: net::Path, bytes: &[u8], segment_size: Option<u16>) {
        tx.spare()[..bytes.len()].copy_from_slice(bytes);
        tx.commit(Transmit { path, ident: 0, len: bytes.len(), segment_size }, 0);
    }

    #[test]
    fn segments_are_frames_of_their_own() {
        let file = Shared::default();
        let mut tap = Tap::new(Script::default(), file.clone(), clock()).unwrap();
        let mut tx = TxBatch::default();
        stage(&mut tx, path(), &sealed(&path(), 0, 8), None);
        let train =
            [sealed(&path(), 0, 100), sealed(&path(), 1, 100), sealed(&path(), 2, 20)].concat();
        stage(&mut tx, path(), &train, Some(116));
        tap.send(&mut tx).unwrap();
        let expected = [(true, 0, 8, 0), (true, 0, 100, 0), (true, 1, 100, 0), (true, 2, 20, 0)];
        assert_eq!(file.frames(), expected, "before the tap is closed");
    }

    #[test]
    fn what_stays_in_the_batch_is_captured_when_it_leaves() {
        let sends = vec![Act::Entries(0), Act::Entries(1), Act::Segments(232), Act::Entries(1)];
        let file = Shared::default();
        let script = Script { sends, ..Script::default() };
        let mut tap = Tap::new(script, file.clone(), clock()).unwrap();
        let mut tx = TxBatch::default();
        stage(&mut tx, v6(), &sealed(&v6(), 0, 4), None);
        let train: Vec<u8> = [100, 100, 40].map(|payload| sealed(&v6(), 0, payload)).concat();
        stage(&mut tx, v6(), &train, Some(116));
        stage(&mut tx, v6(), &sealed(&v6(), 0, 8), None);
        let seen: Vec<Vec<usize>> = (0..5)
            .map(|_| {
                tap.send(&mut tx).unwrap();
                file.frames().iter().map(|f| f.2).collect()
            })
            .collect();
        let all = [4, 100, 100, 40, 8];
        assert_eq!(seen, [&all[..0], &all[..1], &all[..3], &all[..4], &all[..]]);
        assert!(file.frames().iter().all(|f| f.0), "ICRC");
    }

    #[test]
    fn what_was_refused_says_so() {
        let file = Shared::default();
        let script = Script { sends: vec![Act::RefuseFirst], ..Script::default() };
        let mut tap = Tap::new(script, file.clone(), clock()).unwrap();
        let mut tx = TxBatch::default();
        for _ in 0..3 {
            stage(&mut tx, path(), &sealed(&path(), 0, 8), None);
        }
        tap.send(&mut tx).unwrap();
        let bytes = file.0.lock().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let comment = "1 of the datagrams with this time and comment were not sent: 24 bytes to \
                       127.0.0.3 not sent: Operation not permitted";
        assert_eq!(text.matches(comment).count(), 3, "{text}");
    }

    #[test]
    fn identifications_of_what_arrives_are_found_out() {
        let meta = |path, ident| RxMeta { path, ident, df: None, gro_index: 0 };
        let mut torn = sealed(&path(), 0, 32);
        torn[20] ^= 1;
        let incoming = vec![
            (meta(path(), None), sealed(&path(), 0, 12), None),
            // Merged by the kernel.
            (
                meta(path(), None),
                [0, 1, 2].map(|k| sealed(&path(), k, 16)).concat(),
                Some(12 + 16 + 4),
            ),
            // From a kernel that counts up.
            (meta(path(), None), sealed(&path(), 0xbeef, 20), None),
            // The port has seen it.
            (meta(path(), Some(77)), sealed(&path(), 77, 24), None),
            (meta(v6(), None), sealed(&v6(), 0, 28), None),
            (meta(path(), None), torn, None),
        ];
        let file = Shared::default();
        let script = Script { incoming, ..Script::default() };
        let mut tap = Tap::new(script, file.clone(), clock()).unwrap();
        let mut rx = RxBatch::new(8, 1 << 12);
        tap.recv(&mut rx).unwrap();
        assert_eq!(rx.datagrams(), 8);
        let expected = [
            (true, 0, 12, 0),
            (true, 0, 16, 0),
            (true, 1, 16, 0),
            (true, 2, 16, 0),
            (true, 0xbeef, 20, 0),
            (true, 77, 24, 0),
            (true, 0, 28, 0),
            (false, 0, 32, 0),
        ];
        assert_eq!(file.frames(), expected);
        // Nothing there: the clock is not even asked.
        tap.recv(&mut rx).unwrap();
        assert_eq!(file.frames().len(), 8);
        assert_eq!((tap.clock)(), Instant::from_nanos(1));
    }

    #[test]
    fn traffic_goes_on_without_a_file() {
        let file = Shared(Arc::default(), Some(400));
        let mut tap = Tap::new(Script::default(), file.clone(), clock()).unwrap();
        for n in 0..5 {
            let mut tx = TxBatch::default();
            stage(&mut tx, path(), &sealed(&path(), 0, 40), None);
            tap.send(&mut tx).unwrap();
            assert!(tx.is_empty());
            assert_eq!(tap.stats().uncaptured, n.max(1) - 1, "two fit");
        }
        assert_eq!(file.frames().len(), 2, "and the file is whole");
        let incoming = (RxMeta { path: path(), ident: None, df: None, gro_index: 0 }, vec![4; 40]);
        tap.port.incoming.push((incoming.0, incoming.1, Some(20)));
        tap.recv(&mut RxBatch::new(1, 64)).unwrap();
        assert_eq!(tap.stats().uncaptured, 5);
        assert!(Tap::new(Script::default(), Shared(Arc::default(), Some(9)), clock()).is_err());
    }

    #[test]
    fn a_file_has_one_capture_at_a_time() {
        let name = format!("softroce-tap-{}.pcapng", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, [7; 1000]).unwrap();
        let first = Tap::create(Script::default(), &path, clock()).unwrap();
        assert!(frames(&std::fs::read(&path).unwrap()).is_empty(), "what was there is gone");
        let e = Tap::create(Script::default(), &path, clock()).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::ResourceBusy);
        drop(first);
        assert!(Tap::create(Script::default(), &path, clock()).is_ok());
        std::fs::remove_file(&path).unwrap();
        let nowhere = path.join("no").join("such");
        assert!(Tap::create(Script::default(), &nowhere, clock()).is_err());
    }

    #[test]
    fn all_else_is_the_ports() {
        let tap = Tap::new(Script::default(), Vec::new(), clock()).unwrap();
        assert_eq!(tap.caps(), Script::default().caps());
        assert_eq!(tap.stats(), PortStats::default());
        assert!(tap.addresses().is_empty() && tap.last_error().is_none());
        assert!(format!("{tap:?}").starts_with("Tap { port: Script {"));
    }
}
