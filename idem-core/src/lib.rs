//! The runtime core of `idem`. Applications use it through the facade, the package `idem-rs`; other
//! stores depend on this crate alone.

pub mod adapter;
mod api;
mod base;
mod call;
mod encoding;
mod error;
#[cfg(all(test, shuttle))]
mod explored;
mod lease;
mod macros;
mod observe;
mod outcome;
mod policy;
pub mod record;
mod runtime;
pub mod store;
mod task;
mod token;

/// For those who write a [`Codec`]: the version that it is written against.
#[doc(no_inline)]
pub use erased_serde;

pub use crate::api::lease::{Begin, Lease};
pub use crate::api::lock::{Lock, LockBuilder, Locks};
pub use crate::api::operation::{Errors, InTransactionPolicy, Operation, RerunWhen};
pub use crate::base::clock::Clock;
pub use crate::base::duration::IntoDuration;
pub use crate::call::lookup::Lookup;
pub use crate::call::reconcile::Reconcile;
pub use crate::call::recorded::Recorded;
pub use crate::call::transaction_body::{RunsAgain, TransactionBody};
pub use crate::encoding::fingerprint::{Fingerprint, FingerprintError, FingerprintPart};
pub use crate::encoding::generator::KeyGenerator;
pub use crate::encoding::key::{Key, KeyDigest, KeyPart, KeyWriter, MAX_KEY_LEN};
pub use crate::error::disposition::{Dispose, Disposition};
pub use crate::error::{ConfigError, Error, ErrorKind, StoreError, StoreErrorKind};
#[cfg(feature = "encryption")]
pub use crate::outcome::encryption::{EncryptedCodec, EncryptionKey, EncryptionKeys, KeyRing};
pub use crate::outcome::{Outcome, Storable};
pub use crate::policy::errors::{
    Action, ErrorAction, ErrorPolicy, Frequency, HasErrorPolicy, Never, Retry, Sometimes,
    UnkeptAction,
};
pub use crate::policy::settings::{Abandoned, Duplicate, InFlight, MissingKey, StoreFailure};
pub use crate::record::{RecordInfo, RecordState};
pub use crate::runtime::background::Unfinished;
pub use crate::runtime::builder::Builder;
pub use crate::runtime::handle::Idempotency;
pub use crate::store::memory::MemoryStore;
#[doc(hidden)]
pub use crate::store::{Codec, CodecContext, CodecFailure, CodecId, Store, wire};
pub use crate::task::current::{Call, current};
pub use crate::task::scope::{install, installed, scope};
pub use crate::task::watch::{Report, watch};
pub use crate::token::{AsToken, InvalidToken, Token};

#[doc(hidden)]
pub mod __private {
    pub use crate::macros::private::*;
}
