//! Frames as datagrams between two socket files.
//!
//! *Rules.* Two sockets: one is bound, and takes what anybody sends; the other is connected, because only then does
//! the kernel tell when the receiver has room again. A socket that is both would refuse a peer that was started
//! anew until something is sent to the old one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use socket2::{SockAddr, Socket, Type};

use super::{FramesError, RETRY, SocketFile, bind, name, socket};
use crate::port::ether::{Frames, Got};
use crate::port::sys::{ReceiveArena, SendArena};
use crate::time::Instant;

/// Most datagrams of one call.
const CALL: usize = 32;

/// A cable of two socket files.
#[derive(Debug)]
pub struct Dgram {
    ours: Socket,
    /// Whether `ours` is watched.
    watched: bool,
    /// Connected to the other end, if it is there.
    theirs: Option<Socket>,
    peer: SockAddr,
    peer_path: PathBuf,
    /// When to look for the other end.
    retry: Instant,
    /// Why it could not be reached (`errno`).
    why: i32,
    send: SendArena,
    receive: ReceiveArena,
    _file: SocketFile,
}

impl Dgram {
    pub(super) fn open(ours: &Path, peer: &Path) -> Result<Self, FramesError> {
        let peer_name = name(peer)?;
        let socket = socket(Type::DGRAM).map_err(FramesError::at("making the socket", ours))?;
        let file = bind(&socket, Type::DGRAM, ours)?;
        Ok(Self {
            ours: socket,
            watched: false,
            theirs: None,
            peer: peer_name,
            peer_path: peer.to_owned(),
            retry: Instant::ZERO,
            why: libc::ENOENT,
            send: SendArena::new(CALL),
            receive: ReceiveArena::new(CALL),
            _file: file,
        })
    }

    /// Where the other end is, or will be.
    pub fn peer(&self) -> &Path {
        &self.peer_path
    }

    fn connect(&mut self, now: Instant) {
        self.retry = now + RETRY;
        let connected = socket(Type::DGRAM).and_then(|s| s.connect(&self.peer).map(|()| s));
        match connected {
            Ok(socket) => self.theirs = Some(socket),
            Err(e) => self.why = e.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    pub(super) fn send(&mut self, now: Instant, frames: &Frames) -> io::Result<usize> {
        // Once more if the other end was started anew.
        for _ in 0..2 {
            if self.theirs.is_none() {
                self.connect(now);
            }
            let Some(theirs) = &self.theirs else { break };
            // Names stay empty: the socket is connected.
            let frames = frames.iter().map(|frame| ((), frame));
            match self.send.send(theirs.as_fd(), frames, |(), _, _| ()) {
                Err(e) => match e.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    Some(libc::EMSGSIZE) => return Err(e),
                    errno => {
                        self.why = errno.unwrap_or(libc::EIO);
                        self.theirs = None;
                    }
                },
                sent => return sent,
            }
        }
        match self.theirs {
            // Interrupted, twice.
            Some(_) => Err(io::ErrorKind::WouldBlock.into()),
            None => Err(io::Error::from_raw_os_error(self.why)),
        }
    }

    pub(super) fn recv<'a>(
        &mut self,
        now: Instant,
        buffers: impl Iterator<Item = &'a mut [u8]>,
        got: &mut Vec<Got>,
    ) -> io::Result<()> {
        let n = match self.receive.receive(self.ours.as_fd(), buffers) {
            Ok(n) => n,
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS) => 0,
                _ => return Err(e),
            },
        };
        for i in 0..n {
            let incoming = self.receive.incoming(i);
            got.push(Got::new(incoming.len, incoming.truncated));
        }
        if n > 0 && self.theirs.is_none() {
            // Somebody is there now.
            self.connect(now);
        }
        Ok(())
    }

    pub(super) fn tend(&mut self, now: Instant, epoll: &Epoll) -> io::Result<()> {
        if !self.watched {
            epoll.add(&self.ours, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
            self.watched = true;
        }
        if self.theirs.is_none() && now >= self.retry {
            self.connect(now);
        }
        Ok(())
    }

    pub(super) fn next_due(&self) -> Instant {
        if self.theirs.is_none() { self.retry } else { Instant::FAR_FUTURE }
    }

    pub(super) fn is_up(&self) -> bool {
        self.theirs.is_some()
    }

    pub(super) fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        self.theirs.as_ref().map(|s| s.as_fd())
    }
}
