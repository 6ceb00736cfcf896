//! Memory between the caller's buffers and MPI.

use rankwise_core::{Error, ErrorKind, Result};

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

/// Bytes on a cache line boundary that grow and are used again.
#[derive(Default)]
pub(crate) struct Room(Vec<Line>);

impl Room {
    /// At least so many bytes, of any content; `NoMemory` when the system has none.
    pub(crate) fn of(&mut self, bytes: usize) -> Result<*mut u8> {
        let lines = bytes.div_ceil(size_of::<Line>());
        if lines > self.0.len() {
            self.0.try_reserve_exact(lines - self.0.len()).map_err(|_| {
                Error::new(
                    ErrorKind::NoMemory { need: bytes as u64, limit: 0 },
                    "staging for a call could not be allocated; use smaller buffers",
                )
            })?;
            self.0.resize(lines, Line([0; 64]));
        }
        Ok(self.0.as_mut_ptr().cast())
    }
}
