//! Somebody in the middle: each side takes it for the other one.
//!
//! What both tell each other over TCP is passed on with its address in place of theirs, and so are the
//! packets, sealed anew. On the way they can be spoilt or lost.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use softroce::wire::icrc::{self, IpFields};

/// UDP port of RoCEv2.
const ROCE: u16 = 4791;
/// How often to look whether the test is over.
const LOOK: Duration = Duration::from_millis(50);

/// What becomes of a packet: whether it is passed on, and the bits that are turned over in its ICRC.
pub(crate) type Rule = fn(to_server: bool, len: usize) -> Option<u32>;

pub(crate) struct Middle {
    /// TCP port at which it is the server.
    pub(crate) port: u16,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Middle {
    /// At `own`, between this client and this server, which listens at TCP port `port`.
    pub(crate) fn start(
        own: Ipv4Addr,
        client: Ipv4Addr,
        server: Ipv4Addr,
        port: u16,
        rule: Rule,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind((own, ROCE)).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let mut middle =
            Self { port: listener.local_addr().unwrap().port(), over, threads: Vec::new() };
        middle.run(move |_| {
            // Until the client is gone, or nobody has come.
            let Ok((a, _)) = listener.accept() else { return };
            let Ok(b) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return };
            let back = (b.try_clone().unwrap(), a.try_clone().unwrap());
            let back = thread::Builder::new()
                .spawn(move || pass_lines(back.0, back.1, server, own))
                .unwrap();
            pass_lines(a, b, client, own);
            back.join().unwrap();
        });
        middle.run(move |over| pass_packets(&socket, [own, client, server], rule, over));
        middle
    }

    fn run(&mut self, f: impl FnOnce(&AtomicBool) + Send + 'static) {
        let over = Arc::clone(&self.over);
        self.threads.push(thread::Builder::new().spawn(move || f(&over)).unwrap());
    }
}

impl Drop for Middle {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        // Whoever still waits for a client gets one, that goes at once.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        for thread in self.threads.drain(..) {
            let how = thread.join();
            assert!(how.is_ok() || thread::panicking(), "the middle has failed");
        }
    }
}

/// Passes lines on, with the address of the middle in place of another one.
fn pass_lines(from: TcpStream, mut to: TcpStream, theirs: Ipv4Addr, own: Ipv4Addr) {
    for line in BufReader::new(from).lines() {
        let Ok(line) = line else { break };
        let line = line.replace(&format!(":{theirs}]"), &format!(":{own}]"));
        if writeln!(to, "{line}").is_err() {
            break;
        }
    }
    // The other end hears that it is over.
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn pass_packets(
    socket: &UdpSocket,
    [own, client, server]: [Ipv4Addr; 3],
    rule: Rule,
    over: &AtomicBool,
) {
    socket.set_read_timeout(Some(LOOK)).unwrap();
    let mut buf = vec![0; 1 << 16];
    while !over.load(Relaxed) {
        let Ok((len, from)) = socket.recv_from(&mut buf) else { continue };
        let to_server = from.ip() == client;
        assert!(to_server || from.ip() == server, "a packet from {from}");
        let Some(spoil) = rule(to_server, len) else { continue };
        let to = if to_server { server } else { client };
        let (sealed, icrc) = buf[..len].split_last_chunk_mut().unwrap();
        let crc = icrc::compute(&IpFields::v4(own, to, 0, true, ROCE), sealed) ^ spoil;
        *icrc = crc.to_le_bytes();
        socket.send_to(&buf[..len], SocketAddr::from((to, ROCE))).unwrap();
    }
}
