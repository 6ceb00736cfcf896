//! Joining a job that our launcher started.

#![allow(unsafe_code)]

use crate::environment::{CONTROL_FD, LIFE_FD, Launched, RANK, SOURCE, WORLD_SIZE};
use crate::life::Life;
use crate::line::Server;
use crate::link::Link;
use crate::peer::Peer;
use crate::process_store::ProcessStore;
use crate::wire::MAX_RANKS;
use crate::world::{Inner, Placement, available_cpus};
use rankwise_core::{Error, Result};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::os::fd::{BorrowedFd, OwnedFd};

pub(crate) fn join(launched: Launched) -> Result<Inner> {
    let Launched { rank, size, .. } = launched;
    if size > MAX_RANKS {
        return Err(Error::config(format!("{WORLD_SIZE} is {size}; one host has at most {MAX_RANKS} ranks")));
    }
    let control = inherit(CONTROL_FD, launched.control_fd)?;
    check_control(&control, launched.control_fd)?;
    let life = inherit(LIFE_FD, launched.life_fd)?;
    let life = Life::take(life, rank, size).map_err(|holder| match holder {
        Some(pid) => Error::config(format!(
            "{RANK}={rank} is already taken by process {pid}; a rank is one process: clear RANKWISE_* in its \
             children, and leave {RANK} as the launcher sets it"
        )),
        None => wrong(LIFE_FD, launched.life_fd, "is not the life file of a launcher"),
    })?;
    // Who is refused must not look like the rank it took itself for.
    let store =
        ProcessStore::connect(Link::packets(control), rank, size, Server::Launcher).inspect_err(|_| life.let_go())?;
    Ok(Inner {
        rank,
        size,
        local_rank: launched.local_rank,
        local_size: launched.local_size,
        job: launched.job,
        source: SOURCE,
        placement: if size == 1 { Placement::Solo } else { Placement::Processes },
        cpus: launched.cpus.unwrap_or_else(available_cpus),
        store: Box::new(store),
        liveness: Box::new(life),
        hosts: None,
        hub: None,
    })
}

/// A descriptor of our own for an inherited one. Both are closed on exec; the inherited one stays open, because nobody
/// can know whether other code relies on the number.
fn inherit(name: &str, number: i32) -> Result<OwnedFd> {
    // SAFETY: borrowed for two fcntl calls only, which are harmless on any number, open or not.
    let inherited = unsafe { BorrowedFd::borrow_raw(number) };
    let own = rustix::io::fcntl_dupfd_cloexec(inherited, 3).map_err(|errno| match errno {
        Errno::BADF => wrong(name, number, "is not open here"),
        errno => wrong(name, number, "cannot be duplicated").with_source(errno),
    })?;
    let _ = rustix::io::fcntl_setfd(inherited, FdFlags::CLOEXEC);
    Ok(own)
}

fn check_control(socket: &OwnedFd, number: i32) -> Result<()> {
    let wrong = |what: &str| wrong(CONTROL_FD, number, what);
    let family = sockopt::socket_domain(socket).map_err(|_| wrong("is not a socket"))?;
    let kind = sockopt::socket_type(socket).map_err(|_| wrong("is not a socket"))?;
    if family != AddressFamily::UNIX || kind != SocketType::SEQPACKET {
        return Err(wrong("is not a launcher's socket"));
    }
    let peer = Peer::of(socket).map_err(|_| wrong("has no launcher behind it"))?;
    if !peer.is_this_user() {
        return Err(wrong(&format!("belongs to a launcher of user {}, not of this user", peer.uid)));
    }
    Ok(())
}

fn wrong(name: &str, number: i32, what: &str) -> Error {
    Error::config(format!(
        "{name} names descriptor {number}, which {what}; a process that a rank starts is no rank: clear RANKWISE_* in its \
         environment, or start the program itself with `rankwise launch`"
    ))
}
