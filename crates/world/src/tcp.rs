//! TCP sockets of the control path: where to listen, from where to connect, and what is set on them.

#![allow(unsafe_code)]

use crate::deadline::Deadline;
use rankwise_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// When a host that says nothing any more counts as lost: after this much of silence it is asked each second.
const IDLE: Duration = Duration::from_secs(1);
/// So many questions without an answer.
const UNANSWERED: u32 = 3;
/// And when what was sent is not taken within this many milliseconds.
const UNTAKEN: u32 = 4000;

/// No delays, and an end to connections whose host has gone.
pub(crate) fn set_options(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, IDLE);
    let _ = sockopt::set_tcp_keepcnt(socket, UNANSWERED);
    let _ = sockopt::set_tcp_user_timeout(socket, UNTAKEN);
}

/// The address that is given in digits, for which no name server is asked.
pub(crate) fn in_digits(host: &str) -> Option<IpAddr> {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).parse().ok()
}

/// The addresses of a host, which may be one in digits, but not one that stands for all of a host's. Without the answer of a name server in time: `Config`.
pub(crate) fn resolve(host: &str, port: u16, deadline: &Deadline) -> Result<Vec<SocketAddr>> {
    let none = || {
        Error::config(format!(
            "host `{host}` has no address, or one that stands for all of a host's; give the one IP address to listen on"
        ))
    };
    if let Some(address) = in_digits(host) {
        let one = !address.to_canonical().is_unspecified();
        return one.then(|| vec![SocketAddr::new(address, port)]).ok_or_else(none);
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let name = host.to_string();
    // The resolver can't be told when to give up.
    let asked = std::thread::Builder::new().name("rankwise-resolve".into()).spawn(move || {
        let _ = sender.send((name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>));
    });
    asked.map_err(|error| crate::limits::refused_by_system("resolve a host name", 1, error))?;
    match receiver.recv_timeout(deadline.remaining()) {
        Ok(Ok(mut addresses)) => {
            addresses.retain(|address| !address.ip().to_canonical().is_unspecified());
            if addresses.is_empty() { Err(none()) } else { Ok(addresses) }
        }
        Ok(Err(error)) => {
            let message = format!("host `{host}` cannot be resolved: {error}; give an IP address instead");
            Err(Error::config(message).with_source(error))
        }
        Err(_) => {
            let message = format!("no name server says in time what address `{host}` has; give an IP address instead");
            Err(Error::new(ErrorKind::Timeout, message))
        }
    }
}

/// Listens on the first of these addresses that is one of this host's, or on those of `interface` instead. `AddrInUse` at
/// once when the port is taken.
pub(crate) fn listen_on(addresses: &[SocketAddr], interface: Option<&str>) -> Result<(OwnedFd, SocketAddr)> {
    let candidates = match interface {
        Some(interface) => of_interface(interface, addresses.first().map_or(0, SocketAddr::port))?,
        None => addresses.to_vec(),
    };
    let mut refusals = String::new();
    for address in candidates {
        let attempt = || -> Result<(OwnedFd, SocketAddr), Errno> {
            let socket = tcp_socket(&address)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &address)?;
            listen(&socket, 4096)?;
            let bound = rustix::net::getsockname(&socket)?;
            let bound = SocketAddr::try_from(bound).unwrap_or(address);
            Ok((socket, bound))
        };
        match attempt() {
            Ok(listening) => return Ok(listening),
            Err(Errno::ADDRINUSE) => {
                let message = format!("{address} is taken by another program; choose another port, or 0 for any");
                return Err(Error::new(ErrorKind::AddrInUse, message));
            }
            Err(errno) => drop(write!(refusals, "{address} ({errno}), ")),
        }
    }
    let message = format!(
        "rank 0 cannot listen on {}which should be an address of this host; this host has {}; set RANKWISE_INTERFACE to one of \
         these names or addresses, or the address of rank 0 to one of them",
        refusals,
        listed(&interfaces())
    );
    Err(Error::config(message))
}

/// Connects to the first of these addresses that answers, from `interface` if one is given. Why not, otherwise.
pub(crate) fn connect_to(
    addresses: &[SocketAddr],
    interface: Option<&str>,
    patience: Duration,
) -> Result<std::result::Result<OwnedFd, String>> {
    let from = interface.map(|interface| of_interface(interface, 0)).transpose()?;
    let mut failures = String::new();
    for address in addresses {
        let attempt = || -> Result<OwnedFd, Errno> {
            let socket = tcp_socket(address)?;
            if let Some(from) = &from {
                let same = from.iter().find(|own| own.is_ipv4() == address.is_ipv4());
                bind(&socket, same.ok_or(Errno::ADDRNOTAVAIL)?)?;
            }
            set_options(&socket);
            match connect(&socket, address) {
                Ok(()) => return Ok(socket),
                Err(Errno::INPROGRESS | Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            let until = Deadline::after(patience);
            loop {
                let left = until.remaining();
                let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                match poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)], Some(&limit)) {
                    Ok(0) => return Err(Errno::TIMEDOUT),
                    Ok(_) => break,
                    // The program's signals do not connect a socket.
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            sockopt::socket_error(&socket)??;
            Ok(socket)
        };
        match attempt() {
            Ok(socket) => return Ok(Ok(socket)),
            Err(errno) => drop(write!(failures, "{}{address}: {errno}", if failures.is_empty() { "" } else { ", " })),
        }
    }
    Ok(Err(failures))
}

fn tcp_socket(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if address.is_ipv6() {
        // Exactly the address that was asked for.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

/// The addresses of an interface, which is given by its name or one of its addresses.
fn of_interface(wanted: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let all = interfaces();
    let chosen: Vec<SocketAddr> = all
        .iter()
        .filter(|(name, address)| name == wanted || wanted.parse() == Ok(*address))
        .map(|(_, address)| SocketAddr::new(*address, port))
        .collect();
    if chosen.is_empty() {
        let has = listed(&all);
        return Err(Error::config(format!(
            "RANKWISE_INTERFACE is `{wanted}`, and this host has {has}; choose one of these"
        )));
    }
    Ok(chosen)
}

fn listed(interfaces: &[(String, IpAddr)]) -> String {
    let each: Vec<String> = interfaces.iter().map(|(name, address)| format!("{name} {address}")).collect();
    if each.is_empty() { "no addresses at all".into() } else { each.join(", ") }
}

/// Names and addresses of the interfaces that are up. Those that only mean something together with an interface are left
/// out.
pub(crate) fn interfaces() -> Vec<(String, IpAddr)> {
    let mut found = Vec::new();
    let mut list = std::ptr::null_mut();
    // SAFETY: getifaddrs writes a list, or leaves it alone and returns non-zero.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return found;
    }
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is an entry of the list, which lives until it is freed below.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_name.is_null() || entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: the name of an entry is a string that ends in zero; an address that is not null begins with its family, and
        // has the type that belongs to it.
        let (name, address) = unsafe {
            let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            let address = match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let v4 = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes())
                }
                libc::AF_INET6 => {
                    let v6 = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::from(v6.sin6_addr.s6_addr)
                }
                _ => continue,
            };
            (name, address)
        };
        if !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            found.push((name, address));
        }
    }
    // SAFETY: the list came from getifaddrs and is freed once; nothing of it is used any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(10))
    }

    #[test]
    fn addresses_in_digits_need_no_name_server() {
        for (host, expected) in [("127.0.0.1", "127.0.0.1:7"), ("::1", "[::1]:7"), ("[::1]", "[::1]:7")] {
            assert_eq!(resolve(host, 7, &soon()).unwrap(), [expected.parse().unwrap()]);
        }
        let error = resolve("no such host.invalid", 7, &soon()).unwrap_err();
        assert!(error.message().contains("IP address"), "{error}");
    }

    #[test]
    fn nobody_listens_on_all_addresses() {
        // The system takes `0` for the same.
        for host in ["0.0.0.0", "::", "[::]", "::ffff:0.0.0.0", "0"] {
            let error = resolve(host, 7, &soon()).unwrap_err();
            assert!(error.message().contains("stands for all"), "{host}: {error}");
        }
    }

    #[test]
    fn a_taken_port_is_said_at_once_and_any_port_is_found() {
        let any = "127.0.0.1:0".parse().unwrap();
        let (_socket, bound) = listen_on(&[any], None).unwrap();
        assert_ne!(bound.port(), 0);
        let error = listen_on(&[bound], None).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::AddrInUse);
        assert!(error.message().contains(&bound.to_string()), "{error}");
        assert!(connect_to(&[bound], None, Duration::from_secs(5)).unwrap().is_ok());
        assert!(connect_to(&[bound], Some("lo"), Duration::from_secs(5)).unwrap().is_ok());
    }

    #[test]
    fn errors_name_the_addresses_that_there_are() {
        // An address for documentation, which nobody has.
        let foreign = "203.0.113.77:0".parse().unwrap();
        for error in [listen_on(&[foreign], None).unwrap_err(), listen_on(&[foreign], Some("nonet9")).unwrap_err()] {
            assert_eq!(error.kind(), &ErrorKind::Config);
            assert!(
                error.message().contains("lo 127.0.0.1") && error.message().contains("RANKWISE_INTERFACE"),
                "{error}"
            );
        }
        let (_socket, bound) = listen_on(&[foreign], Some("lo")).unwrap();
        assert_eq!(bound.ip(), IpAddr::from([127, 0, 0, 1]));
    }
}
