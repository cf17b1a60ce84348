//! Any bytes as what a user types or a stranger sends before a connection: endpoints and `oob` messages.
//!
//! The first byte chooses the type of the message. Nothing is allocated for what is only announced; what can
//! be read, printed or sent again says the same.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv6Addr};

use softroce::net::Path;
use softroce::verbs::oob::{self, Wire};
use softroce::verbs::{Gid, Mtu, QpEndpoint, RemoteMr};

/// How far the bytes got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// They are the text of an endpoint.
    pub text: bool,
    /// They are a message of the type that the first byte chose.
    pub message: bool,
    /// There is an endpoint in that message.
    pub endpoint: bool,
}

/// Parses what follows the first byte of `data`, prints what it found, parses that.
///
/// # Panics
/// If anything is wrong.
pub fn run(data: &[u8]) -> Reached {
    let Some((&kind, bytes)) = data.split_first() else { return Reached::default() };
    gid(bytes);
    let mut found = Vec::new();
    let message = match kind % 8 {
        0 => said_again::<QpEndpoint>(bytes).map(|endpoint| found.push(endpoint)).is_some(),
        1 => said_again::<(QpEndpoint, Vec<RemoteMr>)>(bytes).map(|(e, _)| found.push(e)).is_some(),
        2 => said_again::<Vec<(QpEndpoint, String)>>(bytes)
            .map(|list| found.extend(list.into_iter().map(|(endpoint, _)| endpoint)))
            .is_some(),
        3 => said_again::<(u8, u16, u32, u64)>(bytes).is_some(),
        4 => said_again::<Vec<Vec<String>>>(bytes).is_some(),
        5 => said_again::<(String, (), Vec<(RemoteMr, u8)>)>(bytes).is_some(),
        6 => said_again::<Vec<()>>(bytes).is_some(),
        _ => said_again::<()>(bytes).is_some(),
    };
    for endpoint in &found {
        printed_again(endpoint);
    }
    let text = std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<QpEndpoint>().ok());
    if let Some(endpoint) = &text {
        printed_again(endpoint);
        let mut sent = Vec::new();
        oob::send(&mut sent, endpoint).expect("it is short");
        let heard = oob::receive::<QpEndpoint>(&mut &sent[..]).expect("it was sent");
        // The scope is of the side that reads, so the peer is not told.
        assert_eq!(heard, QpEndpoint { scope_id: 0, ..*endpoint });
    }
    Reached { text: text.is_some(), message, endpoint: !found.is_empty() }
}

/// Receives a message, sends it again: the same bytes, as far as it was long.
fn said_again<T: Wire + Debug>(mut stream: &[u8]) -> Option<T> {
    let all = stream;
    let value = oob::receive::<T>(&mut stream).ok()?;
    let mut again = Vec::new();
    oob::send(&mut again, &value).expect("it fitted into a message");
    assert_eq!(again, all[..all.len() - stream.len()], "{value:?}");
    Some(value)
}

/// What is printed is read as the same.
fn printed_again(endpoint: &QpEndpoint) {
    let text = endpoint.to_string();
    let again: QpEndpoint = match text.parse() {
        Ok(again) => again,
        Err(e) => panic!("{text:?} is what {endpoint:?} prints: {e}"),
    };
    // Only InfiniBand has LIDs; they are not printed.
    assert_eq!(again, QpEndpoint { lid: 0, ..*endpoint });
    assert_eq!(again.to_string(), text);
    assert!(Mtu::from_bytes(again.mtu.bytes()) == Some(again.mtu));
    let ah = endpoint.ah();
    assert_eq!((ah.dgid, ah.scope_id), (endpoint.gid, endpoint.scope_id));
}

/// The first bytes as an address.
fn gid(bytes: &[u8]) {
    let Some(&raw) = bytes.first_chunk::<16>() else { return };
    let gid = Gid(raw);
    let printed: Ipv6Addr = gid.to_string().parse().expect("an address is printed");
    assert_eq!(printed.octets(), raw);
    assert_eq!(Gid::from(IpAddr::from(printed)), gid);
    if let Some(ip) = gid.ip() {
        assert_eq!(Gid::from(ip), gid);
        let path = Path {
            src: ip,
            dst: ip,
            src_port: 0,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            scope_id: 0,
        };
        assert_eq!(path.header_len(), if ip.is_ipv4() { 28 } else { 48 });
    }
}
