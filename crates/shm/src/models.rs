//! Loom models of the protocol core, see `docs/design/protocol.md`, section 8.
