//! The runtime core of `idem`. Applications use it through the facade, the package `idem-rs`; other
//! stores depend on this crate alone.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod adapter;
mod api;
mod base;
mod call;
mod encoding;
mod error;
#[cfg(all(test, shuttle))]
mod explored;
mod layers;
mod lease;
mod macros;
mod observe;
mod outcome;
pub mod policy;
pub mod record;
mod runtime;
pub mod store;
mod task;

/// For those who write a [`Codec`]: the version that it is written against.
#[doc(no_inline)]
pub use erased_serde;

pub use crate::api::lease::{Begin, Lease};
pub use crate::api::operation::Operation;
pub use crate::call::lookup::Lookup;
pub use crate::call::recorded::Recorded;
pub use crate::encoding::fingerprint::{Fingerprint, FingerprintError};
pub use crate::encoding::generator::KeyGenerator;
pub use crate::encoding::key::{Key, KeyDigest, KeyPart, KeyWriter, MAX_KEY_LEN};
pub use crate::error::disposition::{Dispose, Disposition};
pub use crate::error::{ConfigError, Error, ErrorKind, StoreError, StoreErrorKind};
#[cfg(feature = "encryption")]
pub use crate::layers::encryption::{EncryptedCodec, EncryptionKey, EncryptionKeys, KeyRing};
pub use crate::layers::locks::{Lock, LockBuilder, Locks};
pub use crate::layers::memory::MemoryStore;
pub use crate::layers::steps::{Step, StepName, step, step_with};
pub use crate::layers::tokens::{InvalidToken, Token};
pub use crate::outcome::{Outcome, Storable};
pub use crate::policy::errors::{ErrorAction, ErrorPolicy, Retry};
pub use crate::record::{RecordInfo, RecordState};
pub use crate::runtime::background::Unfinished;
pub use crate::runtime::builder::Builder;
pub use crate::runtime::handle::Idempotency;
pub use crate::task::current::{Call, current};
pub use crate::task::scope::{install, installed, scope};
pub use crate::task::watch::{Report, watch};

// Their paths before the modules `bounds`, `policy` and `store` existed.
#[doc(hidden)]
pub use crate::bounds::{
    Action, AsToken, Errors, FingerprintPart, Frequency, HasErrorPolicy, InTransactionPolicy,
    Never, Reconcile, RerunWhen, RunsAgain, Sometimes, TransactionBody,
};
#[doc(hidden)]
pub use crate::policy::{Abandoned, Duplicate, InFlight, MissingKey, StoreFailure, UnkeptAction};
#[doc(hidden)]
pub use crate::store::{Clock, Codec, CodecContext, CodecFailure, CodecId, Store, wire};

/// Traits and types that stand in signatures, and that few programs name.
///
/// Look here when the compiler or the documentation of a method names one of them. A policy of
/// errors written by hand needs [`Never`], [`Sometimes`] and [`Frequency`]; a generic function over
/// calls needs a bound.
pub mod bounds {
    pub use crate::api::operation::Errors;
    pub use crate::base::duration::IntoDuration;
    pub use crate::call::reconcile::Reconcile;
    pub use crate::encoding::fingerprint::FingerprintPart;
    pub use crate::layers::tokens::AsToken;
    pub use crate::layers::transactions::api::{InTransactionPolicy, RerunWhen};
    pub use crate::layers::transactions::bodies::{RunsAgain, TransactionBody};
    pub use crate::policy::errors::{Action, Frequency, HasErrorPolicy, Never, Sometimes};
}

/// The names that [`store`] exports of a layer. The room itself comes before the layers.
mod of_layers {
    pub use crate::layers::ops::admin::AdminStore;
    pub use crate::layers::ops::{admin, trail};
    pub use crate::layers::transactions::driver::{
        Began, CommittedRow, Opened, OwnRow, RowOwner, Transaction, Transactions, Wish,
    };
    pub use crate::layers::transactions::kept_error::{
        KeptRecord, TransactionAddress, Written, collect_kept_errors,
    };
    pub use crate::layers::wire;
}

#[doc(hidden)]
pub mod __private {
    pub use crate::macros::private::*;
}
