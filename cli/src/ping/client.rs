//! The side that names a host: finds it, checks the path, pings.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use nix::poll::poll;
use softroce::verbs::{Context, DEVICE_VARIABLE, Mtu, QpEndpoint};

use super::diagnose::{Counters, Since, counters, silence};
use super::end::{Answer, End};
use super::report::{Ends, Outcome, Ping, Printer, micros};
use super::talk::{self, Reply, Say, VERSION};
use super::{Args, Failure, Result, Step, open, pingpong};
use crate::perf;
use crate::perf::control::{Control, PATIENCE};

/// Pings, and what came out.
pub(super) fn run(host: &str, args: &Args) -> (Outcome, Printer) {
    let printer = Printer { json: args.json };
    let mut outcome = Outcome { host: host.to_owned(), size: args.size, ..Outcome::default() };
    let done = Client::find(host, args).and_then(|client| client.ping(args, printer, &mut outcome));
    if let Err(failure) = done {
        outcome.failure.get_or_insert(failure);
    }
    (outcome, printer)
}

/// How the other side is spoken to.
enum Peer {
    /// It is `softroce ping --listen`.
    Ours(Control),
    /// It speaks like `ibv_rc_pingpong`, once.
    Pingpong(Option<TcpStream>),
}

struct Client {
    host: String,
    ctx: Context,
    peer: Peer,
    /// Addresses of the TCP connection, here and there.
    over: [SocketAddr; 2],
    /// Most bytes of a message.
    longest: usize,
}

/// A connection to ping on.
struct Session {
    end: End,
    remote: IpAddr,
    mtu: Mtu,
    /// Counters of both sides when it was made.
    before: (Counters, Option<Counters>),
}

impl Client {
    /// Finds the other side, and opens the device.
    fn find(host: &str, args: &Args) -> Result<Self> {
        let named = args.device.is_some() || std::env::var_os(DEVICE_VARIABLE).is_some();
        let device = if named { Some(open(args.device.as_deref())?) } else { None };
        let start =
            if args.pingpong { "ibv_rc_pingpong -g INDEX" } else { "softroce ping --listen" };
        let stream = talk::connect(host, args.port, start)?;
        let over = talk::ends(&stream)?;
        let ctx = match device {
            Some(ctx) => ctx,
            None => open(Some(&on_the_way(over[0], over[1])))?,
        };
        let (peer, longest) = if args.pingpong {
            (Peer::Pingpong(Some(stream)), pingpong::LONGEST)
        } else {
            (Peer::Ours(Control::new(stream)?), Mtu::B4096.bytes().max(args.size as usize))
        };
        Ok(Self { host: host.to_owned(), ctx, peer, over, longest })
    }

    fn ping(mut self, args: &Args, printer: Printer, outcome: &mut Outcome) -> Result<()> {
        let is_ours = matches!(self.peer, Peer::Ours(_));
        let mut session = self.connect(args.mtu)?;
        let ends = Ends {
            device: self.ctx.device().name.clone(),
            local: session.end.ip.to_string(),
            remote: session.remote.to_string(),
            mtu: session.mtu.bytes(),
        };
        outcome.ends = Some(ends.clone());
        printer.heading(outcome)?;
        if is_ours {
            self.check_path(&session)?;
        }
        for seq in 1..=args.count {
            if seq > 1 {
                rest(args.interval);
            }
            let answer = session.end.ping(seq, args.size as usize)?;
            let (bytes, time_us) = match answer {
                Answer::Came { after, bytes } => (Some(bytes), Some(micros(after))),
                _ => (None, None),
            };
            let ping = Ping { seq, bytes, time_us };
            outcome.pings.push(ping);
            printer.ping(&ends, &ping)?;
            if let Some(failure) = self.failure(&session, &answer)? {
                outcome.failure.get_or_insert(failure);
                if !is_ours {
                    break;
                }
                if seq < args.count {
                    // What failed cannot be used again.
                    session = self.connect(args.mtu)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a connection, in place of the last.
    fn connect(&mut self, mtu: Option<Mtu>) -> Result<Session> {
        let [here, there] = self.over;
        let chosen = talk::choose(&self.ctx, here.ip(), there.ip())?;
        let is_ours = matches!(self.peer, Peer::Ours(_));
        let end = End::new(&self.ctx, chosen, self.longest, is_ours)?;
        let (peer, remote) = self.introduce(&end, mtu)?;
        talk::check_way(&self.ctx, chosen.1, remote, peer.scope_id)?;
        let mtu = end.connect(&peer, if is_ours { mtu } else { mtu.or(Some(pingpong::MTU)) })?;
        let before = (counters(&self.ctx)?, self.their_counters()?);
        Ok(Session { end, remote, mtu, before })
    }

    /// Tells the other side of a queue pair, and hears of its own.
    fn introduce(&mut self, end: &End, mtu: Option<Mtu>) -> Result<(QpEndpoint, IpAddr)> {
        let there = self.over[1];
        match &mut self.peer {
            Peer::Ours(control) => {
                let mtu = mtu.and_then(|mtu| u32::try_from(mtu.bytes()).ok());
                let endpoint = end.endpoint().to_string();
                control.send(&Say::Connect { version: VERSION, endpoint, mtu })?;
                match control.receive(PATIENCE)? {
                    Reply::Offer { endpoint } => talk::endpoint(&endpoint, there),
                    Reply::Refused { step, why } => {
                        let step = Step::named(&step).unwrap_or(Step::OutOfBand);
                        Err(Failure::new(step, format_args!("{} says: {why}", self.host)))
                    }
                    Reply::Counters(_) => Err(Failure::new(Step::OutOfBand, OUT_OF_TURN)),
                }
            }
            Peer::Pingpong(stream) => {
                let gone = || Failure::new(Step::OutOfBand, "ibv_rc_pingpong connects once");
                let peer =
                    pingpong::exchange(&mut stream.take().ok_or_else(gone)?, &end.endpoint())?;
                talk::endpoint(&peer.to_string(), there)
            }
        }
    }

    fn their_counters(&mut self) -> Result<Option<Counters>> {
        let Peer::Ours(control) = &mut self.peer else { return Ok(None) };
        control.send(&Say::Counters)?;
        match control.receive(PATIENCE)? {
            Reply::Counters(counters) => Ok(Some(counters)),
            _ => Err(Failure::new(Step::OutOfBand, OUT_OF_TURN)),
        }
    }

    /// A message of one byte, then a full packet.
    fn check_path(&mut self, session: &Session) -> Result<()> {
        let answer = session.end.ping(0, 1)?;
        if let Some(failure) = self.failure(session, &answer)? {
            return Err(failure);
        }
        let answer = session.end.ping(0, session.mtu.bytes())?;
        let Some(failure) = self.failure(session, &answer)? else { return Ok(()) };
        if answer != Answer::Lost || failure.step == Step::Icrc {
            return Err(failure);
        }
        let full = session.mtu.bytes();
        let smaller = Mtu::ALL.into_iter().rev().filter(|mtu| *mtu < session.mtu);
        for mtu in smaller {
            let session = self.connect(Some(mtu))?;
            if matches!(session.end.ping(0, mtu.bytes())?, Answer::Came { .. }) {
                let carried = mtu.bytes();
                return Err(Failure::new(
                    Step::Mtu,
                    format_args!(
                        "packets of {full} bytes do not arrive; the path carries {carried}: use --mtu {carried}, or \
                         set the MTU of all interfaces on the way for {full} and 96 bytes of headers"
                    ),
                ));
            }
        }
        Err(Failure::new(
            Step::Mtu,
            format_args!(
                "packets of {full} bytes do not arrive, nor do those of any smaller path MTU"
            ),
        ))
    }

    /// Why a message was not answered.
    fn failure(&mut self, session: &Session, answer: &Answer) -> Result<Option<Failure>> {
        let host = &self.host;
        let what = match answer {
            Answer::Came { .. } => return Ok(None),
            Answer::Taken => {
                format!("the NIC of {host} has taken the message, and no program there answers it")
            }
            Answer::NotReady => {
                format!(
                    "the NIC of {host} is there, and no program has posted a receive for the message"
                )
            }
            Answer::Failed(status) => format!("the message to {host} ended with {status:?}"),
            Answer::Lost => {
                let theirs = self.their_counters()?;
                let ours = Since::new(&session.before.0, &counters(&self.ctx)?);
                let theirs = session.before.1.as_ref().zip(theirs.as_ref());
                let theirs = theirs.map(|(before, after)| Since::new(before, after));
                return Ok(Some(silence(&self.host, &ours, theirs.as_ref())));
            }
        };
        Ok(Some(Failure::new(Step::Answer, what)))
    }
}

const OUT_OF_TURN: &str = "the other side speaks out of turn: another version?";

/// The device with the address that the system uses towards the other side.
fn on_the_way(here: SocketAddr, there: SocketAddr) -> String {
    if there.ip().is_loopback() {
        return "soft:lo".to_owned();
    }
    match here {
        SocketAddr::V6(v6) if talk::is_link_local(&here.ip()) => {
            format!("soft:udp={}%{}", v6.ip(), v6.scope_id())
        }
        _ => format!("soft:udp={}", here.ip()),
    }
}

/// Waits until the next ping.
fn rest(interval: Duration) {
    let until = perf::now() + interval;
    loop {
        let left = until.saturating_duration_since(perf::now());
        if left.is_zero() {
            return;
        }
        // In pieces that fit; if a signal ends one early, another follows.
        let _ = poll(&mut [], u16::try_from(left.as_millis().max(1)).unwrap_or(u16::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_the_one_on_the_way() {
        for (here, there, device) in [
            ("127.0.0.1:1", "127.0.0.2:2", "soft:lo"),
            ("10.0.0.1:1", "10.0.0.2:2", "soft:udp=10.0.0.1"),
            ("[fd00::1]:1", "[fd00::2]:2", "soft:udp=fd00::1"),
            ("[fe80::1%7]:1", "[fe80::2%7]:2", "soft:udp=fe80::1%7"),
        ] {
            assert_eq!(on_the_way(here.parse().unwrap(), there.parse().unwrap()), device);
        }
    }
}
