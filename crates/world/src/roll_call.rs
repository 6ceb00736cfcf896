//! The first exchange of a job that another launcher started: who is there, and whether all want the same.

use crate::deadline::Deadline;
use crate::handshake::Hash;
use crate::process_store::ProcessStore;
use crate::store::{Attachment, Store};
use crate::wire::{Input, put_bytes};
use crate::world::available_cpus;
use rankwise_core::{Error, ErrorKind, Group, Result};
use rustix::thread::CpuSet;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Where all meet; nobody has a world to use the store through before.
pub(crate) const KEY: &str = "rankwise/roll call";
const WHAT: &str = "joining";
/// Settings that have to be the same on all ranks, or they would wait for each other in different ways.
const SETTINGS: [&str; 3] = ["RANKWISE_BACKEND", "RANKWISE_DETERMINISM", "RANKWISE_CHECK"];
const UNSET: &str = "(unset)";
const MAX_SETTING: usize = 256;

/// What a rank says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    /// In the order of `SETTINGS`.
    settings: Vec<String>,
    /// One bit for each CPU that it may use.
    cpus: Vec<u8>,
    /// How many of them at a time.
    share: u32,
}

impl Present {
    /// This process.
    pub(crate) fn here() -> Present {
        let setting = |name| match std::env::var_os(name) {
            Some(value) => crate::wire::cut(&value.to_string_lossy(), MAX_SETTING).to_string(),
            None => UNSET.to_string(),
        };
        let allowed = crate::pin::allowed();
        let mut cpus = vec![0; CpuSet::MAX_CPU.div_ceil(8)];
        for cpu in allowed {
            cpus[cpu / 8] |= 1 << (cpu % 8);
        }
        Present { settings: SETTINGS.map(setting).into(), cpus, share: available_cpus() as u32 }
    }

    /// What has to be equal, in short.
    pub(crate) fn hash(&self) -> Hash {
        let mut bytes = Vec::new();
        self.settings.iter().for_each(|value| put_bytes(&mut bytes, value.as_bytes()));
        Sha256::digest(&bytes).into()
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.settings.iter().for_each(|value| put_bytes(&mut out, value.as_bytes()));
        put_bytes(&mut out, &self.cpus);
        out.extend_from_slice(&self.share.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Present> {
        let mut input = Input(bytes);
        let settings = SETTINGS.iter().map(|_| input.text(MAX_SETTING).ok()).collect::<Option<Vec<_>>>()?;
        let cpus = input.bytes(CpuSet::MAX_CPU.div_ceil(8)).ok()?.to_vec();
        let present = Present { settings, cpus, share: input.u32().ok()? };
        input.end().ok().map(|()| present)
    }
}

/// Waits for all ranks and compares; returns how many CPUs they may use together. `Timeout` names those who are missing,
/// `Refused` a rank that wants something else, with both values.
pub(crate) fn answer(
    store: &ProcessStore,
    present: Present,
    rank: usize,
    size: usize,
    limit: Duration,
) -> Result<usize> {
    let all = Group::world(size);
    let met = store.exchange(KEY, WHAT, &all, &present.encode(), Attachment::None, limit)?;
    let everybody: Option<Vec<Present>> = met.iter().map(|(bytes, _)| Present::decode(bytes)).collect();
    let everybody = everybody
        .ok_or_else(|| Error::new(ErrorKind::Closed, "a rank said nonsense on joining; are the versions the same?"))?;
    compare(&everybody, rank)?;
    Ok(cpus_together(&everybody))
}

/// What the ranks of several hosts know after the roll call.
pub(crate) struct Across {
    /// CPUs that the ranks of this host may use together.
    pub(crate) cpus: usize,
    /// The host of each rank, counted from 0 in the order of their lowest ranks.
    pub(crate) hosts: Vec<u32>,
}

/// The same as [`answer`] over several hosts. What all hear from all is kept short there: rank 0 sends it n times n.
pub(crate) fn answer_across(
    store: &ProcessStore,
    present: Present,
    rank: usize,
    size: usize,
    deadline: &Deadline,
) -> Result<Across> {
    let all = Group::world(size);
    let exchange = |key: &str, group: &Group, payload: &[u8]| -> Result<Vec<Vec<u8>>> {
        let met = store.exchange(key, WHAT, group, payload, Attachment::None, deadline.remaining())?;
        Ok(met.into_iter().map(|(bytes, _)| bytes).collect())
    };
    let own = [&present.hash()[..SHORT], &host_id()[..SHORT]].concat();
    let everybody = exchange(KEY, &all, &own)?;
    let nonsense = || Error::new(ErrorKind::Closed, "a rank said nonsense on joining; are the versions the same?");
    if everybody.iter().any(|said| said.len() != 2 * SHORT) {
        return Err(nonsense());
    }
    if everybody.iter().any(|said| said[..SHORT] != own[..SHORT]) {
        // Everybody sees that, so everybody says more.
        let bytes = Present { cpus: Vec::new(), ..present.clone() }.encode();
        let said = exchange("rankwise/settings", &all, &bytes)?;
        let said: Option<Vec<Present>> = said.iter().map(|bytes| Present::decode(bytes)).collect();
        compare(&said.ok_or_else(nonsense)?, rank)?;
    }
    let mut known: Vec<&[u8]> = Vec::new();
    let mut hosts = Vec::with_capacity(size);
    for said in &everybody {
        let id = &said[SHORT..];
        let host = known.iter().position(|other| *other == id).unwrap_or_else(|| {
            known.push(id);
            known.len() - 1
        });
        hosts.push(host as u32);
    }
    let here = (0..size).filter(|other| hosts[*other] == hosts[rank]);
    let group = Group::new(here)?;
    let local = exchange(&format!("rankwise/host {}", hosts[rank]), &group, &present.encode())?;
    let local: Option<Vec<Present>> = local.iter().map(|bytes| Present::decode(bytes)).collect();
    Ok(Across { cpus: cpus_together(&local.ok_or_else(nonsense)?), hosts })
}

/// Bytes of a hash that are told.
const SHORT: usize = 16;

/// The same on all ranks that run under one kernel and see the same network.
pub(crate) fn host_id() -> Hash {
    let mut hash = Sha256::new();
    hash.update(std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default());
    hash.update([0]);
    hash.update(rustix::system::uname().nodename().to_bytes());
    hash.update([0]);
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    hash.update(network.as_os_str().as_encoded_bytes());
    hash.finalize().into()
}

fn compare(everybody: &[Present], rank: usize) -> Result<()> {
    for (i, name) in SETTINGS.iter().enumerate() {
        let ours = &everybody[rank].settings[i];
        if let Some(other) = everybody.iter().position(|present| present.settings[i] != *ours) {
            let theirs = everybody[other].settings[i].clone();
            let kind = ErrorKind::Refused { key: (*name).into(), ours: ours.clone(), theirs };
            let message = format!("rank {other} has another value; set {name} to the same on all ranks");
            return Err(Error::new(kind, message).with_rank(rank).with_peers([other]));
        }
    }
    Ok(())
}

fn cpus_together(everybody: &[Present]) -> usize {
    let mut union = vec![0; CpuSet::MAX_CPU.div_ceil(8)];
    let mut quota = u32::MAX;
    for present in everybody {
        let own: u32 = present.cpus.iter().map(|byte| byte.count_ones()).sum();
        // Fewer than its CPUs: a control group limits how many at a time.
        if present.share < own {
            quota = quota.min(present.share);
        }
        union.iter_mut().zip(&present.cpus).for_each(|(all, own)| *all |= own);
    }
    let together: u32 = union.iter().map(|byte: &u8| byte.count_ones()).sum();
    together.min(quota).max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(backend: &str, cpus: &[u8], share: u32) -> Present {
        Present { settings: vec![backend.into(), UNSET.into(), UNSET.into()], cpus: cpus.into(), share }
    }

    #[test]
    fn what_is_said_arrives() {
        let said = present("shm", &[3, 0x80], 2);
        assert_eq!(Present::decode(&said.encode()), Some(said.clone()));
        let bytes = said.encode();
        assert!((0..bytes.len()).all(|end| Present::decode(&bytes[..end]).is_none()));
        assert!(Present::here().encode().len() < crate::store::MAX_PAYLOAD);
        assert_eq!(Present::decode(&Present::here().encode()), Some(Present::here()));
    }

    #[test]
    fn every_rank_hears_both_values() {
        let everybody = [present("shm", &[1], 1), present("mpi", &[1], 1), present("shm", &[1], 1)];
        for (rank, ours, theirs, peer) in [(0, "shm", "mpi", 1), (1, "mpi", "shm", 0), (2, "shm", "mpi", 1)] {
            let error = compare(&everybody, rank).unwrap_err();
            let expected =
                ErrorKind::Refused { key: "RANKWISE_BACKEND".into(), ours: ours.into(), theirs: theirs.into() };
            assert_eq!(error.kind(), &expected);
            assert_eq!(error.peers(), [peer]);
        }
        compare(&everybody[..1], 0).unwrap();
    }

    #[test]
    fn bound_ranks_have_the_cpus_of_all() {
        assert_eq!(cpus_together(&[present("", &[1], 1), present("", &[2], 1)]), 2);
        assert_eq!(cpus_together(&[present("", &[0xff], 8), present("", &[0xff], 8)]), 8);
        assert_eq!(cpus_together(&[present("", &[0xff], 3), present("", &[0xff], 3)]), 3);
        assert_eq!(cpus_together(&[present("", &[0], 1)]), 1);
    }
}
