//! A world for ranks that an engine has brought together already, such as those of MPI: they tell each other through it where
//! to meet, so that no address, token or job key has to be set. Liveness and the store work as in every other world.

use crate::deadline::Deadline;
use crate::environment::{PROTOCOL, Standing, printable};
use crate::hub::HOST;
use crate::meeting_point::{Address, INTERFACE, PORT};
use crate::remote::join_at;
use crate::roll_call::host_id;
use crate::token::{Token, random_bytes};
use crate::wire::{Input, Malformed, cut, put_bytes};
use crate::world::{Inner, World, random_id};
use crate::{meeting, tcp};
use rankwise_core::{Config, Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes that each rank gives to [`Bootstrap::all_gather`].
pub const FRAME: usize = 512;

/// Most addresses of a host that are told.
const ADDRESSES: usize = 12;
const HOST_ID: usize = 16;
const MAX_WORD: usize = 300;

/// Ranks that can already talk to each other.
pub trait Bootstrap {
    /// Where rank and size come from, for people.
    fn source(&self) -> &'static str;

    /// Rank of this process.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Collective over all ranks: each gives [`FRAME`] bytes and gets those of all ranks, in rank order. Blocks up to `limit`,
    /// then `Timeout`.
    fn all_gather(&self, mine: &[u8; FRAME], limit: Duration) -> Result<Vec<[u8; FRAME]>>;
}

impl World {
    /// The world of ranks that an engine has brought together. Collective over them; blocks up to `RANKWISE_JOIN_TIMEOUT`.
    ///
    /// Ranks of one host meet on a socket without a name in the file system. On several hosts rank 0 listens on a TCP port
    /// (`RANKWISE_PORT`, else a free one) of the address that leads to the other hosts (`RANKWISE_INTERFACE` chooses another), and the
    /// secret that lets the others in travels through the engine.
    ///
    /// `Refused` when ranks differ in version or settings; `Timeout` names those who did not come; `Config` when rank 0 can't listen.
    pub fn bootstrap(engine: &dyn Bootstrap) -> Result<World> {
        if engine.size() == 1 {
            return Ok(World::alone(engine.source()));
        }
        join(engine).map(World::of)
    }
}

fn join(engine: &dyn Bootstrap) -> Result<Inner> {
    let (rank, deadline) = (engine.rank(), Deadline::after(Config::new().resolve()?.join_timeout));
    let all = engine.all_gather(&frame(&Presence::here().encode()), deadline.remaining())?;
    let all: Vec<Presence> =
        all.iter().map(|frame| Presence::decode(frame)).collect::<std::result::Result<_, _>>().map_err(nonsense)?;
    if let Some(other) = all.iter().position(|other| other.version != all[rank].version) {
        let kind = ErrorKind::Refused {
            key: "version of rankwise".into(),
            ours: all[rank].version.clone(),
            theirs: printable(&all[other].version),
        };
        let message = format!("rank {other} is of another version; start the same build on all ranks");
        return Err(Error::new(kind, message).with_rank(rank).with_peers([other]));
    }
    let hosts: Vec<_> = all.iter().map(|other| other.host).collect();
    let standing = standing(engine.source(), &hosts, rank);
    // Rank 0 decides; what it could not do is told, since the others would wait for it.
    let mut own = None;
    let said = match rank {
        HOST => match invite(&all, &hosts) {
            Ok((invitation, listener)) => {
                own = Some(listener);
                invitation
            }
            Err(error) => Invitation::Failed(cut(error.message(), MAX_WORD).to_string()),
        },
        _ => Invitation::Nothing,
    };
    let said = engine.all_gather(&frame(&said.encode()), deadline.remaining())?;
    match Invitation::decode(&said[HOST]).map_err(nonsense)? {
        Invitation::Nothing => Err(nonsense(Malformed("rank 0 said nothing"))),
        Invitation::Failed(why) => Err(Error::config(why).with_rank(rank).with_peers([HOST])),
        Invitation::Here { key } => meeting::join(standing, &key),
        Invitation::At { key, address, token } => {
            let interface = variable(INTERFACE);
            let at = Address { host: address.ip().to_string(), port: address.port(), interface };
            join_at(standing, &key, &at, Token::from_bytes(token), own.flatten())
        }
    }
}

fn nonsense(what: Malformed) -> Error {
    Error::new(ErrorKind::Closed, format!("a rank said nonsense on joining ({}); are the versions the same?", what.0))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_string()).filter(|value| !value.is_empty())
}

fn frame(bytes: &[u8]) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..bytes.len()].copy_from_slice(bytes);
    frame
}

/// This rank's place among those of its host, which are those with the same id.
fn standing(source: &'static str, hosts: &[[u8; HOST_ID]], rank: usize) -> Standing {
    let here = |ranks: &[[u8; HOST_ID]]| ranks.iter().filter(|host| **host == hosts[rank]).count();
    Standing { source, rank, size: hosts.len(), local_rank: here(&hosts[..rank]), local_size: here(hosts) }
}

/// What a rank says of itself.
#[derive(Debug, PartialEq, Eq)]
struct Presence {
    version: String,
    host: [u8; HOST_ID],
    addresses: Vec<IpAddr>,
}

impl Presence {
    fn here() -> Presence {
        let mut addresses: Vec<IpAddr> = tcp::interfaces().into_iter().map(|(_, address)| address).collect();
        addresses.retain(|address| !address.is_loopback());
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses.truncate(ADDRESSES);
        let mut host = [0; HOST_ID];
        host.copy_from_slice(&host_id()[..HOST_ID]);
        Presence { version: format!("{} (protocol {PROTOCOL})", env!("CARGO_PKG_VERSION")), host, addresses }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, self.version.as_bytes());
        out.extend(self.host);
        out.push(self.addresses.len() as u8);
        for address in &self.addresses {
            put_address(&mut out, *address);
        }
        out
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Presence, Malformed> {
        let mut input = Input(bytes);
        let version = input.text(MAX_WORD)?;
        let host = input.array()?;
        let count = usize::from(input.u8()?);
        let addresses =
            (0..count.min(ADDRESSES)).map(|_| address(&mut input)).collect::<std::result::Result<_, _>>()?;
        Ok(Presence { version, host, addresses })
    }
}

fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    let octets = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    out.extend(octets);
}

fn address(input: &mut Input<'_>) -> std::result::Result<IpAddr, Malformed> {
    Ok(IpAddr::from(input.array::<16>()?).to_canonical())
}

/// What rank 0 tells the others. Never shown: it holds the secret.
#[derive(PartialEq, Eq)]
enum Invitation {
    Nothing,
    Failed(String),
    /// All ranks are on one host.
    Here {
        key: String,
    },
    At {
        key: String,
        address: SocketAddr,
        token: [u8; 32],
    },
}

impl Invitation {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Invitation::Nothing => out.push(0),
            Invitation::Failed(why) => {
                out.push(1);
                put_bytes(&mut out, why.as_bytes());
            }
            Invitation::Here { key } => {
                out.push(2);
                put_bytes(&mut out, key.as_bytes());
            }
            Invitation::At { key, address, token } => {
                out.push(3);
                put_bytes(&mut out, key.as_bytes());
                put_address(&mut out, address.ip());
                out.extend(u32::from(address.port()).to_le_bytes());
                out.extend(token);
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Invitation, Malformed> {
        let mut input = Input(bytes);
        Ok(match input.u8()? {
            0 => Invitation::Nothing,
            1 => Invitation::Failed(input.text(MAX_WORD)?),
            2 => Invitation::Here { key: input.text(MAX_WORD)? },
            3 => {
                let (key, ip, port) = (input.text(MAX_WORD)?, address(&mut input)?, input.u32()?);
                let port = u16::try_from(port).map_err(|_| Malformed("a port is too large"))?;
                Invitation::At { key, address: SocketAddr::new(ip, port), token: input.array()? }
            }
            _ => return Err(Malformed("an invitation of an unknown kind")),
        })
    }
}

/// Rank 0: where all meet, and the socket it listens on when that is not this host alone.
fn invite(all: &[Presence], hosts: &[[u8; HOST_ID]]) -> Result<(Invitation, Option<(OwnedFd, SocketAddr)>)> {
    let key = format!("{:032x}", random_id());
    if hosts.iter().all(|host| *host == hosts[HOST]) {
        return Ok((Invitation::Here { key }, None));
    }
    let port = match variable(PORT) {
        Some(port) => port.parse().map_err(|_| {
            Error::config(format!("rank 0: {PORT} is `{}`, not a port from 0 (any) to 65535", printable(&port)))
        })?,
        None => 0,
    };
    let interface = variable(INTERFACE);
    let others = all.iter().filter(|other| other.host != hosts[HOST]);
    let candidates = match &interface {
        Some(_) => vec![SocketAddr::from(([0, 0, 0, 0], port))],
        None => {
            let own = leading_to(others.flat_map(|other| &other.addresses), &all[HOST].addresses);
            let own = own.ok_or_else(|| {
                Error::config(format!(
                    "no address of rank 0's host leads to the other hosts; set {INTERFACE} to the interface that does"
                ))
            })?;
            vec![SocketAddr::new(own, port)]
        }
    };
    let (socket, address) = tcp::listen_on(&candidates, interface.as_deref())?;
    Ok((Invitation::At { key, address, token: random_bytes()? }, Some((socket, address))))
}

/// The address that this host would speak from to the first of `others` that it has a way to. Nothing is sent.
fn leading_to<'a>(others: impl Iterator<Item = &'a IpAddr>, own: &[IpAddr]) -> Option<IpAddr> {
    // Bridges of containers have the same address on many hosts.
    others.filter(|other| !own.contains(other)).find_map(|other| {
        let any: IpAddr = if other.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((*other, 9)).ok()?;
        let from = socket.local_addr().ok()?.ip();
        (!from.is_loopback() && !from.is_unspecified()).then_some(from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_fits_and_survives_and_damage_does_not_panic() {
        let full =
            Presence { version: "x".repeat(40), host: [7; HOST_ID], addresses: vec![[10, 0, 0, 1].into(); ADDRESSES] };
        for presence in [Presence::here(), full] {
            assert_eq!(Presence::decode(&frame(&presence.encode())).unwrap(), presence);
        }
        let address = "[fd00::3]:77".parse().unwrap();
        for invitation in [
            Invitation::Nothing,
            Invitation::Failed("é".repeat(MAX_WORD / 2)),
            Invitation::Here { key: "k".into() },
            Invitation::At { key: "0".repeat(32), address, token: [9; 32] },
        ] {
            let bytes = invitation.encode();
            assert!(Invitation::decode(&frame(&bytes)).unwrap() == invitation);
            for end in 0..bytes.len() {
                assert!(Invitation::decode(&bytes[..end]).is_err(), "{end}");
            }
        }
        for byte in 0..=255 {
            let _ = (Presence::decode(&[byte; FRAME]), Invitation::decode(&[byte; FRAME]));
        }
    }

    #[test]
    fn ranks_of_a_host_are_counted_wherever_they_are() {
        let hosts = [1, 2, 1, 3, 2, 1].map(|host| [host; HOST_ID]);
        let places: Vec<_> =
            (0..6).map(|rank| standing("test", &hosts, rank)).map(|s| (s.local_rank, s.local_size)).collect();
        assert_eq!(places, [(0, 3), (0, 2), (1, 3), (0, 1), (1, 2), (2, 3)]);
    }

    #[test]
    fn the_own_address_and_loopback_lead_to_nobody() {
        let own: Vec<IpAddr> = tcp::interfaces().into_iter().map(|(_, address)| address).collect();
        assert_eq!(leading_to(own.iter(), &own), None);
        assert_eq!(leading_to([[127, 0, 0, 9].into()].iter(), &[]), None);
    }
}
