//! The secret that all ranks of a job on several hosts share: 256 bits in a file that only its owner can read, or behind an
//! inherited descriptor. It never appears on a command line, in an environment variable, in a message or in a log.

use crate::deadline::Deadline;
use hmac::{Hmac, KeyInit, Mac};
use rankwise_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use sha2::Sha256;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Bytes of the secret.
const BYTES: usize = 32;
/// Bytes of a proof that a secret is known.
pub(crate) const PROOF: usize = 32;

const HOW: &str = "make one with `rankwise token new FILE` and copy it to all hosts";

/// A secret. Overwritten when dropped.
pub struct Token([u8; BYTES]);

impl Token {
    /// A new one from the system's random source.
    pub fn random() -> Result<Token> {
        random_bytes().map(Token)
    }

    /// One that came by a way that nobody else sees.
    pub(crate) fn from_bytes(bytes: [u8; BYTES]) -> Token {
        Token(bytes)
    }

    /// Reads one from a file of this user that nobody else may read, and that is no link. `Config` says what is wrong
    /// with it.
    pub fn read(path: &Path) -> Result<Token> {
        let wrong = |what: &str| Error::config(format!("token file {} {what}; {HOW}", path.display()));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP => wrong("is a symbolic link, which could lead anywhere"),
            errno => wrong("cannot be opened").with_source(errno),
        })?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| wrong("cannot be examined").with_source(errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(wrong("is not a regular file"));
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(wrong(&format!("belongs to user {}, not to this user", stat.st_uid)));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(wrong(&format!(
                "may be read or written by others (mode {:04o}); it needs mode 0600",
                stat.st_mode & 0o7777
            )));
        }
        Token::from_descriptor(file.as_fd(), &Deadline::after(Duration::ZERO))
            .ok_or_else(|| wrong("does not hold 64 hexadecimal digits"))
    }

    /// Reads one from an inherited descriptor, whatever it is: a file from its beginning, since others may have read it
    /// through the same descriptor, and a pipe up to the end of the line. `None` when it holds none, or not in time.
    pub(crate) fn from_descriptor(fd: BorrowedFd<'_>, deadline: &Deadline) -> Option<Token> {
        let mut text = [0_u8; 2 * BYTES + 2];
        let mut length = 0;
        while length < text.len() && !text[..length].contains(&b'\n') {
            let read = match rustix::io::pread(fd, &mut text[length..], length as u64) {
                Err(Errno::SPIPE) => {
                    let left = deadline.remaining();
                    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&left)) {
                        Ok(0) | Err(Errno::INTR) if deadline.remaining().is_zero() => return None,
                        Ok(0) | Err(Errno::INTR) => continue,
                        Ok(_) => rustix::io::read(fd, &mut text[length..]),
                        Err(errno) => Err(errno),
                    }
                }
                read => read,
            };
            match read {
                Ok(0) => break,
                Ok(n) => length += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !deadline.remaining().is_zero() => {}
                Err(_) => return None,
            }
        }
        let token = Token::parse(text[..length].trim_ascii_end());
        erase(&mut text);
        token
    }

    fn parse(text: &[u8]) -> Option<Token> {
        let digit = |c: u8| (c as char).to_digit(16).map(|digit| digit as u8);
        let mut token = Token([0; BYTES]);
        let (pairs, rest) = text.as_chunks::<2>();
        if pairs.len() != BYTES || !rest.is_empty() {
            return None;
        }
        for (byte, pair) in token.0.iter_mut().zip(pairs) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(token)
    }

    /// Writes it to a new file that only this user can read. `Config` when there is such a file already, or it can't be
    /// made.
    pub fn write_new(&self, path: &Path) -> Result<()> {
        let wrong = |what: &str, errno: Errno| {
            Error::config(format!("token file {} {what}", path.display())).with_source(errno)
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file: OwnedFd = rustix::fs::open(path, flags, mode).map_err(|errno| match errno {
            Errno::EXIST => wrong("exists already; remove it first, or use it", errno),
            errno => wrong("cannot be made", errno),
        })?;
        let mut text = [0; 2 * BYTES + 1];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        text[2 * BYTES] = b'\n';
        // The creation mode is what the umask leaves of it.
        let done = rustix::fs::fchmod(&file, mode).and_then(|()| {
            let mut rest = &text[..];
            while !rest.is_empty() {
                rest = &rest[rustix::io::write(&file, rest)?..];
            }
            Ok(())
        });
        erase(&mut text);
        done.map_err(|errno| wrong("cannot be written", errno))
    }

    /// A proof over these parts, each of which counts with its length.
    pub(crate) fn prove(&self, parts: &[&[u8]]) -> [u8; PROOF] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether this is the proof over these parts; takes the same time whatever the difference.
    pub(crate) fn accepts(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(parts).verify_slice(proof).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| unreachable!("takes keys of any length"));
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl Drop for Token {
    fn drop(&mut self) {
        erase(&mut self.0);
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Overwrites, in a way that the compiler takes for used.
fn erase(bytes: &mut [u8]) {
    bytes.fill(0);
    std::hint::black_box(bytes);
}

/// Bytes that nobody can guess.
pub(crate) fn random_bytes() -> Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    while filled < BYTES {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(errno) => {
                let kind = ErrorKind::Unsupported {
                    function: "random bytes".into(),
                    needs: "the getrandom system call".into(),
                    have: errno.to_string(),
                };
                return Err(Error::new(kind, "the system gives no random bytes for the handshake"));
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn directory() -> std::path::PathBuf {
        let name = format!("rankwise-token-{}-{:x}", std::process::id(), crate::world::random_id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn files_keep_it_and_only_safe_ones_are_read() {
        let place = directory();
        let file = place.join("token");
        let token = Token::random().unwrap();
        token.write_new(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(Token::read(&file).unwrap().0, token.0);
        assert!(token.write_new(&file).unwrap_err().message().contains("exists already"));
        let said = |path: &Path| Token::read(path).unwrap_err().to_string();
        for mode in [0o640, 0o604, 0o660] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert!(said(&file).contains("0600"), "{mode:o}");
        }
        symlink(&file, place.join("link")).unwrap();
        assert!(said(&place.join("link")).contains("symbolic link"));
        assert!(said(&place).contains("not a regular file"));
        assert!(said(&place.join("nothing")).contains("cannot be opened"));
        for bad in ["", "ab", &"g".repeat(64), &"a".repeat(66), &format!("{}x", "a".repeat(64))] {
            let short = place.join("bad");
            fs::write(&short, bad).unwrap();
            fs::set_permissions(&short, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(said(&short).contains("64 hexadecimal digits"), "{bad}");
        }
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn descriptors_are_read_in_time_and_files_by_everybody_who_has_them() {
        let token = Token([0xa5; BYTES]);
        let text = format!("{}\n", "a5".repeat(BYTES));
        let place = directory();
        fs::write(place.join("token"), &text).unwrap();
        let file = fs::File::open(place.join("token")).unwrap();
        let soon = || Deadline::after(Duration::from_secs(30));
        for _ in 0..2 {
            assert_eq!(Token::from_descriptor(file.as_fd(), &soon()).unwrap().0, token.0);
        }
        fs::remove_dir_all(place).unwrap();
        // A pipe that somebody keeps open: what is there counts, and nothing is waited for in vain.
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, text.as_bytes()).unwrap();
        assert_eq!(Token::from_descriptor(reader.as_fd(), &soon()).unwrap().0, token.0);
        assert!(Token::from_descriptor(reader.as_fd(), &Deadline::after(Duration::from_millis(20))).is_none());
        drop(writer);
        assert!(Token::from_descriptor(reader.as_fd(), &soon()).is_none());
    }

    #[test]
    fn proofs_need_the_same_secret_and_the_same_parts() {
        let (token, other) = (Token([1; BYTES]), Token([2; BYTES]));
        let proof = token.prove(&[b"ab", b"c"]);
        assert!(token.accepts(&[b"ab", b"c"], &proof));
        assert!(!other.accepts(&[b"ab", b"c"], &proof));
        assert!(!token.accepts(&[b"a", b"bc"], &proof));
        assert!(!token.accepts(&[b"ab", b"c"], &proof[..16]));
        assert!(!token.accepts(&[b"ab", b"c"], &[]));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
