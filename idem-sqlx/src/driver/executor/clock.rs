//! Compares the database's clock with the store's own: a lease has expired only if it has by both.

use std::time::Duration;

use idem_core::adapter::catch_user_panic;
use idem_core::store::clock::{Jump, ServerClock};
use idem_core::store::record::{Claimed, Record};
use tokio::time::sleep;

use super::super::super::sqlx;
use super::super::dialect::{Conn, Dialect};

/// If the clocks agree again this soon, the step waits for that.
const SHORT_DOUBT: Duration = Duration::from_millis(50);

/// The database's clock, as a store has observed it.
pub(crate) struct DatabaseClock {
    server: ServerClock,
    /// The database's address, for messages.
    place: String,
}

/// A lease that has expired by the database's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lapsed {
    attempt: u64,
    lease: Duration,
    /// Longer than the lease, if a body may run only after this time.
    silent_for: Option<Duration>,
    age: Duration,
}

impl Lapsed {
    /// Returns the expired lease of a record that has this time left. `None` if the lease is alive,
    /// or if the record has none.
    pub(crate) fn find(record: &Record, left: Duration) -> Option<Self> {
        let Record::InFlight(held) = record else {
            return None;
        };
        record.lease_left(left).is_none().then(|| Self {
            attempt: held.attempt,
            lease: held.lease,
            silent_for: None,
            age: record.lease_age(left),
        })
    }

    /// Sets the age from which the claim takes the key over.
    pub(crate) fn silent_for(self, age: Duration) -> Self {
        Self {
            silent_for: Some(age),
            ..self
        }
    }

    /// How old the lease must be by both clocks.
    fn least_age(self) -> Duration {
        self.silent_for
            .map_or(self.lease, |age| age.max(self.lease))
    }

    /// Returns the answer to a claim while the clocks may differ by `doubt`.
    pub(crate) fn answer(self, doubt: Duration) -> Claimed {
        let Self {
            attempt,
            lease,
            silent_for,
            ..
        } = self;
        // The lease has expired by both clocks. Unknown is only whether it is that old.
        let is_over = |age: Duration| lease.is_zero() || doubt.saturating_add(lease) <= age;
        if silent_for.is_some_and(is_over) {
            return Claimed::Abandoned { attempt };
        }
        Claimed::InFlight {
            attempt,
            lease_left: doubt.min(lease),
        }
    }
}

impl DatabaseClock {
    pub(crate) fn new(place: String) -> Self {
        Self {
            server: ServerClock::default(),
            place,
        }
    }

    /// Reads the database's clock, and logs if it was set.
    pub(crate) async fn observe<D: Dialect>(
        &self,
        dialect: &D,
        on: &mut Conn<D>,
    ) -> Result<Duration, sqlx::Error> {
        let asked = ServerClock::asking();
        let time = dialect.time(on).await?;
        let name = D::NAME;
        let place = &self.place;
        match self.server.looked(time, asked) {
            Some(Jump::Ahead(by)) => catch_user_panic(|| {
                tracing::warn!(
                    target: "idem",
                    server = %place,
                    "the clock of {name} was set ahead by {by:.1?}, or another server with another \
                     clock took over: keys that it affects are taken over up to one lease later; \
                     keep the clocks of databases in step (NTP)"
                );
            }),
            Some(Jump::Back(by)) => catch_user_panic(|| {
                tracing::warn!(
                    target: "idem",
                    server = %place,
                    "the clock of {name} was set back by {by:.1?}, or another server with another \
                     clock took over: all records, abandoned ones too, are kept that much longer; \
                     keep the clocks of databases in step (NTP)"
                );
            }),
            None => {}
        }
        Ok(time)
    }

    /// Returns how much longer the lease may be alive by the store's own clock, or `None` if it has
    /// expired. The write that follows compares the row's revision, so it notices a renewal in
    /// between.
    pub(crate) async fn doubt<D: Dialect>(
        &self,
        dialect: &D,
        on: &mut Conn<D>,
        lapsed: Lapsed,
    ) -> Result<Option<Duration>, sqlx::Error> {
        if lapsed.least_age().is_zero() {
            return Ok(None);
        }
        let time = self.observe(dialect, on).await?;
        let doubt = self.server.doubt(time, lapsed.age, lapsed.least_age());
        if let Some(left) = doubt.filter(|left| *left <= SHORT_DOUBT) {
            sleep(left).await;
            return Ok(None);
        }
        Ok(doubt)
    }
}
