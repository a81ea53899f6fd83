//! An operator's decision, and how it ended.

use std::fmt::Display;
use std::time::Duration;

use serde_json::{Map, Value};

use super::Subject;
use crate::KeyDigest;
use crate::layers::ops::admin::Intervened;
use crate::record::{RecordId, RecordInfo, RecordState};

/// An operator's decision, and its subject.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// The name of the decision: `settled`, `replaced`, `released`, `forgotten` or `purged`.
    pub name: Box<str>,
    /// The operation of the record.
    pub operation: Box<str>,
    /// The digest of the record's key, as logs show it; keys may be personal data. `None`: many
    /// records of the operation.
    pub digest: Option<KeyDigest>,
    /// The state of the record as the operator found it, or of the records that are removed.
    pub state: Option<RecordState>,
    /// The attempt of the record as the operator found it.
    pub attempt: Option<u64>,
    /// Of many records: only those that nothing was heard of for this long.
    pub older_than: Option<Duration>,
    /// Of many records: only those that a key filter has. The filter is not kept, because keys may
    /// be personal data that were to be erased.
    pub by_key: bool,
    /// Whether records with a living owner are included.
    pub force: bool,
}

impl Decision {
    /// Makes a decision about one record, as the operator found it. `name` is `settled`,
    /// `replaced`, `released` or `forgotten`.
    pub fn about(id: &RecordId, name: &str, found: Option<&RecordInfo>) -> Self {
        Self {
            digest: Some(id.digest()),
            state: found.map(|info| info.state),
            attempt: found.map(|info| info.attempt),
            ..Self::purge(id.operation()).named(name)
        }
    }

    /// Makes the decision to remove many records of an operation, or of
    /// [every one](super::EVERY_OPERATION).
    pub fn purge(operation: &str) -> Self {
        let name = "purged".into();
        let operation = operation.into();
        Self {
            name,
            operation,
            digest: None,
            state: None,
            attempt: None,
            older_than: None,
            by_key: false,
            force: false,
        }
    }

    /// Sets [`state`](Self::state).
    #[must_use]
    pub fn of_state(mut self, state: Option<RecordState>) -> Self {
        self.state = state;
        self
    }

    /// Sets [`older_than`](Self::older_than).
    #[must_use]
    pub fn older_than(mut self, age: Option<Duration>) -> Self {
        self.older_than = age;
        self
    }

    /// Sets [`by_key`](Self::by_key).
    #[must_use]
    pub fn by_key(mut self, by_key: bool) -> Self {
        self.by_key = by_key;
        self
    }

    /// Sets [`force`](Self::force).
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    pub(super) fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    pub(super) fn subject(&self) -> Subject {
        self.digest
            .map_or_else(|| Subject::operation(&self.operation), Subject)
    }

    pub(super) fn to_json(&self) -> Value {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        put("decision", (*self.name).into());
        put("operation", (*self.operation).into());
        put(
            "digest",
            self.digest.map(|digest| digest.to_string()).into(),
        );
        put("state", self.state.map(RecordState::as_str).into());
        put("attempt", self.attempt.into());
        put("older_than_ms", self.older_than.map(millis).into());
        if self.by_key {
            put("by_key", true.into());
        }
        put("force", self.force.into());
        Value::Object(object)
    }

    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str();
        Some(Self {
            name: text("decision")?.into(),
            operation: text("operation")?.into(),
            digest: text("digest").and_then(KeyDigest::parse),
            state: text("state").and_then(RecordState::parse),
            attempt: value.get("attempt").and_then(Value::as_u64),
            older_than: value
                .get("older_than_ms")
                .and_then(Value::as_u64)
                .map(Duration::from_millis),
            by_key: value
                .get("by_key")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
            force: value
                .get("force")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
        })
    }
}

/// How a decision ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It was carried out.
    Done {
        /// How many records were changed: 1, unless many were to be removed.
        records: u64,
    },
    /// Nothing was changed.
    Refused {
        /// Why not.
        reason: Box<str>,
    },
}

impl Ended {
    /// Makes a refusal.
    pub fn refused(reason: impl Display) -> Self {
        Self::Refused {
            reason: reason.to_string().into(),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let mut object = Map::new();
        match self {
            Self::Done { records } => object.insert("records".to_owned(), (*records).into()),
            Self::Refused { reason } => object.insert("refused".to_owned(), (**reason).into()),
        };
        Value::Object(object)
    }

    pub(super) fn from_json(value: &Value) -> Option<Self> {
        match (value.get("records"), value.get("refused")) {
            (Some(records), _) => Some(Self::Done {
                records: records.as_u64()?,
            }),
            (_, Some(reason)) => Some(Self::refused(reason.as_str()?)),
            _ => None,
        }
    }
}

impl From<Intervened> for Ended {
    fn from(answer: Intervened) -> Self {
        match answer {
            Intervened::Done { .. } => Self::Done { records: 1 },
            Intervened::Nothing => Self::refused("the record no longer existed"),
            Intervened::Alive { .. } => Self::refused("the record was in flight and alive"),
            Intervened::NotAbandoned { state } => Self::refused(format_args!(
                "the record was {}, not abandoned",
                state.as_str()
            )),
            Intervened::Changed { .. } => {
                Self::refused("the record had changed since the operator looked")
            }
        }
    }
}
