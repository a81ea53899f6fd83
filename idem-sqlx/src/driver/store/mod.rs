//! The stores. Their methods are the same for each database.

pub(crate) mod admin;
mod count;
mod list_keys;
#[cfg(feature = "mysql")]
mod mysql;
mod page;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod proxy;
#[cfg(feature = "sqlite")]
mod sqlite;
pub(crate) mod steps;
pub(crate) mod wait;

#[cfg(feature = "mysql")]
pub use self::mysql::{MySqlStore, MySqlStoreBuilder};
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresStore, PostgresStoreBuilder};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{SqliteStore, SqliteStoreBuilder};

/// Makes a store and its builder out of a dialect.
macro_rules! store {
    (
        $(#[$store_docs:meta])* $Store:ident,
        $(#[$builder_docs:meta])* $Builder:ident,
        $Dialect:ty, $Pool:ty, $schema:literal
    ) => {
        $(#[$store_docs])*
        #[derive(Clone)]
        pub struct $Store(pub(crate) std::sync::Arc<super::super::executor::Executor<$Dialect>>);

        $(#[$builder_docs])*
        #[derive(Debug, Clone)]
        pub struct $Builder {
            pool: $Pool,
            settings: super::super::executor::Settings,
        }

        impl $Store {
            /// The statements that create the table `idem_records`, for teams that run their own
            /// migrations. `migrate` runs the same.
            ///
            /// For a table of another name, use [`schema`](Self::schema). The mark `idem schema 1`
            /// must stay: it is how the store knows the version of its table.
            pub const SCHEMA: &'static str = include_str!($schema);

            /// Returns the statements that create a table of this name: `name` or `schema.name`.
            /// They are those of [`SCHEMA`](Self::SCHEMA), with the name in quotes, and
            /// `migrate` runs the same. `idem schema` prints them.
            ///
            /// # Errors
            ///
            /// If the name is not one that `table` of the builder takes.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("use idem_sqlx::", stringify!($Store), ";")]
            ///
            /// # fn main() -> Result<(), idem_core::StoreError> {
            #[doc = concat!("let ddl = ", stringify!($Store), "::schema(\"shop_records\")?;")]
            /// assert!(ddl.contains("shop_records") && ddl.contains("idem schema 1"));
            #[doc = concat!("assert!(", stringify!($Store), "::schema(\"shop records\").is_err());")]
            /// # Ok(())
            /// # }
            /// ```
            pub fn schema(table: &str) -> Result<String, idem_core::StoreError> {
                super::super::executor::table_check::create_statements::<$Dialect>(table)
            }

            /// Creates a store on the application's pool, with the table `idem_records`.
            ///
            /// Nothing is sent yet. The pool keeps its settings: with `test_before_acquire`, which
            /// is on by default, each step costs one more round trip. sqlx also tests each
            /// connection that is returned, after the step; with a pool of its own (`connect`), the
            /// store keeps its connections instead.
            ///
            /// Call it in the tokio runtime that the pool lives in. The store runs its steps there,
            /// whatever tokio runtime a caller is in.
            pub fn new(pool: $Pool) -> Self {
                Self::builder(pool).build()
            }

            /// All settings.
            pub fn builder(pool: $Pool) -> $Builder {
                $Builder { pool, settings: super::super::executor::Settings::default() }
            }

            /// Creates the table, if it does not exist.
            ///
            /// You may call it repeatedly and concurrently, for example at each start of each
            /// process. It needs the right to create tables. If the future is dropped, the table
            /// may have been created.
            ///
            /// # Errors
            ///
            /// If there is a table of another version, or of another program; or as every step.
            pub async fn migrate(&self) -> Result<(), idem_core::StoreError> {
                self.migrating().await
            }

            fn migrating(&self) -> super::super::executor::Boxed<'_, ()> {
                Box::pin(self.0.migrate())
            }

            /// Deletes expired rows and outcomes now, in batches, and returns how many rows were
            /// due. A row that was kept for a minute or longer is due up to an eighth of that
            /// time later. The store does this by itself about every 10 s.
            ///
            /// A dropped future may have deleted some of them.
            ///
            /// # Errors
            ///
            /// As every step.
            pub async fn sweep(&self) -> Result<u64, idem_core::StoreError> {
                super::super::executor::sweep::sweep(&self.0).await
            }
        }

        impl std::fmt::Debug for $Store {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($Store))
                    .field("place", &self.0.place())
                    .field("table", &self.0.table())
                    .field("time_limit", &self.0.limit)
                    .finish_non_exhaustive()
            }
        }

        impl $Builder {
            /// Sets the table: `name` or `schema.name`, each of ASCII letters, digits and `_`,
            /// without a digit at the beginning, at most 63 bytes. `idem_records` by default. The
            /// name is quoted, so that upper and lower case differ where the database distinguishes
            /// them.
            ///
            /// With an invalid name, the first step fails with `Refused`. So it does in SQLite for
            /// the schema of an attached file, unless both files have a rollback journal: otherwise
            /// a crash could leave rows without their record.
            #[must_use]
            pub fn table(mut self, table: impl Into<String>) -> Self {
                self.settings.table = table.into();
                self
            }

            /// Sets how long a step may take, waiting for a connection included: 900 ms by default.
            /// Zero fails every step. A connection that takes longer to open is opened all the
            /// same, for up to 5 s in all, and serves a later step. `transaction` waits twice as
            /// long for one that it opens in its pool, and for the answer to its `BEGIN`: 1.8 s at
            /// least, and at most the `acquire_timeout` of the pool.
            ///
            /// In a burst, a step also waits for its turn, up to ten times as long, while the
            /// database answers earlier steps. If it answers none within this limit, the step
            /// fails. Renewals of leases do not wait for a turn.
            #[must_use]
            pub fn time_limit(mut self, limit: std::time::Duration) -> Self {
                self.settings.limit = limit;
                self
            }

            /// Creates the store. Nothing is sent yet.
            pub fn build(self) -> $Store {
                $Store(super::super::executor::Executor::new(self.pool, &self.settings))
            }
        }

        impl idem_core::Store for $Store {
            async fn claim(
                &self,
                claim: &idem_core::store::record::Claim,
            ) -> Result<idem_core::store::record::Claimed, idem_core::StoreError> {
                super::steps::claim(&self.0, claim).await
            }

            async fn issue(
                &self,
                issues: &[idem_core::store::record::Issue],
            ) -> Vec<Result<idem_core::store::record::Issued, idem_core::StoreError>> {
                super::steps::issue(&self.0, issues).await
            }

            async fn commit(
                &self,
                commit: &idem_core::store::record::Commit,
            ) -> Result<idem_core::store::record::Ownership, idem_core::StoreError> {
                super::steps::commit(&self.0, commit).await
            }

            async fn release(
                &self,
                release: &idem_core::store::record::Release,
            ) -> Result<idem_core::store::record::Ownership, idem_core::StoreError> {
                super::steps::release(&self.0, release).await
            }

            async fn renew(
                &self,
                renewals: &[idem_core::store::record::Renewal],
            ) -> Vec<Result<idem_core::store::record::Ownership, idem_core::StoreError>> {
                super::steps::renew(&self.0, renewals).await
            }

            async fn wait(
                &self,
                id: &idem_core::store::record::RecordId,
                attempt: u64,
                limit: std::time::Duration,
            ) -> Result<(), idem_core::StoreError> {
                super::wait::wait_at_most(&self.0, id, attempt, limit).await
            }

            async fn inspect(
                &self,
                id: &idem_core::store::record::RecordId,
            ) -> Result<Option<idem_core::RecordInfo>, idem_core::StoreError> {
                super::steps::inspect(&self.0, id).await
            }

            async fn remove(
                &self,
                id: &idem_core::store::record::RecordId,
            ) -> Result<idem_core::store::record::Removed, idem_core::StoreError> {
                super::steps::remove(&self.0, id).await
            }

            fn into_handle(self) -> idem_core::store::StoreHandle {
                idem_core::store::StoreHandle::with_admin(self)
            }
        }

        impl idem_core::store::AdminStore for $Store {
            /// Each page is one to ten statements, of up to a thousand rows each.
            async fn list(
                &self,
                listing: &idem_core::store::admin::Listing,
            ) -> Result<idem_core::store::admin::Page, idem_core::StoreError> {
                super::admin::list(&self.0, listing).await
            }

            /// Each part is two statements about up to fifty thousand rows.
            async fn count(
                &self,
                after: Option<&idem_core::store::admin::Cursor>,
            ) -> Result<Option<idem_core::store::admin::Counts>, idem_core::StoreError> {
                super::count::count(&self.0, after).await.map(Some)
            }

            async fn intervene(
                &self,
                intervention: &idem_core::store::admin::Intervention,
            ) -> Result<idem_core::store::admin::Intervened, idem_core::StoreError> {
                super::admin::intervene(&self.0, intervention).await
            }
        }
    };
}

use store;
