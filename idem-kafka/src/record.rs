//! A message, as the topic has it.

use std::sync::Arc;

use bytes::Bytes;
use idem_queue::{Delivery, Fetched};
use rdkafka::Message;
use rdkafka::message::Headers as _;

use crate::message_id::message_id;

/// A header, as the topic has it.
pub(crate) type Header = (String, Option<Vec<u8>>);

/// What the topic has of a message.
#[derive(Debug)]
pub(crate) struct Original {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// Messages with the same record key run one after the other.
    pub(crate) key: Option<Bytes>,
    /// `None` is a tombstone.
    pub(crate) value: Option<Bytes>,
    pub(crate) headers: Vec<Header>,
}

impl Original {
    pub(crate) fn read(message: &impl Message) -> Self {
        let headers = message.headers().into_iter().flat_map(|all| all.iter());
        Self {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(Bytes::copy_from_slice),
            value: message.payload().map(Bytes::copy_from_slice),
            headers: headers
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect(),
        }
    }

    /// Returns the value of a header that is text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(found, _)| found == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    /// The message as handlers get it.
    pub(crate) fn delivery(&self, topic: &Arc<str>, id_header: &str) -> Delivery {
        let id = message_id(self.text(id_header), self.partition, self.offset);
        let key = self.key.as_deref().unwrap_or_default();
        let mut delivery = Delivery::new(topic.clone(), self.value.clone().unwrap_or_default())
            .with_id(id)
            .with_subject(String::from_utf8_lossy(key));
        for (name, value) in &self.headers {
            if let Some(Ok(text)) = value.as_deref().map(std::str::from_utf8) {
                delivery = delivery.with_header(name, text);
            }
        }
        delivery
    }

    fn size(&self) -> usize {
        let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let headers = self.headers.iter();
        length(&self.key)
            + length(&self.value)
            + headers
                .map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len))
                .sum::<usize>()
    }

    pub(crate) fn fetched(self) -> Fetched<Self> {
        Fetched {
            partition: self.partition,
            offset: self.offset,
            key: self.key.clone(),
            size: self.size(),
            message: self,
        }
    }
}

/// A message in memory, until it is settled.
pub(crate) type Record = idem_queue::Record<Original>;
