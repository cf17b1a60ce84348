//! A TAP device: one end is an interface of this machine, the other a file of Ethernet frames.
#![expect(unsafe_code, reason = "an interface is chosen by an ioctl that no crate here wraps")]

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use nix::fcntl::OFlag;

use crate::Res;

/// `TUNSETIFF` of `linux/if_tun.h`.
mod ioctl {
    nix::ioctl_write_int!(set_interface, b'T', 202);
}

/// As `struct ifreq`: a name of up to 15 bytes and flags, 40 bytes in all.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// `IFF_TAP | IFF_NO_PI`.
const FLAGS: u16 = 0x0002 | 0x1000;

/// Makes the interface, which is gone when the file is closed, with these addresses and an MTU of 9000.
pub(crate) fn create(name: &str, addresses: &[&str]) -> Res<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open("/dev/net/tun")
        .map_err(|e| format!("/dev/net/tun: {e}"))?;
    let mut request = Request { name: [0; 16], flags: FLAGS, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the kernel reads one `struct ifreq` at this address, and `request` is one and outlives the call.
    unsafe { ioctl::set_interface(file.as_raw_fd(), (&raw const request) as u64) }
        .map_err(|e| format!("TUNSETIFF {name}: {e}"))?;
    for address in addresses {
        let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        ip(&[&["addr", "add", address, "dev", name], nodad].concat())?;
    }
    ip(&["link", "set", name, "mtu", "9000", "up"])?;
    Ok(file)
}

/// Runs `ip`.
pub(crate) fn ip(args: &[&str]) -> Res<()> {
    let out = Command::new("ip").args(args).output().map_err(|e| format!("ip: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim()))
}
