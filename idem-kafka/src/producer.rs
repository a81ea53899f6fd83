//! A producer that is made anew when it has ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use idem_queue::Fault;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::future_producer::Delivery;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};

/// How long a message waits for a place in the client's queue.
const QUEUEING: Duration = Duration::from_secs(1);

/// A message for a topic.
pub(crate) type Outgoing<'a> = FutureRecord<'a, [u8], [u8]>;

/// A producer whose messages are confirmed. Clones share it.
#[derive(Clone)]
pub(crate) struct Producer {
    config: Arc<ClientConfig>,
    current: Arc<Mutex<Option<FutureProducer>>>,
}

impl Producer {
    pub(crate) fn new(config: ClientConfig) -> Result<Self, Fault> {
        let producer = Self {
            config: Arc::new(config),
            current: Arc::default(),
        };
        match producer.current() {
            Ok(_) => Ok(producer),
            Err(error) => Err(Fault::config(format!(
                "the client refuses the configuration: {error}"
            ))),
        }
    }

    fn current(&self) -> KafkaResult<FutureProducer> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // An idempotent producer ends for good if it cannot tell any more what was written.
        let ended = current.take_if(|current| current.client().fatal_error().is_some());
        if ended.is_some() {
            // Dropping it waits for its thread.
            std::thread::spawn(move || drop(ended));
        }
        let producer = match current.take() {
            Some(producer) => producer,
            None => self.config.create()?,
        };
        Ok(current.insert(producer).clone())
    }

    /// Sends a message, and waits until the topic has it.
    pub(crate) async fn send(&self, message: Outgoing<'_>) -> KafkaResult<Delivery> {
        let sent = self.current()?.send(message, QUEUEING).await;
        sent.map_err(|(error, _): (KafkaError, _)| error)
    }
}
