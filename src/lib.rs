#![doc = include_str!("pictures/timeline.txt")]
#![doc = include_str!("docs/front.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod by_url;

pub use crate::by_url::{UrlBuilder, builder, connect};
#[doc(no_inline)]
pub use idem_core::erased_serde;
pub use idem_core::{
    Begin, Builder, Call, ConfigError, Dispose, Disposition, Error, ErrorAction, ErrorKind,
    ErrorPolicy, Fingerprint, FingerprintError, Idempotency, InvalidToken, Key, KeyDigest,
    KeyGenerator, KeyPart, KeyWriter, Lease, Lock, LockBuilder, Locks, Lookup, MemoryStore,
    Operation, Outcome, RecordInfo, RecordState, Recorded, Report, Retry, Step, StepName, Storable,
    StoreError, StoreErrorKind, Token, Unfinished, bounds, current, install, installed, policy,
    scope, step, step_with, store, watch,
};
#[cfg(feature = "encryption")]
pub use idem_core::{EncryptedCodec, EncryptionKey, EncryptionKeys, KeyRing};
pub use idem_macros::{ErrorPolicy, KeyPart, idempotent};
#[cfg(feature = "redis")]
#[doc(no_inline)]
pub use idem_redis::redis;
#[cfg(feature = "redis")]
pub use idem_redis::{RedisNode, RedisStore, RedisStoreBuilder};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use idem_sqlx::guard;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
#[doc(no_inline)]
pub use idem_sqlx::sqlx;
/// The SQL stores for applications on sqlx 0.8.
#[cfg(any(
    feature = "sqlx-08-postgres",
    feature = "sqlx-08-mysql",
    feature = "sqlx-08-sqlite",
    all(
        feature = "sqlx-08",
        any(feature = "postgres", feature = "mysql", feature = "sqlite")
    ),
))]
pub mod sqlx08 {
    pub use idem_sqlx::v08::guard;
    #[doc(no_inline)]
    pub use idem_sqlx::v08::sqlx;
    #[cfg(any(feature = "mysql", feature = "sqlx-08-mysql"))]
    pub use idem_sqlx::v08::{MySqlStore, MySqlStoreBuilder};
    #[cfg(any(feature = "postgres", feature = "sqlx-08-postgres"))]
    pub use idem_sqlx::v08::{PostgresStore, PostgresStoreBuilder};
    #[cfg(any(feature = "sqlite", feature = "sqlx-08-sqlite"))]
    pub use idem_sqlx::v08::{SqliteStore, SqliteStoreBuilder};
}
#[cfg(feature = "mysql")]
pub use idem_sqlx::{MySqlStore, MySqlStoreBuilder};
#[cfg(feature = "postgres")]
pub use idem_sqlx::{PostgresStore, PostgresStoreBuilder};
#[cfg(feature = "sqlite")]
pub use idem_sqlx::{SqliteStore, SqliteStoreBuilder};

// Their paths before the modules `bounds`, `policy` and `store` existed.
#[doc(hidden)]
pub use idem_core::bounds::{
    Action, AsToken, Errors, FingerprintPart, Frequency, HasErrorPolicy, InTransactionPolicy,
    Never, Reconcile, RerunWhen, RunsAgain, Sometimes, TransactionBody,
};
#[doc(hidden)]
pub use idem_core::policy::{
    Abandoned, Duplicate, InFlight, MissingKey, StoreFailure, UnkeptAction,
};
#[doc(hidden)]
pub use idem_core::record;
#[doc(hidden)]
pub use idem_core::store::{Clock, Codec, CodecContext, CodecFailure, CodecId, Store, wire};

#[doc(hidden)]
pub use idem_core::__private;

/// The samples of the README, as tests. One of them is a service.
#[cfg(all(doctest, feature = "axum", feature = "http", feature = "redis"))]
#[doc = include_str!("../README.md")]
pub struct Readme;

#[cfg(all(
    any(feature = "sqlx-08", feature = "sqlx-tls"),
    not(any(
        feature = "postgres",
        feature = "mysql",
        feature = "sqlite",
        feature = "sqlx-08-postgres",
        feature = "sqlx-08-mysql",
        feature = "sqlx-08-sqlite",
    )),
))]
compile_error!(
    "idem: the features `sqlx-08` and `sqlx-tls` need a database: add `postgres`, `mysql` or \
     `sqlite` (sqlx 0.9), or `sqlx-08-postgres`, `sqlx-08-mysql` or `sqlx-08-sqlite` (sqlx 0.8)"
);

/// Both ends of the Idempotency-Key header.
///
/// A tower layer, an extractor, the result of a call that timed out, and a client. See the
/// [guide](guide::http).
#[cfg(any(feature = "http", feature = "http-client", feature = "grpc-client"))]
pub mod http {
    #[cfg(any(feature = "utoipa", feature = "aide"))]
    pub use idem_http::ApiDocument;
    #[cfg(feature = "axum")]
    pub use idem_http::KeyRejection;
    #[cfg(any(feature = "http-client", feature = "grpc-client"))]
    pub use idem_http::RequestKey;
    #[cfg(any(feature = "http", feature = "grpc-client"))]
    pub use idem_http::{Body, grpc};
    #[cfg(feature = "http")]
    pub use idem_http::{
        Fingerprints, HasScope, IdempotencyLayer, Idempotent, KeyRules, LookupFuture,
        LookupService, MarkReplays, Marked, MarkedFuture, NeedsScope, REPLAYED, Replayed,
        ResponseFuture, Route, ScopeSecret, Scoped, header, lookup,
    };
    #[cfg(feature = "http-client")]
    pub use idem_http::{IdempotencyClient, UnknownOutcome};
    pub use idem_http::{
        IdempotencyKey, InvalidKey, MAX_KEY_LEN, Problem, Response, problem, problem_json, stripe,
    };
    #[cfg(feature = "http-client")]
    #[doc(no_inline)]
    pub use idem_http::{reqwest, reqwest_middleware};
}

/// Consumers and publishers for RabbitMQ. See the [guide](guide::queues).
#[cfg(feature = "amqp")]
pub mod amqp {
    #[doc(no_inline)]
    pub use idem_amqp::lapin;
    pub use idem_amqp::{
        Consumer, Delivery, Error, MessageKey, PublishError, Published, Publisher, REASON,
    };
}

/// Consumers and publishers for NATS JetStream. See the [guide](guide::queues).
#[cfg(feature = "nats")]
pub mod nats {
    #[doc(no_inline)]
    pub use idem_nats::async_nats;
    pub use idem_nats::{
        Consumer, Delivery, Error, MessageKey, PublishError, Published, Publisher, REASON,
    };
}

/// Consumers and publishers for Apache Kafka. See the [guide](guide::kafka).
#[cfg(feature = "kafka")]
pub mod kafka {
    #[doc(no_inline)]
    pub use idem_kafka::rdkafka;
    pub use idem_kafka::{
        ClientConfig, Consumer, Delivery, Error, MessageKey, PublishError, Published, Publisher,
        REASON,
    };
}

/// The guides, one page for each subject.
///
/// Begin with [`schemes`](guide::schemes), which helps to choose a key, and with
/// [`stores`](guide::stores). Look options up in [`options`](guide::options), and words in the
/// [`glossary`](guide::glossary).
///
/// | to begin | for |
/// | --- | --- |
/// | [`http_payment`](guide::http_payment) | your first service: a payment over HTTP, from `cargo new` to `curl` |
/// | [`schemes`](guide::schemes) | choosing a key, a token, or another scheme |
/// | [`sql_schemes`](guide::sql_schemes) | a dedup table, a state machine, a version, a lock |
/// | [`stores`](guide::stores) | choosing a store; the SQL stores |
/// | [`redis`](guide::redis) | servers, access rights, failover and clocks of Redis |
///
/// | to write calls | for |
/// | --- | --- |
/// | [`attribute`](guide::attribute) | `#[idempotent]` in full |
/// | [`options`](guide::options) | the table of all options |
/// | [`errors`](guide::errors) | what each error of a body does: keep, release, retry, abandon |
/// | [`runtime`](guide::runtime) | calls without the attribute |
/// | [`transactions`](guide::transactions) | the record and your rows in one SQL transaction |
/// | [`steps`](guide::steps) | bodies with several effects, which go on after a crash |
/// | [`step_failures`](guide::step_failures) | steps: errors, crashes, records, keys that are used again |
/// | [`own_table`](guide::own_table) | moving over from a table of keys of your own |
/// | [`zero_to_production`](guide::zero_to_production) | moving over from that book's module |
/// | [`tokens`](guide::tokens) | one-time tokens for forms |
/// | [`locks`](guide::locks) | one holder at a time, with a fencing number |
/// | [`jobs`](guide::jobs) | a daily job on many replicas |
/// | [`http`](guide::http) | the Idempotency-Key header, on the server |
/// | [`http_handlers`](guide::http_handlers) | handlers as annotated functions |
/// | [`http_api`](guide::http_api) | what clients may ask and see: lookup, CORS, OpenAPI, the draft |
/// | [`http_client`](guide::http_client), [`actix`](guide::actix) | the header in a client; actix-web |
/// | [`grpc`](guide::grpc), [`graphql`](guide::graphql) | both ends of gRPC; resolvers |
/// | [`queues`](guide::queues), [`kafka`](guide::kafka) | messages of RabbitMQ and NATS JetStream; of Kafka |
/// | [`webhooks`](guide::webhooks) | events that Stripe, GitHub and others deliver |
/// | [`agents`](guide::agents) | keys for agents and their tools |
/// | [`times`](guide::times) | choosing `ttl`, `remember`, `lease`, `hold` and capacity |
///
/// | to run a service | for |
/// | --- | --- |
/// | [`operating`](guide::operating) | records, alerts, shutdown, the first week |
/// | [`program`](guide::program) | the program `idem` |
/// | [`observing`](guide::observing) | events, metrics and traces |
/// | [`deploying`](guide::deploying) | rolling deployments, functions, the move to another store |
/// | [`changed_types`](guide::changed_types) | outcomes that an earlier version of a type wrote |
/// | [`encryption`](guide::encryption) | outcomes that the store cannot read |
/// | [`erasure`](guide::erasure) | many tenants, and erasing the records of one |
/// | [`testing`](guide::testing) | tests of a service |
/// | [`glossary`](guide::glossary) | every word, defined |
pub mod guide {
    #[doc = include_str!("docs/schemes.md")]
    pub mod schemes {}

    #[doc = include_str!("docs/sql_schemes.md")]
    pub mod sql_schemes {}

    #[doc = include_str!("pictures/stores.txt")]
    #[doc = include_str!("docs/stores.md")]
    pub mod stores {}

    #[doc = include_str!("docs/redis.md")]
    pub mod redis {}

    #[doc = include_str!("docs/attribute.md")]
    pub mod attribute {}

    #[doc = include_str!("docs/options.md")]
    pub mod options {}

    #[doc = include_str!("docs/errors.md")]
    pub mod errors {}

    #[doc = include_str!("docs/runtime.md")]
    pub mod runtime {}

    #[doc = include_str!("docs/transactions.md")]
    pub mod transactions {}

    #[doc = include_str!("docs/steps.md")]
    pub mod steps {}

    #[doc = include_str!("docs/step_failures.md")]
    pub mod step_failures {}

    #[doc = include_str!("docs/own_table.md")]
    pub mod own_table {}

    #[doc = include_str!("docs/zero_to_production.md")]
    pub mod zero_to_production {}

    #[doc = include_str!("pictures/form.txt")]
    #[doc = include_str!("docs/tokens.md")]
    pub mod tokens {}

    #[doc = include_str!("docs/locks.md")]
    pub mod locks {}

    #[doc = include_str!("docs/jobs.md")]
    pub mod jobs {}

    #[doc = include_str!("docs/http.md")]
    pub mod http {}

    #[doc = include_str!("docs/http_handlers.md")]
    pub mod http_handlers {}

    #[doc = include_str!("docs/http_api.md")]
    pub mod http_api {}

    #[doc = include_str!("docs/http_payment.md")]
    pub mod http_payment {}

    #[doc = include_str!("docs/http_client.md")]
    pub mod http_client {}

    #[doc = include_str!("docs/actix.md")]
    pub mod actix {}

    #[doc = include_str!("docs/grpc.md")]
    pub mod grpc {}

    #[doc = include_str!("docs/graphql.md")]
    pub mod graphql {}

    #[doc = include_str!("docs/queues.md")]
    pub mod queues {}

    #[doc = include_str!("docs/kafka.md")]
    pub mod kafka {}

    #[doc = include_str!("docs/webhooks.md")]
    pub mod webhooks {}

    #[doc = include_str!("docs/agents.md")]
    pub mod agents {}

    #[doc = include_str!("docs/times.md")]
    pub mod times {}

    #[doc = include_str!("docs/deploying.md")]
    pub mod deploying {}

    #[doc = include_str!("docs/operating.md")]
    pub mod operating {}

    #[doc = include_str!("docs/program.md")]
    pub mod program {}

    #[doc = include_str!("docs/observing.md")]
    pub mod observing {}

    #[doc = include_str!("docs/changed_types.md")]
    pub mod changed_types {}

    #[doc = include_str!("docs/encryption.md")]
    pub mod encryption {}

    #[doc = include_str!("docs/erasure.md")]
    pub mod erasure {}

    #[doc = include_str!("docs/testing.md")]
    pub mod testing {}

    #[doc = include_str!("docs/glossary.md")]
    pub mod glossary {}
}
