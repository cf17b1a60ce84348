//! The second process, from its start to its end.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use softroce::prelude::*;

use super::Failure;
use super::side::{LIMIT, Link, now};

/// How often somebody who waits for the process looks.
const LOOK: Duration = Duration::from_millis(2);
/// How long it may take to end by itself.
const ENDING: Duration = Duration::from_secs(5);

/// The second process. Dropped, it is killed if it has not ended, and no zombie is left.
#[derive(Debug)]
pub(super) struct Second {
    child: Child,
    ended: bool,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a process that starts or ends cannot be waited for otherwise"
)]
fn pause() {
    std::thread::sleep(LOOK);
}

/// Starts the second process on `device`, and waits until it has called back and opened its device.
pub(super) fn start(device: &str) -> Result<Link, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // Of everybody who can connect, only the one that we have started knows this.
    let token = RandomState::new().build_hasher().finish();
    let program = std::env::current_exe()?;
    let mut child = Command::new(&program)
        .args(["tour", "--second", "--device", device])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| Failure::new(format!("starting {}: {e}", program.display())))?;
    let stdin = child.stdin.take();
    let mut second = Second { child, ended: false };
    let port = listener.local_addr()?.port();
    if let Some(mut stdin) = stdin {
        // If it has ended already, that is found out below.
        let _ = writeln!(stdin, "{port} {token}");
    }
    let tcp = second.call(&listener, token)?;
    let mut link = Link::new(tcp, Some(second))?;
    match link.hear::<String>()? {
        why if why.is_empty() => Ok(link),
        why => Err(Failure::new(format!("the second process: {why}"))),
    }
}

impl Second {
    /// Its call on our port.
    fn call(&mut self, listener: &TcpListener, token: u64) -> Result<TcpStream, Failure> {
        listener.set_nonblocking(true)?;
        let deadline = now() + LIMIT;
        let mut death = None;
        while now() < deadline {
            match listener.accept() {
                Ok((mut tcp, _)) => {
                    tcp.set_nonblocking(false)?;
                    tcp.set_read_timeout(Some(Duration::from_secs(1)))?;
                    if oob::receive(&mut tcp) == Ok(token) {
                        return Ok(tcp);
                    }
                }
                // What ended may have called before, to say why.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => match death {
                    Some(death) => return Err(death),
                    None => death = self.ended_within(LOOK),
                },
                Err(e) => return Err(e.into()),
            }
        }
        Err(Failure::new(format!("the second process did not call for {} s", LIMIT.as_secs())))
    }

    /// How it ended, if it does so within `patience`.
    pub(super) fn ended_within(&mut self, patience: Duration) -> Option<Failure> {
        let deadline = now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.ended = true;
                    return Some(Failure::new(format!("the second process ended: {status}")));
                }
                Ok(None) if now() < deadline => pause(),
                Ok(None) => return None,
                Err(e) => return Some(Failure::new(format!("the second process is lost: {e}"))),
            }
        }
    }

    /// Waits until it has ended by itself.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        match self.ended_within(ENDING) {
            Some(death) => match self.child.wait() {
                Ok(status) if status.success() => Ok(()),
                _ => Err(death),
            },
            None => Err(Failure::new("the second process does not end")),
        }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
