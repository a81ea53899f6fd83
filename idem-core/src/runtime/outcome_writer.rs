//! Encodes what is recorded, for every kind of call.

use std::fmt::Display;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::observe::Decision;
use crate::outcome::Storable;
use crate::outcome::codec::{CodecContext, CodecFailure, TypeLabel};
use crate::record::{Encoded, RecordId, short_type_name};
use crate::runtime::trace::{CallMetadata, traced};
use crate::runtime::{Runtime, RuntimeConfig};

/// Encodes the outcome of one attempt.
pub(crate) struct OutcomeWriter<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) id: &'a RecordId,
    pub(crate) attempt: u64,
    /// The type of the outcome, as the record has it.
    pub(crate) label: TypeLabel,
    pub(crate) metadata: Option<&'a Arc<CallMetadata>>,
}

impl OutcomeWriter<'_> {
    /// Encodes a value. If that fails, which is reported, the call is recorded without its outcome.
    pub(crate) fn value<T: Storable<Via>, Via>(&self, value: &T) -> Option<Encoded> {
        self.encode(value, false)
            .inspect_err(|failure| self.report(Decision::NotEncoded, failure))
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
        let context = CodecContext::of(is_error, self.id, self.attempt, self.label);
        let encoded = codec.encode(context, &value.to_stored())?;
        // The body has run, so the outcome stays as it is.
        if *checks_outcomes
            && let Err(why) = codec.read_back((self.id, self.attempt), &encoded, value)
        {
            let name = short_type_name(std::any::type_name::<T>());
            self.report(Decision::NotReadBack, &format_args!("`{name}`: {why}"));
        }
        Ok(traced(self.metadata, encoded))
    }

    fn report(&self, decision: Decision, why: &dyn Display) {
        let observer = self.runtime.observer;
        observer.decided_because(decision, self.id, self.attempt, why);
    }
}
