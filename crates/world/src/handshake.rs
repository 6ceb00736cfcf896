//! How a rank and rank 0 on another host prove to each other that they hold the same token, before anything else is said.
//!
//! The rank sends a hello with a nonce; rank 0 answers with a nonce of its own and its proof; the rank checks that and sends
//! its own proof. A proof is an HMAC-SHA-256 with the token as key over the role, all of the hello (versions, job, rank,
//! world size, settings, nonce) and rank 0's nonce, so that none can be used twice or for something else. Everything else
//! follows, such as refusing another version. The form stays the same in all versions.

use crate::greeting::Greeting;
use crate::token::{PROOF, Token};
use crate::wire::{Input, Malformed, Seat, put_bytes, put_seat};

/// Longest frame of the handshake.
pub(crate) const MAX_FRAME: usize = 1024;
const NONCE: usize = 32;
const DIGEST: usize = 32;
const MAX_WORD: usize = 256;

const HELLO: &[u8; 16] = b"rankwise hello 1";
const CHALLENGE: &[u8; 16] = b"rankwise chall 1";
const ANSWER: &[u8; 16] = b"rankwise proof 1";

pub(crate) type Nonce = [u8; NONCE];
pub(crate) type Hash = [u8; DIGEST];

/// The rank's first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) greeting: Greeting,
    /// Hash of the job key.
    pub(crate) job: Hash,
    /// Hash of the settings that have to be equal.
    pub(crate) settings: Hash,
    pub(crate) process: u32,
    pub(crate) nonce: Nonce,
}

/// Rank 0's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) nonce: Nonce,
    pub(crate) proof: [u8; PROOF],
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = HELLO.to_vec();
        put_bytes(&mut out, self.greeting.protocol.as_bytes());
        put_bytes(&mut out, self.greeting.version.as_bytes());
        put_seat(&mut out, self.greeting.seat);
        out.extend_from_slice(&self.job);
        out.extend_from_slice(&self.settings);
        out.extend_from_slice(&self.process.to_le_bytes());
        out.extend_from_slice(&self.nonce);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Hello, Malformed> {
        let mut input = begin(bytes, HELLO)?;
        let (protocol, version) = (input.text(MAX_WORD)?, input.text(MAX_WORD)?);
        let seat: Seat = input.seat()?;
        let hello = Hello {
            greeting: Greeting { protocol, version, seat },
            job: input.array()?,
            settings: input.array()?,
            process: input.u32()?,
            nonce: input.array()?,
        };
        input.end().map(|()| hello)
    }
}

impl Challenge {
    /// What rank 0 answers to these bytes of a hello.
    pub(crate) fn to(hello: &[u8], nonce: Nonce, token: &Token) -> Challenge {
        Challenge { nonce, proof: token.prove(&[b"rank 0", hello, &nonce]) }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        [&CHALLENGE[..], &self.nonce, &self.proof].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Challenge, Malformed> {
        let mut input = begin(bytes, CHALLENGE)?;
        let challenge = Challenge { nonce: input.array()?, proof: input.array()? };
        input.end().map(|()| challenge)
    }

    /// Whether rank 0 holds the token.
    pub(crate) fn is_genuine(&self, hello: &[u8], token: &Token) -> bool {
        token.accepts(&[b"rank 0", hello, &self.nonce], &self.proof)
    }

    /// The rank's last frame of the handshake.
    pub(crate) fn answer(&self, hello: &[u8], token: &Token) -> Vec<u8> {
        [&ANSWER[..], &token.prove(&[b"rank", hello, &self.nonce])].concat()
    }
}

/// Whether these bytes prove that the rank holds the token.
pub(crate) fn is_genuine(answer: &[u8], hello: &[u8], nonce: &Nonce, token: &Token) -> bool {
    answer.strip_prefix(ANSWER).is_some_and(|proof| token.accepts(&[b"rank", hello, nonce], proof))
}

fn begin<'a>(bytes: &'a [u8], magic: &[u8; 16]) -> Result<Input<'a>, Malformed> {
    bytes.strip_prefix(magic).map(Input).ok_or(Malformed("not a frame of the handshake"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::random_bytes;

    fn hello() -> Hello {
        let greeting = Greeting { protocol: "2".into(), version: "0.1.0".into(), seat: Seat { rank: 1, size: 2 } };
        Hello { greeting, job: [1; 32], settings: [2; 32], process: 77, nonce: [3; 32] }
    }

    #[test]
    fn both_sides_prove_themselves_and_nothing_can_be_changed_or_used_again() {
        let token = Token::random().unwrap();
        let stranger = Token::random().unwrap();
        let hello = hello().encode();
        assert!(hello.len() < MAX_FRAME);
        let nonce = random_bytes().unwrap();
        let challenge = Challenge::to(&hello, nonce, &token);
        assert_eq!(Challenge::decode(&challenge.encode()).unwrap(), challenge);
        assert!(challenge.is_genuine(&hello, &token));
        assert!(!challenge.is_genuine(&hello, &stranger));
        let answer = challenge.answer(&hello, &token);
        assert!(is_genuine(&answer, &hello, &nonce, &token));
        assert!(!is_genuine(&challenge.answer(&hello, &stranger), &hello, &nonce, &token));
        // Replayed to another nonce, cut short, or rank 0's own proof sent back.
        assert!(!is_genuine(&answer, &hello, &random_bytes().unwrap(), &token));
        assert!((0..answer.len()).all(|end| !is_genuine(&answer[..end], &hello, &nonce, &token)));
        assert!(!is_genuine(&[&ANSWER[..], &challenge.proof].concat(), &hello, &nonce, &token));
        for at in 0..hello.len() {
            let mut other = hello.clone();
            other[at] ^= 1;
            assert!(!is_genuine(&answer, &other, &nonce, &token), "byte {at} is not covered");
            assert!(!challenge.is_genuine(&other, &token), "byte {at} is not covered");
        }
    }

    #[test]
    fn damaged_frames_are_decoded_without_a_panic() {
        let bytes = hello().encode();
        assert_eq!(Hello::decode(&bytes).unwrap(), hello());
        for end in 0..bytes.len() {
            assert!(Hello::decode(&bytes[..end]).is_err());
            assert!(Challenge::decode(&bytes[..end]).is_err());
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = bytes.clone();
                bad[at] = value;
                let _ = (Hello::decode(&bad), Challenge::decode(&bad));
            }
        }
        assert!(Hello::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}
