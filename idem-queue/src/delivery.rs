//! A message, as handlers get it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use idem_core::adapter::{describe_json_error, without_byte_order_mark};
use idem_core::{Error, KeyPart, KeyWriter};
use serde::de::DeserializeOwned;

/// One delivery of a message. Cheap to clone.
///
/// # Examples
///
/// ```
/// use idem_queue::Delivery;
///
/// let delivery = Delivery::new("orders", r#"{"number":7}"#)
///     .with_id("m-1")
///     .with_subject("orders.placed");
/// let order: std::collections::BTreeMap<String, u32> = delivery.json()?;
/// assert_eq!(
///     (order["number"], delivery.id(), delivery.source()),
///     (7, Some("m-1"), "orders")
/// );
/// # Ok::<(), idem_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Delivery(Arc<DeliveryState>);

#[derive(Debug, Clone)]
struct DeliveryState {
    source: Arc<str>,
    id: Option<String>,
    subject: String,
    payload: Bytes,
    headers: Vec<(String, String)>,
    redelivered: bool,
    /// Why `json` failed first, for the event of a dead letter.
    unreadable: OnceLock<String>,
}

impl Delivery {
    /// Creates a delivery from a source, such as a queue or a stream: for adapters, and for tests
    /// of handlers.
    pub fn new(source: impl Into<Arc<str>>, payload: impl Into<Bytes>) -> Self {
        Self(Arc::new(DeliveryState {
            source: source.into(),
            id: None,
            subject: String::new(),
            payload: payload.into(),
            headers: Vec::new(),
            redelivered: false,
            unreadable: OnceLock::new(),
        }))
    }

    /// Sets the message's id. An empty text means no id.
    #[must_use]
    pub fn with_id(self, id: impl Into<String>) -> Self {
        let id = id.into();
        self.with(|state| state.id = (!id.is_empty()).then_some(id))
    }

    /// Sets the subject, or the routing key.
    #[must_use]
    pub fn with_subject(self, subject: impl Into<String>) -> Self {
        self.with(|state| state.subject = subject.into())
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|state| state.headers.push((name.into(), value.into())))
    }

    /// Sets whether the broker has delivered the message before.
    #[must_use]
    pub fn with_redelivered(self, redelivered: bool) -> Self {
        self.with(|state| state.redelivered = redelivered)
    }

    fn with(mut self, change: impl FnOnce(&mut DeliveryState)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Returns where the message comes from: the queue, or the stream.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Returns the message's id, if it has one.
    ///
    /// If you use it as a part of a key and it is `None`, the guarded call fails with
    /// [`Error::MissingKey`], and the message is dead-lettered.
    pub fn id(&self) -> Option<&str> {
        self.0.id.as_deref()
    }

    /// Returns the key of the message: its source and its id. Both are needed, because ids are
    /// unique only within a source.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKey`] if the message has no id. If the handler returns this error, the
    /// message is dead-lettered.
    pub fn key(&self) -> Result<MessageKey, Error> {
        match self.id() {
            Some(id) => Ok(MessageKey {
                source: self.0.source.clone(),
                id: id.to_owned(),
            }),
            None => Err(Error::missing_key(self.source())),
        }
    }

    /// Returns the subject, or the routing key, that the message was published to.
    pub fn subject(&self) -> &str {
        &self.0.subject
    }

    /// Returns the contents.
    pub fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    /// Returns the first header of this name whose value is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.0
            .headers
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns whether the broker says that it delivered the message before. `false` proves
    /// nothing.
    pub fn is_redelivered(&self) -> bool {
        self.0.redelivered
    }

    /// Decodes the contents as JSON, without a byte order mark at their beginning.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] if they fail to decode as this type. It says where and as which type, and
    /// never quotes the contents. If the handler returns this error, the message is dead-lettered,
    /// and the event `dead_lettered` says the same.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(without_byte_order_mark(self.payload())).map_err(|error| {
            let id = self
                .id()
                .map(|id| format!(" `{}`", id.escape_debug()))
                .unwrap_or_default();
            let type_name = std::any::type_name::<T>();
            let failure = describe_json_error(&error);
            let reason = format!("the message{id} cannot be read as `{type_name}`: {failure}");
            let error = Error::unreadable_message(self.source(), self.id(), &reason);
            self.0.unreadable.get_or_init(|| reason);
            error
        })
    }

    /// Why `json` failed, if it did.
    pub(crate) fn unreadable(&self) -> Option<&String> {
        self.0.unreadable.get()
    }
}

/// The key of a message: its source and its id, as one part of a key.
///
/// # Examples
///
/// ```
/// use idem_core::{Idempotency, MemoryStore};
/// use idem_queue::Delivery;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), idem_core::Error> {
/// # let idempotency = Idempotency::new(MemoryStore::new());
/// let delivery = Delivery::new("orders", "").with_id("m-1");
/// let call = idempotency.operation("mails.on_order").key(&delivery.key()?);
/// # call.run(|| async { Ok::<_, idem_core::Error>(()) }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageKey {
    source: Arc<str>,
    id: String,
}

impl MessageKey {
    /// Returns where the message comes from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the message's id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

#[diagnostic::do_not_recommend]
impl KeyPart for MessageKey {
    fn write_to(&self, key: &mut KeyWriter<'_>) {
        key.group(|key| {
            key.text(&self.source);
            key.text(&self.id);
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_message_without_an_id_has_no_key_and_one_that_cannot_be_read_is_put_aside() {
        use idem_core::Disposition;

        let delivery = Delivery::new("orders", "{").with_id("");
        assert!(matches!(delivery.key(), Err(Error::MissingKey { .. })));
        assert_eq!(
            Disposition::of(&delivery.key().unwrap_err()),
            Disposition::dead_letter("missing_key")
        );
        assert_eq!(
            Disposition::of(&delivery.json::<u32>().unwrap_err()),
            Disposition::dead_letter("codec")
        );
    }

    #[test]
    fn a_byte_order_mark_before_the_contents_is_no_part_of_them() {
        let delivery = Delivery::new("orders", "\u{feff}{\"number\":7}");
        let read: std::collections::BTreeMap<String, u32> = delivery.json().unwrap();
        assert_eq!(read["number"], 7);
        assert_eq!(delivery.payload(), "\u{feff}{\"number\":7}");
    }

    #[test]
    fn the_error_of_an_unreadable_message_says_where_and_never_what_it_contains() {
        for (payload, what) in [
            (
                "{\"card\":\n \"4111 1111\"}",
                "a value is missing, or of another type than expected, at line 2, column 12",
            ),
            (
                "{\"card\": 4111 1111}",
                ": not valid JSON at line 1, column 15",
            ),
            // Only one mark, only at the beginning.
            (
                "\u{feff}\u{feff}{\"card\": 4111}",
                ": not valid JSON at line 1, column 1",
            ),
            ("{\"card\": 4111", "it is cut off at line 1, column 13"),
        ] {
            let delivery = Delivery::new("orders", payload).with_id("m-1");
            let error = delivery
                .json::<std::collections::BTreeMap<String, u64>>()
                .unwrap_err()
                .to_string();
            for expected in [
                "`orders`",
                "`m-1`",
                "BTreeMap<alloc::string::String, u64>",
                what,
            ] {
                assert!(error.contains(expected), "{expected}: {error}");
            }
            for never in ["4111", "forget", "stored record"] {
                assert!(!error.contains(never), "{never}: {error}");
            }
        }
    }
}
