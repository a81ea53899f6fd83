//! What a call has of its record while its body runs.

use std::sync::{Arc, OnceLock};

use crate::lease::term::Term;
use crate::record::{Origin, Owner, RecordId};
use crate::runtime::Runtime;
use crate::task::begun_steps::BegunSteps;
use crate::task::outcome_writer::OutcomeWriter;
use crate::task::request::Request;

/// A call with a key.
pub(crate) struct Guarded {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) request: Request,
    pub(crate) held_by: HeldBy,
    /// Empty until there is a step: most calls have none.
    pub(super) begun: OnceLock<Box<BegunSteps>>,
}

/// What holds the record of a call while its body runs.
pub(crate) enum HeldBy {
    /// Nobody: the body runs without a record.
    Nobody,
    /// Nobody yet: in observe mode, a call in a transaction claims its key after the body.
    Unclaimed,
    Lease {
        term: Arc<Term>,
        origin: Origin,
    },
    /// It is a row of a transaction, which may be rolled back.
    Row {
        attempt: u64,
        owner: Owner,
        origin: Origin,
        /// The address of the transaction.
        address: usize,
        /// Nobody else can write while it is open.
        is_only_writer: bool,
    },
}

impl Guarded {
    pub(crate) fn new(runtime: &Arc<Runtime>, request: &Request, held_by: HeldBy) -> Self {
        Self {
            runtime: runtime.clone(),
            request: request.clone(),
            held_by,
            begun: OnceLock::new(),
        }
    }

    pub(crate) fn id(&self) -> &RecordId {
        &self.request.id
    }

    /// 0 if nobody holds the record.
    pub(crate) fn attempt(&self) -> u64 {
        match &self.held_by {
            HeldBy::Nobody | HeldBy::Unclaimed => 0,
            HeldBy::Lease { term, .. } => term.attempt,
            HeldBy::Row { attempt, .. } => *attempt,
        }
    }

    /// What the claim found.
    pub(crate) fn origin(&self) -> Origin {
        match self.held_by {
            HeldBy::Nobody | HeldBy::Unclaimed => Origin::Nothing,
            HeldBy::Lease { origin, .. } | HeldBy::Row { origin, .. } => origin,
        }
    }

    pub(crate) fn lease(&self) -> Option<&Arc<Term>> {
        match &self.held_by {
            HeldBy::Lease { term, .. } => Some(term),
            _ => None,
        }
    }

    pub(crate) fn observes(&self) -> bool {
        self.request.settings.observes
    }

    /// Returns what encodes the outcome.
    pub(crate) fn writer(&self) -> OutcomeWriter<'_> {
        OutcomeWriter {
            runtime: &self.runtime,
            request: &self.request,
            attempt: self.attempt(),
            label: self.request.type_label(),
        }
    }
}
