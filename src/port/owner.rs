//! Who holds a UDP address that could not be bound.

use std::fmt;
use std::fs;
use std::net::IpAddr;

/// The likely owner of a UDP socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owner {
    /// Process id and command, where they may be seen.
    pub process: Option<(u32, String)>,
    /// The owner is bound to all addresses, not only to the one that was asked for.
    pub wildcard: bool,
    /// The RDMA driver `rdma_rxe` is loaded, which binds all addresses from inside the kernel.
    pub rxe: bool,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some((pid, _)) if *pid == std::process::id() => f.write_str("this process")?,
            Some((pid, command)) => write!(f, "process {pid} ({command})")?,
            None if self.wildcard && self.rxe => f.write_str("the kernel driver rdma_rxe")?,
            None => f.write_str("another process")?,
        }
        if self.wildcard {
            f.write_str(", which holds all addresses")?;
        }
        Ok(())
    }
}

/// A line of `/proc/net/udp` or `udp6`: local address, local port, inode.
fn parse(line: &str) -> Option<(IpAddr, u16, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    let inode = fields.nth(7)?.parse().ok()?;
    // Each four bytes are printed as one number of the host, whatever its byte order.
    let word = |at: usize| -> Option<[u8; 4]> {
        Some(u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes())
    };
    let ip = if ip.len() == 8 {
        IpAddr::from(word(0)?)
    } else {
        let mut bytes = [0; 16];
        for (i, to) in bytes.chunks_exact_mut(4).enumerate() {
            to.copy_from_slice(&word(i)?);
        }
        IpAddr::from(bytes)
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?, inode))
}

/// The socket in `table` that keeps others from binding `ip`: whether it is bound to all addresses, and its
/// inode.
fn holder(table: &str, ip: IpAddr, port: u16) -> Option<(bool, u64)> {
    // `::` holds the IPv4 addresses too, unless it was told not to.
    let mut holders = table.lines().filter_map(parse).filter(|(at, its_port, _)| {
        *its_port == port && (*at == ip || at.is_unspecified() && (ip.is_ipv4() || at.is_ipv6()))
    });
    holders.next().map(|(at, _, inode)| (at.is_unspecified(), inode))
}

/// The process that has the socket `inode` open; `None` if it is the kernel, or none that we may look into.
fn process_of(inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|s| s.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(files) = fs::read_dir(entry.path().join("fd")) else { continue };
        let mut links = files.flatten().filter_map(|f| fs::read_link(f.path()).ok());
        if links.any(|link| link.as_os_str() == wanted.as_str()) {
            let command = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some((pid, command.trim().to_owned()));
        }
    }
    None
}

/// How often the tables are read for a socket that is known to be there.
///
/// The kernel hands them out a page at a time and finds its place again by counting sockets, so a line is left
/// out when another socket was closed between two pages. In a process that opens and closes sockets all the
/// time that was one reading in eight, and most of them on a machine so busy that the reader is stopped between
/// two pages. A reading takes about 0.1 ms, and this is on the way to an error.
const READINGS: usize = 500;

/// Looks for the owner of `ip`:`port`.
pub(super) fn find(ip: IpAddr, port: u16) -> Owner {
    let rxe = fs::exists("/sys/module/rdma_rxe").unwrap_or(false);
    let read = |path| holder(&fs::read_to_string(path).unwrap_or_default(), ip, port);
    // A socket of just this address is in the first table or in the second; what holds all IPv6 addresses only
    // counts where the first table has nobody, in any reading.
    let first = |path| (0..READINGS).find_map(|_| read(path));
    match first("/proc/net/udp").or_else(|| first("/proc/net/udp6")) {
        Some((wildcard, inode)) => Owner { process: process_of(inode), wildcard, rxe },
        None => Owner { rxe, ..Owner::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    const TABLE: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  461: 0200007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 5151 2 0000000000000000 0
  462: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 5152 2 0000000000000000 0
";
    #[cfg(target_endian = "little")]
    const TABLE6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  461: 000000FD000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77 2 0000000000000000 0
  462: 00000000000000000000000000000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 78 2 0000000000000000 0
";

    #[cfg(target_endian = "little")]
    #[test]
    fn the_holder_is_read_from_the_kernels_table() {
        let ip = |s: &str| s.parse().unwrap();
        assert_eq!(holder(TABLE, ip("127.0.0.2"), 4791), Some((false, 5151)));
        assert_eq!(holder(TABLE, ip("127.0.0.3"), 4791), None);
        assert_eq!(holder(TABLE, ip("127.0.0.3"), 53), Some((true, 5152)));
        assert_eq!(holder(TABLE, ip("fd00::1"), 53), None, "0.0.0.0 holds no IPv6 address");
        assert_eq!(holder(TABLE6, ip("fd00::1"), 4791), Some((false, 77)));
        assert_eq!(holder(TABLE6, ip("127.0.0.3"), 53), Some((true, 78)));
        assert_eq!(holder("nonsense\n\n1 2:3", ip("127.0.0.3"), 53), None);
    }

    #[test]
    fn our_own_socket_is_recognised() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let owner = find(at.ip(), at.port());
        assert_eq!(owner.process.as_ref().map(|p| p.0), Some(std::process::id()));
        assert_eq!(owner.to_string(), "this process");
    }

    #[test]
    fn sockets_that_come_and_go_hide_no_owner() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        // More than one page of the table, so that it is read in pieces.
                        let sockets = [(); 40].map(|()| std::net::UdpSocket::bind("127.0.0.1:0"));
                        std::hint::black_box(&sockets);
                    }
                });
            }
            let found = (0..200).all(|_| {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                let at = socket.local_addr().unwrap();
                find(at.ip(), at.port()).process.map(|p| p.0) == Some(std::process::id())
            });
            done.store(true, Ordering::Relaxed);
            assert!(found, "an open socket was not found");
        });
    }

    #[test]
    fn owners_read_as_sentences() {
        let rxe = Owner { process: None, wildcard: true, rxe: true };
        assert_eq!(rxe.to_string(), "the kernel driver rdma_rxe, which holds all addresses");
        let other = Owner { process: Some((1, "init".into())), wildcard: false, rxe: true };
        assert_eq!(other.to_string(), "process 1 (init)");
    }
}
