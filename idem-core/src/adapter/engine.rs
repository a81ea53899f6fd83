//! What a layer uses besides the public API.

pub(crate) use crate::base::{clock, sync};
#[cfg(feature = "encryption")]
pub(crate) use crate::outcome::codec::Loggable;
pub(crate) use crate::record::reserved;
pub(crate) use crate::store::{DynStore, FirstSent};
