//! How a call acts when it is not the first, or when something is missing: the values of the
//! options.
//!
//! Each enum is the argument of the method of [`Operation`](crate::Operation) and of
//! [`Builder`](crate::Builder) that has its name. The attribute has words for them:
//! `in_flight = reject` is [`InFlight::Reject`]. Several enums share their name with a variant of
//! [`Error`](crate::Error), so they are not at the root.
//!
//! # Examples
//!
//! ```
//! # use idem_core as idem;
//! use idem::policy::{Abandoned, InFlight};
//! use idem::{Error, Idempotency, MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let idempotency = Idempotency::new(MemoryStore::new());
//! let receipt = idempotency
//!     .operation("orders.create")
//!     .key("o-1")
//!     .in_flight(InFlight::Reject)
//!     .abandoned(Abandoned::Reject)
//!     .run(async || Ok::<_, Error>("receipt-1".to_owned()))
//!     .await?;
//! assert_eq!(receipt.into_inner(), "receipt-1");
//! # Ok(())
//! # }
//! ```

pub(crate) mod errors;
pub(crate) mod settings;

pub use self::errors::UnkeptAction;
pub use self::settings::{Abandoned, Duplicate, InFlight, MissingKey, StoreFailure};
