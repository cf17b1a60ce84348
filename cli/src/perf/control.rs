//! What the two sides tell each other: one JSON object per line, over TCP.
//!
//! *Rules.* Everything from the peer is a stranger's: lines are bounded, and so is every wait.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use nix::poll::poll;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::options::Plan;
use super::report::Row;
use super::{Failure, Result, now};

/// Raised when the lines change.
pub(super) const VERSION: u32 = 2;
/// Longest line: 1024 queue pairs and their addresses fit.
const LONGEST: usize = 1 << 20;
/// How long an answer may take that needs no measuring.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long a server waits for its client.
pub(super) const FOR_A_CLIENT: Duration = Duration::from_secs(600);
/// How long a client tries to reach its server: they may have been started together.
const FOR_A_SERVER: Duration = Duration::from_secs(5);
/// How often to look again, in milliseconds.
const AGAIN: u16 = 20;

/// The client's first words.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) plan: Plan,
}

/// What a side has to offer: its queue pairs and its memory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    /// As [`QpEndpoint`](softroce::verbs::QpEndpoint) prints them.
    pub(super) endpoints: Vec<String>,
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) rkey: u32,
}

/// What the server says to a hello.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Welcome {
    Offer(Offer),
    /// Not with this client, and why.
    Refused(String),
}

/// What the client says once both are connected.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Get ready for messages of this many bytes; answered with a [`Go`].
    Begin { size: u32 },
    /// That many messages of each queue pair were sent; answered with a [`Checked`].
    Ended { messages: u64 },
    /// All sizes are done, and this is what came out; answered with [`Drops`].
    Report { rows: Vec<Row> },
    /// Good bye, and what both sides have dropped.
    Bye { drops: Drops },
}

/// The server is ready.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Go {}

/// What the server found in its memory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Checked {
    pub(super) wrong: Option<String>,
}

/// What a side's device had to drop or repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Drops {
    /// Datagrams that found a receive buffer full.
    pub(super) port_overruns: u64,
    /// Request packets sent again.
    pub(super) retransmitted: u64,
    /// Packets sent, of all kinds.
    pub(super) sent: u64,
    /// System calls that sent or received something.
    pub(super) calls: u64,
}

/// The connection to the other side.
#[derive(Debug)]
pub(crate) struct Control {
    stream: TcpStream,
    /// What has come and was not yet asked for.
    pending: Vec<u8>,
}

impl Control {
    /// Over a connection that is there already.
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, pending: Vec::new() })
    }

    /// Waits for somebody to connect.
    pub(super) fn accept(
        listener: &TcpListener,
        patience: Duration,
        mut go_on: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let until = now() + patience;
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Self::new(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(Failure::run(format_args!("waiting for a client: {e}"))),
            }
            go_on()?;
            if now() >= until {
                let s = patience.as_secs();
                return Err(Failure::run(format_args!("nobody has connected for {s} seconds")));
            }
            pause();
        }
    }

    /// Connects to a server that listens at `host`.
    pub(super) fn connect(host: &str, port: u16, test: &str) -> Result<Self> {
        let found = (host, port).to_socket_addrs();
        let addresses: Vec<SocketAddr> = match found {
            Ok(found) => found.collect(),
            Err(e) => return Err(Failure::Usage(format!("{host:?} is no host: {e}"))),
        };
        let until = now() + FOR_A_SERVER;
        loop {
            let mut why = None;
            for address in &addresses {
                match TcpStream::connect_timeout(address, FOR_A_SERVER) {
                    Ok(stream) => return Self::new(stream),
                    Err(e) => why = Some(e),
                }
            }
            let Some(why) = why else {
                return Err(Failure::Usage(format!("{host:?} has no address")));
            };
            if why.kind() != io::ErrorKind::ConnectionRefused || now() >= until {
                return Err(Failure::run(format_args!(
                    "no server at {host}, TCP port {port}: {why}; start `softroce perf {test}` there"
                )));
            }
            pause();
        }
    }

    /// Connects to a client that listens at `address`.
    pub(super) fn dial(address: SocketAddr) -> Result<Self> {
        Self::new(TcpStream::connect_timeout(&address, FOR_A_SERVER)?)
    }

    /// Says something.
    pub(crate) fn send<T: Serialize>(&mut self, what: &T) -> Result<()> {
        let mut line = serde_json::to_vec(what).map_err(Failure::run)?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(|e| gone(&e))
    }

    /// Hears something; waits for it as long as `patience`.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<T> {
        let until = now() + patience;
        let line = loop {
            if let Some(end) = self.pending.iter().position(|&b| b == b'\n') {
                break self.pending.drain(..=end).collect::<Vec<u8>>();
            }
            if self.pending.len() > LONGEST {
                return Err(Failure::run("the other side talks too much: is it softroce?"));
            }
            let left = until.saturating_duration_since(now());
            if left.is_zero() {
                let s = patience.as_secs();
                return Err(Failure::run(format_args!("the other side is silent for {s} seconds")));
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut some = [0; 4096];
            match self.stream.read(&mut some) {
                Ok(0) => return Err(gone(&io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.pending.extend_from_slice(&some[..n]),
                Err(e) if is_idle(&e) => {}
                Err(e) => return Err(gone(&e)),
            }
        };
        serde_json::from_slice(&line).map_err(|e| {
            Failure::run(format_args!(
                "the other side says what this one does not understand ({e}): another version?"
            ))
        })
    }

    /// Whether there is something to hear. Does not wait.
    pub(crate) fn is_ready(&mut self) -> Result<bool> {
        if !self.pending.is_empty() {
            return Ok(true);
        }
        let look = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let mut byte = [std::mem::MaybeUninit::uninit()];
        match socket2::SockRef::from(&self.stream).recv_with_flags(&mut byte, look) {
            Ok(0) => Err(gone(&io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(true),
            Err(e) if is_idle(&e) => Ok(false),
            Err(e) => Err(gone(&e)),
        }
    }
}

/// The other side's process has ended, or its machine is out of reach.
fn gone(e: &io::Error) -> Failure {
    match e.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => {
            Failure::run("the other side is gone: it closed the control connection")
        }
        _ => Failure::run(format_args!("the control connection failed: {e}")),
    }
}

fn is_idle(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Waits a little between two looks at something that cannot wake us.
pub(crate) fn pause() {
    // Nothing to wait for: this is the wait. If a signal ends it early, the next look comes early.
    let _ = poll(&mut [], AGAIN);
}

/// Listens on all addresses of this host, both families where there are two.
///
/// # Errors
/// The port is taken, mostly.
pub(crate) fn listen(port: u16) -> Result<TcpListener> {
    let all = [
        SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port)),
        SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, port)),
    ];
    TcpListener::bind(&all[..]).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => Failure::run(format_args!(
            "TCP port {port} is taken, perhaps by another server: stop it, or take another with -p"
        )),
        _ => Failure::run(format_args!("listening at TCP port {port}: {e}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Control, Control) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = Control::dial(listener.local_addr().unwrap()).unwrap();
        (a, Control::accept(&listener, PATIENCE, || Ok(())).unwrap())
    }

    fn complaint<T: std::fmt::Debug>(result: Result<T>) -> String {
        match result.unwrap_err() {
            Failure::Run(what) | Failure::Usage(what) => what,
        }
    }

    #[test]
    fn lines_arrive_one_by_one() {
        let (mut a, mut b) = pair();
        assert!(!b.is_ready().unwrap());
        a.send(&Order::Begin { size: 7 }).unwrap();
        a.send(&Order::Bye { drops: Drops::default() }).unwrap();
        assert!(matches!(b.receive(PATIENCE).unwrap(), Order::Begin { size: 7 }));
        assert!(b.is_ready().unwrap());
        assert!(matches!(b.receive(PATIENCE).unwrap(), Order::Bye { .. }));
        assert!(!b.is_ready().unwrap());
    }

    #[test]
    fn silence_nonsense_and_the_end_are_told_apart() {
        let (mut a, mut b) = pair();
        let silent = complaint(b.receive::<Order>(Duration::from_millis(30)));
        assert!(silent.contains("silent"), "{silent}");
        a.stream.write_all(b"{\"begin\"\n").unwrap();
        let nonsense = complaint(b.receive::<Order>(PATIENCE));
        assert!(nonsense.contains("does not understand"), "{nonsense}");
        drop(a);
        assert!(complaint(b.receive::<Order>(PATIENCE)).contains("gone"));
        assert!(complaint(b.is_ready()).contains("gone"));
    }

    #[test]
    fn a_stranger_cannot_fill_our_memory() {
        let (mut a, mut b) = pair();
        let writer = std::thread::scope(|s| {
            s.spawn(|| a.stream.write_all(&vec![b'x'; LONGEST + 8192]).is_ok());
            complaint(b.receive::<Order>(PATIENCE))
        });
        assert!(writer.contains("too much"), "{writer}");
    }

    #[test]
    fn nobody_comes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let e = complaint(Control::accept(&listener, Duration::from_millis(30), || Ok(())));
        assert!(e.contains("nobody"), "{e}");
    }
}
