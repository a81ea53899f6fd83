//! Encodes what is recorded, for every kind of call.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::observe::Decision;
use crate::outcome::Storable;
use crate::outcome::codec::{CodecContext, CodecFailure};
use crate::record::{Encoded, short_type_name};
use crate::runtime::trace::traced;
use crate::runtime::{Runtime, RuntimeConfig};
use crate::task::request::Request;

/// Encodes the outcome of one attempt.
pub(crate) struct OutcomeWriter<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) request: &'a Request,
    pub(crate) attempt: u64,
}

impl OutcomeWriter<'_> {
    /// Encodes a value. If that fails, which is reported, the call is recorded without its outcome.
    pub(crate) fn value<T: Storable<Via>, Via>(&self, value: &T) -> Option<Encoded> {
        let context =
            CodecContext::of_value(&self.request.id, self.attempt, self.request.type_label());
        self.encode(context, value)
            .inspect_err(|failure| self.report(Decision::NotEncoded, failure))
            .ok()
    }

    /// Encodes an error that is kept.
    pub(crate) fn error<E>(&self, error: &E) -> Result<Encoded, CodecFailure>
    where
        E: Serialize + DeserializeOwned,
    {
        let context =
            CodecContext::of_error(&self.request.id, self.attempt, self.request.type_label());
        self.encode(context, error)
    }

    fn encode<T: Storable<Via>, Via>(
        &self,
        context: CodecContext<'_>,
        value: &T,
    ) -> Result<Encoded, CodecFailure> {
        let RuntimeConfig {
            codec,
            checks_outcomes,
            ..
        } = &self.runtime.config;
        let encoded = codec.encode(context, &value.to_stored())?;
        // The body has run, so the outcome stays as it is.
        if *checks_outcomes
            && let Err(why) = codec.read_back((&self.request.id, self.attempt), &encoded, value)
        {
            let name = short_type_name(std::any::type_name::<T>());
            self.report(Decision::NotReadBack, &format_args!("`{name}`: {why}"));
        }
        Ok(traced(self.request.metadata.as_ref(), encoded))
    }

    fn report(&self, decision: Decision, why: &dyn Display) {
        let observer = self.runtime.observer;
        observer.decided_because(decision, &self.request.id, self.attempt, why);
    }
}
