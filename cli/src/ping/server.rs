//! The side that listens: answers whoever comes, one after another.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use softroce::verbs::{Context, Mtu, QpEndpoint};

use super::end::End;
use super::talk::{self, Reply, Say, VERSION};
use super::{Failure, LONGEST, Result, Step, diagnose, open};
use crate::output::{complain, count};
use crate::perf::control::{Control, PATIENCE, listen, pause};
use crate::perf::{self, PORT, now};
use crate::ping::report::print;

/// Longest wait for a message before a look at what the client says.
const NAP: Duration = Duration::from_millis(5);
/// A client that says and sends nothing for so long is gone.
const SILENT: Duration = Duration::from_secs(60);

/// Answers for ever.
pub(super) fn run(device: Option<&str>, port: u16) -> Result<()> {
    let ctx = open(device)?;
    let listener = listen(port)?;
    let ips: Vec<_> = ctx.gids()?.iter().filter_map(|g| g.gid.ip()).collect();
    let name = &ctx.device().name;
    let first = ips.iter().find(|ip| ip.is_ipv4()).or(ips.first());
    let at =
        first.ok_or_else(|| Failure::new(Step::Device, format_args!("{name} has no address")))?;
    let option = if port == PORT { String::new() } else { format!(" -p {port}") };
    print(&format!(
        "ping: device {name} at {at}, waiting for pings. In another shell:\n\n    softroce ping{option} {at}\n\n"
    ))?;
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) => return Err(Failure::new(Step::OutOfBand, e)),
        };
        match attend(&ctx, stream) {
            Ok((who, 0)) => print(&format!("{who}: has gone without a message\n"))?,
            Ok((who, answered)) => {
                let messages = count(answered, "message");
                print(&format!("{who}: {messages} answered, pings and probes of the path\n"))?;
            }
            Err(failure) => complain(format_args!("ping: {failure}")),
        }
    }
}

/// A client, until it goes: who it was, and how many messages it had answered.
fn attend(ctx: &Context, stream: TcpStream) -> Result<(SocketAddr, u64)> {
    let [here, there] = talk::ends(&stream)?;
    let mut control = Control::new(stream)?;
    let mut end: Option<End> = None;
    let (mut answered, mut heard) = (0, now());
    while now() - heard < SILENT {
        // It goes without a word.
        let Ok(speaks) = control.is_ready() else { return Ok((there, answered)) };
        if speaks {
            heard = now();
            let said: Result<Say, perf::Failure> = control.receive(PATIENCE);
            let reply = match said? {
                Say::Counters => Reply::Counters(diagnose::counters(ctx)?),
                Say::Connect { version, endpoint, mtu } => {
                    // The old one goes first: it is in the error state, or will be.
                    end = None;
                    match accept(ctx, [here, there], version, &endpoint, mtu) {
                        Ok(made) => {
                            Reply::Offer { endpoint: end.insert(made).endpoint().to_string() }
                        }
                        Err(Failure { step, what, .. }) => {
                            Reply::Refused { step: step.name().to_owned(), why: what }
                        }
                    }
                }
            };
            control.send(&reply)?;
        }
        match &end {
            Some(end) => {
                if let Some(sent) = end.echo(NAP)? {
                    heard = now();
                    answered += u64::from(sent);
                }
            }
            None => pause(),
        }
    }
    Err(Failure::new(Step::OutOfBand, format_args!("{there} is silent: it is left alone")))
}

/// Makes a queue pair for a client's, and connects it.
fn accept(
    ctx: &Context,
    [here, there]: [SocketAddr; 2],
    version: u32,
    text: &str,
    mtu: Option<u32>,
) -> Result<End> {
    if version != VERSION {
        let what =
            format_args!("it speaks version {VERSION} of ping, and not {version}").to_string();
        return Err(Failure::new(Step::OutOfBand, what));
    }
    let (peer, ip): (QpEndpoint, _) = talk::endpoint(text, there)?;
    let chosen = talk::choose(ctx, here.ip(), ip)?;
    talk::check_way(ctx, chosen.1, ip, peer.scope_id)?;
    let end = End::new(ctx, chosen, LONGEST as usize, true)?;
    let mtu = match mtu.map(|n| (n, Mtu::from_bytes(n as usize))) {
        None => None,
        Some((_, Some(mtu))) => Some(mtu),
        Some((n, None)) => {
            return Err(Failure::new(Step::Mtu, format_args!("there is no path MTU of {n}")));
        }
    };
    end.connect(&peer, mtu)?;
    Ok(end)
}
