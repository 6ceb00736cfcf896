//! What the environment says about this process: a pure function over a map, so that every case is a row of a test.

use crate::launchers::{Announced, Claim, LAUNCHERS};
use crate::meeting_point::{ADDRESS, MeetingPoint, meeting_point};
use rankwise_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::str::FromStr;

/// Version of the environment and of the launcher's messages; ranks of another version are refused.
pub const PROTOCOL: &str = "2";

/// Variables set by `rankwise launch`, and what they mean.
pub const LAUNCH_VARIABLES: [(&str, &str); 9] = [
    (RANK, "global rank of this process"),
    (WORLD_SIZE, "number of ranks of the job"),
    (LOCAL_RANK, "rank among those of this host"),
    (LOCAL_SIZE, "number of ranks on this host"),
    (JOB_ID, "128-bit job id in hexadecimal; under another launcher any text that all ranks of the job share"),
    (CONTROL_FD, "inherited descriptor of the socket to the launcher"),
    (LIFE_FD, "inherited descriptor of the file whose record locks show who lives"),
    (PROTOCOL_VERSION, "version of this protocol"),
    (CPUS, "CPUs the ranks of this host may use together"),
];

pub(crate) const RANK: &str = "RANKWISE_RANK";
pub(crate) const WORLD_SIZE: &str = "RANKWISE_WORLD_SIZE";
pub(crate) const LOCAL_RANK: &str = "RANKWISE_LOCAL_RANK";
pub(crate) const LOCAL_SIZE: &str = "RANKWISE_LOCAL_SIZE";
pub(crate) const JOB_ID: &str = "RANKWISE_JOB_ID";
pub(crate) const CONTROL_FD: &str = "RANKWISE_CONTROL_FD";
pub(crate) const LIFE_FD: &str = "RANKWISE_LIFE_FD";
pub(crate) const PROTOCOL_VERSION: &str = "RANKWISE_PROTOCOL";
pub(crate) const CPUS: &str = "RANKWISE_CPUS";

const HOW: &str = "start the program with `rankwise launch -n N -- PROGRAM`";
const HOW_LAUNCHED: &str =
    "start the program with `rankwise launch -n N -- PROGRAM`, or unset the variables RANKWISE_*";

/// The source of a rank that our launcher started.
pub(crate) const SOURCE: &str = "RANKWISE_* (rankwise launch)";
/// The source of a rank that nobody started.
pub(crate) const ALONE: &str = "alone";

/// How this process was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// By nobody we know, or as the only one: a world of one.
    Alone { source: &'static str },
    /// By our launcher.
    Launched(Launched),
    /// By another launcher, all ranks on this host; `key` is what they share and no other job has.
    Met { claim: Claim, key: String },
    /// By any launcher, on several hosts.
    Spread(Spread),
}

/// This process among the ranks of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Who says so, for people.
    pub(crate) source: &'static str,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
}

/// A rank of a job on several hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) standing: Standing,
    pub(crate) key: String,
    pub(crate) point: MeetingPoint,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launched {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
    pub(crate) job: u128,
    pub(crate) control_fd: i32,
    pub(crate) life_fd: i32,
    pub(crate) cpus: Option<usize>,
}

/// Reads the variables that concern joining: the first complete set counts. `pmi_server` describes the process behind a
/// socket, see `Launcher::job_key`.
pub(crate) fn origin(
    variables: &HashMap<String, String>,
    pmi_server: impl FnOnce(i32) -> Option<String>,
) -> Result<Origin> {
    // A job id and a CPU count may be set by hand for other purposes; they alone announce nothing.
    let ours = [RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_SIZE, CONTROL_FD, LIFE_FD, PROTOCOL_VERSION];
    let announced = ours.into_iter().find(|name| variables.contains_key(*name));
    let missing = ours.into_iter().chain([JOB_ID]).find(|name| !variables.contains_key(*name));
    if announced.is_some() && missing.is_none() {
        let launched = launched(variables)?;
        // Without an address it is no launcher's doing; its hub says what the two disagree about.
        if launched.local_size == launched.size || !variables.contains_key(ADDRESS) {
            return Ok(Origin::Launched(launched));
        }
        let Launched { rank, size, local_rank, local_size, .. } = launched;
        let standing = Standing { source: SOURCE, rank, size, local_rank, local_size };
        let point = meeting_point(variables)?;
        return Ok(Origin::Spread(Spread { standing, key: SOURCE.to_string(), point }));
    }
    let mut half = announced.zip(missing).map(|(set, missing)| incomplete(set, missing, HOW_LAUNCHED));
    let mut complete: Vec<Claim> = Vec::new();
    let mut alone = None;
    for launcher in LAUNCHERS {
        match launcher.read(variables) {
            Ok(Announced::Nothing) => {}
            Ok(Announced::Half { set, missing }) => {
                half.get_or_insert_with(|| incomplete(set, missing, launcher.advice()));
            }
            Ok(Announced::Complete(claim)) => complete.push(claim),
            Ok(Announced::Alone) => drop(alone.get_or_insert(launcher.source())),
            // What a later set says is of no concern once one is complete.
            Err(_) if !complete.is_empty() => {}
            Err(error) => return Err(error),
        }
    }
    let mut complete = complete.into_iter();
    let Some(claim) = complete.next() else {
        return half.map_or(Ok(Origin::Alone { source: alone.unwrap_or(ALONE) }), Err);
    };
    if let Some(half) = half {
        tracing::warn!(source = claim.launcher.source(), ignored = half.message(), "an incomplete set is ignored");
    }
    for other in complete.filter(|other| (other.rank, other.size) != (claim.rank, claim.size)) {
        tracing::warn!(
            source = claim.launcher.source(),
            "this is rank {} of {}; {} say rank {} of {}, which is ignored",
            claim.rank,
            claim.size,
            other.launcher.source(),
            other.rank,
            other.size
        );
    }
    placed(claim, variables, pmi_server)
}

/// What a launcher says of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Which launcher, for people.
    pub source: &'static str,
    /// Global rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
}

/// What the environment says of this process, without joining anybody; `None` when it says nothing, or nothing complete.
pub fn announced() -> Option<Announcement> {
    announcement(&of_this_process())
}

fn announcement(variables: &HashMap<String, String>) -> Option<Announcement> {
    if let Ok(Launched { rank, size, .. }) = launched(variables) {
        return Some(Announcement { source: SOURCE, rank, size });
    }
    let claim = LAUNCHERS.iter().find_map(|launcher| match launcher.read(variables) {
        Ok(Announced::Complete(claim)) => Some(claim),
        _ => None,
    })?;
    Some(Announcement { source: claim.launcher.source(), rank: claim.rank, size: claim.size })
}

fn placed(
    claim: Claim,
    variables: &HashMap<String, String>,
    pmi_server: impl FnOnce(i32) -> Option<String>,
) -> Result<Origin> {
    let source = claim.launcher.source();
    if claim.size == 1 {
        return Ok(Origin::Alone { source });
    }
    if claim.local_size < claim.size {
        // The PMI server of each host is another.
        let key = claim.launcher.job_key(variables, |_| None)?;
        let point = meeting_point(variables)?;
        return Ok(Origin::Spread(Spread { standing: claim.standing(), key, point }));
    }
    let key = claim.launcher.job_key(variables, pmi_server)?;
    Ok(Origin::Met { claim, key })
}

fn incomplete(set: &str, missing: &str, advice: &str) -> Error {
    Error::config(format!("{set} is set but {missing} is not; {advice}"))
}

fn launched(variables: &HashMap<String, String>) -> Result<Launched> {
    let text = |name: &str| variables.get(name).map(String::as_str).ok_or_else(|| incomplete(RANK, name, HOW_LAUNCHED));
    let theirs = text(PROTOCOL_VERSION)?;
    if theirs != PROTOCOL {
        let kind =
            ErrorKind::Refused { key: PROTOCOL_VERSION.into(), ours: PROTOCOL.into(), theirs: printable(theirs) };
        return Err(Error::new(
            kind,
            "the launcher speaks another version of the protocol; build the program and `rankwise` from the same version",
        ));
    }
    let size: usize = number(WORLD_SIZE, text(WORLD_SIZE)?)?;
    let local_size: usize = number(LOCAL_SIZE, text(LOCAL_SIZE)?)?;
    let launched = Launched {
        rank: below(RANK, number(RANK, text(RANK)?)?, WORLD_SIZE, size)?,
        size,
        local_rank: below(LOCAL_RANK, number(LOCAL_RANK, text(LOCAL_RANK)?)?, LOCAL_SIZE, local_size)?,
        local_size,
        job: match text(JOB_ID)? {
            id if id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()) => {
                u128::from_str_radix(id, 16).unwrap_or_default()
            }
            id => {
                return Err(Error::config(format!(
                    "{JOB_ID} is `{}`, not 32 hexadecimal digits; {HOW}",
                    printable(id)
                )));
            }
        },
        control_fd: descriptor(CONTROL_FD, text(CONTROL_FD)?)?,
        life_fd: descriptor(LIFE_FD, text(LIFE_FD)?)?,
        cpus: match variables.get(CPUS) {
            Some(text) => Some(number::<usize>(CPUS, text)?.max(1)),
            None => None,
        },
    };
    if local_size > size {
        return Err(Error::config(format!(
            "{LOCAL_SIZE} is {local_size}, more than {WORLD_SIZE}, which is {size}; {HOW}"
        )));
    }
    if launched.control_fd == launched.life_fd {
        return Err(Error::config(format!(
            "{CONTROL_FD} and {LIFE_FD} both name descriptor {}; {HOW}",
            launched.life_fd
        )));
    }
    Ok(launched)
}

pub(crate) fn number<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| Error::config(format!("{name} is `{}`, not a whole number; {HOW}", printable(text))))
}

fn descriptor(name: &str, text: &str) -> Result<i32> {
    match number::<i32>(name, text)? {
        fd if fd > 2 => Ok(fd),
        fd => Err(Error::config(format!("{name} is {fd}, no descriptor that a launcher passes; {HOW}"))),
    }
}

pub(crate) fn below(name: &str, value: usize, limit_name: &str, limit: usize) -> Result<usize> {
    if value < limit {
        return Ok(value);
    }
    Err(Error::config(format!("{name} is {value}, but {limit_name} is {limit}: ranks are 0 to size - 1; {HOW}")))
}

/// Text from the environment, safe and short enough for an error message.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

/// The variables of this process that [`origin`] looks at.
pub(crate) fn of_this_process() -> HashMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| {
            let prefixes = ["RANKWISE_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_"];
            let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];
            prefixes.iter().any(|prefix| name.starts_with(prefix)) || names.contains(&name.as_str())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: [(&str, &str); 9] = [
        (RANK, "1"),
        (WORLD_SIZE, "4"),
        (LOCAL_RANK, "1"),
        (LOCAL_SIZE, "4"),
        (JOB_ID, "000102030405060708090a0b0c0d0e0f"),
        (CONTROL_FD, "7"),
        (LIFE_FD, "8"),
        (CPUS, "2"),
        (PROTOCOL_VERSION, PROTOCOL),
    ];

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    fn full_with(name: &str, value: Option<&str>) -> HashMap<String, String> {
        let mut variables = map(&FULL);
        match value {
            Some(value) => variables.insert(name.into(), value.into()),
            None => variables.remove(name),
        };
        variables
    }

    fn read(variables: &HashMap<String, String>) -> Result<Origin> {
        origin(variables, |_| None)
    }

    fn said(pairs: &[(&str, &str)]) -> Result<Origin> {
        read(&map(pairs))
    }

    #[test]
    fn a_full_set_is_read() {
        let expected = Launched {
            rank: 1,
            size: 4,
            local_rank: 1,
            local_size: 4,
            job: 0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f,
            control_fd: 7,
            life_fd: 8,
            cpus: Some(2),
        };
        assert_eq!(read(&map(&FULL)).unwrap(), Origin::Launched(expected.clone()));
        let foreign_too = [FULL.to_vec(), vec![("RANK", "0"), ("WORLD_SIZE", "9")]].concat();
        assert_eq!(read(&map(&foreign_too)).unwrap(), Origin::Launched(expected));
    }

    #[test]
    fn what_is_announced_needs_nobody() {
        let says = |pairs: &[(&str, &str)]| announcement(&map(pairs)).map(|said| (said.rank, said.size));
        assert_eq!(says(&FULL), Some((1, 4)));
        let spread = [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
        assert_eq!(says(&spread), Some((3, 8)));
        assert_eq!(says(&spread[..2]), None);
        assert_eq!(says(&[]), None);
    }

    #[test]
    fn alone() {
        for row in [
            &[][..],
            &[(JOB_ID, "mine")],
            &[(CPUS, "4")],
            &[("RANKWISE_BACKEND", "shm")],
            &[("RANK", "0"), ("WORLD_SIZE", "1")],
            &[("WORLD_SIZE", "1")],
            &[("OMPI_COMM_WORLD_SIZE", "1")],
            &[("SLURM_NTASKS", "8")],
            &[("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0")],
        ] {
            assert!(matches!(said(row).unwrap(), Origin::Alone { .. }), "{row:?}");
        }
    }

    #[test]
    fn every_missing_variable_is_named() {
        for (name, _) in FULL.iter().filter(|(name, _)| *name != CPUS) {
            let error = read(&full_with(name, None)).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Config);
            assert!(error.message().contains(&format!("but {name} is not")), "{error}");
            assert!(error.message().contains("rankwise launch"), "{error}");
        }
    }

    #[test]
    fn every_bad_value_is_named() {
        for (name, value) in [
            (RANK, "4"),
            (RANK, "-1"),
            (RANK, ""),
            (RANK, "one"),
            (RANK, "99999999999999999999"),
            (WORLD_SIZE, "0"),
            (WORLD_SIZE, "1.5"),
            (LOCAL_RANK, "4"),
            (LOCAL_SIZE, "5"),
            (LOCAL_SIZE, "x"),
            (JOB_ID, "12"),
            (JOB_ID, "+00102030405060708090a0b0c0d0e0f"),
            (CONTROL_FD, "0"),
            (CONTROL_FD, "-3"),
            (CONTROL_FD, "8"),
            (LIFE_FD, "2"),
            (LIFE_FD, "fd"),
            (CPUS, "many"),
        ] {
            let error = read(&full_with(name, Some(value))).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Config, "{name}={value}");
            assert!(error.message().contains(name), "{name}={value}: {error}");
        }
    }

    #[test]
    fn another_protocol_is_refused_with_both_values() {
        let error = read(&full_with(PROTOCOL_VERSION, Some("0"))).unwrap_err();
        let expected = ErrorKind::Refused { key: PROTOCOL_VERSION.into(), ours: PROTOCOL.into(), theirs: "0".into() };
        assert_eq!(error.kind(), &expected);
    }
}
