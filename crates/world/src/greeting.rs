//! The first two packets between a rank and a meeting place: who comes, and whether he may. Their form stays the same in
//! every version, so that versions can refuse each other.

use crate::wire::{Input, Malformed, Seat, cut, put_bytes, put_seat};

const MAGIC: &[u8; 8] = b"rankwise";
const MAX_WORD: usize = 256;

mod kind {
    pub(super) const GREETING: u8 = 1;
    pub(super) const WELCOME: u8 = 2;
    pub(super) const REFUSED: u8 = 3;
    pub(super) const TAKEN: u8 = 4;
}

/// What a rank says when it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) protocol: String,
    /// Version of this library.
    pub(crate) version: String,
    pub(crate) seat: Seat,
}

/// What it hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Come in; the life file rides beside the packet.
    Welcome { job: u128 },
    /// The two differ in this; `here` is the value of the meeting place, `there` that of the rank.
    Refused { key: String, here: String, there: String },
    /// Another process has come as this rank.
    Taken { by: String, you: String },
}

impl Greeting {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = start(kind::GREETING);
        put_bytes(&mut out, self.protocol.as_bytes());
        put_bytes(&mut out, self.version.as_bytes());
        put_seat(&mut out, self.seat);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Greeting, Malformed> {
        let (kind, mut input) = begin(bytes)?;
        if kind != kind::GREETING {
            return Err(Malformed("a greeting has another type"));
        }
        let protocol = input.text(MAX_WORD)?;
        let version = input.text(MAX_WORD)?;
        // Other versions may say more.
        Ok(Greeting { protocol, version, seat: input.seat()? })
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Welcome { job } => {
                let mut out = start(kind::WELCOME);
                out.extend_from_slice(&job.to_le_bytes());
                out
            }
            Answer::Refused { key, here, there } => {
                let mut out = start(kind::REFUSED);
                [key, here, there].into_iter().for_each(|word| put_bytes(&mut out, cut(word, MAX_WORD).as_bytes()));
                out
            }
            Answer::Taken { by, you } => {
                let mut out = start(kind::TAKEN);
                [by, you].into_iter().for_each(|word| put_bytes(&mut out, cut(word, MAX_WORD).as_bytes()));
                out
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Answer, Malformed> {
        let (kind, mut input) = begin(bytes)?;
        Ok(match kind {
            kind::WELCOME => Answer::Welcome { job: u128::from_le_bytes(input.array()?) },
            kind::REFUSED => {
                let mut word = || input.text(MAX_WORD);
                Answer::Refused { key: word()?, here: word()?, there: word()? }
            }
            kind::TAKEN => Answer::Taken { by: input.text(MAX_WORD)?, you: input.text(MAX_WORD)? },
            _ => return Err(Malformed("an answer has an unknown type")),
        })
    }
}

fn start(kind: u8) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.push(kind);
    out
}

fn begin(bytes: &[u8]) -> Result<(u8, Input<'_>), Malformed> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(Malformed("not a greeting of rankwise"))?;
    let mut input = Input(rest);
    Ok((input.u8()?, input))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_survive_and_damaged_ones_do_not_panic() {
        let seat = Seat { rank: 3, size: 4 };
        let greeting = Greeting { protocol: "2".into(), version: "0.1.0".into(), seat };
        assert_eq!(Greeting::decode(&greeting.encode()).unwrap(), greeting);
        let mut packets = vec![greeting.encode()];
        for answer in [
            Answer::Welcome { job: u128::MAX - 5 },
            Answer::Refused { key: "version".into(), here: "1".into(), there: "2".into() },
            Answer::Taken { by: "process 7".into(), you: "process 8".into() },
        ] {
            assert_eq!(Answer::decode(&answer.encode()).unwrap(), answer);
            packets.push(answer.encode());
        }
        for packet in packets {
            for end in 0..packet.len() {
                assert!(Greeting::decode(&packet[..end]).is_err());
                assert!(Answer::decode(&packet[..end]).is_err());
            }
            for at in 0..packet.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut bad = packet.clone();
                    bad[at] = value;
                    let _ = (Greeting::decode(&bad), Answer::decode(&bad));
                }
            }
        }
        assert!(Greeting::decode(b"GET / HTTP/1.1\r\n\r\n").is_err());
    }
}
