//! Encodes what is recorded, for every kind of call.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::observe::Event;
use crate::outcome::Storable;
use crate::outcome::codec::{CodecContext, CodecFailure, TypeLabel};
use crate::record::{Encoded, short_type_name};
use crate::runtime::trace::traced;
use crate::runtime::{Runtime, RuntimeConfig};
use crate::task::request::Request;

pub(crate) const NOT_ENCODED: Event = Event::warn("not_encoded");

/// Encodes the outcome of one attempt.
pub(crate) struct OutcomeWriter<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) request: &'a Request,
    pub(crate) attempt: u64,
    /// The type of the outcome, as the record has it.
    pub(crate) label: TypeLabel,
}

impl OutcomeWriter<'_> {
    /// Encodes a value. If that fails, which is reported, the call is recorded without its outcome.
    pub(crate) fn value<T: Storable<Via>, Via>(&self, value: &T) -> Option<Encoded> {
        self.encode(value, false)
            .inspect_err(|failure| self.report(NOT_ENCODED, failure))
            .ok()
    }

    /// Encodes an error that is kept.
    pub(crate) fn error<E>(&self, error: &E) -> Result<Encoded, CodecFailure>
    where
        E: Serialize + DeserializeOwned,
    {
        self.encode(error, true)
    }

    /// Encodes a value, or an error that is kept, and reports it if it is not read back as it is.
    pub(crate) fn encode<T: Storable<Via>, Via>(
        &self,
        value: &T,
        is_error: bool,
    ) -> Result<Encoded, CodecFailure> {
        let RuntimeConfig {
            codec,
            checks_outcomes,
            ..
        } = &self.runtime.config;
        let context = CodecContext::new(is_error, &self.request.id, self.attempt, self.label);
        let encoded = codec.encode(context, &value.to_stored())?;
        // The body has run, so the outcome stays as it is.
        if *checks_outcomes
            && let Err(why) = codec.read_back(&self.request.id, self.attempt, &encoded, value)
        {
            let name = short_type_name(std::any::type_name::<T>());
            self.report(
                Event::warn("not_read_back"),
                &format_args!("`{name}`: {why}"),
            );
        }
        Ok(traced(self.request.metadata.as_ref(), encoded))
    }

    fn report(&self, event: Event, why: &dyn Display) {
        let observer = self.runtime.observer;
        observer.report(event, &self.request.id, self.attempt, Some(why));
    }
}
