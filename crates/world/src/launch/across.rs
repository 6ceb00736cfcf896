//! Jobs on several hosts: a launcher on each, which all say the same about the job.

use crate::deadline::Deadline;
use crate::meeting_point::INTERFACE;
use crate::tcp;
use crate::token::Token;
use crate::wire::MAX_RANKS;
use rankwise_core::{Error, Result};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a name server may take.
const RESOLUTION: Duration = Duration::from_secs(10);

/// Which of several launchers this is, and where the ranks of all of them meet.
///
/// Each launcher starts as many ranks; those of node 0 come first. Rank 0 listens on the address and port, and all ranks
/// prove to it that they hold the same token.
#[derive(Clone, Debug)]
pub struct Across {
    nodes: usize,
    node: usize,
    address: String,
    port: u16,
    token_file: PathBuf,
}

/// What a launcher knows before it starts ranks.
pub(super) struct Prepared {
    pub(super) first_rank: usize,
    pub(super) size: usize,
    pub(super) address: String,
    pub(super) port: u16,
    pub(super) token_file: PathBuf,
    /// What rank 0 listens on, where that is started here.
    pub(super) listener: Option<(OwnedFd, SocketAddr)>,
}

impl Across {
    /// Launcher `node` of `nodes`. `address` and `port` are of node 0; port 0 is for node 0 only, which then chooses a free one
    /// (see [`Job::listens_on`](crate::launch::Job::listens_on)). `token_file` has mode 0600 and holds the same on all hosts.
    pub fn new(
        nodes: usize,
        node: usize,
        address: impl Into<String>,
        port: u16,
        token_file: impl AsRef<Path>,
    ) -> Across {
        Across { nodes, node, address: address.into(), port, token_file: token_file.as_ref().into() }
    }

    /// Checks what can be checked here, and listens if this is node 0.
    pub(super) fn prepare(&self, ranks: usize) -> Result<Prepared> {
        let Across { nodes, node, address, port, token_file } = self.clone();
        if node >= nodes {
            return Err(Error::invalid(format!(
                "node {node} is outside this job of {nodes} nodes, which count from 0"
            )));
        }
        let size = nodes.checked_mul(ranks).filter(|size| *size <= MAX_RANKS).ok_or_else(|| {
            Error::invalid(format!("{nodes} nodes of {ranks} ranks are more than the {MAX_RANKS} that a job may have"))
        })?;
        // The ranks read it again; here it is for the error.
        Token::read(&token_file)?;
        let token_file = std::path::absolute(&token_file).unwrap_or(token_file);
        let mut prepared = Prepared { first_rank: node * ranks, size, address, port, token_file, listener: None };
        if node == 0 {
            let addresses = tcp::resolve(&prepared.address, port, &Deadline::after(RESOLUTION))?;
            let interface = std::env::var(INTERFACE).ok().filter(|interface| !interface.trim().is_empty());
            let (socket, bound) = tcp::listen_on(&addresses, interface.as_deref().map(str::trim))?;
            prepared.port = bound.port();
            prepared.listener = Some((socket, bound));
        } else if port == 0 {
            return Err(Error::invalid("only node 0 can choose a port; give the others the one that it says"));
        }
        Ok(prepared)
    }
}
