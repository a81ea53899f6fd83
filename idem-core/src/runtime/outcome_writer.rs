//! Encodes what is recorded, for every kind of call.

use std::sync::Arc;

use crate::observe::Decision;
use crate::outcome::codec::{AnyCodec, CodecContext, CodecFailure, TypeLabel};
use crate::record::{Encoded, RecordId};
use crate::runtime::Runtime;
use crate::runtime::trace::{CallTrace, traced};

/// Encodes the outcome of one attempt.
pub(crate) struct OutcomeWriter<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) id: &'a RecordId,
    pub(crate) attempt: u64,
    /// The type of the outcome, as the record has it.
    pub(crate) label: TypeLabel,
    pub(crate) trace: Option<&'a Arc<CallTrace>>,
}

impl OutcomeWriter<'_> {
    /// Encodes a value. If that fails, which is reported, the call is recorded without its outcome.
    pub(crate) fn value(
        &self,
        encode: impl FnOnce(&AnyCodec, CodecContext<'_>) -> Result<Encoded, CodecFailure>,
    ) -> Option<Encoded> {
        let context = CodecContext::of_value(self.id, self.attempt, self.label);
        encode(&self.runtime.config.codec, context)
            .inspect_err(|failure| {
                self.runtime.observer.decided_because(
                    Decision::NotEncoded,
                    self.id,
                    self.attempt,
                    failure,
                );
            })
            .ok()
            .map(|encoded| traced(self.trace, encoded))
    }

    /// Encodes an error that is kept.
    pub(crate) fn error(
        &self,
        encode: impl FnOnce(&AnyCodec, CodecContext<'_>) -> Result<Encoded, CodecFailure>,
    ) -> Result<Encoded, CodecFailure> {
        let context = CodecContext::of_error(self.id, self.attempt, self.label);
        encode(&self.runtime.config.codec, context).map(|encoded| traced(self.trace, encoded))
    }
}
