//! Telling the peer, out of band: over any stream that both sides share.
//!
//! Queue pairs need to know each other before they can connect. Most programs have a TCP connection for
//! that; [`exchange`] sends what this side has to say and receives what the other side says.

use std::io::{self, Read, Write};

use crate::engine::cause::Cause;
use crate::engine::errno::EIO;
use crate::engine::qp::attr::Recovery;
use crate::wire::num::{Gid, Mtu};

use super::endpoint::QpEndpoint;
use super::error::{Error, Result};
use super::mr::RemoteMr;

/// First byte of every message: raised when the format changes.
const VERSION: u8 = 1;
/// Longest message: bounds what a stranger can make us allocate.
const MAX_LEN: u32 = 1 << 20;

/// Sends ours, receives theirs. Both sides call it, with the same type. `exchange(&())` is a barrier.
///
/// ```
/// use softroce::prelude::*;
/// use std::os::unix::net::UnixStream;
/// let (mut a, mut b) = UnixStream::pair().unwrap();
/// let other = std::thread::spawn(move || oob::exchange(&mut b, &("from b".to_owned(), 2u32)).unwrap());
/// assert_eq!(oob::exchange(&mut a, &("from a".to_owned(), 1u32)).unwrap(), ("from b".to_owned(), 2));
/// assert_eq!(other.join().unwrap(), ("from a".to_owned(), 1));
/// ```
///
/// # Errors
/// The stream's; [`Error::Timeout`] if it has a timeout, after which it is of no more use: a part of a message
/// may have passed. `EINVAL`: the peer says something of another type or version.
pub fn exchange<T: Wire>(stream: &mut (impl Read + Write), ours: &T) -> Result<T> {
    send(stream, ours)?;
    receive(stream)
}

/// Sends a message.
///
/// # Errors
/// The stream's; [`Error::Timeout`] if it has a timeout.
pub fn send<T: Wire>(stream: &mut impl Write, ours: &T) -> Result<()> {
    let mut body = vec![VERSION, 0, 0, 0, 0];
    ours.encode(&mut body);
    let len = u32::try_from(body.len() - 5).ok().filter(|&n| n <= MAX_LEN);
    let Some(len) = len else { return Err(bad("a message is at most 1 MiB")) };
    body[1..5].copy_from_slice(&len.to_be_bytes());
    stream.write_all(&body).and_then(|()| stream.flush()).map_err(|e| broken(&e))
}

/// Receives a message.
///
/// # Errors
/// As [`exchange`].
pub fn receive<T: Wire>(stream: &mut impl Read) -> Result<T> {
    let mut head = [0; 5];
    stream.read_exact(&mut head).map_err(|e| broken(&e))?;
    if head[0] != VERSION {
        return Err(bad(
            "the peer speaks another version of the exchange, or is no softroce program",
        ));
    }
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    if len > MAX_LEN {
        return Err(bad("the peer announces a message above 1 MiB"));
    }
    let mut body = vec![0; len as usize];
    stream.read_exact(&mut body).map_err(|e| broken(&e))?;
    let mut rest = &body[..];
    let value = T::decode(&mut rest)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(bad("the peer says more than expected: another type?"))
    }
}

/// What an error of the stream means.
fn broken(e: &io::Error) -> Error {
    match e.kind() {
        // Which of the two a socket's timeout is depends on the system.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout,
        io::ErrorKind::UnexpectedEof => {
            let why = "the peer has closed the stream".into();
            Error::verb("oob", Cause::Io { errno: EIO, why })
        }
        _ => Error::verb("oob", Cause::io(e, "telling the peer")),
    }
}

fn bad(what: &'static str) -> Error {
    Error::verb("oob", Cause::Invalid { what: what.into() })
}

/// A fixed little wire format: big-endian numbers, counted lists.
pub trait Wire: Sized {
    /// Appends it.
    fn encode(&self, out: &mut Vec<u8>);
    /// Takes it from the front.
    ///
    /// # Errors
    /// `EINVAL`: too short, or not a value.
    fn decode(b: &mut &[u8]) -> Result<Self>;
}

fn take<'a>(b: &mut &'a [u8], n: usize) -> Result<&'a [u8]> {
    let (front, rest) = b
        .split_at_checked(n)
        .ok_or_else(|| bad("the peer says less than expected: another type?"))?;
    *b = rest;
    Ok(front)
}

macro_rules! numbers {
    ($($t:ty),+) => {$(
        impl Wire for $t {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn decode(b: &mut &[u8]) -> Result<Self> {
                let mut bytes = [0; size_of::<$t>()];
                bytes.copy_from_slice(take(b, size_of::<$t>())?);
                Ok(Self::from_be_bytes(bytes))
            }
        }
    )+};
}
numbers!(u8, u16, u32, u64);

impl Wire for () {
    fn encode(&self, _out: &mut Vec<u8>) {}
    fn decode(_b: &mut &[u8]) -> Result<Self> {
        Ok(())
    }
}

impl Wire for String {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().to_vec().encode(out);
    }
    fn decode(b: &mut &[u8]) -> Result<Self> {
        Self::from_utf8(Vec::decode(b)?).map_err(|_| bad("the peer's text is not UTF-8"))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).encode(out);
        for item in self {
            item.encode(out);
        }
    }
    fn decode(b: &mut &[u8]) -> Result<Self> {
        let n = u32::decode(b)?;
        if n > MAX_LEN {
            return Err(bad("the peer's list is longer than a message can be"));
        }
        // Nothing is reserved for what a stranger only claims to send.
        let mut items = Self::new();
        for _ in 0..n {
            items.push(T::decode(b)?);
        }
        Ok(items)
    }
}

macro_rules! tuples {
    ($(($($name:ident $i:tt),+))+) => {$(
        impl<$($name: Wire),+> Wire for ($($name,)+) {
            fn encode(&self, out: &mut Vec<u8>) {
                $(self.$i.encode(out);)+
            }
            fn decode(b: &mut &[u8]) -> Result<Self> {
                Ok(($($name::decode(b)?,)+))
            }
        }
    )+};
}
tuples! { (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) }

impl Wire for RemoteMr {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.addr, self.len, self.rkey).encode(out);
    }
    fn decode(b: &mut &[u8]) -> Result<Self> {
        let (addr, len, rkey) = Wire::decode(b)?;
        Ok(Self { addr, len, rkey })
    }
}

impl Wire for QpEndpoint {
    fn encode(&self, out: &mut Vec<u8>) {
        // Which record: they differ by how it would recover from losses.
        out.push(1 + self.recovery as u8);
        out.extend_from_slice(&self.gid.0);
        (self.qpn, self.psn, self.qkey).encode(out);
        (self.lid, self.mtu as u8, self.rd_atomic).encode(out);
        self.rx_buffer.encode(out);
    }
    fn decode(b: &mut &[u8]) -> Result<Self> {
        let recovery = match u8::decode(b)? {
            1 => Recovery::GoBackN,
            2 => Recovery::Selective,
            3 => Recovery::GoBack0,
            _ => return Err(bad("the peer's endpoint is of another version")),
        };
        let mut gid = [0; 16];
        gid.copy_from_slice(take(b, 16)?);
        // As in text: nobody is there, and nothing that is printed could be read again.
        if gid == [0; 16] {
            return Err(bad("the peer's address is zero"));
        }
        let (qpn, psn, qkey): (u32, u32, u32) = Wire::decode(b)?;
        let (lid, mtu, rd_atomic): (u16, u8, u8) = Wire::decode(b)?;
        let rx_buffer = u32::decode(b)?;
        let mtu = Mtu::from_raw(mtu).ok_or_else(|| bad("the peer's MTU is none that exists"))?;
        if qpn > 0xff_ffff || psn > 0xff_ffff {
            return Err(bad("the peer's queue pair number or PSN has more than 24 bits"));
        }
        Ok(Self {
            gid: Gid(gid),
            qpn,
            psn,
            qkey,
            lid,
            mtu,
            rd_atomic,
            scope_id: 0,
            rx_buffer,
            recovery,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint() -> QpEndpoint {
        "[10.0.0.1]/11/22/33/4096/16/44".parse().unwrap()
    }

    #[test]
    fn an_endpoint_takes_a_few_dozen_bytes_and_comes_back() {
        let mut out = Vec::new();
        endpoint().encode(&mut out);
        assert_eq!(out.len(), 37);
        assert_eq!(QpEndpoint::decode(&mut &out[..]).unwrap(), endpoint());
        for recovery in [Recovery::Selective, Recovery::GoBack0] {
            let other = QpEndpoint { recovery, ..endpoint() };
            out.clear();
            other.encode(&mut out);
            assert_eq!((out.len(), QpEndpoint::decode(&mut &out[..]).unwrap()), (37, other));
        }
        let mut out = Vec::new();
        RemoteMr { addr: 1, len: 2, rkey: 3 }.encode(&mut out);
        assert_eq!(out.len(), 20);
    }

    #[test]
    fn an_endpoint_without_an_address_is_refused_as_in_text() {
        let mut out = Vec::new();
        QpEndpoint { gid: Gid::default(), ..endpoint() }.encode(&mut out);
        let e = QpEndpoint::decode(&mut &out[..]).unwrap_err();
        assert_eq!(e.errno(), Some(22));
        assert!(e.to_string().contains("the peer's address is zero"), "{e}");
        assert!("[::]/11/22".parse::<QpEndpoint>().is_err());
    }

    #[test]
    fn strangers_are_refused_with_a_sentence() {
        for (bytes, part) in [
            (&b"GET / HTTP/1.1\r\n"[..], "another version"),
            (&[1, 0xff, 0, 0, 0][..], "above 1 MiB"),
            (&[1, 0, 0, 0, 1, 9][..], "more than expected"),
        ] {
            let e = receive::<()>(&mut &bytes[..]).unwrap_err();
            assert!(e.to_string().contains(part), "{e}");
        }
        let e = receive::<u64>(&mut &[1, 0, 0, 0, 1, 9][..]).unwrap_err();
        assert!(e.to_string().contains("less than expected"), "{e}");
    }

    #[test]
    fn streams_that_end_or_say_nothing() {
        let e = receive::<()>(&mut &[1][..]).unwrap_err();
        assert_eq!(e.to_string(), "oob: the peer has closed the stream (errno 5)");
        let (mut a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        a.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
        assert_eq!(receive::<()>(&mut a), Err(Error::Timeout));
    }

    #[test]
    fn a_claim_of_endless_nothing_is_refused() {
        let mut claim = &[0xff; 8][..];
        assert!(Vec::<()>::decode(&mut claim).is_err());
        let mut three = &[0, 0, 0, 3][..];
        assert_eq!(Vec::<()>::decode(&mut three).unwrap().len(), 3);
    }

    /// A value of the type that `value` has.
    fn received_like<T: Wire>(_: &T, mut stream: &[u8]) -> T {
        receive(&mut stream).expect("it was sent")
    }

    proptest! {
        #[test]
        fn nested_values_round_trip(a: u64, text in ".{0,20}", list in proptest::collection::vec(any::<u32>(), 0..9)) {
            let value = (a, (text, list), vec![(endpoint(), RemoteMr { addr: a, len: 7, rkey: 1 })]);
            let mut stream = Vec::new();
            send(&mut stream, &value).unwrap();
            prop_assert_eq!(received_like(&value, &stream), value);
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = receive::<(QpEndpoint, Vec<RemoteMr>)>(&mut &bytes[..]);
            let _ = Vec::<()>::decode(&mut &bytes[..]);
        }
    }
}
