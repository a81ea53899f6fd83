//! Whether a lease that ran out by the database's clock has run out by the store's own clock too.

use std::time::Duration;

use idem_core::__private::outward;
use idem_core::store::clock::{Jump, ServerClock};
use idem_core::store::record::{Claimed, Record};
use tokio::time::sleep;

use super::super::sqlx;
use super::dialect::{Conn, Dialect};

/// A doubt that ends this soon is waited for.
const SOON: Duration = Duration::from_millis(50);

/// What a store knows of its database's clock.
pub(crate) struct DatabaseClock {
    server: ServerClock,
    /// The database's address, for messages.
    place: String,
}

/// A lease that ran out by the database's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lapsed {
    attempt: u64,
    lease: Duration,
    /// Longer than the lease, if a body may run only after this time.
    silent_for: Option<Duration>,
    age: Duration,
}

impl Lapsed {
    /// The lease of a record that has this time left; `None`, if it is alive or if there is none.
    pub(crate) fn of(record: &Record, left: Duration) -> Option<Self> {
        let Record::InFlight(held) = record else { return None };
        let (attempt, lease) = (held.attempt, held.lease);
        let age = record.lease_age(left);
        record.lease_left(left).is_none().then_some(Self { attempt, lease, silent_for: None, age })
    }

    /// The same for a claim that takes it over after it was silent for this time.
    pub(crate) fn silent_for(self, age: Duration) -> Self {
        Self { silent_for: Some(age), ..self }
    }

    /// How long it must have lasted by both clocks.
    fn least(self) -> Duration {
        self.silent_for.map_or(self.lease, |age| age.max(self.lease))
    }

    /// The answer to a claim while this much is doubted.
    pub(crate) fn answer(self, doubt: Duration) -> Claimed {
        let Self { attempt, lease, silent_for, .. } = self;
        // Only whether it was silent for that long is unsure: its lease is over.
        let is_over = |age: Duration| lease.is_zero() || doubt.saturating_add(lease) <= age;
        if silent_for.is_some_and(is_over) {
            return Claimed::Abandoned { attempt };
        }
        Claimed::InFlight { attempt, lease_left: doubt.min(lease) }
    }
}

impl DatabaseClock {
    pub(crate) fn new(place: String) -> Self {
        Self { server: ServerClock::default(), place }
    }

    /// Looks at the database's clock, and returns its time.
    pub(crate) async fn look<D: Dialect>(&self, dialect: &D, on: &mut Conn<D>) -> Result<Duration, sqlx::Error> {
        let asked = ServerClock::asking();
        let time = dialect.time(on).await?;
        let (name, place) = (D::NAME, &self.place);
        match self.server.looked(time, asked) {
            Some(Jump::Ahead(by)) => outward(|| {
                tracing::warn!(
                    target: "idem",
                    server = %place,
                    "the clock of {name} was set ahead by {by:.1?}, or another server with another clock took over: keys that it affects are taken over up to one lease later; keep the clocks of databases in step (NTP)"
                );
            }),
            Some(Jump::Back(by)) => outward(|| {
                tracing::warn!(
                    target: "idem",
                    server = %place,
                    "the clock of {name} was set back by {by:.1?}, or another server with another clock took over: all records, abandoned ones too, are kept that much longer; keep the clocks of databases in step (NTP)"
                );
            }),
            None => {}
        }
        Ok(time)
    }

    /// How much longer the lease may be alive by the store's own clock; `None`: it is over. What is
    /// then written compares the row's revision, so a renewal in between is noticed.
    pub(crate) async fn doubt<D: Dialect>(
        &self,
        dialect: &D,
        on: &mut Conn<D>,
        lapsed: Lapsed,
    ) -> Result<Option<Duration>, sqlx::Error> {
        if lapsed.least().is_zero() {
            return Ok(None);
        }
        let time = self.look(dialect, on).await?;
        let doubt = self.server.doubt(time, lapsed.age, lapsed.least());
        if let Some(left) = doubt.filter(|left| *left <= SOON) {
            sleep(left).await;
            return Ok(None);
        }
        Ok(doubt)
    }
}
