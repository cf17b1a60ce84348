//! Lists devices, opens one: by name if given, else as SOFTROCE_DEVICE says.
#![expect(clippy::print_stdout, reason = "a program that says what it did")]
use softroce::prelude::*;

fn main() -> Result<()> {
    for d in softroce::devices()? {
        println!("{:20} {:016x}", d.name, d.guid);
    }
    if let Err(e) = softroce::backend_status(Backend::Ibverbs) {
        println!("no real devices: {e}");
    }
    let ctx = match std::env::args().nth(1) {
        Some(name) => Context::open(&name)?, // "soft:eth0", "soft:udp=10.0.0.1"
        None => softroce::open()?,
    };
    println!("{:?}\n{:?}", ctx.attr()?, ctx.port(1)?);
    for g in ctx.gids()? {
        println!("{:3} {:?} {:?}", g.index, g.kind, g.gid.ip());
    }
    Ok(())
}
