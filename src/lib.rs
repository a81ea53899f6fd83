#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use idem_core::{
    Abandoned, Begin, Builder, Call, Clock, Codec, CodecFailure, CodecId, ConfigError, Duplicate, Error, Fingerprint,
    FingerprintError, Idempotency, InFlight, Key, KeyDigest, KeyGenerator, KeyPart, KeyWriter, Lease, MemoryStore,
    MissingKey, Operation, Outcome, Reconciling, RecordInfo, RecordState, Recorded, Storable, Store, StoreError,
    StoreErrorKind, StoreFailure, current, install, scope,
};
pub use idem_core::{record, wire};
pub use idem_macros::{KeyPart, idempotent};
#[cfg(feature = "redis")]
pub use idem_redis::RedisStore;

#[doc(hidden)]
pub use idem_core::__private;

/// Longer texts: the attribute in full, operating a service, testing one.
pub mod guide {
    #[doc = include_str!("docs/attribute.md")]
    pub mod attribute {}

    #[doc = include_str!("docs/operating.md")]
    pub mod operating {}

    #[doc = include_str!("docs/testing.md")]
    pub mod testing {}
}
