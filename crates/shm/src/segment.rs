//! Shared memory of a rank: a sealed memfd that peers map read-only, or heap memory where ranks are threads.

use rankwise_core::{Error, ErrorKind, Result};
use std::alloc::Layout;
use std::ptr::NonNull;

/// A piece of memory of one rank, mapped here. Unmapped or freed when the last user drops it.
pub(crate) struct Segment {
    base: NonNull<u8>,
    bytes: usize,
    heap: bool,
}

// SAFETY: the struct owns its mapping; what is read and written through `base` is governed by the protocol.
unsafe impl Send for Segment {}
// SAFETY: as above; the struct itself has no interior state.
unsafe impl Sync for Segment {}

const ALIGN: usize = 4096;

impl Segment {
    /// Zeroed heap memory that the threads of this process share.
    pub(crate) fn heap(bytes: usize) -> Result<Segment> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGN)
            .map_err(|_| Error::new(ErrorKind::CountTooLarge, format!("{bytes} bytes exceed the address space")))?;
        // SAFETY: the layout has a size above zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or_else(|| no_memory(bytes))?;
        Ok(Segment { base, bytes, heap: true })
    }

    /// First byte, page aligned. Read-only memory when it belongs to another process.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.heap {
            // SAFETY: allocated in `heap` with this layout; nobody else frees it.
            unsafe { std::alloc::dealloc(self.base(), Layout::from_size_align_unchecked(self.bytes.max(1), ALIGN)) };
        } else {
            #[cfg(target_os = "linux")]
            // SAFETY: mapped in `map` with this length; users hold an `Arc` of the segment.
            unsafe {
                let _ = rustix::mm::munmap(self.base().cast(), self.bytes);
            }
        }
    }
}

fn no_memory(bytes: usize) -> Error {
    Error::new(
        ErrorKind::NoMemory { need: bytes as u64, limit: 0 },
        "shared memory could not be reserved; free memory or use smaller buffers",
    )
}

#[cfg(target_os = "linux")]
pub(crate) use linux::check_memory;

/// Elsewhere the allocator says so.
#[cfg(not(target_os = "linux"))]
pub(crate) fn check_memory(_bytes: usize, _members: usize) -> Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{Segment, no_memory};
    use rankwise_core::{Error, ErrorKind, Result};
    use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, ProtFlags};
    use rustix::process::{Resource, getrlimit};
    use std::os::fd::{AsFd, OwnedFd};
    use std::ptr::NonNull;

    /// From this size on the memory limits are looked at before pages are reserved: reading them takes some 50 us.
    const LOOK_AT_LIMITS: usize = 16 << 20;

    const SEALS: SealFlags =
        SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

    impl Segment {
        /// A new segment of this process, reserved, zeroed, mapped for writing and sealed; and the descriptor to give to
        /// peers.
        pub(crate) fn create(bytes: usize) -> Result<(Segment, OwnedFd)> {
            check_limits(bytes)?;
            check_memory(bytes, 1)?;
            let base = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = match rustix::fs::memfd_create("rankwise", base | MemfdFlags::NOEXEC_SEAL) {
                // Before Linux 6.3 the flag is unknown.
                Err(Errno::INVAL) => rustix::fs::memfd_create("rankwise", base),
                other => other,
            }
            .map_err(|e| failed("memfd_create", e, bytes))?;
            rustix::fs::ftruncate(&fd, bytes as u64).map_err(|e| failed("ftruncate", e, bytes))?;
            // Pages exist from here on, so that no later touch can raise SIGBUS.
            rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64)
                .map_err(|e| failed("fallocate", e, bytes))?;
            let segment = map(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
            rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|e| failed("F_ADD_SEALS", e, bytes))?;
            Ok((segment, fd))
        }

        /// Maps a peer's segment read-only after checking that it is what a peer must offer: a regular memory file of
        /// exactly this size that can neither shrink nor be written by us.
        pub(crate) fn open(fd: &OwnedFd, bytes: usize) -> Result<Segment> {
            let refused = |theirs: String| {
                Error::new(
                    ErrorKind::Refused {
                        key: "segment".into(),
                        ours: format!("sealed memfd of {bytes} bytes"),
                        theirs,
                    },
                    "a peer offered memory that is not safe to map; are all ranks of the same rankwise version?",
                )
            };
            let stat = rustix::fs::fstat(fd).map_err(|e| failed("fstat", e, bytes))?;
            if stat.st_size != bytes as i64 {
                return Err(refused(format!("{} bytes", stat.st_size)));
            }
            // A hole would be filled at our first read, and at our expense.
            if (stat.st_blocks as u64).saturating_mul(512) < bytes as u64 {
                return Err(refused(format!("only {} blocks reserved", stat.st_blocks)));
            }
            let seals = rustix::fs::fcntl_get_seals(fd).map_err(|e| refused(format!("no memfd ({e})")))?;
            if !seals.contains(SEALS) {
                return Err(refused(format!("seals {seals:?}")));
            }
            map(fd, bytes, ProtFlags::READ)
        }
    }

    fn map(fd: &OwnedFd, bytes: usize, protection: ProtFlags) -> Result<Segment> {
        // SAFETY: a fresh mapping at an address of the kernel's choice; it can't shrink under us (fallocate, F_SEAL_SHRINK).
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd.as_fd(), 0)
                .map_err(|e| failed("mmap", e, bytes))?
        };
        match NonNull::new(base.cast()) {
            Some(base) => Ok(Segment { base, bytes, heap: false }),
            None => Err(no_memory(bytes)),
        }
    }

    fn failed(call: &str, errno: Errno, bytes: usize) -> Error {
        let limit = |which: &str, resource, need| {
            Error::new(
                ErrorKind::Limit { which: which.into(), have: getrlimit(resource).current.unwrap_or(u64::MAX), need },
                format!("{call} failed ({errno}); raise the limit"),
            )
        };
        match errno {
            Errno::MFILE => {
                let have = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
                limit("RLIMIT_NOFILE", Resource::Nofile, have.saturating_add(1))
            }
            Errno::NFILE => Error::new(
                ErrorKind::Limit { which: "fs.file-max".into(), have: 0, need: 1 },
                "the system has no file descriptors left",
            ),
            Errno::NOMEM if getrlimit(Resource::As).current.is_some() => limit("RLIMIT_AS", Resource::As, bytes as u64),
            Errno::NOMEM | Errno::NOSPC => no_memory(bytes),
            _ => Error::new(
                ErrorKind::Engine {
                    library: "linux".into(),
                    code: i64::from(errno.raw_os_error()),
                    text: errno.to_string(),
                },
                format!("{call} of {bytes} bytes failed"),
            ),
        }
    }

    fn check_limits(bytes: usize) -> Result<()> {
        let need = bytes as u64;
        // Beyond RLIMIT_FSIZE ftruncate does not fail, it raises SIGXFSZ.
        if let Some(have) = getrlimit(Resource::Fsize).current.filter(|have| *have < need) {
            return Err(Error::new(
                ErrorKind::Limit { which: "RLIMIT_FSIZE".into(), have, need },
                "shared memory counts as a file; raise the limit (ulimit -f)",
            ));
        }
        Ok(())
    }

    /// Whether memory is left for `members` segments of this size, looked at before any page is touched.
    pub(crate) fn check_memory(bytes: usize, members: usize) -> Result<()> {
        let need = (bytes as u64).saturating_mul(members as u64);
        if need < LOOK_AT_LIMITS as u64 {
            return Ok(());
        }
        match available_memory() {
            Some(limit) if limit < need => Err(Error::new(
                ErrorKind::NoMemory { need, limit },
                format!(
                    "not enough memory for {members} shared segments; free memory, raise the cgroup's limit or use smaller buffers"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// What the machine and the memory cgroup of this process still have, where that can be read.
    fn available_memory() -> Option<u64> {
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
            Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
        });
        let mut least = machine;
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let (max, used) = if controllers.is_empty() {
                let directory = format!("/sys/fs/cgroup{}", path.trim_end_matches('/'));
                (number(&format!("{directory}/memory.max")), number(&format!("{directory}/memory.current")))
            } else if controllers.split(',').any(|name| name == "memory") {
                let directory = format!("/sys/fs/cgroup/memory{}", path.trim_end_matches('/'));
                (
                    number(&format!("{directory}/memory.limit_in_bytes")),
                    number(&format!("{directory}/memory.usage_in_bytes")),
                )
            } else {
                continue;
            };
            if let (Some(max), Some(used)) = (max, used) {
                let free = max.saturating_sub(used);
                least = Some(least.map_or(free, |least| least.min(free)));
            }
        }
        least
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_peer_can_neither_write_nor_resize() {
            let (own, fd) = Segment::create(8192).unwrap();
            // SAFETY: the mapping is writable and 8192 bytes long.
            unsafe { own.base().write(7) };
            let peer = Segment::open(&fd, 8192).unwrap();
            // SAFETY: mapped for reading.
            assert_eq!(unsafe { peer.base().read() }, 7);
            assert!(rustix::fs::ftruncate(&fd, 4096).is_err());
            assert!(rustix::fs::ftruncate(&fd, 16384).is_err());
            assert!(map(&fd, 8192, ProtFlags::READ | ProtFlags::WRITE).is_err());
            assert!(rustix::io::write(&fd, b"x").is_err());
        }

        #[test]
        fn unsafe_offers_are_refused() {
            let (_own, fd) = Segment::create(8192).unwrap();
            assert_eq!(Segment::open(&fd, 4096).err().unwrap().kind().name(), "Refused");
            let bare = rustix::fs::memfd_create("bare", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&bare, 8192).unwrap();
            assert_eq!(Segment::open(&bare, 8192).err().unwrap().kind().name(), "Refused");
        }

        #[test]
        fn absurd_sizes_are_named_errors() {
            let error = Segment::create(1 << 50).err().unwrap();
            assert_eq!(error.kind().name(), "NoMemory", "{error}");
        }
    }
}
