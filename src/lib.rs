// The README's examples use the Redis store: they are tested where it is there.
#![cfg_attr(any(not(doctest), feature = "redis"), doc = include_str!("../README.md"))]
#![cfg_attr(all(doctest, not(feature = "redis")), doc = "Idempotency for async Rust.")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(no_inline)]
pub use idem_core::erased_serde;
pub use idem_core::{
    Abandoned, Action, AsToken, Begin, Builder, Call, Clock, ConfigError, Dispose, Disposition, Duplicate, Error,
    ErrorAction, ErrorKind, ErrorPolicy, Errors, Fingerprint, FingerprintError, FingerprintPart, Frequency,
    Idempotency, InFlight, InvalidToken, Key, KeyDigest, KeyGenerator, KeyPart, KeyWriter, Lease, Lookup, MemoryStore,
    MissingKey, Never, Operation, Outcome, Reconcile, RecordInfo, RecordState, Recorded, Report, Retry, Sometimes,
    Storable, StoreError, StoreErrorKind, StoreFailure, Token, Unfinished, UnkeptAction, current, install, installed,
    scope, store, watch,
};
pub use idem_macros::{ErrorPolicy, KeyPart, idempotent};
#[cfg(feature = "redis")]
pub use idem_redis::{RedisStore, RedisStoreBuilder, redis};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use idem_sqlx::sqlx;
/// The SQL stores for applications on sqlx 0.8.
#[cfg(all(feature = "sqlx-08", any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
pub use idem_sqlx::v08 as sqlx08;
#[cfg(feature = "mysql")]
pub use idem_sqlx::{MySqlStore, MySqlStoreBuilder};
#[cfg(feature = "postgres")]
pub use idem_sqlx::{PostgresStore, PostgresStoreBuilder};
#[cfg(feature = "sqlite")]
pub use idem_sqlx::{SqliteStore, SqliteStoreBuilder};

// Where they were before `store`.
#[doc(hidden)]
pub use idem_core::{Codec, CodecContext, CodecFailure, CodecId, Store, record, wire};

#[doc(hidden)]
pub use idem_core::__private;

/// Longer texts: which scheme for which case, which store, the attribute in full, one-time tokens, what becomes of errors, the runtime on one page, operating
/// a service, testing one.
pub mod guide {
    #[doc = include_str!("docs/schemes.md")]
    pub mod schemes {}

    #[doc = include_str!("docs/stores.md")]
    pub mod stores {}

    #[doc = include_str!("docs/attribute.md")]
    pub mod attribute {}

    #[doc = include_str!("docs/tokens.md")]
    pub mod tokens {}

    #[doc = include_str!("docs/errors.md")]
    pub mod errors {}

    #[doc = include_str!("docs/runtime.md")]
    pub mod runtime {}

    #[doc = include_str!("docs/operating.md")]
    pub mod operating {}

    #[doc = include_str!("docs/testing.md")]
    pub mod testing {}
}
