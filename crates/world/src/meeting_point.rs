//! Where the ranks of a job on several hosts meet, read from the environment by a pure function.

use crate::environment::{number, printable};
use rankwise_core::{Error, Result};
use std::collections::HashMap;
use std::path::PathBuf;

/// Variables that say where the ranks of several hosts meet, and what they mean.
pub const MEETING_VARIABLES: [(&str, &str); 6] = [
    (ADDRESS, "host name or address of rank 0; else MASTER_ADDR"),
    (PORT, "TCP port of rank 0; else MASTER_PORT, unless torchrun's agent serves that"),
    (INTERFACE, "name or address of the interface to use; else the one that leads to rank 0"),
    (TOKEN_FILE, "file of mode 0600 with the token that all ranks share"),
    (TOKEN_FD, "inherited descriptor to read the token from instead"),
    (LISTEN_FD, "inherited descriptor of the socket that rank 0 listens on; set by `rankwise launch`"),
];

pub(crate) const ADDRESS: &str = "RANKWISE_ADDRESS";
pub(crate) const PORT: &str = "RANKWISE_PORT";
pub(crate) const INTERFACE: &str = "RANKWISE_INTERFACE";
pub(crate) const TOKEN_FILE: &str = "RANKWISE_TOKEN_FILE";
pub(crate) const TOKEN_FD: &str = "RANKWISE_TOKEN_FD";
pub(crate) const LISTEN_FD: &str = "RANKWISE_LISTEN_FD";

/// Where rank 0 listens, and which interface leads there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) interface: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeetingPoint {
    pub(crate) at: Address,
    pub(crate) listen_fd: Option<i32>,
    pub(crate) token: TokenPlace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenPlace {
    Descriptor(i32),
    File(PathBuf),
}

/// `Config` names what is missing. The set is needed by ranks on several hosts only.
pub(crate) fn meeting_point(variables: &HashMap<String, String>) -> Result<MeetingPoint> {
    let given = |name: &str| variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    let descriptor = |name: &str| {
        let Some(text) = given(name) else { return Ok(None) };
        match number::<i32>(name, text)? {
            fd if fd > 2 => Ok(Some(fd)),
            fd => Err(Error::config(format!("{name} is {fd}; an inherited descriptor is 3 or more"))),
        }
    };
    let missing = |what: &str, how: &str| {
        Error::config(format!(
            "the ranks of this job are on several hosts, and {what}: set {how} to the same on all ranks"
        ))
    };
    let host = given(ADDRESS).or_else(|| given("MASTER_ADDR")).ok_or_else(|| {
        missing("nothing says where rank 0 is", "RANKWISE_ADDRESS (or MASTER_ADDR) to the address of its host")
    })?;
    let agent = given("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| ["1", "true", "True"].contains(&value));
    let port = match (given(PORT), given("MASTER_PORT")) {
        (Some(port), _) => (PORT, port),
        (None, Some(_)) if agent => {
            return Err(missing(
                "torchrun's own agent serves MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE is set)",
                "RANKWISE_PORT to another free port",
            ));
        }
        (None, Some(port)) => ("MASTER_PORT", port),
        (None, None) => {
            return Err(missing("nothing says on which port rank 0 listens", "RANKWISE_PORT (or MASTER_PORT)"));
        }
    };
    let (name, text) = port;
    let port: u16 = text.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
        let how = "a fixed port is from 1 to 65535; `rankwise launch` can choose a free one";
        Error::config(format!("{name} is `{}`, and {how}", printable(text)))
    })?;
    let token = match (descriptor(TOKEN_FD)?, given(TOKEN_FILE)) {
        (Some(fd), _) => TokenPlace::Descriptor(fd),
        (None, Some(path)) => TokenPlace::File(path.into()),
        (None, None) => {
            return Err(missing(
                "nothing keeps strangers out",
                "RANKWISE_TOKEN_FILE to a file of mode 0600 made by `rankwise token new FILE`, which holds the same on all \
                 hosts (or RANKWISE_TOKEN_FD to a descriptor)",
            ));
        }
    };
    Ok(MeetingPoint {
        at: Address { host: host.into(), port, interface: given(INTERFACE).map(str::to_owned) },
        listen_fd: descriptor(LISTEN_FD)?,
        token,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Row = &'static [(&'static str, &'static str)];

    const TORCH: Row = &[("MASTER_ADDR", "node0"), ("MASTER_PORT", "29500")];
    const AGENT: Row = &[("TORCHELASTIC_USE_AGENT_STORE", "True")];
    const TOKEN: Row = &[("RANKWISE_TOKEN_FILE", "/secret")];

    fn read(rows: &[Row]) -> Result<MeetingPoint> {
        let pairs = rows.iter().flat_map(|row| row.iter());
        meeting_point(&pairs.map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    #[test]
    fn the_meeting_point_is_found() {
        let expected = |host: &str, port: u16| MeetingPoint {
            at: Address { host: host.into(), port, interface: None },
            listen_fd: None,
            token: TokenPlace::File("/secret".into()),
        };
        assert_eq!(read(&[TORCH, TOKEN]).unwrap(), expected("node0", 29500));
        assert_eq!(read(&[TORCH, TOKEN, AGENT, &[(PORT, "1")]]).unwrap(), expected("node0", 1));
        assert_eq!(read(&[TORCH, TOKEN, &[(ADDRESS, "fd00::2"), (PORT, "9")]]).unwrap(), expected("fd00::2", 9));
        let by_descriptor = read(&[TORCH, TOKEN, &[(TOKEN_FD, "5"), (INTERFACE, "ib0"), (LISTEN_FD, "6")]]).unwrap();
        assert_eq!(by_descriptor.token, TokenPlace::Descriptor(5));
        assert_eq!((by_descriptor.at.interface.as_deref(), by_descriptor.listen_fd), (Some("ib0"), Some(6)));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (rows, named) in [
            (&[TOKEN][..], "RANKWISE_ADDRESS (or MASTER_ADDR)"),
            (&[TOKEN, &[(ADDRESS, "node0")]], "RANKWISE_PORT (or MASTER_PORT)"),
            (&[TOKEN, TORCH, AGENT], "RANKWISE_PORT to another free port"),
            (&[TORCH], "RANKWISE_TOKEN_FILE"),
            (&[TORCH, TOKEN, &[(PORT, "0")]], "RANKWISE_PORT is `0`"),
            (&[TORCH, TOKEN, &[(PORT, "65536")]], "RANKWISE_PORT is `65536`"),
            (&[TORCH, &[(TOKEN_FD, "1")]], "RANKWISE_TOKEN_FD is 1"),
            (&[TORCH, &[(TOKEN_FD, "x")]], "RANKWISE_TOKEN_FD is `x`"),
        ] {
            let error = read(rows).unwrap_err();
            assert!(error.message().contains(named), "{rows:?}: {error}");
        }
    }
}
