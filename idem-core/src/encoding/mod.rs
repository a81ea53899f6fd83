//! The identity of a call and its arguments: keys and fingerprints.

pub(crate) mod fingerprint;
pub(crate) mod generator;
pub(crate) mod key;
