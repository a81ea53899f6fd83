//! Messages that the broker has taken over when the call returns.

use std::time::Duration;

use idem_queue::BoxError;
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Confirmation};

/// How long the broker has to confirm a message.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Publishes a message on a channel with confirmations, and waits until queues have it.
///
/// If this is dropped, or the process dies, the message may have been published or not.
pub(crate) async fn publish(
    channel: &Channel,
    exchange: &str,
    routing_key: &str,
    payload: &[u8],
    properties: BasicProperties,
) -> Result<(), BoxError> {
    // One that no queue gets comes back, and would be lost.
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let published =
        async { channel.basic_publish(exchange.into(), routing_key.into(), options, payload, properties).await?.await };
    match tokio::time::timeout(LIMIT, published).await {
        Ok(Ok(Confirmation::Ack(None))) => Ok(()),
        Ok(Ok(Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)))) => {
            Err(format!("no queue is bound to the exchange `{exchange}` for the routing key `{routing_key}`").into())
        }
        Ok(Ok(Confirmation::Nack(None))) => {
            Err("the broker refused the message: a queue is full, or has no leader".into())
        }
        Ok(Ok(Confirmation::NotRequested)) => Err("the channel has no confirmations".into()),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err("the broker has not confirmed the message within 10 s".into()),
    }
}
