//! The frames port: Ethernet frames through a UNIX socket, without root and without the kernel's network.
//!
//! It speaks what QEMU speaks at `-netdev dgram` and `-netdev stream` (see `qemu-system-x86_64(1)`), so a virtual
//! machine's network card is at the other end of the cable; or another port of this kind. As datagrams, each frame
//! is one: both ends have a socket file, `local.path` and `remote.path` of QEMU. As a stream, each frame stands
//! behind its length in four bytes, highest first; one end listens and the other connects.
//!
//! What a station does with frames is in [`ether`](super::ether). Here they are only carried.
//!
//! *Owns.* The sockets, and their files: a file is removed when the port that made it is closed. One that is left
//! over from a program that is gone, which nobody is bound to, is replaced.
//!
//! *Rules.* The other end may come, go, and come back, at any time. While it is not there the port is down
//! ([`Port::health`](super::Port::health)), what is sent is lost and counted, and a few times in a second it is
//! looked for. Bytes that are no frames end a connection; a new one begins anew.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::epoll::Epoll;
use socket2::{Domain, SockAddr, Socket, Type};

use super::PortStats;
use super::ether::{EtherPort, Frames, Got, Link, StationConfig};
use crate::time::{Duration, Instant};

mod dgram;
mod stream;

pub use dgram::Dgram;
pub use stream::Stream;

/// How often the other end is looked for.
const RETRY: Duration = Duration::from_millis(200);
/// Bytes of socket buffer to ask for.
const BUFFER: usize = 4 << 20;

/// How frames travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cable {
    /// A frame is a datagram.
    Dgram {
        /// Where ours arrive: QEMU's `remote.path`.
        ours: PathBuf,
        /// Where theirs arrive: QEMU's `local.path`.
        peer: PathBuf,
    },
    /// Length and frame, on a connection to whoever listens there (QEMU's `server=on`).
    Connect(PathBuf),
    /// Length and frame, on the connection of whoever connects (QEMU's `server=off`). One at a time.
    Listen(PathBuf),
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct FramesError {
    /// What was being done, with the file.
    what: String,
    /// What the system said.
    source: io::Error,
}

impl FramesError {
    fn at(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let what = format!("{what} {}", path.display());
        move |source| Self { what, source }
    }

    /// The number that stands for it in C.
    pub fn errno(&self) -> i32 {
        match self.source.kind() {
            // What a path cannot be, such as longer than 107 bytes.
            io::ErrorKind::InvalidInput => libc::EINVAL,
            _ => self.source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// The two kinds of sockets.
#[derive(Debug)]
pub enum UnixLink {
    /// Frames as datagrams.
    Dgram(Dgram),
    /// Frames on a connection.
    Stream(Stream),
}

/// RoCEv2 in whole frames on a UNIX socket. See the [module](self).
pub type FramesPort = EtherPort<UnixLink>;

impl FramesPort {
    /// Makes the socket, and looks for the other end, which may not be there yet.
    ///
    /// # Errors
    /// [`FramesError`]; `EADDRINUSE`: somebody has the file, or it is no socket.
    pub fn open(
        cable: Cable,
        station: StationConfig,
        clock: impl Fn() -> Instant + Send + 'static,
    ) -> Result<Self, FramesError> {
        let link = match cable {
            Cable::Dgram { ours, peer } => UnixLink::Dgram(Dgram::open(&ours, &peer)?),
            Cable::Connect(path) => UnixLink::Stream(Stream::connect(&path)?),
            Cable::Listen(path) => UnixLink::Stream(Stream::listen(&path)?),
        };
        Self::new(link, station, clock)
            .map_err(|source| FramesError { what: "opening a port for frames".into(), source })
    }
}

impl Link for UnixLink {
    fn send(&mut self, now: Instant, frames: &Frames) -> io::Result<usize> {
        match self {
            Self::Dgram(d) => d.send(now, frames),
            Self::Stream(s) => s.send(frames),
        }
    }

    fn recv<'a>(
        &mut self,
        now: Instant,
        buffers: impl Iterator<Item = &'a mut [u8]>,
        got: &mut Vec<Got>,
    ) -> io::Result<()> {
        match self {
            Self::Dgram(d) => d.recv(now, buffers, got),
            Self::Stream(s) => {
                s.recv(buffers, got);
                Ok(())
            }
        }
    }

    fn tend(&mut self, now: Instant, epoll: &Epoll) -> io::Result<()> {
        match self {
            Self::Dgram(d) => d.tend(now, epoll),
            Self::Stream(s) => s.tend(now, epoll),
        }
    }

    fn next_due(&self) -> Instant {
        match self {
            Self::Dgram(d) => d.next_due(),
            Self::Stream(s) => s.next_due(),
        }
    }

    fn is_due(&self) -> bool {
        match self {
            Self::Dgram(_) => false,
            Self::Stream(s) => s.is_due(),
        }
    }

    fn is_up(&self) -> bool {
        match self {
            Self::Dgram(d) => d.is_up(),
            Self::Stream(s) => s.is_up(),
        }
    }

    fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Dgram(d) => d.blocked_on(),
            Self::Stream(s) => s.blocked_on(),
        }
    }

    fn count(&self, stats: &mut PortStats) {
        if let Self::Stream(s) = self {
            stats.bad_framing += s.bad_framing();
        }
    }
}

/// The name of a socket file.
fn name(path: &Path) -> Result<SockAddr, FramesError> {
    SockAddr::unix(path).map_err(|_| FramesError {
        what: format!("{} as the name of a socket", path.display()),
        source: io::Error::new(io::ErrorKind::InvalidInput, "wanted 1 to 107 bytes"),
    })
}

/// A socket that never blocks.
fn socket(kind: Type) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, kind.nonblocking(), None)?;
    // The kernel grants what it allows.
    socket.set_send_buffer_size(BUFFER)?;
    socket.set_recv_buffer_size(BUFFER)?;
    Ok(socket)
}

/// The file of a socket of ours.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode: somebody may have put another one there meanwhile.
    id: Option<(u64, u64)>,
    /// A child of this process has a copy of this value, and the file is not its own.
    process: u32,
}

impl SocketFile {
    fn of(path: &Path) -> Self {
        let id = fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()));
        Self { path: path.to_owned(), id, process: std::process::id() }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is = fs::symlink_metadata(&self.path).ok().map(|m| (m.dev(), m.ino()));
        if self.process == std::process::id() && self.id.is_some() && is == self.id {
            // Nothing depends on it: the next one replaces what is left over.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds a socket to a file, in place of one that nobody is bound to.
fn bind(socket: &Socket, kind: Type, path: &Path) -> Result<SocketFile, FramesError> {
    let name = name(path)?;
    let in_use = |why| {
        let source = io::Error::from_raw_os_error(libc::EADDRINUSE);
        FramesError { what: format!("{} {why}", path.display()), source }
    };
    match socket.bind(&name) {
        Ok(()) => return Ok(SocketFile::of(path)),
        Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => {}
        Err(e) => return Err(FramesError::at("making the socket", path)(e)),
    }
    let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if !is_socket {
        return Err(in_use("is there and is no socket"));
    }
    let probe = self::socket(kind).and_then(|probe| probe.connect(&name));
    let is_dead = probe.is_err_and(|e| e.raw_os_error() == Some(libc::ECONNREFUSED));
    if !is_dead {
        return Err(in_use("is the socket of a program that is running"));
    }
    fs::remove_file(path).map_err(FramesError::at("replacing the dead socket", path))?;
    socket.bind(&name).map_err(FramesError::at("making the socket", path))?;
    Ok(SocketFile::of(path))
}

#[cfg(test)]
mod tests;
