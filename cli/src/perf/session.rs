//! A test from end to end: who is who, in which order both sides do what.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use softroce::verbs::{Context, DEVICE_VARIABLE};

use super::control::{
    Checked, Control, Drops, FOR_A_CLIENT, Go, Hello, Offer, Order, PATIENCE, VERSION, Welcome,
    listen, pause,
};
use super::options::{Kind, Options, Plan};
use super::report::{Bandwidth, Ends, Format, Latency, Outcome, Printer, Row, print};
use super::side::{Side, Tally, address, open};
use super::{Failure, Result, bandwidth, latency, now};

/// How long a process that was started here may take to connect, and to end.
const OF_A_CHILD: Duration = Duration::from_secs(30);

/// Runs a test, on whichever side the options say.
pub(super) fn run(kind: Kind, options: &Options) -> Result<()> {
    let plan = options.plan(kind)?;
    let format = if options.json { Format::Json } else { Format::Text };
    let printer = Printer { format, gbits: options.report_gbits };
    let device = options.device.as_deref();
    if let Some(address) = options.serve_at {
        let ctx = open(device)?;
        return serve(&ctx, &mut Control::dial(address)?, kind, None);
    }
    if let Some(host) = &options.host {
        let ctx = open(device)?;
        let mut control = Control::connect(host, options.port, kind.name())?;
        return measure(&ctx, &mut control, &plan, &printer).map(drop);
    }
    if options.local {
        return both(&plan, device, &printer).map(drop);
    }
    let ctx = open(device)?;
    let listener = listen(options.port)?;
    invite(&ctx, kind, options, &printer)?;
    let mut control = Control::accept(&listener, FOR_A_CLIENT, || Ok(()))?;
    serve(&ctx, &mut control, kind, Some(&printer))
}

/// Says what to type at the other side.
fn invite(ctx: &Context, kind: Kind, options: &Options, printer: &Printer) -> Result<()> {
    if printer.format != Format::Text {
        return Ok(());
    }
    let ip = address(ctx)?;
    let mut line = format!("softroce perf {kind}");
    if options.port != super::options::PORT {
        line += &format!(" -p {}", options.port);
    }
    let mut note = "";
    if !is_shared_name(&ctx.device().name) {
        line += " -d DEVICE";
        note = "where DEVICE is the client's, such as soft:eth0 or soft:udp=ADDRESS\n\n";
    }
    let name = &ctx.device().name;
    print(&format!(
        "{kind}: device {name} at {ip}, waiting for a client. In another shell:\n\n    {line} {ip}\n\n{note}"
    ))
}

/// Whether each process that opens a device of this name gets one of its own.
fn is_shared_name(device: &str) -> bool {
    let base = device.split(',').next().unwrap_or(device);
    matches!(base, "soft:lo" | "lo" | "" | "auto")
}

/// Both sides on this machine: two processes where each can have an address of its own, else one.
pub(super) fn both(plan: &Plan, device: Option<&str>, printer: &Printer) -> Result<Outcome> {
    let named = device.map(str::to_owned).or_else(|| std::env::var(DEVICE_VARIABLE).ok());
    let ctx = open(device)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    if named.as_deref().is_none_or(is_shared_name) {
        let mut server = Server::start(plan.kind, device, at)?;
        let mut control = Control::accept(&listener, OF_A_CHILD, || server.is_well())?;
        let outcome = measure(&ctx, &mut control, plan, printer)?;
        server.finish()?;
        return Ok(outcome);
    }
    std::thread::scope(|s| {
        let server = s.spawn(|| serve(&ctx, &mut Control::dial(at)?, plan.kind, None));
        let measured = Control::accept(&listener, OF_A_CHILD, || Ok(()))
            .and_then(|mut control| measure(&ctx, &mut control, plan, printer));
        let served = server.join().unwrap_or_else(|_| Err(Failure::run("the server panicked")));
        measured.and_then(|outcome| served.map(|()| outcome))
    })
}

/// The other side in a process of its own, which ends with this value.
struct Server(Child);

impl Server {
    fn start(kind: Kind, device: Option<&str>, at: SocketAddr) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["perf", kind.name(), "--serve-at", &at.to_string()]);
        if let Some(device) = device {
            command.args(["-d", device]);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Self(child.map_err(|e| Failure::run(format_args!("starting the server: {e}")))?))
    }

    /// Fails if it has ended.
    fn is_well(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => Err(Failure::run(format_args!("the server ended too early: {status}"))),
        }
    }

    fn finish(mut self) -> Result<()> {
        // It has been told good bye; what keeps it is a moment's work.
        let until = now() + OF_A_CHILD;
        loop {
            match self.0.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(Failure::run(format_args!("the server failed: {status}")));
                }
                None if now() >= until => return Err(Failure::run("the server does not end")),
                None => pause(),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Where it has ended already there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The client: says what to do, measures, and prints.
fn measure(
    ctx: &Context,
    control: &mut Control,
    plan: &Plan,
    printer: &Printer,
) -> Result<Outcome> {
    control.send(&Hello { version: VERSION, plan: plan.clone() })?;
    let offer = match control.receive(PATIENCE)? {
        Welcome::Offer(offer) => offer,
        Welcome::Refused(why) => return Err(Failure::Usage(why)),
    };
    let mut side = Side::new(ctx, plan)?;
    let tally = Tally::start(ctx)?;
    side.connect(&offer)?;
    control.send(&side.offer())?;
    let Go {} = control.receive(PATIENCE)?;
    if plan.kind == Kind::SendLat {
        side.post_receives()?;
    }
    let ends = side.ends(&offer)?;
    printer.heading(plan, &ends)?;
    let mut rows = Vec::new();
    for &size in &plan.sizes {
        side.fill(size);
        control.send(&Order::Begin { size })?;
        let Go {} = control.receive(PATIENCE)?;
        let (row, messages) = if plan.kind.is_latency() {
            let times = latency::ping(&mut side, size)?;
            let messages = times.rounds;
            let share = if plan.kind.is_read() || plan.kind.is_atomic() { 1.0 } else { 0.5 };
            (Row::Latency(Latency::new(size, times, share)), messages)
        } else {
            let measured = bandwidth::pump(&mut side, size)?;
            (Row::Bandwidth(Bandwidth::new(size, &measured)), measured.sent)
        };
        control.send(&Order::Ended { messages })?;
        let checked: Checked = control.receive(PATIENCE)?;
        let mine = match plan.kind {
            Kind::ReadBw | Kind::ReadLat | Kind::SendLat => side.verify(size, 0),
            Kind::WriteLat => side.verify(size, 1),
            _ => None,
        };
        if let Some(wrong) = checked.wrong.or(mine) {
            return Err(Failure::run(format_args!("the data is wrong: {wrong}")));
        }
        printer.row(&row)?;
        rows.push(row);
    }
    control.send(&Order::Report { rows: rows.clone() })?;
    let theirs: Drops = control.receive(PATIENCE)?;
    // In one process both sides have the same device.
    let mut drops = tally.take(ctx)?;
    if ends.local != ends.remote {
        drops = drops.add(theirs);
    }
    control.send(&Order::Bye { drops })?;
    printer.end(plan, &ends, &rows, drops)?;
    Ok(Outcome { rows, drops })
}

/// The server: follows the client.
fn serve(
    ctx: &Context,
    control: &mut Control,
    kind: Kind,
    printer: Option<&Printer>,
) -> Result<()> {
    let hello: Hello = control.receive(PATIENCE)?;
    let plan = hello.plan;
    let refusal = if hello.version != VERSION {
        Some(format!("the server speaks version {VERSION} of perf, the client {}", hello.version))
    } else if plan.kind != kind {
        Some(format!("the server runs {kind}, the client {}", plan.kind))
    } else {
        plan.check().err()
    };
    if let Some(why) = refusal {
        control.send(&Welcome::Refused(why.clone()))?;
        return Err(Failure::Usage(why));
    }
    let mut side = match Side::new(ctx, &plan) {
        Ok(side) => side,
        Err(Failure::Run(why) | Failure::Usage(why)) => {
            control.send(&Welcome::Refused(format!("the server cannot: {why}")))?;
            return Err(Failure::Run(why));
        }
    };
    let tally = Tally::start(ctx)?;
    control.send(&Welcome::Offer(side.offer()))?;
    let offer: Offer = control.receive(PATIENCE)?;
    side.connect(&offer)?;
    if kind.is_send() {
        side.post_receives()?;
    }
    control.send(&Go {})?;
    let ends = side.ends(&offer)?;
    if let Some(printer) = printer {
        printer.heading(&plan, &ends)?;
    }
    let mut results = Vec::new();
    loop {
        match control.receive(PATIENCE)? {
            Order::Begin { size } => serve_size(&mut side, control, size)?,
            Order::Report { rows } => {
                control.send(&tally.take(ctx)?)?;
                results = rows;
            }
            Order::Bye { drops } => {
                let Some(printer) = printer else { return Ok(()) };
                results.iter().try_for_each(|row| printer.row(row))?;
                return printer.end(&plan, &ends, &results, drops);
            }
            Order::Ended { .. } => {
                return Err(Failure::run("the client ended what it had not begun"));
            }
        }
    }
}

/// The server's part in messages of one size.
fn serve_size(side: &mut Side, control: &mut Control, size: u32) -> Result<()> {
    if !side.plan.sizes.contains(&size) {
        return Err(Failure::run("the client asks for a size that was not agreed"));
    }
    let kind = side.plan.kind;
    side.fill(size);
    control.send(&Go {})?;
    let count = match kind {
        Kind::WriteLat | Kind::SendLat => latency::pong(side, control, size)?,
        _ => bandwidth::attend(side, control, size)?,
    };
    let Order::Ended { messages } = control.receive(PATIENCE)? else {
        return Err(Failure::run("the client does not say how it ended"));
    };
    let wrong = match kind {
        Kind::SendBw | Kind::SendLat | Kind::WriteLat if count != messages => {
            Some(format!("{count} messages of {messages} have arrived"))
        }
        Kind::WriteBw | Kind::SendBw | Kind::SendLat => side.verify(size, 0),
        Kind::WriteLat => side.verify(size, 1),
        Kind::AtomicBw | Kind::AtomicLat => {
            let sum = (0..side.qps.len()).map(|q| side.last_word(q)).sum::<u64>();
            (sum != messages).then(|| format!("{messages} times 1 was added, the sum is {sum}"))
        }
        Kind::ReadBw | Kind::ReadLat => None,
    };
    control.send(&Checked { wrong })
}

impl Side {
    /// Between which addresses it is measured, and with which path MTU.
    fn ends(&self, theirs: &Offer) -> Result<Ends> {
        let ip = |text: &str| {
            let peer: softroce::verbs::QpEndpoint = text.parse()?;
            Ok::<_, Failure>(peer.gid.ip().map(|ip: IpAddr| ip.to_string()).unwrap_or_default())
        };
        let remote = theirs.endpoints.first().map(|text| ip(text)).transpose()?;
        let qp = self.qps.first().ok_or_else(|| Failure::run("no queue pair"))?;
        Ok(Ends {
            local: ip(&qp.endpoint().to_string())?,
            remote: remote.unwrap_or_default(),
            mtu: qp.query()?.path_mtu.map_or(0, |mtu| mtu.bytes()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_two_processes_can_open() {
        for name in ["soft:lo", "lo", "soft:lo,rcvbuf=106496"] {
            assert!(is_shared_name(name), "{name}");
        }
        for name in ["soft:eth0", "soft:udp=::1", "soft:udp=127.0.0.2,gso=off"] {
            assert!(!is_shared_name(name), "{name}");
        }
    }
}
