//! rc_pingpong [server]: 1000 round trips over a reliable connection.
//!
//! In two shells: `cargo run --example rc_pingpong`, then `cargo run --example rc_pingpong 127.0.0.1`.
#![expect(clippy::print_stdout, reason = "a program that says what it did")]
use softroce::prelude::*;
use std::net::{TcpListener, TcpStream};

const SEC: Duration = Duration::from_secs(5);

fn main() -> Result<()> {
    let server = std::env::args().nth(1);
    let ctx = softroce::open()?;
    let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(16)?);
    let qp = pd.create_qp(QpType::Rc, &cq).build()?;
    let mr = pd.alloc_mr(4096, Access::LOCAL)?;

    let mut tcp = match &server {
        Some(host) => TcpStream::connect((host.as_str(), 18515))?,
        None => {
            // Both families, where both are there.
            let any = |host| TcpListener::bind((host, 18515));
            any("::").or_else(|_| any("0.0.0.0"))?.accept()?.0
        }
    };
    qp.post_recv(RecvWr::new(0, mr.sge(..2048)))?;
    qp.connect(&oob::exchange(&mut tcp, &qp.endpoint())?)?;
    oob::exchange(&mut tcp, &())?; // both are ready

    let ping = || qp.post_send(SendWr::send(1, mr.sge(2048..)));
    for _ in 0..1000 {
        if server.is_some() {
            ping()?;
        }
        for _ in 0..2 {
            // one send and one receive complete, in either order
            if cq.wait(SEC)?.ok()?.opcode == WcOpcode::Recv {
                qp.post_recv(RecvWr::new(0, mr.sge(..2048)))?;
                if server.is_none() {
                    ping()?;
                }
            }
        }
    }
    println!("1000 round trips with {}", if server.is_some() { "the server" } else { "a client" });
    Ok(())
}
