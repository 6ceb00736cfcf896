//! What other launchers say about a process: one table row each, read by pure functions over a map.

use crate::environment::{JOB_ID, Standing, below, number, printable};
use rankwise_core::{Error, Result};
use std::collections::HashMap;

type Variables = HashMap<String, String>;

/// A launcher that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launcher {
    Torchrun,
    OpenMpi,
    Pmi,
    Slurm,
}

/// Which rank of how many a launcher says this process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) launcher: Launcher,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
}

impl Claim {
    pub(crate) fn standing(&self) -> Standing {
        let Claim { launcher, rank, size, local_rank, local_size } = *self;
        Standing { source: launcher.source(), rank, size, local_rank, local_size }
    }
}

/// What a launcher's variables amount to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    Nothing,
    /// Some are set, and this one is not.
    Half {
        set: &'static str,
        missing: &'static str,
    },
    Complete(Claim),
    /// A half set that says one process: it has no others to miss, and counts when nothing else is set.
    Alone,
}

/// In the order in which they are asked; the first complete set counts.
pub(crate) const LAUNCHERS: [Launcher; 4] = [Launcher::Torchrun, Launcher::OpenMpi, Launcher::Pmi, Launcher::Slurm];

/// Names of the variables for rank, size, local rank and local size; the first that is set counts.
struct Names {
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
}

/// Step numbers from here on are not tasks that srun started: the batch script, an interactive shell, the outside.
const FIRST_SPECIAL_STEP: u64 = 0xffff_fff0;

impl Launcher {
    /// Where rank and size come from, for people.
    pub(crate) fn source(self) -> &'static str {
        match self {
            Launcher::Torchrun => "RANK, WORLD_SIZE (torchrun)",
            Launcher::OpenMpi => "OMPI_COMM_WORLD_* (mpirun)",
            Launcher::Pmi => "PMI_* (mpiexec)",
            Launcher::Slurm => "SLURM_* (srun)",
        }
    }

    fn names(self) -> Names {
        match self {
            Launcher::Torchrun => Names {
                rank: &["RANK"],
                size: &["WORLD_SIZE"],
                local_rank: &["LOCAL_RANK"],
                local_size: &["LOCAL_WORLD_SIZE"],
            },
            Launcher::OpenMpi => Names {
                rank: &["OMPI_COMM_WORLD_RANK"],
                size: &["OMPI_COMM_WORLD_SIZE"],
                local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
                local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
            },
            Launcher::Pmi => Names {
                rank: &["PMI_RANK"],
                size: &["PMI_SIZE"],
                local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
                local_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
            },
            Launcher::Slurm => Names {
                rank: &["SLURM_PROCID"],
                size: &["SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"],
                local_rank: &["SLURM_LOCALID"],
                local_size: &["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"],
            },
        }
    }

    /// Reads this launcher's variables. `Config` when one has a value that can't be.
    pub(crate) fn read(self, variables: &Variables) -> Result<Announced> {
        // Outside of a step this is the shell of an allocation, not a task.
        if self == Launcher::Slurm && !in_slurm_step(variables) {
            return Ok(Announced::Nothing);
        }
        let Names { rank, size, local_rank, local_size } = self.names();
        let find = |names: &[&'static str]| {
            names.iter().find_map(|name| Some((*name, variables.get(*name)?.as_str()))).ok_or(names[0])
        };
        let found = [find(rank), find(size), find(local_rank), find(local_size)];
        // Those of a rank's place on its host are set by other programs too, for other purposes, under MPI's names.
        let announcing = if self == Launcher::Torchrun { &found[..3] } else { &found[..2] };
        let Some((set, _)) = announcing.iter().find_map(|found| found.ok()) else { return Ok(Announced::Nothing) };
        let alone = matches!(found[1], Ok((_, size)) if size.trim() == "1");
        let (rank, size, local_rank, local_size) = match found {
            [Ok(rank), Ok(size), Ok(local_rank), Ok(local_size)] => (rank, size, local_rank, local_size),
            _ if alone => return Ok(Announced::Alone),
            found => {
                let missing = found.into_iter().find_map(|found| found.err()).unwrap_or(set);
                return Ok(Announced::Half { set, missing });
            }
        };
        let count: usize = number(size.0, size.1)?;
        let here = match self {
            Launcher::Slurm => tasks_on_node(local_size, variables)?,
            _ => number(local_size.0, local_size.1)?,
        };
        if here > count {
            return Err(Error::config(format!(
                "{} says {here} ranks on this host, more than {}, which is {count}; {}",
                local_size.0,
                size.0,
                self.advice()
            )));
        }
        Ok(Announced::Complete(Claim {
            launcher: self,
            rank: below(rank.0, number(rank.0, rank.1)?, size.0, count)?,
            size: count,
            local_rank: below(local_rank.0, number(local_rank.0, local_rank.1)?, local_size.0, here)?,
            local_size: here,
        }))
    }

    /// What to do when this launcher's variables are no good.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Launcher::Torchrun => {
                "set all of RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE as torchrun does, or none, or start the \
                 program with `rankwise launch -n N -- PROGRAM`"
            }
            Launcher::OpenMpi => "start the program with mpirun, or unset the variables OMPI_COMM_WORLD_*",
            Launcher::Pmi => "start the program with mpiexec, or unset PMI_RANK and PMI_SIZE",
            Launcher::Slurm => "start the program with srun, or unset SLURM_STEP_ID",
        }
    }

    /// A text that all processes of this job see, and no other job on this host. `pmi_server` describes the process behind
    /// the socket that `PMI_FD` names.
    pub(crate) fn job_key(
        self,
        variables: &Variables,
        pmi_server: impl FnOnce(i32) -> Option<String>,
    ) -> Result<String> {
        let given = |name: &str| variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        if let Some(id) = given(JOB_ID) {
            return match id.len() <= MAX_KEY {
                true => Ok(format!("{JOB_ID}={id}")),
                false => {
                    Err(Error::config(format!("{JOB_ID} has {} bytes, more than {MAX_KEY}; shorten it", id.len())))
                }
            };
        }
        let pmix = || given("PMIX_NAMESPACE").map(|name| format!("PMIX_NAMESPACE={name}"));
        let step = || {
            let (job, step) = (given("SLURM_JOB_ID")?, given("SLURM_STEP_ID")?);
            in_slurm_step(variables).then(|| format!("SLURM_JOB_ID.SLURM_STEP_ID={job}.{step}"))
        };
        let torch = || {
            let run = given("TORCHELASTIC_RUN_ID").unwrap_or("none");
            Some(format!("TORCHELASTIC_RUN_ID={run} MASTER_PORT={}", given("MASTER_PORT")?))
        };
        let hydra = || {
            let server = pmi_server(given("PMI_FD")?.parse().ok()?)?;
            Some(format!("PMI server {server}"))
        };
        let key = match self {
            Launcher::Torchrun => torch(),
            Launcher::OpenMpi => pmix(),
            Launcher::Pmi => pmix().or_else(hydra).or_else(step),
            Launcher::Slurm => step(),
        };
        key.filter(|key| key.len() <= MAX_KEY).ok_or_else(|| {
            let (how, example) = match self {
                Launcher::Torchrun => ("MASTER_PORT is not set", "export it before the ranks start"),
                Launcher::OpenMpi => ("PMIX_NAMESPACE is not set", "mpirun -x RANKWISE_JOB_ID=\"$(uuidgen)\" ..."),
                Launcher::Pmi => {
                    ("mpiexec does not say which job this is", "mpiexec -genv RANKWISE_JOB_ID \"$(uuidgen)\" ...")
                }
                Launcher::Slurm => ("SLURM_JOB_ID is not set", "srun --export=ALL,RANKWISE_JOB_ID=\"$(uuidgen)\" ..."),
            };
            Error::config(format!(
                "the ranks of this job cannot find each other, because {how}: set {JOB_ID} to the same text for all \
                 of them, and to another for every job ({example})"
            ))
        })
    }
}

/// Longest job key in bytes.
const MAX_KEY: usize = 512;

fn in_slurm_step(variables: &Variables) -> bool {
    let step = variables.get("SLURM_STEP_ID").and_then(|step| step.trim().parse::<u64>().ok());
    step.is_some_and(|step| step < FIRST_SPECIAL_STEP)
}

/// The number of tasks on this node from a list such as `4(x2),3`.
fn tasks_on_node((name, text): (&str, &str), variables: &Variables) -> Result<usize> {
    let bad = || {
        let example =
            "which is not a list such as `4(x2),3` that covers node SLURM_NODEID; start the program with srun";
        Error::config(format!("{name} is `{}`, {example}", printable(text)))
    };
    let mut node: usize = match variables.get("SLURM_NODEID") {
        Some(id) => number("SLURM_NODEID", id)?,
        None => 0,
    };
    for part in text.trim().split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, rest)) => (tasks, rest.strip_suffix(')').ok_or_else(bad)?),
            None => (part, "1"),
        };
        let tasks: usize = tasks.parse().map_err(|_| bad())?;
        let nodes: usize = nodes.parse().map_err(|_| bad())?;
        if node < nodes {
            return Ok(tasks);
        }
        node -= nodes;
    }
    Err(bad())
}

/// The process that made the other end of the socket `fd`, in a form that no other process of this host has had.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn socket_server(fd: i32) -> Option<String> {
    use rustix::net::{AddressFamily, sockopt};
    if fd <= 2 {
        return None;
    }
    // SAFETY: borrowed for getsockopt calls only, which are harmless on any number, open or not.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    if sockopt::socket_domain(socket).ok()? != AddressFamily::UNIX {
        return None;
    }
    let pid = crate::peer::Peer::of(socket).ok()?.pid;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; the start time is the 20th field after it.
    let started = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?;
    Some(format!("{pid} started at {started}"))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn socket_server(_: i32) -> Option<String> {
    None
}

#[cfg(test)]
mod recorded;
