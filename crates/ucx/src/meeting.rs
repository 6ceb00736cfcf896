//! How ranks tell each other the addresses of their workers.

use crate::settings;
use rankwise_core::{Error, ErrorKind, Group, Result};
use rankwise_world::{Attachment, MAX_PAYLOAD, World};
use std::time::{Duration, Instant};

/// Raised when ranks of different builds would misunderstand each other's messages.
const PROTOCOL: u32 = 1;

/// What all ranks have to agree on, with names for people.
pub(crate) type Settings = Vec<(&'static str, String)>;

/// What the ranks must have in common: library and transports.
pub(crate) fn ours(version: (u32, u32, u32)) -> Settings {
    let transports = settings::read("UCX_TLS").unwrap_or_else(|| "not set".into());
    vec![
        ("protocol of the ucx backend", PROTOCOL.to_string()),
        ("version of UCX", format!("{}.{}", version.0, version.1)),
        ("UCX_TLS", transports),
    ]
}

/// Collective over the world: gives this rank's settings and address, or the error that keeps it from having any, and returns the addresses of all
/// ranks. Blocks up to `deadline`.
///
/// A rank that failed returns its own error, the others `NoBackend` with its text; `Refused` when settings differ.
pub(crate) fn exchange(world: &World, mine: Result<(Settings, Vec<u8>)>, deadline: Duration) -> Result<Vec<Box<[u8]>>> {
    let began = Instant::now();
    let everybody = Group::world(world.size());
    let spilled = |rank: usize| format!("ucx/address/{rank}");
    let payload = match &mine {
        Err(error) => Frame::of(b'!', &[error.to_string().as_bytes()]),
        Ok((settings, address)) => {
            let texts: Vec<&[u8]> = settings.iter().map(|(_, value)| value.as_bytes()).collect();
            let whole = Frame::of(b'=', &[&texts[..], &[address]].concat());
            if whole.len() <= MAX_PAYLOAD {
                whole
            } else {
                world.store().set(&spilled(world.rank()), address)?;
                Frame::of(b'+', &texts)
            }
        }
    };
    let payload = &payload[..payload.len().min(MAX_PAYLOAD)];
    let what = "the addresses of UCX's workers";
    let met = world.store().exchange("ucx/join", what, &everybody, payload, Attachment::None, deadline);
    let (ours, _) = mine?;
    let frames: Vec<Frame> = met?.into_iter().map(|(bytes, _)| Frame::read(&bytes)).collect();
    if let Some((rank, frame)) = frames.iter().enumerate().find(|(_, frame)| frame.kind == b'!') {
        let why = String::from_utf8_lossy(frame.fields.first().map_or(&[], Vec::as_slice)).into_owned();
        return Err(
            Error::new(ErrorKind::NoBackend, format!("rank {rank} could not start UCX: {why}")).with_peers([rank])
        );
    }
    for (rank, frame) in frames.iter().enumerate() {
        for (index, (key, value)) in ours.iter().enumerate() {
            let theirs = frame.fields.get(index).map_or("unreadable".into(), |text| String::from_utf8_lossy(text));
            if theirs != *value {
                let kind = ErrorKind::Refused { key: (*key).into(), ours: value.clone(), theirs: theirs.to_string() };
                let message = format!("{key} is {value} here and {theirs} on rank {rank}; give all ranks the same");
                return Err(Error::new(kind, message).with_peers([rank]));
            }
        }
    }
    let rest = |began: Instant| deadline.saturating_sub(began.elapsed());
    let addresses = frames.into_iter().enumerate().map(|(rank, mut frame)| {
        if frame.kind == b'+' {
            return world.store().wait(&spilled(rank), rest(began)).map(Vec::into_boxed_slice);
        }
        frame.fields.pop().filter(|_| frame.fields.len() == ours.len()).map(Vec::into_boxed_slice).ok_or_else(|| {
            Error::new(ErrorKind::NoBackend, format!("rank {rank} sent no address that this rank can read"))
                .with_peers([rank])
        })
    });
    addresses.collect()
}

/// A kind and byte strings, each behind its length.
struct Frame {
    kind: u8,
    fields: Vec<Vec<u8>>,
}

impl Frame {
    fn of(kind: u8, fields: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![kind];
        for field in fields {
            bytes.extend((field.len() as u32).to_le_bytes());
            bytes.extend(*field);
        }
        bytes
    }

    /// A field that is cut short has what is there of it.
    fn read(bytes: &[u8]) -> Frame {
        let Some((kind, mut rest)) = bytes.split_first() else { return Frame { kind: 0, fields: Vec::new() } };
        let mut fields = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (field, next) = after.split_at((u32::from_le_bytes(*length) as usize).min(after.len()));
            fields.push(field.to_vec());
            rest = next;
        }
        Frame { kind: *kind, fields }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_and_whatever_arrives_is_read() {
        let bytes = Frame::of(b'=', &[b"one", b"", b"three"]);
        let frame = Frame::read(&bytes);
        assert_eq!((frame.kind, frame.fields), (b'=', vec![b"one".to_vec(), Vec::new(), b"three".to_vec()]));
        for length in 0..bytes.len() {
            assert!(Frame::read(&bytes[..length]).fields.len() <= 3);
        }
        assert_eq!(Frame::read(&[b'=', 255, 255, 255, 255, 7]).fields, [vec![7]]);
    }

    #[test]
    fn differences_and_failures_reach_everybody() {
        let long = Duration::from_secs(60);
        let results = World::threads(3, |world| {
            let version = if world.rank() == 2 { (1, 22, 0) } else { (1, 13, 1) };
            exchange(&world, Ok((ours(version), vec![world.rank() as u8; 5000])), long)
        });
        for (rank, result) in results.unwrap().into_iter().enumerate() {
            let error = result.unwrap_err();
            let (ours, theirs, odd) = if rank == 2 { ("1.22", "1.13", 0) } else { ("1.13", "1.22", 2) };
            let kind = ErrorKind::Refused { key: "version of UCX".into(), ours: ours.into(), theirs: theirs.into() };
            assert_eq!((error.kind(), error.peers()), (&kind, &[odd][..]), "{error}");
        }
        let results = World::threads(2, |world| {
            let mine = match world.rank() {
                0 => Ok((ours((1, 13, 1)), vec![7; 100])),
                _ => Err(Error::config("no such device")),
            };
            exchange(&world, mine, long)
        });
        let errors: Vec<Error> = results.unwrap().into_iter().map(Result::unwrap_err).collect();
        assert_eq!((errors[0].kind(), errors[1].kind()), (&ErrorKind::NoBackend, &ErrorKind::Config));
        assert!(
            errors[0].to_string().contains("rank 1 could not start UCX: failed with Config: no such device"),
            "{}",
            errors[0]
        );
        let results = World::threads(2, |world| {
            exchange(&world, Ok((ours((1, 13, 1)), vec![world.rank() as u8; 100 + 5000 * world.rank()])), long)
        });
        for result in results.unwrap() {
            let addresses = result.unwrap();
            assert_eq!((addresses[0].len(), addresses[1].len(), addresses[1][4000]), (100, 5100, 1));
        }
    }
}
