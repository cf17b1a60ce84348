//! Frames on a connection, each behind its length.
//!
//! *Rules.* A length of zero, or of more than QEMU's largest frame, is no length: whoever sends it and we do not
//! agree on where frames begin, and only a new connection helps. What was not yet written when a connection ends is
//! lost, as on a cable.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use socket2::{SockAddr, Socket, Type};

use super::{FramesError, RETRY, SocketFile, bind, name, socket};
use crate::port::ether::{Frames, Got};
use crate::time::Instant;

/// Bytes of the largest frame: `NET_BUFSIZE` of QEMU.
pub(super) const LARGEST: usize = 4096 + 65_536;
/// Bytes in front of each frame.
const LENGTH: usize = 4;
/// Bytes that are read or written at once, at most.
const BUFFER: usize = 2 * (LENGTH + LARGEST);

/// How a connection comes about.
#[derive(Debug)]
enum Source {
    Connect(SockAddr),
    Listen { socket: Socket, watched: bool, _file: SocketFile },
}

/// A connection, and what has come and is to go.
#[derive(Debug)]
struct Connection {
    socket: Socket,
    /// What the descriptor is watched for.
    watched: EpollFlags,
}

/// A cable that is a connection.
pub struct Stream {
    source: Source,
    connection: Option<Connection>,
    /// When to try to connect.
    retry: Instant,
    input: Input,
    /// Bytes that are to be written, from `written` on.
    output: Vec<u8>,
    written: usize,
    bad_framing: u64,
}

/// Bytes that were read.
struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    more: bool,
}

/// What stands at the front of what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    /// A frame of so many bytes, behind its length.
    Frame(usize),
    /// The rest of it is still to come.
    Part,
    /// No length that a frame could have.
    Bad,
}

impl Input {
    fn new() -> Self {
        Self { bytes: vec![0; BUFFER].into_boxed_slice(), start: 0, end: 0, more: false }
    }

    fn front(&self) -> Front {
        let unread = &self.bytes[self.start..self.end];
        let Some((length, rest)) = unread.split_first_chunk() else { return Front::Part };
        let len = u32::from_be_bytes(*length) as usize;
        match len {
            0 => Front::Bad,
            _ if len > LARGEST => Front::Bad,
            _ if len > rest.len() => Front::Part,
            _ => Front::Frame(len),
        }
    }

    /// The frame at the front, into `buf`.
    fn take(&mut self, len: usize, buf: &mut [u8]) -> Got {
        let frame = &self.bytes[self.start + LENGTH..][..len];
        let fits = len.min(buf.len());
        buf[..fits].copy_from_slice(&frame[..fits]);
        self.start += LENGTH + len;
        Got::new(fits, fits < len)
    }

    /// Room to read into: always some, because the largest frame fits twice.
    fn space(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.bytes[self.end..]
    }

    fn clear(&mut self) {
        (self.start, self.end, self.more) = (0, 0, false);
    }
}

impl Stream {
    pub(super) fn connect(path: &Path) -> Result<Self, FramesError> {
        Ok(Self::new(Source::Connect(name(path)?)))
    }

    pub(super) fn listen(path: &Path) -> Result<Self, FramesError> {
        let socket = socket(Type::STREAM).map_err(FramesError::at("making the socket", path))?;
        let file = bind(&socket, Type::STREAM, path)?;
        socket.listen(1).map_err(FramesError::at("listening at", path))?;
        Ok(Self::new(Source::Listen { socket, watched: false, _file: file }))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            connection: None,
            retry: Instant::ZERO,
            input: Input::new(),
            output: Vec::with_capacity(BUFFER),
            written: 0,
            bad_framing: 0,
        }
    }

    fn close(&mut self) {
        self.connection = None;
        self.input.clear();
        self.output.clear();
        self.written = 0;
    }

    /// Writes what is to be written. Says whether all is.
    fn flush(&mut self) -> bool {
        while self.written < self.output.len() {
            let Some(connection) = &self.connection else { break };
            let rest = &self.output[self.written..];
            match connection.socket.send_with_flags(rest, libc::MSG_NOSIGNAL) {
                Ok(n) => self.written += n,
                Err(e) => match e.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return false,
                    _ => self.close(),
                },
            }
        }
        self.output.clear();
        self.written = 0;
        true
    }

    pub(super) fn send(&mut self, frames: &Frames) -> io::Result<usize> {
        if !self.flush() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.connection.is_none() {
            return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
        }
        let mut n = 0;
        for frame in frames.iter() {
            // Frames are much shorter than what four bytes can say.
            let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
            if self.output.len() + LENGTH + frame.len() > BUFFER {
                break;
            }
            self.output.extend_from_slice(&len.to_be_bytes());
            self.output.extend_from_slice(frame);
            n += 1;
        }
        self.flush();
        Ok(n)
    }

    pub(super) fn recv<'a>(
        &mut self,
        mut buffers: impl Iterator<Item = &'a mut [u8]>,
        got: &mut Vec<Got>,
    ) {
        self.input.more = false;
        loop {
            match self.input.front() {
                Front::Frame(len) => {
                    let Some(buf) = buffers.next() else {
                        self.input.more = true;
                        return;
                    };
                    got.push(self.input.take(len, buf));
                    continue;
                }
                Front::Bad => {
                    self.bad_framing += 1;
                    self.close();
                }
                Front::Part => {}
            }
            let Some(connection) = &self.connection else { return };
            match (&connection.socket).read(self.input.space()) {
                Ok(0) => self.close(),
                Ok(n) => self.input.end += n,
                Err(e) => match e.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return,
                    _ => self.close(),
                },
            }
        }
    }

    pub(super) fn tend(&mut self, now: Instant, epoll: &Epoll) -> io::Result<()> {
        self.flush();
        if self.connection.is_none()
            && let Some(socket) = self.next_connection(now)
        {
            self.input.clear();
            epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
            self.connection = Some(Connection { socket, watched: EpollFlags::EPOLLIN });
        }
        if let Some(connection) = &mut self.connection {
            let out = !self.output.is_empty();
            let wanted =
                if out { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
            if connection.watched != wanted {
                epoll.modify(&connection.socket, &mut EpollEvent::new(wanted, 1))?;
                connection.watched = wanted;
            }
        }
        // Whoever else wants to connect waits for the end of this connection.
        let free = self.connection.is_none();
        if let Source::Listen { socket, watched, .. } = &mut self.source
            && *watched != free
        {
            if free {
                epoll.add(&*socket, EpollEvent::new(EpollFlags::EPOLLIN, 2))?;
            } else {
                epoll.delete(&*socket)?;
            }
            *watched = free;
        }
        Ok(())
    }

    fn next_connection(&mut self, now: Instant) -> Option<Socket> {
        match &self.source {
            Source::Connect(_) if now < self.retry => None,
            Source::Connect(peer) => {
                self.retry = now + RETRY;
                // Nobody is there, or somebody who is busy; or there are no descriptors at the moment.
                let socket = socket(Type::STREAM).ok()?;
                socket.connect(peer).ok().map(|()| socket)
            }
            Source::Listen { socket, .. } => {
                let (socket, _) = socket.accept().ok()?;
                socket.set_nonblocking(true).ok()?;
                Some(socket)
            }
        }
    }

    pub(super) fn next_due(&self) -> Instant {
        match (&self.source, &self.connection) {
            (Source::Connect(_), None) => self.retry,
            _ => Instant::FAR_FUTURE,
        }
    }

    /// Whether there is something to do at once: frames that were read already, something to write that nobody waits
    /// for room for, or a next connection that nobody waits for.
    pub(super) fn is_due(&self) -> bool {
        let open = match (&self.source, &self.connection) {
            (_, Some(c)) => self.output.is_empty() || c.watched.contains(EpollFlags::EPOLLOUT),
            (Source::Listen { watched, .. }, None) => *watched,
            (Source::Connect(_), None) => true,
        };
        self.input.more || !open
    }

    pub(super) fn is_up(&self) -> bool {
        self.connection.is_some()
    }

    pub(super) fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(|c| c.socket.as_fd())
    }

    pub(super) fn bad_framing(&self) -> u64 {
        self.bad_framing
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("source", &self.source)
            .field("connection", &self.connection)
            .field("bad_framing", &self.bad_framing)
            .finish_non_exhaustive()
    }
}
