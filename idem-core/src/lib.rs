//! The runtime core of `idem`. Applications use it through the facade, the package `idem-rs`; other
//! stores depend on this crate alone.

mod audit;
#[cfg(feature = "axum")]
mod axum;
mod background;
mod body;
mod by_hand;
mod clock;
mod codec;
mod context;
mod disposition;
#[cfg(feature = "encryption")]
mod encryption;
mod engine;
mod error;
mod error_policy;
mod execute;
#[cfg(all(test, shuttle))]
mod explored;
mod fingerprint;
mod flight;
mod generator;
mod held;
mod issue;
mod keeper;
mod key;
mod lease;
mod lent;
mod local_cache;
mod lookup;
mod observe;
mod operation;
mod outcome;
mod policy;
mod printable;
mod private;
mod problem;
mod reconcile;
mod runtime;
mod schedule;
mod site;
pub mod store;
mod sync;
mod throttle;
mod token;
mod transaction;
mod undo;
mod versions;
mod watch;

/// For those who write a [`Codec`]: the version that it is written against.
#[doc(no_inline)]
pub use erased_serde;

pub use crate::background::Unfinished;
pub use crate::by_hand::{Begin, Lease};
pub use crate::clock::Clock;
pub use crate::context::{Call, current, install, installed, scope};
pub use crate::disposition::{Dispose, Disposition};
#[cfg(feature = "encryption")]
pub use crate::encryption::{EncryptedCodec, EncryptionKey, EncryptionKeys, KeyRing};
pub use crate::error::{ConfigError, Error, ErrorKind, StoreError, StoreErrorKind};
pub use crate::error_policy::{Action, ErrorAction, ErrorPolicy, Frequency, Never, Retry, Sometimes, UnkeptAction};
pub use crate::fingerprint::{Fingerprint, FingerprintError, FingerprintPart};
pub use crate::generator::KeyGenerator;
pub use crate::key::{Key, KeyDigest, KeyPart, KeyWriter, MAX_KEY_LEN};
pub use crate::lookup::Lookup;
pub use crate::operation::{Errors, InTransactionPolicy, Operation, RerunWhen};
pub use crate::outcome::{Outcome, Recorded, Storable};
pub use crate::policy::{Abandoned, Duplicate, InFlight, MissingKey, StoreFailure};
pub use crate::reconcile::Reconcile;
pub use crate::record::{RecordInfo, RecordState};
pub use crate::runtime::{Builder, Idempotency};
pub use crate::store::memory::MemoryStore;
#[doc(hidden)]
pub use crate::store::{Codec, CodecContext, CodecFailure, CodecId, Store, record, wire};
pub use crate::token::{AsToken, InvalidToken, Token};
pub use crate::transaction::TransactionBody;
pub use crate::watch::{Report, watch};

#[doc(hidden)]
pub mod __private {
    pub use crate::private::*;
}
