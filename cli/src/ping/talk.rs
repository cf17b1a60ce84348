//! What the two sides tell each other before and beside the pings, and how they find each other.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use softroce::verbs::{Context, PortState, QpEndpoint};

use super::{Failure, Result, Step};

/// Raised when the lines change.
pub(super) const VERSION: u32 = 1;
/// How long a host may take to accept a connection.
const TO_CONNECT: Duration = Duration::from_secs(3);
/// UDP port of RoCEv2.
const ROCE: u16 = 4791;

/// What the client says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Say {
    /// Make a queue pair for this one, in place of the last; answered with an [`Offer`](Reply::Offer).
    Connect {
        version: u32,
        /// As [`QpEndpoint`] prints it.
        endpoint: String,
        /// Path MTU that is asked for.
        mtu: Option<u32>,
    },
    /// What has your device counted? Answered with [`Counters`](Reply::Counters).
    Counters,
}

/// What the server answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// It is connected, and waits for messages.
    Offer { endpoint: String },
    /// It cannot, and why.
    Refused { step: String, why: String },
    /// All counters of its device.
    Counters(BTreeMap<String, u64>),
}

/// Connects to the other side over TCP.
pub(super) fn connect(host: &str, port: u16, start: &str) -> Result<TcpStream> {
    let mut failure = None;
    for address in resolve(host, port)? {
        match TcpStream::connect_timeout(&address, TO_CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(e) => failure = Some(unreached(host, port, start, &e)),
        }
    }
    Err(failure
        .unwrap_or_else(|| Failure::usage(Step::Name, format_args!("{host:?} has no address"))))
}

/// The addresses of a host.
pub(super) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let found = (host, port).to_socket_addrs();
    let found =
        found.map_err(|e| Failure::usage(Step::Name, format_args!("{host:?} is no host: {e}")))?;
    Ok(found.collect())
}

/// What it means that there is no connection.
fn unreached(host: &str, port: u16, start: &str, e: &io::Error) -> Failure {
    match e.kind() {
        io::ErrorKind::ConnectionRefused => Failure::new(
            Step::OutOfBand,
            format_args!(
                "nobody listens at {host}, TCP port {port}: start `{start}` there, or name its port with -p"
            ),
        ),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Failure::new(
            Step::OutOfBand,
            format_args!(
                "nothing comes back from {host}, TCP port {port}: is the host up, and does no firewall drop the port?"
            ),
        ),
        _ => Failure::new(Step::Address, format_args!("{host} cannot be reached from here: {e}")),
    }
}

/// The two addresses of a TCP connection, as they are written outside of IPv6 sockets.
pub(super) fn ends(stream: &TcpStream) -> Result<[SocketAddr; 2]> {
    let lost = |e: io::Error| Failure::new(Step::OutOfBand, e);
    let plain = |a: SocketAddr| match a.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), a.port()),
        IpAddr::V6(_) => a,
    };
    Ok([plain(stream.local_addr().map_err(lost)?), plain(stream.peer_addr().map_err(lost)?)])
}

/// The entry of the GID table to use towards `peer`: that of the address by which the sides found each other, if
/// the device has it, else the first one that fits.
pub(super) fn choose(ctx: &Context, found_by: IpAddr, peer: IpAddr) -> Result<(u16, IpAddr)> {
    let entries: Vec<(u16, IpAddr)> =
        ctx.gids()?.iter().filter_map(|g| Some((g.index, g.gid.ip()?))).collect();
    let fits =
        |ip: &IpAddr| ip.is_ipv4() == peer.is_ipv4() && is_link_local(ip) == is_link_local(&peer);
    let found = entries.iter().find(|(_, ip)| *ip == found_by && fits(ip));
    found.or_else(|| entries.iter().find(|(_, ip)| fits(ip))).copied().ok_or_else(|| {
        let name = &ctx.device().name;
        let has: Vec<String> = entries.iter().map(|(_, ip)| ip.to_string()).collect();
        let has = has.join(", ");
        Failure::new(
            Step::Address,
            format_args!("{name} has no address of the kind of {peer}: it has {has}"),
        )
    })
}

pub(super) fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Reads the peer's endpoint. The scope of a link-local address is ours to know: that of the TCP connection.
pub(super) fn endpoint(text: &str, over: SocketAddr) -> Result<(QpEndpoint, IpAddr)> {
    let bad = |what: &dyn std::fmt::Display| {
        Failure::new(Step::OutOfBand, format_args!("the other side says {text:?}: {what}"))
    };
    let mut peer: QpEndpoint = text.parse().map_err(|e| bad(&e))?;
    let ip = peer.gid.ip().ok_or_else(|| bad(&"its address is none of IP"))?;
    if let (true, SocketAddr::V6(v6)) = (is_link_local(&ip), over) {
        peer.scope_id = v6.scope_id();
    }
    Ok((peer, ip))
}

/// Checks that there is a way from our address to the peer's, and that both ports work.
pub(super) fn check_way(ctx: &Context, ours: IpAddr, theirs: IpAddr, scope: u32) -> Result<()> {
    if ctx.port(1)?.state != PortState::Active {
        let name = &ctx.device().name;
        return Err(Failure::new(
            Step::Device,
            format_args!("the port of {name} is down: its interface is, or has no link"),
        ));
    }
    let with_scope = |ip: IpAddr, port| match ip {
        IpAddr::V6(v6) if is_link_local(&ip) => SocketAddrV6::new(v6, port, 0, scope).into(),
        ip => SocketAddr::new(ip, port),
    };
    let socket = UdpSocket::bind(with_scope(ours, 0));
    let way = socket.and_then(|socket| socket.connect(with_scope(theirs, ROCE)));
    way.map_err(|e| {
        let name = &ctx.device().name;
        let hint = if ours.is_loopback() && !theirs.is_loopback() {
            ": a loopback address reaches this machine alone; name another device with -d, such as soft:eth0"
        } else {
            ""
        };
        Failure::new(Step::Address, format_args!("there is no way from {ours} ({name}) to {theirs}: {e}{hint}"))
    })
}
