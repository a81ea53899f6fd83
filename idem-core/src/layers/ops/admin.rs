//! The operators' view of a store: listing records, and deciding about one by hand.
//!
//! [`AdminStore`] is the second seam, for stores that can list. The program `idem` is written
//! against it. No call of an application needs it.
//!
//! # Examples
//!
//! Every abandoned record, page by page:
//!
//! ```
//! # use idem_core as idem;
//! use idem::store::AdminStore;
//! use idem::store::admin::Listing;
//! use idem::{MemoryStore, RecordState};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), idem::StoreError> {
//! let store = MemoryStore::new();
//! let mut listing = Listing::all().state(RecordState::Abandoned);
//! loop {
//!     let page = store.list(&listing).await?;
//!     for record in &page.records {
//!         println!(
//!             "{} {} attempt {}",
//!             record.id.operation(),
//!             record.id.digest(),
//!             record.info.attempt
//!         );
//!     }
//!     match page.next {
//!         Some(cursor) => listing = listing.after(cursor),
//!         None => break,
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod key_filter;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;

pub use self::key_filter::{KeyFilter, KeyRange};
pub use crate::adapter::engine::intervention::{Intervened, Intervention, OnIntervention, Wish};
use crate::record::{Owner, RecordId, RecordInfo, RecordState};
use crate::store::Store;
use crate::{Key, KeyDigest, StoreError, StoreErrorKind};

/// A store whose records an operator can list and decide about.
///
/// `idem-testkit` has trials of every sentence here, beside those of [`Store`].
pub trait AdminStore: Store {
    /// Lists records, a page at a time.
    ///
    /// The store looks at a bounded number of records for each page, whatever matches: so a page
    /// may be empty and have a [`next`](Page::next). A page is never longer than
    /// [`Listing::limit`]. The listing ends with a page without a `next`.
    ///
    /// A record that exists unchanged throughout the listing is listed at least once. A record that
    /// is written meanwhile may be missing or come twice, in one state or the other. Each is
    /// described as it was at one moment. Outcomes are left out: [`Store::inspect`] has them.
    ///
    /// Within a page, records in flight or abandoned come first, those that were silent for longest
    /// at the top. The others follow by expiry. SQL stores keep this order roughly across pages too
    /// (to an eighth of the time for which a record is kept), unless the listing has a key filter;
    /// other stores do not know it.
    ///
    /// Changes nothing, and may be dropped at any time.
    ///
    /// # Errors
    ///
    /// [`Refused`](StoreErrorKind::Refused) for a cursor of another store; else as every step. An
    /// unreadable record does not fail the listing: see [`Page::unreadable`].
    fn list(&self, listing: &Listing) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Counts records by operation and state, a part of the store at a time: `after` is the
    /// [`next`](Counts::next) of the part before. `None`: this store cannot count without reading
    /// each record, so [list](Self::list) them. Stores need not implement it.
    ///
    /// A record that exists unchanged throughout is counted at least once, and twice only where a
    /// listing would repeat it. A record that is written meanwhile may be missing or counted twice.
    ///
    /// Changes nothing, and may be dropped at any time.
    ///
    /// # Errors
    ///
    /// Like [`list`](Self::list).
    fn count(
        &self,
        after: Option<&Cursor>,
    ) -> impl Future<Output = Result<Option<Counts>, StoreError>> + Send {
        let _ = after;
        std::future::ready(Ok(None))
    }

    /// Carries out what an operator has decided about one record, in one atomic step.
    ///
    /// | found | `Settle` | `Release` | `Forget` |
    /// | --- | --- | --- | --- |
    /// | nothing | `Nothing` | `Nothing` | `Nothing` |
    /// | another [attempt](Intervention::only_attempt) or [state](Intervention::only_state) than the operator looked at | `Changed` | `Changed` | `Changed` |
    /// | in flight, alive, without `force` | `Alive` | `Alive` | `Alive` |
    /// | abandoned; or in flight with `force` | committed under its attempt, with its fingerprint: `Done` | released with its attempt: `Done` | removed: `Done` |
    /// | released, and the operator [saw it](Intervention::only_state) released | committed under its attempt: `Done` | `NotAbandoned` | removed: `Done` |
    /// | any other | `NotAbandoned` | `NotAbandoned` | removed: `Done` |
    ///
    /// `Replace` corrects an outcome that an operator has settled:
    ///
    /// | found | `Replace` |
    /// | --- | --- |
    /// | nothing | `Nothing` |
    /// | another attempt or state than the operator looked at | `Changed` |
    /// | the very outcome that was seen, settled by hand (its metadata has an [audit](crate::record::Audit)) | the new one stands in its place, with the attempt, the fingerprint, the trace and all times as they were: `Done` |
    /// | another outcome, or one that has expired since | `Changed` |
    /// | any other, and an outcome without an audit | `NotAbandoned` |
    ///
    /// Whoever waits for a record that is written over or removed is woken. The owner's later
    /// commit, renewal or release is [`Lost`](crate::record::Ownership::Lost), unless it commits
    /// the very outcome that was settled. A process with a
    /// [`local_cache`](crate::Builder::local_cache) may answer a replaced outcome until its cache
    /// drops it.
    ///
    /// Cancellation: a dropped future may or may not have carried it out. Sent again after it was,
    /// a `Settle` is `NotAbandoned`, and a `Replace` is `Changed`.
    ///
    /// # Errors
    ///
    /// Those of every step. An unreadable value is left untouched.
    fn intervene(
        &self,
        intervention: &Intervention,
    ) -> impl Future<Output = Result<Intervened, StoreError>> + Send;
}

/// Which records to list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// Of this operation alone.
    pub operation: Option<Box<str>>,
    /// In this state alone.
    pub state: Option<RecordState>,
    /// In flight or abandoned, and nothing was heard of its owner for at least this long. No store
    /// knows when a record in another state was written, so none of those matches.
    pub older_than: Option<Duration>,
    /// The digest that logs and errors show of the key, for one record.
    pub digest: Option<KeyDigest>,
    /// With these keys alone.
    pub key: Option<KeyFilter>,
    /// The call whose [steps](crate::step) are listed, in this
    /// [run](crate::store::record::InFlight::run), and nothing else.
    pub steps_of: Option<(RecordId, Owner)>,
    /// The most records on a page. At least 1 is taken.
    pub limit: usize,
    /// The end of the page before.
    pub cursor: Option<Cursor>,
}

impl Listing {
    /// All records, 100 on a page.
    pub fn all() -> Self {
        Self {
            operation: None,
            state: None,
            older_than: None,
            digest: None,
            key: None,
            steps_of: None,
            limit: 100,
            cursor: None,
        }
    }

    /// Lists one operation alone, by its name.
    #[must_use]
    pub fn operation(mut self, name: impl Into<Box<str>>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// Lists one state alone.
    #[must_use]
    pub fn state(mut self, state: RecordState) -> Self {
        self.state = Some(state);
        self
    }

    /// Lists only what nothing was heard of for this long: see the [field](Self::older_than).
    #[must_use]
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Lists only the record with this digest.
    #[must_use]
    pub fn digest(mut self, digest: KeyDigest) -> Self {
        self.digest = Some(digest);
        self
    }

    /// Lists only records with these keys, of every operation unless [one](Self::operation) is
    /// named. A text is read as [`KeyFilter`] says: `user-7*` has the keys whose first part begins
    /// with `user-7`.
    ///
    /// An SQL store reads the matching rows by its index; Redis and memory go through all records.
    /// Keys that are stored as digests are left out: see [`Page::has_digests`].
    ///
    /// ```
    /// # use idem_core as idem;
    /// use idem::store::admin::{KeyFilter, Listing};
    ///
    /// let beginning = Listing::all().key("user-7*");
    /// let tenant = Listing::all().key(KeyFilter::first_part("user-7"));
    /// ```
    #[must_use]
    pub fn key(mut self, filter: impl Into<KeyFilter>) -> Self {
        self.key = Some(filter.into());
        self
    }

    /// Lists only the steps of the call with this id in one run ([`RecordInfo::run`]), and the steps
    /// inside of them.
    #[must_use]
    pub fn steps_of(mut self, call: RecordId, run: Owner) -> Self {
        self.steps_of = Some((call, run));
        self
    }

    /// Sets the most records on a page.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Goes on after a page.
    #[must_use]
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    /// Whether a record of this id may match, before it was read.
    pub fn may_match(&self, id: &RecordId) -> bool {
        let has_key = |filter: &KeyFilter| filter.has_encoded(id.key());
        self.is_of_operation(id)
            && self.digest.is_none_or(|digest| digest == id.digest())
            && self.key.as_ref().is_none_or(has_key)
            && self
                .steps_of
                .as_ref()
                .is_none_or(|(call, run)| id.is_step_of(call, *run))
    }

    /// Whether the key filter cannot tell if a record matches, because its key is stored as a
    /// digest: for [`Page::has_digests`].
    pub fn cannot_tell(&self, id: &RecordId) -> bool {
        let cannot_tell = |filter: &KeyFilter| filter.cannot_tell(id);
        self.key.as_ref().is_some_and(cannot_tell) && self.is_of_operation(id)
    }

    fn is_of_operation(&self, id: &RecordId) -> bool {
        self.operation
            .as_deref()
            .is_none_or(|operation| operation == id.operation())
    }

    /// Whether a record that [may match](Self::may_match) does.
    pub fn matches(&self, info: &RecordInfo) -> bool {
        let is_old = |least| info.lease_age.is_some_and(|age| age >= least);
        self.state.is_none_or(|state| state == info.state) && self.older_than.is_none_or(is_old)
    }
}

/// The position at which a listing continues. Its text has a meaning for the store alone, and
/// contains keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Cursor(Box<str>);

impl Cursor {
    /// The cursor that a person or another process hands over.
    pub fn from_text(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// Its text: letters, digits, `-` and `_`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// For stores: a cursor of fields, which have no line breaks in them. The first field should
    /// name the kind of store, which then refuses the cursor of another
    /// ([`foreign`](Self::foreign)).
    pub fn of_fields(fields: &[&str]) -> Self {
        Self(BASE64.encode(fields.join("\n")).into())
    }

    /// For stores: the fields.
    ///
    /// # Errors
    ///
    /// [`Refused`](StoreErrorKind::Refused) if it has not just as many.
    pub fn fields<const N: usize>(&self) -> Result<[String; N], StoreError> {
        let bytes = BASE64.decode(self.0.as_bytes()).unwrap_or_default();
        let text = String::from_utf8(bytes).unwrap_or_default();
        let fields: Vec<String> = text.split('\n').map(str::to_owned).collect();
        fields.try_into().map_err(|_| Self::foreign())
    }

    /// For stores: the error of a cursor that is none of theirs.
    pub fn foreign() -> StoreError {
        StoreError::new(
            StoreErrorKind::Refused,
            "the cursor is not one of this store; leave it out to begin with the first page",
        )
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys may be personal data.
        f.write_str("Cursor(..)")
    }
}

/// A part of a listing.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Page {
    /// The records that match, oldest first.
    pub records: Vec<Listed>,
    /// Unreadable values in the places of records.
    pub unreadable: Vec<Unreadable>,
    /// The position of the next page; `None` if this was the last one.
    pub next: Option<Cursor>,
    /// How many records the store looked at for this page, those that do not match among them: for
    /// a display of progress. 0 if the store does not count them.
    pub looked_at: usize,
    /// Whether the store met records whose keys are stored as digests, so that the
    /// [key filter](KeyFilter) of the listing could not tell whether they match. They are not among
    /// the records. Whoever must find all records asks each page.
    pub has_digests: bool,
}

impl Page {
    /// For stores: a page of records, which it sorts.
    pub fn new(
        mut records: Vec<Listed>,
        unreadable: Vec<Unreadable>,
        next: Option<Cursor>,
    ) -> Self {
        records.sort_by(Listed::oldest_first);
        Self {
            records,
            unreadable,
            next,
            looked_at: 0,
            has_digests: false,
        }
    }

    /// For stores: sets whether records were met that the listing
    /// [cannot tell](Listing::cannot_tell).
    #[must_use]
    pub fn with_digests(mut self, has_digests: bool) -> Self {
        self.has_digests = has_digests;
        self
    }

    /// For stores: sets how many records were looked at.
    #[must_use]
    pub fn with_looked_at(mut self, records: usize) -> Self {
        self.looked_at = records;
        self
    }
}

/// The records of a part of a store, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Each operation and state that occurs. Either may come again in another part.
    pub counts: Vec<Count>,
    /// How many of the values are known to be unreadable, from their state alone.
    pub unreadable: u64,
    /// The position of the next part; `None` if this was the last one.
    pub next: Option<Cursor>,
}

impl Counts {
    /// For stores.
    pub fn new(counts: Vec<Count>, unreadable: u64, next: Option<Cursor>) -> Self {
        Self {
            counts,
            unreadable,
            next,
        }
    }
}

/// How many records of an operation are in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// The operation.
    pub operation: Box<str>,
    /// The state.
    pub state: RecordState,
    /// How many records.
    pub records: u64,
    /// In flight and abandoned: the time since the claim or the last renewal of the one of which
    /// nothing was heard for longest.
    pub silent_for: Option<Duration>,
}

impl Count {
    /// For stores.
    pub fn new(
        operation: impl Into<Box<str>>,
        state: RecordState,
        records: u64,
        silent_for: Option<Duration>,
    ) -> Self {
        Self {
            operation: operation.into(),
            state,
            records,
            silent_for,
        }
    }
}

/// A record of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Its operation and its key.
    pub id: RecordId,
    /// Its properties, without the outcome.
    pub info: RecordInfo,
}

impl Listed {
    /// For stores: a record, of whose description the outcome is taken away.
    pub fn new(id: RecordId, mut info: RecordInfo) -> Self {
        info.outcome = None;
        Self { id, info }
    }

    /// The order of a page: first those that nothing was heard of for longest, then the others by
    /// when they expire.
    pub fn oldest_first(&self, other: &Self) -> std::cmp::Ordering {
        let age = |listed: &Self| listed.info.lease_age;
        age(other)
            .cmp(&age(self))
            .then_with(|| self.info.expires_in.cmp(&other.info.expires_in))
    }
}

/// An unreadable value.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Unreadable {
    /// Its id.
    pub id: RecordId,
    /// Why not.
    pub error: StoreError,
}

impl Unreadable {
    /// For stores.
    pub fn new(id: RecordId, error: StoreError) -> Self {
        Self { id, error }
    }
}

impl RecordId {
    /// Reads `operation:key`, as [`as_str`](Self::as_str) gives it and stores keep it. `None` if it
    /// is none.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let is_colon = |at: usize| bytes.get(at) == Some(&b':');
        // Two of them join the segments of a name.
        let mut at = 0;
        while at < bytes.len() && (!is_colon(at) || is_colon(at + 1)) {
            at += if is_colon(at) { 2 } else { 1 };
        }
        Self::new(text.get(..at)?, &Key::from_encoded(text.get(at + 1..)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_another_stores_cursor_is_refused() {
        let cursor = Cursor::of_fields(&["7", "orders:o-1", ""]);
        let read = Cursor::from_text(cursor.as_str());
        assert_eq!(
            read.fields().unwrap(),
            ["7".to_owned(), "orders:o-1".to_owned(), String::new()]
        );
        assert!(read.fields::<2>().is_err());
        for text in ["", "!", "é", "AAA"] {
            let error = Cursor::from_text(text).fields::<3>().unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Refused, "{text}");
        }
        assert_eq!(format!("{cursor:?}"), "Cursor(..)");
    }

    #[test]
    fn the_id_that_a_store_holds_as_text_reads_back() {
        for operation in ["orders.create", "shop::orders::create", "a"] {
            for key in ["o-1", "a:b", "x%3Ay"] {
                let id = RecordId::new(operation, &Key::encode(key).unwrap()).unwrap();
                assert_eq!(RecordId::parse(id.as_str()), Some(id));
            }
            let id = RecordId::new(
                operation,
                &Key::encode(&(("a", 1), "b", "x".repeat(9))).unwrap(),
            )
            .unwrap();
            assert_eq!(RecordId::parse(id.as_str()), Some(id));
            let id = RecordId::new(operation, &Key::encode(&"x".repeat(300)).unwrap()).unwrap();
            assert_eq!(RecordId::parse(id.as_str()), Some(id));
            let id = RecordId::of_encoded(operation, "~tBwcHBwcHBwcHBwcHBwcHBw");
            assert_eq!(RecordId::parse(id.as_str()), Some(id));
        }
        for none in [
            "", "orders", "orders:", ":k", "a::b", "a::", "a b:k", "a:k k", "a:{k}", "a:b~c",
            "a:%4", "a:~short",
        ] {
            assert_eq!(RecordId::parse(none), None, "{none}");
        }
    }

    #[test]
    fn the_digest_of_a_log_line_reads_back() {
        let id = RecordId::new("orders", &Key::encode("o-1").unwrap()).unwrap();
        assert_eq!(
            KeyDigest::parse(&id.digest().to_string()),
            Some(id.digest())
        );
        for none in [
            "",
            "12",
            "g123456789abcdef",
            "0123456789abcdef0",
            "+123456789abcdef",
        ] {
            assert_eq!(KeyDigest::parse(none), None, "{none}");
        }
    }
}
